"""Heads by layer and number, sets of them that may be removed, and orders to remove them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pathkernel_core.network import Network

Head = tuple[int, int]
"""Layer and head within the layer, both from 1."""

Scores = Sequence[np.ndarray]
"""A score of every head: one array (H_ℓ,) per layer, the first layer first."""


def every_head(heads: Sequence[int]) -> tuple[Head, ...]:
    """All heads of a network with so many in each layer, the first layer first."""
    return tuple(
        (layer, head) for layer, count in enumerate(heads, start=1) for head in range(1, count + 1)
    )


def removable_heads(heads: Sequence[int]) -> tuple[Head, ...]:
    """Heads that can be removed alone: all but those that are the only one of their layer."""
    return tuple(head for head in every_head(heads) if heads[head[0] - 1] > 1)


def are_removable(heads: Sequence[int]) -> np.ndarray:
    """Which of ``every_head`` are among ``removable_heads``, array of bool (ΣH_ℓ,)."""
    return np.repeat(np.array(heads) > 1, heads)


def kept_heads(heads: Sequence[int], removed: Iterable[Head]) -> tuple[tuple[int, ...], ...]:
    """Heads that each layer keeps, as :meth:`pathkernel_core.network.Network.keep_heads` takes.

    Parameters
    ----------
    heads : sequence of int
        Heads H_1 … H_L of each layer.
    removed : iterable of (layer, head)
        Both numbered from 1.

    Raises
    ------
    ValueError
        If there is no such head, one is named twice, or a layer would be left without any.
    """
    removed = [tuple(head) for head in removed]
    known = every_head(heads)
    for head in removed:
        if head not in known:
            layers = ", ".join(
                f"layer {layer} has heads 1 to {count}" for layer, count in enumerate(heads, 1)
            )
            raise ValueError(f"removed names (layer, head) = {head}, but {layers}")
        if removed.count(head) > 1:
            raise ValueError(f"removed names (layer, head) = {head} twice")
    kept = tuple(
        tuple(head for head in range(1, count + 1) if (layer, head) not in removed)
        for layer, count in enumerate(heads, start=1)
    )
    for layer, left in enumerate(kept, start=1):
        if not left:
            raise ValueError(
                f"removed takes every head of layer {layer}, and the output would be 0; leave one"
            )
    return kept


def pruned_network(network: Network, removed: Iterable[Head]) -> Network:
    """The theory's network without some heads; its layers are normalised by the heads left.

    Raises
    ------
    ValueError
        As for :func:`kept_heads`.
    """
    return network.keep_heads(kept_heads(network.heads, removed))


@dataclass(frozen=True)
class RemovalOrder:
    """In which order heads are removed, until every layer has one left.

    Attributes
    ----------
    removed : tuple of (layer, head)
        First the head that is removed first.
    skipped : tuple of (layer, head)
        Heads that stay although heads of a larger score go: the last ones of their layers. A head
        that was its layer's only one from the start is not among them: it has no place in an order.
    """

    removed: tuple[Head, ...]
    skipped: tuple[Head, ...]

    def first(self, count: int) -> tuple[Head, ...]:
        """The first heads of the order.

        Raises
        ------
        ValueError
            If that would empty a layer.
        """
        if not 0 <= count <= len(self.removed):
            raise ValueError(
                f"{count} heads cannot be removed: between 0 and {len(self.removed)} can, as every "
                "layer keeps one"
            )
        return self.removed[:count]


def removal_order(scores: Scores) -> RemovalOrder:
    """Heads in increasing score, across layers; equal ones by layer and number.

    A head whose removal would empty its layer is skipped, and the next one is taken.

    Parameters
    ----------
    scores : sequence of L arrays, shape (H_ℓ,)
        The score of a layer's only head is not looked at, and may be NaN.

    Raises
    ------
    ValueError
        If the score of another head is NaN.
    """
    heads = removable_heads([len(layer) for layer in scores])
    flat = np.array([scores[layer - 1][head - 1] for layer, head in heads], dtype=float)
    if np.isnan(flat).any():
        raise ValueError(
            "scores hold NaN, which has no place in an order; give every head one, but for those "
            "that are the only one of their layer"
        )
    left = {layer: len(values) for layer, values in enumerate(scores, start=1)}
    removed: list[Head] = []
    passed: list[tuple[Head, int]] = []  # heads that stay, and how many were removed before
    for place in np.argsort(flat, kind="stable"):
        layer, head = heads[place]
        if left[layer] > 1:
            left[layer] -= 1
            removed.append((layer, head))
        else:
            passed.append(((layer, head), len(removed)))
    skipped = tuple(head for head, before in passed if before < len(removed))
    return RemovalOrder(tuple(removed), skipped)


def random_orders(heads: Sequence[int], count: int, seed: int) -> list[RemovalOrder]:
    """Orders drawn at random, each keeping one head of every layer.

    Parameters
    ----------
    heads : sequence of int
        Heads of each layer.
    count : int
        Number of orders.
    seed : int
    """
    generator = np.random.default_rng(seed)
    edges = np.cumsum(heads)[:-1]
    return [removal_order(np.split(generator.permutation(sum(heads)), edges)) for _ in range(count)]
