"""Energy of kernels that are given for every pair of paths, or branch, in place of inputs.

The theory needs no inputs: with any positive semidefinite kernel C_ππ'(x, x') between path π of an
example and path π' of another, the kernel of the network is

    K(x, x') = (σ²_0/n) Σ_ππ' U_ππ' C_ππ'(x, x'),

and all that follows from it, too. Of independent branches U is diagonal, and only the kernels of
every path with itself are needed. Two linear maps do the work: an order parameter *mixes* the
kernels into one of examples, and weights of pairs of examples *sum* them into M − R. Each is a
product with the packed kernels, whose rows an index names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    compile_function,
    from_host,
    invert_triangular,
    is_finite,
    is_true,
    log_determinant,
    packed_order,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.form import EnergyCurvature, InputGradient, Predictor
from pathkernel_core.energy.kernel_batches import SharedKernels
from pathkernel_core.energy.kernel_energy import kernel_energy, multiplicities
from pathkernel_core.energy.kernel_index import KernelIndex, PairIndex, index_of
from pathkernel_core.energy.label_spectrum import LabelSpectrum, kernel_spectrum
from pathkernel_core.energy.rows import by_output, not_positive_definite, symmetric_product
from pathkernel_core.system.errors import NotPositiveDefiniteError


@dataclass(frozen=True, eq=False)
class GivenKernels(SharedKernels):
    """Energy of given kernels, from a Cholesky factor of K + T1, P·C × P·C.

    Parameters
    ----------
    kernels : array, shape (n(n+1)/2, P(P+1)/2), (n², P²) or (n, P(P+1)/2)
        Kernels divided by n. Of pairs of paths: packed, and both orders of a pair added, for one
        output; in full for several. Of branches: packed.
    labels : array, shape (P, C)
    index : PairIndex or BranchIndex
        Meaning of the rows of the kernels.
    """

    kernels: Array
    labels: Array
    index: KernelIndex
    name = "kernels"
    is_of_kernels = True

    @property
    def has_pairs(self) -> bool:  # type: ignore[override]
        """Whether there are kernels of different paths; if not, branches must be independent."""
        return self.index.has_pairs

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.kernels

    @property
    def n_paths(self) -> int:
        """Number n of paths."""
        return self.index.paths

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n).

        Of branches those of every branch with itself, (n,).
        """
        evaluate = compile_function(
            _summed, array_namespace(kernels=self.kernels), static=("index",)
        )
        return evaluate(self.kernels, self.labels, index=self.index)

    @property
    def full_kernels(self) -> Array:
        """Kernels of all pairs of paths, divided by n, (n, n, P, P).

        Of one output with C_ππ'(x, x') and C_ππ'(x', x) replaced by their mean, which is all that
        the theory needs.
        """
        if not self.has_pairs:
            return super().full_kernels
        evaluate = compile_function(_full, array_namespace(kernels=self.kernels), static=("index",))
        return evaluate(self.kernels, self.labels, index=self.index)

    def evaluate(self, factor: Array, temperature: Array) -> tuple[Array, Array]:
        """Energy () and its gradient M − R, traceable, see :meth:`Form.evaluate`."""
        return kernel_energy(self.kernels, self.labels, factor, temperature)

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient M − R on the host, see :meth:`Form.energy_and_gradient`."""
        evaluate = compile_function(
            kernel_energy, array_namespace(kernels=self.kernels), static=("lower",)
        )
        scaled = from_host(factor if scales is None else scales * factor, self.kernels)
        energy, gradient = evaluate(
            self.kernels, self.labels, scaled, from_host(temperature, self.kernels), lower=True
        )
        energy = float(energy)
        if not math.isfinite(energy):
            raise self._not_positive_definite(scaled, temperature)
        gradient = to_host(gradient)
        return energy, gradient if scales is None else scales * gradient * scales.T

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""
        xp = array_namespace(kernels=self.kernels)
        root, coefficients = _factorised(self.kernels, self.labels, factor, temperature)
        return log_determinant(root, xp) + xp.sum(xp.reshape(self.labels, (-1,)) * coefficients)

    def posterior(self, factor: np.ndarray, temperature: float) -> GivenPosterior:
        """Gaussian posterior of the predictor at U_1 = factor factorᵀ."""
        factor = from_host(factor, self.kernels)
        evaluate = compile_function(_factorised, array_namespace(kernels=self.kernels))
        root, coefficients = evaluate(
            self.kernels, self.labels, factor, from_host(temperature, self.kernels)
        )
        if not is_true(is_finite(coefficients)):
            raise self._not_positive_definite(factor, temperature)
        return GivenPosterior(coefficients, root, self.index)

    def curvature(self, factor: np.ndarray, temperature: float) -> EnergyCurvature:
        """Second derivatives of the energy at U_1 = factor factorᵀ, see :meth:`Form.curvature`."""
        if not self.has_pairs:
            return super().curvature(factor, temperature)
        return _PairCurvature(self, factor, temperature)

    def input_gradient(
        self, posterior: Predictor, factor: np.ndarray, basis: Array | None
    ) -> InputGradient:
        """Refuse: given kernels have no inputs."""
        raise ValueError("solution is of given kernels, which have no inputs to differentiate by")

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² C_ππ, for coefficients c (n,) of paths."""
        evaluate = compile_function(mixed_kernel, array_namespace(kernels=self.kernels))
        weights = self.index.of_scales(scales, self.kernels)
        return kernel_spectrum(evaluate(self.kernels, weights, self.labels), self.labels)

    def keep_paths(self, paths: np.ndarray) -> GivenKernels:
        """Same form for a sub-network of these paths."""
        rows, index = self.index.kept(paths)
        ratio = self.n_paths / len(paths)  # kernels carry 1/n
        return replace(self, kernels=ratio * self._rows(rows), index=index)

    def branches(self) -> GivenKernels:
        """Form with only the kernels of every path with itself, for one output."""
        if not self.has_pairs:
            return self
        rows, index = cast("PairIndex", self.index).branches()
        return replace(self, kernels=self._rows(rows), index=index)

    def kernel(self, factor: Array) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C), at U_1 = factor factorᵀ."""
        evaluate = compile_function(_of_factor, array_namespace(kernels=self.kernels))
        return evaluate(self.kernels, factor, self.labels)

    def common_kernel(self, factor: Array) -> Array:
        """Kernel K (P, P) that independent outputs have in common, of a factor (n, r) of one."""
        evaluate = compile_function(
            _of_one_output, array_namespace(kernels=self.kernels), static=("index",)
        )
        return evaluate(self.kernels, factor, self.labels, index=self.index)

    def sums(self, weights: Array) -> Array:
        """Gradient with respect to U_1 of symmetric weights (P·C, P·C) of the entries of K."""
        evaluate = compile_function(_sums, array_namespace(kernels=self.kernels), static=("index",))
        return evaluate(self.kernels, weights, self.labels, index=self.index)

    def pays_together(self, points: int) -> bool:
        """Whether evaluations of so many order parameters are faster together."""
        return self.has_pairs and super().pays_together(points)

    def _rows(self, rows: np.ndarray) -> Array:
        xp = array_namespace(kernels=self.kernels)
        return xp.take(self.kernels, from_host(rows, self.kernels, xp.int64), axis=0)

    def _not_positive_definite(self, factor: Array, temperature: float) -> NotPositiveDefiniteError:
        kernel = _of_factor(self.kernels, factor, self.labels)
        return not_positive_definite(kernel, temperature)


@dataclass(frozen=True, eq=False)
class GivenPosterior:
    """Gaussian posterior of the predictor, for kernels of new and training examples.

    Attributes
    ----------
    coefficients : array, shape (P·C,)
        (K + T1)⁻¹ Y.
    root : array, shape (P·C, P·C)
        L of K + T1 = LLᵀ.
    index : PairIndex or BranchIndex
        Of what kernels are given.
    """

    coefficients: Array
    root: Array
    index: KernelIndex

    def mean(self, new: Array, factor: Array, basis: Array | None = None) -> Array:
        """Mean (P_new, C) (Eq. 29), from kernels of new and training examples.

        Of shape (n, n, P_new, P), or (n, P_new, P) of branches. There is no basis.
        """
        evaluate = compile_function(_mean, array_namespace(cross=new), static=("index",))
        return evaluate(new, factor, self.coefficients, index=self.index)

    def moments(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean and variance (Eq. 29, 30), (P_new, C) each.

        ``new`` as for :meth:`mean`; ``own`` (n, n, P_new), or (n, P_new) of branches, has the
        kernels of each new example with itself.
        """
        xp = array_namespace(cross=new, own=own)
        evaluate = compile_function(_moments, xp, static=("index",))
        arguments = new, own, factor, self.coefficients, self.root
        mean, variance, rounding = evaluate(*arguments, index=self.index)
        if not is_true(xp.all(variance >= -rounding)):
            example = int(xp.argmin(xp.min(variance + rounding, axis=1)))
            raise NotPositiveDefiniteError(
                "cross and own are not kernels of the same new examples with these training "
                f"examples: the predictor's variance on new example {example} is "
                f"{float(xp.min(variance[example, :])):.3g}, where rounding is at most "
                f"{float(xp.max(rounding[example, :])):.3g}; compute both from the same inputs"
            )
        # rounding may leave -1e-17 where the examples determine the output
        return mean, xp.clip(variance, min=0.0)


def mixed_kernel(kernels: Array, weights: Array, labels: Array) -> Array:
    """Σ w C over rows of packed kernels, of their weights (1, rows), as a matrix (P, P)."""
    return _unpacked(matmul(weights, kernels), labels)[0, ...]


def _unpacked(mixed: Array, labels: Array) -> Array:
    """Rows of packed or full matrices as matrices, (rows, P, P)."""
    xp, (examples, outputs) = array_namespace(mixed=mixed), labels.shape
    if outputs == 1:
        indices = from_host(packed_order(examples)[1], mixed, xp.int64)
        mixed = xp.take(mixed, indices, axis=1)
    return xp.reshape(mixed, (-1, examples, examples))


def _of_weights(kernels: Array, weights: Array, labels: Array) -> Array:
    """Kernel of the rows (example, output), (P·C, P·C), of weights by outputs (C², rows)."""
    xp, (examples, outputs) = array_namespace(kernels=kernels), labels.shape
    blocks = _unpacked(matmul(weights, kernels), labels)
    blocks = xp.reshape(blocks, (outputs, outputs, examples, examples))
    return xp.reshape(xp.permute_dims(blocks, (2, 0, 3, 1)), (examples * outputs, -1))


def _of_matrix(kernels: Array, matrix: Array, labels: Array, *, index: PairIndex) -> Array:
    weights = index.of_matrix(matrix, array_namespace(kernels=kernels))
    return _of_weights(kernels, weights, labels)


def _of_factor(kernels: Array, factor: Array, labels: Array) -> Array:
    index = index_of(factor, labels.shape[1])
    weights = index.of_factor(factor, array_namespace(kernels=kernels))
    return _of_weights(kernels, weights, labels)


def _of_one_output(kernels: Array, factor: Array, labels: Array, *, index: PairIndex) -> Array:
    xp = array_namespace(kernels=kernels)
    u = xp.reshape(matmul(factor, xp.matrix_transpose(factor)), (1, -1))
    return mixed_kernel(kernels, index.of_pairs(u, xp), labels)


def _factorised(
    kernels: Array, labels: Array, factor: Array, temperature: Array
) -> tuple[Array, Array]:
    """L of K + T1 = LLᵀ, and (K + T1)⁻¹ Y (P·C,)."""
    xp = array_namespace(kernels=kernels)
    kernel = _of_factor(kernels, factor, labels)
    root = cholesky(add_to_diagonal(kernel, temperature, xp), xp)
    inverse = invert_triangular(root, xp)
    half = matmul(inverse, xp.reshape(labels, (-1,)))
    return root, matmul(half, inverse)


def _summed(kernels: Array, labels: Array, *, index: KernelIndex) -> Array:
    xp, (examples, outputs) = array_namespace(kernels=kernels), labels.shape
    full = np.arange(examples) * (examples + 1)
    diagonal = packed_order(examples)[2] if outputs == 1 else full
    taken = xp.take(kernels, from_host(diagonal, kernels, xp.int64), axis=1)
    return index.summed(xp.sum(taken, axis=1))


def _full(kernels: Array, labels: Array, *, index: PairIndex) -> Array:
    xp, examples = array_namespace(kernels=kernels), labels.shape[0]
    full = _unpacked(index.in_both_orders(kernels), labels)
    return xp.reshape(full, (index.paths, index.paths, examples, examples))


def _mean(cross: Array, factor: Array, coefficients: Array, *, index: KernelIndex) -> Array:
    xp = array_namespace(cross=cross)
    return xp.reshape(matmul(index.cross(cross, factor), coefficients), (-1, index.outputs))


def _moments(
    cross: Array,
    own: Array,
    factor: Array,
    coefficients: Array,
    root: Array,
    *,
    index: KernelIndex,
) -> tuple[Array, Array, Array]:
    """Mean, variance before it is clipped, and size of the rounding in it, (P_new, C) each."""
    xp = array_namespace(cross=cross)
    kernel = index.cross(cross, factor)
    mean = xp.reshape(matmul(kernel, coefficients), (-1, index.outputs))
    prior = index.own(own, factor)
    half = solve_triangular(root, xp.matrix_transpose(kernel), xp)
    explained = xp.reshape(xp.sum(half**2, axis=0), mean.shape)
    # the root has the relative rounding of K + T1, which the smallest pivot enlarges
    eps = float(xp.finfo(root.dtype).eps)
    condition = xp.sum(root**2) / xp.min(xp.linalg.diagonal(root) ** 2)
    rounding = (math.sqrt(eps) + eps * condition) * (xp.abs(prior) + explained)
    return mean, prior - explained, rounding


class _PairCurvature:
    """From A⁻¹ and α = A⁻¹Y: the gradient sums kernels by the weights W = A⁻¹ − ααᵀ."""

    def __init__(self, form: GivenKernels, factor: np.ndarray, temperature: float):
        self._kernels, self._labels, self._index = form.kernels, form.labels, form.index
        posterior = form.posterior(factor, temperature)
        self._root, self._solved = posterior.root, posterior.coefficients[:, None]

    def along(self, direction: np.ndarray) -> np.ndarray:
        evaluate = compile_function(
            _of_matrix, array_namespace(kernels=self._kernels), static=("index",)
        )
        direction = from_host(direction, self._kernels)
        return self._change(evaluate(self._kernels, direction, self._labels, index=self._index))

    def with_temperature(self) -> np.ndarray:
        return self._change(from_host(np.eye(self._root.shape[0]), self._root))

    def with_labels(self, change: np.ndarray) -> np.ndarray:
        xp = array_namespace(root=self._root)
        rows = from_host(np.reshape(change, (-1, 1)), self._root)
        weights = -symmetric_product(_inverse_product(self._root, rows), self._solved, xp)
        evaluate = compile_function(_sums, xp, static=("index",))
        return to_host(evaluate(self._kernels, weights, self._labels, index=self._index))

    def _change(self, change: Array) -> np.ndarray:
        """Change of M − R for dA (P·C, P·C)."""
        evaluate = compile_function(
            _pair_change, array_namespace(kernels=self._kernels), static=("index",)
        )
        arrays = self._kernels, self._labels, self._root, self._solved, change
        return to_host(evaluate(*arrays, index=self._index))


def _inverse_product(root: Array, right: Array) -> Array:
    """(LLᵀ)⁻¹ times columns."""
    xp = array_namespace(root=root)
    inverse = invert_triangular(root, xp)
    return matmul(xp.matrix_transpose(inverse), matmul(inverse, right))


def _pair_change(
    kernels: Array, labels: Array, root: Array, solved: Array, change: Array, *, index: PairIndex
) -> Array:
    # dW = −A⁻¹dA A⁻¹ + (A⁻¹dA α)αᵀ + α(A⁻¹dA α)ᵀ
    xp = array_namespace(kernels=kernels)
    half = _inverse_product(root, change)  # A⁻¹dA
    moved = matmul(half, solved)
    weights = symmetric_product(moved, solved, xp)
    weights = weights - _inverse_product(root, xp.matrix_transpose(half))
    return _sums(kernels, weights, labels, index=index)


def _sums(kernels: Array, weights: Array, labels: Array, *, index: KernelIndex) -> Array:
    """Sums over pairs of rows Σ w C, (n·C, n·C), of symmetric weights (P·C, P·C)."""
    xp, (examples, outputs) = array_namespace(kernels=kernels), labels.shape
    if outputs > 1:
        weights = xp.matrix_transpose(by_output(weights, outputs, xp))
        return index.gradient(matmul(kernels, weights), xp)
    entries = from_host(packed_order(examples)[0], kernels, xp.int64)
    packed = xp.take(xp.reshape(weights, (-1,)), entries, axis=0)
    twice = from_host(multiplicities(examples), kernels)
    return index.gradient(matmul(kernels, (twice * packed)[:, None]), xp)
