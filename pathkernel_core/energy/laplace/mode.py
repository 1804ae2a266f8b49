"""Laplace's approximation of the energy, at the mode of the outputs f of a kernel K.

With −∂² ln p/∂f² = W = RRᵀ, block by block of the examples, the energy that replaces Eq. 12 is

    E(K) = 2 min_f [−ln p(y|f) + ½ fᵀK⁻¹f] + ln det(1 + RᵀKR).

The minimum is convex. Newton's method in a = K⁻¹f needs no inverse of K or W, both of which may be
singular: at the mode a = ∂ ln p/∂f, and with B = 1 + RᵀKR and Π = RB⁻¹Rᵀ = (W⁻¹ + K)⁻¹

    Δa = (1 + WK)⁻¹ r = r − RB⁻¹RᵀK r,      r = ∂ ln p/∂f − a,
    ∂E/∂K = −aaᵀ + Π + ½(qaᵀ + aqᵀ),
    q = s − ΠK s,      s_i = tr[Σ ∂W/∂f_i],      Σ = K − KΠK.

The term of q is the motion of the mode itself. How the rows (example, output) are factorised is
left to a :mod:`pathkernel_core.energy.laplace.structure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.laplace.blocks import block_diagonal
from pathkernel_core.energy.laplace.structure import Structure
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood
from pathkernel_core.system.errors import NotPositiveDefiniteError

_STEPS = 200  # of Newton's method; the largest number seen, at a scale of 10⁶, is about 30
_SHORTEST = 2.0**-30  # step length at which rounding hides any further ascent
_ARMIJO = 1e-4  # share of the predicted ascent that a step must reach
_CONVERGED, _SETTLED = 4.0, 1e4  # change of an output over its rounding; and if it shrinks no more
_SLACK = 4.0  # over the rounding of the value, by which it may fall


@dataclass(frozen=True, eq=False)
class NewtonPoint:
    """Pieces of a Newton step at a point, in the variables of a form.

    Attributes
    ----------
    value : array, shape ()
        ln p(y|f) − ½ fᵀK⁻¹f.
    step : array
        Change of the variables, of their shape.
    ascent : array, shape ()
        Derivative of the value along the step, at least 0.
    change : array, shape ()
        Largest change of an output by the step.
    rounding : array, shape (2,)
        Bounds on the rounding of an output and of the value, over that of a number near 1: where
        examples with equal inputs have different classes, large terms cancel.
    rest : tuple of arrays
        What the gradient of the energy needs at the mode.
    """

    value: Array
    step: Array
    ascent: Array
    change: Array
    rounding: Array
    rest: tuple[Array, ...]


def ascend(
    at: Callable[[Array], NewtonPoint],
    value_at: Callable[[Array], Array],
    start: Array,
) -> tuple[Array, NewtonPoint]:
    """Damped Newton's method from any start to the mode, to rounding.

    Parameters
    ----------
    at : callable
        Variables to a NewtonPoint.
    value_at : callable
        Variables to the value alone.
    start : array

    Returns
    -------
    tuple of an array and a NewtonPoint
        The mode, and its point.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the steps do not converge, or a value is not finite.
    """
    variables, before = start, math.inf
    epsilon = float(array_namespace(start=start).finfo(start.dtype).eps)
    for _ in range(_STEPS):
        point = at(variables)
        value, ascent, change = map(float, (point.value, point.ascent, point.change))
        of_output, of_value = (epsilon * float(bound) for bound in (*point.rounding,))
        if not (math.isfinite(value) and math.isfinite(change)):
            break
        # the outputs count, not the variables: their sizes may differ by orders of magnitude
        allowed = _CONVERGED if change < 0.5 * before else _SETTLED
        if change <= allowed * of_output:
            return variables, point
        length = 1.0
        while length > _SHORTEST:
            moved = variables + length * point.step
            required = value + _ARMIJO * length * ascent - _SLACK * of_value
            if float(value_at(moved)) >= required:
                break
            length /= 2
        else:
            break
        before = change if length == 1 else math.inf
        variables = moved
    raise np.linalg.LinAlgError(
        "Newton's method did not find the mode of the outputs; rescale the inputs or use float64"
    )


def kernel_mode(
    kernel: Array,
    targets: Array,
    likelihood: ClassLikelihood,
    structure: Structure,
    start: Array | None,
) -> tuple[Array, NewtonPoint]:
    """Coefficients a (P, C) of the mode f = K a of a kernel of this structure, and their point.

    Raises
    ------
    NotPositiveDefiniteError
        If the kernel overflows, or Newton's method fails.
    """
    xp, static = array_namespace(kernel=kernel), ("likelihood", "structure")
    step, value = (compile_function(f, xp, static=static) for f in (_kernel_step, _kernel_value))
    settings = {"likelihood": likelihood, "structure": structure}
    if start is None:
        start = from_host(np.zeros(targets.shape), kernel)
    try:
        return ascend(
            lambda a: NewtonPoint(*step(kernel, targets, a, **settings)),
            lambda a: value(kernel, targets, a, **settings),
            start,
        )
    except np.linalg.LinAlgError as error:
        raise no_mode(kernel, error) from None


def no_mode(kernel: Array, error: Exception) -> NotPositiveDefiniteError:
    """Error about a kernel, (P·C, P·C) or (P, P), for which no mode of the outputs was found."""
    matrix = to_host(kernel)
    if not np.isfinite(matrix).all():
        return NotPositiveDefiniteError("the kernel overflows; rescale the inputs")
    values = np.linalg.eigvalsh(matrix)
    return NotPositiveDefiniteError(
        f"{error}: the kernel's smallest eigenvalue is {values[0]:.3g}, its largest "
        f"{values[-1]:.3g}"
    )


def _kernel_value(
    kernel: Array,
    targets: Array,
    coefficients: Array,
    *,
    likelihood: ClassLikelihood,
    structure: Structure,
) -> Array:
    outputs = structure.multiply(kernel, coefficients)
    xp = array_namespace(outputs=outputs)
    return likelihood.log_density(outputs, targets) - 0.5 * xp.sum(outputs * coefficients)


def _kernel_step(
    kernel: Array,
    targets: Array,
    coefficients: Array,
    *,
    likelihood: ClassLikelihood,
    structure: Structure,
) -> tuple[Array, Array, Array, Array, Array, tuple[Array, ...]]:
    xp = array_namespace(kernel=kernel)
    outputs = structure.multiply(kernel, coefficients)
    log_density = likelihood.log_density(outputs, targets)
    gradient, _ = likelihood.derivatives(outputs, targets)
    factors = structure.factorise(kernel, outputs, targets, likelihood)
    residual = gradient - coefficients
    raised = structure.multiply(kernel, residual)  # K r
    step = residual - structure.solve(factors, raised)
    log_det = structure.log_determinant(factors)
    value = log_density - 0.5 * xp.sum(outputs * coefficients)
    value = value + 0 * log_det  # NaN after an overflow, whose step may be 0
    change = xp.max(xp.abs(structure.multiply(kernel, step)))
    # |f_i| ≤ Σ_j |K_ij| |a_j|, and no entry of K is larger than its diagonal
    size = xp.max(xp.linalg.diagonal(kernel)) * xp.sum(xp.abs(coefficients))
    rounding = roundings(size, gradient, log_density)
    return value, step, xp.sum(raised * step), change, rounding, (outputs, log_det, *factors)


def roundings(size: Array, gradient: Array, log_density: Array) -> Array:
    """Bounds on the rounding of an output and of the value, over that of a number near 1, (2,).

    Parameters
    ----------
    size : array, shape ()
        Bound on the sum of absolute terms of an output.
    gradient : array, shape (P, C)
        ∂ ln p/∂f, which is a at the mode.
    log_density : array, shape ()
    """
    xp = array_namespace(gradient=gradient)
    of_output = 1 + size
    # of ln p, and of the quadratic form aᵀKa
    of_value = 1 + xp.abs(log_density) + of_output * xp.sum(xp.abs(gradient))
    return xp.stack([of_output, of_value])


def laplace_energy(point: NewtonPoint) -> float:
    """Energy at the mode of a kernel."""
    _, log_det, *_ = point.rest
    return float(log_det) - 2 * float(point.value)


def laplace_weights(
    kernel: Array,
    targets: Array,
    coefficients: Array,
    pieces: tuple[Array, ...],
    *,
    likelihood: ClassLikelihood,
    structure: Structure,
) -> Array:
    """Weights ∂E/∂K (P·C, P·C) at the mode, symmetric, with the motion of the mode."""
    xp, (examples, classes) = array_namespace(kernel=kernel), targets.shape
    outputs, _, *rest = pieces
    factors = tuple(rest)
    prior = block_diagonal(kernel, kernel.shape[0] // examples)
    covariances = structure.expand_blocks(prior, classes) - structure.explain(factors, kernel)
    slope = likelihood.curvature_slope(outputs, targets, covariances)
    moved = slope - structure.solve(factors, structure.multiply(kernel, slope))
    moved, flat = (xp.reshape(rows, (-1, 1)) for rows in (moved, coefficients))
    motion = matmul(moved, xp.matrix_transpose(flat))
    weights = structure.weights(factors) - matmul(flat, xp.matrix_transpose(flat))
    return weights + 0.5 * (motion + xp.matrix_transpose(motion))
