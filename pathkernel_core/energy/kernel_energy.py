"""Energy and gradient from packed kernels, of all pairs of paths or of single branches."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    from_host,
    inverse_from_root,
    invert_packed,
    invert_triangular,
    log_determinant,
    packed_order,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.kernel_index import index_of
from pathkernel_core.energy.rows import by_output


def kernel_energy(
    kernels: Array, labels: Array, factor: Array, temperature: Array, *, lower: bool = False
) -> tuple[Array, Array]:
    """Energy and M − R, in the same time for triangular and other factors.

    Of a factor (n·C, r) of U from the kernels of pairs of paths; of the square roots (n,) of a
    diagonal from those of branches.
    """
    xp = array_namespace(kernels=kernels)
    index = index_of(factor, labels.shape[1])
    # K is linear in U and the kernels do not depend on it: two products with the whole array of
    # kernels, bound by the memory's speed, replace the mixing of features and the solve for F.
    # ∂energy/∂K = A⁻¹ − A⁻¹YYᵀA⁻¹ with A = K + T1, so that M − R are its products with the kernels
    weigh = weights_of_one_output if index.outputs == 1 else _weights_of_outputs
    energy, weights = weigh(matmul(index.of_factor(factor, xp), kernels), labels, temperature, xp)
    return energy, index.gradient(matmul(kernels, weights), xp)


def weights_of_one_output(
    kernel: Array, labels: Array, temperature: Array, xp: Any
) -> tuple[Array, Array]:
    """Energy, and weight of the packed kernels' entries in M − R, of the packed K (1, ·)."""
    labels = labels[:, 0]
    log_det, solved, weights = invert_packed(kernel[0, :], temperature, labels, xp)
    twice = from_host(multiplicities(labels.shape[0]), kernel)
    return log_det + xp.sum(labels * solved), (twice * weights)[:, None]


@functools.lru_cache(maxsize=8)
def multiplicities(examples: int) -> np.ndarray:
    """2 for packed entries off the diagonal, which stand for two, and 1 on it."""
    entries, _, diagonal = packed_order(examples)
    twice = np.full(len(entries), 2.0)
    twice[diagonal] = 1.0
    return twice


def _weights_of_outputs(
    kernel: Array, labels: Array, temperature: Array, xp: Any
) -> tuple[Array, Array]:
    """Energy, and weights of the kernels' entries in M − R, of K by pairs of outputs (C², P²)."""
    examples, outputs = labels.shape
    kernel = xp.reshape(kernel, (outputs, outputs, examples, examples))
    kernel = xp.reshape(xp.permute_dims(kernel, (2, 0, 3, 1)), (examples * outputs, -1))
    lower = cholesky(add_to_diagonal(kernel, temperature, xp), xp)
    inverse = invert_triangular(lower, xp)
    coefficients = matmul(inverse, xp.reshape(labels, (-1,)))  # L⁻¹ Y
    energy = log_determinant(lower, xp) + matmul(coefficients, coefficients)
    solved = matmul(coefficients, inverse)  # (K + T1)⁻¹ Y
    weights = inverse_from_root(inverse, xp) - solved[:, None] * solved[None, :]
    return energy, xp.matrix_transpose(by_output(weights, outputs, xp))
