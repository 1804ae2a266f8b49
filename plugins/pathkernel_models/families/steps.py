"""Steps within the heads of attention: gates, norms and scales, by the names of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pathkernel_models.attention_heads import input_axis
from pathkernel_models.families.parts import (
    GATES,
    KEY_NORMS,
    QUERY_NORMS,
    VALUE_NORMS,
    number_of,
    projection_of,
)

# of gates; all others take the sigmoid
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"LagunaAttention": F.softplus}


def steps_within(module: nn.Module, count: int, queries: nn.Module, size: int) -> dict[str, Any]:
    """Return the steps within the heads of a module, as arguments of ``AttentionHeads``.

    Parameters
    ----------
    module : Module
        Attention with separate projections.
    count : int
        Number of heads H.
    queries : Module
        Projection of the queries.
    size : int
        Number G of numbers that a head passes on.
    """
    scale = getattr(module, "v_scale", None)
    query_norm = _joint_norm(module, QUERY_NORMS)
    return {
        "gate": _gate(module, count, queries, 0 if query_norm is not None else size),
        "value_norm": _norm(module, VALUE_NORMS),
        "value_scale": float(scale) if isinstance(scale, int | float) else 1.0,
        "query_norm": query_norm,
        "key_norm": _joint_norm(module, KEY_NORMS),
        "parameters": parameters_by_head(module, count),
    }


def parameters_by_head(module: nn.Module, count: int) -> tuple[nn.Parameter, ...]:
    """Return the module's own parameters with an entry for every head, such as sinks."""
    own = module._parameters.values()
    return tuple(value for value in own if value is not None and value.shape[:1] == (count,))


def _gate(
    module: nn.Module, count: int, queries: nn.Module, size: int
) -> Callable[[Tensor], Tensor] | None:
    """Return the function from the module's input to the factors of the outputs of its heads."""
    activation = _ACTIVATIONS.get(type(module).__name__, torch.sigmoid)
    if (gates := projection_of(module, GATES)) is not None:
        bias = getattr(module, "gate_bias", None)

        def gate_of_states(states: Tensor) -> Tensor:
            by_head = gates(states).unflatten(-1, (count, -1))
            return activation(by_head if bias is None else by_head + bias[:, None])

        return gate_of_states
    # behind the queries of every head, as of Qwen3-Next
    rows = queries.weight.shape[1 - input_axis(queries)]
    if rows != 2 * count * size or getattr(module, "head_dim", None) != size:
        return None

    def gate_behind_queries(states: Tensor) -> Tensor:
        return activation(queries(states).unflatten(-1, (count, 2, size))[..., 1, :])

    return gate_behind_queries


def _norm(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    parts = (getattr(module, name, None) for name in names)
    return next((part for part in parts if isinstance(part, nn.Module)), None)


def _joint_norm(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """Return a norm of queries or keys over all heads at once, as of OLMo."""
    norm, size = _norm(module, names), number_of(module, ("head_dim",))
    weight = getattr(norm, "weight", None)
    is_joint = isinstance(weight, Tensor) and weight.ndim == 1 and size and len(weight) > size
    return norm if is_joint else None
