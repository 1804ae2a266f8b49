"""Order parameter of a set of weights (Eq. 13, 35), and scores of heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    real_floating,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.paths.network import Network, Skips, skips_of_layers


def path_weights(values: Sequence[Array], readout: Array, skips: Skips = None) -> Array:
    """Product of readout and value weights along every path, W^π (Eq. 35).

    Parameters
    ----------
    values : sequence of L arrays, shape (H_ℓ, N_{ℓ+1}, N_ℓ)
        Value weights of each layer, first layer first.
    readout : array, shape (N_{L+1},) or (C, N_{L+1})
        Readout weights a.
    skips : optional
        Skip connections, as for :class:`Network`; their strengths have no effect here.

    Returns
    -------
    array, shape (n·C, N_1)
        Rows in path order, output fastest.
    """
    if not values:
        raise ValueError("values must hold the value weights of at least one layer")
    named = {f"values[{index}]": value for index, value in enumerate(values)}
    xp = array_namespace(readout=readout, **named)
    weights = readout[None, :] if readout.ndim == 1 else readout
    weights = real_floating("readout", weights, ("C", "N_{L+1}"))
    skips = skips_of_layers(skips, len(values))
    for index in reversed(range(len(values))):
        layer = real_floating(f"values[{index}]", values[index], ("H", weights.shape[1], "N"))
        product = matmul(weights[None, :, :], layer) / weights.shape[1] ** 0.5
        product = xp.reshape(product, (-1, layer.shape[2]))
        weights = product if skips[index] is None else xp.concat([weights, product])
    return weights


def order_parameter_from_weights(
    values: Sequence[Array], readout: Array, skips: Skips = None
) -> Array:
    """Order parameter of a set of weights, U = W Wᵀ / N_1 (Eq. 13, 35), shape (n·C, n·C).

    Its posterior mean is the theory's U. Parameters as for :func:`path_weights`.
    """
    weights = path_weights(values, readout, skips)
    xp = array_namespace(weights=weights)
    return matmul(weights, xp.matrix_transpose(weights)) / weights.shape[1]


def scaled_order_parameter(network: Network, order_parameter: Array) -> np.ndarray:
    """Order parameter in the kernel, U times the coefficients n c_π c_π' of both paths."""
    matrix, scales = to_host(order_parameter), network.path_scales
    return scales[:, None] * matrix * scales if network.has_skips else matrix


def head_scores(network: Network, order_parameter: Array) -> np.ndarray:
    """Score every head by the order parameter's weight on pairs of paths through it.

    The score is Σ |U_ππ'| over the pairs of which π or π' passes through the head, divided by the
    largest score of all. With several outputs, |U| is summed over output pairs. With skip
    connections, U is multiplied by the coefficients c_π c_π' of both paths, as in the kernel.

    Parameters
    ----------
    network : Network
    order_parameter : array, shape (n·C, n·C)
        Rows and columns in path order, output fastest. Of independent branches, the diagonal (B,),
        whose scores are |u_l| divided by the largest.

    Returns
    -------
    array, shape (ΣH_ℓ,)
        Scores between 0 and 1, in the order of ``network.head_labels``; NaN if the order parameter
        is zero, or has NaN or infinity after a failed minimisation.

    Raises
    ------
    ValueError
        If the order parameter has another shape.
    TypeError
        If ``network`` is not a Network, as when the arguments are swapped.

    Notes
    -----
    Scores are of U alone. Where attentioned inputs differ in size from path to path, a path of
    small U and large inputs may do more than its score says: compare U times the mean kernels of
    pairs of paths. A score tells how much a network of the theory uses a head, which is not how
    much a trained one would lose without it: measure that.
    """
    return _scores(network, order_parameter)[0]


def skip_scores(network: Network, order_parameter: Array) -> np.ndarray:
    """Score the skip connection of every layer, (L,), NaN for a layer without one.

    In units of the largest head score; parameters and errors as for :func:`head_scores`.
    """
    return _scores(network, order_parameter)[1]


def _scores(network: Network, order_parameter: Array) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(network, Network):
        raise TypeError(
            f"network must be a Network, not {type(network).__name__}; call "
            "head_scores(network, order_parameter)"
        )
    size = network.n_paths * network.outputs
    shape = (size, size) if network.shared else (size,)
    matrix = np.abs(to_host(order_parameter), dtype=float)
    if matrix.shape != shape:
        raise ValueError(f"order_parameter must have shape {shape}, but has {matrix.shape}")
    if not np.isfinite(matrix).all():
        matrix = np.full_like(matrix, np.nan)
    if not network.shared:  # no pair of different branches
        return matrix / (matrix.max() or np.nan), np.array([np.nan])
    matrix = scaled_order_parameter(network, matrix)
    scores = []
    for layer, count in enumerate(network.steps):
        within = math.prod(network.steps[layer + 1 :]) * network.outputs
        shape = (math.prod(network.steps[:layer]), count, within)
        # |U| summed over pairs of paths by their heads (h, h') in this layer. Pairs through h are
        # row and column h, in both of which (h, h) is
        by_head = np.einsum("ahbcid->hi", matrix.reshape(shape * 2))
        scores.append(by_head.sum(axis=0) + by_head.sum(axis=1) - by_head.diagonal())
    skips = [count - heads for count, heads in zip(network.steps, network.heads)]
    largest = max(layer[skip:].max() for layer, skip in zip(scores, skips))
    scores = [layer / (largest or np.nan) for layer in scores]
    of_skips = [layer[0] if skip else np.nan for layer, skip in zip(scores, skips)]
    of_heads = [layer[skip:] for layer, skip in zip(scores, skips)]
    return np.concatenate(of_heads), np.array(of_skips)
