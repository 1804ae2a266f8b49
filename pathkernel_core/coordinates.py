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
from functools import cached_property, lru_cache

import numpy as np
import scipy

from pathkernel_core.backend import Array, array_namespace, from_host, matmul
from pathkernel_core.network import Network


@dataclass(frozen=True)
class Level:
    """Shape of X_ℓ, and of the factor B_ℓ of an order parameter.

    Attributes
    ----------
    branches : int
        Blocks of rows, one for a skip and for each head of the layer; 1 for the readout.
    rows, columns : int
        Fewer columns than rows where U_ℓ is singular.
    shared : int
        First rows, which a skip connection fixes; 0 without one.
    start : int
        Index of the first of its coordinates in the vector of all.
    """

    branches: int
    rows: int
    columns: int
    shared: int
    start: int

    @cached_property
    def free(self) -> np.ndarray:
        """Mask (rows, columns) of the entries of X_ℓ that are coordinates, row by row.

        Those on and below the diagonal, but for the rows that a skip fixes.
        """
        free = np.tri(self.rows, self.columns, dtype=bool)
        free[: self.shared] = False
        return free

    @cached_property
    def part(self) -> slice:
        """Its coordinates in the vector of all."""
        return slice(self.start, self.start + int(self.free.sum()))

    @cached_property
    def diagonal(self) -> np.ndarray:
        """Mask of its coordinates that are on the diagonal."""
        return np.eye(self.rows, self.columns, dtype=bool)[self.free]

    @cached_property
    def indices(self) -> np.ndarray:
        """Flat index of each entry of X_ℓ in its coordinates, then a zero and what a skip fixes."""
        count = len(self.diagonal)
        indices = np.full((self.rows, self.columns), count)
        indices[self.free] = np.arange(count)
        indices[np.diag_indices(self.shared)] = count + 1
        return indices.reshape(-1)

    def blocks(self, matrix: Array) -> Array:
        """Rows of a matrix split by the branches of this layer: (branches, m, columns)."""
        return matrix.reshape(self.branches, -1, matrix.shape[1])

    def of_heads(self, blocks: Array) -> Array:
        """Blocks without that of the skip."""
        return blocks[bool(self.shared) :]


@lru_cache(maxsize=16)
def chain_levels(network: Network) -> tuple[Level, ...]:
    """Levels of U_1, …, U_L, u_a, whose coordinates follow in this order."""
    levels, start = [], 0
    for branches, size, shared in zip((*network.branches, 1), network.sizes, network.shared_sizes):
        levels.append(Level(branches, size, size, shared, start))
        start = levels[-1].part.stop
    return tuple(levels)


def lower_trapezoid(entries: Array, level: Level, repeat: Array | float = 1.0) -> Array:
    """Matrix X_ℓ (rows, columns) from its entries on and below the diagonal, row by row.

    The rows of a skip are ``repeat`` times the identity. Gathered: a scatter writes entry by
    entry, and JAX differentiates it into many times the code.
    """
    xp = array_namespace(entries=entries)
    zero = xp.zeros_like(entries[:1])
    entries = xp.concat([entries, zero, zero + repeat] if level.shared else [entries, zero])
    indices = from_host(level.indices, entries, xp.int64)
    return xp.take(entries, indices, axis=0).reshape(level.rows, level.columns)


def relative_factors(
    coordinates: Array, levels: Sequence[Level], scales: Sequence[float] | Array
) -> list[Array]:
    """Matrices X_1, …, X_a at coordinates, for σ_1 … σ_a, by any array library."""
    xp = array_namespace(coordinates=coordinates)
    diagonal = _diagonal(levels, coordinates)
    exponentials = xp.exp(xp.where(diagonal, coordinates, xp.zeros_like(coordinates)))
    entries = xp.where(diagonal, exponentials, coordinates)
    return [
        lower_trapezoid(entries[level.part], level, 1 / scale)
        for level, scale in zip(levels, scales)
    ]


def chain_factors(
    relative: Sequence[Array], levels: Sequence[Level], scales: Sequence[float] | Array
) -> list[Array]:
    """Factors B_1, …, B_L, B_a of the order parameters, by any array library.

    B_ℓ = σ_ℓ (1 ⊗ B_{ℓ+1}) X_ℓ from the readout down, where B_a = σ_a X_a.

    Parameters
    ----------
    relative : sequence of L + 1 arrays, shapes (rows, columns)
        X_1, …, X_L, X_a, lower trapezoidal.
    levels : sequence of L + 1 levels
    scales : array or sequence, shape (L + 1,)
        σ_1, …, σ_L, σ_a.
    """
    array_namespace(relative=relative[-1])
    factors = [scales[-1] * relative[-1]]
    for number in reversed(range(len(levels) - 1)):
        blocks = levels[number].blocks(relative[number])
        above = matmul(scales[number] * factors[0], blocks)
        factors.insert(0, above.reshape(relative[number].shape))
    return factors


def excess_entropy(
    coordinates: Array, levels: Sequence[Level], degrees: Sequence[float] | Array
) -> Array:
    """Entropy above that of the Gaussian process limit, not divided by N, by any array library.

    Summed term by term: at large widths the entropies themselves differ by less than rounding.
    """
    xp = array_namespace(coordinates=coordinates)
    diagonal, zero = _diagonal(levels, coordinates), xp.zeros_like(coordinates)
    logs = 2 * xp.where(diagonal, coordinates, zero)
    terms = xp.expm1(logs) - logs + xp.where(diagonal, zero, coordinates) ** 2
    return sum(degree * xp.sum(terms[level.part]) for level, degree in zip(levels, degrees))


def _diagonal(levels: Sequence[Level], like: Array) -> Array:
    """Mask of the coordinates of all levels that are on the diagonal."""
    mask = np.concatenate([level.diagonal for level in levels])
    return from_host(mask, like, array_namespace(like=like).bool)


class ChainCoordinates:
    """Map between coordinates (one vector) and the factors B_1, …, B_L, B_a of the chain."""

    def __init__(self, network: Network):
        self.network = network
        self.levels = chain_levels(network)
        self.scales = [math.sqrt(variance) for variance in network.order_parameter_variances]
        self._weights = [degrees / network.width for degrees in network.widths]
        self._constant = -sum(
            2 * weight * (level.rows - level.shared) * math.log(scale)
            for level, scale, weight in zip(self.levels, self.scales, self._weights)
        )

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.levels[-1].part.stop

    @property
    def curvature(self) -> np.ndarray:
        """Diagonal of the entropy's Hessian (per N) at the Gaussian process limit."""
        parts = zip(self.levels, self._weights)
        return np.concatenate([2 * weight * (1 + level.diagonal) for level, weight in parts])

    @property
    def gp_limit(self) -> np.ndarray:
        """Coordinates of the Gaussian process limit: the origin."""
        return np.zeros(self.size)

    def scaled(self, logs: np.ndarray) -> np.ndarray:
        """Coordinates of the limit with each X_ℓX_ℓᵀ times a factor; logs of them, (L + 1,)."""
        coordinates = self.gp_limit
        for level, log in zip(self.levels, logs):
            coordinates[level.part][level.diagonal] = 0.5 * log
        return coordinates

    def suppressed(
        self, coordinates: np.ndarray, layer: int, head: int, suppression: float
    ) -> np.ndarray:
        """Multiply the diagonal of X_ℓ by e^-suppression for all heads of a layer but one.

        Layer and head are numbered from 0.
        """
        coordinates, level = coordinates.copy(), self.levels[layer]
        rows = np.flatnonzero(level.diagonal).reshape(self.network.heads[layer], -1)
        suppressed = np.delete(rows, head, axis=0)
        coordinates[level.part][suppressed] -= suppression
        return coordinates

    def relative_factors(self, coordinates: np.ndarray) -> list[np.ndarray]:
        """Triangular matrices X_1, …, X_a."""
        factors = []  # as relative_factors has them, but in place: every evaluation asks for them
        for level, scale in zip(self.levels, self.scales):
            part = coordinates[level.part].copy()
            part[level.diagonal] = np.exp(part[level.diagonal])
            factor = np.zeros(level.free.shape)
            factor.flat[: level.shared * level.rows : level.rows + 1] = 1 / scale
            factor[level.free] = part
            factors.append(factor)
        return factors

    def factors(self, relative: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Triangular factors B_1, …, B_a of the order parameters."""
        return chain_factors(relative, self.levels, self.scales)

    def from_factors(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """Coordinates of given factors B_1, …, B_a, for a warm start."""
        coordinates = self.gp_limit
        aboves = (*factors[1:], None)
        for level, scale, factor, above in zip(self.levels, self.scales, factors, aboves):
            relative = factor / scale
            if above is not None:
                relative = np.stack(
                    [
                        scipy.linalg.solve_triangular(above, block, lower=True)
                        for block in level.blocks(relative)
                    ]
                ).reshape(factor.shape)
            part = coordinates[level.part]
            part[:] = relative[level.free]
            part[level.diagonal] = np.log(part[level.diagonal])
        return coordinates

    def entropy(self, relative: Sequence[np.ndarray]) -> float:
        """Entropy divided by N."""
        total = self._constant
        for level, weight, factor in zip(self.levels, self._weights, relative):
            factor = factor[level.shared :]
            logs = np.log(factor.diagonal(level.shared)).sum()
            total += weight * (np.vdot(factor, factor) - 2 * logs)
        return float(total)

    def excess_entropy(self, coordinates: np.ndarray) -> float:
        """Entropy above that of the Gaussian process limit, not divided by N."""
        with np.errstate(over="ignore"):
            degrees = self.network.widths
            return float(excess_entropy(coordinates, self.levels, degrees))

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
        aboves, scales = (*factors[1:], None), zip(self.scales, self._weights)
        for level, (scale, weight), factor, above in zip(self.levels, scales, relative, aboves):
            slope = scale * down
            if above is not None:
                slope = np.matmul(above.T, level.blocks(slope)).reshape(factor.shape)
                blocks = level.blocks(factor)
                down = np.matmul(level.blocks(down), scale * blocks.transpose(0, 2, 1))
                down = down.sum(axis=0)
            slope += 2 * weight * factor
            part = gradient[level.part]
            part[:] = slope[level.free]
            part[level.diagonal] *= factor.diagonal()[level.shared :]
            part[level.diagonal] -= 2 * weight
        return gradient

    def largest_slope(
        self,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> float:
        """Largest entry of the gradients of the action per N in U_1, …, u_a, the others fixed.

        Where a skip repeats an order parameter as a block of the one below, in that one.
        Parameters as for :meth:`gradient`. Raises ``numpy.linalg.LinAlgError`` if a factor is
        singular.
        """
        inverses = [_inverse(factor) for factor in factors]
        precisions = [inverse.T @ inverse for inverse in inverses]
        slopes = []
        for number, level in enumerate(self.levels):
            weight = self._weights[number]
            slope = -weight * precisions[number]
            blocks = slope.reshape((level.branches, level.rows // level.branches) * 2)
            blocks = np.einsum("hahb->hab", blocks)  # a view of those on the diagonal
            blocks = level.of_heads(blocks)
            prior = weight / self.scales[number] ** 2
            if number + 1 < len(factors):
                blocks += prior * precisions[number + 1]
            else:
                slope.flat[:: level.rows + 1] += prior
            if number == 0:
                slope += energy_gradient
            else:
                below, parts = self.levels[number - 1], relative[number - 1]
                parts = below.of_heads(below.blocks(parts))
                excess = -np.matmul(parts, parts.transpose(0, 2, 1)).sum(axis=0)
                excess.flat[:: level.rows + 1] += below.branches
                inverse = inverses[number]
                slope += inverse.T @ (self._weights[number - 1] * excess) @ inverse
            slopes.append(slope)
        for number, level in reversed(list(enumerate(self.levels[:-1]))):
            if level.shared:
                slopes[number][: level.shared, : level.shared] += slopes.pop(number + 1)
        return float(np.max([[slope.max(), -slope.min()] for slope in slopes]))


def _inverse(factor: np.ndarray) -> np.ndarray:
    """Inverse of a lower triangular matrix."""
    inverse, singular = scipy.linalg.lapack.dtrtri(factor.T)
    if singular:
        raise np.linalg.LinAlgError("a factor of an order parameter is singular")
    return inverse.T
