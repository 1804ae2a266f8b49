"""Kernel of a ReLU layer: the arc-cosine kernel of first order."""

from __future__ import annotations

import math

import array_api_compat
import numpy as np

from pathkernel_core.arrays.backend import Array
from pathkernel_core.energy.token_kernels.token_kernel import TokenKernel


def relu_kernel(k_ab: Array, k_aa: Array, k_bb: Array) -> Array:
    """Arc-cosine kernel ⟨max(0, u_a) max(0, u_b)⟩ of Gaussian u with covariances k."""
    xp = array_api_compat.array_namespace(k_ab)
    # a token of zeros has no angle, and parallel ones an angle of infinite slope: other values
    # stand in there, for the derivatives alone
    zero = (k_aa == 0) | (k_bb == 0)
    larger, smaller = xp.maximum(k_aa, k_bb), xp.minimum(k_aa, k_bb)
    # √(k_aa k_bb), whose product would underflow long before the kernel does
    ratio = xp.where(zero, 1.0, smaller) / xp.where(zero, 1.0, larger)
    norms = xp.where(zero, 0.0, larger * xp.sqrt(ratio))
    cosine = xp.where(zero, 0.0, k_ab / xp.where(zero, 1.0, norms))
    parallel = xp.abs(cosine) >= 1
    angled = xp.where(parallel, 0.0, cosine)
    turned = xp.sqrt(1 - angled**2) + (math.pi - xp.acos(angled)) * angled
    return norms * xp.where(parallel, math.pi * xp.clip(cosine, 0.0, 1.0), turned) / (2 * math.pi)


RELU = TokenKernel(relu_kernel, lambda u: np.maximum(u, 0))
