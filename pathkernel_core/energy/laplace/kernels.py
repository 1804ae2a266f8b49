"""Kernel of features with several outputs, and its adjoint, without expanding the outputs."""

from __future__ import annotations

from pathkernel_core.arrays.backend import Array, array_namespace
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.rows import by_output


def kernel_of_features(features: Array, factor: Array, others: Array | None = None) -> Array:
    """Kernel Φ (U ⊗ 1) Φ'ᵀ of the rows (example, output), of features (P, n, N_0) as they are.

    With those of other examples, or the same. Outputs are not expanded: pair by pair of them, a
    product (P, n·N_0) × (n·N_0, P') with the block of U.
    """
    xp, (examples, paths, _) = array_namespace(features=features), features.shape
    outputs = factor.shape[0] // paths
    same = others is None
    right = features if others is None else others
    flat = xp.matrix_transpose(xp.reshape(right, (right.shape[0], -1)))
    u = by_output(matmul(factor, xp.matrix_transpose(factor)), outputs, xp)
    blocks: dict[tuple[int, int], Array] = {}
    for row in range(outputs):
        for column in range(outputs):
            if same and column < row:
                blocks[row, column] = xp.matrix_transpose(blocks[column, row])
                continue
            matrix = xp.reshape(u[row * outputs + column, :], (paths, paths))
            mixed = xp.reshape(matmul(xp.matrix_transpose(matrix), features), (examples, -1))
            blocks[row, column] = matmul(mixed, flat)
    if outputs == 1:
        kernel = blocks[0, 0]
        return (kernel + xp.matrix_transpose(kernel)) / 2 if same else kernel
    by_pairs = xp.stack([blocks[pair] for pair in sorted(blocks)])
    by_pairs = xp.reshape(by_pairs, (outputs, outputs, examples, right.shape[0]))
    kernel = xp.permute_dims(by_pairs, (2, 0, 3, 1))
    kernel = xp.reshape(kernel, (examples * outputs, right.shape[0] * outputs))
    return (kernel + xp.matrix_transpose(kernel)) / 2 if same else kernel


def sums_of_features(features: Array, weights: Array) -> Array:
    """Σ_i Φ_iᵀ G Φ_i by pairs of outputs, (n·C, n·C), of symmetric weights G (P·C, P·C)."""
    xp, (examples, paths, _) = array_namespace(features=features), features.shape
    outputs = weights.shape[0] // examples
    flat = xp.reshape(features, (examples, -1))
    by_path = _by_path(features)
    by_pairs = by_output(weights, outputs, xp)
    blocks: dict[tuple[int, int], Array] = {}
    for row in range(outputs):
        for column in range(row, outputs):
            matrix = xp.reshape(by_pairs[row * outputs + column, :], (examples, examples))
            weighted = _by_path(xp.reshape(matmul(matrix, flat), features.shape))
            block = matmul(by_path, xp.matrix_transpose(weighted))
            blocks[row, column], blocks[column, row] = block, xp.matrix_transpose(block)
    stacked = xp.stack([blocks[pair] for pair in sorted(blocks)])
    stacked = xp.reshape(stacked, (outputs, outputs, paths, paths))
    gradient = xp.reshape(xp.permute_dims(stacked, (2, 0, 3, 1)), (paths * outputs, -1))
    return (gradient + xp.matrix_transpose(gradient)) / 2


def _by_path(features: Array) -> Array:
    xp = array_namespace(features=features)
    return xp.reshape(xp.permute_dims(features, (1, 0, 2)), (features.shape[1], -1))
