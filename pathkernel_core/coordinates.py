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

import numpy as np
import scipy

from pathkernel_core.network import Network


class ChainCoordinates:
    """Map between coordinates (one vector) and the factors B_1, …, B_L, B_a of the chain."""

    def __init__(self, network: Network):
        self.network = network
        self._rows = [np.tril_indices(size) for size in network.sizes]
        lengths = [len(rows) for rows, _ in self._rows]
        self._splits = np.cumsum(lengths)[:-1]
        self._scales = [math.sqrt(variance) for variance in network.order_parameter_variances]
        weights = [width / network.width for width in network.degrees_of_freedom]
        self._weights = weights
        self._constant = -sum(
            weight * size * math.log(variance)
            for weight, size, variance in zip(
                weights, network.sizes, network.order_parameter_variances
            )
        )
        self._on_diagonal = [rows == columns for rows, columns in self._rows]
        self.curvature = np.concatenate(
            [
                weight * np.where(diagonal, 4.0, 2.0)
                for weight, diagonal in zip(weights, self._on_diagonal)
            ]
        )
        """Diagonal of the entropy's Hessian (per N) at the Gaussian process limit."""

    @property
    def gp_limit(self) -> np.ndarray:
        """Coordinates of the Gaussian process limit: the origin."""
        return np.zeros(self.curvature.shape)

    def relative_factors(self, coordinates: np.ndarray) -> list[np.ndarray]:
        """Triangular matrices X_1, …, X_a."""
        factors = []
        parts = np.split(coordinates, self._splits)
        for part, index, diagonal, size in zip(
            parts, self._rows, self._on_diagonal, self.network.sizes
        ):
            factor = np.zeros((size, size))
            factor[index] = np.where(diagonal, np.exp(np.where(diagonal, part, 0.0)), part)
            factors.append(factor)
        return factors

    def factors(self, relative: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Triangular factors B_1, …, B_a of the order parameters."""
        above = self._scales[-1] * relative[-1]
        factors = [above]
        for level in reversed(range(self.network.n_layers)):
            blocks = self._blocks(relative[level], level)
            above = self._scales[level] * np.matmul(above, blocks).reshape(relative[level].shape)
            factors.insert(0, above)
        return factors

    def from_factors(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """Coordinates of given factors B_1, …, B_a, for a warm start."""
        parts = []
        for level, factor in enumerate(factors):
            relative = factor / self._scales[level]
            if level < self.network.n_layers:
                blocks = self._blocks(relative, level)
                above = factors[level + 1]
                relative = np.stack(
                    [scipy.linalg.solve_triangular(above, block, lower=True) for block in blocks]
                ).reshape(factor.shape)
            part, diagonal = relative[self._rows[level]], self._on_diagonal[level]
            parts.append(np.where(diagonal, np.log(np.where(diagonal, part, 1.0)), part))
        return np.concatenate(parts)

    def entropy(self, relative: Sequence[np.ndarray]) -> float:
        """Entropy divided by N."""
        total = self._constant
        for weight, factor in zip(self._weights, relative):
            total += weight * ((factor**2).sum() - 2 * np.log(np.diagonal(factor)).sum())
        return float(total)

    def excess_entropy(self, coordinates: np.ndarray) -> float:
        """Entropy above that of the Gaussian process limit, not divided by N.

        Summed term by term: at large widths the entropies themselves differ by less than rounding.
        """
        total = 0.0
        parts = np.split(coordinates, self._splits)
        for width, diagonal, part in zip(self.network.degrees_of_freedom, self._on_diagonal, parts):
            logs, below = part[diagonal], part[~diagonal]
            with np.errstate(over="ignore"):
                total += width * float((np.expm1(2 * logs) - 2 * logs).sum() + below @ below)
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
        parts = []
        down = 2 * energy_gradient @ factors[0]  # gradient with respect to B_ℓ
        for level, factor in enumerate(relative):
            scale = self._scales[level]
            if level < self.network.n_layers:
                blocks = self._blocks(down, level)
                gradient = scale * np.matmul(factors[level + 1].T, blocks).reshape(factor.shape)
                down = scale * np.einsum("haj,hbj->ab", blocks, self._blocks(factor, level))
            else:
                gradient = scale * down
            gradient = (gradient + 2 * self._weights[level] * factor)[self._rows[level]]
            on_diagonal = gradient * factor[self._rows[level]] - 2 * self._weights[level]
            parts.append(np.where(self._on_diagonal[level], on_diagonal, gradient))
        return np.concatenate(parts)

    def _blocks(self, matrix: np.ndarray, level: int) -> np.ndarray:
        """Rows of a matrix split by the head of this layer: (H, m, columns)."""
        return matrix.reshape(self.network.heads[level], -1, matrix.shape[1])
