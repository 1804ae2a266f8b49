"""The posterior over all weights as it is sampled today: the network evaluated layer by layer.

Every gradient of the density passes all tokens of all examples through the network, as the paper's
scripts do, where ``weights`` of pathkernel mixes the attentioned inputs of the paths. Both are the
same density of the same parameters in the same order.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core import Network, Realisation
from pathkernel_sampling.models.likelihood import pytree


@pytree(("inputs", "attention", "labels", "temperature"), ("network",))
class LayerByLayer:
    """Density of all weights of a network with one output, read out at one token.

    Parameters
    ----------
    realisation : Realisation
        Task whose readout is the last token.
    network : Network
    temperature : float
    """

    name = "layer-by-layer"

    def __init__(self, realisation: Realisation, network: Network, temperature: float):
        if realisation.readout != "last":
            raise ValueError(f"readout must be the last token, but is {realisation.readout!r}")
        self.inputs = jnp.asarray(realisation.train.inputs)
        self.attention = tuple(
            jnp.asarray(layer.attention(realisation.train.inputs)) for layer in realisation.layers
        )
        self.labels = jnp.asarray(realisation.train.labels)
        self.temperature = jnp.asarray(temperature)
        self.network = network

    @property
    def dimension(self) -> int:
        return sum(map(math.prod, self._shapes()))

    def initial(self, key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.dimension,))

    def log_density(self, x: jax.Array) -> jax.Array:
        error = self.outputs(x) - self.labels
        return -0.5 * (x @ x + jnp.sum(error**2) / self.temperature)

    def order_parameter(self, x: jax.Array) -> jax.Array:
        _, *values, readout = self._weights(x)
        rows = readout / math.sqrt(readout.shape[1])
        for value in reversed(values):  # (paths, N_ℓ) → (H_ℓ · paths, N_{ℓ-1}), h slowest
            rows = jnp.einsum("pi,hij->hpj", rows, value) / math.sqrt(value.shape[2])
            rows = rows.reshape(-1, value.shape[2])
        return rows @ rows.T

    def outputs(self, x: jax.Array) -> jax.Array:
        """Outputs (P,) of the network for the training examples (Eq. 1-4)."""
        projection, *values, readout = self._weights(x)
        width = self.inputs.shape[2]
        hidden = self.inputs @ projection.T / math.sqrt(width)  # (P, M, N_0)
        for value, weights in zip(values, self.attention):
            heads, _, width = value.shape
            attended = jnp.einsum("phst,psj->phtj", weights, hidden)
            hidden = jnp.einsum("phtj,hij->pti", attended, value) / math.sqrt(heads * width)
        return hidden[:, -1] @ readout[0] / math.sqrt(readout.shape[1])

    def _weights(self, x: jax.Array) -> list[jax.Array]:
        shapes = self._shapes()
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        deviations = np.sqrt(self.network.variances)
        parts = jnp.split(x, ends[:-1])
        return [
            deviation * part.reshape(shape)
            for deviation, part, shape in zip(deviations, parts, shapes)
        ]

    def _shapes(self) -> list[tuple[int, ...]]:
        widths = [int(width) for width in self.network.widths]
        values = zip(self.network.heads, widths[1:], widths[:-1])
        return [(widths[0], self.inputs.shape[2]), *values, (1, widths[-1])]
