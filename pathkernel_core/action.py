"""Entropy, energy and action of the order parameters, with gradients (Eq. 11, 12, 32–34).

Order parameters are a chain U_1, …, U_L, u_a of symmetric positive definite matrices; the first has
the size of the number of paths times outputs, the last C × C. All of them are small and live on the
host; only the energy touches the examples, through a Space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pathkernel_core.network import Network


def partial_trace(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Trace over the slowest head index: (H·m, H·m) → (m, m)."""
    size = matrix.shape[0] // heads
    return np.einsum("hahb->ab", matrix.reshape(heads, size, heads, size))


def gp_order_parameters(network: Network) -> tuple[np.ndarray, ...]:
    """Order parameters of the Gaussian process limit N → ∞: products of variances, diagonal."""
    scales = np.cumprod(network.order_parameter_variances[::-1])[::-1]
    return tuple(scale * np.eye(size) for scale, size in zip(scales, network.sizes))


def entropy(network: Network, order_parameters: Sequence[np.ndarray]) -> float:
    """Entropy term of the action, not divided by N (Eq. 33).

    Parameters
    ----------
    network : Network
    order_parameters : sequence of L + 1 arrays
        U_1, …, U_L, u_a with the sizes ``network.sizes``.

    Returns
    -------
    float
        Infinite where an order parameter is not positive definite.
    """
    log_dets = []
    for matrix in order_parameters:
        sign, log_det = np.linalg.slogdet(matrix)
        log_dets.append(log_det if sign > 0 else -math.inf)
    if not all(map(math.isfinite, log_dets)):
        return math.inf
    total = 0.0
    for level, (width, variance) in enumerate(_levels(network)):
        if level < network.n_layers:
            heads = network.heads[level]
            above = order_parameters[level + 1]
            traced = partial_trace(order_parameters[level], heads)
            trace = np.trace(np.linalg.solve(above, traced))
            normaliser = heads * log_dets[level + 1]
        else:
            trace, normaliser = np.trace(order_parameters[level]), 0.0
        total += width * (trace / variance - log_dets[level] + normaliser)
    return float(total)


def entropy_gradient(
    network: Network, order_parameters: Sequence[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Gradients of the entropy with respect to U_1, …, U_L, u_a, each with the others fixed."""
    inverses = [np.linalg.inv(matrix) for matrix in order_parameters]
    levels = _levels(network)
    gradients = []
    for level, (width, variance) in enumerate(levels):
        inverse = inverses[level]
        if level < network.n_layers:
            prior = np.kron(np.eye(network.heads[level]), inverses[level + 1])
        else:
            prior = np.eye(network.outputs)
        gradient = width * (prior / variance - inverse)
        if level > 0:
            below_width, below_variance = levels[level - 1]
            heads = network.heads[level - 1]
            traced = partial_trace(order_parameters[level - 1], heads)
            gradient += below_width * (
                heads * inverse - inverse @ traced @ inverse / below_variance
            )
        gradients.append(gradient)
    return tuple(gradients)


def _levels(network: Network) -> list[tuple[float, float]]:
    return list(zip(network.degrees_of_freedom, network.order_parameter_variances))
