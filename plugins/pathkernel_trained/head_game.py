"""The heads of a network as players of a game, and the scores that ask the network itself."""

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

_AT_ONCE = 128  # networks that are evaluated at once


class HeadGame:
    """An evaluator's first quantity as the worth of sets of heads, a larger one better."""

    def __init__(self, evaluator: Evaluator, validation: str):
        self.evaluator, self.validation = evaluator, validation
        self.players, self.layers = sum(evaluator.heads), evaluator.heads
        whole = evaluator.evaluate(validation, np.ones((1, self.players), dtype=bool))
        self.draws = whole.shape[-1]
        self.signs = np.array(list(evaluator.quantities.values()))
        self.removable = are_removable(self.layers) | (not evaluator.keeps_layers)

    def means(self, examples: str, present: np.ndarray) -> np.ndarray:
        """Mean of the first quantity, its sign such that larger is better, (k, C)."""
        parts = np.array_split(present, -(-len(present) // _AT_ONCE))
        means = [self.evaluator.evaluate(examples, part)[:, 0].mean(axis=1) for part in parts]
        return self.signs[0] * np.concatenate(means)

    def worth(self, present: np.ndarray) -> np.ndarray:
        """The same on validation examples, mean over draws, (k,)."""
        return self.means(self.validation, present).mean(axis=-1)

    def allowed(self, present: np.ndarray) -> np.ndarray:
        """Which sets of heads may be left, (k,)."""
        if not self.evaluator.keeps_layers:
            return np.ones(len(present), dtype=bool)
        return keep_every_layer(present, self.layers)

    def examples(self, test: str) -> int:
        """Number of examples of a set."""
        whole = np.ones((1, self.players), dtype=bool)
        return self.evaluator.evaluate(test, whole).shape[2]

    def lost_without(self, examples: str) -> np.ndarray:
        """Loss of every example with every single head, (C, ΣH_ℓ, P); NaN if it must stay."""
        present = np.ones((1 + self.removable.sum(), self.players), dtype=bool)
        present[np.arange(1, len(present)), np.flatnonzero(self.removable)] = False
        whole, *values = self.evaluator.evaluate(examples, present)[:, 0]
        lost = np.full((self.players, *whole.shape), np.nan)
        lost[self.removable] = self.signs[0] * (whole - np.array(values))
        return np.moveaxis(lost, -1, 0)

    def best(self, examples: str, counts: Sequence[int]) -> np.ndarray:
        """Values (removed, Q, C) of the best sets of all; NaN if they are too many."""
        if self.players > EXACT_PLAYERS:
            return np.full((len(counts), len(self.signs), self.draws), np.nan)
        every = every_coalition(self.players)
        sizes = np.isin(self.players - every.sum(axis=1), counts)
        allowed = every[sizes & self.allowed(every)]
        best = best_of(lambda sets: self.means(examples, sets).mean(axis=-1), allowed)
        return self.evaluator.evaluate(examples, best).mean(axis=2)


def own_scores(
    game: HeadGame, most: int, shapley: int | Literal["exact"], greedy: int, seed: int
) -> Iterator[tuple[str, HeadScores]]:
    """Scores (C, ΣH_ℓ) that ask the network on validation examples, by name."""
    lost = game.lost_without(game.validation)
    yield "ablation", HeadScores(lost.mean(axis=-1), standard_error(lost))
    if shapley == "exact":
        every = every_coalition(game.players)
        worths = game.means(game.validation, every).T
        yield "shapley", HeadScores(np.array([exact_shapley(w, game.players) for w in worths]))
    elif shapley:

        def sampled(draw: int) -> tuple[np.ndarray, np.ndarray]:
            generator = np.random.default_rng(seed)  # the same sets for every draw
            worth = lambda present: game.means(game.validation, present)[:, draw]  # noqa: E731
            return sampled_shapley(worth, game.players, shapley, generator)

        values, errors = zip(*map(sampled, range(game.draws)))
        yield "shapley", HeadScores(np.array(values), np.array(errors))
    if greedy:
        order = greedy_order(game.worth, game.players, game.allowed, most, at_once=greedy)
        score = np.where(game.removable, float(len(order)), np.nan)
        score[list(order)] = range(len(order))
        yield "greedy", HeadScores(score)


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over examples, the last axis."""
    return values.std(axis=-1) / np.sqrt(values.shape[-1])
