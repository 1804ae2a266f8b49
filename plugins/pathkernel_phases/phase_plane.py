"""One plane of a map: minima on its grid, and the curves on which the lowest changes or one ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pathkernel_core.coexistence import ActionFamily, BranchPoint, Crossing, crossings_between
from pathkernel_core.crossing_curves import (
    CrossingPoint,
    branching_curve,
    crossing_curve,
)
from pathkernel_core.curves import Stops
from pathkernel_core.spinodals import Spinodal, spinodal_curves, spinodal_towards

BEYOND = 10.0  # factor beyond a single axis up to which ends of branches are looked for
_ON_A_CURVE = 2e-3  # distance in ln θ from a curve below which a point is on it
_AHEAD = 0.02  # in ln θ, at which the direction of a curve shows
_SAME_ACTION = 0.02  # relative difference of actions of one spinodal


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a crossing or of a spinodal, in order; a single one where nothing is followed."""

    points: Sequence[CrossingPoint | Crossing | Spinodal]

    @property
    def is_crossing(self) -> bool:
        """Whether two minima have the same action, or else one of them ends."""
        return not isinstance(self.points[0], Spinodal)

    @property
    def line(self) -> np.ndarray:
        """ln θ of the points, (vertex, k)."""
        return np.array([point.point for point in self.points])


@dataclass(eq=False)
class PhasePlane:
    """Minima over one or two parameters, with their crossings and spinodals.

    Parameters
    ----------
    family : ActionFamily
        Of one or two parameters.
    grid : sequence of arrays
        Increasing ln θ of each parameter, at which minima are searched for.
    """

    family: ActionFamily
    grid: Sequence[np.ndarray]
    minima: dict[tuple[int, ...], BranchPoint] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)

    def search(self) -> Iterator[None]:
        """Search for the lowest minimum at every point of the grid, one at a time."""
        for index in np.ndindex(*map(len, self.grid)):
            point = np.array([values[i] for values, i in zip(self.grid, index)])
            minimum = self.family.search(point)
            if minimum is not None:
                self.minima[index] = minimum
            yield

    def follow_crossings(self) -> Iterator[None]:
        """Crossings between neighbours of the grid, each followed through the plane."""
        # both axes: a curve along one of them passes between the points of the other alone
        for one, other in self._neighbours():
            if len(self.grid) > 1 and self.are_apart(one.point, other.point):
                continue
            for crossing in crossings_between(self.family, one, other):
                self._follow(crossing)
                yield

    def follow_spinodals(self) -> Iterator[None]:
        """Ends of both branches beyond every crossing, each followed through the plane."""
        for curve in [curve for curve in self.curves if curve.is_crossing]:
            count = len(curve.points)
            of_sides: tuple[list[Curve], list[Curve]] = ([], [])
            for number in dict.fromkeys((count // 2, 0, count - 1)):
                for side, ends in zip(self._metastable(curve.points[number]), of_sides):
                    if not any(_cross(end.line, side[0].point, side[1]) for end in ends):
                        ends += self._spinodals(*side)
                        yield

    def regions(self) -> dict[tuple[int, ...], int]:
        """Number of the region of every point of the grid; crossings are their borders."""
        numbers: dict[tuple[int, ...], int] = {}
        for start in self.minima:
            if start in numbers:
                continue
            number, reached = len(set(numbers.values())), [start]
            while reached:
                index = reached.pop()
                numbers[index] = number
                for beside in self._beside(index):
                    points = self.minima[index].point, self.minima[beside].point
                    if beside not in numbers and not self.are_apart(*points):
                        reached.append(beside)
        return numbers

    def _beside(self, index: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Neighbours of a point of the grid in all directions."""
        for parameter, step in itertools.product(range(len(self.grid)), (-1, 1)):
            beside = tuple(i + step * (p == parameter) for p, i in enumerate(index))
            if beside in self.minima:
                yield beside

    def _neighbours(self) -> Iterator[tuple[BranchPoint, BranchPoint]]:
        for index, parameter in itertools.product(self.minima, range(len(self.grid))):
            above = tuple(i + (p == parameter) for p, i in enumerate(index))
            if above in self.minima:
                yield self.minima[index], self.minima[above]

    def _follow(self, crossing: Crossing) -> None:
        if len(self.grid) == 1:
            self.curves.append(Curve([crossing]))
            return
        if self._is_known(crossing.point, _ON_A_CURVE):
            return
        traced = crossing_curve(self.family, crossing, self._stops)
        self.curves.append(Curve(traced.points))
        branching = traced.branching
        while branching:
            start = branching.pop()
            if not self._is_known(start.point + _AHEAD * start.tangent, _ON_A_CURVE):
                traced = branching_curve(self.family, start, self._stops)
                self.curves.append(Curve(traced.points))
                branching = branching + traced.branching

    def _metastable(
        self, crossing: CrossingPoint | Crossing | Spinodal
    ) -> Iterator[tuple[BranchPoint, np.ndarray]]:
        """Both minima of a crossing, with the ends of the range where they are not the lowest."""
        assert not isinstance(crossing, Spinodal)
        normal = crossing.normal if isinstance(crossing, CrossingPoint) else np.ones(1)
        for minimum, direction in zip(crossing.minima, (normal, -normal)):
            yield minimum, self._wide.border(minimum.point, direction)

    def _spinodals(self, minimum: BranchPoint, target: np.ndarray) -> list[Curve]:
        """Curves of the spinodal at which a minimum ends towards a target; empty if there is none.

        Those that are not known yet are kept.
        """
        spinodal = spinodal_towards(self.family, minimum, target)
        if spinodal is None:
            return []
        known = [curve for curve in self.curves if not curve.is_crossing]
        if same := [curve for curve in known if _is_on(curve, spinodal)]:
            return same
        parts = [[spinodal]]
        if len(self.grid) > 1:
            parts = spinodal_curves(self.family, spinodal, self._wide)
        curves = [Curve(part) for part in parts]
        self.curves += curves
        return curves

    def are_apart(self, one: np.ndarray, other: np.ndarray) -> bool:
        """Whether a known crossing passes between two points of the grid."""
        crossings = [curve.line for curve in self.curves if curve.is_crossing]
        if len(self.grid) == 1:
            return any(((one - line) * (other - line) < 0).any() for line in crossings)
        return any(_cross(line, one, other) for line in crossings)

    def _is_known(self, point: np.ndarray, tolerance: float) -> bool:
        return any(_distance(curve.line, point) < tolerance for curve in self.curves)

    @property
    def _stops(self) -> Stops:
        low, high = (np.array([values[end] for values in self.grid]) for end in (0, -1))
        return Stops(low, high, tuple(self.grid))

    @property
    def _wide(self) -> Stops:
        """Range in which ends of branches are looked for; points at the second axis's values."""
        stops = self._stops
        margin = np.log(BEYOND) if len(self.grid) == 1 else 0.0  # only a plane is drawn to scale
        return Stops(stops.low - margin, stops.high + margin, ((), *self.grid[1:]))


def _is_on(curve: Curve, spinodal: Spinodal) -> bool:
    """Whether a spinodal is one of a curve, whose action between its points is interpolated."""
    actions = np.array([point.action for point in curve.points if isinstance(point, Spinodal)])
    distance, segment, share = _nearest(curve.line, spinodal.point)
    action = np.interp(segment + share, np.arange(len(actions)), actions)
    same = abs(action - spinodal.action) < _SAME_ACTION * max(1.0, abs(spinodal.action))
    return bool(distance < 10 * _ON_A_CURVE and same)


def _distance(line: np.ndarray, point: np.ndarray) -> float:
    """Distance of a point from a line of vertices, (vertex, k)."""
    return _nearest(line, point)[0]


def _nearest(line: np.ndarray, point: np.ndarray) -> tuple[float, int, float]:
    """Distance of a point from a line of vertices, the nearest segment, and the share along it."""
    if len(line) == 1:
        return float(np.linalg.norm(line[0] - point)), 0, 0.0
    starts, steps = line[:-1], np.diff(line, axis=0)
    lengths = np.maximum((steps**2).sum(axis=1), 1e-300)
    shares = np.clip(((point - starts) * steps).sum(axis=1) / lengths, 0.0, 1.0)
    distances = np.linalg.norm(starts + shares[:, None] * steps - point, axis=1)
    nearest = int(np.argmin(distances))
    return float(distances[nearest]), nearest, float(shares[nearest])


def _cross(line: np.ndarray, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether a line of vertices (vertex, 2) crosses the segment between two points."""
    if line.shape[0] < 2 or line.shape[1] != 2:
        return False
    starts, steps = line[:-1], np.diff(line, axis=0)
    segment = np.broadcast_to(other - one, steps.shape)
    sides = _turns(segment, starts - one), _turns(segment, starts + steps - one)
    ends = _turns(steps, one - starts), _turns(steps, other - starts)
    return bool(((sides[0] * sides[1] <= 0) & (ends[0] * ends[1] <= 0)).any())


def _turns(steps: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Whether vectors (n, 2) turn to the left of steps (n, 2), by their sign."""
    return steps[:, 0] * vectors[:, 1] - steps[:, 1] * vectors[:, 0]
