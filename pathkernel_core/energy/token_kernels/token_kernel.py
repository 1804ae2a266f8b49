"""Kernel of two tokens, and the activation function that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pathkernel_core.arrays.backend import Array

KernelFunction = Callable[[Array, Array, Array], Array]
"""Linear kernels k_ab between tokens, k_aa and k_bb of each with itself, to their kernel."""


@dataclass(frozen=True)
class TokenKernel:
    """Kernel of tokens above a token-wise layer of infinite width.

    Attributes
    ----------
    function : callable
        (k_ab, k_aa, k_bb) → k', element by element on arrays that broadcast, of any library:
        ⟨φ(u_a) φ(u_b)⟩ of Gaussian u with covariances k.
    activation : callable
        The activation function φ of NumPy arrays.
    """

    function: KernelFunction
    activation: Callable[[np.ndarray], np.ndarray]
