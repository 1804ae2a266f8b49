"""The heads of a network as players of a game, whose worth is what the network does with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from pathkernel_core.paths.heads import every_head
from pathkernel_datasets.variables.head_axis import head_coordinates
from pathkernel_pruning.heads.evaluator import Evaluator
from pathkernel_pruning.heads.heads import are_removable, keep_every_layer
from pathkernel_pruning.heads.removal_games import (
    EXACT_PLAYERS,
    best_of,
    every_coalition,
)

_BATCH = 128  # networks that are evaluated at once


class HeadGame:
    """An evaluator's first quantity as the worth of sets of heads, larger is better."""

    def __init__(self, evaluator: Evaluator, validation: str):
        self.evaluator, self.validation = evaluator, validation
        self.players, self.layers = sum(evaluator.heads), evaluator.heads
        self.all_heads = np.ones((1, self.players), dtype=bool)
        self.draws = evaluator.evaluate(validation, self.all_heads).shape[-1]
        self.signs = np.array(list(evaluator.quantities.values()))
        self.removable = are_removable(self.layers) | (not evaluator.keeps_layers)

    def means(self, examples: str, present: np.ndarray) -> np.ndarray:
        """Mean of the first quantity, its sign such that larger is better, (k, C)."""
        # 2^16 coalitions at once would hold every example 65,536 times
        batches = np.array_split(present, -(-len(present) // _BATCH))
        means = [self.evaluator.evaluate(examples, sets)[:, 0].mean(axis=1) for sets in batches]
        return self.signs[0] * np.concatenate(means)

    def worth(self, present: np.ndarray) -> np.ndarray:
        """The same on validation examples, mean over draws, (k,)."""
        return self.means(self.validation, present).mean(axis=-1)

    def are_allowed(self, present: np.ndarray) -> np.ndarray:
        """Which sets of heads may be left, (k,)."""
        keeps_layers = self.evaluator.keeps_layers
        return keep_every_layer(present, self.layers) | (not keeps_layers)

    def examples(self, test: str) -> int:
        """Number of examples of a set."""
        return self.evaluator.evaluate(test, self.all_heads).shape[2]

    def lost_without(self, examples: str) -> xr.DataArray:
        """Loss of every example with one head off, dims (draw, head, example).

        NaN for a head that must be kept.
        """
        present = np.concatenate(
            [self.all_heads, ~np.eye(self.players, dtype=bool)[self.removable]]
        )
        complete, *values = self.evaluator.evaluate(examples, present)[:, 0]
        lost = np.full((self.players, *complete.shape), np.nan)
        lost[self.removable] = self.signs[0] * (complete - np.array(values))
        coordinates = head_coordinates(every_head(self.layers))
        return xr.DataArray(np.moveaxis(lost, -1, 0), coordinates, ("draw", "head", "example"))

    def best(self, examples: str, counts: Sequence[int]) -> np.ndarray:
        """Values (removed, Q, C) of the best sets of all; NaN if there are too many sets."""
        if self.players > EXACT_PLAYERS:
            return np.full((len(counts), len(self.signs), self.draws), np.nan)
        sets = every_coalition(self.players)
        sets = sets[np.isin(self.players - sets.sum(axis=1), counts) & self.are_allowed(sets)]
        best = best_of(lambda present: self.means(examples, present).mean(axis=-1), sets)
        return self.evaluator.evaluate(examples, best).mean(axis=2)


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over examples, the last axis."""
    return values.std(axis=-1) / np.sqrt(values.shape[-1])
