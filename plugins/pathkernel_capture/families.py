"""Find the attention modules of a model, and their heads.

A family is a function that returns the heads of a module, or None if it is of another family.
Modules are recognised by their parts, not by their class, which covers classes that follow the
same conventions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError
from pathkernel_capture.layout import AttentionHeads
from pathkernel_capture.watching import Report, watched

Change = Callable[[Tensor], Tensor]
"""Takes the outputs of the heads of a layer, side by side, and returns their replacement."""


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """Self-attention in one layer of a model.

    Attributes
    ----------
    name : str
        In the model.
    module : Module
    heads : int
    output : Tensor
        Weights of the output projection.
    output_axis : int
        Axis of ``output`` on which heads lie one after the other.
    watch : callable
        Takes a :data:`Report`, called at every forward pass inside the context.
    joined : callable
        Takes a :data:`Change`, applied in every forward pass inside the context.
    values : callable, optional
        Returns the weights of the heads' values, (H, G, N_0).
    swapped : bool
        Whether the module takes (token, batch, N_0).
    layout : AttentionHeads, optional
        Position of the heads in the weights.
    """

    name: str
    module: nn.Module
    heads: int
    output: Tensor
    output_axis: int
    watch: Callable[[Report], AbstractContextManager[None]]
    joined: Callable[[Change], AbstractContextManager[None]]
    values: Callable[[], Tensor] | None = None
    swapped: bool = False
    layout: AttentionHeads | None = None

    @property
    def pattern(self) -> str:
        """Name without numbers, shared by the layers of an encoder, decoder or tower."""
        return re.sub("[0-9]+", "", self.name)


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Find the self-attention of every layer of a model, in order.

    Raises
    ------
    CaptureError
        If there is none of a known form.
    """
    modules = dict(model.named_modules())
    layers: list[AttentionModule] = []
    for name, module in modules.items():
        if layers and name.startswith(f"{layers[-1].name}."):  # a part of the last one
            continue
        if attention := _attention(name, module, modules[name.rpartition(".")[0]]):
            layers.append(attention)
    if not layers:
        raise CaptureError(
            f"{type(model).__name__} has no attention of a known form: nn.MultiheadAttention, or "
            "modules as those of transformers, timm and TransformerLens. Give your own attention "
            "class a method pathkernel_heads that returns pathkernel_capture.AttentionHeads, or "
            "take the attention matrices yourself, as pathkernel_core.Attention"
        )
    return layers


def block_name(attention: AttentionModule) -> str:
    """Return the name of the numbered block around attention, or else of the attention itself."""
    parts = attention.name.split(".")
    while parts and not parts[-1].isdigit():
        parts.pop()
    return ".".join(parts) or attention.name


def _attention(name: str, module: nn.Module, parent: nn.Module) -> AttentionModule | None:
    """Return a module as self-attention, if it is."""
    if hasattr(module, "pathkernel_heads"):
        layout = module.pathkernel_heads()
        if not isinstance(layout, AttentionHeads):
            raise CaptureError(
                f"pathkernel_heads of {name} must return pathkernel_capture.AttentionHeads, not "
                f"{type(layout).__name__}"
            )
    elif _is_crossed(name, module, parent):
        return None
    elif isinstance(module, nn.MultiheadAttention):
        return _of_torch(name, module)
    elif hasattr(module, "hook_pattern") and hasattr(module, "W_O"):
        return _of_transformer_lens(name, module)
    else:
        layout = _of_projections(module, parent)
    if layout is None:
        return None
    return AttentionModule(
        *(name, module, layout.count, layout.output.weight, layout.output_axis),
        watch=partial(watched, module, layout.count, layout),
        joined=_before(layout.output),
        values=layout.value_weights if layout.projections else None,
        swapped=not layout.batch_first,
        layout=layout,
    )


_CROSSED = re.compile("cross|encdec|encoder_attn", re.IGNORECASE)
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "qkv", "Wqkv")
_QUERIES = ("q_proj", "query", "query_proj", "q_lin", "linear_q", "q")
_KEYS = ("k_proj", "key", "key_proj", "k_lin", "linear_k", "k")
_VALUES = ("v_proj", "value", "value_proj", "v_lin", "linear_v", "v")
_GATES = ("gate_proj", "g_proj")
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "proj", "Wo", "linear_out", "o")


def _is_crossed(name: str, module: nn.Module, parent: nn.Module) -> bool:
    """Whether a module attends to another sequence, as its names tell."""
    names = name.split(".")[-2:]
    beside_self_attention = names[-1] == "multihead_attn" and hasattr(parent, "self_attn")
    return (
        getattr(module, "is_cross_attention", False)
        or beside_self_attention  # as in nn.TransformerDecoderLayer
        or bool(_CROSSED.search(f"{type(module).__name__}.{'.'.join(names)}"))
    )


def _of_projections(module: nn.Module, parent: nn.Module) -> AttentionHeads | None:
    """Recognise attention of transformers or timm by the names of its projections."""
    fused, queries = _projection(module, _FUSED), _projection(module, _QUERIES)
    output = _projection(module, _OUTPUTS)
    if output is None:  # BERT's is in the parent
        output = _projection(getattr(parent, "output", None), ("dense",))
    size, count = _number(module, _SIZES), _number(module, _COUNTS)
    if output is None or (fused is None and queries is None) or not (size or count):
        return None
    width = output.weight.shape[1 - (type(output).__name__ == "Conv1D")]
    if size and width % size == 0:
        count = width // size
    projections = (queries, _projection(module, _KEYS), _projection(module, _VALUES))
    if fused is not None:
        projections = (fused,)
    elif gates := _projection(module, _GATES):
        projections += (gates,)
    by_head = hasattr(module, "query_key_value")
    bias = getattr(module, "relative_attention_bias", None)  # T5's
    bias = bias if isinstance(bias, nn.Embedding) else None
    try:
        if None not in projections and not type(module).__name__.startswith("CodeGen"):
            return AttentionHeads(count or 0, output, projections, by_head, bias)
    except CaptureError:
        pass  # rows in another order
    try:
        return AttentionHeads(count or 0, output)
    except CaptureError:
        return None


def _of_torch(name: str, module: nn.MultiheadAttention) -> AttentionModule:
    """Describe ``torch.nn.MultiheadAttention``, whose projections are not modules."""

    @contextmanager
    def joined(change: Change) -> Iterator[None]:
        # out_proj does not run as a module: replace it by the identity, and apply it in a hook
        projection = module.out_proj
        weight, bias = projection.weight, projection.bias

        def project(_: nn.Module, inputs: tuple, output: tuple) -> tuple:
            return nn.functional.linear(change(output[0]), weight, bias), output[1]

        handle = module.register_forward_hook(project)
        try:
            projection.weight = nn.Parameter(torch.eye(len(weight)).to(weight), requires_grad=False)
            projection.bias = None
            yield
        finally:
            projection.weight, projection.bias = weight, bias
            handle.remove()

    def values() -> Tensor:
        weight = module.v_proj_weight if module.in_proj_weight is None else module.in_proj_weight
        return weight[-module.embed_dim :].unflatten(0, (module.num_heads, -1))

    heads, swapped = module.num_heads, not module.batch_first
    watch = partial(watched, module, heads, None)
    return AttentionModule(
        name, module, heads, module.out_proj.weight, 1, watch, joined, values, swapped
    )


def _of_transformer_lens(name: str, module: nn.Module) -> AttentionModule:
    """Describe attention of TransformerLens, which has a hook before its output projection."""
    heads = module.W_O.shape[0]

    def values() -> Tensor:
        return module.W_V.mT.repeat_interleave(heads // len(module.W_V), dim=0)

    watch = partial(watched, module, heads, None)
    return AttentionModule(
        name, module, heads, module.W_O, 0, watch, _before(module.hook_z), values
    )


def _before(module: nn.Module) -> Callable[[Change], AbstractContextManager[None]]:
    """Return a context that changes the input of a module."""

    @contextmanager
    def joined(change: Change) -> Iterator[None]:
        handle = module.register_forward_pre_hook(
            lambda _, inputs: (change(inputs[0]), *inputs[1:])
        )
        try:
            yield
        finally:
            handle.remove()

    return joined


def _projection(module: Any, names: tuple[str, ...]) -> nn.Module | None:
    """Return the first of these attributes that is a linear map."""
    parts = (getattr(module, name, None) for name in names)
    return next((part for part in parts if getattr(_weight(part), "ndim", 0) == 2), None)


def _weight(part: Any) -> Any:
    return getattr(part, "weight", None) if isinstance(part, nn.Module) else None


def _number(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """Return the first of these attributes that is a positive integer."""
    numbers = (getattr(module, name, None) for name in names)
    return next((number for number in numbers if isinstance(number, int) and number > 0), None)
