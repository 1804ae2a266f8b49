"""Entropy, energy and action of the order parameters, with gradients (Eq. 11, 12, 32–34).

Order parameters are a chain U_1, …, U_L, u_a of symmetric positive definite matrices; the first has
the size of the number of paths times outputs, the last C × C. All of them are small and live on the
host; only the energy touches the examples, through a Space. Where layer ℓ has a skip connection,
the leading block of U_ℓ is U_{ℓ+1}, and its prior concerns the other rows and columns.
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
    return tuple(map(np.diag, gp_diagonals(network)))


def gp_diagonals(network: Network) -> list[np.ndarray]:
    """Diagonals of the order parameters of the Gaussian process limit."""
    above = network.variances[-1] * np.ones(network.outputs)
    diagonals = [above]
    for level, (_, variance, shared) in reversed(list(enumerate(_levels(network)[:-1]))):
        of_heads = np.tile(variance * above, network.heads[level])
        above = np.concatenate([above[:shared], of_heads])
        diagonals.insert(0, above)
    return diagonals


def entropy(network: Network, order_parameters: Sequence[np.ndarray]) -> float:
    """Entropy term of the action, not divided by N (Eq. 33).

    Parameters
    ----------
    network : Network
    order_parameters : sequence of L + 1 arrays
        U_1, …, U_L, u_a with the sizes ``network.sizes``. Where a skip connection repeats one as a
        block of the one before, it must be that block, which is not checked.

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
    for level, (width, variance, shared) in enumerate(_levels(network)):
        if level < network.n_layers:
            above, below = order_parameters[level + 1], order_parameters[level]
            traced = partial_trace(below[shared:, shared:], network.heads[level])
            trace = np.trace(np.linalg.solve(above, traced))
            normaliser = network.branches[level] * log_dets[level + 1]
        else:
            trace, normaliser = np.trace(order_parameters[level]), 0.0
        total += width * (trace / variance - log_dets[level] + normaliser)
    return float(total)


def entropy_gradient(
    network: Network, order_parameters: Sequence[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Gradients of the entropy with respect to U_1, …, U_L, u_a, each with the others fixed.

    Also where a skip connection repeats one as a block of the one before: the gradient in that one
    alone is the sum of both.
    """
    inverses = [np.linalg.inv(matrix) for matrix in order_parameters]
    levels = _levels(network)
    gradients = []
    for level, (width, variance, shared) in enumerate(levels):
        inverse = inverses[level]
        if level < network.n_layers:
            prior = np.kron(np.eye(network.branches[level]), inverses[level + 1])
            prior[:shared, :shared] = 0.0
        else:
            prior = np.eye(network.outputs)
        gradient = width * (prior / variance - inverse)
        if level > 0:
            below_width, below_variance, shared = levels[level - 1]
            below = order_parameters[level - 1][shared:, shared:]
            traced = partial_trace(below, network.heads[level - 1])
            gradient += below_width * (
                network.branches[level - 1] * inverse - inverse @ traced @ inverse / below_variance
            )
        gradients.append(gradient)
    return tuple(gradients)


def _levels(network: Network) -> list[tuple[float, float, int]]:
    variances, shared = network.order_parameter_variances, network.shared_sizes
    return list(zip(network.degrees_of_freedom, variances, shared))
