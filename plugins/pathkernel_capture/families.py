"""Where models keep their attention: the modules, what goes in, and the weights that come out.

A family is a function that looks at a module and gives an :class:`AttentionModule`, or None if the
module is of another. Modules are told by their parts and not by their class, so that what follows
the same conventions is found too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError

Report = Callable[["Tensor | None", "Tensor | None", "Tensor | None"], None]
"""Takes attention (batch, H, query, key) or None where a module gives none; the states (batch, key,
N_0) that heads attend to or None where these are of another sequence; and which tokens are no
padding (batch, key), or None where the module is not told."""

Change = Callable[[Tensor], Tensor]
"""Takes what the heads of a layer give out, side by side, and gives what is to go on instead."""


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
        Weights by which what the heads attend to enters.
    output_axis : int
        Axis of ``output`` on which heads lie one after the other.
    watch : callable
        Has every forward pass reported, until the hooks that it returns are removed.
    joined : callable
        Takes a :data:`Change`, and makes it in every forward pass while the context lasts.
    values : callable, optional
        Gives the weights of the heads' values, (H, G, N_0).
    swapped : bool
        Whether the module takes (token, batch, N_0).
    projection : Linear, optional
        That ``output`` is the weight of, if the module takes as many heads as its weights have,
    sources : tuple of Linear
        and of which the rows lie head by head: those of queries, keys and values.
    """

    name: str
    module: nn.Module
    heads: int
    output: Tensor
    output_axis: int
    watch: Callable[[Report], list[Any]]
    joined: Callable[[Change], AbstractContextManager[None]]
    values: Callable[[], Tensor] | None = None
    swapped: bool = False
    projection: nn.Linear | None = None
    sources: tuple[nn.Linear, ...] = ()


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Self-attention of every layer of a model, the first layer first.

    Raises
    ------
    CaptureError
        If there is none that is known.
    """
    modules = dict(model.named_modules())
    found: list[AttentionModule] = []
    for name, module in modules.items():
        if found and name.startswith(f"{found[-1].name}."):  # a part of what is found
            continue
        parent = modules[name.rpartition(".")[0]]
        for family in _FAMILIES:
            if attention := family(name, module, parent):
                found.append(attention)
                break
    if not found:
        raise CaptureError(
            f"{type(model).__name__} has no attention of a known form: nn.MultiheadAttention, or "
            "modules as those of transformers, timm and TransformerLens. Take its attention "
            "matrices yourself, as pathkernel_core.Attention"
        )
    return found


def block_of(model: nn.Module, attention: AttentionModule) -> nn.Module:
    """The numbered block that attention is part of, or else the attention itself."""
    parts = attention.name.split(".")
    while parts and not parts[-1].isdigit():
        parts.pop()
    return model.get_submodule(".".join(parts)) if parts else attention.module


def first_argument(given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Hidden states that a block or its attention is called with."""
    return given[0] if given else next(iter(named.values()))


def _of_torch(name: str, module: nn.Module, parent: nn.Module) -> AttentionModule | None:
    """``torch.nn.MultiheadAttention``: weights are asked for, and kept from who did not."""
    crossed = module is getattr(parent, "multihead_attn", None)  # of a decoder's layer
    if not isinstance(module, nn.MultiheadAttention) or crossed:
        return None
    signature = inspect.signature(module.forward)
    swapped = not module.batch_first

    def watch(report: Report) -> list[Any]:
        calls: list[dict[str, Any]] = []

        def ask(_: nn.Module, given: tuple, named: dict) -> tuple[tuple, dict]:
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            calls.append(dict(bound.arguments))
            return (), calls[-1] | {"need_weights": True, "average_attn_weights": False}

        def answer(_: nn.Module, given: tuple, output: tuple) -> tuple:
            call, (hidden, weights) = calls.pop(), output
            states, padding = call["value"], call["key_padding_mask"]
            # also of a mask that is added to the scores
            own = None if padding is None else padding == 0
            report(weights, states.transpose(0, 1) if swapped else states, own)
            if not call["need_weights"]:
                return hidden, None
            return hidden, weights.mean(dim=1) if call["average_attn_weights"] else weights

        return [
            module.register_forward_pre_hook(ask, with_kwargs=True),
            module.register_forward_hook(answer),
        ]

    @contextmanager
    def joined(change: Change) -> Iterator[None]:
        # the projection is no step of its own here: the module is left with none, and it follows
        projection = module.out_proj
        weight, bias = projection.weight, projection.bias

        def project(_: nn.Module, given: tuple, output: tuple) -> tuple:
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
        own = module.v_proj_weight if module.in_proj_weight is None else module.in_proj_weight
        return own[-module.embed_dim :].unflatten(0, (module.num_heads, -1))

    weight, heads = module.out_proj.weight, module.num_heads
    return AttentionModule(name, module, heads, weight, 1, watch, joined, values, swapped)


def _of_transformers(name: str, module: nn.Module, parent: nn.Module) -> AttentionModule | None:
    """Attention of transformers, which gives its weights beside its output."""
    size = _part(module, "head_dim", "attention_head_size", "head_size")
    queries = _part(module, "q_proj", "query", "q_lin", "c_attn", "query_key_value", "qkv_proj")
    crossed = "Cross" in type(module).__name__ or getattr(module, "is_cross_attention", False)
    if size is None or not isinstance(queries, nn.Module) or crossed:
        return None
    projection = _part(module, "o_proj", "out_proj", "out_lin", "c_proj", "dense")
    if projection is None:  # it lies beside: BERT's
        projection = getattr(getattr(parent, "output", None), "dense", None)
    if projection is None:
        return None

    def watch(report: Report) -> list[Any]:
        def answer(_: nn.Module, given: tuple, named: dict, output: Any) -> None:
            other = any(
                named.get(key) is not None for key in ("encoder_hidden_states", "key_value_states")
            )
            weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            report(weights, None if other else first_argument(given, named), None)

        return [module.register_forward_hook(answer, with_kwargs=True)]

    axis = 0 if type(projection).__name__ == "Conv1D" else 1  # GPT-2's is transposed
    heads = projection.weight.shape[axis] // size
    keys, values = (
        _part(module, "k_proj", "key", "k_lin"),
        _part(module, "v_proj", "value", "v_lin"),
    )

    def weights() -> Tensor:
        if values is None:  # with queries and keys: a head's three together, or all heads' values
            rows = queries.weight if axis else queries.weight.T
            together = axis and hasattr(module, "query_key_value")
            three = rows.unflatten(0, (heads, 3, size) if together else (3, heads, size))
            return three[:, 2] if together else three[2]
        rows = values.weight.unflatten(0, (-1, size))
        return rows.repeat_interleave(heads // len(rows), dim=0)  # heads may share them

    width = projection.weight.shape[1 - axis]
    known = isinstance(values, nn.Linear) or queries.weight.numel() == 3 * heads * size * width
    found = AttentionModule(
        *(name, module, heads, projection.weight, axis, watch, _before(projection)),
        weights if known else None,
    )
    rows = [part.out_features for part in (queries, keys, values) if isinstance(part, nn.Linear)]
    if rows == [heads * size] * 3:
        return replace(found, projection=projection, sources=(queries, keys, values))
    if rows == [3 * heads * size]:  # GPT-NeoX's, where a head's three lie together
        return replace(found, projection=projection, sources=(queries,))
    return found


def _of_timm(name: str, module: nn.Module, parent: nn.Module) -> AttentionModule | None:
    """Attention of timm, which drops some of its weights out as a module of its own."""
    if not all(hasattr(module, part) for part in ("qkv", "attn_drop", "num_heads", "proj")):
        return None
    watch = functools.partial(_watch_inside, module, module.attn_drop)
    heads = module.num_heads

    def values() -> Tensor:
        return module.qkv.weight.unflatten(0, (3, heads, -1))[2]

    joined = _before(module.proj)
    return AttentionModule(name, module, heads, module.proj.weight, 1, watch, joined, values)


def _of_transformer_lens(name: str, module: nn.Module, parent: nn.Module) -> AttentionModule | None:
    """Attention of TransformerLens, which has a point to hook for its weights."""
    if not (hasattr(module, "hook_pattern") and hasattr(module, "W_O")):
        return None
    watch = functools.partial(_watch_inside, module, module.hook_pattern)
    heads = module.W_O.shape[0]

    def values() -> Tensor:
        return module.W_V.mT.repeat_interleave(heads // len(module.W_V), dim=0)

    joined = _before(module.hook_z)
    return AttentionModule(name, module, heads, module.W_O, 0, watch, joined, values)


def _watch_inside(module: nn.Module, weights: nn.Module, report: Report) -> list[Any]:
    """Report what goes through a module for the weights, within one of attention."""
    passed: list[Tensor] = []

    def pass_on(_: nn.Module, given: tuple) -> None:
        passed.append(given[0])

    def answer(_: nn.Module, given: tuple, named: dict, output: Any) -> None:
        report(passed.pop() if passed else None, first_argument(given, named), None)

    return [
        weights.register_forward_pre_hook(pass_on),
        module.register_forward_hook(answer, with_kwargs=True),
    ]


def _before(module: nn.Module) -> Callable[[Change], AbstractContextManager[None]]:
    """Changes what goes into a module while a context lasts."""

    @contextmanager
    def joined(change: Change) -> Iterator[None]:
        handle = module.register_forward_pre_hook(lambda _, given: (change(given[0]), *given[1:]))
        try:
            yield
        finally:
            handle.remove()

    return joined


def _part(module: nn.Module, *names: str) -> Any:
    """The first of these that a module has."""
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


_FAMILIES = (_of_torch, _of_timm, _of_transformer_lens, _of_transformers)
