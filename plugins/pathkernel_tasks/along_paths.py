"""Attentioned inputs as a network's input: a token for every path."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import array_api_compat
import numpy as np

from pathkernel_core.arrays.backend import Array, from_host
from pathkernel_core.paths.layers import Layer


@dataclass(frozen=True)
class Steps:
    """Heads that attend to one token each, a number of steps after the query token, cyclically.

    Parameters
    ----------
    steps : sequence of int
        Number of steps of each head.
    """

    steps: Sequence[int]
    tokens_are_paths: ClassVar[bool] = True  # so that none is the token of a skip connection

    @property
    def n_heads(self) -> int:
        """Number of heads H."""
        return len(self.steps)

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1) with the key token before the query token."""
        batch, tokens, _ = inputs.shape
        queries = np.arange(tokens) if query is None else np.array([query])
        keys = (np.array(self.steps)[:, None] + queries) % tokens  # (H, queries)
        omega = np.arange(tokens)[:, None] == keys[:, None, :]
        xp = array_api_compat.array_namespace(inputs)
        return xp.broadcast_to(from_host(omega[None], inputs, inputs.dtype), (batch, *omega.shape))

    def select(self, examples: slice) -> Steps:
        """The layer itself: it does not depend on the example."""
        return self

    def keep_heads(self, kept: Sequence[int]) -> Steps:
        """Layer with only the heads ``kept``, numbered from 1."""
        return replace(self, steps=tuple(self.steps[head - 1] for head in kept))

    def convert(self, function: Callable[[Array], Array]) -> Steps:
        """The layer itself: it holds no arrays."""
        return self


def layers_along(heads: Sequence[int]) -> tuple[Layer, ...]:
    """Make layers whose attentioned inputs, read out at the first token, are the tokens in order.

    Parameters
    ----------
    heads : sequence of int
        Number of heads of each layer, the first layer first; there is a token for each path.
    """
    return tuple(
        Steps(tuple(math.prod(heads[number:]) * head for head in range(count)))
        for number, count in enumerate(heads, start=1)
    )
