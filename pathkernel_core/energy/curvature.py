"""Second derivatives of the energy (Eq. 12, 34) with respect to U_1, as products with directions.

With A = K + T1, H = Φᵀ A⁻¹ Φ and z = Φᵀ A⁻¹ Y the energy has the gradient M − R, where M sums H
over inputs and R = z zᵀ. A change dA of A changes them by

    dH = −Φᵀ A⁻¹ dA A⁻¹ Φ,      dz = −Φᵀ A⁻¹ dA A⁻¹ Y,      dA = Φ (dU ⊗ 1) Φᵀ + dT 1.

A product costs about as much as two or three evaluations of the energy.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import scipy

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    invert_triangular,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.pair_kernels import PairSpace, rows_kernel, summed_kernels
from pathkernel_core.energy.spaces import (
    ExampleSpace,
    FeatureSpace,
    _example_energy,
    _feature_energy,
)


class EnergyCurvature(Protocol):
    """Changes of the energy's gradient M − R, (n·C, n·C) on the host, at one order parameter."""

    def along(self, direction: np.ndarray) -> np.ndarray:
        """Return the change of the gradient for a symmetric change dU (n·C, n·C)."""

    def with_temperature(self) -> np.ndarray:
        """Return the derivative of the gradient with respect to T."""

    def with_labels(self, change: np.ndarray) -> np.ndarray:
        """Return the change of the gradient for a change of the labels, (P, C)."""


def energy_curvature(
    form: ExampleSpace | FeatureSpace | PairSpace, factor: np.ndarray, temperature: float
) -> EnergyCurvature:
    """Return the second derivatives of a form's energy at U_1 = factor factorᵀ.

    Parameters
    ----------
    form : ExampleSpace, FeatureSpace or PairSpace
    factor : array, shape (n·C, n·C)
        Lower triangular, with the prior variance σ²_0 and the scales of paths.
    temperature : float
    """
    if isinstance(form, FeatureSpace):
        return _FeatureCurvature(form, factor, temperature)
    if isinstance(form, PairSpace):
        return _PairCurvature(form, factor, temperature)
    return _ExampleCurvature(form, factor, temperature)


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
        return -to_host(_symmetric_product(dz, self._z, xp))


class _PairCurvature:
    """From A⁻¹ and α = A⁻¹Y: the gradient sums kernels by the weights W = A⁻¹ − ααᵀ."""

    def __init__(self, form: PairSpace, factor: np.ndarray, temperature: float):
        self._form = form
        self._compiled = compile_function(_pair_change, array_namespace(kernels=form.kernels))
        posterior = form.posterior(factor, temperature)
        self._root, self._solved = posterior.root, posterior.coefficients[:, None]

    def along(self, direction: np.ndarray) -> np.ndarray:
        kernels, labels = self._form.kernels, self._form.labels
        evaluate = compile_function(rows_kernel, array_namespace(kernels=kernels))
        return self._change(evaluate(kernels, from_host(direction, kernels), labels))

    def with_temperature(self) -> np.ndarray:
        return self._change(from_host(np.eye(self._root.shape[0]), self._root))

    def with_labels(self, change: np.ndarray) -> np.ndarray:
        xp = array_namespace(root=self._root)
        rows = from_host(np.reshape(change, (-1, 1)), self._root)
        weights = -_symmetric_product(_inverse_product(self._root, rows), self._solved, xp)
        return to_host(
            compile_function(summed_kernels, xp)(self._form.kernels, weights, self._form.labels)
        )

    def _change(self, change: Array) -> np.ndarray:
        """Change of M − R for dA (P·C, P·C)."""
        arrays = self._form.kernels, self._form.labels
        return to_host(self._compiled(*arrays, self._root, self._solved, change))


def _inverse_product(root: Array, right: Array) -> Array:
    """(LLᵀ)⁻¹ times columns."""
    xp = array_namespace(root=root)
    inverse = invert_triangular(root, xp)
    return matmul(xp.matrix_transpose(inverse), matmul(inverse, right))


def _pair_change(kernels: Array, labels: Array, root: Array, solved: Array, change: Array) -> Array:
    # dW = −A⁻¹dA A⁻¹ + (A⁻¹dA α)αᵀ + α(A⁻¹dA α)ᵀ
    xp = array_namespace(kernels=kernels)
    half = _inverse_product(root, change)  # A⁻¹dA
    moved = matmul(half, solved)
    weights = _symmetric_product(moved, solved, xp)
    weights = weights - _inverse_product(root, xp.matrix_transpose(half))
    return summed_kernels(kernels, weights, labels)


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
    return dm - _symmetric_product(dz, z, xp)


def _symmetric_product(dz: Array, z: Array, xp: Any) -> Array:
    product = matmul(dz, xp.matrix_transpose(z))
    return product + xp.matrix_transpose(product)


class _FeatureCurvature:
    """From Q = CᵀHC = 1 − T B⁻¹ and Cᵀz = q, in the frame of the factor C of U_1 = CCᵀ."""

    def __init__(self, form: FeatureSpace, factor: np.ndarray, temperature: float):
        gram, projections = form.rows
        xp = array_namespace(gram=gram)
        self._factor = factor
        matrix, numbers = from_host(factor, gram), from_host(temperature, gram)
        _, half, inverse = _feature_energy(gram, projections, matrix, numbers)
        transposed = xp.matrix_transpose(inverse)
        self._inverse = matmul(transposed, inverse)  # B⁻¹
        self._hessian = from_host(np.eye(inverse.shape[0]), gram) - temperature * self._inverse
        self._q = xp.reshape(matmul(transposed, half), projections.shape)

    def along(self, direction: np.ndarray) -> np.ndarray:
        # with D = C⁻¹ dU C⁻ᵀ, dH = −H (dU ⊗ 1) H is −Q (D ⊗ 1) Q in this frame, and dq is
        # −Q (D ⊗ 1) q: neither needs the Gram matrix
        xp, hessian = array_namespace(q=self._q), self._hessian
        paths, width = self._q.shape
        relative = from_host(_divided_by(self._factor, direction), hessian)
        blocks = xp.reshape(hessian, (paths * width, paths, width))
        mixed = matmul(relative, blocks)  # Q (D ⊗ 1)
        dq = -matmul(xp.reshape(mixed, hessian.shape), xp.reshape(self._q, (-1, 1)))
        by_path = xp.reshape(hessian, (paths, width, paths, width))
        by_path = xp.reshape(xp.permute_dims(by_path, (3, 0, 1, 2)), (-1, paths))
        dm = -matmul(xp.reshape(mixed, (paths, -1)), by_path)  # traced over inputs
        return self._change(dm, xp.reshape(dq, self._q.shape))

    def with_temperature(self) -> np.ndarray:
        # A⁻¹ΦC = ΦC B⁻¹ takes dH = −ΦᵀA⁻²Φ dT to −B⁻¹Q in this frame
        xp = array_namespace(q=self._q)
        product = matmul(self._inverse, self._hessian)
        paths, width = self._q.shape
        blocks = xp.reshape(product, (paths, width, paths, width))
        traces = sum(blocks[:, number, :, number] for number in range(width))
        dq = -xp.reshape(matmul(self._inverse, xp.reshape(self._q, (-1, 1))), self._q.shape)
        return self._change(-traces, dq)

    def with_labels(self, change: np.ndarray) -> np.ndarray:
        raise ValueError(
            "the response to labels needs the examples, which feature space does not hold; build "
            'Problem with space="examples"'
        )

    def _change(self, dm: Array, dq: Array) -> np.ndarray:
        """Change of M − R from CᵀdMC and dq."""
        xp = array_namespace(q=self._q)
        change = to_host(dm - _symmetric_product(dq, self._q, xp))
        half = scipy.linalg.solve_triangular(self._factor, change, lower=True, trans="T")
        return scipy.linalg.solve_triangular(self._factor, half.T, lower=True, trans="T")


def _divided_by(factor: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """C⁻¹ dU C⁻ᵀ."""
    half = scipy.linalg.solve_triangular(factor, direction, lower=True)
    return scipy.linalg.solve_triangular(factor, half.T, lower=True)
