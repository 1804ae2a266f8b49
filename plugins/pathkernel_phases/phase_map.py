"""The map of a study: softest eigenvalues at its points, crossings and spinodals between them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.coexistence import Coexistence, coexistence
from pathkernel_core.continuation import minimise_from
from pathkernel_core.errors import MinimisationError, NotPositiveDefiniteError
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import minimise_action
from pathkernel_core.network import Network
from pathkernel_core.progress import Progress, Report
from pathkernel_core.solution import Solution
from pathkernel_datasets.point import Point
from pathkernel_datasets.stored_study import StoredStudy
from pathkernel_datasets.study import SETTINGS
from pathkernel_datasets.swept_option import swept_option

NAME = "phases"
"""Name of the result; a part of it is ``phases/<axis>/seed-<s>``."""

SAME_LINE = math.log(3.0)  # largest distance of crossings of one line at neighbouring points
BEYOND = 10.0  # factor beyond the axis up to which ends of branches are followed

_LINES = {
    "crossing": "value of the axis at which the lowest minimum changes",
    "lower_spinodal": "value of the axis at which the branch of the larger values ends",
    "upper_spinodal": "value of the axis at which the branch of the smaller values ends",
}
_POINTS = {
    "softest": "smallest eigenvalue of the Hessian of S/N in the chain's coordinates",
    "trace_ratio": "trace of U relative to its Gaussian process limit",
    "minima": "number of minima of the action that the search found",
}


class PhaseMap:
    """Map of a study along an axis; the study may have several values of an option.

    If a crossing is missing, refine the axis: one is found only between neighbouring values whose
    lowest minima differ, so that a coarse grid misses two crossings in one interval.

    Raises
    ------
    ValueError
        If the study has one value of the axis, or the axis cannot be followed.
    """

    def __init__(self, study: StoredStudy, axis: str | None = None):
        self._study, dataset = study, study.dataset
        self.option = swept_option(dataset)
        if self.option and not _is_positive(dataset[self.option].values):
            raise ValueError(
                f"a map needs positive numbers along its axes, but this study sweeps "
                f"{self.option!r}: run a study of one value of it"
            )
        self.axis = axis or (self.option if self.option in SETTINGS else "temperature")
        self.grid = {
            name: np.sort(dataset[name].values)
            for name in (self.option, "temperature", "width")
            if name is not None
        }
        if len(self.grid.get(self.axis, ())) < 2:
            several = (name for name in _EXAMPLES if len(self.grid.get(name, ())) > 1)
            alternatives = " or ".join(f"--axis {name}" for name in several)
            raise ValueError(
                f"the axis {self.axis!r} needs several values in the study: run it again with, for "
                f"example, --{self.axis.replace('_', '-')} {_EXAMPLES[self.axis]}"
                + f", or take {alternatives}"
                * bool(alternatives)
            )

    def missing_seeds(self, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
        """Compute the map of every seed that the study lacks."""
        seeds = self._study.dataset["seed"].values.tolist()
        missing = [seed for seed in seeds if not self._is_stored(seed)]
        for done, seed in enumerate(missing):
            report(Progress(done, len(missing), f"seed {seed}: minima"))
            yield f"{self.axis}/seed-{seed}", self.seed_map(seed)

    def _is_stored(self, seed: int) -> bool:
        part = f"{NAME}/{self.axis}/seed-{seed}"
        if not self._study.holds(part):
            return False
        stored = self._study.result(part).to_dataset()
        return all(np.array_equal(stored[name], values) for name, values in self.grid.items())

    def seed_map(self, seed: int) -> xr.Dataset:
        """Compute the map of one seed.

        Returns
        -------
        xarray.Dataset
            ``softest``, ``trace_ratio`` and ``minima`` over the grid; ``crossing``,
            ``lower_spinodal`` and ``upper_spinodal``, dims (the grid without the axis, transition),
            NaN where there are fewer transitions; ``evaluations`` of the energy.
        """
        systems, evaluations = self._systems(seed), 0
        shape = tuple(map(len, self.grid.values()))
        points = {name: np.full(shape, np.nan) for name in _POINTS}
        solutions: dict[tuple[int, ...], Solution] = {}
        for index in np.ndindex(shape):
            problem, network, temperature = self._system(systems, index)
            # without a start, which would follow its own branch and skip the search for others:
            # a map needs the lowest minimum of every point, whatever its neighbours have
            solution = minimise_from(problem, network, temperature, None)
            if solution is None or not solution.status.ok:
                continue
            evaluations += solution.evaluations
            solutions[index] = solution
            limit = network.limit_diagonal.sum()
            points["softest"][index] = solution.stability().softest
            points["trace_ratio"][index] = float(np.trace(solution.order_parameter)) / limit
            points["minima"][index] = 1 + len(solution.other_minima)
        position = list(self.grid).index(self.axis)
        row_shape = shape[:position] + shape[position + 1 :]
        rows: dict[tuple[int, ...], list[Coexistence]] = {}
        for row in np.ndindex(row_shape):
            indices = [(*row[:position], i, *row[position:]) for i in range(shape[position])]
            rows[row], count = self._transitions(systems, indices, solutions)
            evaluations += count
        lines = joined_lines(rows, row_shape)
        dims = tuple(self.grid)
        row_dims = (*(dim for dim in dims if dim != self.axis), "transition")
        variables = {
            **{name: (dims, points[name], {"long_name": text}) for name, text in _POINTS.items()},
            **{name: (row_dims, lines[name], {"long_name": text}) for name, text in _LINES.items()},
        }
        attributes = {"axis": self.axis, "evaluations": evaluations}
        coords = {name: self._study.dataset[name].sortby(name).variable for name in dims}
        coords["transition"] = np.arange(lines["crossing"].shape[-1])
        return xr.Dataset(variables, coords, attributes)

    def _systems(self, seed: int) -> list[tuple[PathKernels, Network]]:
        """Problem and network of every value of the option, in the order of the grid."""
        dataset = self._study.dataset
        singles = dict(zip(self._values(), self._study.singles))
        systems = []
        for value in self.grid[self.option] if self.option else [None]:
            single = singles[None if value is None else value]
            # of any width and temperature: data and attention depend on the seed and option alone
            point = Point(float(dataset["width"][0]), float(dataset["temperature"][0]), seed)
            rebuilt = single.rebuild(point)
            systems.append((PathKernels(rebuilt.data.xi, rebuilt.data.labels), rebuilt.network))
        return systems

    def _values(self) -> list[Any]:
        return self._study.dataset[self.option].values.tolist() if self.option else [None]

    def _system(
        self, systems: list[tuple[PathKernels, Network]], index: tuple[int, ...]
    ) -> tuple[PathKernels, Network, float]:
        """Problem, network and temperature of a point of the grid."""
        values = dict(zip(self.grid, (v[i] for v, i in zip(self.grid.values(), index))))
        problem, network = systems[index[0] if self.option else 0]
        widths = (float(values["width"]),) * len(network.widths)
        return (
            problem,
            dataclasses.replace(network, widths=widths),
            float(values["temperature"]),
        )

    def _transitions(
        self,
        systems: list[tuple[PathKernels, Network]],
        indices: list[tuple[int, ...]],
        solutions: Mapping[tuple[int, ...], Solution],
    ) -> tuple[list[Coexistence], int]:
        """Transitions along the axis, from the smallest value up, and evaluations they took."""
        # between neighbours only: two branches can cross twice on the axis, or not at all
        values, transitions, evaluations = self.grid[self.axis], [], 0
        limits = (float(values[0]) / BEYOND, float(values[-1]) * BEYOND)
        for (i, below), (j, above) in itertools.pairwise(enumerate(indices)):
            if below not in solutions or above not in solutions:
                continue
            minimise = self._along_axis(*self._system(systems, below), float(values[i]))

            def solve(
                value: float,
                start: Solution,
                minimise: Callable[[float, Solution], Solution] = minimise,  # of this pair
            ) -> Solution | None:
                nonlocal evaluations
                try:
                    solution = minimise(value, start)
                except (MinimisationError, NotPositiveDefiniteError, np.linalg.LinAlgError):
                    return None
                evaluations += solution.evaluations
                return solution

            transition = coexistence(
                solve,
                (float(values[i]), solutions[below]),
                (float(values[j]), solutions[above]),
                limits,
            )
            if transition is not None:
                transitions.append(transition)
        return transitions, evaluations

    def _along_axis(
        self, problem: PathKernels, network: Network, temperature: float, value: float
    ) -> Callable[[float, Solution], Solution]:
        """Minimum at another value of the axis than that of the system, from a start."""

        def minimise(other: float, start: Solution) -> Solution:
            settings: dict[str, Any] = {}
            if self.axis == "variance":
                settings = {"variances": (other,) * len(network.variances)}
            elif self.axis == "input_scale":
                # the kernel has σ²_0 times the square of the inputs, and the entropy neither: the
                # variance moves along the branch without another problem at every step
                first, *others = network.variances
                settings = {"variances": (first * (other / value) ** 2, *others)}
            elif self.axis == "width":
                settings = {"widths": (other,) * len(network.widths)}
            t = other if self.axis == "temperature" else temperature
            return minimise_action(
                problem, dataclasses.replace(network, **settings), t, start=start
            )

        return minimise


def joined_lines(
    rows: Mapping[tuple[int, ...], list[Coexistence]], shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Arrays of transitions, (*shape, transition); neighbours in one line have one number."""
    # Transitions of a row come without names: to be drawn as lines, each takes the number of the
    # nearest one of a neighbouring row, the last axis first, or a new one where none is within a
    # factor of three
    numbers: dict[tuple[int, ...], dict[int, Coexistence]] = {}
    new = itertools.count()
    for row, transitions in rows.items():
        before = [(*row[:i], row[i] - 1, *row[i + 1 :]) for i in range(len(row)) if row[i]]
        neighbours = next((numbers[index] for index in reversed(before) if numbers[index]), {})
        numbers[row] = {}
        for transition in transitions:
            distances = (
                (abs(math.log(transition.crossing / neighbour.crossing)), number)
                for number, neighbour in neighbours.items()
                if number not in numbers[row]
            )
            distance, number = min(distances, default=(math.inf, 0))
            numbers[row][number if distance < SAME_LINE else next(new)] = transition
    size = max(1, next(new))
    lines = {name: np.full((*shape, size), np.nan) for name in _LINES}
    for row, row_numbers in numbers.items():
        for number, transition in row_numbers.items():
            for name in _LINES:
                lines[name][(*row, number)] = getattr(transition, name)
    return lines


def _is_positive(values: np.ndarray) -> bool:
    return np.issubdtype(values.dtype, np.number) and bool((values > 0).all())


_EXAMPLES = {
    "variance": ".02,.05,.1,.2,.5,1",
    "input_scale": ".1,.2,.5,1",
    "temperature": ".001,.01,.1",
    "width": "10,30,100,300",
}


def _evaluations(dataset: xr.Dataset) -> int:
    return int(dataset.attrs["evaluations"])


def stored_maps(study: StoredStudy) -> dict[str, xr.Dataset]:
    """Maps of a study by axis, dims (seed, …); seeds with maps on other grids are left out."""
    maps = {}
    for axis, tree in study.result(NAME).children.items():
        seeds = {
            int(str(name).removeprefix("seed-")): node.to_dataset()
            for name, node in tree.children.items()
        }
        expected = PhaseMap(study, str(axis)).grid
        seeds = {
            seed: dataset
            for seed, dataset in sorted(seeds.items())
            if all(np.array_equal(dataset[name], values) for name, values in expected.items())
        }
        if seeds:
            maps[str(axis)] = xr.concat(
                seeds.values(),
                xr.Variable("seed", list(seeds)),
                combine_attrs="drop_conflicts",
                data_vars="all",
                join="outer",
                compat="equals",
                coords="minimal",
            ).assign_attrs(evaluations=sum(map(_evaluations, seeds.values())))
    return maps
