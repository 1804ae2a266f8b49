"""Curves on which two minima have the same action, in a plane of two parameters.

With the difference D(θ) of both actions, a curve is D = 0. Its normal is the gradient of D, for
which the motion of the minima does not count. A step goes along the tangent, both minima are
extrapolated and corrected by a descent, and D by the secant method along the normal.

A curve ends at a critical point, where its minima become one, and at a *triple point*, where a
third minimum takes over: two other curves begin there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pathkernel_core.phases.coexistence import (
    ActionFamily,
    Crossing,
    StatePoint,
    follow,
    is_lower,
    is_near,
)
from pathkernel_core.phases.curves import Landing, Stops, trace_curve

_PRECISION = 1e-9  # in ln θ
_STEPS = 12  # of the secant method, and of Newton's
_CAPTURE = 0.3  # largest correction in ln θ


@dataclass(frozen=True, eq=False)
class CrossingPoint:
    """Two minima of the same action, as a point of a curve.

    Attributes
    ----------
    minima : (StatePoint, StatePoint)
        The lowest on the left and on the right of the tangent.
    velocities : (array, array)
        Changes of their coordinates along the curve, for its extrapolation; empty at its start.
    tangent, normal : arrays, shape (2,)
        Direction of the curve in ln θ, of unit length, and that to its right: the tangent turned
        clockwise.
    slope : float
        Derivative of the difference of actions, left less right, along the normal; positive.
    """

    minima: tuple[StatePoint, StatePoint]
    velocities: tuple[np.ndarray, ...] = field(repr=False)
    tangent: np.ndarray
    slope: float

    @property
    def point(self) -> np.ndarray:
        """Ln θ, (2,)."""
        return self.minima[0].point

    @property
    def normal(self) -> np.ndarray:
        """Direction to the right of the tangent."""
        return np.array([self.tangent[1], -self.tangent[0]])

    @property
    def opposite(self) -> CrossingPoint:
        """The same point of the curve in the other direction."""
        velocities = tuple(-velocity for velocity in self.velocities[::-1])
        return CrossingPoint(self.minima[::-1], velocities, -self.tangent, self.slope)


@dataclass(frozen=True, eq=False)
class CrossingCurve:
    """Points of a crossing in order, and the crossings that begin at its ends.

    Attributes
    ----------
    points : list of CrossingPoint
    further_starts : list of CrossingPoint
        Starts of two further curves at every triple point, in the direction in which they go.
    """

    points: list[CrossingPoint]
    further_starts: list[CrossingPoint]


def crossing_curve(family: ActionFamily, start: Crossing, stops: Stops) -> CrossingCurve:
    """Curve through a crossing, in both directions.

    Parameters
    ----------
    family : ActionFamily
        Actions at all values of two parameters.
    start : Crossing
    stops : Stops
        Range of ln θ, and values at which the curve has points. A third minimum is searched for
        at these.
    """
    first = _crossing_point(family, start.minima, None)
    forwards = curve_onwards(family, first, stops)
    backwards = curve_onwards(family, first.opposite, stops)
    points = [point.opposite for point in backwards.points[:0:-1]] + forwards.points
    return CrossingCurve(points, backwards.further_starts + forwards.further_starts)


def curve_onwards(family: ActionFamily, start: CrossingPoint, stops: Stops) -> CrossingCurve:
    """Curve from a point on, such as a triple point, in the direction of its tangent.

    Parameters as for :func:`crossing_curve`.
    """
    rivals: dict[int, StatePoint] = {}  # by the address of a point: third minima that are lower
    checked: list[CrossingPoint] = []

    def has_rival(point: CrossingPoint) -> bool:
        checked.append(point)
        lowest = family.search(point.point)
        if lowest is None or not is_lower(lowest, point.minima[0]):
            return False
        rivals[id(point)] = lowest
        return True

    def advance(point: CrossingPoint, step: float, landing: Landing | None) -> CrossingPoint | None:
        return _advance_crossing(family, point, step, landing)

    def has_ended(point: CrossingPoint) -> bool:
        return any(point.point[i] in stops.values[i] for i in range(2)) and has_rival(point)

    points = trace_curve(start, advance, stops, has_ended)
    if not rivals and checked[-1:] != points[-1:] and len(points) > 1:
        has_rival(points[-1])
    if not rivals:
        return CrossingCurve(points, [])
    # the first point with a rival, by bisection between the last without one and that with one
    alone = max((n for n, point in enumerate(points[:-1]) if point in checked), default=0)
    first = len(points) - 1
    while first - alone > 1:
        middle = (first + alone) // 2
        first, alone = (middle, alone) if has_rival(points[middle]) else (first, middle)
    triple = _triple_point(family, points[first], rivals[id(points[first])])
    points = points[: alone + 1]
    if triple is None:
        return CrossingCurve(points, [])
    end = _crossing_point(family, triple[:2], points[-1])
    return CrossingCurve([*points, end], _starts_at(family, end, triple[2]))


def _crossing_point(
    family: ActionFamily,
    minima: tuple[StatePoint, StatePoint],
    before: CrossingPoint | None,
) -> CrossingPoint:
    """Point of a curve with its direction, which is that of a point before."""
    gradient = family.slope(minima[0]) - family.slope(minima[1])
    slope = float(np.linalg.norm(gradient))
    normal = gradient / slope  # to the right, where the left minimum has the higher action
    tangent = np.array([-normal[1], normal[0]])
    velocities: tuple[np.ndarray, ...] = ()
    if before is not None:
        distance = np.linalg.norm(minima[0].point - before.point)
        velocities = tuple(
            (new.coordinates - old.coordinates) / max(distance, 1e-12)
            for new, old in zip(minima, before.minima)
        )
    return CrossingPoint(minima, velocities, tangent, slope)


def _advance_crossing(
    family: ActionFamily, start: CrossingPoint, step: float, landing: Landing | None
) -> CrossingPoint | None:
    """Point of the curve a step ahead, or where it has the value of a parameter."""
    point, across, slope = start.point + step * start.tangent, start.normal, start.slope
    if landing is not None:
        point[landing.parameter] = landing.value
        across = np.eye(2)[1 - landing.parameter]
        slope = start.slope * float(start.normal @ across)
    velocities = start.velocities or tuple(np.zeros_like(m.coordinates) for m in start.minima)
    predicted = [m.coordinates + step * v for m, v in zip(start.minima, velocities)]
    solutions = [minimum.solution for minimum in start.minima]
    shift, last = 0.0, None
    for _ in range(_STEPS):
        if slope == 0 or abs(shift) > _CAPTURE:
            return None
        shifted = point + shift * across
        minima = [
            family.descend(shifted, solution, coordinates)
            for solution, coordinates in zip(solutions, predicted)
        ]
        one, other = minima
        if one is None or other is None:
            return None
        if not all(is_near(m.coordinates, p) for m, p in zip((one, other), predicted)):
            return None
        if is_near(one.coordinates, other.coordinates) and np.allclose(
            one.coordinates, other.coordinates, atol=1e-6
        ):
            return None  # beyond a critical point both descend to one minimum
        predicted, solutions = [m.coordinates for m in (one, other)], [one.solution, other.solution]
        difference = one.solution.action - other.solution.action
        if last is not None and shift != last[0] and difference != last[1]:
            slope = (difference - last[1]) / (shift - last[0])
        correction = -difference / slope
        if abs(correction) < _PRECISION:
            return _crossing_point(family, (one, other), start)
        last, shift = (shift, difference), shift + correction
    return None


def _triple_point(
    family: ActionFamily, crossing: CrossingPoint, rival: StatePoint
) -> tuple[StatePoint, StatePoint, StatePoint] | None:
    """Three minima of the same action, near a point at which the third is lower than two others."""
    minima = [*crossing.minima, rival]
    for _ in range(_STEPS):
        actions = np.array([minimum.solution.action for minimum in minima])
        slopes = np.array([family.slope(minimum) for minimum in minima])
        differences = actions[:2] - actions[2]
        try:
            step = -np.linalg.solve(slopes[:2] - slopes[2], differences)
        except np.linalg.LinAlgError:
            return None
        # a tenth of ln 10 at a time: far away the actions are not linear
        step *= min(1.0, 0.25 / max(np.abs(step).max(), 1e-300))
        point = minima[0].point + step
        if np.abs(point - crossing.point).max() > 3.0:
            return None
        moved = [follow(family, minimum, point) for minimum in minima]
        if not all(np.array_equal(minimum.point, point) for minimum in moved):
            return None
        minima = moved
        if np.abs(step).max() < _PRECISION:
            return minima[0], minima[1], minima[2]
    return None


def _starts_at(family: ActionFamily, end: CrossingPoint, third: StatePoint) -> list[CrossingPoint]:
    """Starts of the two other curves at a triple point, away from where the other is lower."""
    starts = []
    for pair, other in (
        ((end.minima[0], third), end.minima[1]),
        ((third, end.minima[1]), end.minima[0]),
    ):
        start = _crossing_point(family, pair, None)
        rise = (family.slope(other) - family.slope(pair[0])) @ start.tangent
        starts.append(start if rise > 0 else start.opposite)
    return starts
