"""Find the attention modules of a model, and their heads.

A family is a function that returns the heads of a module, or None if it is of another family.
Modules are recognised by their parts, not by their class, which covers classes that follow the
same conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import nn

from pathkernel_models.arguments import check_model
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.attention_module import (
    AttentionModule,
    change_after,
    change_before,
    outermost_block,
    where_is,
)
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.bridges import describe_bridge
from pathkernel_models.families.latent import describe_latent
from pathkernel_models.families.parts import has_crossed_name, is_included, quantised_class
from pathkernel_models.families.projections import describe_projections
from pathkernel_models.families.torch_attention import describe_torch
from pathkernel_models.recording import Points

FAMILIES: tuple[Callable[[nn.Module, nn.Module], AttentionHeads | None], ...] = (
    describe_latent,
    describe_projections,
)
"""Each takes a module and its parent; the first that knows the module describes its heads."""

_READ_WEIGHTS = ("WavLMAttention",)  # classes that call multi_head_attention_forward
_NORMS = ("norm", "attn_sub_norm", "o_norm")  # that may lie between the heads and their projection


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Find the self-attention of every layer of a model, and included cross-attention, in order.

    Raises
    ------
    CaptureError
        If there is none of a known form.
    TypeError
        If the model is no module.
    """
    check_model(model)
    if layers := _layers(model, is_included):
        return layers
    raise CaptureError(
        f"{type(model).__name__} has no attention of a known form: nn.MultiheadAttention, or "
        "modules as those of transformers, timm and TransformerLens. Give your own attention "
        "class a method pathkernel_heads that returns pathkernel.AttentionHeads, or "
        "take the attention matrices yourself, as pathkernel.Attention"
        + "; of attention to another sequence alone, call pathkernel.include_cross_attention first"
        * bool(crossed_attention(model))
    )


def crossed_attention(model: nn.Module) -> dict[str, nn.Module]:
    """Find attention to another sequence that is or can be a layer, by names of modules."""
    layers = _layers(model, lambda _: True)
    return {layer.name: layer.module for layer in layers if layer.crossed}


def _layers(model: nn.Module, takes_crossed: Callable[[nn.Module], bool]) -> list[AttentionModule]:
    """Return the attention of a model in order, of cross-attention what a function takes."""
    modules = dict(model.named_modules())
    layers: list[AttentionModule] = []
    for name, module in modules.items():
        if layers and name.startswith(f"{layers[-1].name}."):  # a part of the last one
            continue
        parent = modules[name.rpartition(".")[0]]
        crossed = has_crossed_name(name, module, parent)
        if crossed and not (hasattr(module, "pathkernel_heads") or takes_crossed(module)):
            continue
        if attention := _attention(len(layers) + 1, name, module, parent):
            layers.append(replace(attention, crossed=crossed))
    return layers


def beside_cross_attention(model: nn.Module, attention: AttentionModule) -> bool:
    """Whether the block of self-attention attends to another sequence, too."""
    prefix = _outer_block(attention)
    modules = dict(model.named_modules())
    return any(
        name.startswith(prefix) and has_crossed_name(name, module, modules[name.rpartition(".")[0]])
        for name, module in modules.items()
        if name and any(True for _ in module.children())
    )


def self_attention_beside(
    layers: Sequence[AttentionModule], attention: AttentionModule
) -> AttentionModule | None:
    """Return the self-attention before cross-attention in its block, whose tokens are its queries.

    ``layers`` are all of the model. None if the block has none.
    """
    before = [
        layer
        for layer in layers[: attention.number - 1]
        if not layer.crossed and _outer_block(layer) == _outer_block(attention)
    ]
    return before[-1] if before else None


def _outer_block(attention: AttentionModule) -> str:
    """Return the name of the outermost numbered module around attention, or of its parent."""
    return outermost_block(attention.name) or attention.name.rpartition(".")[0]


def _attention(
    number: int, name: str, module: nn.Module, parent: nn.Module
) -> AttentionModule | None:
    """Return a module as attention, if it is."""
    is_bridge = False
    if hasattr(module, "pathkernel_heads"):
        description = module.pathkernel_heads()
        if not isinstance(description, AttentionHeads):
            raise CaptureError(
                f"pathkernel_heads of {name} must return pathkernel.AttentionHeads, not "
                f"{type(description).__name__}"
            )
    elif isinstance(module, nn.MultiheadAttention):
        return describe_torch(number, name, module)
    elif is_bridge := hasattr(module, "hook_pattern") and hasattr(module, "original_component"):
        description = describe_bridge(name, module)
    else:
        if kind := quantised_class(module, parent):
            raise CaptureError(
                f"{name} has a quantised projection, {kind}, whose weight is no tensor; take the "
                "model as it was before quantisation"
            )
        descriptions = (describe(module, parent) for describe in FAMILIES)
        description = next((heads for heads in descriptions if heads is not None), None)
    if description is None:
        return None
    groups, points, values = description.count, None, None
    where = where_is(number, name)
    if description.projections:
        groups, values = description.groups, lambda: description.value_weights(where)
        norms = [getattr(module, name, None) for name in _NORMS]
        readers = (description.output, *(norm for norm in norms if isinstance(norm, nn.Module)))
        points = Points(
            description.value_source,
            readers,
            description.values_by_head,
            description.value_projection,
            linear=None if description.value_norm is not None else description.linear,
            gate=None if description.gate is None else (description.gate[0], description.factors),
        )
    runs = type(module).__name__ not in _READ_WEIGHTS
    if not runs:
        points = None  # PyTorch's function defines them
    change = change_before if runs else partial(change_after, module)
    return AttentionModule(
        number=number,
        name=name,
        module=module,
        heads=description.count,
        groups=groups,
        projection=description.output,
        output_axis=description.output_axis,
        change_outputs=change(description.output),
        values=values,
        points=points,
        swapped=not description.batch_first,
        # others of its parts read the shapes of a bridge, too
        description=None if is_bridge else description,
        runs_projection=runs,
    )
