"""The pieces of a study, each computed in one go: a seed at one width, or what no width enters.

A piece is a function of the study and its key alone. At each width the temperatures are gone
through from the highest, where the minimum is nearest to the Gaussian process limit, to the lowest;
a minimisation begins at its neighbour's minimum with the curvature that was seen on the way there.
That takes fewer evaluations than upwards, or from width to width.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Analysis
from pathkernel_core.errors import NotPositiveDefiniteError, ScaleWarning
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minima import may_have_several
from pathkernel_core.minimise import minimise_action
from pathkernel_core.network import Network
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_core.solution import Solution
from pathkernel_core.statistics import SufficientStatistics
from pathkernel_datasets.array_libraries import ArrayLibrary, array_library
from pathkernel_datasets.evaluation import data_values, point_values, reference_values
from pathkernel_datasets.piece_files import Piece, PieceFiles
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.publishing import filled
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.study import Study
from pathkernel_datasets.sums import sum_examples

_log = logging.getLogger("pathkernel.study")


@dataclass(frozen=True, eq=False)
class Draw:
    """Data of one seed, and the problem that they pose.

    Attributes
    ----------
    study : Study
        With one value of every option.
    data : PreparedData
    library : ArrayLibrary
    sums : callable
        Gives the sums over training examples, if these are too many to hold.
    """

    study: Study
    data: PreparedData
    library: ArrayLibrary
    sums: Callable[[PreparedData, ArrayLibrary], SufficientStatistics]

    @classmethod
    def of(
        cls, study: Study, piece: Piece, store: Path, core: str, report: Report = silent
    ) -> Draw:
        """Draw the data of a piece, in the study's array library.

        Parameters
        ----------
        study : Study
            With one value of every option, that of the piece.
        piece : Piece
        store : Path
            Beside which sums are kept.
        core : str
            From :func:`pathkernel_datasets.study.core_of`.
        report : callable
            Called while examples are summed.
        """
        library = array_library(study.backend, study.dtype)
        sums = partial(sum_examples, piece.data.name, core, PieceFiles(store, "sums"))
        data = prepare_data(study, piece.seed, library)
        return cls(study, data, library, partial(sums, report=report))

    @functools.cached_property
    def problem(self) -> PathKernels:
        """Made when it is used, since a sum over many examples takes long."""
        if self.data.blocks is None:
            return PathKernels(self.data.xi, self.data.labels)
        return PathKernels.from_statistics(self.sums(self.data, self.library))


def compute_piece(
    piece: Piece,
    draw: Draw,
    template: xr.Dataset,
    analyses: Sequence[Analysis],
    held: xr.Dataset | None = None,
    report: Report = silent,
) -> xr.Dataset:
    """Values of a piece, all dimensions of its variables but for those of its key.

    Parameters
    ----------
    piece : Piece
    draw : Draw
        Data of its seed.
    template : Dataset
        Of the study: which variables there are.
    analyses : sequence of Analysis
    held : Dataset, optional
        The piece at some of the temperatures, which are not computed again.
    report : callable
        Called with a Progress in grid points; the Gaussian process limits count as none.
    """
    of_solution = [analysis for analysis in analyses if analysis.of == "solution"]
    missing = lacking(draw.study, held)
    of_temperatures = _limits if piece.width is None else _points
    rows = of_temperatures(piece, draw, missing, of_solution, report)
    alone: Mapping[str, Any] = {}
    if piece.width is None and held is None:
        alone = data_values(draw.data, analyses) | {"data_done": 1}
    dataset = filled(blank(piece, template), [] if held is None else [(piece, held)])
    for name, variable in dataset.data_vars.items():
        if "temperature" in variable.dims:
            for t, temperature in enumerate(dataset["temperature"].values.tolist()):
                _fill(variable.values[t, ...], rows.get(temperature, {}).get(str(name)))
        else:
            _fill(variable.values, alone.get(str(name)))
    return dataset


def lacking(study: Study, held: xr.Dataset | None) -> list[float]:
    """Temperatures of a study at which a piece is not computed."""
    known = [] if held is None else held["temperature"].values.tolist()
    return [temperature for temperature in study.temperatures if temperature not in known]


def blank(piece: Piece, template: xr.Dataset) -> xr.Dataset:
    """A piece without values, of the same shape as at all other places of the grid."""
    key = {"seed", "width", piece.swept}
    found = {
        name: variable.variable.isel(dict.fromkeys(key & {*variable.dims}, 0)).copy(deep=True)
        for name, variable in template.data_vars.items()
        if ("width" in variable.dims) == (piece.width is not None)
    }
    return xr.Dataset(found, {"temperature": template["temperature"].variable})


def _fill(variable: np.ndarray, value: Any) -> None:
    """Write a value, which may be shorter: a test set of fewer examples."""
    if value is not None:
        value = np.asarray(value)
        variable[tuple(map(slice, value.shape))] = value


def _limits(
    piece: Piece,
    draw: Draw,
    temperatures: Sequence[float],
    analyses: Sequence[Analysis],
    report: Report,
) -> dict[float, Mapping[str, Any]]:
    """Values of the Gaussian process limits at some temperatures."""
    rows: dict[float, Mapping[str, Any]] = {}
    for temperature in temperatures:
        report(Progress(0, 0, f"{piece}, T = {temperature:g}"))
        values = reference_values(draw.data, draw.problem, temperature, analyses)
        rows[temperature] = values | {"reference_done": 1}
    return rows


def _points(
    piece: Piece,
    draw: Draw,
    missing: Sequence[float],
    analyses: Sequence[Analysis],
    report: Report,
) -> dict[float, Mapping[str, Any]]:
    """Values of the grid points at one width and some temperatures.

    Minima at other temperatures above them are found again, as starts only.
    """
    widths = (cast(float, piece.width),) * len(draw.data.network.widths)
    network = dataclasses.replace(draw.data.network, widths=widths)
    rows: dict[float, Mapping[str, Any]] = {}
    start = None
    lowest = min(missing, default=math.inf)
    temperatures = [each for each in draw.study.temperatures if each >= lowest]
    for temperature in sorted(temperatures, reverse=True):
        here = Progress(len(rows), len(missing), f"{piece}, T = {temperature:g}")
        report(here)

        def within(step: Progress, here: Progress = here) -> None:
            numbers = {"evaluations": step.done, **step.numbers}
            report(dataclasses.replace(here, numbers=numbers))

        solution = minimise_from(draw.problem, network, temperature, start, within)
        if temperature in missing:
            code = "not_positive_definite" if solution is None else solution.status.name.lower()
            values = point_values(draw.data, solution, analyses)
            rows[temperature] = values | {"status": STATUS_CODES[code]}
            evaluations = 0 if solution is None else solution.evaluations
            _log.debug("%s: %s after %d evaluations", here.doing, code, evaluations)
        start = solution if solution is not None and solution.status.ok else None
    return rows


def minimise_from(
    problem: PathKernels,
    network: Network,
    temperature: float,
    start: Solution | None,
    report: Report = silent,
) -> Solution | None:
    """Lowest minimum of the action that is found; None if that fails.

    A neighbour's solution is a start only where the action has no other minimum, so that the result
    depends on the point alone.
    """
    if start is not None and not may_have_several(problem, network, temperature):
        with contextlib.suppress(NotPositiveDefiniteError, np.linalg.LinAlgError):
            solution = minimise_action(
                problem, network, temperature, start=start, throw=False, report=report
            )
            if solution.status.ok:
                return solution
    with (
        contextlib.suppress(NotPositiveDefiniteError, np.linalg.LinAlgError),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ScaleWarning)  # the study's table has it
        return minimise_action(problem, network, temperature, throw=False, report=report)
    return None
