"""The heads of a network as players of a game, and the scores computed by evaluating it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import xarray as xr

from pathkernel_core.heads import every_head
from pathkernel_datasets.labelling import head_coordinates
from pathkernel_heads.evaluator import Evaluator
from pathkernel_heads.heads import are_removable, keep_every_layer, scores_by_head
from pathkernel_heads.removal_games import (
    EXACT_PLAYERS,
    best_of,
    every_coalition,
    exact_shapley,
    greedy_order,
    sampled_shapley,
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

    def allowed(self, present: np.ndarray) -> np.ndarray:
        """Which sets of heads may be left, (k,)."""
        keeps_layers = self.evaluator.keeps_layers
        return keep_every_layer(present, self.layers) | (not keeps_layers)

    def examples(self, test: str) -> int:
        """Number of examples of a set."""
        return self.evaluator.evaluate(test, self.all_heads).shape[2]

    def lost_without(self, examples: str) -> xr.DataArray:
        """Loss of every example without every single head, dims (draw, head, example).

        NaN for a head that must stay.
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
        sets = sets[np.isin(self.players - sets.sum(axis=1), counts) & self.allowed(sets)]
        best = best_of(lambda present: self.means(examples, present).mean(axis=-1), sets)
        return self.evaluator.evaluate(examples, best).mean(axis=2)


def score_by_evaluation(
    game: HeadGame,
    *,
    shapley: int | Literal["exact"] = 0,
    greedy: int = 0,
    removals: int | None = None,
    seed: int = 0,
) -> dict[str, xr.DataArray]:
    """Score heads by evaluations of the network without them, on the game's examples.

    Parameters
    ----------
    game : HeadGame
    shapley, greedy, seed
        As for :func:`pathkernel_heads.orders.compare_orders`.
    removals : int, optional
        Number of heads after which the greedy order stops; by default all that may go.

    Returns
    -------
    dict of str to xarray.DataArray, dims (head, draw)
        ``ablation``, the loss without the head, and on request ``shapley`` and ``greedy``.
    """
    scores, errors = {}, {}
    lost = game.lost_without(game.validation).values
    scores["ablation"], errors["ablation"] = lost.mean(axis=-1), standard_error(lost)
    if shapley == "exact":
        worths = game.means(game.validation, every_coalition(game.players)).T
        scores["shapley"] = np.array([exact_shapley(w, game.players) for w in worths])
    elif shapley:

        def sampled(draw: int) -> tuple[np.ndarray, np.ndarray]:
            generator = np.random.default_rng(seed)  # the same sets for every draw
            worth = lambda present: game.means(game.validation, present)[:, draw]  # noqa: E731
            return sampled_shapley(worth, game.players, shapley, generator)

        drawn = [sampled(draw) for draw in range(game.draws)]
        scores["shapley"], errors["shapley"] = map(np.array, zip(*drawn))
    if greedy:
        order = greedy_order(game.worth, game.players, game.allowed, removals, at_once=greedy)
        # heads that never go are as good as the last one
        score = np.where(game.removable, float(len(order)), np.nan)
        score[list(order)] = range(len(order))
        scores["greedy"] = np.broadcast_to(score, (game.draws, game.players))
    heads = every_head(game.layers)
    return {
        name: scores_by_head(
            heads, score.T, errors[name].T if name in errors else None, needs="examples"
        )
        for name, score in scores.items()
    }


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over examples, the last axis."""
    return values.std(axis=-1) / np.sqrt(values.shape[-1])
