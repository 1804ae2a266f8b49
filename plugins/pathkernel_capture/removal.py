"""Switch heads of a live model off, inside a context or permanently."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError
from pathkernel_capture.families import AttentionModule, attention_modules
from pathkernel_capture.linear_maps import check_stored
from pathkernel_capture.smaller import (
    check_divisible,
    check_same,
    outputs_of,
    repeatable_outputs,
    take_out,
)
from pathkernel_capture.switching import switched_off
from pathkernel_heads.heads import Heads, heads_named


@contextmanager
def heads_off(model: nn.Module, heads: Heads) -> Iterator[nn.Module]:
    """Switch heads of a model off inside the context; its weights stay as they are.

    The outputs of these heads are zero where the output projection takes them, whatever kernel the
    model's attention runs, and whatever computes the weights of the projection: an adapter,
    a parametrisation, quantised or offloaded weights. Biases stay. The first pass inside compares
    attention times values with the outputs of the heads; if keys are cached or a fused kernel drops
    weights, the next one does. Compiled models run uncompiled inside.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel_capture.capture`, of any precision.
    heads : iterable of (layer, head), or of labels such as ``"2-1"``
        Both numbered from 1, as in ``Captured.members``; such as ``scores["head"][:3]``.

    Yields
    ------
    torch.nn.Module
        The model.

    Raises
    ------
    CaptureError, ValueError
        If its attention is not known, or layers share their weights; it has no such head; in the
        first pass, if the heads lie elsewhere in the weights; or at the end, if attention ran, but
        not its output projection.
    """
    layers = attention_modules(model)
    refuse_shared_weights(model, layers)
    with switched_off(layers, heads_by_layer(layers, heads), set()):
        yield model


def remove_heads(
    model: nn.Module, heads: Heads, *, batch: Any = None, smaller: bool = False
) -> None:
    """Remove heads of a model permanently, and compare its outputs with those of heads off.

    The weights by which the outputs of these heads enter become zero; shapes stay, so that the
    model is saved and loaded as ever.

    Parameters
    ----------
    model : torch.nn.Module
    heads : iterable of (layer, head), or of labels such as ``"2-1"``
        Both numbered from 1.
    batch : tensor, mapping or tuple
        A batch as for :func:`pathkernel_capture.capture`, on which the model runs with the heads
        off and without them. Its outputs must be the same to rounding.
    smaller : bool
        Take the heads out of the weights, which makes the model faster and renumbers its heads. A
        layer that loses all keeps one, which passes nothing on. The model's configuration then no
        longer tells its shapes.

    Raises
    ------
    CaptureError, ValueError
        As :func:`heads_off`; if there is no batch, an adapter, parametrisation or pruning mask
        computes the weights, or they are quantised or offloaded; or the changed model does not run
        or gives other outputs. The model is then as it was.

    Examples
    --------
    >>> import pathkernel as pk
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> pk.remove_heads(model, [(1, 2)], batch=torch.randn(5, 6, 8), smaller=True)
    >>> model.layers[0].self_attn.out_proj.in_features, model.layers[1].self_attn.embed_dim
    (4, 8)
    """
    layers = attention_modules(model)
    refuse_shared_weights(model, layers)
    off = heads_by_layer(layers, heads)
    if batch is None:
        raise ValueError(
            "remove_heads needs a batch of the model, batch=, on which its outputs are compared"
        )
    for number in off:
        attention = layers[number - 1]
        if attention.projection is not attention.module:  # else its weight is a parameter
            check_stored(attention.projection, attention.output_inputs_last, attention.where)
        if smaller:
            check_divisible(attention)
    with switched_off(layers, off, set()):
        expected = repeatable_outputs(model, batch, [layers[number - 1] for number in off])
    # zero first and cut afterwards: a cut that fails then leaves weights of known shape to restore
    saved = [(weight, weight.clone()) for weight in _weights(layers, off)]
    try:
        for weight, _ in saved:
            weight.zero_()
        if smaller:
            remaining = [
                (attention, [h for h in range(attention.heads) if h + 1 not in heads] or [0])
                for attention, heads in ((layers[number - 1], off[number]) for number in off)
            ]
            take_out(model, remaining, batch, expected)
        else:
            check_same(outputs_of(model, batch, [layers[number - 1] for number in off]), expected)
    except BaseException:
        for weight, copy in saved:
            weight.copy_(copy)
        raise


def refuse_shared_weights(model: nn.Module, layers: Sequence[AttentionModule]) -> None:
    """Raise a CaptureError if layers of a model share their weights, and so heads."""
    modules = {attention.module for attention in layers}
    # a layer that runs several times has several names of one pattern; an alias has another pattern
    patterns = [
        (module, re.sub("[0-9]+", "", name))
        for name, module in model.named_modules(remove_duplicate=False)
        if module in modules
    ]
    weights = {_identity(attention) for attention in layers}
    if len(weights) < len(layers) or len(set(patterns)) < len(patterns):
        raise CaptureError(f"layers of {type(model).__name__} share their weights, and so heads")


def _identity(attention: AttentionModule) -> int:
    """Return a number of the output weight, or of the module that computes it."""
    stored = attention.projection._parameters.get(attention.weight_name)
    return id(attention.projection if stored is None else stored)


def heads_by_layer(layers: Sequence[AttentionModule], heads: Heads) -> dict[int, list[int]]:
    """Return the heads of every layer that has some, both numbered from 1.

    Raises a TypeError for other than pairs, and a ValueError for a head that the model lacks.
    """
    by_layer: dict[int, list[int]] = {}
    for layer, head in sorted({*heads_named(heads)}):
        if not (1 <= layer <= len(layers) and 1 <= head <= layers[layer - 1].heads):
            counts = ", ".join(str(attention.heads) for attention in layers)
            past = '; leave out the path past all heads, scores.drop_sel(head="0-0")'
            raise ValueError(
                f"heads names ({layer}, {head}), but the model's layers, numbered from 1, have "
                f"{counts} heads, numbered from 1{past * ((layer, head) == (0, 0))}"
            )
        by_layer.setdefault(layer, []).append(head)
    return by_layer


def _weights(layers: Sequence[AttentionModule], off: dict[int, list[int]]) -> list[Tensor]:
    """Return the weights by which the output of every head enters, as views."""
    parts = []
    for number, heads in off.items():
        weight, axis = layers[number - 1].output.detach(), layers[number - 1].output_axis
        size = weight.shape[axis] // layers[number - 1].heads
        parts += [weight.narrow(axis, (head - 1) * size, size) for head in heads]
    return parts
