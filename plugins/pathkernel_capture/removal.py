"""Switch heads of a live model off, inside a context or permanently."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError
from pathkernel_capture.families import attention_modules
from pathkernel_capture.smaller import take_out


@contextmanager
def heads_off(model: nn.Module, heads: Iterable[tuple[int, int]]) -> Iterator[nn.Module]:
    """Switch heads of a model off inside the context; its weights are then restored exactly.

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
    copies = [part.clone() for part in parts]
    try:
        for part in parts:
            part.zero_()
        yield model
    finally:
        for part, copy in zip(parts, copies):
            part.copy_(copy)


def remove_heads(
    model: nn.Module, heads: Iterable[tuple[int, int]], *, smaller: bool = False, batch: Any = None
) -> None:
    """Remove heads of a model permanently.

    What :func:`heads_off` sets to zero stays zero; shapes stay, so that the model is saved and
    loaded as ever.

    Parameters
    ----------
    model : torch.nn.Module
    heads : iterable of (layer, head)
        Both numbered from 1.
    smaller : bool
        Take the heads out of the weights, which makes the model faster and renumbers its heads. A
        layer that loses all keeps one, which passes nothing on. The model's configuration then no
        longer tells its shapes.
    batch : tensor, mapping or tuple
        With ``smaller``, a batch as for :func:`pathkernel_capture.capture`, on which the model runs
        before and after. Its outputs must be the same to rounding.

    Raises
    ------
    CaptureError, ValueError
        As :func:`heads_off`; or with ``smaller``, if there is no batch, or the smaller model does
        not run or gives other outputs. The model is then as it was.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> remove_heads(model, [(1, 2)], smaller=True, batch=torch.randn(5, 6, 8))
    >>> model.layers[0].self_attn.out_proj.in_features, model.layers[1].self_attn.embed_dim
    (4, 8)
    """
    heads = list(heads)
    weights = _output_weights(model, heads)
    heads = [(layer, head) for layer, head in heads]  # tuples, also of lists
    if not smaller:
        for weight in weights:
            weight.zero_()
        return
    if batch is None:
        raise ValueError(
            "smaller needs a batch of the model, batch=, on which its outputs are compared"
        )
    layers, remaining = attention_modules(model), []
    for layer in sorted({layer for layer, _ in heads}):
        attention = layers[layer - 1]
        present = [head for head in range(attention.heads) if (layer, head + 1) not in heads]
        remaining.append((attention, present or [0]))
    take_out(model, remaining, batch, heads_off(model, heads))


def refuse_shared_weights(model: nn.Module) -> None:
    """Raise a CaptureError if layers of a model share their weights, and so heads."""
    layers = attention_modules(model)
    modules = {attention.module for attention in layers}
    # a layer that runs several times has several names of one pattern; an alias has another pattern
    patterns = [
        (module, re.sub("[0-9]+", "", name))
        for name, module in model.named_modules(remove_duplicate=False)
        if module in modules
    ]
    weights = {attention.output.data_ptr() for attention in layers}
    if len(weights) < len(layers) or len(set(patterns)) < len(patterns):
        raise CaptureError(f"layers of {type(model).__name__} share their weights, and so heads")


def _output_weights(model: nn.Module, heads: Iterable[tuple[int, int]]) -> list[Tensor]:
    """Return the weights by which the output of every head enters, as views."""
    heads = list(heads)
    if not all(isinstance(head, Sequence) and len(head) == 2 for head in heads):
        raise TypeError(f"heads must be pairs of layer and head, such as [(2, 3)], not {heads}")
    heads = [(layer, head) for layer, head in heads]  # tuples, also of lists
    refuse_shared_weights(model)
    layers, parts = attention_modules(model), []
    for layer, head in sorted(set(heads)):
        if not (1 <= layer <= len(layers) and 1 <= head <= layers[layer - 1].heads):
            counts = ", ".join(str(attention.heads) for attention in layers)
            raise ValueError(
                f"heads names ({layer}, {head}), but the model's layers, numbered from 1, have "
                f"{counts} heads, numbered from 1"
            )
        attention = layers[layer - 1]
        weight, axis = attention.output.detach(), attention.output_axis
        if not torch.is_floating_point(weight):
            raise CaptureError(
                f"layer {layer} ({attention.name}) has quantised weights ({weight.dtype}), of "
                "which no head can be set to zero; load the model unquantised"
            )
        size = weight.shape[axis] // attention.heads
        parts.append(weight.narrow(axis, (head - 1) * size, size))
    return parts
