"""Energy and gradient in kernel space: from the kernels of all pairs of paths."""

from __future__ import annotations

import functools
import math
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


@functools.lru_cache(maxsize=8)
def pairs_of_paths(paths: int, outputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of paths in kernel space, and their entries in the gradient.

    The pairs (pairs, 2); the index of the pair for each entry of a matrix n × n, (n²,); and the
    share of that entry in the pair, (n²,).
    """
    pairs = np.argwhere(np.tri(paths) if outputs == 1 else np.ones((paths, paths)))
    rows, columns = pairs.T
    indices = np.empty((paths, paths), dtype=np.int64)
    indices[columns, rows] = np.arange(len(pairs))
    indices[rows, columns] = np.arange(len(pairs))
    share = np.where(np.eye(paths) + (outputs > 1), 1.0, 0.5)
    return pairs, indices.reshape(-1), share.reshape(-1)


def kernel_space(
    kernels: Array, labels: Array, factor: Array, temperature: Array, *, lower: bool = False
) -> tuple[Array, Array]:
    """Energy and M − R, in the same time for triangular and other factors."""
    xp = array_namespace(kernels=kernels)
    outputs = labels.shape[1]
    paths = factor.shape[0] // outputs
    pairs, _, _ = pairs_of_paths(paths, outputs)
    # K is linear in U and the kernels do not depend on it: two products with the whole array of
    # kernels, bound by the memory's speed, replace the mixing of features and the solve for F.
    # ∂energy/∂K = A⁻¹ − A⁻¹YYᵀA⁻¹ with A = K + T1, so that M − R are its products with the kernels
    u = by_output(matmul(factor, xp.matrix_transpose(factor)), outputs, xp)
    u = xp.take(u, from_host(pairs @ (paths, 1), kernels, xp.int64), axis=1)
    weigh = weights_of_one_output if outputs == 1 else _weights_of_outputs
    energy, weights = weigh(matmul(u, kernels), labels, temperature, xp)
    return energy, sums_of_pairs(kernels, weights, outputs)


def sums_of_pairs(kernels: Array, weights: Array, outputs: int) -> Array:
    """Sums of the kernels' entries by weights (entries, C²), as a matrix over paths (n·C, n·C)."""
    xp, pairs = array_namespace(kernels=kernels), kernels.shape[0]
    paths = math.isqrt(pairs if outputs > 1 else 2 * pairs)
    _, indices, share = pairs_of_paths(paths, outputs)
    indices, share = from_host(indices, kernels, xp.int64), from_host(share[:, None], kernels)
    sums = share * xp.take(matmul(kernels, weights), indices, axis=0)
    sums = xp.permute_dims(xp.reshape(sums, (paths, paths, outputs, outputs)), (0, 2, 1, 3))
    return xp.reshape(sums, (paths * outputs,) * 2)


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


def by_output(matrix: Array, outputs: int, xp: Any) -> Array:
    """Matrix over (index, output) as one row for each pair of outputs: (m·C, m·C) → (C², m²)."""
    size = matrix.shape[0] // outputs
    blocks = xp.permute_dims(xp.reshape(matrix, (size, outputs) * 2), (1, 3, 0, 2))
    return xp.reshape(blocks, (outputs**2, size**2))
