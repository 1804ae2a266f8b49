"""The BLAS and LAPACK calls that no evaluation of the energy and its gradient can do without.

Direct calls on preallocated buffers in the order that BLAS reads, overwritten where BLAS allows;
nothing is checked, nothing is returned. The distance of an evaluation from this floor is overhead.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack


class ExampleSpaceFloor:
    """One mixing, symmetric product, Cholesky factor, triangular solve and sum of blocks."""

    def __init__(self, xi: np.ndarray, factor: np.ndarray, temperature: float):
        examples, paths, inputs = xi.shape
        by_input = xi.transpose(0, 2, 1) / np.sqrt(paths * inputs)
        self._rows, self._temperature, self._factor = examples, temperature, factor
        self._features = np.ascontiguousarray(by_input).reshape(examples * inputs, paths)
        self._mixed = np.empty_like(self._features)
        self._solved = np.empty_like(self._features)
        self._kernel = np.zeros((examples, examples), order="F")
        self.blocks = np.zeros((paths, paths), order="F")

    def __call__(self) -> None:
        rows = self._rows
        # transposes of C-ordered arrays are what BLAS calls Fortran order: no copies
        blas.dgemm(1.0, self._factor.T, self._features.T, c=self._mixed.T, overwrite_c=1)
        mixed = self._mixed.reshape(rows, -1).T
        blas.dsyrk(1.0, mixed, trans=1, lower=1, c=self._kernel, overwrite_c=1)
        self._kernel.T.reshape(-1)[:: rows + 1] += self._temperature
        lapack.dpotrf(self._kernel, lower=1, clean=0, overwrite_a=1)
        self._solved[:] = self._features  # the solve overwrites its right-hand side
        solved = self._solved.reshape(rows, -1).T
        blas.dtrsm(1.0, self._kernel, solved, side=1, lower=1, trans_a=1, overwrite_b=1)
        blas.dsyrk(1.0, self._solved.T, lower=1, c=self.blocks, overwrite_c=1)


class FeatureSpaceFloor:
    """Two mixings of the Gram matrix, Cholesky factor, its inverse and a sum of blocks."""

    def __init__(self, gram: np.ndarray, factor: np.ndarray, temperature: float):
        paths, inputs = gram.shape[:2]
        self._size, self._paths = paths * inputs, paths
        self._temperature, self._factor = temperature, factor
        by_path = np.ascontiguousarray(gram.transpose(1, 0, 3, 2))  # path index fastest
        self._gram = by_path.reshape(-1, paths)
        self._right = np.empty_like(self._gram)
        self._matrix = np.empty((self._size, self._size), order="F")
        self.blocks = np.zeros((paths, paths), order="F")

    def __call__(self) -> None:
        size, paths, matrix = self._size, self._paths, self._matrix
        blas.dgemm(1.0, self._factor.T, self._gram.T, c=self._right.T, overwrite_c=1)
        right = self._right.reshape(size // paths, paths, size)
        out = matrix.T.reshape(size // paths, paths, size)
        for left, block in zip(right, out):
            blas.dgemm(1.0, left.T, self._factor, c=block.T, overwrite_c=1)
        matrix.T.reshape(-1)[:: size + 1] += self._temperature
        # B = UᵀU, so that rows of U⁻¹ are what B⁻¹ = U⁻¹U⁻ᵀ sums over inputs
        lapack.dpotrf(matrix, lower=0, clean=1, overwrite_a=1)
        lapack.dtrtri(matrix, lower=0, overwrite_c=1)
        inverse = matrix.reshape(paths, -1, order="F")
        blas.dsyrk(1.0, inverse, lower=1, c=self.blocks, overwrite_c=1)
