"""Classes that have a kernel in common: C factorisations of P rows in place of one of P·C.

Where the outputs are independent a priori with one kernel K (P, P), as in the Gaussian process
limit, the classes meet in the curvature W = diag p − p pᵀ of the softmax alone. With p_c the
probabilities of class c, one for each example (Rasmussen and Williams, *Gaussian Processes for
Machine Learning*, algorithms 3.3 and 3.4),

    E_c = √p_c (1 + √p_c K √p_c)⁻¹ √p_c = (p_c⁻¹ + K)⁻¹,      S = Σ_c E_c = LLᵀ,
    Π_cd = δ_cd E_c − E_c S⁻¹ E_d,
    ln det(1 + RᵀKR) = Σ_c ln det(1 + √p_c K √p_c) + ln det S.

Nothing is divided by p, which may be 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    from_host,
    gram_matrix,
    inverse_from_root,
    invert_triangular,
    log_determinant,
    map_rows,
    solve_triangular,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.laplace.blocks import solve_transposed
from pathkernel_core.energy.laplace.structure import Factors, Structure
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood


@dataclass(frozen=True)
class ClassBlocks(Structure):
    """Factorisations class by class: ln det(1 + RᵀKR), E (C, P, P), and L of S = LLᵀ.

    Of the kernel (P·C, P·C), K ⊗ 1 with examples slowest, it keeps K (P, P); of factors B ⊗ 1 of
    U, B (n, n).
    """

    def reduce_factor(self, factor: np.ndarray, outputs: int) -> np.ndarray:
        """Factor (n, n) that the outputs have in common."""
        return factor[::outputs, ::outputs]

    def expand_blocks(self, blocks: Array, outputs: int) -> Array:
        """Covariances (P, C, C) of independent outputs, of their variance (P, 1, 1)."""
        return blocks * from_host(np.eye(outputs), blocks)

    def multiply(self, kernel: Array, rows: Array) -> Array:
        """Product of the kernel (P', P), class by class."""
        return matmul(kernel, rows)

    def factorise(
        self, kernel: Array, outputs: Array, targets: Array, likelihood: ClassLikelihood
    ) -> Factors:
        """Factorise 1 + √p K √p of every class, and the sum of the E_c."""
        xp = array_namespace(kernel=kernel)
        roots = xp.matrix_transpose(xp.sqrt(likelihood.class_probabilities(outputs)))  # (C, P)
        inverses, log_dets = map_rows(partial(_factorise_class, kernel=kernel), roots, xp)
        lower = cholesky(xp.sum(inverses, axis=0), xp)
        return xp.sum(log_dets) + log_determinant(lower, xp), inverses, lower

    def log_determinant(self, factors: Factors) -> Array:
        """Return that of the factors."""
        return factors[0]

    def solve(self, factors: Factors, rows: Array) -> Array:
        """Product E_c b_c − E_c S⁻¹ Σ_d E_d b_d."""
        _, inverses, lower = factors
        xp = array_namespace(lower=lower)
        products = matmul(inverses, xp.matrix_transpose(rows)[:, :, None])  # (C, P, 1)
        common = solve_triangular(lower, xp.sum(products, axis=0), xp)
        common = solve_transposed(lower, common, xp)
        return xp.matrix_transpose((products - matmul(inverses, common))[:, :, 0])

    def explain(self, factors: Factors, kernel: Array) -> Array:
        """Blocks δ_cd kᵀE_ck − kᵀE_c S⁻¹ E_dk."""
        _, inverses, lower = factors
        xp = array_namespace(lower=lower)
        columns = xp.matrix_transpose(kernel)  # (P, P')
        products = matmul(inverses, columns)  # (C, P, P')
        own = xp.matrix_transpose(xp.sum(products * columns, axis=1))  # (P', C)
        halves = xp.permute_dims(_whiten(products, lower), (2, 0, 1))  # (P', C, P)
        coupling = matmul(halves, xp.matrix_transpose(halves))
        return self.expand_blocks(own[:, :, None], own.shape[1]) - coupling

    def weights(self, factors: Factors) -> Array:
        """Π (P·C, P·C) of all pairs of classes."""
        _, inverses, lower = factors
        xp, (outputs, examples, _) = array_namespace(lower=lower), inverses.shape
        size = examples * outputs
        halves = xp.permute_dims(_whiten(inverses, lower), (1, 2, 0))  # (P, P, C)
        coupling = gram_matrix(xp.reshape(halves, (examples, size)), xp)
        by_example = xp.permute_dims(inverses, (1, 2, 0))[:, None, :, :]  # of pairs of examples
        same = from_host(np.eye(outputs)[None, :, None, :], inverses)
        return xp.reshape(by_example * same, (size, size)) - coupling


CLASS_BLOCKS = ClassBlocks()


def is_common(factor: np.ndarray, outputs: int) -> bool:
    """Whether a factor (n·C, n·C) is B ⊗ 1: outputs with one order parameter, and independent."""
    one = np.eye(outputs)
    if (factor[:outputs, :outputs] != factor[0, 0] * one).any():  # at minima the first block tells
        return False
    return bool((factor == np.kron(factor[::outputs, ::outputs], one)).all())


def keeps_digits(kernel: Array) -> bool:
    """Whether factorisations class by class of a kernel (P, P) keep half of the digits or more.

    At a mode of large outputs W is small, and so is RᵀKR; but √p K √p is as large as K, whose
    rounding is left in Π. An overflow keeps none.
    """
    xp = array_namespace(kernel=kernel)
    return float(xp.linalg.trace(kernel)) <= 1 / math.sqrt(float(xp.finfo(kernel.dtype).eps))


def _factorise_class(roots: Array, *, kernel: Array) -> tuple[Array, Array]:
    """E_c, and ln det(1 + √p_c K √p_c), of √p_c (P,)."""
    xp = array_namespace(kernel=kernel)
    lower = cholesky(add_to_diagonal(roots[:, None] * kernel * roots, 1.0, xp), xp)
    inverse = inverse_from_root(invert_triangular(lower, xp), xp)
    return roots[:, None] * inverse * roots, log_determinant(lower, xp)


def _whiten(matrices: Array, lower: Array) -> Array:
    """L⁻¹ times every matrix, (C, P, P')."""
    xp = array_namespace(lower=lower)
    outputs, examples, columns = matrices.shape
    side_by_side = xp.reshape(xp.permute_dims(matrices, (1, 0, 2)), (examples, outputs * columns))
    halves = xp.reshape(solve_triangular(lower, side_by_side, xp), (examples, outputs, columns))
    return xp.permute_dims(halves, (1, 0, 2))
