"""The heads of a path network as players of a game: the accuracy that some of them reach together.

The output of a coalition of heads is f_S = n^{-1/2} Σ_π w_π · ξ_π over the paths all of whose heads
belong to it: heads are masked, and the factor stays that of the whole network. It is thus 0 without
a head of some layer, which is right in half of the cases. Where every layer keeps a head, accuracy
is that of the network from which the others are removed: their factors, too, leave its sign alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from pathkernel_trained.heads import Head, Scores, every_head, random_orders
from pathkernel_trained.outputs import PathOutputs
from pathkernel_trained.removal_games import (
    EXACT_PLAYERS,
    best_of,
    every_coalition,
    exact_shapley,
    greedy_order,
    left_after,
    sampled_shapley,
)
from pathkernel_trained.scores import per_layer

Removals = Sequence[tuple[Head, ...]]
"""Heads that are gone after 0, 1, … removals, until every layer has one left."""

_PERMUTATIONS = 500  # that sampled Shapley values are means over
_AT_ONCE = 2**22  # outputs that are held at once


class AccuracyGame:
    """Worth of coalitions of heads: the accuracy of their part of the network.

    Attributes
    ----------
    heads : tuple of int
        Heads H_1 … H_L of each layer.
    players : int
        Number of heads, players in the order of ``every_head``.

    Parameters
    ----------
    outputs : PathOutputs
        On validation or training episodes if heads are to be chosen by it.
    """

    def __init__(self, outputs: PathOutputs):
        self.heads, self.players = outputs.heads, sum(outputs.heads)
        self._through = outputs.through.astype(float)
        self._rightness = outputs.values * outputs.labels[:, None]  # (P, n), their sum's sign is

    def __call__(self, coalitions: np.ndarray) -> np.ndarray:
        """Accuracies (k,) of coalitions, bool (k, H)."""
        if self.players > EXACT_PLAYERS:
            return self._accuracies(coalitions)
        return self.table[coalitions @ 2 ** np.arange(self.players)[::-1]]

    @functools.cached_property
    def table(self) -> np.ndarray:
        """Accuracies of ``every_coalition``, (2^H,); raises where there are too many."""
        return self._accuracies(every_coalition(self.players))

    def keeps_every_layer(self, coalitions: np.ndarray) -> np.ndarray:
        """Which coalitions, bool (k, H), have a head in every layer, (k,)."""
        starts = np.cumsum([0, *self.heads[:-1]])
        return np.logical_or.reduceat(coalitions, starts, axis=1).all(axis=1)

    def _accuracies(self, coalitions: np.ndarray) -> np.ndarray:
        found, step = np.empty(len(coalitions)), max(1, _AT_ONCE // len(self._rightness))
        for start in range(0, len(coalitions), step):
            part = slice(start, start + step)
            whole = (~coalitions[part] @ self._through.T == 0).astype(float)  # paths with all heads
            found[part] = np.mean(1 + np.sign(self._rightness @ whole.T), axis=0) / 2
        return found


def shapley_scores(game: AccuracyGame, seed: int = 0) -> tuple[Scores, Scores | None]:
    """Shapley values of all heads, for the accuracy; exact for at most 16, else sampled.

    Returns
    -------
    scores, errors : list of L arrays, shape (H_ℓ,)
        Standard errors of sampled values; None for exact ones.
    """
    if game.players <= EXACT_PLAYERS:
        return per_layer(exact_shapley(game.table, game.players), game.heads), None
    generator = np.random.default_rng(seed)
    found = sampled_shapley(game, game.players, _PERMUTATIONS, generator)
    values, errors = (per_layer(each, game.heads) for each in found)
    return values, errors


def greedy_removals(game: AccuracyGame) -> Removals:
    """Heads removed one by one, each time the one without which the accuracy is largest."""
    order = greedy_order(game, game.players, game.keeps_every_layer)
    return _gone(game, left_after([order], game.players)[0])


def best_removals(game: AccuracyGame, count: int, seed: int = 0) -> Removals:
    """Of so many random sets of 1, 2, … heads, those without which the accuracy is largest.

    Sets of different sizes need not contain one another.
    """
    numbers = {head: place for place, head in enumerate(every_head(game.heads))}
    drawn = [
        [numbers[head] for head in order.removed]
        for order in random_orders(game.heads, count, seed)
    ]
    left = left_after(drawn, game.players).reshape(-1, game.players)
    return _gone(game, best_of(game, left))


def best_accuracies(game: AccuracyGame) -> np.ndarray:
    """Largest accuracy with 0, 1, … heads removed, in whatever way.

    NaN where there are more heads than all coalitions of can be looked at.
    """
    removals = game.players - len(game.heads)
    if game.players > EXACT_PLAYERS:
        return np.full(removals + 1, np.nan)
    every = every_coalition(game.players)
    left = best_of(game, every[game.keeps_every_layer(every)])
    return game(left)


def _gone(game: AccuracyGame, left: np.ndarray) -> Removals:
    names = every_head(game.heads)
    return [tuple(head for head, stays in zip(names, row) if not stays) for row in left]
