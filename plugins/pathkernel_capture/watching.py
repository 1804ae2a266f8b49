"""Observe the attention weights of a module while it runs."""

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
"""Takes attention (batch, H, query, key) or None if it was not observed; the states
(batch, key, N_0) that heads attend to or None for cross-attention; the token mask (batch, key),
False at padding, or None if the module got no mask; and the relative difference between attention
times values and the output of the heads, NaN if it cannot be computed."""

_LIBRARIES = ("transformers", "timm")  # whose attention is known, also behind gates

_SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)


class _Weights(TorchFunctionMode):
    """Records the attention weights that PyTorch's functions compute inside the context."""

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
        per_head = {"need_weights": True, "average_attn_weights": False}
        output, weights = function(*args, **kwargs | per_head)
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
    """Compute the weights of ``scaled_dot_product_attention``, 0 for a fully masked query."""
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
    """Report every forward pass of an attention module inside the context."""
    forward, replaced = module.forward, vars(module).get("forward")

    @functools.wraps(forward)
    def watched_forward(*args: Any, **kwargs: Any) -> Any:
        values: list[tuple[Tensor, Tensor]] = []
        joined: list[Tensor] = []
        with ExitStack() as stack:
            if layout is not None and layout.projections:
                handles = (
                    layout.value_projection.register_forward_hook(
                        lambda _, inputs, output: values.append((inputs[0], output))
                    ),
                    layout.output.register_forward_pre_hook(
                        lambda _, inputs: joined.append(inputs[0])
                    ),
                )
                for handle in handles:
                    stack.callback(handle.remove)
            with _Weights() as recorded:
                output = forward(*args, **kwargs)
        states = first_argument(args, kwargs) if recorded.states is None else recorded.states
        if values and values[-1][0].ndim == states.ndim:
            states = values[-1][0]
        if layout is not None and not layout.batch_first:
            states = states.transpose(0, 1)
        attention = _by_head(recorded.weights, len(states), heads)
        attention = None if attention is None else attention.to(states.dtype)
        mismatch = 0.0
        if attention is not None and layout is not None and _is_compared(module, layout):
            joined = joined or [output[0] if isinstance(output, tuple) else output]
            mismatch = _mismatch(layout, attention, values, joined[-1])
        padding = recorded.padding
        if recorded.states is None:
            padding = _padding(forward, args, kwargs)
        crossed = any(
            kwargs.get(name) is not None for name in ("encoder_hidden_states", "key_value_states")
        )
        # a mask may be of booleans, or added to the scores
        mask = None if padding is None else padding == 0
        report(attention, None if crossed else states, mask, mismatch)
        return output

    module.forward = watched_forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward
        if replaced is not None:
            module.forward = replaced


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the hidden states that a block or its attention is called with."""
    return args[0] if args else next(iter(kwargs.values()))


def _padding(forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the argument ``key_padding_mask`` of a call."""
    arguments = inspect.signature(forward).bind_partial(*args, **kwargs).arguments
    return arguments.get("key_padding_mask", arguments.get("kwargs", {}).get("key_padding_mask"))


def _by_head(recorded: list[Tensor], batch: int, heads: int) -> Tensor | None:
    """Return the weights (batch, H, query, key), or None of several; another shape unchanged."""

    def by_head(weights: Tensor) -> Tensor | None:
        if weights.ndim == 3 and len(weights) == batch * heads:
            return weights.unflatten(0, (batch, heads))
        if weights.ndim == 5 and weights.shape[1] * weights.shape[2] == heads:  # by groups
            return weights.flatten(1, 2)
        return weights if weights.ndim == 4 and weights.shape[:2] == (batch, heads) else None

    if len(recorded) == 1:
        weights = by_head(recorded[0])
        return recorded[0] if weights is None else weights
    fitting = [weights for weights in map(by_head, recorded) if weights is not None]
    return fitting[0] if len(fitting) == 1 else None


def _is_compared(module: nn.Module, layout: AttentionHeads) -> bool:
    """Whether attention times values is compared with the output of the heads."""
    if hasattr(module, "pathkernel_heads"):
        return bool(layout.projections)
    return type(module).__module__.partition(".")[0] not in _LIBRARIES


def _mismatch(
    layout: AttentionHeads, attention: Tensor, values: list[tuple[Tensor, Tensor]], joined: Tensor
) -> float:
    """Return the largest difference of attention times values from the heads' output, relative."""
    if not values or values[-1][1].ndim != 3:
        return math.nan
    projected = values[-1][1]
    if not layout.batch_first:
        projected, joined = projected.transpose(0, 1), joined.transpose(0, 1)
    by_head = layout.values(projected.movedim(-1, 0)).permute(2, 0, 3, 1)  # (batch, H, key, G)
    if attention.ndim != 4 or attention.shape[-1] != by_head.shape[-2]:
        return 0.0  # of another sequence, which is refused as such
    expected = (attention @ by_head.to(attention)).transpose(1, 2).flatten(2)
    if joined.numel() != expected.numel():
        return math.nan
    difference = (expected - joined.reshape(expected.shape)).nan_to_num(0.0).abs().max()
    return float(difference / joined.nan_to_num(0.0).abs().max().clamp_min(1e-30))
