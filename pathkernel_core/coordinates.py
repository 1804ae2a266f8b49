"""Unconstrained coordinates of the chain of order parameters, in which the entropy decouples.

Each order parameter is written relative to the one above it,

    U_ℓ = B_ℓ B_ℓᵀ,      B_ℓ = σ_ℓ (1_{H_ℓ} ⊗ B_{ℓ+1}) X_ℓ,      B_{L+1} = σ_a X_{L+1}  (u_a)

with X_ℓ lower triangular and its diagonal the exponential of a coordinate. Then every B_ℓ is lower
triangular, the entropy is a sum of independent terms Σ_ℓ N_{ℓ-1} [|X_ℓ|² − ln det X_ℓX_ℓᵀ] plus a
constant, with the Gaussian process limit at X = 1 and a Hessian near 2 N_{ℓ-1} there. That is why a
quasi-Newton method needs few evaluations, and why no order parameter has to be inverted. It is the
deterministic counterpart of the Bartlett decomposition of the Wishart hierarchy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from pathkernel_core.network import Network


@dataclass(frozen=True, eq=False)
class _Level:
    """One order parameter of the chain: its size, and where its coordinates stand."""

    size: int
    heads: int  # blocks of rows, one for each head of its layer; 1 for the readout
    scale: float  # σ_ℓ
    weight: float  # degrees of freedom over N
    part: slice  # of all coordinates
    held: np.ndarray  # mask (size, size) of the entries that are coordinates, row by row
    diagonal: np.ndarray  # which of the part are on the diagonal

    def blocks(self, matrix: np.ndarray) -> np.ndarray:
        """Rows of a matrix split by the heads of this layer: (H, m, columns)."""
        return matrix.reshape(self.heads, -1, matrix.shape[1])


def _levels(network: Network) -> list[_Level]:
    levels, start = [], 0
    for size, heads, variance, degrees in zip(
        network.sizes,
        (*network.heads, 1),
        network.order_parameter_variances,
        network.degrees_of_freedom,
    ):
        rows = np.arange(size)
        part = slice(start, start := start + size * (size + 1) // 2)
        diagonal = rows * (rows + 3) // 2
        held = np.tri(size, dtype=bool)
        weight = degrees / network.width
        levels.append(_Level(size, heads, math.sqrt(variance), weight, part, held, diagonal))
    return levels


class ChainCoordinates:
    """Map between coordinates (one vector) and the factors B_1, …, B_L, B_a of the chain."""

    def __init__(self, network: Network):
        self.network = network
        self._levels = _levels(network)
        self._constant = -sum(
            2 * level.weight * level.size * math.log(level.scale) for level in self._levels
        )

    @property
    def curvature(self) -> np.ndarray:
        """Diagonal of the entropy's Hessian (per N) at the Gaussian process limit."""
        curvature = np.empty(self._levels[-1].part.stop)
        for level in self._levels:
            part = curvature[level.part]
            part[:] = 2 * level.weight
            part[level.diagonal] = 4 * level.weight
        return curvature

    @property
    def gp_limit(self) -> np.ndarray:
        """Coordinates of the Gaussian process limit: the origin."""
        return np.zeros(self._levels[-1].part.stop)

    def relative_factors(self, coordinates: np.ndarray) -> list[np.ndarray]:
        """Triangular matrices X_1, …, X_a."""
        factors = []
        for level in self._levels:
            part = coordinates[level.part].copy()
            part[level.diagonal] = np.exp(part[level.diagonal])
            factor = np.zeros(level.held.shape)
            factor[level.held] = part
            factors.append(factor)
        return factors

    def factors(self, relative: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Triangular factors B_1, …, B_a of the order parameters."""
        above = self._levels[-1].scale * relative[-1]
        factors = [above]
        for level, factor in zip(self._levels[-2::-1], relative[-2::-1]):
            above = np.matmul(level.scale * above, level.blocks(factor)).reshape(factor.shape)
            factors.insert(0, above)
        return factors

    def from_factors(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """Coordinates of given factors B_1, …, B_a, for a warm start."""
        coordinates = self.gp_limit
        for level, factor, above in zip(self._levels, factors, (*factors[1:], None)):
            relative = factor / level.scale
            if above is not None:
                relative = np.stack(
                    [
                        scipy.linalg.solve_triangular(above, block, lower=True)
                        for block in level.blocks(relative)
                    ]
                ).reshape(factor.shape)
            part = coordinates[level.part]
            part[:] = relative[level.held]
            part[level.diagonal] = np.log(part[level.diagonal])
        return coordinates

    def entropy(self, relative: Sequence[np.ndarray]) -> float:
        """Entropy divided by N."""
        total = self._constant
        for level, factor in zip(self._levels, relative):
            logs = np.log(factor.diagonal()).sum()
            total += level.weight * (np.vdot(factor, factor) - 2 * logs)
        return float(total)

    def excess_entropy(self, coordinates: np.ndarray) -> float:
        """Entropy above that of the Gaussian process limit, not divided by N.

        Summed term by term: at large widths the entropies themselves differ by less than rounding.
        """
        total = 0.0
        for level in self._levels:
            below = coordinates[level.part].copy()
            logs = below[level.diagonal]
            below[level.diagonal] = 0.0
            with np.errstate(over="ignore"):
                excess = float((np.expm1(2 * logs) - 2 * logs).sum() + below @ below)
            total += level.weight * self.network.width * excess
        return total

    def gradient(
        self,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> np.ndarray:
        """Gradient of the action per N in the coordinates.

        Parameters
        ----------
        relative, factors : sequences of arrays
            X_1, …, X_a and B_1, …, B_a at the point.
        energy_gradient : array
            Gradient of the energy per N with respect to U_1.
        """
        gradient = np.empty(self._levels[-1].part.stop)
        # with respect to B_ℓ, from B_1 up; BLAS reads the transposes of C-ordered arrays
        trmm = scipy.linalg.blas.dtrmm
        down = trmm(2.0, factors[0].T, np.ascontiguousarray(energy_gradient).T).T
        for level, factor, above in zip(self._levels, relative, (*factors[1:], None)):
            slope = level.scale * down
            if above is not None:
                slope = np.matmul(above.T, level.blocks(slope)).reshape(factor.shape)
                blocks = level.blocks(factor)
                down = np.matmul(level.blocks(down), level.scale * blocks.transpose(0, 2, 1))
                down = down.sum(axis=0)
            slope += 2 * level.weight * factor
            part = gradient[level.part]
            part[:] = slope[level.held]
            part[level.diagonal] *= factor.diagonal()
            part[level.diagonal] -= 2 * level.weight
        return gradient

    def largest_slope(
        self,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> float:
        """Largest entry of the gradients of the action per N in U_1, …, u_a, the others fixed.

        Those of :func:`pathkernel_core.entropy_gradient`, and of the energy; parameters as for
        :meth:`gradient`. Raises ``numpy.linalg.LinAlgError`` if a factor is singular.
        """
        inverses = [_inverse(factor) for factor in factors]
        precisions = [inverse.T @ inverse for inverse in inverses]
        largest = []
        for number, level in enumerate(self._levels):
            slope = -level.weight * precisions[number]
            blocks = slope.reshape((level.heads, level.size // level.heads) * 2)
            blocks = np.einsum("hahb->hab", blocks)  # a view of those on the diagonal
            prior = level.weight / level.scale**2
            if number + 1 < len(factors):
                blocks += prior * precisions[number + 1]
            else:
                slope.flat[:: level.size + 1] += prior
            if number == 0:
                slope += energy_gradient
            else:
                below, parts = self._levels[number - 1], relative[number - 1]
                parts = below.blocks(parts)
                excess = -np.matmul(parts, parts.transpose(0, 2, 1)).sum(axis=0)
                excess.flat[:: level.size + 1] += below.heads
                inverse = inverses[number]
                slope += inverse.T @ (below.weight * excess) @ inverse
            largest += [slope.max(), -slope.min()]
        return float(np.max(largest))


def _inverse(factor: np.ndarray) -> np.ndarray:
    """Inverse of a lower triangular matrix."""
    inverse, singular = scipy.linalg.lapack.dtrtri(factor.T)
    if singular:
        raise np.linalg.LinAlgError("a factor of an order parameter is singular")
    return inverse.T
