"""Switch heads of a live model off, inside a context or permanently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn

from pathkernel_datasets.variables.head_axis import Heads
from pathkernel_models.arguments import check_flag
from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.compared_layers import ComparedLayers
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.heads_off import (
    gains_by_layer,
    gains_of,
    heads_by_layer,
    refuse_shared_weights,
)
from pathkernel_models.linear_maps import check_stored
from pathkernel_models.switching import scale_heads, switch_off_heads
from pathkernel_pruning.heads.group_faults import group_fault
from pathkernel_pruning.live.smaller import (
    check_divisible,
    check_same,
    outputs_of,
    repeatable_outputs,
    take_out,
)


def remove_heads(
    model: nn.Module,
    heads: Heads,
    *,
    batch: Any = None,
    smaller: bool = False,
    gains: xr.DataArray | None = None,
) -> None:
    """Remove heads of a model permanently, and compare its outputs with those of heads off.

    The weights by which the outputs of these heads enter become zero; shapes stay, so that the
    model is saved and loaded as ever.

    Parameters
    ----------
    model : torch.nn.Module
    heads : iterable of (layer, head), of labels such as ``"2-1"``, or HeadChoice
        Both numbered from 1. A choice brings its gains; ``choice.heads`` are its heads alone.
    batch : tensor, mapping or tuple
        A batch as for :func:`pathkernel.capture`, on which the model runs with the heads
        off and without them. Its outputs must be the same to rounding.
    smaller : bool
        Take the heads out of the weights, which makes the model faster and renumbers its heads. A
        layer that loses all keeps one, which passes nothing on. The model's configuration then no
        longer tells its shapes: save it by
        :func:`pathkernel_pruning.live.saved.saving.save_model`. Heads that share keys and values go
        in whole groups, or as many of each group that stays.
    gains : xarray.DataArray, dims (head,), optional
        Factors of all other heads, folded into the weights of the output projections; by default
        those of a choice, else 1.

    Raises
    ------
    CaptureError, ValueError
        As :func:`heads_off`; if ``smaller`` cannot take these heads from their groups, of which the
        message names those to add or to leave out; if there is no batch, an adapter,
        parametrisation or pruning mask computes the weights, or they are quantised or offloaded; or
        the changed model does not run or gives other outputs. The model is then as it was.

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
    check_flag("smaller", smaller)
    layers = attention_modules(model)
    refuse_shared_weights(model, layers)
    off = heads_by_layer(layers, heads)
    if batch is None:
        raise ValueError(
            "remove_heads needs a batch of the model, batch=, on which its outputs are compared"
        )
    factors = [np.ones(attention.heads) for attention in layers]
    gains = gains_of(heads) if gains is None else gains
    if gains is not None:
        factors = gains_by_layer(layers, gains, off)
    changed = [
        number
        for number, of_layer in enumerate(factors, start=1)
        if number in off or (of_layer != 1).any()
    ]
    for number in changed:
        attention = layers[number - 1]
        check_stored(attention.projection, attention.output_inputs_last, attention.where)
        if smaller and number in off:
            check_divisible(attention)
    if smaller:
        _check_groups(layers, off)
    changed_layers, compared = [layers[number - 1] for number in changed], ComparedLayers()
    with switch_off_heads(layers, off, compared), scale_heads(layers, factors, compared):
        expected = repeatable_outputs(model, batch, changed_layers)
    for number, numbers in off.items():
        factors[number - 1][[head - 1 for head in numbers]] = 0.0
    # zero first and cut afterwards: a cut that fails then leaves weights of known shape to restore
    saved = [(weight, weight.clone(), factor) for weight, factor in _weights(layers, factors)]
    try:
        for weight, _, factor in saved:
            weight.mul_(factor) if factor else weight.zero_()
        if smaller:
            remaining = [
                (attention, [h for h in range(attention.heads) if h + 1 not in heads] or [0])
                for attention, heads in ((layers[number - 1], off[number]) for number in off)
            ]
            take_out(model, remaining, batch, expected, changed_layers)
        else:
            check_same(outputs_of(model, batch, changed_layers), expected)
    except BaseException:
        for weight, copy, _ in saved:
            weight.copy_(copy)
        raise


def _check_groups(layers: Sequence[AttentionModule], off: Mapping[int, list[int]]) -> None:
    """Raise a CaptureError unless groups that share keys and values can lose their heads."""
    faults = {
        number: fault
        for number, heads in off.items()
        if (fault := group_fault(layers[number - 1].heads, layers[number - 1].groups, heads))
    }
    if faults:
        number, *others = faults
        also = f" (nor of {', '.join(f'layer {other}' for other in others)})" if others else ""
        raise CaptureError(
            f"heads cannot be taken out of {layers[number - 1].where}{also}: {faults[number]}; "
            "choose_heads(…, groups=True) chooses heads that can, and without smaller their "
            "weights are set to zero"
        )


def _weights(
    layers: Sequence[AttentionModule], factors: Sequence[np.ndarray]
) -> Iterator[tuple[Tensor, float]]:
    """Yield the weights by which the output of every changed head enters, as views; its factor."""
    for attention, of_layer in zip(layers, factors):
        weight, axis = attention.output.detach(), attention.output_axis
        size = weight.shape[axis] // attention.heads
        for head in np.flatnonzero(of_layer != 1):
            yield weight.narrow(axis, int(head) * size, size), float(of_layer[head])
