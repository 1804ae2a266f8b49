"""Indices of packed kernels: what each row of them is the kernel of, pairs of paths or branches.

Both map an order parameter to the weights of the rows in K, and sums over rows back to M − R, which
are all that the energy needs to know of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import Array, array_namespace, from_host
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.rows import by_output


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


@dataclass(frozen=True)
class PairIndex:
    """Rows by pairs of paths: for one output both orders of a pair added, for several all pairs.

    Attributes
    ----------
    paths, outputs : int
    """

    paths: int
    outputs: int
    has_pairs = True

    def of_factor(self, factor: Array, xp: Any) -> Array:
        """Weights of the rows in K by pairs of outputs, (C², rows), of a factor (n·C, r)."""
        return self.of_matrix(matmul(factor, xp.matrix_transpose(factor)), xp)

    def of_matrix(self, matrix: Array, xp: Any) -> Array:
        """Weights of the rows in K by pairs of outputs, (C², rows), of U (n·C, n·C)."""
        return self.of_pairs(by_output(matrix, self.outputs, xp), xp)

    def of_scales(self, scales: np.ndarray, like: Array) -> Array:
        """Weights of the rows (1, rows) in the kernel Σ_π c² C_ππ, for coefficients c (n,)."""
        matrix = from_host(np.diag(scales**2).reshape(1, -1), like)
        return self.of_pairs(matrix, array_namespace(matrix=matrix))

    def of_pairs(self, matrices: Array, xp: Any) -> Array:
        """Entries of matrices over paths (…, n²) that belong to the rows, (…, rows)."""
        pairs, _, _ = pairs_of_paths(self.paths, self.outputs)
        return xp.take(matrices, from_host(pairs @ (self.paths, 1), matrices, xp.int64), axis=1)

    def gradient(self, sums: Array, xp: Any) -> Array:
        """Sums over the entries of each row (rows, C²) as a matrix over paths, (n·C, n·C)."""
        paths, outputs = self.paths, self.outputs
        _, indices, share = pairs_of_paths(paths, outputs)
        indices, share = from_host(indices, sums, xp.int64), from_host(share[:, None], sums)
        sums = share * xp.take(sums, indices, axis=0)
        sums = xp.permute_dims(xp.reshape(sums, (paths, paths, outputs, outputs)), (0, 2, 1, 3))
        return xp.reshape(sums, (paths * outputs,) * 2)

    def summed(self, sums: Array) -> Array:
        """Sums over the same example of each row (rows,) as a matrix over paths, (n, n)."""
        xp = array_namespace(sums=sums)
        _, indices, share = pairs_of_paths(self.paths, self.outputs)
        taken = xp.take(sums, from_host(indices, sums, xp.int64), axis=0)
        matrix = xp.reshape(from_host(share, sums) * taken, (self.paths, self.paths))
        return (matrix + xp.matrix_transpose(matrix)) / 2  # full kernels differ by rounding

    def in_both_orders(self, kernels: Array) -> Array:
        """Kernels of all pairs (n², …) from the rows, halves of a row for both orders of a pair."""
        xp = array_namespace(kernels=kernels)
        _, indices, share = pairs_of_paths(self.paths, self.outputs)
        taken = xp.take(kernels, from_host(indices, kernels, xp.int64), axis=0)
        return from_host(share[:, None], kernels) * taken

    def kept(self, paths: np.ndarray) -> tuple[np.ndarray, PairIndex]:
        """Rows of a sub-network of these paths, and their index."""
        _, indices, _ = pairs_of_paths(self.paths, self.outputs)
        pairs, _, _ = pairs_of_paths(len(paths), self.outputs)
        rows, columns = paths[pairs].T
        # of one output a pair has one entry, whatever the order of its paths
        return indices[rows * self.paths + columns], PairIndex(len(paths), self.outputs)

    def branches(self) -> tuple[np.ndarray, BranchIndex]:
        """Rows of every path with itself, for one output, and their index."""
        pairs, _, _ = pairs_of_paths(self.paths, 1)
        return np.flatnonzero(pairs[:, 0] == pairs[:, 1]), BranchIndex(self.paths)

    def cross(self, kernels: Array, factor: Array) -> Array:
        """K of the rows of new and training examples (P_new·C, P·C), of (n, n, P_new, P)."""
        xp, (paths, _, new, examples) = array_namespace(kernels=kernels), kernels.shape
        outputs = self.outputs
        u = by_output(matmul(factor, xp.matrix_transpose(factor)), outputs, xp) / paths
        blocks = matmul(u, xp.reshape(kernels, (paths**2, -1)))
        blocks = xp.reshape(blocks, (outputs, outputs, new, examples))
        return xp.reshape(xp.permute_dims(blocks, (2, 0, 3, 1)), (new * outputs, -1))

    def own(self, kernels: Array, factor: Array) -> Array:
        """K of every new example with itself by outputs (P_new, C), of (n, n, P_new)."""
        xp, outputs = array_namespace(kernels=kernels), self.outputs
        u = by_output(matmul(factor, xp.matrix_transpose(factor)), outputs, xp)
        same = from_host(np.arange(outputs) * (outputs + 1), kernels, xp.int64)
        of_output = xp.take(u, same, axis=0) / self.paths  # (C, n²)
        return xp.matrix_transpose(matmul(of_output, xp.reshape(kernels, (self.paths**2, -1))))


@dataclass(frozen=True)
class BranchIndex:
    """Rows by independent branches, whose factors are the square roots (n,) of the diagonal of U.

    Attributes
    ----------
    paths : int
        Number n of branches, each a path; there is one output.
    """

    paths: int
    outputs = 1
    has_pairs = False

    def of_factor(self, factor: Array, xp: Any) -> Array:
        """Weights of the rows in K, (1, n)."""
        return factor[None, :] ** 2

    def of_scales(self, scales: np.ndarray, like: Array) -> Array:
        """Weights of the rows (1, n) in the kernel Σ_l c² C_ll, for coefficients c (n,)."""
        return from_host(scales, like)[None, :] ** 2

    def gradient(self, sums: Array, xp: Any) -> Array:
        """Sums over the entries of each row (n, 1) as the diagonal (n,)."""
        return sums[:, 0]

    def summed(self, sums: Array) -> Array:
        """Sums over the same example of each row, (n,)."""
        return sums

    def kept(self, paths: np.ndarray) -> tuple[np.ndarray, BranchIndex]:
        """Rows of a sub-network of these branches, and their index."""
        return paths, BranchIndex(len(paths))

    def cross(self, kernels: Array, factor: Array) -> Array:
        """K of new and training examples (P_new, P), of (n, P_new, P)."""
        xp = array_namespace(kernels=kernels)
        mixed = matmul(self.of_factor(factor, xp), xp.reshape(kernels, (self.paths, -1)))
        return xp.reshape(mixed, kernels.shape[1:]) / self.paths

    def own(self, kernels: Array, factor: Array) -> Array:
        """K of every new example with itself (P_new, 1), of (n, P_new)."""
        return self.cross(kernels, factor)[:, None]


KernelIndex = PairIndex | BranchIndex


def index_of(factor: Array, outputs: int) -> KernelIndex:
    """Index that a factor belongs to: (n·C, r) of pairs of paths, (n,) of branches."""
    return _index(factor.ndim, factor.shape[0], outputs)


@functools.lru_cache(maxsize=64)  # to make one would take a percent of a small evaluation
def _index(dimensions: int, rows: int, outputs: int) -> KernelIndex:
    return BranchIndex(rows) if dimensions == 1 else PairIndex(rows // outputs, outputs)
