"""Laplace's approximation of the energy, at the mode of the outputs f of a kernel K.

With −∂² ln p/∂f² = W = RRᵀ, block by block of the examples, the energy that replaces Eq. 12 is

    E(K) = 2 min_f [−ln p(y|f) + ½ fᵀK⁻¹f] + ln det(1 + RᵀKR).

The minimum is convex. Newton's method in a = K⁻¹f needs no inverse of K or W, both of which may be
singular: at the mode a = ∂ ln p/∂f, and with B = 1 + RᵀKR and Π = RB⁻¹Rᵀ = (W⁻¹ + K)⁻¹

    Δa = (1 + WK)⁻¹ r = r − RB⁻¹RᵀK r,      r = ∂ ln p/∂f − a,
    ∂E/∂K = −aaᵀ + Π + ½(qaᵀ + aqᵀ),
    q = s − ΠK s,      s_i = tr[Σ ∂W/∂f_i],      Σ = K − KΠK.

The term of q is the motion of the mode itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    compile_function,
    from_host,
    gram_matrix,
    invert_triangular,
    log_determinant,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
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


def transposed_blocks(root: Array, matrix: Array) -> Array:
    """Rᵀ times a matrix (P·C, …), of the blocks R (P, C, m): (P·m, …)."""
    return _times(array_namespace(root=root).matrix_transpose(root), matrix)


def times_blocks(root: Array, matrix: Array) -> Array:
    """R times a matrix (P·m, …), of the blocks R (P, C, m): (P·C, …)."""
    return _times(root, matrix)


def _times(blocks: Array, matrix: Array) -> Array:
    xp, (examples, rows, columns) = array_namespace(blocks=blocks), blocks.shape
    if rows == columns == 1:
        return blocks[:, 0, :] * matrix
    by_example = xp.reshape(matrix, (examples, columns, -1))
    return xp.reshape(matmul(blocks, by_example), (examples * rows, -1))


def solve_transposed(lower: Array, right: Array, xp: Any) -> Array:
    """Solve ``lowerᵀ @ x = right`` for a lower triangular matrix."""
    # reversed in both axes the transpose is lower triangular, too
    reversed_lower = xp.flip(xp.matrix_transpose(lower))
    return xp.flip(solve_triangular(reversed_lower, xp.flip(right, axis=0), xp), axis=0)


def kernel_mode(
    kernel: Array, targets: Array, likelihood: ClassLikelihood, start: Array | None
) -> tuple[Array, NewtonPoint]:
    """Coefficients a (P·C, 1) of the mode f = K a of a kernel (P·C, P·C), and their point.

    Raises
    ------
    NotPositiveDefiniteError
        If the kernel overflows, or Newton's method fails.
    """
    xp = array_namespace(kernel=kernel)
    step = compile_function(_kernel_step, xp, static=("likelihood",))
    value = compile_function(_kernel_value, xp, static=("likelihood",))
    if start is None:
        start = from_host(np.zeros((kernel.shape[0], 1)), kernel)
    try:
        return ascend(
            lambda a: NewtonPoint(*step(kernel, targets, a, likelihood=likelihood)),
            lambda a: value(kernel, targets, a, likelihood=likelihood),
            start,
        )
    except np.linalg.LinAlgError as error:
        raise no_mode(kernel, error) from None


def no_mode(kernel: Array, error: Exception) -> NotPositiveDefiniteError:
    """Error about a kernel (P·C, P·C) for which no mode of the outputs was found."""
    matrix = to_host(kernel)
    if not np.isfinite(matrix).all():
        return NotPositiveDefiniteError("the kernel overflows; rescale the inputs")
    values = np.linalg.eigvalsh(matrix)
    return NotPositiveDefiniteError(
        f"{error}: the kernel's smallest eigenvalue is {values[0]:.3g}, its largest "
        f"{values[-1]:.3g}"
    )


def _kernel_value(
    kernel: Array, targets: Array, coefficients: Array, *, likelihood: ClassLikelihood
) -> Array:
    xp = array_namespace(kernel=kernel)
    flat = matmul(kernel, coefficients)
    log_density = likelihood.log_density(xp.reshape(flat, targets.shape), targets)
    return log_density - 0.5 * xp.sum(flat * coefficients)


def _kernel_step(
    kernel: Array, targets: Array, coefficients: Array, *, likelihood: ClassLikelihood
) -> tuple[Array, Array, Array, Array, Array, tuple[Array, ...]]:
    xp = array_namespace(kernel=kernel)
    flat = matmul(kernel, coefficients)
    outputs = xp.reshape(flat, targets.shape)
    log_density = likelihood.log_density(outputs, targets)
    gradient, root = likelihood.derivatives(outputs, targets)
    mixed = transposed_blocks(root, kernel)  # RᵀK
    matrix = transposed_blocks(root, xp.matrix_transpose(mixed))  # RᵀKR, as K is symmetric
    lower = cholesky(add_to_diagonal(matrix, 1.0, xp), xp)
    residual = xp.reshape(gradient, (-1, 1)) - coefficients
    solved = solve_triangular(lower, matmul(mixed, residual), xp)
    step = residual - times_blocks(root, solve_transposed(lower, solved, xp))
    value = log_density - 0.5 * xp.sum(flat * coefficients)
    value = value + 0 * log_determinant(lower, xp)  # NaN after an overflow, whose step may be 0
    ascent = xp.sum(matmul(kernel, residual) * step)
    change = xp.max(xp.abs(matmul(kernel, step)))
    # |f_i| ≤ Σ_j |K_ij| |a_j|, and no entry of K is larger than its diagonal
    size = xp.max(xp.linalg.diagonal(kernel)) * xp.sum(xp.abs(coefficients))
    rounding = roundings(size, gradient, log_density)
    return value, step, ascent, change, rounding, (outputs, root, mixed, lower)


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


def laplace_energy(
    kernel: Array,
    targets: Array,
    value: Array,
    coefficients: Array,
    pieces: tuple[Array, ...],
    *,
    likelihood: ClassLikelihood,
) -> tuple[Array, Array]:
    """Energy () and ∂E/∂K (P·C, P·C), symmetric, with the motion of the mode."""
    xp = array_namespace(kernel=kernel)
    outputs, root, mixed, lower = pieces
    whitened = solve_triangular(lower, mixed, xp)  # L⁻¹RᵀK, so that KΠK is its Gram matrix
    covariances = block_diagonal(kernel, outputs.shape[1]) - gram_blocks(whitened, outputs.shape[1])
    slope = xp.reshape(likelihood.curvature_slope(outputs, targets, covariances), (-1, 1))
    # V = L⁻¹Rᵀ with Π = VᵀV, as Vᵀ = RL⁻ᵀ
    transposed = times_blocks(root, xp.matrix_transpose(invert_triangular(lower, xp)))
    moved = slope - matmul(transposed, matmul(whitened, slope))
    motion = matmul(moved, xp.matrix_transpose(coefficients))
    weights = gram_matrix(xp.matrix_transpose(transposed), xp)
    weights = weights - matmul(coefficients, xp.matrix_transpose(coefficients))
    weights = weights + 0.5 * (motion + xp.matrix_transpose(motion))
    return log_determinant(lower, xp) - 2 * value, weights


def block_diagonal(matrix: Array, outputs: int) -> Array:
    """Blocks (P, C, C) on the diagonal of a matrix (P·C, P·C)."""
    xp, examples = array_namespace(matrix=matrix), matrix.shape[0] // outputs
    numbers = np.arange(examples * outputs).reshape(examples, outputs)
    entries = numbers[:, :, None] * matrix.shape[0] + numbers[:, None, :]
    indices = from_host(entries.reshape(-1), matrix, xp.int64)
    taken = xp.take(xp.reshape(matrix, (-1,)), indices, axis=0)
    return xp.reshape(taken, (examples, outputs, outputs))


def gram_blocks(matrix: Array, outputs: int) -> Array:
    """Blocks (P, C, C) on the diagonal of MᵀM, of a matrix M (rows, P·C)."""
    xp = array_namespace(matrix=matrix)
    if outputs == 1:
        return xp.sum(matrix**2, axis=0)[:, None, None]
    by_example = xp.reshape(xp.matrix_transpose(matrix), (-1, outputs, matrix.shape[0]))
    return matmul(by_example, xp.matrix_transpose(by_example))
