"""Networks of the theory's form as PyTorch modules, whose heads can be switched off.

A network along its paths, f = n^{-1/2} Σ_π w_π · ξ_π (Eq. 5), is a chain of attention layers: head
h of the first passes on the n/H_1 numbers w_π · x of the paths through it, and head h of a later
layer those of its own paths. The output projection of a layer adds its heads up. All queries and
keys see the bare tokens (Eq. 3). A head that is off does not rescale its layer: n stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import pathkernel as pk
from pathkernel_trained.bundled import heads_path
from pathkernel_trained.path_network import PathNetwork, read_paths


class PathAttention(nn.Module):
    """Attention of one layer, whose inputs are tokens and the numbers of the layer before."""

    def __init__(self, layer: pk.QueryKey, values: Tensor, scale: float):
        """``values`` has shape (H, G, inputs); ``scale`` multiplies the sum over heads."""
        super().__init__()
        heads, size, inputs = values.shape
        self.heads, self.score_scale = heads, layer.scale
        self.q, self.k = (
            _linear(np.pad(_rows(part), ((0, 0), (0, inputs - part.shape[2]))))
            for part in (layer.queries, layer.keys)
        )
        self.v = _linear(values.flatten(0, 1))
        self.output = _linear(scale * torch.eye(size).repeat(1, heads))

    def forward(self, states: Tensor) -> Tensor:
        """Sum (B, M, G) over heads of the values they attend to, from states (B, M, inputs)."""
        q, k, v = (
            projection(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        heads = scaled_dot_product_attention(q, k, v, scale=self.score_scale)
        return self.output(heads.transpose(1, 2).flatten(2))

    def pathkernel_heads(self) -> pk.AttentionHeads:
        """Heads of the layer, as pathkernel asks."""
        return pk.AttentionHeads(self.heads, self.output, [self.q, self.k, self.v])


class PathModule(nn.Module):
    """A network of the theory's form, read out at the mean over tokens."""

    def __init__(self, network: PathNetwork):
        super().__init__()
        heads = network.shape.heads_per_layer
        width = network.path_weights.shape[1]
        self.layers = nn.ModuleList()
        for number, layer in enumerate(network.layers):
            # numbers that a head passes on: one for every path through the layers above
            size = math.prod(heads[number + 1 :])
            if number == 0:
                values = torch.from_numpy(network.path_weights).reshape(heads[0], size, width)
            else:
                selected = torch.eye(heads[number] * size).reshape(heads[number], size, -1)
                values = nn.functional.pad(selected, (width, 0))
            scale = heads[number] ** -0.5
            self.layers.append(PathAttention(layer, values.float(), scale))

    def forward(self, tokens: Tensor) -> Tensor:
        """Output (B,) for tokens (B, M, N_0)."""
        states = tokens
        for layer in self.layers:
            passed_on = layer(states)
            states = torch.cat([tokens, passed_on], dim=-1)
        return passed_on[..., 0].mean(dim=1)


def bundled_module(name: str) -> tuple[PathModule, np.ndarray]:
    """Module of a bundled network, ``trained:NAME``, and its label vectors (3, 192)."""
    network = read_paths(heads_path(name))
    if network.label_vectors is None:
        raise ValueError(f"{name} has no label vectors")
    return PathModule(network).eval(), network.label_vectors


def _rows(heads: np.ndarray) -> np.ndarray:
    """Weights (H, G, N_0) as the rows (H·G, N_0) of a projection."""
    return heads.reshape(-1, heads.shape[2])


def _linear(weight: Sequence | np.ndarray | Tensor) -> nn.Linear:
    weight = torch.as_tensor(weight, dtype=torch.float32)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        linear.weight.copy_(weight)
    return linear
