"""Heads of a network by layer and number, both from 1: all of them, their labels, those kept.

Arrays over the heads of all layers have them in this order, the first layer first, as arrays over
paths have the paths of :attr:`pathkernel_core.paths.network.Network.paths`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Head = tuple[int, int]
"""Layer and number within the layer, both from 1."""


def every_head(heads: Sequence[int]) -> tuple[Head, ...]:
    """All heads of a network with H_ℓ heads in each layer, the first layer first."""
    return tuple(
        (layer, number)
        for layer, count in enumerate(heads, start=1)
        for number in range(1, count + 1)
    )


def head_label(head: Head) -> str:
    """Layer and number of a head, such as ``2-1``."""
    return "{}-{}".format(*head)


def kept_heads(heads: Sequence[int], removed: Iterable[Head]) -> tuple[tuple[int, ...], ...]:
    """Heads left in each layer, as ``Network.keep_heads`` takes them.

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
