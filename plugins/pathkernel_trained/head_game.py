"""The heads of a network as players of a game, and the scores computed by evaluating it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from pathkernel_trained.evaluator import Evaluator
from pathkernel_trained.heads import are_removable, keep_every_layer
from pathkernel_trained.removal_games import (
    EXACT_PLAYERS,
    best_of,
    every_coalition,
    exact_shapley,
    greedy_order,
    sampled_shapley,
)
from pathkernel_trained.scores import HeadScores

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
        parts = np.array_split(present, -(-len(present) // _BATCH))
        means = [self.evaluator.evaluate(examples, part)[:, 0].mean(axis=1) for part in parts]
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

    def lost_without(self, examples: str) -> np.ndarray:
        """Loss of every example with every single head, (C, ΣH_ℓ, P); NaN if it must stay."""
        present = np.concatenate(
            [self.all_heads, ~np.eye(self.players, dtype=bool)[self.removable]]
        )
        complete, *values = self.evaluator.evaluate(examples, present)[:, 0]
        lost = np.full((self.players, *complete.shape), np.nan)
        lost[self.removable] = self.signs[0] * (complete - np.array(values))
        return np.moveaxis(lost, -1, 0)

    def best(self, examples: str, counts: Sequence[int]) -> np.ndarray:
        """Values (removed, Q, C) of the best sets of all; NaN if there are too many sets."""
        if self.players > EXACT_PLAYERS:
            return np.full((len(counts), len(self.signs), self.draws), np.nan)
        sets = every_coalition(self.players)
        sets = sets[np.isin(self.players - sets.sum(axis=1), counts) & self.allowed(sets)]
        best = best_of(lambda present: self.means(examples, present).mean(axis=-1), sets)
        return self.evaluator.evaluate(examples, best).mean(axis=2)


def evaluated_scores(
    game: HeadGame, removals: int, shapley: int | Literal["exact"], greedy: int, seed: int
) -> Iterator[tuple[str, HeadScores]]:
    """Scores (C, ΣH_ℓ) from evaluations on validation examples, by name.

    The greedy order stops after some removals; other parameters are those of
    :func:`pathkernel_trained.orders.compare_orders`.
    """
    lost = game.lost_without(game.validation)
    yield "ablation", HeadScores(lost.mean(axis=-1), standard_error(lost))
    if shapley == "exact":
        worths = game.means(game.validation, every_coalition(game.players)).T
        yield "shapley", HeadScores(np.array([exact_shapley(w, game.players) for w in worths]))
    elif shapley:

        def sampled(draw: int) -> tuple[np.ndarray, np.ndarray]:
            generator = np.random.default_rng(seed)  # the same sets for every draw
            worth = lambda present: game.means(game.validation, present)[:, draw]  # noqa: E731
            return sampled_shapley(worth, game.players, shapley, generator)

        values, errors = zip(*map(sampled, range(game.draws)))
        yield "shapley", HeadScores(np.array(values), np.array(errors))
    if greedy:
        order = greedy_order(game.worth, game.players, game.allowed, removals, at_once=greedy)
        score = np.where(game.removable, float(len(order)), np.nan)
        score[list(order)] = range(len(order))
        yield "greedy", HeadScores(score)


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over examples, the last axis."""
    return values.std(axis=-1) / np.sqrt(values.shape[-1])
