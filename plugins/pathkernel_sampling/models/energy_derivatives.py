"""Derivatives of the energy with respect to the order parameter, and of the predictor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import batches, to_host
from pathkernel_core.energy.problem import Problem
from pathkernel_core.energy.rows import per_output

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
        network, problem = solution.network, solution.problem
        problem.require_squared(
            "an expansion of the energy around U", "compare with samples instead"
        )
        scales = math.sqrt(network.kernel_variance) * network.path_scales
        source = _GivenKernels if problem.is_of_kernels else _Features
        self._training: _GivenKernels | _Features = source(problem, scales)
        self._order_parameter = u = to_host(solution.order_parameter).astype(float)
        noisy = self._training.kernel(u)
        count = len(noisy)
        noisy[np.diag_indices(count)] += solution.temperature
        lower = np.linalg.cholesky((noisy + noisy.T) / 2)
        self._training.whiten(lower)
        self._labels = solve_triangular(lower, self._training.labels, lower=True)
        self._pairs = list(zip(*np.tril_indices(len(u))))
        self._kernels = np.empty((len(self._pairs), count, count))  # A
        for kernel, pair in zip(self._kernels, self._pairs):
            kernel[:] = self._training.derivative(*pair)
        self._kernel_labels = self._kernels @ self._labels  # A_a w, (p, R)

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
        self,
        xi: np.ndarray,
        shift: np.ndarray,
        covariance: np.ndarray,
        own: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Next order of the predictor's mean and variance on new examples, to be added.

        Parameters
        ----------
        xi : array, shape (P_new, n, N_0)
            Attentioned inputs of the new examples; or kernels (n, n, P_new, P) of new and training
            examples.
        shift, covariance : arrays, shapes (n·C, n·C) and (p, p)
            Shift of the mean of U, and covariance of its lower triangle.
        own : array, shape (n, n, P_new), optional
            Kernels of each new example with itself.

        Returns
        -------
        mean, variance : arrays, shape (P_new·C,)
        """
        step = max(1, _BLOCK_ELEMENTS // (2 * self._kernel_labels.size))
        moments = [
            self._of_rows(new, shift, covariance) for new in self._training.new(xi, own, step)
        ]
        mean, variance = (np.concatenate(parts) for parts in zip(*moments))
        return mean, variance

    def _of_rows(
        self, new: _NewFeatures | _NewKernels, shift: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Next order of mean and variance of rows (example, output) of new examples.

        With κ = L⁻¹ k(x) and ρ_a = L⁻¹ ∂k(x)/∂U_a − A_a κ: f_a = ρ_a·w, and under a sum with a
        symmetric matrix f_ab = −2 ρ_a·A_b w, v_ab = −2 ρ_a·ρ_b.
        """
        prior = new.prior(shift)
        kernel, kernel_shift = (new.kernel(matrix) for matrix in (self._order_parameter, shift))
        slopes = np.empty((len(self._pairs), *kernel.shape))  # ρ
        for slope, derivative, pair in zip(slopes, self._kernels, self._pairs):
            slope[:] = new.derivative(*pair) - derivative @ kernel
        of_mean = self._labels @ slopes  # (p, rows)
        along = shift[np.tril_indices(len(shift))]
        mean = along @ of_mean - np.einsum("art,ar->t", slopes, covariance @ self._kernel_labels)
        slope_shift = np.tensordot(along, slopes, 1)
        variance = prior - ((kernel_shift + slope_shift) * kernel).sum(axis=0)
        variance -= np.einsum("art,art->t", slopes, np.tensordot(covariance, slopes, 1))
        variance += np.einsum("at,at->t", of_mean, covariance @ of_mean)
        return mean, variance


class _Features:
    """Training examples by features (R, n·C, N_0) with the prior's scales (n·C,) of their rows."""

    def __init__(self, problem: Problem, scales: np.ndarray):
        self._problem, self._scales = problem, scales[:, None]
        features, self.labels = _examples(problem)
        self._features = self._scales * features

    def kernel(self, u: np.ndarray) -> np.ndarray:
        """Kernel K (R, R) of an order parameter."""
        flat = self._features.reshape(len(self._features), -1)
        return np.einsum("ab,pbi->pai", u, self._features).reshape(flat.shape) @ flat.T

    def whiten(self, lower: np.ndarray) -> None:
        """Multiply rows by L⁻¹, here and of all kernels with new examples."""
        flat = self._features.reshape(len(self._features), -1)
        self._features = solve_triangular(lower, flat, lower=True).reshape(self._features.shape)

    def derivative(self, row: int, column: int) -> np.ndarray:
        """Derivative of the whitened K by an entry of U and its transpose, (R, R)."""
        return _pair_kernel(self._features, self._features, row, column)

    def new(self, xi: np.ndarray, own: None, step: int) -> Iterator[_NewFeatures]:
        """Batches of rows of new examples xi (P_new, n, N_0)."""
        del own
        problem = self._problem
        scale = math.sqrt(problem.n_paths * problem.input_width)
        rows = self._scales * per_output(xi / scale, problem.outputs)
        # the training examples were rotated into this basis (N_0, rank), if there is one
        basis = None if problem.basis is None else to_host(problem.basis)
        for batch in batches(len(rows), step):
            yield _NewFeatures(self._features, rows[batch], basis)


class _NewFeatures:
    """Rows of new examples beside whitened features of training examples."""

    def __init__(self, training: np.ndarray, new: np.ndarray, basis: np.ndarray | None):
        self._training, self._whole = training, new
        self._new = new if basis is None else new @ basis

    def prior(self, u: np.ndarray) -> np.ndarray:
        """Kernel of each row with itself, (rows,)."""
        return np.einsum("tai,ab,tbi->t", self._whole, u, self._whole, optimize=True)

    def kernel(self, u: np.ndarray) -> np.ndarray:
        """L⁻¹ k(x) (R, rows) of an order parameter."""
        flat = self._training.reshape(len(self._training), -1)
        return flat @ np.einsum("ab,tbi->tai", u, self._new).reshape(len(self._new), -1).T

    def derivative(self, row: int, column: int) -> np.ndarray:
        """Derivative of L⁻¹ k(x) by an entry of U and its transpose, (R, rows)."""
        return _pair_kernel(self._training, self._new, row, column)


class _GivenKernels:
    """Training examples by kernels of pairs of paths, (n·C, n·C) of blocks over (x, x')."""

    def __init__(self, problem: Problem, scales: np.ndarray):
        self._outputs, self._scales = problem.outputs, scales
        self._kernels = to_host(problem.form.full_kernels).astype(float)  # (n, n, P, P), over n
        self.labels = to_host(problem.form.labels).astype(float).reshape(-1)
        self._root = np.eye(len(self.labels))

    def kernel(self, u: np.ndarray) -> np.ndarray:
        """Kernel K (R, R) of an order parameter."""
        return _of_order_parameter(self._kernels, self._scales, u, self._outputs)

    def whiten(self, lower: np.ndarray) -> None:
        """Multiply rows by L⁻¹, here and of all kernels with new examples."""
        self._root = lower

    def derivative(self, row: int, column: int) -> np.ndarray:
        """Derivative of the whitened K by an entry of U and its transpose, (R, R)."""
        derivative = _entry(self._kernels, self._scales, row, column, self._outputs)
        half = solve_triangular(self._root, derivative, lower=True)
        return solve_triangular(self._root, half.T, lower=True).T

    def new(self, xi: np.ndarray, own: np.ndarray, step: int) -> Iterator[_NewKernels]:
        """Batches of new examples by kernels (n, n, P_new, P) and (n, n, P_new)."""
        paths = len(xi)
        for batch in batches(xi.shape[2], max(1, step // self._outputs)):
            cross, same = xi[:, :, batch] / paths, own[:, :, batch] / paths
            yield _NewKernels(self._root, cross, same, self._scales, self._outputs)


class _NewKernels:
    """Kernels of new examples with training examples and with themselves."""

    def __init__(
        self,
        root: np.ndarray,
        cross: np.ndarray,
        own: np.ndarray,
        scales: np.ndarray,
        outputs: int,
    ):
        self._root, self._cross, self._own = root, cross, own
        self._scales, self._outputs = scales, outputs

    def prior(self, u: np.ndarray) -> np.ndarray:
        """Kernel of each row with itself, (rows,)."""
        u = (self._scales[:, None] * u * self._scales).reshape(2 * (len(self._own), self._outputs))
        return np.einsum("pcqc,pqt->tc", u, self._own).reshape(-1)

    def kernel(self, u: np.ndarray) -> np.ndarray:
        """L⁻¹ k(x) (R, rows) of an order parameter."""
        of_rows = _of_order_parameter(self._cross, self._scales, u, self._outputs)
        return solve_triangular(self._root, of_rows.T, lower=True)

    def derivative(self, row: int, column: int) -> np.ndarray:
        """Derivative of L⁻¹ k(x) by an entry of U and its transpose, (R, rows)."""
        of_rows = _entry(self._cross, self._scales, row, column, self._outputs)
        return solve_triangular(self._root, of_rows.T, lower=True)


def _of_order_parameter(
    kernels: np.ndarray, scales: np.ndarray, u: np.ndarray, outputs: int
) -> np.ndarray:
    """Kernel of rows (example, output) from kernels (n, n, P, P') of pairs of paths."""
    u = (scales[:, None] * u * scales).reshape(2 * (len(kernels), outputs))
    rows = np.einsum("pcqd,pqxy->xcyd", u, kernels, optimize=True)
    return rows.reshape(rows.shape[0] * outputs, -1)


def _entry(
    kernels: np.ndarray, scales: np.ndarray, row: int, column: int, outputs: int
) -> np.ndarray:
    """Derivative of the kernel of rows with respect to U at (row, column) and (column, row)."""
    derivative = np.zeros((kernels.shape[2] * outputs, kernels.shape[3] * outputs))
    for one, other in {(row, column), (column, row)}:
        block = kernels[one // outputs, other // outputs]
        derivative[one % outputs :: outputs, other % outputs :: outputs] += block
    return scales[row] * scales[column] * derivative


def _pair_kernel(left: np.ndarray, right: np.ndarray, row: int, column: int) -> np.ndarray:
    """Derivative of the kernel with respect to U's entry at (row, column) and (column, row)."""
    product = left[:, row] @ right[:, column].T
    return product if row == column else product + left[:, column] @ right[:, row].T


def _examples(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Fewest rows of features (R, n·C, N_0) and labels (R,) with the energy up to a constant."""
    form, outputs = problem.form, problem.outputs
    if form.holds_examples:
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
