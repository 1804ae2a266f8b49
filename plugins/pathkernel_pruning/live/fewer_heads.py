"""Parts of a smaller model that stand in place of those that cannot lose heads by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pathkernel_models.attention_heads import AttentionHeads


def select_entries(weight: Tensor, entries: Tensor, axis: int = 0) -> nn.Parameter:
    """Select entries of a weight on an axis."""
    selected = weight.detach().index_select(axis, entries.to(weight.device))
    return nn.Parameter(selected, requires_grad=weight.requires_grad)


class NormOfHeads(nn.Module):
    """Norm of the queries or keys of all heads at once, of which some are passed on.

    Heads that were taken out count in the norm of the others, so that their queries are computed.

    Parameters
    ----------
    norm : Module
        With a weight (entries,).
    entries : Tensor of int
        Numbers of those that are passed on, from 0.
    """

    def __init__(self, norm: nn.Module, entries: Tensor):
        super().__init__()
        if isinstance(norm, NormOfHeads):  # of a model that has lost heads before
            entries = norm.entries[entries.to(norm.entries.device)]
            norm = norm.norm
        self.norm = norm
        device = next(norm.parameters()).device
        self.register_buffer("entries", entries.to(device), persistent=False)
        self.train(norm.training)

    norm: nn.Module
    entries: Tensor

    @property
    def weight(self) -> Tensor:
        """Weight of the entries that are passed on."""
        weight: Tensor = self.norm.weight
        return weight[self.entries]

    def forward(self, states: Tensor) -> Tensor:
        """Return the norm of states (…, entries before), of the heads that are left."""
        return self.norm(states).index_select(-1, self.entries)


class LayerConfiguration:
    """Configuration of a model, with some numbers of its own for one layer.

    All else is read from the model's, which may change, as its kernel of attention does.

    Parameters
    ----------
    configuration : object
    numbers : mapping of str to int
    """

    configuration: Any

    def __init__(self, configuration: Any, numbers: Mapping[str, int]):
        if isinstance(configuration, LayerConfiguration):  # of a layer that lost heads before
            numbers = {**configuration.numbers, **numbers}
            configuration = configuration.configuration
        self.configuration = configuration
        self.numbers: dict[str, int] = dict(numbers)

    def __getattr__(self, name: str) -> Any:
        if name in ("configuration", "numbers"):  # of a copy, which has no attributes yet
            raise AttributeError(name)
        return self.numbers[name] if name in self.numbers else getattr(self.configuration, name)


class FewerHeads(nn.Module):
    """``nn.MultiheadAttention`` with some of its heads; same arguments and outputs.

    Parameters
    ----------
    original : nn.MultiheadAttention
    heads : list of int
        Numbered from 0.
    """

    _qkv_same_embed_dim = False  # so that PyTorch's encoder layers do without their fused kernel

    def __init__(self, original: nn.MultiheadAttention, heads: list[int]):
        super().__init__()
        self.num_heads, self.heads_before, self.heads = len(heads), original.num_heads, heads
        self.batch_first, self.dropout = original.batch_first, original.dropout
        entries = (
            torch.arange(original.embed_dim).unflatten(0, (original.num_heads, -1))[heads].flatten()
        )
        weights = original.in_proj_weight.chunk(3)
        biases = [None] * 3 if original.in_proj_bias is None else original.in_proj_bias.chunk(3)
        self.queries, self.keys, self.values = (
            _linear(
                select_entries(weight, entries),
                None if bias is None else select_entries(bias, entries),
            )
            for weight, bias in zip(weights, biases)
        )
        self.out_proj = _linear(
            select_entries(original.out_proj.weight, entries, 1), original.out_proj.bias
        )
        self.train(original.training)

    @property
    def in_proj_bias(self) -> nn.Parameter | None:
        """Read by PyTorch's encoder layers."""
        return self.queries.bias

    def pathkernel_heads(self) -> AttentionHeads:
        """Describe the heads for capture."""
        projections = (self.queries, self.keys, self.values)
        return AttentionHeads(
            self.num_heads, self.out_proj, projections, batch_first=self.batch_first
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute as ``nn.MultiheadAttention``; sequences must be batched, else a ValueError."""
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask; give attn_mask, too")
        if query.ndim != 3:
            raise ValueError(
                f"query must be of sequences in a batch, three axes, but has {query.ndim}; give a "
                "single sequence one more axis"
            )
        projected = (self.queries(query), self.keys(key), self.values(value))
        if not self.batch_first:
            projected = tuple(states.transpose(0, 1) for states in projected)
        q, k, v = (
            states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for states in projected
        )
        mask = None
        if attn_mask is not None:
            mask = _to_additive(attn_mask, q.dtype)
            if mask.ndim == 3:  # one of every sequence and head
                mask = mask.unflatten(0, (-1, self.heads_before))[:, self.heads]
        if key_padding_mask is not None:
            padding = _to_additive(key_padding_mask, q.dtype)[:, None, None, :]
            mask = padding if mask is None else mask + padding
        dropped = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropped)
            heads = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropped)
        joined = heads.transpose(1, 2).flatten(2)
        return self.out_proj(joined if self.batch_first else joined.transpose(0, 1)), weights


def _to_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask to numbers to add to scores, −∞ where a boolean one is True."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    # on meta: its own weights would be drawn at random, and move PyTorch's generator
    linear = nn.Linear(*weight.T.shape, bias=bias is not None, device="meta")
    linear.weight = weight
    if bias is not None:
        linear.bias = bias
    return linear
