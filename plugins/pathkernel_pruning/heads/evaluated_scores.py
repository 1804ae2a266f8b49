"""Scores of heads by evaluations of the network without them: ablation, Shapley values, greedy."""

from __future__ import annotations

from typing import Literal

import numpy as np
import xarray as xr

from pathkernel_core.paths.heads import every_head
from pathkernel_datasets.variables.head_axis import scores_by_head
from pathkernel_pruning.heads.head_game import HeadGame, standard_error
from pathkernel_pruning.heads.removal_games import (
    every_coalition,
    exact_shapley,
    greedy_order,
    sampled_shapley,
)


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
        As for :func:`pathkernel_pruning.heads.orders.compare_orders`.
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

        def sample_draw(draw: int) -> tuple[np.ndarray, np.ndarray]:
            generator = np.random.default_rng(seed)  # the same sets for every draw
            worth = lambda present: game.means(game.validation, present)[:, draw]  # noqa: E731
            return sampled_shapley(worth, game.players, shapley, generator)

        drawn = [sample_draw(draw) for draw in range(game.draws)]
        scores["shapley"], errors["shapley"] = map(np.array, zip(*drawn))
    if greedy:
        order = greedy_order(game.worth, game.players, game.are_allowed, removals, at_once=greedy)
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
