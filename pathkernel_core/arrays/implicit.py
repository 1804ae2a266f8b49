"""Minima as functions of their parameters, with derivatives of every order, on PyTorch and JAX.

The minimum x(θ) of a function S(x, θ) moves by the implicit function theorem,

    ∂²S/∂x² dx = −∂²S/∂x∂θ dθ,        dS(x(θ), θ) = ∂S/∂θ dθ,

the latter by the envelope theorem. Both hold wherever θ is, so that they can be differentiated
again: the derivatives are taken at x(θ), which is itself differentiable, and not at a constant.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from array_api_compat import is_torch_namespace

from pathkernel_core.arrays.backend import Array, array_namespace, constant, derivatives
from pathkernel_core.arrays.products import full_precision

Function = Callable[[Array, tuple[Array, ...]], Array]
"""Function S(x, θ) of a vector x and arrays θ, as an array of no dimensions."""


def implicit_minimum(
    function: Function, minimum: Array, theta: tuple[Array, ...], columns: int
) -> tuple[Array, Array]:
    """Value and position of a minimum as functions of the parameters θ.

    Parameters
    ----------
    function : callable
        S(x, θ).
    minimum : array, shape (m,)
        Its minimum in x at these θ, a constant; the position is one step of Newton's method better.
    theta : tuple of arrays
        Parameters θ.
    columns : int
        Number of the Hessian's columns that are computed at once.

    Returns
    -------
    value : array, shape ()
        S(x(θ), θ). Its first derivatives do not need the Hessian.
    position : array, shape (m,)
        x(θ).
    """
    if not minimum.shape[0]:
        return function(minimum, theta), minimum
    xp, fixed = array_namespace(minimum=minimum), tuple(map(constant, theta))
    gradient, hessian = derivatives(xp)
    slope = gradient(function)
    matrix = hessian(lambda x: function(x, fixed), minimum, columns)
    # zero within the tolerance of the minimisation, so that the step moves little
    step = xp.linalg.solve(matrix, slope(minimum, fixed)[:, None])[:, 0]
    implicit = _implicit_of_torch if is_torch_namespace(xp) else _implicit_of_jax
    value, root = implicit(function, slope, matrix, minimum, theta)
    return value, root - step


def _implicit_of_jax(
    function: Function, slope: Function, matrix: Array, minimum: Array, theta: tuple[Array, ...]
) -> tuple[Array, Array]:
    import jax

    # the rule of a derivative is traced after this function has ended: all arrays are arguments
    def position(matrix: Array, minimum: Array, theta: tuple[Array, ...]) -> Array:
        def solve(product: Callable, right: Array) -> Array:
            def invert(_: Callable, vector: Array) -> Array:
                return jax.numpy.linalg.solve(matrix, vector)

            # the derivatives of the solution come from the product: a constant matrix will do
            return jax.lax.custom_linear_solve(product, right, invert, symmetric=True)

        return jax.lax.custom_root(lambda x: slope(x, theta), minimum, lambda _, x: x, solve)

    @jax.custom_jvp
    def value(matrix: Array, minimum: Array, theta: tuple[Array, ...]) -> Array:
        return function(minimum, theta)

    @value.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        at_minimum = functools.partial(function, position(*primals))
        return value(*primals), jax.jvp(at_minimum, primals[2:], tangents[2:])[1]

    return value(matrix, minimum, theta), position(matrix, minimum, theta)


def _implicit_of_torch(
    function: Function, slope: Function, matrix: Array, minimum: Array, theta: tuple[Array, ...]
) -> tuple[Array, Array]:
    root, envelope = _torch_functions()
    position = root.apply(lambda x, *theta: slope(x, theta), matrix, minimum, *theta)
    return function(envelope.apply(position), theta), position


@functools.cache
def _torch_functions() -> tuple[Any, Any]:
    """Classes of functions of PyTorch: the root of a residual, and a minimum's position in S."""
    torch: Any = sys.modules["torch"]

    class Root(torch.autograd.Function):
        """Root x(θ) of residual(x, *θ), whose Jacobian in x is a symmetric matrix."""

        @staticmethod
        def forward(
            ctx: Any, residual: Callable, matrix: Array, root: Array, *theta: Array
        ) -> Array:
            ctx.residual, ctx.matrix = residual, matrix
            ctx.set_materialize_grads(False)
            root = root.clone()
            ctx.save_for_backward(root, *theta)
            return root

        @staticmethod
        def backward(ctx: Any, change: Array | None) -> tuple[Array | None, ...]:
            residual, matrix = ctx.residual, ctx.matrix
            root, *theta = ctx.saved_tensors
            if change is None:
                return None, None, None, *(None for _ in theta)

            def of_weights(weights: Array, root: Array, *arguments: Array) -> Array:
                # the residual of the linear system: itself one of a root, of symmetric Jacobian
                *theta, change = arguments
                _, pull_back = torch.func.vjp(lambda x: residual(x, *theta), root)
                return pull_back(weights)[0] + change

            with full_precision(root):
                weights = -torch.linalg.solve(matrix, change.detach())
                if torch.is_grad_enabled():  # for higher derivatives
                    weights = Root.apply(of_weights, matrix, weights, root, *theta, change)
                _, pull_back = torch.func.vjp(lambda *theta: residual(root, *theta), *theta)
                return None, None, None, *pull_back(weights)

    class Envelope(torch.autograd.Function):
        """Position of a minimum: a first derivative of the value through it is zero."""

        @staticmethod
        def forward(ctx: Any, position: Array) -> Array:
            return position.clone()

        @staticmethod
        def backward(ctx: Any, change: Array) -> Array | None:
            return change if torch.is_grad_enabled() else None

    return Root, Envelope
