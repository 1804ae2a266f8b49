"""The network layer by layer, after its equations: the reference of the path form."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pathkernel_trained.network import Weights


def output_by_layers(weights: Weights, tokens: jax.Array) -> jax.Array:
    """Output (P,) of the network for inputs x (P, M, N_0), layer by layer (Eq. 1-4).

    Weights are those of :meth:`pathkernel_trained.network.NetworkShape.weight_shapes`.
    """
    hidden = tokens @ weights["projection"].T  # (P, M, N)
    for layer in range(len(weights["queries"])):
        heads, qk_width, _ = weights["queries"][layer].shape
        keys = jnp.einsum("psi,hgi->phsg", tokens, weights["keys"][layer])
        queries = jnp.einsum("pti,hgi->phtg", tokens, weights["queries"][layer])
        scores = jnp.einsum("phsg,phtg->phst", keys, queries) / math.sqrt(qk_width)
        attention = jax.nn.softmax(scores, axis=2)
        values = jnp.einsum("hij,psj->phsi", weights["values"][layer], hidden)
        hidden = jnp.einsum("phst,phsi->pti", attention, values) / math.sqrt(heads)
    return jnp.mean(hidden, axis=1) @ weights["readout"]
