"""The order parameter of given weights (Eq. 13, 35), and the importance it gives to heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pathkernel_core.backend import Array, array_namespace, real_floating, to_host
from pathkernel_core.network import Network


def path_weights(values: Sequence[Array], readout: Array) -> Array:
    """Product of readout and value weights along every path, W^π (Eq. 35).

    Parameters
    ----------
    values : sequence of L arrays, shape (H_ℓ, N_ℓ, N_{ℓ-1})
        Value weights of each layer, the first layer first.
    readout : array, shape (N_L,) or (C, N_L)
        Readout weights a.

    Returns
    -------
    array, shape (n·C, N_0)
        Rows in path order, output fastest.
    """
    if not values:
        raise ValueError("values must hold the value weights of at least one layer")
    named = {f"values[{index}]": value for index, value in enumerate(values)}
    xp = array_namespace(readout=readout, **named)
    weights = readout[None, :] if readout.ndim == 1 else readout
    weights = real_floating("readout", weights, ("C", "N_L"))
    for index in reversed(range(len(values))):
        layer = real_floating(f"values[{index}]", values[index], ("H", weights.shape[1], "N"))
        product = xp.matmul(weights[None, :, :], layer) / weights.shape[1] ** 0.5
        weights = xp.reshape(product, (-1, layer.shape[2]))
    return weights


def order_parameter_from_weights(values: Sequence[Array], readout: Array) -> Array:
    """Order parameter of one set of weights, U = W Wᵀ / N_0 (Eq. 13, 35), shape (n·C, n·C).

    Averaged over posterior samples it must agree with the theory; of weights trained by gradient
    descent it is the empirical order parameter. Parameters as for :func:`path_weights`.
    """
    weights = path_weights(values, readout)
    xp = array_namespace(weights=weights)
    return xp.matmul(weights, xp.matrix_transpose(weights)) / weights.shape[1]


def head_scores(network: Network, order_parameter: Array) -> list[np.ndarray]:
    """Score of every head: the order parameter's weight on pairs of paths through it.

    The score is Σ |U_ππ'| over the pairs in which π or π' passes through the head (a pair in which
    both do counts once), divided by the largest score of all. With several outputs, |U| is summed
    over output pairs.

    Parameters
    ----------
    network : Network
    order_parameter : array, shape (n·C, n·C)
        Rows and columns in path order, output fastest.

    Returns
    -------
    list of L arrays, shape (H_ℓ,)
        Scores between 0 and 1. All are NaN if the order parameter holds NaN or infinity, as that
        of a failed minimisation does, or is zero: it then gives no head a share.

    Raises
    ------
    ValueError
        If the order parameter has another shape.
    TypeError
        If the network is none, as where the arguments are swapped.
    """
    if not isinstance(network, Network):
        raise TypeError(
            f"network must be a Network, not {type(network).__name__}; call "
            "head_scores(network, order_parameter)"
        )
    paths, outputs = network.n_paths, network.outputs
    matrix = np.abs(to_host(order_parameter), dtype=float)
    if matrix.shape != (paths * outputs,) * 2:
        raise ValueError(
            f"order_parameter must have shape ({paths * outputs}, {paths * outputs}), "
            f"but has {matrix.shape}"
        )
    if not np.isfinite(matrix).all():
        matrix = np.full_like(matrix, np.nan)
    scores = []
    for layer, count in enumerate(network.heads):
        within = math.prod(network.heads[layer + 1 :]) * network.outputs
        shape = (math.prod(network.heads[:layer]), count, within)
        by_head = np.einsum("ahbcid->hi", matrix.reshape(shape * 2))
        scores.append(by_head.sum(axis=0) + by_head.sum(axis=1) - by_head.diagonal())
    largest = max(layer.max() for layer in scores)
    return [layer / (largest or np.nan) for layer in scores]
