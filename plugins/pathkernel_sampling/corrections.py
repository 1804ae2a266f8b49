"""Next order in 1/N of ⟨U⟩, log evidence and predictor, around the saddle of the exact hierarchy.

In the coordinates x of :mod:`pathkernel_core.coordinates` (relative triangular factors X_ℓ with
logarithmic diagonals) the exact posterior density of the Wishart hierarchy is

    p(x, Y) ∝ exp(−φ(x) − c(x)),      φ = S/2,      c = Σ_ℓ Σ_j j · ln (X_ℓ)_jj,   j = 0, 1, …

with S the action, not divided by N. There is no gauge freedom left and c is linear, so Laplace's
method to next order needs the second to fourth derivatives of S at its minimum and nothing else.
They come in two parts: those of the energy with respect to U are traces of products of P × P
matrices, written out below; those of U and of the entropy with respect to x are taken by automatic
differentiation of small matrices. docs/corrections.md derives the formulas.
"""

# ruff: noqa: E402
from __future__ import annotations

from pathkernel_core.extras import import_extra

import_extra("jax", "The next order in 1/N", "sampling", ["jax", "jaxlib"])

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from pathkernel_core.backend import batches, to_host
from pathkernel_core.coordinates import (
    ChainCoordinates,
    Level,
    chain_factors,
    chain_levels,
    excess_entropy,
    relative_factors,
)
from pathkernel_core.errors import PrecisionError
from pathkernel_core.kernels import PathKernels
from pathkernel_core.network import Network
from pathkernel_core.solution import Prediction, Solution, Status
from pathkernel_core.spaces import per_output

Array = Any  # of JAX

_BLOCK_ELEMENTS = 2**22  # products of kernels held at once, 32 MiB


@dataclass(frozen=True)
class Correction:
    """The saddle point's order parameter and log evidence, and their next order in 1/N.

    Attributes
    ----------
    order_parameter : array, shape (n·C, n·C)
        U at the minimum of the action.
    order_parameter_correction : array, shape (n·C, n·C)
        To be added for ⟨U⟩, the posterior mean at finite width.
    order_parameter_covariance : array, shape (p, p)
        Posterior covariance, to leading order 1/N, of the p = nC(nC + 1)/2 entries of U on and
        below the diagonal, in the order of ``numpy.tril_indices``.
    log_evidence : float
        Leading order ln p(Y), in nats: ``Solution.log_evidence``.
    log_evidence_correction : float
        To be added for the next order, in nats: fluctuations around the minimum (one loop) and
        the cubic and quartic terms (two loops), both relative to those of the prior.
    log_evidence_two_loops : float
        The part of the correction due to the cubic and quartic terms. The expansion can be
        trusted while this is well below one.
    """

    order_parameter: np.ndarray
    order_parameter_correction: np.ndarray
    order_parameter_covariance: np.ndarray
    log_evidence: float
    log_evidence_correction: float
    log_evidence_two_loops: float

    @property
    def mean_order_parameter(self) -> np.ndarray:
        """⟨U⟩ to next order, (n·C, n·C)."""
        return self.order_parameter + self.order_parameter_correction

    @property
    def next_log_evidence(self) -> float:
        """Log evidence to next order, in nats."""
        return self.log_evidence + self.log_evidence_correction


def next_order(solution: Solution) -> Correction:
    """Next order in 1/N of ⟨U⟩ and of the log evidence.

    With the number of examples P in proportion to N the errors left are O(1/N²) of both, where
    the saddle's are O(1) of the log evidence and O(1/N) of ⟨U⟩; at fixed P they are O(1/N³), where
    the saddle's are O(1/N) and O(1/N²). The time goes into p²/2 products of R × R matrices, with
    p = nC(nC + 1)/2 entries of U and R the smaller of P·C and n·N_0·C; two sets of p such matrices
    are held. The first call for a network compiles its derivatives, which takes seconds.

    Parameters
    ----------
    solution : Solution
        Converged minimum of the action in float64, in either form of the energy.

    Raises
    ------
    ValueError
        If the solution did not converge, or a width is smaller than its order parameter: there
        U is singular, and its prior has no density to expand.
    PrecisionError
        If the solution or JAX works in single precision.
    """
    _check(solution)
    network = solution.network
    x = ChainCoordinates(network).from_factors(solution.factors)
    energy = _Energy(solution)
    chain = _Chain(network)

    # one loop: Hessian of φ
    jacobian = chain.jacobian(x)  # ∂U/∂x, (p, D)
    linear = chain.hessian(x, energy.first)  # of (entropy + energy linearised in U)/2
    hessian = linear + jacobian.T @ energy.second @ jacobian / 2
    try:
        lower = np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        raise ValueError(
            "the action has no minimum here: its Hessian's smallest eigenvalue is "
            f"{np.linalg.eigvalsh(hessian)[0]:.3g}; minimise it to a lower tolerance"
        ) from None
    # x = x* + V z makes the Hessian in z the identity; all that follows is in z
    directions = solve_triangular(lower, np.eye(len(x)), lower=True).T
    slope = directions.T @ chain.remainder
    jacobian = jacobian @ directions
    curvature = chain.curvature(x, directions)  # ∂²U/∂z², (p, D, D)
    laplacian = np.trace(curvature, axis1=1, axis2=2)
    second = energy.second

    # cubic and quartic terms of φ
    covariance = jacobian @ jacobian.T  # of U at one loop
    basis = np.linalg.cholesky(covariance)
    third, fourth = energy.higher(basis)
    whitened = solve_triangular(basis, jacobian, lower=True)
    cubic = np.einsum("rst,ri,sj,tk->ijk", third, whitened, whitened, whitened, optimize=True)
    mixed = np.einsum("ai,ab,bjk->ijk", jacobian, second, curvature, optimize=True)
    cubic += mixed + mixed.transpose(1, 0, 2) + mixed.transpose(1, 2, 0)
    cubic = cubic / 2 + chain.cubic(x, directions, energy.first)

    relative = solve_triangular(basis, curvature.reshape(len(basis), -1), lower=True)
    relative = relative.reshape(curvature.shape)
    gradient = chain.laplacian_gradient(x, directions)  # ∂ΔU/∂z, (p, D)
    quartic = fourth + laplacian @ second @ laplacian
    quartic += 4 * np.einsum("ai,ab,bi->", jacobian, second, gradient, optimize=True)
    quartic += 2 * np.einsum("aij,ab,bij->", curvature, second, curvature, optimize=True)
    quartic += 2 * np.einsum("rrt,tii->", third, relative, optimize=True)
    quartic += 4 * np.einsum("rst,ri,sj,tij->", third, whitened, whitened, relative, optimize=True)
    quartic = quartic / 2 + chain.quartic(x, directions, energy.first)

    tadpole = np.trace(cubic, axis1=1, axis2=2)
    shift = -(slope + tadpole / 2)  # mean of z
    one_loop = -np.log(np.diagonal(lower)).sum() - chain.remainder @ x
    two_loops = (tadpole @ tadpole - quartic) / 8 + (cubic**2).sum() / 12
    two_loops += slope @ (slope + tadpole) / 2
    prior_one_loop, prior_two_loops = _prior_loops(network)
    two_loops -= prior_two_loops
    return Correction(
        order_parameter=to_host(solution.order_parameter).astype(float),
        order_parameter_correction=_unpack(laplacian / 2 + jacobian @ shift, network.sizes[0]),
        order_parameter_covariance=covariance,
        log_evidence=solution.log_evidence,
        log_evidence_correction=float(one_loop - prior_one_loop + two_loops),
        log_evidence_two_loops=float(two_loops),
    )


def predict_next_order(
    solution: Solution, xi: np.ndarray, correction: Correction | None = None
) -> Prediction:
    """Predictor's mean and variance on new examples to next order in 1/N.

    ``Solution.predict`` gives them at the saddle, as if U did not fluctuate. Here the variance is
    that of the posterior at finite width, ⟨v⟩ + ⟨(f − ⟨f⟩)²⟩, without the observation noise T.
    Their errors fall by one power of 1/N faster than those of ``Solution.predict``. Nothing forces
    the variance to be positive where the expansion cannot be trusted. The time goes into p² P_new R
    multiplications, with p and R of :func:`next_order`, and p products of R × R and R × P_new.

    Parameters
    ----------
    solution : Solution
        As for :func:`next_order`.
    xi : array, shape (P_new, n, N_0)
        Attentioned inputs of the new examples, in the solution's array library.
    correction : Correction, optional
        Of this solution, if it is computed already.

    Returns
    -------
    Prediction
        NumPy arrays of shape (P_new,) or (P_new, C).

    Raises
    ------
    ValueError, PrecisionError
        As :func:`next_order` and ``Solution.predict`` do.
    """
    saddle = solution.predict(xi)
    correction = next_order(solution) if correction is None else correction
    energy, problem, outputs = _Energy(solution), solution.problem, solution.network.outputs
    scale = math.sqrt(solution.network.variances[0] / (problem.n_paths * problem.input_width))
    new = per_output(scale * to_host(xi).astype(float), outputs)
    new = solution.network.path_scales[:, None] * new
    basis = None if problem.basis is None else to_host(problem.basis)
    step = max(1, _BLOCK_ELEMENTS // energy.per_new_example)
    of_order_parameter = (
        correction.order_parameter_correction,
        correction.order_parameter_covariance,
    )
    changes = [
        energy.moments(new[rows], basis, *of_order_parameter) for rows in batches(len(new), step)
    ]
    mean, variance = (np.concatenate(parts).reshape(saddle.mean.shape) for parts in zip(*changes))
    return Prediction(to_host(saddle.mean) + mean, to_host(saddle.variance) + variance)


def _check(solution: Solution) -> None:
    if solution.status is not Status.CONVERGED:
        raise ValueError(
            f"solution must be a converged minimum of the action, but is {solution.status.name}: "
            f"{solution.status.value}; solve again with minimise_action"
        )
    network = solution.network
    for number, (width, size) in enumerate(zip(network.degrees_of_freedom, network.sizes)):
        if width < size:
            raise ValueError(
                f"width N_{number} = {width:g} is smaller than the size {size} of its order "
                "parameter, which is singular then: there is no expansion around a saddle. Use a "
                f"width of at least {size}, or sample the posterior"
            )
    if to_host(solution.order_parameter).dtype != np.float64:
        raise PrecisionError("the solution is in single precision; solve in float64")
    if not jax.config.jax_enable_x64:
        raise PrecisionError(
            "JAX computes in single precision; set JAX_ENABLE_X64=1, or "
            'jax.config.update("jax_enable_x64", True), before any array is made'
        )


def _prior_loops(network: Network) -> tuple[float, float]:
    """Log of the prior's normaliser to one loop, and its two-loop term.

    The same expansion as for the posterior, rather than the exact Γ functions, so that what the
    data do not change cancels to all orders.
    """
    one, two = 0.0, 0.0
    of_levels = zip(network.degrees_of_freedom, network.sizes, network.shared_sizes)
    for width, size, shared in of_levels:
        column = np.arange(shared, size)
        one -= len(column) * math.log(2 * width) / 2 + column.sum() * math.log(width) / 2
        two += ((1 / 6 + column / 2 + column**2 / 4) / width).sum()
    return one, float(two)


def _unpack(packed: np.ndarray, size: int) -> np.ndarray:
    matrix = np.zeros((size, size))
    rows, columns = np.tril_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = packed
    return matrix


class _Energy:
    """Derivatives of the energy with respect to the p lower-triangular entries of U."""

    def __init__(self, solution: Solution):
        features, labels = _examples(solution.problem)
        features = math.sqrt(solution.network.variances[0]) * features
        features = solution.network.path_scales[:, None] * features
        count, size, _ = features.shape
        u = to_host(solution.order_parameter).astype(float)
        flat = features.reshape(count, -1)
        noisy = np.einsum("ab,pbi->pai", u, features).reshape(count, -1) @ flat.T
        noisy[np.diag_indices(count)] += solution.temperature
        lower = np.linalg.cholesky((noisy + noisy.T) / 2)
        self._order_parameter = u
        self._features = solve_triangular(lower, flat, lower=True).reshape(features.shape)  # L⁻¹ Φ
        self._labels = solve_triangular(lower, labels, lower=True)  # w = L⁻¹ Y
        self._pairs = list(zip(*np.tril_indices(size)))
        self._kernels = np.empty((len(self._pairs), count, count))  # A = L⁻¹ ∂K/∂U L⁻ᵀ
        for kernel, pair in zip(self._kernels, self._pairs):
            kernel[:] = _pair_kernel(self._features, self._features, *pair)
        self._seen = self._kernels @ self._labels  # A_a w, (p, R)

    @cached_property
    def first(self) -> np.ndarray:
        """First derivatives, (p,)."""
        return np.trace(self._kernels, axis1=1, axis2=2) - self._seen @ self._labels

    @cached_property
    def second(self) -> np.ndarray:
        """Second derivatives, (p, p)."""
        stack = self._kernels.reshape(len(self._seen), -1)
        return 2 * self._seen @ self._seen.T - stack @ stack.T

    def higher(self, basis: np.ndarray) -> tuple[np.ndarray, float]:
        """Third derivatives in the directions of a basis, and Σ_rs of the fourth in r, r, s, s.

        ``basis`` has one direction per column, (p, p).
        """
        count, size = len(self._labels), len(basis)
        stack = basis.T @ self._kernels.reshape(size, -1)
        kernels = stack.reshape(self._kernels.shape)
        seen = kernels @ self._labels
        twice = np.einsum("sij,rj->rsi", kernels, seen, optimize=True)  # A_s A_r w
        sandwich = np.einsum("rsi,ti->rst", twice, seen, optimize=True)  # wᵀ A_r A_s A_t w

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
        fits = mapped @ mapped + np.einsum("ri,ij,rj->", seen, square, seen, optimize=True)
        fits += np.einsum("rsi,sri->", twice, twice)
        return third, 8 * fits - 4 * (square**2).sum() - 2 * crossed

    @property
    def per_new_example(self) -> int:
        """Numbers that :meth:`moments` holds for each row of new examples."""
        return 2 * self._seen.size

    def moments(
        self, new: np.ndarray, basis: np.ndarray | None, moved: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the next order adds to mean and variance of the predictor, (rows,) each.

        With κ = L⁻¹ k(x) and ρ_a = L⁻¹ ∂k(x)/∂U_a − A_a κ: f_a = ρ_a·w, and under a sum with a
        symmetric matrix f_ab = −2 ρ_a·A_b w, v_ab = −2 ρ_a·ρ_b.

        Parameters
        ----------
        new : array, shape (rows, n·C, N_0)
            Scaled features of new examples, with the factor σ_0.
        basis : array, shape (N_0, rank) or None
            Into which the training examples were rotated.
        moved, covariance : arrays, shapes (n·C, n·C) and (p, p)
            Shift of the mean of U, and covariance of its lower triangle.
        """
        prior = np.einsum("tai,ab,tbi->t", new, moved, new, optimize=True)
        new = new if basis is None else new @ basis
        flat = self._features.reshape(len(self._labels), -1)
        kernel, kernel_moved = (  # κ, and its derivative along the shift, (R, rows)
            flat @ np.einsum("ab,tbi->tai", matrix, new).reshape(len(new), -1).T
            for matrix in (self._order_parameter, moved)
        )
        slopes = np.empty((len(self._pairs), *kernel.shape))  # ρ
        for slope, derivative, pair in zip(slopes, self._kernels, self._pairs):
            slope[:] = _pair_kernel(self._features, new, *pair) - derivative @ kernel
        of_mean = self._labels @ slopes  # (p, rows)
        along = moved[np.tril_indices(len(moved))]
        mean = along @ of_mean - np.einsum("art,ar->t", slopes, covariance @ self._seen)
        slope_moved = np.tensordot(along, slopes, 1)
        variance = prior - ((kernel_moved + slope_moved) * kernel).sum(axis=0)
        variance -= np.einsum("art,art->t", slopes, np.tensordot(covariance, slopes, 1))
        variance += np.einsum("at,at->t", of_mean, covariance @ of_mean)
        return mean, variance


def _pair_kernel(one: np.ndarray, two: np.ndarray, row: int, column: int) -> np.ndarray:
    """Derivative of the kernel with respect to U's entry at (row, column) and (column, row)."""
    product = one[:, row] @ two[:, column].T
    return product if row == column else product + one[:, column] @ two[:, row].T


def _examples(problem: PathKernels) -> tuple[np.ndarray, np.ndarray]:
    """Features (R, n·C, N_0) and labels (R,), as few as give the energy up to a constant."""
    form, outputs = problem.form, problem.outputs
    if problem.space != "features":
        features = to_host(form.features).astype(float)
        labels = to_host(form.labels).astype(float)
        shape = features.shape[1:]
        if len(features) > math.prod(shape):
            rotation, features = np.linalg.qr(features.reshape(len(features), -1))
            labels = rotation.T @ labels
    else:
        gram = to_host(form.gram).astype(float)
        shape = gram.shape[:2]
        size = math.prod(shape)
        values, vectors = np.linalg.eigh(gram.reshape(size, size))
        kept = values > values[-1] * size * np.finfo(float).eps
        roots, vectors = np.sqrt(values[kept]), vectors[:, kept]
        features = roots[:, None] * vectors.T
        projections = to_host(form.projections).astype(float).reshape(size, outputs)
        labels = vectors.T @ projections / roots[:, None]
    return per_output(features.reshape(-1, *shape), outputs), labels.reshape(-1)


class _Chain:
    """Derivatives of U_1 and of the entropy with respect to the coordinates x of the chain."""

    def __init__(self, network: Network):
        levels = chain_levels(network)
        self._derivatives = _derivatives(levels)
        self._scales = np.sqrt(network.order_parameter_variances)
        self._widths = np.array(network.degrees_of_freedom)
        rows = [np.nonzero(level.free)[0] for level in levels]
        diagonals = [level.diagonal for level in levels]
        self.remainder = np.concatenate(rows) * np.concatenate(diagonals)
        """Gradient of c, (D,)."""

    def _call(self, name: str, *arguments: np.ndarray) -> np.ndarray:
        scales, widths = jnp.asarray(self._scales), jnp.asarray(self._widths)
        arguments = map(jnp.asarray, arguments)
        return np.asarray(self._derivatives[name](scales, widths, *arguments))

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        """∂U/∂x, (p, D)."""
        return self._call("jacobian", x)

    def curvature(self, x: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Second derivatives of U along pairs of directions, (p, D, D)."""
        return directions.T @ self._call("curvature", x) @ directions

    def laplacian_gradient(self, x: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Derivative along each direction of the sum of U's second derivatives, (p, D)."""
        return self._call("laplacian_gradient", x, directions) @ directions

    def hessian(self, x: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Hessian of half the entropy plus half the energy linearised in U, (D, D)."""
        return self._call("hessian", x, first)

    def cubic(self, x: np.ndarray, directions: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Third derivatives of the same along triples of directions, (D, D, D)."""
        return directions.T @ self._call("cubic", x, first, directions) @ directions

    def quartic(self, x: np.ndarray, directions: np.ndarray, first: np.ndarray) -> float:
        """Laplacian of the Laplacian of the same."""
        return float(self._call("quartic", x, first, directions))


@functools.cache
def _derivatives(levels: tuple[Level, ...]) -> dict[str, Callable]:
    """Compiled derivatives, each a function of σ_1 … σ_a, the widths and the point x."""

    def order_parameter(scales: Array, x: Array) -> Array:
        """Lower triangle of U_1, (p,)."""
        factor, *_ = chain_factors(relative_factors(x, levels, scales), levels, scales)
        return (factor @ factor.T)[np.tril_indices(len(factor))]

    def half_linear(scales: Array, widths: Array, x: Array, first: Array) -> Array:
        """Half the excess entropy, not divided by N, plus half the energy linearised in U."""
        return (first @ order_parameter(scales, x) + excess_entropy(x, levels, widths)) / 2

    def jacobian(scales: Array, widths: Array, x: Array) -> Array:
        return jax.jacfwd(partial(order_parameter, scales))(x)

    def curvature(scales: Array, widths: Array, x: Array) -> Array:
        return jax.jacfwd(jax.jacfwd(partial(order_parameter, scales)))(x)

    def laplacian_gradient(scales: Array, widths: Array, x: Array, directions: Array) -> Array:
        return jax.jacfwd(_laplacian(partial(order_parameter, scales), directions))(x)

    def hessian(scales: Array, widths: Array, x: Array, first: Array) -> Array:
        return jax.jacfwd(jax.jacfwd(lambda y: half_linear(scales, widths, y, first)))(x)

    def cubic(scales: Array, widths: Array, x: Array, first: Array, directions: Array) -> Array:
        slope = jax.jacfwd(jax.jacfwd(lambda y: half_linear(scales, widths, y, first)))
        return jax.lax.map(lambda v: jax.jvp(slope, (x,), (v,))[1], directions.T)

    def quartic(scales: Array, widths: Array, x: Array, first: Array, directions: Array) -> Array:
        once = _laplacian(lambda y: half_linear(scales, widths, y, first), directions)
        return _laplacian(once, directions)(x)

    functions = (jacobian, curvature, laplacian_gradient, hessian, cubic, quartic)
    return {function.__name__: jax.jit(function) for function in functions}


def _laplacian(function: Callable[[Array], Any], directions: Array) -> Callable:
    """Sum of a function's second derivatives along directions, one per column."""

    def second(x: Array, direction: Array) -> Array:
        def slope(y: Array) -> Array:
            return jax.jvp(function, (y,), (direction,))[1]

        return jax.jvp(slope, (x,), (direction,))[1]

    return lambda x: jnp.sum(jax.lax.map(lambda v: second(x, v), directions.T), axis=0)
