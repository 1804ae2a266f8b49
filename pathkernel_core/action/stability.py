"""Stability of a solution, and its linear response to everything that it was computed from.

Both come from the Hessian of the action in the chain's coordinates x, by products with vectors, so
that thousands of paths can be handled. Where a parameter θ moves, the minimum follows by

    dx/dθ = −(∂²S/∂x²)⁻¹ ∂²S/∂x∂θ,

which diverges where the softest eigenvalue vanishes: at a spinodal, the end of a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy

from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.threads import blas_threads_for

DENSE = 600  # coordinates up to which the Hessian is formed
# of the curvature of the prior at the narrowest level; smaller eigenvalues count as zero, since the
# tolerance of a minimisation leaves up to a hundredth of it along a ring of minima
MARGINAL = 1e-6


@dataclass(frozen=True, eq=False)
class Stability:
    """Softest directions of the action around a stationary point.

    Attributes
    ----------
    eigenvalues : array, shape (k,)
        Smallest eigenvalues of the Hessian of S/N in the chain's coordinates, ascending. The prior
        alone has 4 N_ℓ/N along the diagonal of a factor and 2 N_ℓ/N off it.
    modes : array, shape (k, n·C, n·C)
        Change of U along each eigenvector of unit length.
    threshold : float
        Size below which an eigenvalue counts as zero, 1e-6 of the prior's largest, 4 N_ℓ/N, at the
        smallest finite width.
    """

    eigenvalues: np.ndarray
    modes: np.ndarray = field(repr=False)
    threshold: float

    @property
    def softest(self) -> float:
        """Smallest eigenvalue; it vanishes at a spinodal, and along a ring of minima."""
        return float(self.eigenvalues[0])

    @property
    def n_unstable(self) -> int:
        """Number of negative eigenvalues among those computed."""
        return int((self.eigenvalues < -self.threshold).sum())

    @property
    def kind(self) -> str:
        """``"minimum"``, ``"saddle"``, or ``"marginal"`` where the softest eigenvalue vanishes."""
        if self.n_unstable:
            return "saddle"
        return "minimum" if self.softest > self.threshold else "marginal"


class ActionHessian:
    """Hessian of the action per width S/N in the chain's coordinates.

    Parameters
    ----------
    problem : Problem
    network : Network
    factors : sequence of arrays
        Lower triangular factors B_1, …, B_a of the order parameters; not only at a minimum.
    temperature : float
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        factors: Sequence[np.ndarray],
        temperature: float,
    ):
        self.network, self.problem = network, problem
        self.coordinates = ChainCoordinates(self.network)
        self._point = self.coordinates.from_factors(factors)
        self._relative = self.coordinates.relative_factors(self._point)
        self._factors = self.coordinates.factors(self._relative)
        self._scales = math.sqrt(self.network.kernel_variance) * self.network.path_scales[:, None]
        factor = self._scales * self._factors[0]
        with blas_threads_for(problem.evaluation_seconds):
            energy = problem.form.energy_and_gradient(factor, temperature)[1]
            self._slope = self._of_order_parameter(energy)
            self._curvature = problem.form.curvature(factor, temperature)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.coordinates.size

    @property
    def threshold(self) -> float:
        """Size below which an eigenvalue counts as zero."""
        return MARGINAL * 4 * self.network.smallest_width / self.network.width

    def product(self, direction: np.ndarray) -> np.ndarray:
        """Return the Hessian times a vector of coordinates, (size,)."""
        return self._gradient_change(self._relative_change(direction), None)

    @cached_property
    def matrix(self) -> np.ndarray:
        """The whole Hessian, (size, size), one product for every coordinate."""
        matrix = np.stack([self.product(unit) for unit in np.eye(self.size)])
        return (matrix + matrix.T) / 2  # rows differ from columns by rounding

    def smallest(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest eigenvalues (count,) and their eigenvectors (size, count).

        By Lanczos' method where the Hessian has more than 600 rows.

        Raises
        ------
        numpy.linalg.LinAlgError
            If Lanczos' method does not converge.
        ValueError
            If all widths are infinite, so that there are no coordinates.
        """
        if not self.size:
            raise ValueError("all widths are infinite, so that no order parameter can change")
        with blas_threads_for(self.problem.evaluation_seconds):
            return self._smallest(min(count, self.size))

    def _smallest(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        if self.size <= DENSE:
            return scipy.linalg.eigh(self.matrix, subset_by_index=(0, count - 1))
        operator = scipy.sparse.linalg.LinearOperator((self.size,) * 2, self.product, dtype=float)
        # ARPACK's own start would differ from call to call; a vector of ones could be orthogonal to
        # a mode that exchanges heads
        start = np.random.default_rng(0).normal(size=self.size)
        try:
            return scipy.sparse.linalg.eigsh(operator, count, which="SA", v0=start, tol=1e-5)
        except scipy.sparse.linalg.ArpackNoConvergence as error:
            raise np.linalg.LinAlgError(
                "the softest eigenvalue did not converge: the Hessian's smallest eigenvalues lie "
                "too close together; ask for more of them"
            ) from error

    def stability(self, count: int = 1) -> Stability:
        """Return the softest directions of the action."""
        values, vectors = self.smallest(count)
        modes = [self.order_parameter_change(vector) for vector in vectors.T]
        return Stability(values, np.stack(modes), self.threshold)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Return the vector (size,) that the Hessian takes to the given one.

        Raises
        ------
        numpy.linalg.LinAlgError
            If the action is flat along a direction, or the iteration does not converge.
        """
        if not self.size:
            return right
        with blas_threads_for(self.problem.evaluation_seconds):
            return self._solve(right)

    def _solve(self, right: np.ndarray) -> np.ndarray:
        if self.size <= DENSE:
            self.check_curved("linear response")
            return scipy.linalg.lu_solve(self._factorisation, right)
        # MINRES and LU, since at a saddle the Hessian is indefinite: conjugate gradients may break
        # down there, as Cholesky does. The curvature of the prior preconditions, symmetrically
        root = np.sqrt(self.coordinates.curvature)

        def product(vector: np.ndarray) -> np.ndarray:
            return self.product(vector / root) / root

        operator = scipy.sparse.linalg.LinearOperator((self.size,) * 2, product, dtype=float)
        solution, failed = scipy.sparse.linalg.minres(operator, right / root, rtol=1e-11)
        if failed:
            raise np.linalg.LinAlgError(
                "the linear response did not converge: the Hessian of the action is nearly singular"
            )
        solution = solution / root
        # Rayleigh quotient: it vanishes along a flat direction, which outgrows all others
        if abs(solution @ right) <= self.threshold * (solution @ solution):
            self.check_curved("linear response")
        return solution

    @cached_property
    def _factorisation(self) -> tuple[np.ndarray, np.ndarray]:
        return scipy.linalg.lu_factor(self.matrix)

    def check_curved(self, quantity: str) -> None:
        """Raise ``numpy.linalg.LinAlgError`` where the action is flat along a direction."""
        softest = self._softest
        if abs(softest) <= self.threshold:
            raise np.linalg.LinAlgError(
                f"no {quantity} here: the action is flat along a direction (softest eigenvalue "
                f"{softest:.2g}, zero within {self.threshold:.2g}), as on a ring of minima "
                "or at a spinodal; break the symmetry of the heads, or sample the posterior"
            )

    @cached_property
    def _softest(self) -> float:
        return float(self.smallest(1)[0][0])

    def order_parameter_change(self, direction: np.ndarray) -> np.ndarray:
        """Return the change of U_1 (n·C, n·C) along a vector of coordinates."""
        changes = self._factor_changes(self._relative_change(direction))
        return _square_change(self._factors[0], changes[0])

    def response(
        self,
        energy_slope: np.ndarray | None = None,
        log_scales: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return dU_1/dθ (n·C, n·C), where θ changes the action as given.

        Parameters
        ----------
        energy_slope : array, shape (n·C, n·C), optional
            Derivative of ∂(S/N)/∂U_1 with respect to θ at fixed U_1.
        log_scales : array, shape (L + 1,), optional
            Derivatives of ln σ_1, …, ln σ_L, ln σ_a.
        """
        # what changes at fixed coordinates: B_ℓ by its factor σ_ℓ, and the rows 1/σ_ℓ of X_ℓ, which
        # a skip fixes, so that their product stays
        still = [np.zeros_like(factor) for factor in self._relative]
        if log_scales is not None:
            levels = zip(still, self.coordinates.levels, self.coordinates.scales, log_scales)
            for change, level, scale, log_scale in levels:
                change.flat[: level.shared * level.rows : level.rows + 1] = -log_scale / scale
        force = self._gradient_change(still, log_scales, energy_slope)
        change = self._relative_change(-self.solve(force))
        total = [one + other for one, other in zip(change, still)]
        factor_change = self._factor_changes(total, log_scales)[0]
        return _square_change(self._factors[0], factor_change)

    def temperature_slope(self) -> np.ndarray:
        """Return the derivative of ∂(S/N)/∂U_1 with respect to T at fixed U_1."""
        return self._of_order_parameter(self._curvature.with_temperature())

    def label_slope(self, change: np.ndarray) -> np.ndarray:
        """Return the derivative of ∂(S/N)/∂U_1 along a change of the labels (P, C)."""
        return self._of_order_parameter(self._curvature.with_labels(change))

    def row_scale_slope(self, logs: np.ndarray) -> np.ndarray:
        """Return the derivative of ∂(S/N)/∂U_1 as rows' features scale; logs (n·C,)."""
        # the energy is E(sUs) with s = e^{logs}, its slope in U is s E′(sUs) s: the product rule
        order_parameter = self._factors[0] @ self._factors[0].T
        direction = logs[:, None] * order_parameter
        slope = logs[:, None] * self._slope
        return self._energy_change(direction + direction.T) + slope + slope.T

    def _of_order_parameter(self, slope: np.ndarray) -> np.ndarray:
        """Slope with respect to U_1 per width from that with respect to σ²_0 c_π c_π' U_1."""
        return self._scales * slope * self._scales.T / self.network.width

    def _energy_change(self, direction: np.ndarray) -> np.ndarray:
        """Change of the energy's gradient per width along dU_1."""
        along = self._curvature.along(self._scales * direction * self._scales.T)
        return self._of_order_parameter(along)

    def _relative_change(self, direction: np.ndarray) -> list[np.ndarray]:
        """Changes of X_1, …, X_a along a vector of coordinates."""
        changes = []
        for level, factor in zip(self.coordinates.levels, self._relative):
            entries = direction[level.part].copy()
            entries[level.diagonal] *= factor[level.free][level.diagonal]
            change = np.zeros_like(factor)
            change[level.free] = entries
            changes.append(change)
        return changes

    def _factor_changes(
        self, relative: Sequence[np.ndarray], log_scales: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Changes of B_1, …, B_a for changes of X_1, …, X_a and of ln σ_1, …, ln σ_a."""
        levels, scales = self.coordinates.levels, self.coordinates.scales
        logs = np.zeros(len(levels)) if log_scales is None else log_scales
        changes = [scales[-1] * relative[-1] + logs[-1] * self._factors[-1]]
        for number in reversed(range(len(levels) - 1)):
            level, scale = levels[number], scales[number]
            change = np.matmul(self._factors[number + 1], level.blocks(relative[number]))
            change += np.matmul(changes[0], level.blocks(self._relative[number]))
            change = scale * change.reshape(relative[number].shape)
            changes.insert(0, change + logs[number] * self._factors[number])
        return changes

    def _gradient_change(
        self,
        relative: Sequence[np.ndarray],
        log_scales: np.ndarray | None,
        energy_slope: np.ndarray | None = None,
    ) -> np.ndarray:
        """Change of the gradient in the coordinates (:meth:`ChainCoordinates.gradient`)."""
        # That method line by line, each value with its differential by the product rule: a product
        # with the exact Hessian for two or three gradients, where differences of gradients would
        # lose half of the digits, and with them an eigenvalue near zero
        changes = self._factor_changes(relative, log_scales)
        logs = np.zeros(len(changes)) if log_scales is None else log_scales
        energy_change = self._energy_change(_square_change(self._factors[0], changes[0]))
        if energy_slope is not None:
            energy_change = energy_change + energy_slope
        down = 2 * self._slope @ self._factors[0]  # with respect to B_ℓ, from B_1 up
        down_change = 2 * (energy_change @ self._factors[0] + self._slope @ changes[0])
        gradient = np.empty(self.size)
        for number, level in enumerate(self.coordinates.levels):
            scale = self.coordinates.scales[number]
            weight = self.coordinates.weights[number]
            factor, change = self._relative[number], relative[number]
            slope, slope_change = scale * down, scale * (down_change + logs[number] * down)
            if number + 1 < len(changes):
                above, above_change = self._factors[number + 1], changes[number + 1]
                slope_change = np.matmul(above.T, level.blocks(slope_change))
                slope_change += np.matmul(above_change.T, level.blocks(slope))
                down_blocks, blocks = level.blocks(scale * down), level.blocks(factor)
                down_change = np.matmul(
                    level.blocks(scale * (down_change + logs[number] * down)),
                    _transpose_blocks(blocks),
                ) + np.matmul(down_blocks, _transpose_blocks(level.blocks(change)))
                down = np.matmul(down_blocks, _transpose_blocks(blocks)).sum(axis=0)
                down_change = down_change.sum(axis=0)
                slope_change = slope_change.reshape(factor.shape)
                slope = np.matmul(above.T, level.blocks(slope)).reshape(factor.shape)
            # of the entropy weight · (|X|² − 2 Σ ln X_jj) the first term; the slope of the second
            # in a logarithmic coordinate is a constant
            slope = slope + 2 * weight * factor
            slope_change = slope_change + 2 * weight * change
            entries = slope_change[level.free]
            diagonal = entries[level.diagonal] * factor[level.free][level.diagonal]
            diagonal += (slope * change)[level.free][level.diagonal]
            entries[level.diagonal] = diagonal
            gradient[level.part] = entries
        return gradient


def _transpose_blocks(blocks: np.ndarray) -> np.ndarray:
    return blocks.transpose(0, 2, 1)


def _square_change(factor: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Change of B Bᵀ."""
    product = change @ factor.T
    return product + product.T


class Response:
    """Linear response of U to the temperature, the variances, the labels and the paths.

    Each attribute is computed when it is first read, from one solve with the Hessian per parameter.
    They diverge at a spinodal, where ``solution.stability().softest`` vanishes. Raises
    ``numpy.linalg.LinAlgError`` there, and on a ring of minima.

    Parameters
    ----------
    hessian : ActionHessian
        At a converged solution.
    """

    def __init__(self, hessian: ActionHessian):
        self._hessian = hessian
        self._network, self._problem = hessian.network, hessian.problem

    @cached_property
    def temperature(self) -> np.ndarray:
        """dU/dT, (n·C, n·C)."""
        return self._hessian.response(self._hessian.temperature_slope())

    @cached_property
    def variances(self) -> np.ndarray:
        """dU/dσ² of σ²_0, σ²_1, …, σ²_L, σ²_a, (L + 2, n·C, n·C)."""
        network = self._network
        # σ²_0 scales the features alone; the others move B at fixed X. All by d ln σ = ½ dσ²/σ²
        rows = np.ones(network.sizes[0])
        projection = self._hessian.response(self._hessian.row_scale_slope(0.5 * rows))
        units = 0.5 * np.eye(network.n_layers + 1)
        values = [self._hessian.response(log_scales=unit) for unit in units]
        return np.stack([projection, *values]) / np.array(network.variances)[:, None, None]

    @cached_property
    def labels(self) -> np.ndarray:
        """dU/dY of every label, (P, C, n·C, n·C).

        Raises
        ------
        ValueError
            If the problem is in feature space, which does not hold the examples.
        """
        shape = (self._problem.n_examples, self._network.outputs)
        units = np.eye(math.prod(shape)).reshape(-1, *shape)
        responses = [self.along_labels(unit) for unit in units]
        return np.stack(responses).reshape(*shape, *responses[0].shape)

    def along_labels(self, change: np.ndarray) -> np.ndarray:
        """Return the change of U (n·C, n·C) along a change of the labels, (P,) or (P, C).

        Raises
        ------
        ValueError
            If the problem is in feature space, which does not hold the examples.
        """
        return self._hessian.response(self._hessian.label_slope(np.asarray(change)))

    @cached_property
    def path_norms(self) -> np.ndarray:
        """dU/d ln|ξ^π| as all attentioned inputs of a path are scaled, (n, n·C, n·C)."""
        outputs = self._network.outputs
        rows = np.repeat(np.eye(self._network.n_paths), outputs, axis=1)
        slopes = map(self._hessian.row_scale_slope, rows)
        return np.stack([self._hessian.response(slope) for slope in slopes])
