"""Steps within the heads of attention: gates, norms and scales, by the names of their parts."""

from __future__ import annotations

import re
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

# functions of gates, by classes whose code has been read; all others take the sigmoid
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"LagunaAttention": F.softplus}
# parameters with an entry for every head; others may have as many by chance
_BY_HEAD = re.compile("sink|gate_bias|logit_scale|temperature|head")


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
        "gate": _gate(module, count, queries, size, has_joint_norm=query_norm is not None),
        "value_norm": _norm(module, VALUE_NORMS),
        "value_scale": float(scale) if isinstance(scale, int | float) else 1.0,
        "query_norm": query_norm,
        "key_norm": _joint_norm(module, KEY_NORMS),
        "parameters": parameters_by_head(module, count),
    }


def parameters_by_head(module: nn.Module, count: int) -> tuple[nn.Parameter, ...]:
    """Return the module's own parameters with an entry for every head, such as sinks."""
    return tuple(
        value
        for name, value in module._parameters.items()
        if value is not None and _BY_HEAD.search(name) and value.shape[:1] == (count,)
    )


def gate_projection(module: nn.Module, count: int, width: int) -> nn.Module | None:
    """Return the map to a factor for every head, or for all ``width`` numbers that they pass on."""
    gates = projection_of(module, GATES)
    return gates if gates is not None and _rows(gates) in (count, width) else None


def _gate(
    module: nn.Module, count: int, queries: nn.Module, size: int, *, has_joint_norm: bool
) -> tuple[nn.Module, Callable[[Tensor], Tensor]] | None:
    """Return the map that tells the factors of the heads' outputs, and their function."""
    activation = _ACTIVATIONS.get(type(module).__name__, torch.sigmoid)
    gates = gate_projection(module, count, count * size)
    if gates is not None:
        bias = getattr(module, "gate_bias", None)

        def factors(output: Tensor) -> Tensor:
            if bias is not None:
                output = (output.unflatten(-1, (count, -1)) + bias[:, None]).flatten(-2)
            return activation(output)

        return gates, factors
    # behind the queries of every head, as of Qwen3-Next
    if has_joint_norm or _rows(queries) != 2 * count * size:
        return None
    if getattr(module, "head_dim", None) != size:
        return None

    def factors_behind_queries(output: Tensor) -> Tensor:
        return activation(output.unflatten(-1, (count, 2, size))[..., 1, :]).flatten(-2)

    return queries, factors_behind_queries


def _rows(projection: nn.Module) -> int:
    rows: int = projection.weight.shape[1 - input_axis(projection)]
    return rows


def _norm(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    parts = (getattr(module, name, None) for name in names)
    return next((part for part in parts if isinstance(part, nn.Module)), None)


def _joint_norm(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """Return a norm of queries or keys over all heads at once, as of OLMo."""
    norm, size = _norm(module, names), number_of(module, ("head_dim",))
    if hasattr(norm, "entries"):  # of heads that are left, perhaps a single one
        return norm
    weight = getattr(norm, "weight", None)
    is_joint = isinstance(weight, Tensor) and weight.ndim == 1 and size and len(weight) > size
    return norm if is_joint else None
