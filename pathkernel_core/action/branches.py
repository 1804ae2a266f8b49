"""Independent branches: the coordinates of their order parameter, which is diagonal.

In a network of B branches that share no weights (Zhang and Sompolinsky, ICLR 2025),

    f = Σ_l (N_l B)^{-1/2} a_l·V_l ξ_l / √N_0,        K = Σ_l u_l C_ll / B,

only the squared readout of each branch is left of the weights, u_l = σ²_V |a_l|²/N_l, a priori
σ² χ²_{N_l}/N_l with σ² = σ²_V σ²_a, exactly and independently. The action is

    S = Σ_l N_l [u_l/σ² − ln u_l] + ln det(K + T1) + Yᵀ (K + T1)⁻¹ Y.

With u_l = σ² e^{2t_l} every term of the entropy is N_l (e^{2t} − 2t) plus a constant, as on the
diagonal of the chain's coordinates, with the Gaussian process limit at t = 0. All costs B numbers.
As N → 0 only the energy is left, u_l ∂S_energy/∂u_l = 0 for every branch whatever σ²: each learns
its own scale, which is equipartition.

Several minima are rare. Of the second derivatives of the action in u only those of ln det are
negative, −tr(X_l X_m)/(u_l u_m) with X_l = A^{-1/2} u_l C_ll A^{-1/2}/B and A = K + T1; the entropy
has N_l/u_l². As Σ X_l < 1, a row of tr(X_l X_m) sums to less than tr X_l, at most the rank of C_ll:
if no width is smaller than that, the action is convex and has one minimum. Narrower branches with
the same signal may compete, until one of them is switched off. In random problems 40 starts found a
lower minimum than the descent from the limit in none of 40 at N = 1, in 2 of 40 at 0.1 and in 5 of
50 at 0.01, by at most 0.6 nats. So there is no search unless ``starts`` asks for one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.action.minima import random_starts
from pathkernel_core.action.quasi_newton import Asking
from pathkernel_core.paths.network import Network

# of the largest coordinate; a symmetry keeps coordinates closer than this. The second is divided by
# B², since among thousands of branches some are as close by chance
_TIE, _TIE_OF_PAIRS = 1e-9, 1e-3
_STEP = 2.0  # of ln u, from one scaled limit to the next
_LARGEST_SCALE = 60.0  # of ln u
_SUPPRESSIONS = (3.0, 1.0)  # of t of all branches but one
_FAVOURED = 5  # branches that a search tries one by one


class BranchCoordinates:
    """Map between coordinates t, one vector, and the square roots of u_1, …, u_B.

    It has the methods of :class:`pathkernel_core.action.coordinates.ChainCoordinates`, whose
    docstrings hold, with one vector (B,) in place of the list of factors. Branches of infinite
    width have no coordinate.
    """

    def __init__(self, network: Network):
        self.network = network
        widths = np.array(network.widths)
        self._free = np.isfinite(widths)
        self._weights = widths[self._free] / network.width
        (self._variance,) = network.order_parameter_variances
        self._limit_entropy = float(self._weights.sum()) * (1 - math.log(self._variance))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self._weights)

    @property
    def curvature(self) -> np.ndarray:
        """Diagonal of the entropy's Hessian (per N) at the Gaussian process limit."""
        return 4 * self._weights

    @property
    def gp_limit(self) -> np.ndarray:
        """Coordinates of the Gaussian process limit: the origin."""
        return np.zeros(self.size)

    def relative_factors(self, coordinates: np.ndarray) -> list[np.ndarray]:
        """Square roots of u_l/σ², as a list of one vector (B,)."""
        relative = np.ones(len(self._free))
        relative[self._free] = np.exp(coordinates)
        return [relative]

    def factors(self, relative: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Square roots of u_l, as a list of one vector (B,)."""
        return [math.sqrt(self._variance) * relative[0]]

    def from_factors(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """Coordinates of given square roots of u_l, for a warm start."""
        return np.log(factors[0][self._free] / math.sqrt(self._variance))

    def order_parameter(self, factor: np.ndarray) -> np.ndarray:
        """Order parameters u_l (B,) from their square roots."""
        return factor**2

    def entropy(self, coordinates: np.ndarray) -> float:
        """Entropy divided by N."""
        return self._limit_entropy + self.excess_entropy(coordinates) / self.network.width

    def excess_entropy(self, coordinates: np.ndarray) -> float:
        """Entropy above that of the Gaussian process limit, not divided by N."""
        logs = 2 * coordinates
        with np.errstate(over="ignore"):
            return self.network.width * float(self._weights @ (np.expm1(logs) - logs))

    def gradient(
        self,
        coordinates: np.ndarray,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> np.ndarray:
        """Gradient of the action per N in the coordinates."""
        # du/dt = 2u; expm1, since a branch much wider than another is at t = 0 to rounding
        of_energy = (2 * factors[0] ** 2 * energy_gradient)[self._free]
        with np.errstate(over="ignore"):
            return of_energy + 2 * self._weights * np.expm1(2 * coordinates)

    def largest_slope(
        self,
        coordinates: np.ndarray,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> float:
        """Largest derivative of the action per N with respect to a u_l, or u_l/σ² times it.

        The latter for branches below the prior: near u = 0 the derivative has the unit 1/u, and
        would hold up a minimum at which a branch is silent.
        """
        u = factors[0][self._free] ** 2
        slopes = energy_gradient[self._free] + self._weights * np.expm1(2 * coordinates) / u
        slopes = slopes * np.minimum(1.0, u / self._variance)
        return float(np.abs(slopes).max(initial=0.0))

    def is_symmetric(self, coordinates: np.ndarray) -> bool:
        """Whether an exchange of branches may have kept a descent on a saddle."""
        tie = min(_TIE, _TIE_OF_PAIRS / self.size**2) * np.abs(coordinates).max(initial=0.0)
        return bool((np.diff(np.sort(coordinates)) <= tie).any())

    def scaled_limit(self, scale: float) -> Asking[np.ndarray]:
        """Coordinates of the limit scaled beyond ``scale`` while the energy falls.

        As :func:`pathkernel_core.action.minima.scaled_limit`.
        """
        lowest, scaled = math.inf, self.gp_limit
        while scale + _STEP <= _LARGEST_SCALE:
            scale += _STEP
            point = yield np.full(self.size, scale / 2)
            if point.detail is None or not point.detail.energy < lowest:
                break
            lowest, scaled = point.detail.energy, point.x
        return scaled

    def further_starts(self, scaled: np.ndarray) -> Asking[Iterator[np.ndarray]]:
        """Coordinates from which to search for other minima, without end.

        From the scaled limit single branches with all others suppressed, those first that lower the
        action most at the limit; then random ones. As
        :func:`pathkernel_core.action.minima.further_starts`.
        """
        # one evaluation ranks all branches, where the action of each would take thousands
        limit = yield self.gp_limit
        steepest = np.argsort(limit.gradient / self.curvature)
        of_branches = []
        for suppression in _SUPPRESSIONS:
            for branch in steepest[:_FAVOURED] if self.size > 1 else ():
                start = scaled - suppression
                start[branch] += suppression
                of_branches.append(start)
        return itertools.chain(of_branches, random_starts(scaled))


def coordinates_of(network: Network) -> ChainCoordinates | BranchCoordinates:
    """Coordinates of the order parameters of a network."""
    return ChainCoordinates(network) if network.shared else BranchCoordinates(network)
