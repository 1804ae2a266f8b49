"""Heads of trained models by the likelihood of classes, from captured validation examples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

import pathkernel as pk
from benchmarks.classes.data import print_row
from benchmarks.heads.models import Batch, HeadModel, head_model

HEADS = (
    *("model", "C", "P", "paths", "N", "scale", "log evidence"),
    *("log loss", "accuracy", "heads of the highest scores"),
)
"""Columns of the table."""

MODELS = {"minilm": 300, "vision-mnist": 100, "vision-fashion-mnist": 100}
"""Numbers of training examples; ten classes have ten times their rows."""

WIDTHS, SCALES = (300.0, 1000.0), (1.0, 3.0, 10.0, 30.0)
TEST, LISTED = 300, 4


def class_heads(cache: Path | None) -> None:
    """Print a row for every model; its weights are in the cache, or trained."""
    print("Captured hidden states, with scales by the log evidence:", ", ".join(HEADS))
    for name, examples in MODELS.items():
        model = head_model(name, cache)
        train = captured(model, model.batches("validation", size=examples))
        test = captured(model, model.batches("test")[: TEST // model.batch])
        signs = set(np.unique(train.labels)) == {-1, 1}
        likelihood = "logistic" if signs else "softmax"
        choice = pk.choose_network(train, widths=WIDTHS, scales=SCALES, likelihood=likelihood)
        test = test.scale_tokens(choice.scale, like=choice.train)
        probabilities = choice.solution.predict(test.xi).probabilities
        classes = (test.labels > 0).astype(int) if signs else test.labels
        own = probabilities[np.arange(len(classes)), classes]
        scores = choice.train.by_head(choice.solution.head_scores)
        highest = scores.sortby(scores, ascending=False)["head"].values[:LISTED]
        print_row(
            name, str(probabilities.shape[1]), str(len(train.labels)), str(train.xi.shape[1]),
            f"{choice.width:g}", f"{choice.scale:g}", f"{choice.solution.log_evidence:.1f}",
            f"{-np.log(own).mean():.3f}", f"{(probabilities.argmax(axis=1) == classes).mean():.3f}",
            ", ".join(highest),
        )  # fmt: skip


def captured(model: HeadModel, batches: Iterable[Batch]) -> pk.Captured:
    """Return hidden states that the heads average, with the classes of the batches."""
    pairs = [
        ({name: values for name, values in batch.items() if name != "labels"}, batch["labels"])
        for batch in batches
    ]
    return pk.capture(model.model, pairs, **model.theory)
