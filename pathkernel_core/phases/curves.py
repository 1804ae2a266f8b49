"""Steps along a curve in a plane of two parameters, with points at given values of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

_FIRST, _LARGEST, _SMALLEST = 0.1, 0.6, 1e-4  # steps, in units of ln θ
_GROWTH = 2.0
_ANGLE = 0.3  # largest turn of the tangent in a step, radians
_MOST = 400  # points in one direction
_ROUNDING = 1e-9  # in ln θ


class CurvePoint(Protocol):
    """A point of a curve."""

    @property
    def point(self) -> np.ndarray:
        """Ln θ, (2,)."""

    @property
    def tangent(self) -> np.ndarray:
        """Direction of the next points, of unit length; its last two entries are ln θ's."""


Vertex = TypeVar("Vertex", bound=CurvePoint)


@dataclass(frozen=True)
class Landing:
    """A value of one parameter at which a step is to end."""

    parameter: int
    value: float


@dataclass(frozen=True)
class Stops:
    """Range of the parameters, and values of them at which curves have points.

    Attributes
    ----------
    low, high : arrays, shape (k,)
        Ends of the range of ln θ, where curves end.
    values : sequence of k sequences
        Values of ln θ of each parameter.
    """

    low: np.ndarray
    high: np.ndarray
    values: Sequence[Sequence[float]] = ((), ())

    def next_landing(self, start: np.ndarray, end: np.ndarray) -> Landing | None:
        """First value that a straight step passes."""
        landings: list[tuple[float, int, float]] = []
        for parameter, (begin, stop) in enumerate(zip(start.tolist(), end.tolist())):
            borders = float(self.low[parameter]), float(self.high[parameter])
            for value in (*self.values[parameter], *borders):
                if _is_between(value, begin, stop):
                    landings.append(((value - begin) / (stop - begin), parameter, value))
        if not landings:
            return None
        _, parameter, value = min(landings)
        return Landing(parameter, float(value))

    def border(self, point: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Point of the border straight ahead from a point inside."""
        ends = np.where(direction > 0, self.high, self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = np.where(direction == 0, np.inf, (ends - point) / direction)
        border = point + lengths.min() * direction
        parameter = int(np.argmin(lengths))
        border[parameter] = ends[parameter]  # exactly
        return border

    def are_left_at(self, point: np.ndarray, direction: np.ndarray) -> bool:
        """Whether a point is on the border, and the direction leads out."""
        below = (point <= self.low + _ROUNDING) & (direction < 0)
        above = (point >= self.high - _ROUNDING) & (direction > 0)
        return bool((below | above).any())


def trace_curve(
    start: Vertex,
    advance: Callable[[Vertex, float, Landing | None], Vertex | None],
    stops: Stops,
    ended: Callable[[Vertex], bool],
) -> list[Vertex]:
    """Points of a curve from a start on, in order, up to its end or to the border of the plane.

    Steps grow while the curve is straight, and shrink where it bends or is lost.

    Parameters
    ----------
    start : CurvePoint
    advance : callable
        Point a step ahead, or at a landing; None if there is none.
    stops : Stops
    ended : callable
        Whether the curve ends at a point, which is then its last.
    """
    vertices, step = [start], _FIRST
    while len(vertices) < _MOST and step >= _SMALLEST:
        current = vertices[-1]
        velocity = current.tangent[-2:]
        if stops.are_left_at(current.point, velocity):
            break
        landing = stops.next_landing(current.point, current.point + step * velocity)
        length = step
        if landing is not None:
            ahead = landing.value - current.point[landing.parameter]
            length = float(ahead / velocity[landing.parameter])
        reached = advance(current, length, landing)
        if reached is None or not _continues(current, reached, length, stops, landing):
            step = min(step, length) / 2
            continue
        vertices.append(reached)
        if ended(reached) or _is_closed(vertices, step):
            break
        step = min(_GROWTH * step, _LARGEST)
    return vertices


def _continues(
    before: CurvePoint, after: CurvePoint, length: float, stops: Stops, landing: Landing | None
) -> bool:
    """Whether a step has turned little, and passed no value at which it should have ended."""
    if before.tangent @ after.tangent < np.cos(_ANGLE):
        return False
    if np.linalg.norm(after.point - before.point) > 2 * length:
        return False
    passed = stops.next_landing(before.point, after.point)
    return passed is None or passed == landing or length < 10 * _SMALLEST


def _is_closed(vertices: Sequence[CurvePoint], step: float) -> bool:
    """Whether a curve has come back to its start."""
    if len(vertices) < 8:
        return False
    first, last = vertices[0], vertices[-1]
    distance = np.linalg.norm(last.point - first.point)
    return bool(distance < step / 2 and first.tangent @ last.tangent > np.cos(_ANGLE))


def _is_between(value: float, start: float, end: float) -> bool:
    low, high = sorted((start, end))
    return low + _ROUNDING < value < high - _ROUNDING
