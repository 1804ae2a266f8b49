"""Find parts of attention modules by the names that libraries give them."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

# attention to another sequence, and of learned queries that pool a sequence
_CROSSED = re.compile("cross|encdec|encoder_(decoder_attention|attn)", re.IGNORECASE)
_POOLING = re.compile("attn_?pool|attentionpool", re.IGNORECASE)
INCLUDED = "pathkernel_included"  # attribute of attention to another sequence that is a layer
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
SIZES = ("v_head_dim", "head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
FUSED = ("c_attn", "query_key_value", "qkv_proj", "qkv", "Wqkv")
KEYS_VALUES = ("kv",)
CROSSED_QUERIES = ("q_attn",)  # GPT-2's, whose c_attn then is of keys and values
QUERIES = ("q_proj", "query", "query_proj", "q_lin", "linear_q", "q")
KEYS = ("k_proj", "key", "key_proj", "k_lin", "linear_k", "k")
VALUES = ("v_proj", "value", "value_proj", "v_lin", "linear_v", "v")
GATES = ("gate_proj", "g_proj")
POSITIONS = ("pos_key_proj", "pos_query_proj", "linear_pos")
BIAS_NETWORKS = ("continuous_position_bias_mlp",)  # of Swin v2, from positions to a bias by head
TABLE = "relative_position_bias_table"
QUERY_NORMS = ("q_norm", "query_norm", "norm_q", "q_layernorm")
KEY_NORMS = ("k_norm", "key_norm", "norm_k", "k_layernorm")
VALUE_NORMS = ("v_norm", "value_norm", "norm_v")
OUTPUTS = (
    "o_proj",
    "out_proj",
    "out_lin",
    "c_proj",
    "dense",
    "proj",
    "Wo",
    "linear_out",
    "o",
    "output",
)


def has_crossed_name(name: str, module: nn.Module, parent: nn.Module) -> bool:
    """Whether a module attends to another sequence than that of its queries, by its names."""
    names = name.split(".")[-2:]
    title = f"{type(module).__name__}.{'.'.join(names)}"
    beside_self_attention = names[-1] == "multihead_attn" and hasattr(parent, "self_attn")
    return (
        getattr(module, "is_cross_attention", False)
        or beside_self_attention  # as in nn.TransformerDecoderLayer
        or bool(_CROSSED.search(title) or _POOLING.search(f"{type(parent).__name__}.{title}"))
    )


def is_included(module: nn.Module) -> bool:
    """Whether a module that attends to another sequence is a layer, since the user asked."""
    return INCLUDED in vars(module)


def projection_of(module: Any, names: tuple[str, ...]) -> nn.Module | None:
    """Return the first of these attributes that is a linear map."""
    # which a substitute may hide; scripted modules have them in a mapping without get
    registered = dict(getattr(module, "_modules", {}).items())
    attributes = (registered.get(name) or getattr(module, name, None) for name in names)
    return next(
        (linear for linear in attributes if getattr(weight_of(linear), "ndim", 0) == 2), None
    )


def quantised_class(module: nn.Module, parent: nn.Module) -> str | None:
    """Return the class of a projection of attention whose weight is a method, as of torch.ao."""
    names = (*FUSED, *QUERIES, *KEYS, *VALUES, *OUTPUTS)
    projections = [getattr(module, name, None) for name in names]
    projections.append(getattr(getattr(parent, "output", None), "dense", None))  # BERT's
    kinds = [type(projection) for projection in projections if callable(weight_of(projection))]
    if not kinds or not number_of(module, COUNTS + SIZES):
        return None
    return f"{kinds[0].__module__}.{kinds[0].__name__}"


def weight_of(projection: Any) -> Any:
    """Return the weight of a module, or None of anything else."""
    return getattr(projection, "weight", None) if isinstance(projection, nn.Module) else None


def number_of(module: Any, names: tuple[str, ...]) -> int | None:
    """Return the first of these attributes that is a positive integer."""
    numbers = (getattr(module, name, None) for name in names)
    return next((number for number in numbers if isinstance(number, int) and number > 0), None)
