"""Kernel of no layer: the product of two tokens."""

from __future__ import annotations

from pathkernel_core.arrays.backend import Array
from pathkernel_core.energy.token_kernels.token_kernel import TokenKernel


def linear_kernel(k_ab: Array, k_aa: Array, k_bb: Array) -> Array:
    """Linear kernel k_ab itself."""
    return k_ab


LINEAR = TokenKernel(linear_kernel, lambda u: u)
