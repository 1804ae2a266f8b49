"""Compare what was recorded of attention with the outputs of its heads, and report it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_core.arrays.products import matmul
from pathkernel_models.precision import widen
from pathkernel_models.recording import (
    Points,
    Recording,
    first_argument,
    first_tensor,
)


@dataclass(frozen=True, eq=False)
class Observation:
    """What was observed of attention in one forward pass.

    Attributes
    ----------
    attention : Tensor, shape (batch, H, query, key), or None
        None if it was not observed.
    states : Tensor, shape (batch, key, N_0), or None
        States that heads attend to, None for cross-attention.
    mask : Tensor, shape (batch, key), or None
        False at keys that no query may attend to; None if all may.
    mismatch : float
        Relative difference between attention times values and the output of the heads, NaN if it
        cannot be computed.
    precision : dtype
        Lowest of the run, half under autocast, too.
    has_sinks : bool
        Whether the softmax has further entries, so that rows of the attention sum to less than 1.
    gate : Tensor, shape (batch, query, H, 1) or (batch, query, H, G), or None
        Factors of the heads' outputs.
    """

    attention: Tensor | None
    states: Tensor | None
    mask: Tensor | None
    mismatch: float
    precision: torch.dtype
    has_sinks: bool
    gate: Tensor | None


Report = Callable[[Observation], None]

_OTHER_STATES = ("encoder_hidden_states", "key_value_states")


@contextmanager
def replaced_forward(module: nn.Module, replacement: Callable[..., Any]) -> Iterator[None]:
    """Run a function in place of the forward pass of a module inside the context."""
    # on the instance, and taken off again: its class, and models that share it, are not touched.
    # What stood there before may be a wrapper, such as accelerate's. Not by assignment, which
    # wrappers such as TransformerLens's pass on to the module inside
    attributes = vars(module)
    replaced = attributes.get("forward")
    attributes["forward"] = replacement
    try:
        yield
    finally:
        del attributes["forward"]
        if replaced is not None:
            attributes["forward"] = replaced


@contextmanager
def watch_attention(
    module: nn.Module, heads: int, points: Points | None, swapped: bool, report: Report
) -> Iterator[None]:
    """Report every forward pass of an attention module inside the context."""
    forward = module.forward

    @functools.wraps(forward)
    def watched_forward(*args: Any, **kwargs: Any) -> Any:
        recording = Recording()
        with recording.observe(points):
            output = forward(*args, **kwargs)
        states = first_argument(args, kwargs) if recording.states is None else recording.states
        # a module may normalise its input first: heads attend to what their values are made of
        if recording.value_states is not None and recording.value_states.ndim == states.ndim:
            states = recording.value_states
        if swapped and recording.states is None:
            states = states.transpose(0, 1)
        attention = recording.attention(len(states), heads)
        # weights of half precision are multiplied in float32
        attention = None if attention is None else attention.to(widen(states).dtype)
        difference = math.nan
        gate = gate_of(points, recording)
        if not idle_projection(module, points, recording):
            difference = mismatch(recording, points, swapped, attention, states, output, gate)
        report(
            Observation(
                attention,
                None if attends_across(kwargs) else states,
                recording.tokens(len(states), heads),
                difference,
                recording.precision(states),
                recording.has_sinks,
                gate,
            )
        )
        return output

    with replaced_forward(module, watched_forward):
        yield


def gate_of(points: Points | None, recording: Recording) -> Tensor | None:
    """Return the factors of the heads' outputs in a recorded pass, if they have any."""
    if points is None or points.gate is None or not recording.gates:
        return None
    with torch.no_grad():
        return points.gate[1](recording.gates[-1])


def idle_projection(module: nn.Module, points: Points | None, recording: Recording) -> str:
    """Return the name of an output projection inside a module that did not run with it."""
    if points is None or recording.outputs:
        return ""
    return next((name for name, part in module.named_modules() if part is points.readers[0]), "")


def attends_across(kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments of attention name the states of another sequence."""
    return any(kwargs.get(name) is not None for name in _OTHER_STATES)


def mismatch(
    recording: Recording,
    points: Points | None,
    swapped: bool,
    attention: Tensor | None,
    states: Tensor,
    output: Any,
    gate: Tensor | None,
) -> float:
    """Return the largest difference of attention times values from the heads' output, relative.

    Attention times values are multiplied by the ``gate`` of the heads first, if they have one.

    It is 0 where ``multi_head_attention_forward`` defines the heads; NaN where the attention or the
    values cannot be seen; and infinite where the keys are of another sequence, such as cached ones,
    or weights were dropped at random.
    """
    if recording.states is not None:
        return 0.0
    if points is None or attention is None:
        return math.nan
    if recording.random:
        return math.inf
    constant = not recording.values
    if recording.values:
        values = recording.values[-1]
    elif points.linear is not None:  # its weight is used, but the module does not run
        values = points.linear(states.transpose(0, 1) if swapped else states)
    else:
        return math.nan
    # of several candidates for the outputs, before and after a norm, one has to agree; a gate
    # acts on what the output projection takes, which is the last
    candidates, differences = recording.outputs or [first_tensor(output)], []
    for number, outputs in enumerate(candidates, start=1):
        factors = gate if number == len(candidates) else None
        with torch.no_grad():
            if swapped:
                outputs = outputs.transpose(0, 1)
            by_token = values.transpose(0, 1) if swapped else values
            differences.append(_difference(points, attention, by_token, outputs, constant, factors))
    known = [difference for difference in differences if not math.isnan(difference)]
    return min(known, default=math.nan)


def _difference(
    points: Points,
    attention: Tensor,
    values: Tensor,
    outputs: Tensor,
    constant: bool,
    gate: Tensor | None,
) -> float:
    """Return the relative difference, up to a constant of every entry of a head if one is unknown.

    Attention sums to 1, so that a bias of the values adds the same to the outputs of all tokens.
    """
    if attention.ndim != 4 or outputs is None:
        return math.nan
    batch, heads, queries, keys = attention.shape
    if values.ndim not in (3, 4) or len(values) != batch:
        return math.nan
    by_head = points.by_head(values)
    if by_head is None:
        return math.nan
    if by_head.ndim > 4:  # tokens on several axes, as of an image
        by_head = by_head.flatten(2, -2)
    if by_head.shape[-2] != keys:
        return math.inf
    # of half precision the comparison itself must not add its rounding
    exact = torch.float64 if outputs.dtype == torch.float64 else torch.float32
    expected = matmul(attention.to(exact), by_head.to(exact)).transpose(1, 2)
    if gate is not None:
        expected = expected * gate[:, -queries:].to(exact)
    expected = expected.flatten(2)
    if outputs.numel() % (batch * expected.shape[-1]):
        return math.nan
    candidates = [outputs.reshape(batch, -1, expected.shape[-1])]
    if outputs.ndim == 3 and outputs.shape[1] == batch:  # tokens on the first axis
        candidates.append(outputs.transpose(0, 1))
    differences = []
    for candidate in candidates:
        if candidate.shape[1] < queries:
            continue
        given = candidate[:, -queries:].to(exact)
        rest = (expected - given).nan_to_num(0.0)  # NaN at padding
        if not (expected.isfinite() & given.isfinite()).any():
            return math.inf
        if constant:
            rest = rest - rest.mean(dim=(0, 1))
        # of every head, as large ones would hide small ones
        sizes = torch.maximum(_largest_of_heads(given, heads), _largest_of_heads(expected, heads))
        errors = _largest_of_heads(rest, heads)
        differences.append(float((errors / sizes.clamp_min(1e-30)).max()))
    return min(differences, default=math.nan)


def _largest_of_heads(outputs: Tensor, heads: int) -> Tensor:
    """Return the largest entry of every head, (H,), of outputs (batch, query, H·G)."""
    return outputs.nan_to_num(0.0).unflatten(-1, (heads, -1)).abs().amax(dim=(0, 1, 3))
