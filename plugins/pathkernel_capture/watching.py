"""The attention weights of a module while it runs."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pathkernel_capture.layout import AttentionHeads

Report = Callable[["Tensor | None", "Tensor | None", "Tensor | None", float], None]
"""Takes attention (batch, H, query, key) or None where none is seen; the states (batch, key, N_0)
that heads attend to or None where these are of another sequence; which tokens are no padding
(batch, key), or None where the module is not told; and by how much, relative to the largest, what
heads of a module written by hand pass on differs from attention times values."""

_SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)


class _Weights(TorchFunctionMode):
    """Keeps the attention weights that PyTorch's functions compute while the context lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []
        self.states: Tensor | None = None
        self.padding: Tensor | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.multi_head_attention_forward:
            return self._multi_head(function, args, kwargs)
        output = function(*args, **kwargs)
        if function in _SOFTMAX and output.ndim > 2:
            self.weights.append(output)
        elif function is F.scaled_dot_product_attention:
            self.weights.append(_fused_weights(*args, **kwargs))
        return output

    def _multi_head(self, function: Any, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor | None]:
        asked = {"need_weights": True, "average_attn_weights": False}
        output, weights = function(*args, **kwargs | asked)
        self.weights.append(weights)
        self.states, self.padding = args[2].transpose(0, 1), kwargs.get("key_padding_mask")
        if not kwargs.get("need_weights", True):
            return output, None
        return output, weights.mean(dim=1) if kwargs.get("average_attn_weights", True) else weights


def _fused_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Weights of ``scaled_dot_product_attention``, 0 for a query that may attend to nothing."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(dim=-1).nan_to_num(0.0)


@contextmanager
def watched(
    module: nn.Module, heads: int, layout: AttentionHeads | None, report: Report
) -> Iterator[None]:
    """Report every forward pass of an attention module while the context lasts."""
    forward, replaced = module.forward, vars(module).get("forward")
    compared = hasattr(module, "pathkernel_heads")  # of libraries' it is known, also behind gates

    @functools.wraps(forward)
    def seen(*given: Any, **named: Any) -> Any:
        value: list[tuple[Tensor, Tensor]] = []
        passed: list[Tensor] = []
        with ExitStack() as stack:
            for handle in _hooks(layout, value, passed):
                stack.callback(handle.remove)
            with _Weights() as weights:
                output = forward(*given, **named)
        states = first_argument(given, named) if weights.states is None else weights.states
        if value and value[-1][0].ndim == states.ndim:
            states = value[-1][0]
        if layout is not None and not layout.batch_first:
            states = states.transpose(0, 1)
        attention = _one_by_head(weights.weights, len(states), heads)
        attention = None if attention is None else attention.to(states.dtype)
        mismatch = 0.0
        if compared and value and attention is not None and layout is not None:
            joined = passed[-1] if passed else output[0] if isinstance(output, tuple) else output
            mismatch = _mismatch(layout, attention, value[-1][1], joined)
        padding = weights.padding if weights.states is not None else _padding(forward, given, named)
        crossed = any(
            named.get(name) is not None for name in ("encoder_hidden_states", "key_value_states")
        )
        # a mask may be of booleans, or added to the scores
        own = None if padding is None else padding == 0
        report(attention, None if crossed else states, own, mismatch)
        return output

    module.forward = seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward
        if replaced is not None:
            module.forward = replaced


def _padding(forward: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    """Argument ``key_padding_mask`` of a call, by place or by name."""
    arguments = inspect.signature(forward).bind_partial(*given, **named).arguments
    return arguments.get("key_padding_mask", arguments.get("kwargs", {}).get("key_padding_mask"))


def first_argument(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Hidden states that a block or its attention is called with."""
    return given[0] if given else next(iter(named.values()))


def _hooks(layout: AttentionHeads | None, value: list, passed: list) -> Iterator[Any]:
    """Hooks for what goes into values and comes out, and what goes into the output projection."""
    if layout is not None and layout.projections:
        yield layout.value_projection.register_forward_hook(
            lambda _, given, output: value.append((given[0], output))
        )
        yield layout.output.register_forward_pre_hook(lambda _, given: passed.append(given[0]))


def _one_by_head(weights: list[Tensor], batch: int, heads: int) -> Tensor | None:
    """The weights (batch, H, query, key), or as they are if of another shape; None of several."""

    def by_head(one: Tensor) -> Tensor | None:
        if one.ndim == 3 and len(one) == batch * heads:
            return one.unflatten(0, (batch, heads))
        if one.ndim == 5 and one.shape[1] * one.shape[2] == heads:  # by groups
            return one.flatten(1, 2)
        return one if one.ndim == 4 and one.shape[:2] == (batch, heads) else None

    if len(weights) == 1:
        one = by_head(weights[0])
        return weights[0] if one is None else one
    fitting = [one for one in map(by_head, weights) if one is not None]
    return fitting[0] if len(fitting) == 1 else None


def _mismatch(
    layout: AttentionHeads, attention: Tensor, projected: Tensor, joined: Tensor
) -> float:
    """Largest difference of what heads pass on from attention times values, relative."""
    if not layout.batch_first:
        projected, joined = projected.transpose(0, 1), joined.transpose(0, 1)
    values = layout.values(projected.movedim(-1, 0)).permute(2, 0, 3, 1)  # (batch, H, key, G)
    if attention.ndim != 4 or attention.shape[-1] != values.shape[-2]:
        return 0.0  # of another sequence, which is refused as such
    expected = (attention @ values.to(attention)).transpose(1, 2).flatten(2)
    difference = (expected - joined.reshape(expected.shape)).nan_to_num(0.0).abs().max()
    return float(difference / joined.nan_to_num(0.0).abs().max().clamp_min(1e-30))
