"""Unconstrained coordinates of the chain of order parameters, in which the entropy decouples.

Each order parameter is written relative to the one above it,

    U_ℓ = B_ℓ B_ℓᵀ,      B_ℓ = σ_ℓ (1_{H_ℓ} ⊗ B_{ℓ+1}) X_ℓ,      B_{L+1} = σ_a X_{L+1}  (u_a)

with X_ℓ lower triangular and its diagonal the exponential of a coordinate. Then every B_ℓ is lower
triangular, the entropy is a sum of independent terms Σ_ℓ N_{ℓ-1} [|X_ℓ|² − ln det X_ℓX_ℓᵀ] plus a
constant, with the Gaussian process limit at X = 1 and a Hessian near 2 N_{ℓ-1} there. That is why a
quasi-Newton method needs few evaluations, and why no order parameter has to be inverted. It is the
deterministic counterpart of the Bartlett decomposition of the Wishart hierarchy.

A skip connection repeats U_{ℓ+1} as the leading block of U_ℓ: one more block of rows in X_ℓ, the
first, which is 1/σ_ℓ and no coordinate. The rows below it, of the heads, are as they were, with as
many columns more, in which the limit is at 0.
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
    branches: int  # blocks of rows, one for a skip and each head of its layer; 1 for the readout
    shared: int  # rows of a skip, which are fixed
    scale: float  # σ_ℓ
    weight: float  # degrees of freedom over N
    part: slice  # of all coordinates
    held: np.ndarray  # mask (size, size) of the entries that are coordinates, row by row
    diagonal: np.ndarray  # which of the part are on the diagonal

    def blocks(self, matrix: np.ndarray) -> np.ndarray:
        """Rows of a matrix split by the branches of this layer: (branches, m, columns)."""
        return matrix.reshape(self.branches, -1, matrix.shape[1])

    def of_heads(self, blocks: np.ndarray) -> np.ndarray:
        """Blocks without that of the skip."""
        return blocks[bool(self.shared) :]


def held_entries(rows: int, columns: int, shared: int) -> np.ndarray:
    """Mask (rows, columns) of the entries of X_ℓ that are coordinates, row by row.

    Those on and below the diagonal, but for the rows that a skip shares with the level above.
    """
    held = np.tri(rows, columns, dtype=bool)
    held[:shared] = False
    return held


def _levels(network: Network) -> list[_Level]:
    levels, start = [], 0
    for size, branches, shared, variance, degrees in zip(
        network.sizes,
        (*network.branches, 1),
        network.shared_sizes,
        network.order_parameter_variances,
        network.degrees_of_freedom,
    ):
        held = held_entries(size, size, shared)
        part = slice(start, start := start + int(held.sum()))
        diagonal = np.flatnonzero(np.eye(size, dtype=bool)[held])
        scale, weight = math.sqrt(variance), degrees / network.width
        levels.append(_Level(size, branches, shared, scale, weight, part, held, diagonal))
    return levels


class ChainCoordinates:
    """Map between coordinates (one vector) and the factors B_1, …, B_L, B_a of the chain."""

    def __init__(self, network: Network):
        self.network = network
        self._levels = _levels(network)
        self._constant = -sum(
            2 * level.weight * len(level.diagonal) * math.log(level.scale) for level in self._levels
        )

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._levels[-1].part.stop

    @property
    def curvature(self) -> np.ndarray:
        """Diagonal of the entropy's Hessian (per N) at the Gaussian process limit."""
        curvature = np.empty(self.size)
        for level in self._levels:
            part = curvature[level.part]
            part[:] = 2 * level.weight
            part[level.diagonal] = 4 * level.weight
        return curvature

    @property
    def gp_limit(self) -> np.ndarray:
        """Coordinates of the Gaussian process limit: the origin."""
        return np.zeros(self.size)

    def scaled(self, logs: np.ndarray) -> np.ndarray:
        """Coordinates of the limit with each X_ℓX_ℓᵀ times a factor; logs of them, (L + 1,)."""
        coordinates = self.gp_limit
        for level, log in zip(self._levels, logs):
            coordinates[level.part][level.diagonal] = 0.5 * log
        return coordinates

    def suppressed(self, coordinates: np.ndarray, layer: int, head: int, by: float) -> np.ndarray:
        """The same but for a layer's other heads, whose diagonal of X_ℓ is times e^-by.

        Layer and head count from 0.
        """
        coordinates, level = coordinates.copy(), self._levels[layer]
        rows = level.diagonal.reshape(self.network.heads[layer], -1)
        others = np.delete(rows, head, axis=0)
        coordinates[level.part][others] -= by
        return coordinates

    def relative_factors(self, coordinates: np.ndarray) -> list[np.ndarray]:
        """Triangular matrices X_1, …, X_a."""
        factors = []
        for level in self._levels:
            part = coordinates[level.part].copy()
            part[level.diagonal] = np.exp(part[level.diagonal])
            factor = np.zeros(level.held.shape)
            factor.flat[: level.shared * level.size : level.size + 1] = 1 / level.scale
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
            factor = factor[level.shared :]
            logs = np.log(factor.diagonal(level.shared)).sum()
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
        gradient = np.empty(self.size)
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
            part[level.diagonal] *= factor.diagonal()[level.shared :]
            part[level.diagonal] -= 2 * level.weight
        return gradient

    def largest_slope(
        self,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> float:
        """Largest entry of the gradients of the action per N in U_1, …, u_a, the others fixed.

        Those of :func:`pathkernel_core.entropy_gradient`, and of the energy; where a skip repeats
        an order parameter as a block of the one below, in that one. Parameters as for
        :meth:`gradient`. Raises ``numpy.linalg.LinAlgError`` if a factor is singular.
        """
        inverses = [_inverse(factor) for factor in factors]
        precisions = [inverse.T @ inverse for inverse in inverses]
        slopes = []
        for number, level in enumerate(self._levels):
            slope = -level.weight * precisions[number]
            blocks = slope.reshape((level.branches, level.size // level.branches) * 2)
            blocks = np.einsum("hahb->hab", blocks)  # a view of those on the diagonal
            blocks = level.of_heads(blocks)
            prior = level.weight / level.scale**2
            if number + 1 < len(factors):
                blocks += prior * precisions[number + 1]
            else:
                slope.flat[:: level.size + 1] += prior
            if number == 0:
                slope += energy_gradient
            else:
                below, parts = self._levels[number - 1], relative[number - 1]
                parts = below.of_heads(below.blocks(parts))
                excess = -np.matmul(parts, parts.transpose(0, 2, 1)).sum(axis=0)
                excess.flat[:: level.size + 1] += below.branches
                inverse = inverses[number]
                slope += inverse.T @ (below.weight * excess) @ inverse
            slopes.append(slope)
        for number, level in reversed(list(enumerate(self._levels[:-1]))):
            if level.shared:
                slopes[number][: level.shared, : level.shared] += slopes.pop(number + 1)
        return float(np.max([[slope.max(), -slope.min()] for slope in slopes]))


def _inverse(factor: np.ndarray) -> np.ndarray:
    """Inverse of a lower triangular matrix."""
    inverse, singular = scipy.linalg.lapack.dtrtri(factor.T)
    if singular:
        raise np.linalg.LinAlgError("a factor of an order parameter is singular")
    return inverse.T
