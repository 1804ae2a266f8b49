"""Heads of a live model switched off, for a while or for good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError
from pathkernel_capture.families import attention_modules


@contextmanager
def heads_off(model: nn.Module, heads: Iterable[tuple[int, int]]) -> Iterator[nn.Module]:
    """Switch heads of a model off while the context lasts, without loss of a bit of its weights.

    The weights by which a head's output enters are zero inside, in place, whatever kernel the
    model's attention runs. Biases stay.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel_capture.capture`, of any precision.
    heads : iterable of (layer, head)
        Both numbered from 1, as in ``Captured.members``.

    Yields
    ------
    torch.nn.Module
        The model.

    Raises
    ------
    CaptureError, ValueError
        If its attention is not known, shares its weights or has quantised ones; or it has no such
        head.
    """
    parts = _output_weights(model, heads)
    kept = [part.clone() for part in parts]
    try:
        for part in parts:
            part.zero_()
        yield model
    finally:
        for part, own in zip(parts, kept):
            part.copy_(own)


def remove_heads(model: nn.Module, heads: Iterable[tuple[int, int]]) -> None:
    """Switch heads of a model off for good: what :func:`heads_off` sets to zero stays zero.

    Shapes and numbers of heads stay, so that the model is saved and loaded as ever.
    """
    for part in _output_weights(model, heads):
        part.zero_()


def _output_weights(model: nn.Module, heads: Iterable[tuple[int, int]]) -> list[Tensor]:
    """Of each head the weights by which its output enters, as views into the model's."""
    known = attention_modules(model)
    if len({attention.output.data_ptr() for attention in known}) < len(known):
        raise CaptureError(f"layers of {type(model).__name__} share their weights, and so heads")
    parts = []
    for layer, head in sorted(set(heads)):
        if not (1 <= layer <= len(known) and 1 <= head <= known[layer - 1].heads):
            counts = ", ".join(str(attention.heads) for attention in known)
            raise ValueError(
                f"heads names ({layer}, {head}), but the model's layers, numbered from 1, have "
                f"{counts} heads, numbered from 1"
            )
        attention = known[layer - 1]
        weight, axis = attention.output.detach(), attention.output_axis
        if not torch.is_floating_point(weight):
            raise CaptureError(
                f"layer {layer} ({attention.name}) has quantised weights ({weight.dtype}), of "
                "which no head can be set to zero; load the model unquantised"
            )
        size = weight.shape[axis] // attention.heads
        parts.append(weight.narrow(axis, (head - 1) * size, size))
    return parts
