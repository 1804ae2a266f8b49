"""The same network as a sum over attention paths, exact and far cheaper to train.

The network is linear in its values, so that its output is f = Σ_π w_π · ξ_π (Eq. 5): w_π is the
product of value weights along path π, computed once per step from the readout down, and ξ_π the
attentioned input (Eq. 7), contracted from the last layer backwards. N and G are then no axes of any
array over examples: tokens lie in a space of few dimensions,

    x_t = Bᵀ c_t + e_t,

with coordinates c_t of every token in a basis B, and an offset e_t of every position, shared by all
examples. A head's scores are a bilinear form in those coordinates, computed once per step too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pathkernel_trained.network import Weights


class TokenSpace(NamedTuple):
    """Space of the tokens: x_t = Bᵀ c_t + e_t.

    Attributes
    ----------
    basis : array, shape (D, N_0)
        Rows of B.
    offsets : array, shape (M, N_0)
        Offset e_t of every position in the sequence.
    """

    basis: jax.Array
    offsets: jax.Array


class ExampleForms(NamedTuple):
    """Weights contracted for the examples: neither N nor G is an axis.

    Attributes
    ----------
    scores : list of L arrays, shape (D + M, H_ℓ, D + M)
        Bilinear forms of the heads' scores: query on the left, key on the right; first the D
        coordinates, then the M positions.
    coordinates : array, shape (n, D)
        Products w_π · b_d with the basis.
    offsets : array, shape (n, M)
        Products w_π · e_t with the offsets.
    """

    scores: list[jax.Array]
    coordinates: jax.Array
    offsets: jax.Array


def output_along_paths(weights: Weights, space: TokenSpace, coordinates: jax.Array) -> jax.Array:
    """Output of the network as the sum over paths of w_π · ξ_π.

    Equal to :func:`pathkernel_one_shot.layer_form.output_by_layers` up to rounding. Takes weights
    of :meth:`pathkernel_trained.network.NetworkShape.weight_shapes` and coordinates c of the
    tokens, (P, M, D); returns an array (P,).
    """
    return forms_output(example_forms(weights, space), coordinates)


def example_forms(weights: Weights, space: TokenSpace) -> ExampleForms:
    """Contract the weights into the forms that all examples share."""
    products = products_along_paths(weights)
    forms = score_forms(weights, space)
    return ExampleForms(forms, products @ space.basis.T, products @ space.offsets.T)


def forms_output(forms: ExampleForms, coordinates: jax.Array) -> jax.Array:
    """Output (P,) for examples with coordinates (P, M, D)."""
    attention = path_attention(forms, coordinates)  # (P, n, M)
    # w_π · x_t of every token: the same sum as with ξ, and no array of size (P, n, D)
    products = jnp.einsum("psd,nd->pns", coordinates, forms.coordinates) + forms.offsets
    return jnp.sum(attention * products, axis=(1, 2))


def products_along_paths(weights: Weights) -> jax.Array:
    """Products w_π of weights along the paths, n^{-1/2} a V^{L h_L} … V^{1 h_1} V⁰, (n, N_0).

    Rows in path order: the first layer's head is slowest.
    """
    # from the readout, one vector per path: from the projection it would be N × N_0 matrices
    paths = math.prod(len(values) for values in weights["values"])
    product = weights["readout"][None] / math.sqrt(paths)
    for values in weights["values"][::-1]:
        product = jnp.einsum("ri,hij->hrj", product, values).reshape(-1, values.shape[2])
    return product @ weights["projection"]


def path_attention(forms: ExampleForms, coordinates: jax.Array) -> jax.Array:
    """Weight of every token along every path, v^1_π(s) of Eq. 7, (P, n, M)."""
    examples, length, dimensions = coordinates.shape
    # axes are in the order in which products of matrices read and leave them
    passed = jnp.full((examples, 1, length), 1 / length, coordinates.dtype)
    for form in reversed(forms.scores):
        varying, shared = form[:dimensions], form[dimensions:]
        left = jnp.einsum("ptd,dhc->pthc", coordinates, varying[..., :dimensions])
        left = left + shared[..., :dimensions]
        scores = jnp.einsum("pthc,psc->pths", left, coordinates)
        scores = scores + jnp.einsum("ptd,dhs->pths", coordinates, varying[..., dimensions:])
        attention = jax.nn.softmax(scores + shared[..., dimensions:], axis=-1)
        passed = jnp.einsum("pnt,pths->phns", passed, attention)
        passed = passed.reshape(examples, -1, length)
    return passed


def score_forms(weights: Weights, space: TokenSpace) -> list[jax.Array]:
    """Bilinear forms of the scores of all heads, see :class:`ExampleForms`."""
    # x_t = Bᵀc_t + e_t on both sides makes four terms: one form over coordinates and positions
    spanning = jnp.concatenate([space.basis, space.offsets])
    forms = []
    for layer_keys, layer_queries in zip(weights["keys"], weights["queries"]):
        keys = jnp.einsum("hgi,ci->hgc", layer_keys, spanning)
        queries = jnp.einsum("hgi,ci->hgc", layer_queries, spanning)
        forms.append(jnp.einsum("hgd,hgc->dhc", queries, keys) / math.sqrt(keys.shape[1]))
    return forms
