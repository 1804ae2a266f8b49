"""Gradients with respect to the parameters of attention, by hand through softmax and contraction.

With G = ∂E/∂Ω, softmax over keys s gives ∂E/∂(score)_st = Ω_st (G_st − Σ_r Ω_rt G_rt), and linear
attention to M tokens G_st / M. The path weights v^ℓ_hπ(s) = Σ_t Ω^ℓh_st v^{ℓ+1}_π(t) (Eq. 7) are
taken back from the first layer to the last.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np

from pathkernel_core.arrays.backend import Array, array_namespace, batches, real_floating, rows_of
from pathkernel_core.arrays.products import matmul
from pathkernel_core.paths.contraction import BATCH_ELEMENTS, Contraction, Readout
from pathkernel_core.paths.layers import AttentionProduct, KeyVectors, Layer, QueryKey
from pathkernel_core.paths.network import Skips

Gradients = tuple[Array, ...]
"""Gradients with respect to the arrays of one layer, in the order of its fields."""


def attention_gradients(
    inputs: Array,
    layers: Sequence[Layer],
    xi_gradient: Array,
    readout: Readout = "last",
    skips: Skips = None,
) -> list[Gradients | None]:
    """Gradients with respect to the parameters of every layer from that of ξ, Eq. 3 and 7.

    Parameters
    ----------
    inputs, layers, readout, skips
        As for :func:`attentioned_inputs`.
    xi_gradient : array, shape (P, n, N_0)
        Gradient of a number with respect to the attentioned inputs.

    Returns
    -------
    list
        Gradients for each layer: with respect to queries and keys of a :class:`QueryKey`,
        (H, G, N_0) each; to the products of an :class:`AttentionProduct`, (H, N_0, N_0); to the
        vectors of :class:`KeyVectors`, (H, N_0). None for a layer of another kind, which has no
        parameters.

    Raises
    ------
    ValueError, TypeError
        As for :func:`attentioned_inputs`; or if the gradient has another shape than ξ.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> inputs, layers = rng.normal(size=(20, 6, 5)), [pk.KeyVectors(rng.normal(size=(2, 5)))]
    >>> xi = pk.attentioned_inputs(inputs, layers)
    >>> ((gradient,),) = pk.attention_gradients(inputs, layers, xi)  # of Σ ξ²/2
    >>> gradient.shape
    (2, 5)
    """
    array_namespace(inputs=inputs, xi_gradient=xi_gradient)
    inputs = real_floating("inputs", inputs, ("P", "M", "N_0"))
    contraction = Contraction.of(inputs, layers, readout, skips)
    shape = (inputs.shape[0], contraction.n_paths, inputs.shape[2])
    xi_gradient = real_floating("xi_gradient", xi_gradient, shape)
    # attention and its gradient of all layers are in memory together
    elements = 2 * len(layers) * contraction.elements_per_example(inputs)
    step = max(1, BATCH_ELEMENTS // elements)
    total: list[Gradients | None] = [None] * len(layers)
    with np.errstate(all="ignore"):
        for batch in batches(inputs.shape[0], step):
            of_batch = _of_batch(contraction, inputs, xi_gradient, batch)
            total = [_sum(sums, gradients) for sums, gradients in zip(total, of_batch)]
    return total


def _sum(sums: Gradients | None, gradients: Gradients | None) -> Gradients | None:
    if sums is None or gradients is None:
        return gradients
    return tuple(left + right for left, right in zip(sums, gradients))


def _of_batch(
    contraction: Contraction, inputs: Array, xi_gradient: Array, batch: slice
) -> list[Gradients | None]:
    xp = array_api_compat.array_namespace(inputs)
    stages = list(contraction.stages(inputs, batch))
    tokens = rows_of(inputs, batch)
    # ξ = Σ_s A_s x_s, so that ∂E/∂A^π_s = ∂E/∂ξ^π · x_s
    slopes = matmul(rows_of(xi_gradient, batch), xp.matrix_transpose(tokens))  # (batch, n, M)
    gradients: list[Gradients | None] = []
    layers = zip(contraction.layers, contraction.skipped, reversed(stages))
    for layer, skip, (omega, above, _) in layers:
        passed = 0 if not skip else 1 if above is None else above.shape[1]  # paths past the heads
        skipping, slopes = slopes[:, :passed, :], slopes[:, passed:, :]
        examples, heads, keys, queries = omega.shape
        slopes = xp.reshape(slopes, (examples, heads, -1, keys))  # by head and path above
        if above is None:
            of_omega = xp.matrix_transpose(slopes) / queries  # the mean over query tokens
        else:
            of_omega = matmul(xp.matrix_transpose(slopes), above[:, None, :, :])
        if isinstance(layer, _PARAMETRIC):
            query = contraction.token if above is None else None
            if layer.linear:
                of_scores = of_omega / keys
            else:
                mean = xp.sum(omega * of_omega, axis=-2, keepdims=True)
                of_scores = omega * (of_omega - mean)
            scores = of_scores * layer.score_scale
            gradients.append(parameter_gradients(layer, tokens, scores, query))
        else:
            gradients.append(None)
        if above is not None:
            slopes = xp.sum(matmul(slopes, omega), axis=1)  # (batch, paths above, M)
            if skip:
                slopes = slopes + skipping
    return gradients


@functools.singledispatch
def parameter_gradients(layer: Any, inputs: Array, slopes: Array, query: int | None) -> Gradients:
    """Gradients with respect to a layer's parameters.

    Parameters
    ----------
    layer : QueryKey, AttentionProduct or KeyVectors
    inputs : array, shape (P, M, N_0)
    slopes : array, shape (P, H, M, M or 1)
        Gradient with respect to the scores, times their scale.
    query : int or None
        The only query token, or None for all.

    Raises
    ------
    TypeError
        If the layer has no parameters.
    """
    raise TypeError(f"{type(layer).__name__} has no parameters that could be learned")


@parameter_gradients.register
def _(layer: QueryKey, inputs: Array, slopes: Array, query: int | None) -> Gradients:
    xp = array_api_compat.array_namespace(inputs)
    tokens = _query_tokens(inputs, query)
    keys = matmul(inputs[:, None, :, :], xp.matrix_transpose(layer.keys))  # (P, H, M, G)
    queries = matmul(tokens[:, None, :, :], xp.matrix_transpose(layer.queries))
    of_queries = matmul(xp.matrix_transpose(slopes), keys)
    of_keys = matmul(slopes, queries)
    return _over_tokens(of_queries, tokens), _over_tokens(of_keys, inputs)


@parameter_gradients.register
def _(layer: AttentionProduct, inputs: Array, slopes: Array, query: int | None) -> Gradients:
    del layer
    directions = matmul(slopes, _query_tokens(inputs, query)[:, None, :, :])  # (P, H, M, N_0)
    xp = array_api_compat.array_namespace(inputs)
    return (xp.matrix_transpose(_over_tokens(directions, inputs)),)


@parameter_gradients.register
def _(layer: KeyVectors, inputs: Array, slopes: Array, query: int | None) -> Gradients:
    del layer, query
    xp = array_api_compat.array_namespace(inputs)
    return (_over_tokens(xp.sum(slopes, axis=-1, keepdims=True), inputs)[:, 0, :],)


_PARAMETRIC = (QueryKey, AttentionProduct, KeyVectors)


def _query_tokens(inputs: Array, query: int | None) -> Array:
    return inputs if query is None else inputs[:, query : query + 1, :]


def _over_tokens(directions: Array, tokens: Array) -> Array:
    """Sum over examples and tokens of a direction times a token: (H, directions, N_0)."""
    xp = array_api_compat.array_namespace(tokens)
    heads, size = directions.shape[1], directions.shape[3]
    flat = xp.reshape(xp.permute_dims(directions, (1, 3, 0, 2)), (heads * size, -1))
    products = matmul(flat, xp.reshape(tokens, (-1, tokens.shape[2])))
    return xp.reshape(products, (heads, size, tokens.shape[2]))
