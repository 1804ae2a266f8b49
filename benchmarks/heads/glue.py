"""Accuracy of BERT on SST-2 and MNLI without 72 and 108 of its 144 heads, beside published numbers.

    python -m benchmarks.heads.glue sst2
    python -m benchmarks.heads.glue mnli --device cuda

Heads are chosen on labelled training sentences, removed, and the accuracy measured on the whole
development set, without and with refitted gains. This command was prepared where no weights can be
downloaded: it has run on a small random BERT alone, and says nothing yet of BERT itself.

A run needs PyTorch, transformers and a network, or the folders --model and --data. It downloads a
checkpoint of 440 MB of the Hugging Face hub, and sentences: 7 MB for SST-2, 313 MB for MNLI. It
needs 4 GB of memory. A small model of 12 × 12 heads took 480 passes of the examples in all, two
fifths of them with gradients. At the seconds that a random BERT takes for a pass, that is 6 hours
on one core for SST-2, and an estimated 12 for MNLI, whose sentences are longer; a GPU is faster.
"""

from __future__ import annotations

import argparse
import copy
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pooch
import torch
from torch import Tensor, nn

import pathkernel as pk

SOURCE = (
    "Greedy-Gnorm (arXiv 2602.04491), github.com/Sheridan-Stable/greedy-gnorm, "
    "experiments_results/glue, seed 555: one head at a time, scores of 1,000 training sentences "
    "without labels, nothing refitted"
)
"""Source of the target numbers."""

ARCHIVES = "https://dl.fbaipublicfiles.com/glue/data"


@dataclass(frozen=True)
class Task:
    """A task of GLUE, a checkpoint for it and published accuracies.

    Attributes
    ----------
    checkpoint : str
        Name on the Hugging Face hub, the one that the published numbers are of.
    archive, digest : str
        File of the sentences and its SHA-256.
    test : str
        File of the development set in it.
    texts : tuple of str
        Columns of a sentence, or a pair.
    label : str
        Column of the class.
    classes : tuple of str
        Labels in the order of the checkpoint's outputs.
    targets : mapping
        Published accuracies by the number of heads off and the method.
    """

    checkpoint: str
    archive: str
    digest: str
    test: str
    texts: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    targets: Mapping[int, Mapping[str, float]]


TASKS = {
    "sst2": Task(
        "textattack/bert-base-uncased-SST-2",
        "SST-2.zip",
        "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        "dev.tsv",
        ("sentence",),
        "label",
        ("0", "1"),
        {
            72: {"Greedy-Gnorm": 0.8968, "Taylor": 0.8911, "attribution": 0.9128},
            108: {"Greedy-Gnorm": 0.8532, "Taylor": 0.8498, "attribution": 0.8486},
        },
    ),
    "mnli": Task(
        "textattack/bert-base-uncased-MNLI",
        "MNLI.zip",
        "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
        "dev_matched.tsv",
        ("sentence1", "sentence2"),
        "gold_label",
        ("contradiction", "entailment", "neutral"),
        {
            72: {"Greedy-Gnorm": 0.7960, "Taylor": 0.7365, "attribution": 0.8063},
            108: {"Greedy-Gnorm": 0.5772, "Taylor": 0.4452, "attribution": 0.6893},
        },
    ),
}

Batch = tuple[Mapping[str, Tensor], Tensor]
"""Arguments of a model, and classes (B,)."""


def read_sentences(file: Path, task: Task) -> pd.DataFrame:
    """Texts and the position of their class in ``task.classes``, the column ``class``.

    Raises
    ------
    ValueError
        If a label is none of the classes; the message names it.
    """
    columns = [*task.texts, task.label]
    # quotation marks are parts of the sentences
    options = {"sep": "\t", "quoting": csv.QUOTE_NONE, "dtype": str, "keep_default_na": False}
    frame = pd.read_csv(file, usecols=columns, **options)[columns]
    numbers = {label: number for number, label in enumerate(task.classes)}
    if unknown := sorted(set(frame[task.label]) - set(numbers)):
        raise ValueError(f"{file} has the label {unknown[0]!r}, which is none of {task.classes}")
    return frame.assign(**{"class": frame[task.label].map(numbers)})


def draw_balanced(frame: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """Sentences drawn without replacement, about ``count`` in all, of every class as many."""
    each = -(-count // frame["class"].nunique())
    return frame.groupby("class").sample(each, random_state=seed)


def make_batches(frame: pd.DataFrame, tokenizer, task: Task, size: int, device: str) -> list[Batch]:
    """Batches of sentences of similar length, which need little padding."""
    lengths = sum(frame[column].str.len() for column in task.texts)
    frame = frame.iloc[lengths.argsort(kind="stable")]
    batches = []
    for start in range(0, len(frame), size):
        part = frame.iloc[start : start + size]
        texts = [part[column].tolist() for column in task.texts]
        inputs = tokenizer(*texts, padding=True, truncation=True, return_tensors="pt").to(device)
        batches.append((dict(inputs), torch.tensor(part["class"].to_numpy(), device=device)))
    return batches


def accuracy(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Fraction of sentences whose class has the largest logit."""
    with torch.no_grad():
        hits = [model(**inputs).logits.argmax(dim=1) == classes for inputs, classes in batches]
    return float(torch.cat(hits).double().mean())


def measure(
    model: nn.Module, choosing: Sequence[Batch], testing: Sequence[Batch], counts: Sequence[int]
) -> Iterator[dict]:
    """Accuracy of a classifier without heads that ``choose_heads`` chose; the model is unchanged.

    Yields
    ------
    dict
        ``off``, the number of heads; ``refit``, whether the gains of the others are refitted;
        ``accuracy``; ``passes`` of the choice. The first row is the whole model.
    """
    yield {"off": 0, "refit": False, "accuracy": accuracy(model, testing), "passes": 0.0}

    def outputs(batch: Batch) -> tuple[Tensor, Tensor]:
        inputs, classes = batch
        return model(**inputs).logits, classes

    for count in counts:
        for refit in (False, True):
            choice = pk.choose_heads(
                model, choosing, outputs, count, loss="cross-entropy", refit=refit
            )
            smaller = copy.deepcopy(model)
            pk.remove_heads(smaller, choice, batch=choosing[0][0], smaller=True)
            yield {
                "off": count,
                "refit": refit,
                "accuracy": accuracy(smaller, testing),
                "passes": choice.passes,
            }


def write_report(rows: Sequence[Mapping], task: Task) -> str:
    """Table of measured and published accuracies; an em dash where nothing is published."""
    methods = list(next(iter(task.targets.values())))
    lines = [f"| heads off | {' | '.join(methods)} | choose_heads | … refitted |"]
    lines.append("| --- " * (3 + len(methods)) + "|")
    for count in sorted({row["off"] for row in rows}):
        published = task.targets.get(count, {})
        cells = [f"{published[name]:.3f}" if name in published else "—" for name in methods]
        measured = {row["refit"]: row["accuracy"] for row in rows if row["off"] == count}
        cells += [f"{measured[refit]:.3f}" if refit in measured else "—" for refit in (False, True)]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Published: {SOURCE}."])


def _folder_of_sentences(task: Task) -> Path:
    """Folder of the sentences, downloaded and unpacked once."""
    files = pooch.retrieve(
        f"{ARCHIVES}/{task.archive}",
        known_hash=task.digest,
        fname=task.archive,
        path=Path(pooch.os_cache("pathkernel")) / "glue",
        processor=pooch.Unzip(),
    )
    return next(Path(file).parent for file in files if Path(file).name == task.test)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print accuracies as they come, and a table beside the published ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("task", choices=TASKS)
    add("--model", help="fine-tuned classifier of these outputs: a folder, or hub name")
    add("--data", type=Path, help="folder of train.tsv and the development set, as GLUE has them")
    add("--counts", type=int, nargs="+", default=[72, 108], help="numbers of heads to remove")
    add("--examples", type=int, default=1000, help="training sentences that heads are chosen on")
    add("--batch", type=int, default=50, help="sentences in a batch")
    add("--device", default="cpu", help="device of PyTorch, such as cuda")
    add("--seed", type=int, default=0, help="seed of the draw of training sentences")
    options = parser.parse_args(arguments)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    task = TASKS[options.task]
    name = options.model or task.checkpoint
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForSequenceClassification.from_pretrained(name)
        folder = options.data or _folder_of_sentences(task)
    except OSError as error:  # no network
        parser.error(
            f"weights or sentences could not be had: {str(error)[:300]}. Copy them from a machine "
            "with a network, and give their folders, --model and --data"
        )
    if model.config.num_labels != len(task.classes):
        parser.error(
            f"{name} has {model.config.num_labels} classes, but {options.task} has "
            f"{len(task.classes)}; give a model that is fine-tuned on it"
        )
    model.eval().to(options.device)
    train = draw_balanced(
        read_sentences(folder / "train.tsv", task), options.examples, options.seed
    )
    choosing, testing = (
        make_batches(frame, tokenizer, task, options.batch, options.device)
        for frame in (train, read_sentences(folder / task.test, task))
    )
    rows = []
    for row in measure(model, choosing, testing, options.counts):
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr)
    print(write_report(rows, task))


if __name__ == "__main__":
    main()
