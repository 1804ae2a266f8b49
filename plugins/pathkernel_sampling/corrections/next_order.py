"""Next order in 1/N of ⟨U⟩, log evidence and predictor, around the saddle of the exact hierarchy.

In the coordinates x of :mod:`pathkernel_core.action.coordinates` (relative triangular factors X_ℓ
with logarithmic diagonals) the exact posterior density of the Wishart hierarchy is

    p(x, Y) ∝ exp(−φ(x) − c(x)),      φ = S/2,      c = Σ_ℓ Σ_j j · ln (X_ℓ)_jj,   j = 0, 1, …

with S the action, not divided by N. There is no gauge freedom left and c is linear, so Laplace's
method to next order needs the second to fourth derivatives of S at its minimum and nothing else.
They come in two parts: those of the energy with respect to U are traces of products of P × P
matrices, in :mod:`pathkernel_sampling.models.energy_derivatives`; those of U and of the entropy
with respect to x are taken by automatic differentiation of small matrices, in
:mod:`pathkernel_sampling.corrections.chain_derivatives`. docs/corrections.md derives the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pathkernel_core.action.coordinates import ChainCoordinates, check_shared
from pathkernel_core.action.solution import Prediction, Solution, Status
from pathkernel_core.arrays.backend import array_namespace, to_host
from pathkernel_core.system.errors import PrecisionError
from pathkernel_core.system.text import number
from pathkernel_sampling.corrections.chain_derivatives import derivatives, derivatives_along
from pathkernel_sampling.corrections.loops import Chain, expand, prior_loops, remainder_slope
from pathkernel_sampling.models.energy_derivatives import EnergyDerivatives


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
    check_expandable(solution)
    network, energy = solution.network, EnergyDerivatives(solution)
    coordinates = ChainCoordinates(network)
    x = coordinates.from_factors(solution.factors)
    scales, widths = np.array(coordinates.scales), np.array(network.widths)
    chain = coordinates.levels, scales, widths, x, energy.first
    parts = Chain(*map(np.asarray, derivatives(*chain)))
    check_curved(parts.hessian(energy.second), solution)
    expansion = expand(
        parts,
        energy,
        x,
        remainder_slope(coordinates.levels),
        lambda directions: map(np.asarray, derivatives_along(*chain, directions)),
    )
    prior_one_loop, prior_two_loops = prior_loops(network)
    two_loops = float(expansion.two_loops) - prior_two_loops
    correction = expansion.order_parameter_correction
    return Correction(
        order_parameter=to_host(solution.order_parameter).astype(float),
        order_parameter_correction=_unpack(correction, network.sizes[0]),
        order_parameter_covariance=expansion.covariance,
        log_evidence=solution.log_evidence,
        log_evidence_correction=float(expansion.one_loop - prior_one_loop + two_loops),
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
        Correction of this solution, if it is computed already.

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


def check_curved(hessian: np.ndarray, solution: Solution) -> None:
    """Raise ValueError at a point with a direction along which φ = S/2 falls or is flat."""
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


def check_expandable(solution: Solution) -> None:
    """Raise an error where there is no expansion around a solution, as :func:`next_order` does."""
    if solution.status is not Status.CONVERGED:
        raise ValueError(
            f"solution must be a converged minimum of the action, but is {solution.status.name}: "
            f"{solution.status.value}; solve again with minimise_action"
        )
    network = solution.network
    solution.problem.require_squared(
        "the next order in 1/N", 'compare with samples, or for two classes with check="ep"'
    )
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


def _unpack(packed: np.ndarray, size: int) -> np.ndarray:
    matrix = np.zeros((size, size))
    rows, columns = np.tril_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = packed
    return matrix
