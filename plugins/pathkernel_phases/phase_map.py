"""The map of a study: the lowest minima on its grid, and curves of crossings and spinodals."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.phases.coexistence import ActionFamily
from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.results.point import Point, PointData
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.study.study import SETTINGS
from pathkernel_datasets.variables.labelling import label_arrays
from pathkernel_datasets.variables.measures import measures_of
from pathkernel_datasets.variables.swept_option import swept_option
from pathkernel_phases.curve_values import curve_values
from pathkernel_phases.minimum_values import MinimumValues, minimum_values
from pathkernel_phases.phase_plane import PhasePlane

NAME = "phases"
"""Name of the result; a part of it is ``phases/<axis>/seed-<s>``."""

FOLLOWED = ("variance", "input_scale", "temperature", "width")
"""Axes along which minima are followed: at other options every value has its own problem."""

_POINTS = {
    "softest": "smallest eigenvalue of the Hessian of S/N in the chain's coordinates",
    "trace_ratio": "trace of U relative to its Gaussian process limit",
    "minima": "number of minima of the action that the search found",
    "region": "number of the region, whose borders are crossings; regions of each plane from 0",
    "state": "silent where less than half of the squared training labels is explained, or in use",
    "strongest_path": "path with the largest U(π, π)",
}


class PhaseMap:
    """Map of a study along an axis; the study may have several values of an option.

    Curves are followed in the plane of this axis and of the one with most values among the other
    axes, at every value of the rest. A crossing is noticed where neighbouring points of the grid
    have different lowest minima: if one is missing, refine the grid.

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

    @cached_property
    def plane(self) -> tuple[str, ...]:
        """Names of the axes of the plane in which curves are followed: one or two."""
        others = [
            name
            for name, values in self.grid.items()
            if name != self.axis and name in FOLLOWED and len(values) > 1
        ]
        return (self.axis, *sorted(others, key=lambda name: -len(self.grid[name]))[:1])

    @property
    def rest(self) -> tuple[str, ...]:
        """Names of the axes at whose every value there is a plane."""
        return tuple(name for name in self.grid if name not in self.plane)

    def missing_seeds(self, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
        """Compute the map of every seed that the study lacks."""
        seeds = self._study.dataset["seed"].values.tolist()
        missing = [seed for seed in seeds if not self._is_stored(seed)]
        for done, seed in enumerate(missing):

            def within(doing: str, done: int = done, seed: int = seed) -> None:
                report(Progress(done, len(missing), f"seed {seed}: {doing}"))

            yield f"{self.axis}/seed-{seed}", self.seed_map(seed, within)

    def _is_stored(self, seed: int) -> bool:
        part = f"{NAME}/{self.axis}/seed-{seed}"
        if not self._study.holds(part):
            return False
        stored = self._study.result(part).to_dataset()
        return all(np.array_equal(stored[name], values) for name, values in self.grid.items())

    def seed_map(self, seed: int, report: Callable[[str], None] = lambda doing: None) -> xr.Dataset:
        """Compute the map of one seed.

        Returns
        -------
        xarray.Dataset
            Over the grid ``softest``, ``trace_ratio``, ``minima``, ``region``, ``state`` and
            ``strongest_path``; along ``vertex`` the points of all curves in order, see
            :mod:`pathkernel_phases.curve_values`. Its attribute ``evaluations`` counts those of the
            energy.
        """
        shape = tuple(map(len, self.grid.values()))
        points: dict[str, np.ndarray] = {
            name: np.full(shape, "", np.dtypes.StringDType())
            if name in ("state", "strongest_path")
            else np.full(shape, np.nan)
            for name in _POINTS
        }
        curves, evaluations = [], 0
        for settings in self._settings():
            values_of, family = self._family(seed, settings)
            plane = PhasePlane(family, [np.log(self.grid[name]) for name in self.plane])
            setting = "".join(f", {name} {value:g}" for name, value in settings.items())
            for count, _ in enumerate(plane.search(), start=1):
                report(f"minimum {count}{setting}")
            for count, _ in enumerate(plane.follow_crossings(), start=1):
                report(f"crossing {count}{setting}")
            for count, _ in enumerate(plane.follow_spinodals(), start=1):
                report(f"spinodal {count}{setting}")
            regions = plane.regions()
            for index, minimum in plane.minima.items():
                where = self._index(settings, index)
                values = values_of(minimum.solution)
                points["softest"][where] = values.softest
                points["trace_ratio"][where] = values.trace_ratio
                points["minima"][where] = 1 + len(minimum.solution.other_minima)
                points["region"][where] = regions[index]
                points["state"][where] = values.state
                points["strongest_path"][where] = values.strongest_path
            curves.append(curve_values(plane, self.plane, settings, values_of))
            evaluations += family.evaluations
        dims = tuple(self.grid)
        attributes = {"axis": self.axis, "plane": list(self.plane), "evaluations": evaluations}
        coords = {name: self._study.dataset[name].sortby(name).variable for name in dims}
        variables = [Variable(name, dims, text) for name, text in _POINTS.items()]
        of_curves = xr.concat(curves, "vertex", combine_attrs="override")
        # curves of each plane are numbered from 0: here, of the seed
        sizes = [int(one["curve"].max()) + 1 if one.sizes["vertex"] else 0 for one in curves]
        starts = np.repeat(np.cumsum([0, *sizes[:-1]]), [one.sizes["vertex"] for one in curves])
        of_curves["curve"] = of_curves["curve"] + starts
        return label_arrays(points, variables, coords, attributes).merge(of_curves)

    def _settings(self) -> Iterator[dict[str, float]]:
        """Values of the axes outside the plane, one combination after another."""
        for values in itertools.product(*(self.grid[name].tolist() for name in self.rest)):
            yield dict(zip(self.rest, values))

    def _index(self, settings: Mapping[str, float], index: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the grid for an index of a plane."""
        of_plane = dict(zip(self.plane, index))
        return tuple(
            of_plane[name] if name in of_plane else self.grid[name].tolist().index(settings[name])
            for name in self.grid
        )

    def _family(
        self, seed: int, settings: Mapping[str, float]
    ) -> tuple[MinimumValues, ActionFamily]:
        """Actions over the plane at some settings, and the values of their minima."""
        option, singles = self.option, self._study.singles
        value, single = None, singles[0]
        if option is not None:
            values = self._study.dataset[option].values.tolist()
            value = settings.get(option, values[0])
            single = singles[values.index(value)]
        width, temperature = (
            settings.get(name, float(self.grid[name][0])) for name in ("width", "temperature")
        )
        rebuilt = single.rebuild(Point(width, temperature, seed))
        problem = Problem(rebuilt.data.xi, rebuilt.data.labels)

        def system(values: np.ndarray) -> tuple[Network, float]:
            return _system(rebuilt, dict(zip(self.plane, values.tolist())), value)

        measure = measures_of(self._study.dataset)[0]
        return minimum_values(rebuilt, measure), ActionFamily(problem, system)


def _system(
    rebuilt: PointData, values: Mapping[str, float], reference: float | None
) -> tuple[Network, float]:
    """Network and temperature of a rebuilt point at other values of the axes of a plane."""
    network, settings = rebuilt.network, {}
    if "variance" in values:
        settings["variances"] = (values["variance"],) * len(network.variances)
    if "input_scale" in values:
        # the kernel has σ²_0 times the square of the inputs, and the entropy neither: the variance
        # moves along the state without another problem at every step
        assert reference is not None
        first, *others = network.variances
        settings["variances"] = (first * (values["input_scale"] / reference) ** 2, *others)
    if "width" in values:
        settings["widths"] = (values["width"],) * len(network.widths)
    network = dataclasses.replace(network, **settings)
    return network, values.get("temperature", rebuilt.point.temperature)


def _is_positive(values: np.ndarray) -> bool:
    return np.issubdtype(values.dtype, np.number) and bool((values > 0).all())


_EXAMPLES = {
    "variance": "0.02,0.05,0.1,0.2,0.5,1",
    "input_scale": "0.1,0.2,0.5,1",
    "temperature": "0.001,0.01,0.1",
    "width": "10,30,100,300",
}


def stored_maps(study: StoredStudy) -> dict[str, xr.Dataset]:
    """Maps of a study by axis, dims (seed, …), without the curves.

    Seeds with maps on other grids are left out.
    """
    return {
        axis: xr.concat(
            [dataset.drop_dims(["vertex", "side"]) for dataset in seeds.values()],
            xr.Variable("seed", list(seeds)),
            combine_attrs="drop_conflicts",
            data_vars="all",
            compat="equals",
            coords="minimal",
        ).assign_attrs(evaluations=sum(int(each.attrs["evaluations"]) for each in seeds.values()))
        for axis, seeds in _seed_maps(study).items()
    }


def stored_phase_curves(study: StoredStudy, axis: str) -> pd.DataFrame:
    """Points of the curves of a map, a row for each, in order along every curve of every seed."""
    frames = []
    for seed, dataset in _seed_maps(study)[axis].items():
        of_curves = dataset[[name for name, v in dataset.items() if "vertex" in v.dims]].load()
        sides = [of_curves.isel(side=i, drop=True) for i in range(2)]
        frame = sides[0].drop_dims("side", errors="ignore").to_dataframe()
        for name, array in of_curves.items():
            if "side" in array.dims:
                for side in array["side"].values.tolist():
                    frame[f"{name}_{side}"] = array.sel(side=side).values
            else:
                frame[name] = array.values
        frames.append(frame.reset_index(drop=True).assign(seed=seed))
    return pd.concat(frames, ignore_index=True)


def _seed_maps(study: StoredStudy) -> dict[str, dict[int, xr.Dataset]]:
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
            maps[str(axis)] = seeds
    return maps
