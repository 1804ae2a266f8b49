"""Feature space: the energy (Eq. 12, 34) from sums over examples, with one factor of n·N_0·C."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

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
    log_determinant,
    rows_of,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.examples import sum_over_inputs
from pathkernel_core.energy.form import EnergyCurvature, Form, InputGradient, Predictor
from pathkernel_core.energy.label_spectrum import LabelSpectrum, Quadrature, quadratures
from pathkernel_core.energy.posterior import PREDICTION_ELEMENTS, Posterior
from pathkernel_core.energy.rows import not_positive_definite, per_output, symmetric_product


@dataclass(frozen=True, eq=False)
class FeatureSpace(Form):
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
    holds_examples = False

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

        Scales as in :meth:`pathkernel_core.energy.form.Form.energy_and_gradient`.
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

    def curvature(self, factor: np.ndarray, temperature: float) -> EnergyCurvature:
        """Second derivatives of the energy at U_1 = factor factorᵀ, see :meth:`Form.curvature`."""
        return _FeatureCurvature(self, factor, temperature)

    def input_gradient(
        self, posterior: Predictor, factor: np.ndarray, basis: Array | None
    ) -> InputGradient:
        """Function for −½ ∂energy/∂Φ at a fixed U_1, see :meth:`Form.input_gradient`."""
        of_features = cast("Posterior", posterior)

        def gradient(features: Array, labels: Array) -> Array:
            xp = array_namespace(features=features)
            if basis is not None:  # the gradient lies in the span of the inputs, too
                features = matmul(features, basis)
            arrays = from_host(factor, features), of_features.weights, *of_features.arrays
            gradient = compile_function(_input_gradient, xp)(features, labels, *arrays)
            return gradient if basis is None else matmul(gradient, xp.matrix_transpose(basis))

        return gradient

    def explained_labels(
        self,
        posterior: Predictor,
        factor: np.ndarray,
        temperature: float,
        examples: tuple[Array, np.ndarray],
        basis: Array | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pieces of leave-one-out from the prediction of examples that are given.

        With the prediction f_μ, V_μ they are α_μ = (y_μ − f_μ)/T and [A⁻¹]_μμ = (T1 − V_μ)/T².
        """
        (xi, labels), of_features = examples, cast("Posterior", posterior)
        outputs = self.outputs
        per_example = math.prod(xi.shape[1:]) * outputs**2
        step = max(1, PREDICTION_ELEMENTS // max(1, per_example))
        factor = from_host(factor, xi)
        moments = [
            of_features.covariances(rows_of(xi, batch), factor, basis)
            for batch in batches(xi.shape[0], step)
        ]
        mean, covariance = (np.concatenate(moment) for moment in zip(*moments))
        # differences divided by T: the smaller T against the kernel, the fewer digits remain
        coefficients = (labels - mean) / temperature
        return coefficients, (np.eye(outputs) - covariance / temperature) / temperature

    def has_labels(self, labels: np.ndarray, rounding: float) -> bool:
        """Whether labels (P, C) have the sum of squares, or some of its examples a smaller one."""
        square = np.sum(labels**2)
        if len(labels) < self.n_examples:  # only a bound for a part of them
            square = max(np.array(self.label_square), square)
        atol = rounding * abs(np.array(self.label_square)).max()
        return bool(np.allclose(self.label_square, square, rtol=0, atol=atol))

    def keep_paths(self, paths: np.ndarray) -> FeatureSpace:
        """Same form for a sub-network of these paths."""
        xp = array_namespace(gram=self.gram)
        ratio = self.gram.shape[0] / len(paths)  # features carry 1/√n
        indices = from_host(paths, self.gram, xp.int64)
        gram, projections = compile_function(_selected_sums, xp)(
            self.gram, self.projections, indices, ratio, math.sqrt(ratio)
        )
        return FeatureSpace(gram, projections, self.label_square, self.n_examples)


def _flat_sums(gram: Array, projections: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Scaled Gram matrix (n·N_0, n·N_0) and projections (n·N_0, C), and the trace of the former."""
    xp = array_namespace(gram=gram)
    size = scales.shape[0]
    gram = scales * xp.reshape(gram, (size, size)) * xp.matrix_transpose(scales)
    start = scales * xp.reshape(projections, (size, -1))
    return gram, start, xp.sum(xp.linalg.diagonal(gram))


def _feature_rows(gram: Array, projections: Array) -> tuple[Array, Array]:
    xp = array_namespace(gram=gram)
    paths, width, outputs = projections.shape
    projections = xp.reshape(xp.permute_dims(projections, (0, 2, 1)), (paths * outputs, width))
    if outputs == 1:
        return gram, projections
    same_output = from_host(np.eye(outputs)[None, :, None, None, :, None], gram)
    gram = gram[:, None, :, :, None, :] * same_output
    return xp.reshape(gram, (paths * outputs, width, paths * outputs, width)), projections


def _selected_sums(
    gram: Array, projections: Array, paths: Array, ratio: float, root: float
) -> tuple[Array, Array]:
    xp = array_namespace(gram=gram)
    gram = xp.take(xp.take(gram, paths, axis=0), paths, axis=2)
    return ratio * gram, root * xp.take(projections, paths, axis=0)


def _mix_gram(gram: Array, factor: Array, xp: Any) -> Array:
    """(Bᵀ ⊗ 1) G (B ⊗ 1), as a matrix."""
    paths, width = gram.shape[:2]
    transposed = xp.matrix_transpose(factor)
    right = matmul(transposed, xp.reshape(gram, (paths * width, paths, width)))
    left = matmul(transposed, xp.reshape(right, (paths, -1)))
    size = factor.shape[1] * width
    return xp.reshape(left, (size, size))


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
    blocks = sum_over_inputs(xp.reshape(inverse, (-1, paths, width)), xp)
    m = width * identity(paths, gram, xp) - temperature * blocks
    gradient = m - matmul(q, xp.matrix_transpose(q))
    return log_det, xp.sum(half**2), gradient


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
        change = to_host(dm - symmetric_product(dq, self._q, xp))
        half = scipy.linalg.solve_triangular(self._factor, change, lower=True, trans="T")
        return scipy.linalg.solve_triangular(self._factor, half.T, lower=True, trans="T")


def _divided_by(factor: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """C⁻¹ dU C⁻ᵀ."""
    half = scipy.linalg.solve_triangular(factor, direction, lower=True)
    return scipy.linalg.solve_triangular(factor, half.T, lower=True)


def _input_gradient(
    features: Array,
    labels: Array,
    factor: Array,
    weights: Array,
    inverse: Array,
    temperature: Array,
) -> Array:
    """Gradient with weights w of the mean, and L⁻¹ of B = LLᵀ = T1 + (Fᵀ ⊗ 1) ΦᵀΦ (F ⊗ 1).

    A⁻¹ Φ (F ⊗ 1) = Φ (F ⊗ 1) B⁻¹ and A⁻¹ Y = (Y − Φ w)/T: no matrix of the size of the examples.
    """
    xp = array_namespace(features=features)
    outputs, width = labels.shape[1], features.shape[2]
    rows = matmul(xp.matrix_transpose(factor), per_output(features, outputs))  # Φ (F ⊗ 1)
    flat = xp.reshape(rows, (rows.shape[0], -1))
    half = matmul(flat, xp.matrix_transpose(inverse))
    solved = xp.reshape(matmul(half, inverse), (rows.shape[0], -1, width))
    by_output = xp.reshape(weights, (features.shape[1], outputs, width))
    total = 0.0
    for output in range(outputs):
        of_output = by_output[:, output, :]  # (n, N_0)
        mean = matmul(xp.reshape(features, (features.shape[0], -1)), xp.reshape(of_output, (-1, 1)))
        residual = (labels[:, output : output + 1] - mean) / temperature
        mixed = matmul(factor[output::outputs, :], solved[output::outputs, ...])
        total = total - mixed + residual[:, :, None] * of_output
    return total
