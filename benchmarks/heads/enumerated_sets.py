"""Choices of heads against the best of all sets, for networks small enough to try every set.

``python -m benchmarks.heads.enumerated_sets`` trains three transformers of 8 to 10 heads on the
digits of scikit-learn, measures every set of a quarter, half and three quarters of their heads,
without and with refitted gains, and says how far choices are from the best set, and what they cost.
All losses are of the examples that heads are chosen on. What is measured is kept in the folder
``--cache``; delete it when refits change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pathkernel as pk
from benchmarks.heads.models import HeadModel
from benchmarks.heads.orders import ORDERS, REFERENCE, Drawn, Removed
from benchmarks.heads.trials import Gained, counted_passes
from benchmarks.measuring import one_thread
from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.progress import silent

TRAINING, VALIDATION = 1200, 300
"""Numbers of examples; heads are chosen on those of validation."""

_SAME_LOSS = 1e-5  # relative, of a network trained again


@dataclass(frozen=True)
class Shape:
    """Size of a transformer and the seed of its training."""

    layers: int
    heads: int
    width: int
    seed: int

    @property
    def name(self) -> str:
        """Text that names files and rows."""
        return f"{self.layers}-{self.heads}-{self.width}-seed{self.seed}"

    @property
    def counts(self) -> tuple[int, ...]:
        """A quarter, half and three quarters of all heads."""
        return tuple(self.layers * self.heads * quarter // 4 for quarter in (1, 2, 3))


SHAPES = (Shape(2, 4, 16, 0), Shape(2, 5, 20, 1), Shape(3, 3, 15, 2))


class RowTransformer(nn.Module):
    """A transformer whose tokens are the rows of an image of 8 × 8 pixels."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.embedding = nn.Linear(8, shape.width)
        self.positions = nn.Parameter(0.1 * torch.randn(8, shape.width))
        layer = nn.TransformerEncoderLayer(
            *(shape.width, shape.heads, 2 * shape.width, 0.0), batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.readout = nn.Linear(shape.width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 10) of images (B, 8, 8)."""
        return self.readout(self.encoder(self.embedding(images) + self.positions).mean(dim=1))


def digit_model(shape: Shape, steps: int = 400) -> HeadModel:
    """A transformer of a shape, trained by Adam on digits, with examples that it has not seen."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    torch.manual_seed(shape.seed)
    model = RowTransformer(shape)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        rows = torch.randint(TRAINING, (64,))
        optimiser.zero_grad()
        cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()
    model.eval().requires_grad_(False)
    parts = (TRAINING, VALIDATION, len(labels) - TRAINING - VALIDATION)
    sets = {
        name: {"images": images_of, "labels": labels_of}
        for name, images_of, labels_of in zip(
            ("training", "validation", "test"), images.split(parts), labels.split(parts)
        )
    }
    return HeadModel(
        *(shape.name, "transformer of digits", model, "cross-entropy", (VALIDATION, VALIDATION)),
        lambda batch: (model(batch["images"]), batch["labels"]),
        *(sets, sets["validation"]["labels"]),
        batch=VALIDATION,
    )


@dataclass(frozen=True, eq=False)
class Enumeration:
    """Losses without every set of so many heads, on the examples that heads are chosen on.

    Attributes
    ----------
    sets : array of int, shape (S, K)
        Positions of the heads that are off, in ascending order.
    plain, refitted : array, shape (S,)
        Mean loss, without and with refitted gains.
    whole : float
        Mean loss with all heads.
    """

    sets: np.ndarray
    plain: np.ndarray
    refitted: np.ndarray
    whole: float

    def losses(self, refit: bool) -> np.ndarray:
        """Losses (S,) with or without refitted gains."""
        return self.refitted if refit else self.plain

    def loss(self, heads: Sequence[int], refit: bool) -> float:
        """Loss without the heads at these positions, in any order."""
        row = np.flatnonzero((self.sets == sorted(heads)).all(axis=1))
        return float(self.losses(refit)[row].item())


def enumerate_sets(drawn: Drawn, count: int) -> Enumeration:
    """Measure every set of so many heads, without and with refitted gains."""
    gained, batches = drawn.gained, drawn.batches
    sets = np.array(list(combinations(range(len(gained.heads)), count)))
    plain = [gained.loss(batches, gained.without(off)) for off in sets]
    refitted = [gained.loss(batches, _refitted(drawn, off)) for off in sets]
    whole = gained.loss(batches, gained.without([]))
    return Enumeration(sets, np.array(plain), np.array(refitted), whole)


def _refitted(drawn: Drawn, off: Sequence[int]) -> np.ndarray:
    """Gains of all heads (H,) with those at some positions off and the others refitted."""
    model, heads = drawn.head_model, drawn.gained.heads
    gains = pk.refit_gains(
        *(model.model, drawn.batches, model.outputs, [heads[head] for head in off]),
        loss=model.loss,
        report=silent,
    )
    return gains.sel(head=[f"{layer}-{number}" for layer, number in heads]).values


def read_or_enumerate(drawn: Drawn, count: int, cache: Path | None) -> Enumeration:
    """Enumeration from a file of the folder ``cache``, measured and written if it is not there.

    One of another network of this name is measured again.
    """
    if cache is None:
        return enumerate_sets(drawn, count)
    file = cache / f"{drawn.head_model.name}-{count}-off.npz"
    if file.exists():
        with np.load(file) as arrays:
            values = (arrays[name] for name in ("sets", "plain", "refitted"))
            cached = Enumeration(*values, whole=float(arrays["whole"]))
        whole = drawn.gained.loss(drawn.batches, drawn.gained.without([]))
        if abs(whole - cached.whole) <= _SAME_LOSS * cached.whole:
            return cached
    measured = enumerate_sets(drawn, count)
    cache.mkdir(parents=True, exist_ok=True)
    with replace_file(file) as partial, open(partial, "wb") as stream:
        np.savez_compressed(stream, **vars(measured))
    return measured


Choice = Callable[[Drawn, int, bool], Removed]
"""Chooses so many heads, for refitted gains or not, and says the passes that this and a refit took.

Gains are those of all heads, or None where they are not refitted.
"""


def choose(drawn: Drawn, count: int, refit: bool) -> Removed:
    """``choose_heads`` with its defaults."""
    model, heads = drawn.head_model, drawn.gained.heads
    choice = pk.choose_heads(
        *(model.model, drawn.batches, model.outputs, count),
        loss=model.loss,
        refit=refit,
        report=silent,
    )
    labels = [f"{layer}-{number}" for layer, number in heads]
    gains = choice.gains.sel(head=labels).values if refit else None
    return Removed([heads.index(head) for head in choice.heads], gains, choice.passes)


def choose_by_trial(drawn: Drawn, count: int, refit: bool) -> Removed:
    """At every step the head whose removal, tried, leaves the smallest loss; a refit at the end."""
    removed = ORDERS[REFERENCE](Drawn(drawn.gained, drawn.batches, (count,), seed=0))[count][0]
    if not refit:
        return removed
    with counted_passes(drawn.head_model.model) as passes:
        gains = _refitted(drawn, removed.heads)
    total = removed.passes + passes.of(len(drawn.batches))
    return Removed(removed.heads, gains, total)


CHOICES: dict[str, Choice] = {"choose_heads": choose, REFERENCE: choose_by_trial}
"""Choices that are compared, by name."""


def compare(
    drawn: Drawn, count: int, enumeration: Enumeration, choices: dict[str, Choice] = CHOICES
) -> Iterator[dict]:
    """Compare choices of so many heads with the best set; rows without and with refitted gains.

    ``set_gap`` is the loss of the chosen set over that of the best, both measured as all sets were;
    ``gap`` is the loss with the gains that the choice itself gives, which a longer refit may bring
    below the best of all sets.
    """
    gained = drawn.gained
    for refit in (False, True):
        best = float(enumeration.losses(refit).min())
        for name, choice in choices.items():
            removed = choice(drawn, count, refit)
            gains = gained.without(removed.heads) if removed.gains is None else removed.gains
            yield {
                "network": drawn.head_model.name,
                "heads": len(gained.heads),
                "off": count,
                "refit": refit,
                "whole": enumeration.whole,
                "best": best,
                "choice": name,
                "gap": gained.loss(drawn.batches, gains) - best,
                "set_gap": enumeration.loss(removed.heads, refit) - best,
                "passes": removed.passes,
            }


def compare_networks(
    shapes: Sequence[Shape] = SHAPES,
    choices: dict[str, Choice] = CHOICES,
    cache: Path | None = None,
) -> pd.DataFrame:
    """Rows of :func:`compare` for networks of these shapes."""
    rows = []
    for shape in shapes:
        model = digit_model(shape)
        drawn = Drawn(Gained(model), [dict(model.examples["validation"])], shape.counts, seed=0)
        for count in shape.counts:
            enumeration = read_or_enumerate(drawn, count, cache)
            rows += compare(drawn, count, enumeration, choices)
            print(f"{shape.name}, {count} off: {len(enumeration.sets)} sets", file=sys.stderr)
    return pd.DataFrame(rows)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean gaps and passes of every choice, and on how many cases it finds the best set."""
    groups = frame.assign(finds=frame["set_gap"] <= 0).groupby(["refit", "choice"], sort=False)
    return groups.agg(
        cases=("gap", "size"),
        finds=("finds", "sum"),
        gap=("gap", "mean"),
        set_gap=("set_gap", "mean"),
        passes=("passes", "mean"),
    )


def main() -> None:
    """Print a table of all cases, and one of their means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, help="folder of the losses of all sets")
    options = parser.parse_args()
    with one_thread():
        frame = compare_networks(cache=options.cache)
    wide = frame.pivot_table(
        index=["refit", "network", "heads", "off", "whole", "best"],
        columns="choice",
        values=["gap", "set_gap", "passes"],
        sort=False,
    )
    print(wide.to_string(float_format="{:.4f}".format))
    print()
    print(summary(frame).to_string(float_format="{:.4f}".format))


if __name__ == "__main__":
    main()
