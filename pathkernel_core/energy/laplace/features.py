"""Form of the energy of classes by features, where n·N_0·C is smaller than P·C.

With Φ̃ = Φ (B ⊗ 1), U_1 = BBᵀ, the outputs are f = Φ̃v with v ~ N(0, 1) of n·N_0·C entries, so that
the mode is found in v, and with H = 1 + Φ̃ᵀWΦ̃

    E = 2 min_v [−ln p(y|Φ̃v) + ½|v|²] + ln det H,
    Bᵀ(∂E/∂U_1)B = Σ_i [(1 − H⁻¹)_ii − v_iv_iᵀ + ½(h_iv_iᵀ + v_ih_iᵀ)],      h = H⁻¹Φ̃ᵀs.

Examples are stored: unlike those of the squared loss, their sums are not sufficient.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    compile_function,
    from_host,
    gram_matrix,
    identity,
    invert_triangular,
    log_determinant,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.costs import Sizes, limit_form
from pathkernel_core.energy.examples import ExampleSpace, sum_over_inputs
from pathkernel_core.energy.label_spectrum import LabelSpectrum
from pathkernel_core.energy.laplace.blocks import (
    gram_blocks,
    solve_transposed,
    transposed_blocks,
)
from pathkernel_core.energy.laplace.forms import LaplaceExamples, LaplaceForm, Mode
from pathkernel_core.energy.laplace.mode import NewtonPoint, ascend, no_mode, roundings
from pathkernel_core.energy.laplace.posterior import (
    ClassPosterior,
    prior_covariances,
    scaled_features,
)
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood


@dataclass(frozen=True, eq=False)
class LaplaceFeatures(LaplaceForm):
    """Form that factorises matrices of n·N_0·C rows, for many examples of few features.

    Parameters
    ----------
    features : array, shape (P, n, N_0)
        Scaled features Φ without the factor σ_0.
    """

    features: Array = field(kw_only=True)
    name = "features"

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.features

    @property
    def _squared(self) -> ExampleSpace:
        return ExampleSpace(self.features, self._search_labels())

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""
        return self._squared.summed_kernels

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² Φ_π Φ_πᵀ, for coefficients c (n,) of paths."""
        return self._squared.label_spectrum(scales)

    def _mode(self, mixed: Array) -> Mode:
        """Variables v (n·N_0·C, 1) of the mode f = Φ̃v, of mixed features (P·C, n·N_0·C)."""
        xp = array_namespace(mixed=mixed)
        step = compile_function(_step, xp, static=("likelihood",))
        value = compile_function(_value, xp, static=("likelihood",))
        likelihood, targets = self.likelihood, self.labels

        def solve(start: Array | None) -> Mode:
            zeros = from_host(np.zeros((mixed.shape[1], 1)), mixed)
            return ascend(
                lambda v: NewtonPoint(*step(mixed, targets, v, likelihood=likelihood)),
                lambda v: value(mixed, targets, v, likelihood=likelihood),
                zeros if start is None else start,
            )

        try:
            return self._from_memory(solve)
        except np.linalg.LinAlgError as error:
            raise no_mode(gram_matrix(mixed, xp), error) from None

    def _mixed(self, factor: np.ndarray) -> Array:
        """Mixed features (P·C, n·N_0·C) at a factor on the host."""
        evaluate = compile_function(mixed_features, array_namespace(array=self.array))
        return evaluate(self.features, from_host(factor, self.array))

    def _class_by_class(self, factor: np.ndarray) -> LaplaceExamples | None:
        """Form of examples, where its factorisations class by class are exact and cheaper."""
        (examples, paths, width), outputs = self.features.shape, self.labels.shape[1]
        sizes = Sizes(examples, paths, width, outputs, classes=True)
        if limit_form(sizes, "features") != "blocks":
            return None
        form = LaplaceExamples(self.labels, self.likelihood, features=self.features)
        return form if form.has_class_blocks(factor) else None

    def evaluate_energy(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray | None]:
        """Energy alone, see :meth:`Form.evaluate_energy`."""
        scaled = factor if scales is None else scales * factor
        class_by_class = self._class_by_class(scaled)
        if class_by_class is not None:
            return class_by_class.evaluate_energy(scaled, temperature)
        _, point = self._mode(self._mixed(scaled))
        lower = point.rest[1]
        log_det = log_determinant(lower, array_namespace(lower=lower))
        return float(log_det) - 2 * float(point.value), None

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient on the host, see :meth:`Form.energy_and_gradient`."""
        xp = array_namespace(array=self.array)
        mixed = self._mixed(factor if scales is None else scales * factor)
        variables, point = self._mode(mixed)
        evaluate = compile_function(_energy, xp, static=("likelihood", "paths"))
        energy, gradient = evaluate(
            mixed,
            self.labels,
            point.value,
            variables,
            point.rest,
            likelihood=self.likelihood,
            paths=factor.shape[1],
        )
        # Bᵀ G B → G; with scales s of the paths B is sB, and the chain rule gives s G s
        half = scipy.linalg.solve_triangular(factor, to_host(gradient), lower=True, trans="T")
        return float(energy), scipy.linalg.solve_triangular(factor, half.T, lower=True, trans="T")

    def posterior(self, factor: np.ndarray, temperature: float) -> ClassPosterior:
        """Gaussian posterior of the outputs at U_1 = factor factorᵀ."""
        class_by_class = self._class_by_class(factor)
        if class_by_class is not None:
            return class_by_class.posterior(factor, temperature)
        variables, point = self._mode(self._mixed(factor))
        return FeaturePosterior(self.likelihood, variables, point.rest[1])

    def full_kernel(self, factor: np.ndarray) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C), of a factor on the host."""
        mixed = self._mixed(factor)
        return matmul(mixed, array_namespace(mixed=mixed).matrix_transpose(mixed))

    def training_probabilities(self, factor: np.ndarray) -> Array:
        """Probabilities of the classes of the training examples, (P, classes), posterior."""
        xp, mixed = array_namespace(array=self.array), self._mixed(factor)
        _, point = self._mode(mixed)
        whitened = solve_triangular(point.rest[1], xp.matrix_transpose(mixed), xp)
        covariances = gram_blocks(whitened, self.labels.shape[1])
        return self.likelihood.probabilities(point.rest[0], covariances).values

    def keep_paths(self, paths: np.ndarray) -> LaplaceFeatures:
        """Same form for a sub-network of these paths."""
        return replace(self, features=self._squared.keep_paths(paths).features, memory=None)


@dataclass(frozen=True, eq=False)
class FeaturePosterior(ClassPosterior):
    """Posterior from the mode of the variables v of features.

    Attributes
    ----------
    variables : array, shape (n·N_0·C, 1)
        v of the mode f = Φ̃v.
    lower : array, shape (n·N_0·C, n·N_0·C)
        L of H = LLᵀ.
    """

    variables: Array
    lower: Array

    def mean(self, new: Array, factor: Array, basis: Array | None = None) -> Array:
        """Mean (P_new, C), of attentioned inputs (P_new, n, N_0)."""
        xp = array_namespace(xi=new)
        mixed = mixed_features(scaled_features(new, basis), factor)
        return xp.reshape(matmul(mixed, self.variables), (new.shape[0], -1))

    def joint_moments(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean (P_new, C) and covariances of the outputs (P_new, C, C)."""
        evaluate = compile_function(_moments, array_namespace(xi=new))
        return evaluate(new, factor, basis, self.variables, self.lower)


def mixed_features(features: Array, factor: Array) -> Array:
    """Φ (B ⊗ 1) of the rows (example, output), (P·C, n·C·N_0), of features (P, n, N_0)."""
    xp, (examples, paths, _) = array_namespace(features=features), features.shape
    outputs = factor.shape[0] // paths
    of_outputs = xp.permute_dims(xp.reshape(factor, (paths, outputs, -1)), (1, 2, 0))
    mixed = xp.stack(
        [matmul(of_outputs[output, ...], features) for output in range(outputs)], axis=1
    )
    return xp.reshape(mixed, (examples * outputs, -1))


def _value(mixed: Array, targets: Array, variables: Array, *, likelihood: ClassLikelihood) -> Array:
    xp = array_namespace(mixed=mixed)
    outputs = xp.reshape(matmul(mixed, variables), targets.shape)
    return likelihood.log_density(outputs, targets) - 0.5 * xp.sum(variables**2)


def _step(
    mixed: Array, targets: Array, variables: Array, *, likelihood: ClassLikelihood
) -> tuple[Array, Array, Array, Array, Array, tuple[Array, ...]]:
    xp = array_namespace(mixed=mixed)
    outputs = xp.reshape(matmul(mixed, variables), targets.shape)
    gradient, root = likelihood.derivatives(outputs, targets)
    curvature = gram_matrix(transposed_blocks(root, mixed), xp)  # Φ̃ᵀWΦ̃
    lower = cholesky(add_to_diagonal(curvature, 1.0, xp), xp)
    of_features = matmul(xp.matrix_transpose(mixed), xp.reshape(gradient, (-1, 1)))
    residual = of_features - variables
    step = solve_transposed(lower, solve_triangular(lower, residual, xp), xp)
    log_density = likelihood.log_density(outputs, targets)
    value = log_density - 0.5 * xp.sum(variables**2)
    value = value + 0 * log_determinant(lower, xp)  # NaN after an overflow, whose step may be 0
    change = xp.max(xp.abs(matmul(mixed, step)))
    # as for kernels, whose diagonal is |φ|²: the rounding of Φ̃ᵀ∂ln p/∂f returns in f = Φ̃v
    size = xp.max(xp.sum(mixed**2, axis=1)) * xp.sum(xp.abs(gradient))
    rounding = roundings(size, gradient, log_density)
    return value, step, xp.sum(residual * step), change, rounding, (outputs, lower)


def _energy(
    mixed: Array,
    targets: Array,
    value: Array,
    variables: Array,
    pieces: tuple[Array, ...],
    *,
    likelihood: ClassLikelihood,
    paths: int,
) -> tuple[Array, Array]:
    """Energy, and Bᵀ(∂E/∂U_1)B (n·C, n·C)."""
    xp, (outputs, lower) = array_namespace(mixed=mixed), pieces
    whitened = solve_triangular(lower, xp.matrix_transpose(mixed), xp)  # Σ is its Gram matrix
    covariances = gram_blocks(whitened, outputs.shape[1])
    slope = xp.reshape(likelihood.curvature_slope(outputs, targets, covariances), (-1, 1))
    moved = solve_transposed(lower, matmul(whitened, slope), xp)
    by_path = (paths, -1)
    v, h = xp.reshape(variables, by_path), xp.reshape(moved, by_path)
    inverse = invert_triangular(lower, xp)
    blocks = sum_over_inputs(xp.reshape(inverse, (-1, *v.shape)), xp)
    motion = matmul(h, xp.matrix_transpose(v))
    gradient = v.shape[1] * identity(paths, mixed, xp) - blocks
    gradient = gradient - matmul(v, xp.matrix_transpose(v))
    gradient = gradient + 0.5 * (motion + xp.matrix_transpose(motion))
    return log_determinant(lower, xp) - 2 * value, gradient


def _moments(
    xi: Array, factor: Array, basis: Array | None, variables: Array, lower: Array
) -> tuple[Array, Array]:
    xp, outputs = array_namespace(xi=xi), factor.shape[0] // xi.shape[1]
    mixed = mixed_features(scaled_features(xi, basis), factor)
    mean = xp.reshape(matmul(mixed, variables), (-1, outputs))
    transposed = xp.matrix_transpose(mixed)
    covariances = gram_blocks(solve_triangular(lower, transposed, xp), outputs)
    if basis is None:
        return mean, covariances
    # new examples have a prior variance outside the span of the training inputs, too
    outside = prior_covariances(xi, factor) - gram_blocks(transposed, outputs)
    return mean, covariances + outside
