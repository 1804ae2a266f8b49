"""Heads of a live model switched off, for a while or for good."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
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


def remove_heads(
    model: nn.Module, heads: Iterable[tuple[int, int]], *, smaller: bool = False
) -> None:
    """Remove heads of a model for good.

    What :func:`heads_off` sets to zero stays zero; shapes stay, so that the model is saved and
    loaded as ever.

    Parameters
    ----------
    model : torch.nn.Module
    heads : iterable of (layer, head)
        Both numbered from 1.
    smaller : bool
        Take the heads' rows and columns out of the weights, which makes the model faster and
        renumbers its heads. Models of transformers whose queries, keys and values have as many
        heads allow it, but for GPT-2; their configuration, which has one number for all layers,
        then no longer tells their shapes.

    Raises
    ------
    CaptureError, ValueError
        As :func:`heads_off`; or with ``smaller`` if a layer keeps its shape, or no head.
    """
    heads = list(heads)
    parts = _output_weights(model, heads)
    if not smaller:
        for part in parts:
            part.zero_()
        return
    known, cut = attention_modules(model), []
    for layer in sorted({layer for layer, _ in heads}):
        attention = known[layer - 1]
        rest = [head for head in range(attention.heads) if (layer, head + 1) not in heads]
        if attention.projection is None:
            raise CaptureError(
                f"layer {layer} ({attention.name}) keeps its shape; leave smaller out, and the "
                "weights of the heads are set to zero"
            )
        if not rest:
            raise ValueError(f"heads names all of layer {layer}; leave smaller out, or keep one")
        cut.append((attention, attention.projection, rest))
    for attention, output, rest in cut:
        for linear in attention.sources:
            linear.weight = _of_heads(linear.weight, attention.heads, rest)
            if linear.bias is not None:
                linear.bias = _of_heads(linear.bias, attention.heads, rest)
            linear.out_features = len(linear.weight)
        output.weight = _of_heads(output.weight, attention.heads, rest, axis=1)
        output.in_features = output.weight.shape[1]


def refuse_shared_weights(model: nn.Module) -> None:
    """Raise a CaptureError if layers of a model share their weights, and so heads."""
    known = attention_modules(model)
    modules = {attention.module for attention in known}
    every = list(model.named_modules(remove_duplicate=False))
    # under other names, too, as a layer that is run several times; an alias has another pattern
    patterns = [(module, re.sub("[0-9]+", "", name)) for name, module in every if module in modules]
    weights = {attention.output.data_ptr() for attention in known}
    if len(weights) < len(known) or len(set(patterns)) < len(patterns):
        raise CaptureError(f"layers of {type(model).__name__} share their weights, and so heads")


def _of_heads(weight: Tensor, count: int, kept: list[int], axis: int = 0) -> nn.Parameter:
    """Those entries on an axis that belong to the heads kept, numbered from 0, of a number."""
    parts = weight.detach().chunk(count, dim=axis)
    rest = torch.cat([parts[head] for head in kept], dim=axis)
    return nn.Parameter(rest, requires_grad=weight.requires_grad)


def _output_weights(model: nn.Module, heads: Iterable[tuple[int, int]]) -> list[Tensor]:
    """Of each head the weights by which its output enters, as views into the model's."""
    heads = list(heads)
    if not all(isinstance(each, Sequence) and len(each) == 2 for each in heads):
        raise TypeError(f"heads must be pairs of layer and head, such as [(2, 3)], not {heads}")
    refuse_shared_weights(model)
    known, parts = attention_modules(model), []
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
