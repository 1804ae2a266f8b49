"""Structure of the rows (example, output) of a kernel: how a system of P·C of them is factorised.

Newton's method, the energy and the posterior need little of a kernel K and a curvature W = RRᵀ of
the likelihood: products with K, and of Π = (W⁻¹ + K)⁻¹ products, quadratic forms and the log
determinant ln det(1 + RᵀKR). Of any kernel one factorisation of P·C rows gives them,
:class:`Dense`. Of classes that are independent a priori and have a kernel in common, as in the
Gaussian process limit, C factorisations of P rows do:
:class:`pathkernel_core.energy.laplace.class_blocks.ClassBlocks`. Both are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    gram_matrix,
    invert_triangular,
    log_determinant,
    solve_triangular,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.laplace.blocks import (
    gram_blocks,
    solve_transposed,
    times_blocks,
    transposed_blocks,
)
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood

Factors = tuple[Array, ...]
"""Arrays of a factorisation, as a structure has them."""


class Structure(ABC):
    """How kernels of the rows (example, output) are stored and factorised.

    It has no state, and methods can be compiled by ``jax.jit``. Kernels are (P·C, P·C), or what
    the structure keeps of them; rows are (P, C).
    """

    @abstractmethod
    def reduce_factor(self, factor: np.ndarray, outputs: int) -> np.ndarray:
        """Part of a factor (n·C, n·C) of U on the host that the kernel is made of."""

    @abstractmethod
    def expand_blocks(self, blocks: Array, outputs: int) -> Array:
        """Prior covariances (P, C, C) of the outputs, of what the structure keeps of them."""

    @abstractmethod
    def multiply(self, kernel: Array, rows: Array) -> Array:
        """Product K a (P', C), of the kernel of P' with P examples and rows a (P, C)."""

    @abstractmethod
    def factorise(
        self, kernel: Array, outputs: Array, targets: Array, likelihood: ClassLikelihood
    ) -> Factors:
        """Factors of Π at outputs (P, C); NaN after an overflow."""

    @abstractmethod
    def log_determinant(self, factors: Factors) -> Array:
        """Log determinant ln det(1 + RᵀKR), ()."""

    @abstractmethod
    def solve(self, factors: Factors, rows: Array) -> Array:
        """Product Π b (P, C), of rows b (P, C)."""

    @abstractmethod
    def explain(self, factors: Factors, kernel: Array) -> Array:
        """Covariances kᵀΠk (P', C, C) that examples explain, of the kernel of P' with P examples.

        It is transposed to k: its rows are those of the P'.
        """

    @abstractmethod
    def weights(self, factors: Factors) -> Array:
        """Π of all rows (example, output), (P·C, P·C)."""


@dataclass(frozen=True)
class Dense(Structure):
    """One factorisation of P·C rows, for any kernel: R, and L of 1 + RᵀKR = LLᵀ."""

    def reduce_factor(self, factor: np.ndarray, outputs: int) -> np.ndarray:
        """Return the whole factor."""
        return factor

    def expand_blocks(self, blocks: Array, outputs: int) -> Array:
        """Return the covariances themselves."""
        return blocks

    def multiply(self, kernel: Array, rows: Array) -> Array:
        """Product of the kernel (P'·C, P·C), all rows as one vector."""
        xp = array_namespace(kernel=kernel)
        return xp.reshape(matmul(kernel, xp.reshape(rows, (-1, 1))), (-1, rows.shape[1]))

    def factorise(
        self, kernel: Array, outputs: Array, targets: Array, likelihood: ClassLikelihood
    ) -> Factors:
        """R (P, C, m), and L (P·m, P·m)."""
        xp, (_, root) = array_namespace(kernel=kernel), likelihood.derivatives(outputs, targets)
        mixed = transposed_blocks(root, kernel)  # RᵀK
        matrix = transposed_blocks(root, xp.matrix_transpose(mixed))  # RᵀKR, as K is symmetric
        return root, cholesky(add_to_diagonal(matrix, 1.0, xp), xp)

    def log_determinant(self, factors: Factors) -> Array:
        """Log determinant of LLᵀ."""
        return log_determinant(factors[1], array_namespace(lower=factors[1]))

    def solve(self, factors: Factors, rows: Array) -> Array:
        """Product R L⁻ᵀ L⁻¹ Rᵀ b."""
        root, lower = factors
        xp = array_namespace(lower=lower)
        right = transposed_blocks(root, xp.reshape(rows, (-1, 1)))
        half = solve_triangular(lower, right, xp)
        return xp.reshape(times_blocks(root, solve_transposed(lower, half, xp)), rows.shape)

    def explain(self, factors: Factors, kernel: Array) -> Array:
        """Blocks on the diagonal of the Gram matrix of L⁻¹Rᵀk."""
        root, lower = factors
        xp = array_namespace(lower=lower)
        mixed = transposed_blocks(root, xp.matrix_transpose(kernel))
        return gram_blocks(solve_triangular(lower, mixed, xp), root.shape[1])

    def weights(self, factors: Factors) -> Array:
        """Gram matrix of L⁻¹Rᵀ."""
        root, lower = factors
        xp = array_namespace(lower=lower)
        transposed = times_blocks(root, xp.matrix_transpose(invert_triangular(lower, xp)))
        return gram_matrix(xp.matrix_transpose(transposed), xp)


DENSE = Dense()
