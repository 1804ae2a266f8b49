"""Unconstrained coordinates of the chain of order parameters, in which the entropy decouples.

Each order parameter is written relative to the one above it,

    U_ℓ = B_ℓ B_ℓᵀ,      B_ℓ = σ_ℓ (1_{H_ℓ} ⊗ B_{ℓ+1}) X_ℓ,      B_{L+1} = σ_a X_{L+1}  (u_a)

with X_ℓ lower triangular and its diagonal the exponential of a coordinate. Then every B_ℓ is lower
triangular, the entropy is a sum of independent terms Σ_ℓ N_ℓ [|X_ℓ|² − ln det X_ℓX_ℓᵀ] plus a
constant, with the Gaussian process limit at X = 1 and a Hessian near 2 N_ℓ there. That is why a
quasi-Newton method needs few evaluations, and why no order parameter has to be inverted. It is the
deterministic counterpart of the Bartlett decomposition of the Wishart hierarchy.

A skip connection repeats U_{ℓ+1} as the leading block of U_ℓ: one more block of rows in X_ℓ, the
first, which is 1/σ_ℓ and no coordinate. The rows below it, of the heads, are as they were, with as
many columns more, in which the limit is at 0.

A level of infinite width has X_ℓ = 1 and no coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy

from pathkernel_core.arrays.backend import Array, array_namespace, from_host
from pathkernel_core.arrays.products import matmul
from pathkernel_core.paths.network import Network

_TRIANGULAR = 64  # rows from which a product skips the zeros of a triangle
_SMALL = 2**12  # entries of a small matrix
_ZERO = 1e-7  # of the largest coordinate; a symmetry keeps the smaller ones at zero


@dataclass(frozen=True)
class Level:
    """Shape of X_ℓ, and of the factor B_ℓ of an order parameter.

    Attributes
    ----------
    steps : int
        Blocks of rows, one for a skip and for each head of the layer; 1 for the readout.
    rows, columns : int
        Fewer columns than rows where U_ℓ is singular.
    shared : int
        First rows, which a skip connection fixes; 0 without one.
    start : int
        Index of the first of its coordinates in the vector of all.
    fixed : bool
        Whether the width is infinite, which leaves no coordinates.
    """

    steps: int
    rows: int
    columns: int
    shared: int
    start: int
    fixed: bool = False

    @cached_property
    def free(self) -> np.ndarray:
        """Mask (rows, columns) of the entries of X_ℓ that are coordinates, row by row.

        Those on and below the diagonal, but for the rows that a skip fixes.
        """
        free = np.tri(self.rows, self.columns, dtype=bool)
        free[: self.rows if self.fixed else self.shared] = False
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
    def positions(self) -> np.ndarray:
        """Indices of those of its coordinates that are on the diagonal."""
        return np.flatnonzero(self.diagonal)

    @cached_property
    def entries(self) -> np.ndarray:
        """Index of flat X_ℓ that selects its coordinates."""
        flat = self.free.reshape(-1)
        # numbers are faster for small matrices, a mask takes an eighth of their memory
        return np.flatnonzero(flat) if flat.size <= _SMALL else flat

    @cached_property
    def indices(self) -> np.ndarray:
        """Flat index of each entry of X_ℓ in its coordinates, then 0, 1 and what a skip fixes."""
        # the constants follow the coordinates, so that one gather fills the whole matrix
        count = len(self.diagonal)
        indices = np.full((self.rows, self.columns), count)
        np.fill_diagonal(indices, count + 1)
        indices[self.free] = np.arange(count)
        indices[np.diag_indices(self.shared)] = count + 2
        return indices.reshape(-1)

    def blocks(self, matrix: Array) -> Array:
        """Rows of a matrix split by the steps of this layer: (steps, m, columns)."""
        return matrix.reshape(self.steps, -1, matrix.shape[1])

    def side_by_side(self, matrix: np.ndarray) -> np.ndarray:
        """Blocks of a matrix beside each other: (m, steps · columns)."""
        size, columns = self.rows // self.steps, matrix.shape[1]
        blocks = matrix.reshape(self.steps, size, columns)
        return blocks.transpose(1, 0, 2).reshape(size, -1)

    def stack_blocks(self, matrix: np.ndarray) -> np.ndarray:
        """Blocks of :meth:`side_by_side` below each other again: (rows, columns)."""
        blocks = matrix.reshape(len(matrix), self.steps, -1)
        return blocks.transpose(1, 0, 2).reshape(self.rows, -1)

    def of_heads(self, blocks: Array) -> Array:
        """Blocks without that of the skip."""
        return blocks[bool(self.shared) :]


def check_shared(network: Network) -> None:
    """Raise a ValueError if the network has independent branches, and so no chain."""
    if not network.shared:
        raise ValueError(
            "independent branches (shared=False) have no chain of order parameters: stability, "
            "response, sampling, corrections and gradients through the minimum need a network "
            "with shared=True"
        )


@lru_cache(maxsize=16)
def chain_levels(network: Network) -> tuple[Level, ...]:
    """Levels of U_1, …, U_L, u_a, whose coordinates follow in this order.

    Raises
    ------
    ValueError
        If the network has independent branches, whose order parameter is diagonal.
    """
    check_shared(network)
    levels, start = [], 0
    shapes = zip((*network.steps, 1), network.sizes, network.shared_sizes, network.widths)
    for steps, size, shared, width in shapes:
        levels.append(Level(steps, size, size, shared, start, math.isinf(width)))
        start = levels[-1].part.stop
    return tuple(levels)


def lower_trapezoid(entries: Array, level: Level, repeat: Array | float = 1.0) -> Array:
    """Matrix X_ℓ (rows, columns) from its entries on and below the diagonal, row by row.

    The rows of a skip are ``repeat`` times the identity. Gathered: a scatter writes entry by
    entry, and JAX differentiates it into many times the code.
    """
    xp = array_namespace(entries=entries)
    constants = from_host(np.array([0.0, 1.0]), entries)
    entries = xp.concat([entries, constants, constants[:1] + repeat])
    indices = from_host(level.indices, entries, xp.int64)
    return xp.take(entries, indices, axis=0).reshape(level.rows, level.columns)


def relative_factors(
    coordinates: Array, levels: Sequence[Level], scales: Sequence[float] | Array
) -> list[Array]:
    """Matrices X_1, …, X_a at coordinates, for σ_1 … σ_a, by any array library."""
    xp = array_namespace(coordinates=coordinates)
    diagonal = _diagonal(levels, coordinates)
    # zeros inside, too: were the exponential of an unused entry to overflow, its derivative, times
    # the 0 of the outer choice, would be NaN
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
    # an entry e^t of the diagonal costs e^{2t} − 2t, one below it x²; less their values in the
    # limit, 1 and 0, both are of second order in the coordinate
    logs = 2 * xp.where(diagonal, coordinates, zero)
    terms = xp.expm1(logs) - logs + xp.where(diagonal, zero, coordinates) ** 2
    finite = [(level, degree) for level, degree in zip(levels, degrees) if not level.fixed]
    return sum((degree * xp.sum(terms[level.part]) for level, degree in finite), xp.sum(zero))


def _diagonal(levels: Sequence[Level], like: Array) -> Array:
    """Mask of the coordinates of all levels that are on the diagonal."""
    mask = np.concatenate([level.diagonal for level in levels])
    return from_host(mask, like, array_namespace(like=like).bool)


class ChainCoordinates:
    """Map between coordinates (one vector) and the factors B_1, …, B_L, B_a of the chain.

    Levels of infinite width are left out of every entropy, their order parameters being fixed.
    """

    def __init__(self, network: Network):
        self.network = network
        self.levels = chain_levels(network)
        self.scales = [math.sqrt(variance) for variance in network.order_parameter_variances]
        self.weights = [
            0.0 if level.fixed else degrees / network.width
            for level, degrees in zip(self.levels, network.widths)
        ]
        on_diagonal = np.concatenate([level.diagonal for level in self.levels])
        counts = [len(level.diagonal) for level in self.levels]
        weights = np.repeat(self.weights, counts)
        # the whole Hessian there: (e^{2t} − 2t)'' = 4, (x²)'' = 2, and no term has two coordinates
        self._curvature = 2 * weights * (1 + on_diagonal)
        self._positions = np.flatnonzero(on_diagonal)
        self._weights_on_diagonal = weights[self._positions]
        self._weights_below = np.where(on_diagonal, 0.0, weights)
        # at X = 1 a row adds 1 to tr and −ln σ² to −ln det; H ln det U_{ℓ+1} cancels the rest, and
        # rows that a skip repeats are counted with the level above
        self._limit_entropy = sum(
            weight * (level.rows - level.shared) * (1 - 2 * math.log(scale))
            for level, scale, weight in zip(self.levels, self.scales, self.weights)
        )

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.levels[-1].part.stop

    @property
    def curvature(self) -> np.ndarray:
        """Diagonal of the entropy's Hessian (per N) at the Gaussian process limit."""
        return self._curvature

    @property
    def gp_limit(self) -> np.ndarray:
        """Coordinates of the Gaussian process limit: the origin."""
        return np.zeros(self.size)

    def scale_limit(self, logs: np.ndarray) -> np.ndarray:
        """Coordinates of the limit with each X_ℓX_ℓᵀ times a factor; logs of them, (L + 1,)."""
        coordinates = self.gp_limit
        for level, log in zip(self.levels, logs):
            coordinates[level.part][level.diagonal] = 0.5 * log
        return coordinates

    def suppress_heads(
        self, coordinates: np.ndarray, layer: int, head: int, suppression: float
    ) -> np.ndarray:
        """Multiply the diagonal of X_ℓ by e^-suppression for all heads of a layer but one.

        Layer and head are numbered from 0.
        """
        coordinates, level = coordinates.copy(), self.levels[layer]
        # of a layer, not of whole paths: e^-suppression multiplies all paths through these heads
        rows = np.flatnonzero(level.diagonal).reshape(self.network.heads[layer], -1)
        suppressed = np.delete(rows, head, axis=0)
        coordinates[level.part][suppressed] -= suppression
        return coordinates

    def relative_factors(self, coordinates: np.ndarray) -> list[np.ndarray]:
        """Triangular matrices X_1, …, X_a."""
        factors = []  # as relative_factors has them, but in place: every evaluation asks for them
        for level, scale in zip(self.levels, self.scales):
            if level.fixed:
                flat = np.eye(level.rows, level.columns).reshape(-1)
            else:
                entries, positions = coordinates[level.part].copy(), level.positions
                entries[positions] = np.exp(entries[positions])
                flat = np.zeros(level.rows * level.columns)
                flat[level.entries] = entries
            # rows that repeat B_{ℓ+1}: 1/σ_ℓ undoes the σ_ℓ of B_ℓ = σ_ℓ (1 ⊗ B_{ℓ+1}) X_ℓ
            flat[: level.shared * level.columns : level.columns + 1] = 1 / scale
            factors.append(flat.reshape(level.rows, level.columns))
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
                # a start may come from other variances: X_ℓ takes up the difference
                relative = level.stack_blocks(_solve(above, level.side_by_side(relative)))
            entries = coordinates[level.part]  # a view, as the next lines write through it
            entries[:] = relative[level.free]
            entries[level.diagonal] = np.log(entries[level.diagonal])
        return coordinates

    def order_parameter(self, factor: np.ndarray) -> np.ndarray:
        """Order parameter B Bᵀ from its factor."""
        return factor @ factor.T

    def is_symmetric(self, coordinates: np.ndarray) -> bool:
        """Whether a symmetry of the heads may have kept a descent on a saddle."""
        sizes = np.abs(coordinates)
        return bool(sizes.min() <= _ZERO * sizes.max())

    def entropy(self, coordinates: np.ndarray) -> float:
        """Entropy divided by N."""
        return self._limit_entropy + self.excess_entropy(coordinates) / self.network.width

    def excess_entropy(self, coordinates: np.ndarray) -> float:
        """Entropy above that of the Gaussian process limit, not divided by N."""
        with np.errstate(over="ignore"):  # as the function of this name, which takes any library
            logs = 2 * coordinates[self._positions]
            below = self._weights_below.dot(coordinates * coordinates)
            diagonal = self._weights_on_diagonal.dot(np.expm1(logs) - logs)
            return self.network.width * float(below + diagonal)

    def gradient(
        self,
        coordinates: np.ndarray,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> np.ndarray:
        """Gradient of the action per N in the coordinates.

        Parameters
        ----------
        coordinates : array
            The point.
        relative, factors : sequences of arrays
            X_1, …, X_a and B_1, …, B_a there.
        energy_gradient : array
            Gradient of the energy per N with respect to U_1.
        """
        gradient = np.empty(self.size)
        # Backwards through the chain: with D_ℓ = ∂S/∂B_ℓ, D_1 = 2 (∂S/∂U_1) B_1, the slope in X_ℓ
        # is σ_ℓ (1 ⊗ B_{ℓ+1})ᵀ D_ℓ, and D_{ℓ+1} = σ_ℓ Σ_h D_ℓh X_ℓhᵀ. By hand, since NumPy does
        # not differentiate.
        down = _times_lower(2.0, energy_gradient, factors[0])
        aboves = (*factors[1:], None)
        for level, scale, factor, above in zip(self.levels, self.scales, relative, aboves):
            slope = scale * down
            if above is not None:
                if not level.fixed:
                    slope = np.matmul(above.T, level.blocks(slope))
                # the sum over heads as one product of blocks that stand side by side
                down = scale * np.dot(level.side_by_side(down), level.side_by_side(factor).T)
            if not level.fixed:
                slopes = gradient[level.part]
                slopes[:] = slope.reshape(-1)[level.entries]
                slopes[level.positions] *= factor.diagonal()[level.shared :]  # of its logarithm
        # expm1, since a level much wider than another is at X = 1 to rounding
        with np.errstate(over="ignore"):
            gradient += (2 * self._weights_below) * coordinates
            growth = np.expm1(2 * coordinates[self._positions])
            gradient[self._positions] += 2 * self._weights_on_diagonal * growth
        return gradient

    def largest_slope(
        self,
        coordinates: np.ndarray,
        relative: Sequence[np.ndarray],
        factors: Sequence[np.ndarray],
        energy_gradient: np.ndarray,
    ) -> float:
        """Largest entry of the gradients of the action per N in U_1, …, u_a, the others fixed.

        Where a skip repeats an order parameter as a block of the one below, in that one.
        Parameters as for :meth:`gradient`. Raises ``numpy.linalg.LinAlgError`` if a factor is
        singular.

        With E = X − 1 on the rows of the heads, the entropy of a level adds to the slope in U_ℓ

            N_ℓ B_ℓ⁻ᵀ (E + Eᵀ + EᵀE) B_ℓ⁻¹

        and less N_ℓ times the sum of E + Eᵀ + EEᵀ over the heads to that in U_{ℓ+1}. Levels of
        very different widths leave no difference of large numbers in this form.
        """
        slopes: dict[int, np.ndarray] = {}
        inverses = [_inverse(factor) for factor in factors]
        from_below = energy_gradient
        for number, level in enumerate(self.levels):
            weight, scale = self.weights[number], self.scales[number]
            if level.fixed:  # what acts on U_ℓ acts on U_{ℓ+1} through it
                size = level.rows // level.steps
                blocks = from_below.reshape((level.steps, size) * 2)
                blocks = np.einsum("hahb->hab", blocks)
                from_below = scale**2 * level.of_heads(blocks).sum(axis=0)
                if level.shared:
                    from_below = from_below + blocks[0]
                continue
            if level.rows == 1 and number + 1 == len(factors):  # the same without matrices
                growth = np.expm1(coordinates[level.start])
                entropy = weight * growth * (growth + 2) * inverses[number] ** 2
                slopes[number] = entropy + from_below
                continue
            # E from the coordinate itself: e^t − 1 would lose the digits of a small t
            excess = relative[number][level.shared :].copy()
            growth = np.expm1(coordinates[level.part][level.positions])
            excess.reshape(-1)[level.shared :: level.columns + 1] = growth
            square = np.dot(excess.T, excess)
            square[level.shared :] += excess
            square[:, level.shared :] += excess.T
            inverse = inverses[number]
            slopes[number] = np.dot(np.dot(inverse.T, weight * square), inverse) + from_below
            if number + 1 < len(factors):
                size = level.rows // level.steps
                heads = excess.reshape(-1, size, level.columns).transpose(1, 0, 2)
                heads = heads.reshape(size, -1)
                pairs_of_heads = excess[:, level.shared :].reshape((len(excess) // size, size) * 2)
                same_head = np.einsum("hahb->ab", pairs_of_heads)
                change = np.dot(heads, heads.T) + same_head + same_head.T
                inverse = inverses[number + 1]
                from_below = np.dot(np.dot(inverse.T, -weight * change), inverse)
        # from the readout down, since a block that a skip repeats may itself repeat one
        for number, level in reversed(list(enumerate(self.levels))):
            if level.shared and number in slopes:
                slopes[number][: level.shared, : level.shared] += slopes.pop(number + 1)
        return max((float(np.abs(slope).max()) for slope in slopes.values()), default=0.0)


def _times_lower(scale: float, matrix: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Product of a symmetric matrix and a lower triangular factor, times a number."""
    if len(factor) < _TRIANGULAR:
        return np.dot(scale * matrix, factor)
    # BLAS reads the transposes of C-ordered arrays
    trmm = scipy.linalg.blas.dtrmm
    return trmm(scale, factor.T, np.ascontiguousarray(matrix).T).T


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Inverse of a lower triangular matrix times a matrix."""
    solved, singular = scipy.linalg.lapack.dtrtrs(factor, right, lower=1)
    if singular:
        raise np.linalg.LinAlgError("a factor of an order parameter is singular")
    return solved


def _inverse(factor: np.ndarray) -> np.ndarray:
    """Inverse of a lower triangular matrix."""
    if len(factor) == 1 and factor[0, 0]:
        return 1 / factor
    inverse, singular = scipy.linalg.lapack.dtrtri(factor.T)
    if singular:
        raise np.linalg.LinAlgError("a factor of an order parameter is singular")
    return inverse.T
