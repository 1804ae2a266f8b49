"""Heads by layer and number, sets of them that may be removed, and orders of removal.

Functions of arrays number the heads of all layers from 0, the first layer first, as
:func:`every_head` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Head = tuple[int, int]
"""Layer and head within the layer, both from 1."""


def every_head(heads: Sequence[int]) -> tuple[Head, ...]:
    """All heads of a network with H_ℓ heads in each layer, the first layer first."""
    return tuple(
        (layer, head) for layer, count in enumerate(heads, start=1) for head in range(1, count + 1)
    )


def head_label(head: Head) -> str:
    """Layer and number of a head, such as ``2-1``."""
    return "{}-{}".format(*head)


def removable_heads(heads: Sequence[int]) -> tuple[Head, ...]:
    """Heads that can be removed alone: all that share their layer with another."""
    return tuple(head for head in every_head(heads) if heads[head[0] - 1] > 1)


def are_removable(heads: Sequence[int]) -> np.ndarray:
    """Which of ``every_head`` are among ``removable_heads``, array of bool (ΣH_ℓ,)."""
    return np.repeat(np.array(heads) > 1, heads)


def keep_every_layer(present: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """Which sets of heads, bool (k, ΣH_ℓ), have one in every layer, (k,)."""
    starts = np.cumsum([0, *heads[:-1]])
    return np.logical_or.reduceat(present, starts, axis=1).all(axis=1)


def per_layer(values: np.ndarray, heads: Sequence[int]) -> list[np.ndarray]:
    """Values of all heads (ΣH_ℓ, …) as one array per layer."""
    return np.split(np.asarray(values), np.cumsum(heads)[:-1])


def by_layer(values: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """Values (…, ΣH_ℓ) as (…, layer, head), NaN behind the last head of a layer."""
    table = np.full((*np.shape(values)[:-1], len(heads), max(heads)), np.nan)
    layers, numbers = np.array(every_head(heads)).T - 1
    table[..., layers, numbers] = values
    return table


def from_layers(table: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """Values (…, layer, head) as (…, ΣH_ℓ), the inverse of :func:`by_layer`."""
    layers, numbers = np.array(every_head(heads)).T - 1
    return np.asarray(table)[..., layers, numbers]


def kept_heads(heads: Sequence[int], removed: Iterable[Head]) -> tuple[tuple[int, ...], ...]:
    """Heads left in each layer, as :meth:`pathkernel_core.network.Network.keep_heads` takes them.

    Raises a ValueError if there is no such head, one is named twice, or a layer would lose all of
    its H_ℓ heads.
    """
    removed = [tuple(head) for head in removed]
    for head in removed:
        if head not in every_head(heads) or removed.count(head) > 1:
            layers = ", ".join(
                f"layer {layer} has heads 1 to {count}" for layer, count in enumerate(heads, 1)
            )
            raise ValueError(
                f"removed names (layer, head) = {head}, but {layers}, each of which can be removed "
                "once"
            )
    left = tuple(
        tuple(head for head in range(1, count + 1) if (layer, head) not in removed)
        for layer, count in enumerate(heads, start=1)
    )
    if () in left:
        raise ValueError(
            f"removed takes every head of layer {left.index(()) + 1}, and the output would be 0; "
            "leave one"
        )
    return left


def removal_order(
    scores: np.ndarray, heads: Sequence[int], *, keeps_layers: bool = True
) -> np.ndarray:
    """Numbers of heads in increasing score, across layers; equal ones by layer and number.

    Parameters
    ----------
    scores : array, shape (ΣH_ℓ,)
    heads : sequence of int
        Heads H_1 … H_L of each layer.
    keeps_layers : bool
        Whether every layer keeps a head: one whose removal would empty its layer is passed over,
        and the score of a layer's only head has no effect, and may be NaN.

    Raises
    ------
    ValueError
        If the score of another head is NaN.
    """
    scores = np.asarray(scores, dtype=float)
    if np.isnan(scores[are_removable(heads) | (not keeps_layers)]).any():
        raise ValueError(
            "scores hold NaN, which cannot be ordered; score every head that may be removed"
        )
    layers, left, order = np.repeat(range(len(heads)), heads), list(heads), []
    for head in np.argsort(scores, kind="stable"):
        if left[layers[head]] > keeps_layers:
            left[layers[head]] -= 1
            order.append(head)
    return np.array(order, dtype=int)


def random_orders(
    heads: Sequence[int], count: int, seed: int, *, keeps_layers: bool = True
) -> np.ndarray:
    """Random removal orders, (count, removals); parameters as for :func:`removal_order`."""
    generator = np.random.default_rng(seed)
    drawn = (np.argsort(generator.permutation(sum(heads))) for _ in range(count))
    return np.array([removal_order(rank, heads, keeps_layers=keeps_layers) for rank in drawn])
