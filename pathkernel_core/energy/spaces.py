"""Exact forms of the energy (Eq. 12, 34) behind one small interface.

All are evaluated at a factor B of the order parameter, U_1 = B Bᵀ, and return the energy

    ln det(K + T1) + Yᵀ (K + T1)⁻¹ Y,        K = Φ (U_1 ⊗ 1) Φᵀ

with its gradient M − R with respect to U_1 on the host. One factorisation per evaluation, of size
P·C in example space and n·N_0·C in feature space. A third form, kernel space, is in
:mod:`pathkernel_core.energy.kernel_space`.

With C outputs the rows are (example, output) and the paths (path, output), output fastest:
features are repeated along the diagonal of the outputs, and everything else stays as for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import scipy

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    batches,
    cholesky,
    compile_function,
    from_host,
    identity,
    invert_triangular,
    is_finite,
    is_true,
    join_batches,
    log_determinant,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.costs import BLOCK, WHITENED
from pathkernel_core.energy.label_spectrum import LabelSpectrum, Quadrature, lanczos, quadratures
from pathkernel_core.system.errors import NotPositiveDefiniteError


class Space(Protocol):
    """Form of the energy, for the minimiser and the predictor."""

    @property
    def name(self) -> str:
        """Name of the form for :class:`pathkernel_core.energy.problem.Problem`."""

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient M − R with respect to U_1 = factor factorᵀ, on the host.

        The factor (n·C, n·C) is lower triangular. The features of its rows are multiplied by scales
        (n·C, 1), which may be 0.
        """

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""

    def posterior(self, factor: np.ndarray, temperature: float) -> Any:
        """Gaussian posterior of the predictor at U_1 = factor factorᵀ.

        A :class:`Posterior`, or of given kernels another, which takes kernels of new examples.
        """

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² Φ_π Φ_πᵀ, for coefficients c (n,) of paths."""

    def keep_paths(self, paths: np.ndarray) -> Space:
        """Same form for a sub-network of these paths."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian posterior of the predictor on new examples.

    Attributes
    ----------
    weights : array, shape (n·C, N_0)
        (U ⊗ 1) z, so that the mean is Φ(x) · weights.
    explained : callable
        Variance explained by the training examples, for mixed features of new examples and the
        arrays: (rows, n·C, N_0) → (rows,), k(x)ᵀ (K + T1)⁻¹ k(x) of Eq. 30.
    arrays : tuple
        Further arguments of ``explained``: a matrix of the training examples, and numbers.
    root : array, shape (P·C, P·C), or None
        L of K + T1 = LLᵀ in example space.
    """

    weights: Array
    explained: Callable[..., Array]
    arrays: tuple[Array, ...]
    root: Array | None = None


def per_output(features: Array, outputs: int) -> Array:
    """Features of the rows (example, output): (P, n, N_0) → (P·C, n·C, N_0)."""
    if outputs == 1:
        return features
    xp = array_namespace(features=features)
    examples, paths, width = features.shape
    same_output = from_host(np.eye(outputs)[:, None, :, None], features)
    rows = features[:, None, :, None, :] * same_output  # (P, C, n, C, N_0)
    return xp.reshape(rows, (examples * outputs, paths * outputs, width))


@dataclass(frozen=True, eq=False)
class ExampleSpace:
    """Energy from a Cholesky factor of K + T1, P·C × P·C; for more features than examples.

    Parameters
    ----------
    features : array, shape (P, n, N_0)
        Scaled features Φ without the factor σ_0.
    labels : array, shape (P, C)
    """

    features: Array
    labels: Array
    name = "examples"

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.features

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""
        xp = array_namespace(features=self.features)
        by_path = xp.permute_dims(self.features, (1, 0, 2))
        flat = xp.reshape(by_path, (by_path.shape[0], -1))
        return matmul(flat, flat.T)

    @cached_property
    def rows(self) -> tuple[Array, Array]:
        """Features (P·C, n·C, N_0) and labels (P·C, 1), outputs expanded."""
        if self.labels.shape[1] == 1:
            return self.features, self.labels
        evaluate = compile_function(_example_rows, array_namespace(labels=self.labels))
        return evaluate(self.features, self.labels)

    @property
    def _evaluation(self) -> tuple[Callable, tuple[Array, Array]]:
        """Function for energy and gradient, and its first two arguments."""
        return _example_space, self.rows

    def evaluate(self, factor: Array, temperature: Array) -> tuple[Array, Array]:
        """Energy () and its gradient M − R (n·C, n·C), traceable by ``jax.jit``.

        The factor (n·C, r) of U_1 = factor factorᵀ may have any number of columns. NaN if K + T1 is
        not positive definite.
        """
        function, arrays = self._evaluation
        return function(*arrays, factor, temperature)

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient M − R with respect to U_1 = factor factorᵀ, on the host.

        The factor (n·C, n·C) is lower triangular. The features of its rows are multiplied by scales
        (n·C, 1), which may be 0.
        """
        function, arrays = self._evaluation
        rows, _ = self.rows
        evaluate = compile_function(function, array_namespace(rows=rows), static=("lower",))
        # coefficients multiply the small factor, not the features: Φ (s ⊗ 1) B = Φ (sB), and the
        # chain rule gives s (M − R) s. They may be 0, so that nothing divides by them
        scaled = from_host(factor if scales is None else scales * factor, rows)
        energy, gradient = evaluate(*arrays, scaled, from_host(temperature, rows), lower=True)
        energy = float(energy)
        if not math.isfinite(energy):
            raise not_positive_definite(self._kernel(rows, scaled), temperature)
        gradient = to_host(gradient)
        return energy, gradient if scales is None else scales * gradient * scales.T

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""
        return _example_energy(*self.rows, factor, temperature)[0]

    def posterior(self, factor: np.ndarray, temperature: float) -> Posterior:
        """Gaussian posterior of the predictor at U_1 = factor factorᵀ."""
        rows, labels = self.rows
        factor = from_host(factor, rows)
        evaluate = compile_function(_example_posterior, array_namespace(rows=rows))
        weights, whitened, root = evaluate(rows, labels, factor, from_host(temperature, rows))
        if not is_true(is_finite(weights)):
            raise not_positive_definite(self._kernel(rows, factor), temperature)
        return Posterior(weights, _explained_by_examples, (whitened,), root)

    def explained_labels(self, root: Array) -> tuple[np.ndarray, np.ndarray]:
        """(K + T1)⁻¹ Y (P, C) and the blocks of (K + T1)⁻¹ on its diagonal (P, C, C), from L."""
        evaluate = compile_function(explained_labels, array_namespace(root=root))
        coefficients, blocks = evaluate(root, self.labels)
        return to_host(coefficients), to_host(blocks)

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² Φ_π Φ_πᵀ, for coefficients c (n,) of paths."""
        evaluate = compile_function(_flat_features, array_namespace(features=self.features))
        scales = from_host(scales[:, None], self.features)
        flat, diagonal, square = evaluate(self.features, scales, self.labels)
        xp = array_namespace(features=self.features)
        if flat.shape[0] <= flat.shape[1]:
            labels, modes = quadratures(matmul(flat, xp.matrix_transpose(flat)), self.labels)
        else:
            labels, modes = lanczos(_example_product, (flat,), self.labels)
        return LabelSpectrum(labels, modes, float(diagonal), float(square))

    def _kernel(self, rows: Array, factor: Array) -> Array:
        xp = array_namespace(rows=rows)
        mixed = _mix(rows, factor, xp)
        return matmul(mixed, xp.matrix_transpose(mixed))

    def keep_paths(self, paths: np.ndarray) -> Self:
        """Same form for a sub-network of these paths."""
        xp = array_namespace(features=self.features)
        scale = math.sqrt(self.features.shape[1] / len(paths))  # features carry 1/√n
        indices = from_host(paths, self.features, xp.int64)
        return type(self)(
            compile_function(_selected, xp)(self.features, indices, scale), self.labels
        )


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """Energy from sufficient statistics, with one n·N_0·C factorisation for any P.

    Parameters
    ----------
    gram : array, shape (n, N_0, n, N_0)
        ΦᵀΦ, without the factor σ_0².
    projections : array, shape (n, N_0, C)
        ΦᵀY.
    label_square : float
        Sum of all squared labels.
    n_examples : int
    """

    gram: Array
    projections: Array
    label_square: float
    n_examples: int
    name = "features"

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.gram

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""
        xp = array_namespace(gram=self.gram)
        return xp.linalg.trace(xp.permute_dims(self.gram, (0, 2, 1, 3)))

    @property
    def outputs(self) -> int:
        """Number C of outputs."""
        return self.projections.shape[-1]

    @cached_property
    def rows(self) -> tuple[Array, Array]:
        """Gram matrix (n·C, N_0, n·C, N_0) and projections (n·C, N_0), outputs expanded."""
        evaluate = compile_function(_feature_rows, array_namespace(gram=self.gram))
        return evaluate(self.gram, self.projections)

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient M − R with respect to U_1 = factor factorᵀ, on the host.

        Scales as in :meth:`ExampleSpace.energy_and_gradient`.
        """
        gram, projections = self.rows
        evaluate = compile_function(_feature_space, array_namespace(gram=gram))
        scaled = from_host(factor if scales is None else scales * factor, gram)
        log_det, fitted, mixed_gradient = evaluate(
            gram, projections, scaled, from_host(temperature, gram)
        )
        rows = self.n_examples * self.outputs
        # Sylvester's identity: det(ΦΦᵀ + T1) of P rows is T^(P − D) det(ΦᵀΦ + T1) of D features
        energy = (rows - gram.shape[0] * gram.shape[1]) * math.log(temperature) + float(log_det)
        energy += (self.label_square - float(fitted)) / temperature
        if not math.isfinite(energy):
            xp = array_namespace(gram=gram)
            matrix = _mix_gram(gram, scaled, xp)
            raise not_positive_definite(matrix, temperature)
        # BᵀMB − BᵀRB → M − R. The former comes from the factorisation alone; M itself would take
        # another product with the Gram matrix
        half = scipy.linalg.solve_triangular(factor, to_host(mixed_gradient), lower=True, trans="T")
        return energy, scipy.linalg.solve_triangular(factor, half.T, lower=True, trans="T")

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""
        gram, projections = self.rows
        xp = array_namespace(gram=gram)
        log_det, half, _ = _feature_energy(gram, projections, factor, temperature)
        excess = self.n_examples * self.outputs - gram.shape[0] * gram.shape[1]
        misfit = (self.label_square - xp.sum(half**2)) / temperature
        return excess * xp.log(temperature) + log_det + misfit

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² Φ_π Φ_πᵀ, for coefficients c (n,) of paths."""
        xp = array_namespace(gram=self.gram)
        repeated = from_host(np.repeat(scales, self.gram.shape[1])[:, None], self.gram)
        evaluate = compile_function(_flat_sums, xp)
        gram, start, trace = evaluate(self.gram, self.projections, repeated)
        projected, modes = quadratures(gram, start)  # weights λ (v·Y)², here
        # (v·Y)² is a quotient by λ, so that rounding at λ = 0 would pass for a share of the labels;
        # whatever no visible mode explains is orthogonal to the features, at λ = 0
        rounding = 100 * float(xp.finfo(gram.dtype).eps) * projected.nodes.max(initial=0.0)
        visible = projected.nodes > rounding
        nodes = projected.nodes[visible]
        powers = projected.weights[visible] / nodes
        orthogonal = max(0.0, self.label_square - powers.sum())  # to all features
        labels = Quadrature(np.append(nodes, 0.0), np.append(powers, orthogonal))
        square = self.label_square / (self.n_examples * self.outputs)
        return LabelSpectrum(labels, modes, float(trace) / self.n_examples, square)

    def posterior(self, factor: np.ndarray, temperature: float) -> Posterior:
        """Gaussian posterior of the predictor at U_1 = factor factorᵀ."""
        gram, projections = self.rows
        xp = array_namespace(gram=gram)
        factor = from_host(factor, gram)
        evaluate = compile_function(_feature_posterior, xp)
        weights, inverse = evaluate(gram, projections, factor, from_host(temperature, gram))
        if not is_true(is_finite(weights)):
            raise not_positive_definite(_mix_gram(gram, factor, xp), temperature)
        return Posterior(weights, explained_by_features, (inverse, temperature))

    def keep_paths(self, paths: np.ndarray) -> FeatureSpace:
        """Same form for a sub-network of these paths."""
        xp = array_namespace(gram=self.gram)
        ratio = self.gram.shape[0] / len(paths)  # features carry 1/√n
        indices = from_host(paths, self.gram, xp.int64)
        gram, projections = compile_function(_selected_sums, xp)(
            self.gram, self.projections, indices, ratio, math.sqrt(ratio)
        )
        return FeatureSpace(gram, projections, self.label_square, self.n_examples)


def _flat_features(features: Array, scales: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Scaled features (P, n·N_0), their mean square norm, and the mean squared label."""
    xp = array_namespace(features=features)
    flat = xp.reshape(features * scales, (features.shape[0], -1))
    return flat, xp.sum(flat**2) / features.shape[0], xp.mean(labels**2)


def _flat_sums(gram: Array, projections: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Scaled Gram matrix (n·N_0, n·N_0) and projections (n·N_0, C), and the trace of the former."""
    xp = array_namespace(gram=gram)
    size = scales.shape[0]
    gram = scales * xp.reshape(gram, (size, size)) * xp.matrix_transpose(scales)
    start = scales * xp.reshape(projections, (size, -1))
    return gram, start, xp.sum(xp.linalg.diagonal(gram))


def _example_product(vectors: Array, features: Array) -> Array:
    xp = array_namespace(vectors=vectors)
    return matmul(features, matmul(xp.matrix_transpose(features), vectors))


def _example_rows(features: Array, labels: Array) -> tuple[Array, Array]:
    xp = array_namespace(features=features)
    return per_output(features, labels.shape[1]), xp.reshape(labels, (-1, 1))


def _feature_rows(gram: Array, projections: Array) -> tuple[Array, Array]:
    xp = array_namespace(gram=gram)
    paths, width, outputs = projections.shape
    projections = xp.reshape(xp.permute_dims(projections, (0, 2, 1)), (paths * outputs, width))
    if outputs == 1:
        return gram, projections
    same_output = from_host(np.eye(outputs)[None, :, None, None, :, None], gram)
    gram = gram[:, None, :, :, None, :] * same_output
    return xp.reshape(gram, (paths * outputs, width, paths * outputs, width)), projections


def _selected(features: Array, paths: Array, scale: float) -> Array:
    return scale * array_namespace(features=features).take(features, paths, axis=1)


def _selected_sums(
    gram: Array, projections: Array, paths: Array, ratio: float, root: float
) -> tuple[Array, Array]:
    xp = array_namespace(gram=gram)
    gram = xp.take(xp.take(gram, paths, axis=0), paths, axis=2)
    return ratio * gram, root * xp.take(projections, paths, axis=0)


def _mix(features: Array, factor: Array, xp: Any) -> Array:
    """Φ (B ⊗ 1), as a matrix (rows, n·C·N_0)."""
    mixed = matmul(xp.matrix_transpose(factor), features)
    return xp.reshape(mixed, (features.shape[0], -1))


def _mix_in_blocks(features: Array, factor: Array, lower: bool, xp: Any) -> Iterator[Array]:
    """Columns of Φ (B ⊗ 1) by blocks of columns of B, without the zeros of a lower B."""
    # K is a sum over columns of B: by blocks, a triangular B takes half of the multiplications, and
    # one block of mixed features is in memory instead of all
    if factor.shape[1] <= BLOCK:
        yield _mix(features, factor, xp)
        return
    for block in batches(factor.shape[1], BLOCK):
        first = block.start if lower else 0
        yield _mix(features[:, first:, :], factor[first:, block], xp)


def _mix_gram(gram: Array, factor: Array, xp: Any) -> Array:
    """(Bᵀ ⊗ 1) G (B ⊗ 1), as a matrix."""
    paths, width = gram.shape[:2]
    transposed = xp.matrix_transpose(factor)
    right = matmul(transposed, xp.reshape(gram, (paths * width, paths, width)))
    left = matmul(transposed, xp.reshape(right, (paths, -1)))
    size = factor.shape[1] * width
    return xp.reshape(left, (size, size))


def _sum_over_inputs(blocks: Array, xp: Any) -> Array:
    """Sum over i of FᵀF blocks: (rows, n, N_0) → (n, n)."""
    if blocks.shape[1] > blocks.shape[2]:  # one product instead of a matrix n × n per row
        by_path = xp.reshape(xp.permute_dims(blocks, (1, 0, 2)), (blocks.shape[1], -1))
        return matmul(by_path, xp.matrix_transpose(by_path))
    return xp.sum(matmul(blocks, xp.matrix_transpose(blocks)), axis=0)


def _example_energy(
    features: Array, labels: Array, factor: Array, temperature: Array, lower: bool = False
) -> tuple[Array, Array, Array]:
    """Energy in example space, with L of K + T1 = LLᵀ and L⁻¹ Y; B may be lower triangular."""
    xp = array_namespace(features=features)
    kernel = None
    for mixed in _mix_in_blocks(features, factor, lower, xp):
        of_block = matmul(mixed, xp.matrix_transpose(mixed))
        kernel = of_block if kernel is None else kernel + of_block
    root = cholesky(add_to_diagonal(kernel, temperature, xp), xp)
    coefficients = solve_triangular(root, labels, xp)
    return log_determinant(root, xp) + xp.sum(coefficients**2), root, coefficients


def _example_space(
    features: Array, labels: Array, factor: Array, temperature: Array, *, lower: bool = False
) -> tuple[Array, Array]:
    xp = array_namespace(features=features)
    energy, root, coefficients = _example_energy(features, labels, factor, temperature, lower)
    rows, paths, width = features.shape
    # M = Σ_i F_iᵀF_i needs one triangular solve, no inverse of K + T1, and no second factorisation.
    # It is a sum over inputs i, so that batches of them bound the copy F of the features
    m, z = None, []
    for inputs in batches(width, max(1, WHITENED // (rows * paths))):
        batch = features if inputs == slice(0, width) else features[:, :, inputs]
        whitened = solve_triangular(root, xp.reshape(batch, (rows, -1)), xp)  # F = L⁻¹ Φ
        fitted = matmul(xp.matrix_transpose(coefficients), whitened)
        z.append(xp.reshape(fitted, batch.shape[1:]))
        blocks = _sum_over_inputs(xp.reshape(whitened, batch.shape), xp)
        m = blocks if m is None else m + blocks
    z = join_batches(z, axis=1)
    return energy, m - matmul(z, xp.matrix_transpose(z))


def _example_posterior(
    features: Array, labels: Array, factor: Array, temperature: Array
) -> tuple[Array, Array, Array]:
    """Weights of the mean, L⁻¹ Φ (B ⊗ 1), and L of K + T1 = LLᵀ."""
    xp = array_namespace(features=features)
    mixed = _mix(features, factor, xp)
    kernel = matmul(mixed, xp.matrix_transpose(mixed))
    lower = cholesky(add_to_diagonal(kernel, temperature, xp), xp)
    whitened = solve_triangular(lower, mixed, xp)
    weights = matmul(xp.matrix_transpose(whitened), solve_triangular(lower, labels, xp))
    return matmul(factor, xp.reshape(weights, (-1, features.shape[2]))), whitened, lower


def explained_labels(root: Array, labels: Array) -> tuple[Array, Array]:
    """(K + T1)⁻¹ Y (P, C) and the diagonal blocks of (K + T1)⁻¹ (P, C, C), from L (P·C, P·C)."""
    xp = array_namespace(root=root)
    inverse = invert_triangular(root, xp)
    half = matmul(inverse, xp.reshape(labels, (-1, 1)))
    coefficients = matmul(xp.matrix_transpose(inverse), half)
    # (K + T1)⁻¹ = L⁻ᵀL⁻¹: its diagonal blocks need the columns of L⁻¹ only, not the product
    by_example = xp.permute_dims(xp.reshape(inverse, (-1, *labels.shape)), (1, 2, 0))
    blocks = matmul(by_example, xp.matrix_transpose(by_example))
    return xp.reshape(coefficients, labels.shape), blocks


def _explained_by_examples(mixed: Array, whitened: Array) -> Array:
    xp = array_namespace(mixed=mixed)
    mixed = xp.reshape(mixed, (mixed.shape[0], -1))
    return xp.sum(matmul(whitened, xp.matrix_transpose(mixed)) ** 2, axis=0)


def _feature_posterior(
    gram: Array, projections: Array, factor: Array, temperature: Array
) -> tuple[Array, Array]:
    """Weights of the mean, and L⁻¹ of B = LLᵀ."""
    xp = array_namespace(gram=gram)
    _, half, inverse = _feature_energy(gram, projections, factor, temperature)
    q = matmul(xp.matrix_transpose(inverse), half)
    return matmul(factor, xp.reshape(q, (-1, projections.shape[1]))), inverse


def explained_by_features(mixed: Array, inverse: Array, temperature: float) -> Array:
    """With L⁻¹ of B = LLᵀ = T1 + (Bᵀ⊗1) ΦᵀΦ (B⊗1)."""
    xp = array_namespace(mixed=mixed)
    mixed = xp.reshape(mixed, (mixed.shape[0], -1))
    # Woodbury's identity: with φ the mixed features, k(x)ᵀ(K + T1)⁻¹k(x) = |φ|² − T φᵀB⁻¹φ, which
    # needs no training example
    left = matmul(mixed, xp.matrix_transpose(inverse))
    return xp.sum(mixed**2, axis=1) - temperature * xp.sum(left**2, axis=1)


def _feature_energy(
    gram: Array, projections: Array, factor: Array, temperature: Array
) -> tuple[Array, Array, Array]:
    """Ln det B, L⁻¹ (Bᵀ ⊗ 1) ΦᵀY and L⁻¹ of B = LLᵀ."""
    xp = array_namespace(gram=gram)
    lower = cholesky(add_to_diagonal(_mix_gram(gram, factor, xp), temperature, xp), xp)
    inverse = invert_triangular(lower, xp)
    right = xp.reshape(matmul(xp.matrix_transpose(factor), projections), (-1, 1))
    return log_determinant(lower, xp), matmul(inverse, right), inverse


def _feature_space(
    gram: Array, projections: Array, factor: Array, temperature: Array
) -> tuple[Array, Array, Array]:
    """Ln det B, qᵀBq and Bᵀ(M − R)B, from one factorisation of B."""
    xp = array_namespace(gram=gram)
    paths, width = projections.shape
    log_det, half, inverse = _feature_energy(gram, projections, factor, temperature)
    q = xp.reshape(matmul(xp.matrix_transpose(inverse), half), (paths, width))
    # BᵀMB = Σ_i (1 − T B⁻¹)_ii, by the rows of L⁻¹, as B⁻¹ = L⁻ᵀL⁻¹
    blocks = _sum_over_inputs(xp.reshape(inverse, (-1, paths, width)), xp)
    m = width * identity(paths, gram, xp) - temperature * blocks
    gradient = m - matmul(q, xp.matrix_transpose(q))
    return log_det, xp.sum(half**2), gradient


def not_positive_definite(matrix: Array, temperature: float) -> NotPositiveDefiniteError:
    """Error about a kernel (P·C, P·C) that is not positive definite with the temperature."""
    matrix = to_host(matrix)
    if not np.isfinite(matrix).all():
        return NotPositiveDefiniteError(
            f"the kernel overflows at temperature {temperature:g}; rescale the inputs"
        )
    eigenvalues = np.linalg.eigvalsh(matrix)
    return NotPositiveDefiniteError(
        f"the kernel plus the temperature {temperature:g} is not positive definite in this "
        f"precision: the kernel's smallest eigenvalue is {eigenvalues[0]:.3g}, its largest "
        f"{eigenvalues[-1]:.3g}; raise the temperature, rescale the inputs or use float64"
    )
