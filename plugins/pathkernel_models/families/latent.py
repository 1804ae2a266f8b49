"""Latent attention of DeepSeek and others, whose keys and values are maps of a latent vector."""

from __future__ import annotations

from torch import nn

from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.parts import COUNTS, OUTPUTS, number_of, projection_of


def describe_latent(module: nn.Module, parent: nn.Module) -> AttentionHeads | None:
    """Recognise it by the projection from the latent vector to keys and values of every head."""
    # positions are in a further key, which all heads share
    queries = projection_of(module, ("q_b_proj", "q_proj"))
    keys_and_values = projection_of(module, ("kv_b_proj",))
    output, count = projection_of(module, OUTPUTS), number_of(module, COUNTS)
    if queries is None or keys_and_values is None or output is None or count is None:
        return None
    try:
        return AttentionHeads(count, output, (queries, keys_and_values), by_head=True)
    except CaptureError:
        return None
