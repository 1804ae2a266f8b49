"""Laplace's method to next order at the minimum of the action: one and two loops.

Formulas of docs/corrections.md, for NumPy and JAX alike: JAX differentiates them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pathkernel_core.action.coordinates import Level
from pathkernel_core.arrays.backend import Array, array_namespace, solve_triangular
from pathkernel_core.paths.network import Network


class Energy(Protocol):
    """Derivatives of the energy with respect to the p lower-triangular entries of U."""

    @property
    def second(self) -> Array:
        """Second derivatives, (p, p)."""

    def higher(self, basis: Array) -> tuple[Array, Array]:
        """Third derivatives (p, p, p) along directions, and Σ_rs of the fourth in r, r, s, s."""


class Chain(NamedTuple):
    """First derivatives of U (p, D), second (p, D, D), and the linear part of φ's Hessian."""

    jacobian: Array
    curvature: Array
    linear: Array

    def hessian(self, second: Array) -> Array:
        """Hessian (D, D) of φ = S/2, from the second derivatives of the energy."""
        return self.linear + self.jacobian.T @ second @ self.jacobian / 2


class Expansion(NamedTuple):
    """Log evidence beyond the minimum by loops, and the correction and covariance of U."""

    one_loop: Array
    two_loops: Array
    order_parameter_correction: Array
    covariance: Array


def remainder_slope(levels: Sequence[Level]) -> np.ndarray:
    """Gradient of c = Σ_ℓ Σ_j j · ln (X_ℓ)_jj, (D,)."""
    rows = np.concatenate([np.nonzero(level.free)[0] for level in levels])
    return rows * np.concatenate([level.diagonal for level in levels])


def expand(
    chain: Chain,
    energy: Energy,
    x: Array,
    remainder: np.ndarray,
    along: Callable[[Array], Iterable[Array]],
) -> Expansion:
    """Expand around the minimum.

    Parameters
    ----------
    chain : Chain
    energy : Energy
    x : array, shape (D,)
    remainder : array, shape (D,)
        From :func:`remainder_slope`.
    along : callable
        Derivatives along directions (D, D), one per column: see
        :func:`pathkernel_sampling.corrections.chain_derivatives.derivatives_along`.
    """
    xp = array_namespace(x=x)
    lower = xp.linalg.cholesky(chain.hessian(energy.second))
    # x = x* + V z makes the Hessian in z the identity; all that follows is in z
    directions = solve_triangular(lower, xp.eye(len(x)), xp).T
    slope = directions.T @ remainder
    jacobian = chain.jacobian @ directions
    curvature = directions.T @ chain.curvature @ directions  # ∂²U/∂z², (p, D, D)
    laplacian = xp.trace(curvature, axis1=1, axis2=2)
    second = energy.second
    laplacian_gradient, chain_cubic, chain_quartic = along(directions)

    # cubic and quartic terms of φ, by the chain rule through U (docs/corrections.md, Derivatives):
    # third derivatives of the energy are taken along as many directions as U has entries, the
    # columns of a root of its covariance, and not along all D coordinates
    covariance = jacobian @ jacobian.T  # of U at one loop
    basis = xp.linalg.cholesky(covariance)
    third, fourth = energy.higher(basis)
    whitened = solve_triangular(basis, jacobian, xp)
    cubic = xp.einsum("rst,ri,sj,tk->ijk", third, whitened, whitened, whitened, optimize=True)
    mixed = xp.einsum("ai,ab,bjk->ijk", jacobian, second, curvature, optimize=True)
    cubic += mixed + mixed.transpose(1, 0, 2) + mixed.transpose(1, 2, 0)
    cubic = cubic / 2 + directions.T @ chain_cubic @ directions

    relative = solve_triangular(basis, curvature.reshape(len(basis), -1), xp)
    relative = relative.reshape(curvature.shape)
    gradient = laplacian_gradient @ directions  # ∂ΔU/∂z, (p, D)
    quartic = fourth + laplacian @ second @ laplacian
    quartic += 4 * xp.einsum("ai,ab,bi->", jacobian, second, gradient, optimize=True)
    quartic += 2 * xp.einsum("aij,ab,bij->", curvature, second, curvature, optimize=True)
    quartic += 2 * xp.einsum("rrt,tii->", third, relative, optimize=True)
    quartic += 4 * xp.einsum("rst,ri,sj,tij->", third, whitened, whitened, relative, optimize=True)
    quartic = quartic / 2 + chain_quartic

    tadpole = xp.trace(cubic, axis1=1, axis2=2)
    shift = -(slope + tadpole / 2)  # mean of z
    one_loop = -xp.log(xp.diagonal(lower)).sum() - remainder @ x
    two_loops = (tadpole @ tadpole - quartic) / 8 + (cubic**2).sum() / 12
    two_loops += slope @ (slope + tadpole) / 2
    correction = laplacian / 2 + jacobian @ shift
    return Expansion(one_loop, two_loops, correction, covariance)


def prior_loops(network: Network) -> tuple[float, float]:
    """Logarithm of the prior's normaliser to one loop, and its two-loop term.

    The same expansion as for the posterior, rather than the exact Γ functions, so that the part
    that does not depend on the data cancels to all orders.
    """
    one_loop, two_loops = 0.0, 0.0
    of_levels = zip(network.widths, network.sizes, network.shared_sizes)
    for width, size, shared in of_levels:
        if math.isinf(width):
            continue  # no fluctuations
        column = np.arange(shared, size)
        one_loop -= len(column) * math.log(2 * width) / 2 + column.sum() * math.log(width) / 2
        two_loops += ((1 / 6 + column / 2 + column**2 / 4) / width).sum()
    return one_loop, float(two_loops)
