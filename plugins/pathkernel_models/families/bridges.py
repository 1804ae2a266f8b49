"""Attention of TransformerLens, by the linear maps inside its components."""

from __future__ import annotations

from typing import Any

from torch import nn

from pathkernel_models.attention_heads import AttentionHeads, input_axis
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.parts import number_of, weight_of


def describe_bridge(name: str, module: nn.Module) -> AttentionHeads | None:
    """Recognise attention of TransformerLens by the linear maps inside its components."""
    config = getattr(module, "config", None)
    if getattr(config, "use_attn_result", False):
        raise CaptureError(
            f"{name} adds the results of its heads without running its output projection; call "
            "set_use_attn_result(False) of the model first"
        )
    components = [getattr(module, part, None) for part in ("q", "k", "v", "o")]
    maps: list[Any] = [getattr(part, "original_component", None) for part in components]
    size = number_of(config, ("d_head",))
    if size is None or any(getattr(weight_of(linear), "ndim", 0) != 2 for linear in maps):
        return None
    *projections, output = maps
    try:
        return AttentionHeads(
            output.weight.shape[input_axis(output)] // size, output, tuple(projections)
        )
    except CaptureError:  # of another form
        return None
