"""Example space: the energy (Eq. 12, 34) from one factorisation of the size of examples, P·C."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    batches,
    cholesky,
    compile_function,
    from_host,
    inverse_from_root,
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
from pathkernel_core.energy.form import EnergyCurvature, ExamplesForm, InputGradient, Predictor
from pathkernel_core.energy.label_spectrum import LabelSpectrum, lanczos, quadratures
from pathkernel_core.energy.posterior import Posterior
from pathkernel_core.energy.rows import not_positive_definite, per_output, symmetric_product


@dataclass(frozen=True, eq=False)
class ExampleSpace(ExamplesForm):
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

    def curvature(self, factor: np.ndarray, temperature: float) -> EnergyCurvature:
        """Second derivatives of the energy at U_1 = factor factorᵀ, see :meth:`Form.curvature`."""
        return _ExampleCurvature(self, factor, temperature)

    def input_gradient(
        self, posterior: Predictor, factor: np.ndarray, basis: Array | None
    ) -> InputGradient:
        """Function for −½ ∂energy/∂Φ at a fixed U_1, see :meth:`Form.input_gradient`."""

        def gradient(features: Array, labels: Array) -> Array:
            evaluate = compile_function(_input_gradient, array_namespace(features=features))
            return evaluate(features, labels, from_host(factor, features), posterior.root)

        return gradient

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


def _flat_features(features: Array, scales: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Scaled features (P, n·N_0), their mean square norm, and the mean squared label."""
    xp = array_namespace(features=features)
    flat = xp.reshape(features * scales, (features.shape[0], -1))
    return flat, xp.sum(flat**2) / features.shape[0], xp.mean(labels**2)


def _example_product(vectors: Array, features: Array) -> Array:
    xp = array_namespace(vectors=vectors)
    return matmul(features, matmul(xp.matrix_transpose(features), vectors))


def _example_rows(features: Array, labels: Array) -> tuple[Array, Array]:
    xp = array_namespace(features=features)
    return per_output(features, labels.shape[1]), xp.reshape(labels, (-1, 1))


def _selected(features: Array, paths: Array, scale: float) -> Array:
    return scale * array_namespace(features=features).take(features, paths, axis=1)


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
        blocks = sum_over_inputs(xp.reshape(whitened, batch.shape), xp)
        m = blocks if m is None else m + blocks
    z = join_batches(z, axis=1)
    return energy, m - matmul(z, xp.matrix_transpose(z))


def sum_over_inputs(blocks: Array, xp: Any) -> Array:
    """Sum over i of FᵀF blocks: (rows, n, N_0) → (n, n)."""
    if blocks.shape[1] > blocks.shape[2]:  # one product instead of a matrix n × n per row
        by_path = xp.reshape(xp.permute_dims(blocks, (1, 0, 2)), (blocks.shape[1], -1))
        return matmul(by_path, xp.matrix_transpose(by_path))
    return xp.sum(matmul(blocks, xp.matrix_transpose(blocks)), axis=0)


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


def _explained_by_examples(mixed: Array, whitened: Array) -> Array:
    xp = array_namespace(mixed=mixed)
    mixed = xp.reshape(mixed, (mixed.shape[0], -1))
    return xp.sum(matmul(whitened, xp.matrix_transpose(mixed)) ** 2, axis=0)


class _ExampleCurvature:
    """From the whitened features F = L⁻¹Φ with A = LLᵀ; holds as much as the features."""

    def __init__(self, form: ExampleSpace, factor: np.ndarray, temperature: float):
        features, labels = form.rows
        self._compiled = compile_function(_example_change, array_namespace(features=features))
        factor, temperature = from_host(factor, features), from_host(temperature, features)
        _, self._root, self._labels = _example_energy(features, labels, factor, temperature)
        xp = array_namespace(features=features)
        flat = xp.reshape(features, (features.shape[0], -1))
        self._features = xp.reshape(solve_triangular(self._root, flat, xp), features.shape)
        z = matmul(xp.matrix_transpose(self._labels), xp.reshape(self._features, flat.shape))
        self._z = xp.reshape(z, features.shape[1:])

    def _change(self, whitened: Array) -> np.ndarray:
        """Change of M − R for L⁻¹ dA L⁻ᵀ."""
        return to_host(self._compiled(self._features, self._labels, self._z, whitened))

    def along(self, direction: np.ndarray) -> np.ndarray:
        # L⁻¹ dA L⁻ᵀ = F (dU ⊗ 1) Fᵀ with the whitened F: no solve for each direction
        xp, features = array_namespace(features=self._features), self._features
        mixed = matmul(from_host(direction, features), features)
        flat = (features.shape[0], -1)
        transposed = xp.matrix_transpose(xp.reshape(features, flat))
        return self._change(matmul(xp.reshape(mixed, flat), transposed))

    def with_temperature(self) -> np.ndarray:
        xp = array_namespace(root=self._root)
        inverse = solve_triangular(
            self._root, from_host(np.eye(self._root.shape[0]), self._root), xp
        )
        return self._change(matmul(inverse, xp.matrix_transpose(inverse)))

    def with_labels(self, change: np.ndarray) -> np.ndarray:
        # M does not depend on the labels, and R = z zᵀ enters the gradient with a minus
        xp = array_namespace(root=self._root)
        rows = from_host(np.reshape(change, (-1, 1)), self._root)
        half = solve_triangular(self._root, rows, xp)
        flat = xp.reshape(self._features, (self._features.shape[0], -1))
        dz = xp.reshape(matmul(xp.matrix_transpose(half), flat), self._z.shape)
        return -to_host(symmetric_product(dz, self._z, xp))


def _example_change(features: Array, labels: Array, z: Array, whitened: Array) -> Array:
    xp = array_namespace(features=features)
    rows, paths, width = features.shape
    product = matmul(whitened, xp.reshape(features, (rows, -1)))
    dz = -xp.reshape(matmul(xp.matrix_transpose(labels), product), (paths, width))
    product = xp.reshape(product, features.shape)
    left, right = (
        xp.reshape(xp.permute_dims(array, (1, 0, 2)), (paths, -1)) for array in (features, product)
    )
    dm = -matmul(left, xp.matrix_transpose(right))
    return dm - symmetric_product(dz, z, xp)


def _input_gradient(features: Array, labels: Array, factor: Array, root: Array) -> Array:
    """Gradient −(A⁻¹ − A⁻¹YYᵀA⁻¹) Φ (V ⊗ 1) with L (P·C, P·C) of A = LLᵀ."""
    xp = array_namespace(features=features)
    outputs = labels.shape[1]
    inverse = invert_triangular(root, xp)
    solved = matmul(xp.matrix_transpose(inverse), matmul(inverse, xp.reshape(labels, (-1, 1))))
    weights = inverse_from_root(inverse, xp) - matmul(solved, xp.matrix_transpose(solved))
    v = matmul(factor, xp.matrix_transpose(factor))
    mixed = matmul(v, per_output(features, outputs))  # Φ (V ⊗ 1)
    total = 0.0
    for output in range(outputs):  # row (example, output) depends on the features once for each
        rows = mixed[:, output::outputs, :]
        of_output = matmul(weights[output::outputs, :], xp.reshape(rows, (rows.shape[0], -1)))
        total = total - xp.reshape(of_output, features.shape)
    return total
