"""Sets of heads that orders remove: by score, at random, and the best of some random ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from pathkernel_core.paths.heads import every_head
from pathkernel_datasets.variables.head_axis import head_coordinates
from pathkernel_pruning.heads.head_game import HeadGame
from pathkernel_pruning.heads.heads import heads_per_layer, random_orders, removal_order
from pathkernel_pruning.heads.removal_games import best_of, left_after


def removed_by_score(
    scores: xr.DataArray, counts: Sequence[int], *, keeps_layers: bool
) -> xr.DataArray:
    """Whether heads are removed when those of lowest score go first.

    Parameters
    ----------
    scores : xarray.DataArray, dims (order, draw, head)
    counts : sequence of int
        Numbers of heads removed.
    keeps_layers : bool
        As for :func:`pathkernel_pruning.heads.heads.removal_order`.

    Returns
    -------
    xarray.DataArray of bool, dims (order, removed, draw, head)
    """
    heads = heads_per_layer(scores)
    scores = scores.transpose("order", "draw", "head")
    left = [
        left_after(
            [removal_order(row, heads, keeps_layers=keeps_layers) for row in table], sum(heads)
        )
        for table in scores.values
    ]
    return xr.DataArray(
        ~np.array(left)[:, :, counts].swapaxes(1, 2),
        {**head_coordinates(every_head(heads)), "order": scores["order"], "removed": counts},
        ("order", "removed", "draw", "head"),
    )


def removed_at_random(
    heads: Sequence[int], counts: Sequence[int], orders: int, seed: int, *, keeps_layers: bool
) -> xr.DataArray:
    """Whether heads are removed in random orders, bool, dims (random_order, removed, head)."""
    drawn = random_orders(heads, orders, seed, keeps_layers=keeps_layers)
    return xr.DataArray(
        ~left_after(drawn, sum(heads))[:, counts],
        {**head_coordinates(every_head(heads)), "removed": counts},
        ("random_order", "removed", "head"),
    )


def best_removed(game: HeadGame, random: xr.DataArray) -> xr.DataArray:
    """Best random set of each size by the game's worth, bool, dims (removed, draw, head).

    ``random`` is from :func:`removed_at_random`. All draws of the measure have one choice.
    """
    sets = random.transpose("random_order", "removed", "head")
    chosen = best_of(game.worth, ~sets.values.reshape(-1, game.players))
    best = sets.isel(random_order=0, drop=True).copy(data=~chosen)
    return best.expand_dims(draw=game.draws, axis=1)
