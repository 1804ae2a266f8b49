"""Derivatives of the energy with respect to the order parameter, and of the predictor."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from pathkernel_core.backend import batches, to_host
from pathkernel_core.kernels import PathKernels
from pathkernel_core.solution import Solution
from pathkernel_core.spaces import per_output

_BLOCK_ELEMENTS = 2**22  # of products of kernels in memory at once, 32 MiB


class EnergyDerivatives:
    """Derivatives with respect to the p = nC(nC + 1)/2 lower-triangular entries of U.

    In the notation of the code L Lᵀ = K + T1, w = L⁻¹ Y and A_a = L⁻¹ ∂K/∂U_a L⁻ᵀ, of R rows.

    Parameters
    ----------
    solution : Solution
        At whose order parameter they are taken.
    """

    def __init__(self, solution: Solution):
        self._solution, problem = solution, solution.problem
        features, labels = _examples(problem)
        features = self._scaled(features)
        count, size, _ = features.shape
        self._order_parameter = u = to_host(solution.order_parameter).astype(float)
        flat = features.reshape(count, -1)
        noisy = np.einsum("ab,pbi->pai", u, features).reshape(count, -1) @ flat.T
        noisy[np.diag_indices(count)] += solution.temperature
        lower = np.linalg.cholesky((noisy + noisy.T) / 2)
        self._features = solve_triangular(lower, flat, lower=True).reshape(features.shape)  # L⁻¹ Φ
        self._labels = solve_triangular(lower, labels, lower=True)
        self._pairs = list(zip(*np.tril_indices(size)))
        self._kernels = np.empty((len(self._pairs), count, count))  # A
        for kernel, pair in zip(self._kernels, self._pairs):
            kernel[:] = _pair_kernel(self._features, self._features, *pair)
        self._kernel_labels = self._kernels @ self._labels  # A_a w, (p, R)

    def _scaled(self, features: np.ndarray) -> np.ndarray:
        """Features times σ_0 and the coefficients of their paths."""
        network = self._solution.network
        return network.path_scales[:, None] * (math.sqrt(network.variances[0]) * features)

    @cached_property
    def first(self) -> np.ndarray:
        """First derivatives, (p,)."""
        return np.trace(self._kernels, axis1=1, axis2=2) - self._kernel_labels @ self._labels

    @cached_property
    def second(self) -> np.ndarray:
        """Second derivatives, (p, p)."""
        stack = self._kernels.reshape(len(self._pairs), -1)
        return 2 * self._kernel_labels @ self._kernel_labels.T - stack @ stack.T

    def higher(self, basis: np.ndarray) -> tuple[np.ndarray, float]:
        """Third derivatives (p, p, p) along directions, and Σ_rs of the fourth in r, r, s, s.

        ``basis`` (p, p) has one direction per column.
        """
        count, size = len(self._labels), len(basis)
        stack = basis.T @ self._kernels.reshape(size, -1)
        kernels = stack.reshape(self._kernels.shape)
        images = kernels @ self._labels
        twice = np.einsum("sij,rj->rsi", kernels, images, optimize=True)  # A_s A_r w
        sandwich = np.einsum("rsi,ti->rst", twice, images, optimize=True)  # wᵀ A_r A_s A_t w

        traces, crossed = np.empty((size, size, size)), 0.0
        step = max(1, _BLOCK_ELEMENTS // count**2)
        for r in range(size):
            for start in range(0, r + 1, step):
                block = slice(start, min(start + step, r + 1))
                products = kernels[r] @ kernels[block]  # A_r A_s
                traces[r, block] = products.reshape(-1, count**2) @ stack.T
                traces[block, r] = traces[r, block]
                weight = np.where(np.arange(block.start, block.stop) == r, 1.0, 2.0)
                crossed += np.einsum("s,sij,sji->", weight, products, products)
        third = 2 * (traces - sandwich - sandwich.transpose(1, 0, 2) - sandwich.transpose(0, 2, 1))
        square = np.einsum("rij,rjk->ik", kernels, kernels, optimize=True)  # Σ A_r²
        mapped = square @ self._labels
        quadratic = mapped @ mapped + np.einsum("ri,ij,rj->", images, square, images, optimize=True)
        quadratic += np.einsum("rsi,sri->", twice, twice)
        return third, 8 * quadratic - 4 * (square**2).sum() - 2 * crossed

    def of_predictor(
        self, xi: np.ndarray, shift: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Next order of the predictor's mean and variance on new examples, to be added.

        Parameters
        ----------
        xi : array, shape (P_new, n, N_0)
            Attentioned inputs of the new examples.
        shift, covariance : arrays, shapes (n·C, n·C) and (p, p)
            Shift of the mean of U, and covariance of its lower triangle.

        Returns
        -------
        mean, variance : arrays, shape (P_new·C,)
        """
        problem, outputs = self._solution.problem, self._solution.network.outputs
        scale = math.sqrt(problem.n_paths * problem.input_width)
        new = self._scaled(per_output(xi / scale, outputs))
        basis = None if problem.basis is None else to_host(problem.basis)
        step = max(1, _BLOCK_ELEMENTS // (2 * self._kernel_labels.size))
        of_batches = [
            self._of_rows(new[rows], basis, shift, covariance) for rows in batches(len(new), step)
        ]
        mean, variance = (np.concatenate(moments) for moments in zip(*of_batches))
        return mean, variance

    def _of_rows(
        self, new: np.ndarray, basis: np.ndarray | None, shift: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Next order of mean and variance of rows of scaled features (rows, n·C, N_0).

        With κ = L⁻¹ k(x) and ρ_a = L⁻¹ ∂k(x)/∂U_a − A_a κ: f_a = ρ_a·w, and under a sum with a
        symmetric matrix f_ab = −2 ρ_a·A_b w, v_ab = −2 ρ_a·ρ_b. The training examples were rotated
        into ``basis`` (N_0, rank), if there is one.
        """
        prior = np.einsum("tai,ab,tbi->t", new, shift, new, optimize=True)
        new = new if basis is None else new @ basis
        flat = self._features.reshape(len(self._labels), -1)
        kernel, kernel_shift = (  # κ and its derivative along the shift, (R, rows)
            flat @ np.einsum("ab,tbi->tai", matrix, new).reshape(len(new), -1).T
            for matrix in (self._order_parameter, shift)
        )
        slopes = np.empty((len(self._pairs), *kernel.shape))  # ρ
        for slope, derivative, pair in zip(slopes, self._kernels, self._pairs):
            slope[:] = _pair_kernel(self._features, new, *pair) - derivative @ kernel
        of_mean = self._labels @ slopes  # (p, rows)
        along = shift[np.tril_indices(len(shift))]
        mean = along @ of_mean - np.einsum("art,ar->t", slopes, covariance @ self._kernel_labels)
        slope_shift = np.tensordot(along, slopes, 1)
        variance = prior - ((kernel_shift + slope_shift) * kernel).sum(axis=0)
        variance -= np.einsum("art,art->t", slopes, np.tensordot(covariance, slopes, 1))
        variance += np.einsum("at,at->t", of_mean, covariance @ of_mean)
        return mean, variance


def _pair_kernel(left: np.ndarray, right: np.ndarray, row: int, column: int) -> np.ndarray:
    """Derivative of the kernel with respect to U's entry at (row, column) and (column, row)."""
    product = left[:, row] @ right[:, column].T
    return product if row == column else product + left[:, column] @ right[:, row].T


def _examples(problem: PathKernels) -> tuple[np.ndarray, np.ndarray]:
    """Fewest rows of features (R, n·C, N_0) and labels (R,) with the energy up to a constant."""
    form, outputs = problem.form, problem.outputs
    if problem.space != "features":
        features = to_host(form.features).astype(float)
        labels = to_host(form.labels).astype(float)
        shape = features.shape[1:]
        if len(features) > math.prod(shape):
            # a rotation of the examples changes neither K's spectrum nor its products with Y; rows
            # without features add a constant to the energy, and nothing to its derivatives
            rotation, features = np.linalg.qr(features.reshape(len(features), -1))
            labels = rotation.T @ labels
    else:
        gram = to_host(form.gram).astype(float)
        shape = gram.shape[:2]
        size = math.prod(shape)
        values, vectors = np.linalg.eigh(gram.reshape(size, size))
        is_positive = values > values[-1] * size * np.finfo(float).eps
        roots, vectors = np.sqrt(values[is_positive]), vectors[:, is_positive]
        features = roots[:, None] * vectors.T
        projections = to_host(form.projections).astype(float).reshape(size, outputs)
        labels = vectors.T @ projections / roots[:, None]
    return per_output(features.reshape(-1, *shape), outputs), labels.reshape(-1)
