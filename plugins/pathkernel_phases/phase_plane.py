"""One plane of a map: minima on its grid, and the curves on which they change or end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from pathkernel_core.phases.coexistence import (
    ActionFamily,
    Crossing,
    StatePoint,
    crossings_between,
)
from pathkernel_core.phases.crossing_curves import (
    CrossingPoint,
    crossing_curve,
    curve_onwards,
)
from pathkernel_core.phases.curves import Stops
from pathkernel_core.phases.spinodals import Spinodal, spinodal_curves, spinodal_towards

BEYOND = 10.0  # factor beyond a single axis up to which ends of states are looked for
_NEAR, _SAME = 0.03, 0.1  # distances in ln θ and in coordinates of a point from its own curve


CurvePoint: TypeAlias = CrossingPoint | Crossing | Spinodal


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a crossing or of a spinodal, in order; a single one where nothing is followed."""

    points: Sequence[CurvePoint]

    @property
    def is_crossing(self) -> bool:
        """Whether two minima have the same action, or else one of them ends."""
        return not isinstance(self.points[0], Spinodal)

    @property
    def line(self) -> np.ndarray:
        """Ln θ of the points, (vertex, k)."""
        return np.array([point.point for point in self.points])


@dataclass(eq=False)
class PhasePlane:
    """Minima over one or two parameters, with their crossings and spinodals.

    Parameters
    ----------
    family : ActionFamily
        Actions at all values of one or two parameters.
    grid : sequence of arrays
        Increasing ln θ of each parameter, at which minima are searched for.
    """

    family: ActionFamily
    grid: Sequence[np.ndarray]
    minima: dict[tuple[int, ...], StatePoint] = field(default_factory=dict)
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
        """Ends of both states beyond every crossing, each followed through the plane."""
        for curve in [curve for curve in self.curves if curve.is_crossing]:
            count = len(curve.points)
            of_sides: tuple[list[Curve], list[Curve]] = ([], [])
            for number in dict.fromkeys((count // 2, 0, count - 1)):
                for side, ends in zip(self._metastable(curve.points[number]), of_sides):
                    if not any(cross(end.line, side[0].point, side[1]) for end in ends):
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

    def _neighbours(self) -> Iterator[tuple[StatePoint, StatePoint]]:
        for index, parameter in itertools.product(self.minima, range(len(self.grid))):
            above = tuple(i + (p == parameter) for p, i in enumerate(index))
            if above in self.minima:
                yield self.minima[index], self.minima[above]

    def _follow(self, crossing: Crossing) -> None:
        if len(self.grid) == 1:
            self.curves.append(Curve([crossing]))
            return
        if self._is_known(crossing):
            return
        traced = crossing_curve(self.family, crossing, self._stops)
        self.curves.append(Curve(traced.points))
        starts = traced.further_starts
        while starts:
            start = starts.pop()
            if not self._is_known(start):
                traced = curve_onwards(self.family, start, self._stops)
                self.curves.append(Curve(traced.points))
                starts = starts + traced.further_starts

    def _metastable(self, crossing: CurvePoint) -> Iterator[tuple[StatePoint, np.ndarray]]:
        """Both minima of a crossing, with the ends of the range where they are not the lowest."""
        assert not isinstance(crossing, Spinodal)
        direction = np.ones(1)
        if isinstance(crossing, CrossingPoint):
            # along the axis more across the curve: from a border, its normal may lead outside
            parameter = int(np.argmax(np.abs(crossing.normal)))
            direction = np.sign(crossing.normal[parameter]) * np.eye(2)[parameter]
        for minimum, ahead in zip(crossing.minima, (direction, -direction)):
            yield minimum, self._wide_stops.border(minimum.point, ahead)

    def _spinodals(self, minimum: StatePoint, target: np.ndarray) -> list[Curve]:
        """Curves of the spinodal at which a minimum ends towards a target; empty if there is none.

        Those that are not known yet are kept.
        """
        spinodal = spinodal_towards(self.family, minimum, target)
        if spinodal is None:
            return []
        if same := [curve for curve in self.curves if _is_on(curve, spinodal)]:
            return same
        parts = [[spinodal]]
        if len(self.grid) > 1:
            parts = spinodal_curves(self.family, spinodal, self._wide_stops)
        curves = [Curve(part) for part in parts]
        self.curves += curves
        return curves

    def are_apart(self, one: np.ndarray, other: np.ndarray) -> bool:
        """Whether a known crossing passes between two points of the grid."""
        crossings = [curve.line for curve in self.curves if curve.is_crossing]
        if len(self.grid) == 1:
            return any(((one - line) * (other - line) < 0).any() for line in crossings)
        return any(cross(line, one, other) for line in crossings)

    def _is_known(self, point: CurvePoint) -> bool:
        return any(_is_on(curve, point) for curve in self.curves)

    @property
    def _stops(self) -> Stops:
        low, high = (np.array([values[end] for values in self.grid]) for end in (0, -1))
        return Stops(low, high, tuple(self.grid))

    @property
    def _wide_stops(self) -> Stops:
        """Range in which ends of states are looked for; points at the second axis's values."""
        stops = self._stops
        margin = np.log(BEYOND) if len(self.grid) == 1 else 0.0  # only a plane is drawn to scale
        return Stops(stops.low - margin, stops.high + margin, ((), *self.grid[1:]))


def _is_on(curve: Curve, point: CurvePoint) -> bool:
    """Whether a point is one of a curve, by the minima that meet there; other curves may be near.

    Coordinates are interpolated between the points of the curve.
    """
    distance, segment, share = _nearest(curve.line, point.point)
    if distance > _NEAR or isinstance(point, Spinodal) is curve.is_crossing:
        return False
    before = _coordinates(curve.points[segment])
    after = _coordinates(curve.points[min(segment + 1, len(curve.points) - 1)])
    expected, actual = before + share * (after - before), _coordinates(point)
    # the same crossing may go the other way, with its sides exchanged
    return any(bool(np.abs(each - expected).max() < _SAME) for each in (actual, actual[::-1]))


def _coordinates(point: CurvePoint) -> np.ndarray:
    """Coordinates of the minima that meet at a point, (1 or 2, m)."""
    if isinstance(point, Spinodal):
        return point.coordinates[None]
    return np.stack([minimum.coordinates for minimum in point.minima])


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


def cross(line: np.ndarray, one: np.ndarray, other: np.ndarray) -> bool:
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
