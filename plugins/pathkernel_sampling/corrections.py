"""Next order in 1/N of ⟨U⟩, log evidence and predictor, around the saddle of the exact hierarchy.

In the coordinates x of :mod:`pathkernel_core.coordinates` (relative triangular factors X_ℓ with
logarithmic diagonals) the exact posterior density of the Wishart hierarchy is

    p(x, Y) ∝ exp(−φ(x) − c(x)),      φ = S/2,      c = Σ_ℓ Σ_j j · ln (X_ℓ)_jj,   j = 0, 1, …

with S the action, not divided by N. There is no gauge freedom left and c is linear, so Laplace's
method to next order needs the second to fourth derivatives of S at its minimum and nothing else.
They come in two parts: those of the energy with respect to U are traces of products of P × P
matrices, in :mod:`pathkernel_sampling.energy_derivatives`; those of U and of the entropy with
respect to x are taken by automatic differentiation of small matrices, in
:mod:`pathkernel_sampling.chain_derivatives`. docs/corrections.md derives the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from pathkernel_core.backend import array_namespace, to_host
from pathkernel_core.coordinates import ChainCoordinates, check_shared
from pathkernel_core.errors import PrecisionError
from pathkernel_core.network import Network
from pathkernel_core.solution import Prediction, Solution, Status
from pathkernel_core.text import number
from pathkernel_sampling.chain_derivatives import derivatives, derivatives_along
from pathkernel_sampling.energy_derivatives import EnergyDerivatives


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
    are in memory. The first call for a network compiles its derivatives, which takes seconds.

    Parameters
    ----------
    solution : Solution
        Converged minimum of the action in float64, in either form of the energy.

    Raises
    ------
    ValueError
        If the solution did not converge to a minimum, or to one of a ring of minima, or a width is
        smaller than its order parameter: there U is singular, and its prior has no density to
        expand.
    PrecisionError
        If the solution or JAX works in single precision.

    Notes
    -----
    Look at ``log_evidence_two_loops`` first: where it was below 0.1 nats the correction closed 95 %
    of the gap to samples, at 0.3 about 90 %; near 1, or where ``solution.close_minima`` is not
    empty, sample instead.
    """
    _check(solution)
    network, energy = solution.network, EnergyDerivatives(solution)
    coordinates = ChainCoordinates(network)
    x = coordinates.from_factors(solution.factors)
    scales, widths = np.array(coordinates.scales), np.array(network.widths)
    chain = coordinates.levels, scales, widths, x, energy.first
    rows = np.concatenate([np.nonzero(level.free)[0] for level in coordinates.levels])
    remainder = rows * np.concatenate([level.diagonal for level in coordinates.levels])  # ∂c/∂x

    # one loop: Hessian of φ
    jacobian, curvature, linear = map(np.asarray, derivatives(*chain))
    hessian = linear + jacobian.T @ energy.second @ jacobian / 2
    _check_curved(hessian, solution)
    lower = np.linalg.cholesky(hessian)
    # x = x* + V z makes the Hessian in z the identity; all that follows is in z
    directions = solve_triangular(lower, np.eye(len(x)), lower=True).T
    slope = directions.T @ remainder
    jacobian = jacobian @ directions
    curvature = directions.T @ curvature @ directions  # ∂²U/∂z², (p, D, D)
    laplacian = np.trace(curvature, axis1=1, axis2=2)
    second = energy.second
    along = map(np.asarray, derivatives_along(*chain, directions))
    laplacian_gradient, chain_cubic, chain_quartic = along

    # cubic and quartic terms of φ, by the chain rule through U (docs/corrections.md, Derivatives):
    # third derivatives of the energy are taken along as many directions as U has entries, the
    # columns of a root of its covariance, and not along all D coordinates
    covariance = jacobian @ jacobian.T  # of U at one loop
    basis = np.linalg.cholesky(covariance)
    third, fourth = energy.higher(basis)
    whitened = solve_triangular(basis, jacobian, lower=True)
    cubic = np.einsum("rst,ri,sj,tk->ijk", third, whitened, whitened, whitened, optimize=True)
    mixed = np.einsum("ai,ab,bjk->ijk", jacobian, second, curvature, optimize=True)
    cubic += mixed + mixed.transpose(1, 0, 2) + mixed.transpose(1, 2, 0)
    cubic = cubic / 2 + directions.T @ chain_cubic @ directions

    relative = solve_triangular(basis, curvature.reshape(len(basis), -1), lower=True)
    relative = relative.reshape(curvature.shape)
    gradient = laplacian_gradient @ directions  # ∂ΔU/∂z, (p, D)
    quartic = fourth + laplacian @ second @ laplacian
    quartic += 4 * np.einsum("ai,ab,bi->", jacobian, second, gradient, optimize=True)
    quartic += 2 * np.einsum("aij,ab,bij->", curvature, second, curvature, optimize=True)
    quartic += 2 * np.einsum("rrt,tii->", third, relative, optimize=True)
    quartic += 4 * np.einsum("rst,ri,sj,tij->", third, whitened, whitened, relative, optimize=True)
    quartic = quartic / 2 + float(chain_quartic)

    tadpole = np.trace(cubic, axis1=1, axis2=2)
    shift = -(slope + tadpole / 2)  # mean of z
    one_loop = -np.log(np.diagonal(lower)).sum() - remainder @ x
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
    solution: Solution,
    xi: np.ndarray,
    own: np.ndarray | None = None,
    *,
    correction: Correction | None = None,
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
    own : array, shape (n, n, P_new), optional
        For a problem of given kernels, as for ``Solution.predict``; ``xi`` then has the kernels
        (n, n, P_new, P) of new and training examples.
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
    saddle = solution.predict(xi, own)
    correction = next_order(solution) if correction is None else correction
    mean, variance = EnergyDerivatives(solution).of_predictor(
        to_host(xi).astype(float),
        correction.order_parameter_correction,
        correction.order_parameter_covariance,
        None if own is None else to_host(own).astype(float),
    )
    shape = saddle.mean.shape
    return Prediction(
        to_host(saddle.mean) + mean.reshape(shape),
        to_host(saddle.variance) + variance.reshape(shape),
    )


def _check_curved(hessian: np.ndarray, solution: Solution) -> None:
    """Refuse a point with a direction along which φ = S/2 falls or is flat."""
    half_width = solution.network.width / 2  # of the threshold, which is of S/N
    softest = np.linalg.eigvalsh(hessian)[0] / half_width
    threshold = solution.hessian.threshold
    if abs(softest) <= threshold:
        raise ValueError(
            "no next order here: the action is flat along a direction (softest eigenvalue "
            f"{softest:.2g} of S/N, zero within {threshold:.2g}), as on a ring of minima "
            "or at a spinodal, and fluctuations along it are unbounded; break the symmetry of the "
            "heads, or sample the posterior"
        )
    if softest < 0:
        raise ValueError(
            "the action has no minimum here: the smallest eigenvalue of the Hessian of S/N is "
            f"{softest:.3g}; minimise it to a lower tolerance"
        )


def _check(solution: Solution) -> None:
    if solution.status is not Status.CONVERGED:
        raise ValueError(
            f"solution must be a converged minimum of the action, but is {solution.status.name}: "
            f"{solution.status.value}; solve again with minimise_action"
        )
    network = solution.network
    check_shared(network)
    if math.isinf(network.widths[0]):
        raise ValueError(
            "width N_1 is infinite, so that U has no density to expand; use a "
            "large width, such as 1e6"
        )
    for level, (width, size) in enumerate(zip(network.widths, network.sizes), start=1):
        if width < size:
            raise ValueError(
                f"width N_{level} = {number(width)} is smaller than the size {size} of its order "
                "parameter, which is singular then: there is no expansion around a saddle. Use a "
                f"width of at least {size}, or sample the posterior"
            )
    if to_host(solution.order_parameter).dtype != np.float64:
        raise PrecisionError("the solution is in single precision; solve in float64")
    array_namespace(zero=jnp.zeros(()))  # raises unless JAX computes in double precision


def _prior_loops(network: Network) -> tuple[float, float]:
    """Logarithm of the prior's normaliser to one loop, and its two-loop term.

    The same expansion as for the posterior, rather than the exact Γ functions, so that the part
    that does not depend on the data cancels to all orders.
    """
    one_loop, two_loops = 0.0, 0.0
    of_levels = zip(network.widths, network.sizes, network.shared_sizes)
    for width, size, shared in of_levels:
        if math.isinf(width):
            continue  # no fluctuations
        column = np.arange(shared, size)
        one_loop -= len(column) * math.log(2 * width) / 2 + column.sum() * math.log(width) / 2
        two_loops += ((1 / 6 + column / 2 + column**2 / 4) / width).sum()
    return one_loop, float(two_loops)


def _unpack(packed: np.ndarray, size: int) -> np.ndarray:
    matrix = np.zeros((size, size))
    rows, columns = np.tril_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = packed
    return matrix
