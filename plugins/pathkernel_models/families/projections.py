"""Attention of transformers and timm, by the names of its projections."""

from __future__ import annotations

from typing import Any

from torch import nn

from pathkernel_models.attention_heads import AttentionHeads, input_axis
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.parts import (
    BIAS_NETWORKS,
    COUNTS,
    CROSSED_QUERIES,
    FUSED,
    KEYS,
    KEYS_VALUES,
    OUTPUTS,
    POSITIONS,
    QUERIES,
    SIZES,
    TABLE,
    VALUES,
    number_of,
    projection_of,
)
from pathkernel_models.families.steps import gate_projection, steps_within

_TOKENS_FIRST = ("modeling_fsmt",)  # files of transformers with sequences on the second axis


def describe_projections(module: nn.Module, parent: nn.Module) -> AttentionHeads | None:
    """Recognise attention of transformers or timm by the names of its projections."""
    fused, queries = projection_of(module, FUSED), projection_of(module, QUERIES)
    output = projection_of(module, OUTPUTS)
    if output is None:  # BERT's is in the parent
        output = projection_of(getattr(parent, "output", None), ("dense",))
    size, count = number_of(module, SIZES), number_of(module, COUNTS)
    if output is None or (fused is None and queries is None) or not (size or count):
        return None
    # the weight tells the truth, where a configuration may still have the heads before pruning
    width = output.weight.shape[input_axis(output)]
    if size and width % size == 0:
        count = width // size
    keys, values = projection_of(module, KEYS), projection_of(module, VALUES)
    if values is None and getattr(module, "v_proj", module) is None:
        values = keys  # as of Gemma 4, whose values may be its keys before their norm
    projections = [queries, keys, values]
    if fused is not None:
        crossed = projection_of(module, CROSSED_QUERIES)
        projections = [fused] if crossed is None else [crossed, fused]
    elif joined := projection_of(module, KEYS_VALUES):
        projections = [queries, joined]
    else:
        gates = gate_projection(module, count or width, width)
        further = [gates, *(projection_of(module, names) for names in zip(POSITIONS))]
        networks = (getattr(module, name, None) for name in BIAS_NETWORKS)
        further += [network[-1] for network in networks if isinstance(network, nn.Sequential)]
        projections += [part for part in further if part is not None]
    # GPTBigCode names its flag, and has rows by head without it
    by_head = hasattr(module, "query_key_value") or getattr(module, "multi_query", None) is False
    batch_first = type(module).__module__.rpartition(".")[2] not in _TOKENS_FIRST
    steps: dict[str, Any] = {}
    if count and queries is not None:
        steps = steps_within(module, count, queries, width // count)
    try:
        if None not in projections and not type(module).__name__.startswith("CodeGen"):
            parts = tuple(part for part in projections if part is not None)
            bias = _score_bias(module, parent, count or 0)
            return AttentionHeads(count or 0, output, parts, by_head, bias, batch_first, **steps)
    except CaptureError:
        pass  # rows in another order
    try:
        return AttentionHeads(count or 0, output, batch_first=batch_first)
    except CaptureError:
        return None


def _score_bias(
    module: nn.Module, parent: nn.Module, count: int
) -> nn.Module | nn.Parameter | None:
    """Return the bias of relative positions, as of T5, or its table, as of Swin and BEiT."""
    bias = getattr(module, "relative_attention_bias", None)
    if isinstance(bias, nn.Embedding):
        return bias
    beside = getattr(parent, "relative_position_bias", module)  # BEiT's, which its block runs
    for part in (module, beside):
        for name, table in part.named_parameters() if isinstance(part, nn.Module) else ():
            if name.endswith(TABLE) and table.shape[1:] == (count,):
                return table
    return None
