"""Products with matrices of the rows (example, output) that have a block for each example."""

from __future__ import annotations

from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import Array, array_namespace, from_host, solve_triangular
from pathkernel_core.arrays.products import matmul


def transposed_blocks(root: Array, matrix: Array) -> Array:
    """Rᵀ times a matrix (P·C, …), of the blocks R (P, C, m): (P·m, …)."""
    return _times(array_namespace(root=root).matrix_transpose(root), matrix)


def times_blocks(root: Array, matrix: Array) -> Array:
    """R times a matrix (P·m, …), of the blocks R (P, C, m): (P·C, …)."""
    return _times(root, matrix)


def _times(blocks: Array, matrix: Array) -> Array:
    xp, (examples, rows, columns) = array_namespace(blocks=blocks), blocks.shape
    if rows == columns == 1:
        return blocks[:, 0, :] * matrix
    by_example = xp.reshape(matrix, (examples, columns, -1))
    return xp.reshape(matmul(blocks, by_example), (examples * rows, -1))


def block_diagonal(matrix: Array, outputs: int) -> Array:
    """Blocks (P, C, C) on the diagonal of a matrix (P·C, P·C)."""
    xp, examples = array_namespace(matrix=matrix), matrix.shape[0] // outputs
    numbers = np.arange(examples * outputs).reshape(examples, outputs)
    entries = numbers[:, :, None] * matrix.shape[0] + numbers[:, None, :]
    indices = from_host(entries.reshape(-1), matrix, xp.int64)
    taken = xp.take(xp.reshape(matrix, (-1,)), indices, axis=0)
    return xp.reshape(taken, (examples, outputs, outputs))


def gram_blocks(matrix: Array, outputs: int) -> Array:
    """Blocks (P, C, C) on the diagonal of MᵀM, of a matrix M (rows, P·C)."""
    xp = array_namespace(matrix=matrix)
    if outputs == 1:
        return xp.sum(matrix**2, axis=0)[:, None, None]
    by_example = xp.reshape(xp.matrix_transpose(matrix), (-1, outputs, matrix.shape[0]))
    return matmul(by_example, xp.matrix_transpose(by_example))


def solve_transposed(lower: Array, right: Array, xp: Any) -> Array:
    """Solve ``lowerᵀ @ x = right`` for a lower triangular matrix."""
    # reversed in both axes the transpose is lower triangular, too
    reversed_lower = xp.flip(xp.matrix_transpose(lower))
    return xp.flip(solve_triangular(reversed_lower, xp.flip(right, axis=0), xp), axis=0)
