"""Sets of heads that orders remove: by score, at random, and the best of some random ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pathkernel_heads.head_game import HeadGame
from pathkernel_heads.heads import random_orders, removal_order
from pathkernel_heads.removal_games import best_of, left_after


def left_by_score(
    scores: np.ndarray, heads: Sequence[int], counts: Sequence[int], *, keeps_layers: bool
) -> np.ndarray:
    """Heads that are left after removals in increasing score, bool (removed, draw, head).

    Parameters
    ----------
    scores : array, shape (C, ΣH_ℓ)
        Of C draws.
    heads : sequence of int
        Heads H_1 … H_L of each layer.
    counts : sequence of int
        Numbers of heads removed.
    keeps_layers : bool
        As for :func:`pathkernel_heads.heads.removal_order`.
    """
    orders = [removal_order(row, heads, keeps_layers=keeps_layers) for row in scores]
    return left_after(orders, sum(heads))[:, counts].swapaxes(0, 1)


def left_at_random(
    heads: Sequence[int], counts: Sequence[int], orders: int, seed: int, *, keeps_layers: bool
) -> np.ndarray:
    """Heads that are left after removals in random orders, bool (random_order, removed, head)."""
    drawn = random_orders(heads, orders, seed, keeps_layers=keeps_layers)
    return left_after(drawn, sum(heads))[:, counts]


def best_left(game: HeadGame, random: np.ndarray) -> np.ndarray:
    """Of random sets the best of each size by the game's worth, bool (removed, draw, head).

    ``random`` has shape (random_order, removed, head). All draws of the measure have one choice.
    """
    chosen = best_of(game.worth, random.reshape(-1, game.players))
    return np.repeat(chosen[:, None], game.draws, axis=1)
