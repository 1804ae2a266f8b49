"""Switch heads of a live model off inside a context."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
import xarray as xr
from torch import Tensor, nn

from pathkernel_core.paths.heads import every_head
from pathkernel_datasets.variables.head_axis import (
    ChosenHeads,
    Heads,
    check_chosen,
    heads_named,
    score_array,
)
from pathkernel_models.arguments import check_batches
from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.compared_layers import ComparedLayers
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.head_means import mean_outputs
from pathkernel_models.state import without_fused_layers
from pathkernel_models.switching import scale_heads, switch_off_heads


@contextmanager
def heads_off(
    model: nn.Module,
    heads: Heads,
    *,
    replace: Literal["zero", "mean"] = "zero",
    batches: Iterable[Any] | None = None,
    masks: Iterable[Tensor] | None = None,
    gains: xr.DataArray | None = None,
) -> Iterator[nn.Module]:
    """Switch heads of a model off inside the context; its weights stay as they are.

    The outputs of these heads are zero where the output projection takes them, whatever kernel the
    model's attention runs, and whatever computes the weights of the projection: an adapter,
    a parametrisation, quantised or offloaded weights. Biases stay. The first pass inside compares
    attention times values with the outputs of the heads; if keys are cached or a fused kernel drops
    weights, the next one does. Compiled models run uncompiled inside, and no encoder layer of
    PyTorch is fused: ``heads_off(model, [])`` is the whole model in the same function. An attention
    module that runs several times in a pass, as ALBERT's, is one layer, whose heads are off each
    time.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel.capture`, of any precision.
    heads : iterable of (layer, head), of labels such as ``"2-1"``, or HeadChoice
        Both numbered from 1, as in ``Captured.members``; such as ``scores["head"][:3]``. A choice
        brings its gains, which were fitted with zeros in place of its heads; ``choice.heads`` are
        its heads alone.
    replace : {"zero", "mean"}
        Output of these heads: zero, or the mean of their outputs over the tokens of ``batches``:
        for every layer those of its own sequence, without padding, which are the keys that its
        attention hides from every query; of cross-attention those that the self-attention before
        it in its block hides.
    batches : iterable, optional
        For means: batches as for :func:`pathkernel.capture`.
    masks : iterable of tensor, shape (batch, M), optional
        For means: one for each batch, 1 for tokens and 0 for padding, of the tokens of these
        layers. For attention that does not tell, or that attends to padding.
    gains : xarray.DataArray, dims (head,), optional
        Factors of the outputs of all other heads, such as of
        :func:`pathkernel_pruning.live.head_choice.refit_gains`; by default those of a choice, or 1
        with means.

    Yields
    ------
    torch.nn.Module
        The model.

    Raises
    ------
    CaptureError, ValueError
        If its attention is not known, or several modules share its weights; it has no such head; in
        the first pass, if the heads lie elsewhere in the weights; at the end, if attention ran, but
        not its output projection; or for means, if it cannot be told which tokens are padding.

    Warns
    -----
    RuntimeWarning
        If PyTorch computes another function in its fused encoder layers, and so in the plain model
        without gradients: of additive masks, and of adapters that are not merged.
    """
    layers = attention_modules(model)
    refuse_shared_weights(model, layers)
    off, means = heads_by_layer(layers, heads), None
    if replace not in ("zero", "mean"):
        raise ValueError(f'replace must be "zero" or "mean", but is {replace!r}')
    if (replace == "mean") != (batches is not None):
        raise ValueError(
            'replace="mean" needs batches=, over which outputs are averaged'
            if batches is None
            else 'batches serve for means only; give replace="mean"'
        )
    if masks is not None and batches is None:
        raise ValueError('masks are of batches, which serve for means; give replace="mean"')
    if batches is not None:
        check_batches(batches)
    elif gains is None:
        gains = gains_of(heads)
    compared = ComparedLayers()
    with ExitStack() as stack:
        stack.enter_context(without_fused_layers(model))
        if batches is not None:
            means = mean_outputs(model, [layers[number - 1] for number in off], batches, masks)
        stack.enter_context(switch_off_heads(layers, off, compared, means))
        if gains is not None:
            stack.enter_context(scale_heads(layers, gains_by_layer(layers, gains, off), compared))
        yield model


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
    stored = attention.projection._parameters.get("weight")
    return id(attention.projection if stored is None else stored)


def heads_by_layer(layers: Sequence[AttentionModule], heads: Heads) -> dict[int, list[int]]:
    """Return the heads of every layer that has some, both numbered from 1.

    Raises a TypeError for other than pairs, and a ValueError for a head that the model lacks, or a
    choice among those of another model.
    """
    if isinstance(heads, ChosenHeads):
        check_chosen(heads, every_head([attention.heads for attention in layers]))
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


def gains_of(heads: Heads) -> xr.DataArray | None:
    """Return the gains of a choice of heads, None of other heads."""
    return heads.gains if isinstance(heads, ChosenHeads) else None


def gains_by_layer(
    layers: Sequence[AttentionModule], gains: xr.DataArray, off: dict[int, list[int]]
) -> list[np.ndarray]:
    """Return the gains of the heads of every layer, (H,), 1 of those that are off.

    Raises a ValueError if a head has no gain, or one that is not finite or that contradicts
    ``off``, and a TypeError for a choice of heads.
    """
    if hasattr(gains, "gains"):  # a choice of heads
        raise TypeError(f"gains is a {type(gains).__name__}; give its gains, choice.gains")
    axis = every_head([attention.heads for attention in layers])
    values = score_array("gains", gains, axis, advice="take those of a choice, choice.gains").values
    if values.shape[1] != 1:
        raise ValueError(f"gains has {values.shape[1]} draws; give one number for every head")
    if unknown := np.count_nonzero(~np.isfinite(values)):
        raise ValueError(f"gains has {unknown} numbers that are NaN or infinite; give finite ones")
    by_layer = np.split(values[:, 0].copy(), np.cumsum([layer.heads for layer in layers])[:-1])
    for number, of_layer in enumerate(by_layer, start=1):
        gone = np.zeros(len(of_layer), dtype=bool)
        gone[[head - 1 for head in off.get(number, ())]] = True
        if (zero := (of_layer == 0) & ~gone).any():
            raise ValueError(
                f"gains has 0 for head {number}-{int(zero.argmax()) + 1}, which heads does not "
                "name; gains of a choice go with its heads, choice.heads"
            )
        of_layer[gone] = 1.0
    return by_layer
