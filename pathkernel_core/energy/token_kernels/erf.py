"""Kernel of a layer with the error function: the arcsine kernel."""

from __future__ import annotations

import math

import array_api_compat
import scipy

from pathkernel_core.arrays.backend import Array
from pathkernel_core.energy.token_kernels.token_kernel import TokenKernel


def erf_kernel(k_ab: Array, k_aa: Array, k_bb: Array) -> Array:
    """Kernel ⟨erf(u_a) erf(u_b)⟩ of Gaussian u with covariances k."""
    xp = array_api_compat.array_namespace(k_ab)
    sine = 2 * k_ab / xp.sqrt((1 + 2 * k_aa) * (1 + 2 * k_bb))
    return 2 / math.pi * xp.asin(xp.clip(sine, -1.0, 1.0))


ERF = TokenKernel(erf_kernel, lambda u: scipy.special.erf(u))
