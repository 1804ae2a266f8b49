"""Computing a piece of a study: a seed at one width, or what no width enters.

At each width the temperatures go from the highest, where the minimum is nearest to the Gaussian
process limit, to the lowest; a minimisation begins at its neighbour's minimum with the curvature
that was seen on the way there. That takes fewer evaluations than upwards, or from width to width.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Analysis
from pathkernel_core.continuation import minimise_from
from pathkernel_core.kernels import PathKernels
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_core.task import Realisation
from pathkernel_datasets.array_libraries import ArrayLibrary, array_library
from pathkernel_datasets.pieces import Piece
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.quantities import (
    data_values,
    point_values,
    reference_values,
    status_name,
)
from pathkernel_datasets.study import Study
from pathkernel_datasets.sums import sum_examples
from pathkernel_datasets.template import blank, data_variables, fill

_log = logging.getLogger("pathkernel.study")


@dataclass(frozen=True, eq=False)
class PieceData:
    """Data of a seed, and the problem that they pose."""

    study: Study  # with one value of every option
    piece: Piece  # that no width enters
    store: Path  # beside which sums are stored, if training examples are too many to hold
    core: str
    report: Report = silent
    realisation: Realisation | None = None  # where it is drawn already

    @cached_property
    def library(self) -> ArrayLibrary:
        """Array library of the study."""
        return array_library(self.study.backend, self.study.dtype)

    @cached_property
    def data(self) -> PreparedData:
        """Data along the paths."""
        return prepare_data(self.study, self.piece.seed, self.library, self.realisation)

    @cached_property
    def problem(self) -> PathKernels:
        """Training examples; a sum over many takes long."""
        if self.data.blocks is None:
            return PathKernels(self.data.xi, self.data.labels)
        sums = sum_examples(self.piece, self.store, self.core, self.data, self.library, self.report)
        return PathKernels.from_statistics(sums)


def compute_piece(
    piece: Piece,
    prepared: PieceData,
    template: xr.Dataset,
    analyses: Sequence[Analysis],
    missing: Sequence[float],
    computed: xr.Dataset | None = None,
    report: Report = silent,
) -> xr.Dataset:
    """Values of a piece, with all dimensions of its variables but for those of its key.

    Those at the ``missing`` temperatures are computed, the others are the ``computed`` ones.
    Progress counts grid points, of which the Gaussian process limits are none.
    """
    of_solution = [analysis for analysis in analyses if analysis.scope == "solution"]
    of_temperatures = _limits if piece.width is None else _points
    rows = of_temperatures(piece, prepared, missing, of_solution, report)
    # what neither width nor temperature enters belongs to the first computation of the limits: a
    # piece that gets more temperatures has it already
    alone: Mapping[str, Any] = {}
    if piece.width is None and computed is None:
        alone = data_values(prepared.data, analyses)
    dataset = blank(piece, template)
    if computed is not None:
        fill(dataset, piece, computed)
    for name, variable in data_variables(dataset).items():
        if "temperature" in variable.dims:
            for t, temperature in enumerate(dataset["temperature"].values.tolist()):
                _assign(variable.values[t, ...], rows.get(temperature, {}).get(name))
        else:
            _assign(variable.values, alone.get(name))
    return dataset


def _assign(target: np.ndarray, value: Any) -> None:
    """Assign a value to the first entries of an array, which may be larger for other test sets."""
    if value is not None:
        value = np.asarray(value)
        target[tuple(map(slice, value.shape))] = value


def _limits(
    piece: Piece,
    prepared: PieceData,
    missing: Sequence[float],
    analyses: Sequence[Analysis],
    report: Report,
) -> dict[float, Mapping[str, Any]]:
    """Values of the Gaussian process limits at some temperatures."""
    rows: dict[float, Mapping[str, Any]] = {}
    for temperature in missing:
        report(Progress(0, 0, f"{piece}, T = {temperature:g}"))
        rows[temperature] = reference_values(prepared.data, prepared.problem, temperature, analyses)
    return rows


def _points(
    piece: Piece,
    prepared: PieceData,
    missing: Sequence[float],
    analyses: Sequence[Analysis],
    report: Report,
) -> dict[float, Mapping[str, Any]]:
    """Values of the grid points at one width and some temperatures.

    Minima at other temperatures above them are computed again, as starts only.
    """
    widths = (cast(float, piece.width),) * len(prepared.data.network.widths)
    network = dataclasses.replace(prepared.data.network, widths=widths)
    # from the highest temperature of the study, also if only the lowest is missing: a minimum that
    # depended on what was computed before would differ between interrupted and other runs
    rows: dict[float, Mapping[str, Any]] = {}
    start = None
    lowest = min(missing, default=math.inf)
    temperatures = [value for value in prepared.study.temperatures if value >= lowest]
    for temperature in sorted(temperatures, reverse=True):
        point = Progress(len(rows), len(missing), f"{piece}, T = {temperature:g}")
        report(point)

        def within(step: Progress, point: Progress = point) -> None:
            numbers = {"evaluations": step.done, **step.numbers}
            report(dataclasses.replace(point, numbers=numbers))

        solution = minimise_from(prepared.problem, network, temperature, start, within)
        if temperature in missing:
            rows[temperature] = point_values(prepared.data, solution, analyses)
            evaluations = 0 if solution is None else solution.evaluations
            ended = status_name(solution)
            _log.debug("%s: %s after %d evaluations", point.doing, ended, evaluations)
        start = solution if solution is not None and solution.status.ok else None
    return rows
