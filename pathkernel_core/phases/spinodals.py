"""Spinodals: where a state, a followed minimum, merges with a saddle and ends.

There the gradient g of the action vanishes, and the smallest eigenvalue λ of its Hessian H, too:

    g(x, θ) = 0,      λ(x, θ) = 0,      H v = λ v,

m + 1 equations for the m coordinates x and for k parameters θ. They are solved by Newton's method.
Along the eigenvector v, dx = α v + w with w ⊥ v, the Hessian cannot be divided by; the rest can,

    w = −H⁺ (g + ∂g/∂θ dθ),

and two equations are left for α and dθ: v·(g + ∂g/∂θ dθ) + λ α = 0, and λ + dλ = 0. With two
parameters their solutions are a curve, followed by its arc length in (α, θ), around the points at
which it turns back in θ.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from pathkernel_core.action.stability import DENSE, ActionHessian
from pathkernel_core.phases.coexistence import RESOLUTION, ActionFamily, StatePoint, follow
from pathkernel_core.phases.curves import Landing, Stops, trace_curve
from pathkernel_core.system.errors import NotPositiveDefiniteError

_ALONG = 1e-3  # of differences along the eigenvector, in coordinates
_ACROSS = 1e-4  # of differences in ln θ
_STEPS = 20  # of Newton's method, and along a state
_CONVERGED = 1e-5  # of its last step, in α and ln θ; the error is about its square
_RESOLUTIONS = RESOLUTION, 1e-2 * RESOLUTION  # in ln θ, of the end of a state
_CLOSE = 1e-3  # in α, from where Newton's method takes over
_WALK = 0.2  # longest step along a state, in α
_CORRECTIONS = 15  # of a step along a state, with the Hessian at its start
_CAPTURE = 0.1  # largest correction of ln θ, beyond which it is another spinodal
_NEIGHBOURS = 3  # eigenvalues among which the one that vanishes is followed


@dataclass(frozen=True, eq=False)
class Spinodal:
    """A point at which a minimum and a saddle merge.

    Attributes
    ----------
    point : array, shape (k,)
        ln θ.
    coordinates : array, shape (m,)
        Coordinates of the order parameters, in the chain.
    mode : array, shape (m,)
        Direction along which the action is flat, of unit length.
    inside : array, shape (k,)
        Direction of ln θ in which the minimum exists, of unit length.
    action : float
        S/N.
    softest_other : float
        Smallest other eigenvalue of the Hessian; if it is negative no minimum ends here.
    tangent : array, shape (1 + k,)
        Direction of the curve in (α, ln θ), of unit length; empty with one parameter.
    velocity : array, shape (m,)
        Change of the coordinates along the tangent.
    """

    point: np.ndarray
    coordinates: np.ndarray = field(repr=False)
    mode: np.ndarray = field(repr=False)
    inside: np.ndarray
    action: float
    softest_other: float
    tangent: np.ndarray = field(repr=False)
    velocity: np.ndarray = field(repr=False)


def spinodal_towards(
    family: ActionFamily, minimum: StatePoint, target: np.ndarray
) -> Spinodal | None:
    """Spinodal at which a minimum ends on the straight line to a target ln θ.

    Returns
    -------
    Spinodal or None
        None if the minimum exists up to the target, or its saddle is not found.
    """
    if np.array_equal(minimum.point, target):
        return None
    direction = (target - minimum.point) / np.linalg.norm(target - minimum.point)
    # on the line alone: the other directions of θ are taken away
    others = scipy.linalg.null_space(direction[None])
    rows = np.column_stack([np.zeros(others.shape[1]), others.T])
    end = minimum
    for resolution in _RESOLUTIONS:  # a stiff minimum is lost if its end is not closer
        end = follow(family, end, target, resolution)
        if np.array_equal(end.point, target):
            return None
        near = _approach_spinodal(family, end, direction)
        spinodal = None if near is None else _correct_point(family, *near, None, rows)
        if spinodal is not None:
            return spinodal
    return None


def _approach_spinodal(
    family: ActionFamily, end: StatePoint, direction: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Point ln θ, coordinates and mode close to a spinodal, from the end of a state before it.

    Newton's method alone may miss it, since the minimum moves as the root of the distance. Along
    the state λ is a smooth function of α, whose zero is reached by steps that stay on the state.
    """
    point, coordinates, longest = end.point, end.coordinates, _WALK
    mode = _moving_mode(family, end, direction)
    with suppress(np.linalg.LinAlgError, NotPositiveDefiniteError, ValueError):
        for _ in range(_STEPS):
            local = _Local(family, point, coordinates, mode)
            mode = local.mode
            ahead = -local.value / (local.rows[0, 1:] @ direction)  # dθ/dα on the state
            step = -local.value / (local.rows[1, 0] + local.rows[1, 1:] @ direction * ahead)
            if abs(step) < _CLOSE:
                return point, coordinates, mode
            reached = None
            while reached is None and longest > _CLOSE:
                limited = float(np.clip(step, -longest, longest))
                reached = _step_along(family, point, coordinates, local, direction, limited)
                longest = longest / 2 if reached is None else min(2 * longest, _WALK)
            if reached is None:
                return None
            point, coordinates = reached
    return None


def _step_along(
    family: ActionFamily,
    point: np.ndarray,
    coordinates: np.ndarray,
    local: _Local,
    direction: np.ndarray,
    step: float,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Point of the state a step further in α, by the Hessian before it; None if it is too far."""
    push = local.rows[0, 1:] @ direction  # of the gradient along the mode, by ln θ
    moves = local.rest @ direction
    shift = -local.value / push * step
    point, coordinates = point + shift * direction, coordinates + step * local.mode + shift * moves
    last = np.inf
    for _ in range(_CORRECTIONS):
        gradient = family.evaluate(point, coordinates)[1]
        shift = -(local.mode @ gradient) / push
        change = shift * moves - local.inverse(gradient)
        size = max(abs(shift), float(np.abs(change).max()))
        point, coordinates = point + shift * direction, coordinates + change
        if size < _CONVERGED:
            return point, coordinates
        if size > last:
            return None
        last = size
    return None


def _moving_mode(family: ActionFamily, minimum: StatePoint, direction: np.ndarray) -> np.ndarray:
    """Mode along which a minimum moves most as ln θ goes in a direction; near its end, the flat."""
    point, coordinates = minimum.point, minimum.coordinates
    values, vectors = _softest(family.hessian(point, coordinates))
    gradients = [
        family.evaluate(point + step * direction, coordinates)[1] for step in (_ACROSS, -_ACROSS)
    ]
    responses = vectors.T @ (gradients[0] - gradients[1]) / np.abs(values)
    return vectors[:, int(np.argmax(np.abs(responses)))]


def spinodal_curves(family: ActionFamily, start: Spinodal, stops: Stops) -> list[list[Spinodal]]:
    """Curves of spinodals through a point, in a plane of two parameters.

    Where two spinodals meet in a cusp, a critical point, one curve ends and the next begins.

    Parameters
    ----------
    family : ActionFamily
        Actions at all values of two parameters.
    start : Spinodal
    stops : Stops
        Range of ln θ, and values at which the curves have points.
    """

    def advance(spinodal: Spinodal, step: float, landing: Landing | None) -> Spinodal | None:
        return _advance_spinodal(family, spinodal, step, landing)

    backwards = trace_curve(_reverse(start), advance, stops, _has_ended)
    forwards = trace_curve(start, advance, stops, _has_ended)
    whole = [_reverse(spinodal) for spinodal in backwards[:0:-1]] + forwards
    return _split_at_cusps(family, whole)


def _split_at_cusps(family: ActionFamily, curve: list[Spinodal]) -> list[list[Spinodal]]:
    """Parts of a curve between its cusps, at which it turns back on itself in ln θ."""
    parts: list[list[Spinodal]] = [[]]
    for before, spinodal in zip([None, *curve[:-1]], curve):
        if before is not None and before.tangent[1:] @ spinodal.tangent[1:] < 0:
            cusp = _cusp(family, before, spinodal)
            parts[-1].append(cusp)
            parts.append([cusp])
        parts[-1].append(spinodal)
    return [part for part in parts if len(part) > 1 or len(curve) == 1]


def _cusp(family: ActionFamily, before: Spinodal, after: Spinodal) -> Spinodal:
    """Point between two others at which the curve turns back, to a thousandth of their distance."""
    low, high = (
        0.0,
        float(np.linalg.norm(after.point - before.point))
        + 2 * abs((after.coordinates - before.coordinates) @ before.mode),
    )
    cusp = before
    for _ in range(10):
        middle = (low + high) / 2
        reached = _advance_spinodal(family, before, middle, None)
        if reached is None or reached.tangent[1:] @ before.tangent[1:] < 0:
            high = middle
        else:
            low, cusp = middle, reached
    return cusp


def _has_ended(spinodal: Spinodal) -> bool:
    """Whether no minimum ends here any more: the stationary point is a saddle in another mode."""
    return spinodal.softest_other < 0


def _reverse(spinodal: Spinodal) -> Spinodal:
    return replace(spinodal, tangent=-spinodal.tangent, velocity=-spinodal.velocity)


def _advance_spinodal(
    family: ActionFamily, spinodal: Spinodal, step: float, landing: Landing | None
) -> Spinodal | None:
    """Point of the curve a step ahead, or where it has the value of a parameter."""
    point = spinodal.point + step * spinodal.tangent[1:]
    coordinates = spinodal.coordinates + step * spinodal.velocity
    row = spinodal.tangent
    if landing is not None:
        point[landing.parameter] = landing.value
        row = np.eye(1 + len(point))[1 + landing.parameter]
    return _correct_point(family, point, coordinates, spinodal.mode, spinodal.tangent, row[None])


def _correct_point(
    family: ActionFamily,
    point: np.ndarray,
    coordinates: np.ndarray,
    mode: np.ndarray,
    tangent: np.ndarray | None,
    rows: np.ndarray,
) -> Spinodal | None:
    """Spinodal near a point, by Newton's method with further linear conditions on (α, ln θ).

    Mode and tangent are those of a point nearby.
    """
    start = point
    for _ in range(_STEPS):
        try:
            local = _Local(family, point, coordinates, mode)
            step = np.linalg.solve(
                np.vstack([local.rows, rows]),
                np.append(-local.residuals, np.zeros(len(rows))),
            )
        except (np.linalg.LinAlgError, NotPositiveDefiniteError, ValueError):
            return None
        point = point + step[1:]
        coordinates = coordinates + step[0] * local.mode + local.shift + local.rest @ step[1:]
        mode = local.mode
        if not np.isfinite(step).all() or np.abs(point - start).max() > _CAPTURE:
            return None
        if np.abs(step).max() < _CONVERGED:
            return local.spinodal(point, coordinates, tangent)
    return None


class _Local:
    """The two equations for α and dθ, linear around a point."""

    def __init__(
        self,
        family: ActionFamily,
        point: np.ndarray,
        coordinates: np.ndarray,
        mode: np.ndarray,
    ):
        self.action, gradient = family.evaluate(point, coordinates)
        self.inverse = inverse = _Inverse(family.hessian(point, coordinates), mode)
        self.value = value = inverse.value
        self.mode, self.softest_other = inverse.mode, inverse.softest_other

        def along(at_point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            gradients = [
                family.evaluate(at_point, coordinates + shift)[1]
                for shift in (_ALONG * self.mode, -_ALONG * self.mode)
            ]
            return gradients[0] + gradients[1], gradients[0] - gradients[1]

        # derivatives of gradient and eigenvalue: dλ = vᵀ dH v, by differences of gradients at
        # x ± εv, whose sum is twice the gradient, and whose difference is 2ε H v
        total, _ = along(point)
        bend = (total - 2 * gradient) / _ALONG**2  # ∂λ/∂x
        slopes, of_value = [], []
        for step in _ACROSS * np.eye(len(point)):
            above, below = along(point + step), along(point - step)
            slopes.append((above[0] - below[0]) / (4 * _ACROSS))
            of_value.append(self.mode @ (above[1] - below[1]) / (4 * _ACROSS * _ALONG))
        slope = np.column_stack(slopes)
        self.shift = -inverse(gradient)
        self.rest = np.column_stack([-inverse(column) for column in slope.T])
        self.rows = np.array(
            [
                [value, *(self.mode @ slope)],
                [bend @ self.mode, *(np.array(of_value) + bend @ self.rest)],
            ]
        )
        self.residuals = np.array([self.mode @ gradient, value + bend @ self.shift])

    def spinodal(
        self, point: np.ndarray, coordinates: np.ndarray, before: np.ndarray | None
    ) -> Spinodal:
        """Spinodal at the solution of the equations, with the direction of a tangent before."""
        tangent = np.zeros(0)
        velocity = np.zeros_like(coordinates)
        if len(point) > 1:
            tangent = np.linalg.svd(self.rows)[2][-1]
            if before is not None and tangent @ before < 0:
                tangent = -tangent
            velocity = tangent[0] * self.mode + self.rest @ tangent[1:]
        # of the two stationary points α² = −2 (∂g/∂θ dθ)·v / (∂λ/∂x)·v
        inside = -self.rows[0, 1:] * np.sign(self.rows[1, 0])
        inside = inside / np.linalg.norm(inside)
        mode, other = self.mode, self.softest_other
        return Spinodal(point, coordinates, mode, inside, self.action, other, tangent, velocity)


def _softest(hessian: ActionHessian) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of the Hessian: all, or the smallest of a large one."""
    if hessian.size <= DENSE:
        return np.linalg.eigh(hessian.matrix)
    return hessian.smallest(_NEIGHBOURS)


class _Inverse:
    """Inverse of the Hessian across the mode whose eigenvalue vanishes."""

    def __init__(self, hessian: ActionHessian, mode: np.ndarray):
        self._hessian = hessian
        values, vectors = _softest(hessian)
        # by its overlap with the mode before, since eigenvalues may change their order
        index = int(np.argmax(np.abs(mode @ vectors)))
        self.value, self.mode = float(values[index]), vectors[:, index]
        if mode @ self.mode < 0:
            self.mode = -self.mode
        self.softest_other = float(np.delete(values, index).min(initial=np.inf))
        self._values, self._vectors = np.delete(values, index), np.delete(vectors, index, axis=1)

    def __call__(self, right: np.ndarray) -> np.ndarray:
        if self._hessian.size <= DENSE:
            return self._vectors @ ((self._vectors.T @ right) / self._values)

        def across(vector: np.ndarray) -> np.ndarray:
            return vector - (self.mode @ vector) * self.mode

        operator = scipy.sparse.linalg.LinearOperator(
            (self._hessian.size,) * 2,
            lambda vector: across(self._hessian.product(across(vector))),
            dtype=float,
        )
        solution, failed = scipy.sparse.linalg.minres(operator, across(right), rtol=1e-8)
        if failed:
            raise np.linalg.LinAlgError("the Hessian is nearly singular in more than one direction")
        return across(solution)
