"""Derivatives of U_1 and of the entropy with respect to the coordinates x of the chain.

Compiled once for all networks of the same levels. Parameters of both functions:

levels : tuple of L + 1 levels, from :func:`pathkernel_core.action.coordinates.chain_levels`
scales, widths : arrays, shape (L + 1,), σ_1 … σ_a and N_1 … N_{L+1}
x : array, shape (D,)
slope : array, shape (p,), derivatives of the energy with respect to U_1's lower triangle
directions : array, shape (D, D), one direction per column

The half action is that of the expansion: half the excess entropy, not divided by N, plus half the
energy linearised in U.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.action.coordinates import (
    Level,
    chain_factors,
    excess_entropy,
    relative_factors,
)
from pathkernel_core.arrays.backend import Array

Levels = tuple[Level, ...]


@partial(jax.jit, static_argnums=0)
def derivatives(
    levels: Levels, scales: Array, widths: Array, x: Array, slope: Array
) -> tuple[Array, Array, Array]:
    """First (p, D) and second (p, D, D) derivatives of U_1, and the half action's Hessian."""
    # levels are static, since their shapes make the program; widths and variances are not, so that
    # one compilation, which takes seconds, serves a whole grid
    jacobian = jax.jacfwd(partial(_order_parameter, levels, scales))
    hessian = jax.jacfwd(jax.jacfwd(partial(_half_action, levels, scales, widths, slope)))
    return jacobian(x), jax.jacfwd(jacobian)(x), hessian(x)


@partial(jax.jit, static_argnums=0)
def derivatives_along(
    levels: Levels, scales: Array, widths: Array, x: Array, slope: Array, directions: Array
) -> tuple[Array, Array, Array]:
    """Higher derivatives along directions.

    Returns
    -------
    laplacian_gradient : array, shape (p, D)
        Gradient of the sum of U_1's second derivatives along the directions.
    cubic : array, shape (D, D, D)
        Derivative of the half action's Hessian along each direction, which comes first.
    quartic : array, shape ()
        Laplacian of the Laplacian of the half action.
    """
    half_action = partial(_half_action, levels, scales, widths, slope)
    hessian = jax.jacfwd(jax.jacfwd(half_action))
    laplacian = _laplacian(partial(_order_parameter, levels, scales), directions)
    # one direction at a time, and Laplacians of Laplacians: no tensor of rank four is formed
    cubic = jax.lax.map(lambda v: jax.jvp(hessian, (x,), (v,))[1], directions.T)
    quartic = _laplacian(_laplacian(half_action, directions), directions)
    return jax.jacfwd(laplacian)(x), cubic, quartic(x)


def _order_parameter(levels: Levels, scales: Array, x: Array) -> Array:
    """Lower triangle of U_1, (p,)."""
    factor, *_ = chain_factors(relative_factors(x, levels, scales), levels, scales)
    return (factor @ factor.T)[np.tril_indices(len(factor))]


def _half_action(levels: Levels, scales: Array, widths: Array, slope: Array, x: Array) -> Array:
    energy = slope @ _order_parameter(levels, scales, x)
    return (energy + excess_entropy(x, levels, widths)) / 2


def _laplacian(function: Callable[[Array], Array], directions: Array) -> Callable[[Array], Array]:
    """Sum of a function's second derivatives along directions, one per column."""

    def second(x: Array, direction: Array) -> Array:
        def first(y: Array) -> Array:
            return jax.jvp(function, (y,), (direction,))[1]

        return jax.jvp(first, (x,), (direction,))[1]

    return lambda x: jnp.sum(jax.lax.map(lambda v: second(x, v), directions.T), axis=0)
