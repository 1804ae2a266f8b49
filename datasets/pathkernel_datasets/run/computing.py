"""Computing pieces of studies: one of them, and a map over many, in this process or by workers.

A piece is a seed at one width, or what no width enters. At each width the temperatures go from the
highest, where the minimum is nearest to the Gaussian process limit, to the lowest; a minimisation
begins at its neighbour's minimum with the curvature that was seen on the way there. That takes
fewer evaluations than upwards, or from width to width. Where evaluations are faster together, the
widths of a seed go side by side. A product of matrices rounds by their sizes, so that such values
depend on which widths these are, within the tolerance of a minimisation; others do not.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
import pickle
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np

from pathkernel_core.action.continuation import Outcome, minimise_grid
from pathkernel_core.action.solution import Solution
from pathkernel_core.contracts.analysis import Analysis
from pathkernel_core.contracts.task import Realisation, Task
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_datasets.errors import AnalysisError, StudyError, TaskError
from pathkernel_datasets.folder.piece_files import write_arrays
from pathkernel_datasets.folder.pieces import Piece
from pathkernel_datasets.folder.published import Values
from pathkernel_datasets.folder.study_folder import StudyFolder
from pathkernel_datasets.run.sums import is_summed, number_of_parts, sum_examples, sum_part
from pathkernel_datasets.run.workers import mapped, naming_lost_workers
from pathkernel_datasets.study.identity import differences, identity_of
from pathkernel_datasets.study.prepared import (
    ArrayLibrary,
    PreparedData,
    array_library,
    prepare_data,
)
from pathkernel_datasets.study.study import CLASS_TEMPERATURE, Study, draw_blocks
from pathkernel_datasets.variables.quantities import data_values, point_values, reference_values

_log = logging.getLogger("pathkernel.study")
_ONE_AT_A_TIME = threading.Lock()  # Dask workers have several threads


@dataclass(frozen=True)
class Computation:
    """A study of one value of every option, as it is sent to workers.

    Attributes
    ----------
    folder : StudyFolder
        Where pieces are computed into; it determines the study.
    study : Study
    analyses : tuple of Analysis
    label : str
        Value of the option that has several, in words; empty if none has.
    is_sound : bool
        Whether all of the published study was read, and nothing of it is damaged.
    """

    folder: StudyFolder
    study: Study = field(compare=False)
    analyses: tuple[Analysis, ...] = field(compare=False)
    label: str = ""
    is_sound: bool = field(default=False, compare=False)

    def data(
        self, seed: int, report: Report = silent, realisation: Realisation | None = None
    ) -> SeedData:
        """Data of a seed, drawn unless the realisation is."""
        return SeedData(self.folder, self.study, seed, report, realisation)

    def compute(self, pieces: Sequence[Piece], data: SeedData, report: Report) -> None:
        """Compute pieces of a seed at the temperatures that they lack, and write their files.

        Progress counts grid points, of which the Gaussian process limits are none.
        """
        # read again: another process may have computed some since the pieces were listed
        stored = {piece: self.folder.read(piece) for piece in pieces}
        missing = {
            piece: lacking
            for piece in pieces
            if (lacking := self.folder.lacking_temperatures(stored[piece]))
        }
        points = {piece: missing[piece] for piece in missing if piece.width is not None}
        if points:
            self._compute_points(points, stored, data, report)
        for piece in missing.keys() - points.keys():
            rows = self._limits(piece, data, missing[piece], report)
            # a piece that gets more temperatures has what neither width nor temperature enters
            alone = {} if stored[piece] else data_values(data.data, self.analyses)
            self._write(piece, stored[piece], rows, alone)

    def _write(
        self,
        piece: Piece,
        stored: Values,
        rows: Mapping[float, Mapping[str, Any]],
        alone: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the file of a piece with rows at more temperatures."""
        self._check_declared(piece, rows.values())
        arrays = {**self._joined(piece, stored, rows), **(alone or {})}
        self._check_shapes(piece, {name: np.asarray(array) for name, array in arrays.items()})
        write_arrays(self.folder.file(piece), arrays, self.folder.core)

    def _check_shapes(self, piece: Piece, values: Values) -> None:
        """Check that values of a piece fit into the dataset of the study.

        Raises
        ------
        TaskError, AnalysisError
            If they do not, by whose they are.
        """
        if not self.folder.piece_fault(piece, values):
            return
        # the study's own first: those of an analysis may follow the data of a seed
        for name in sorted(values, key=lambda name: self._analysis_of(name) is not None):
            one = {"temperature": values["temperature"], name: values[name]}
            if fault := self.folder.piece_fault(piece, one):
                raise self._shape_error(piece, name, fault)

    def _shape_error(self, piece: Piece, name: str, fault: str) -> PathkernelError:
        """Error that a variable of a piece has a fault, by whose it is."""
        if (analysis := self._analysis_of(name)) is None:
            return TaskError(
                f"seed {piece.seed} of the task {self.study.task.name!r} {fault} as the first seed "
                "has; give every seed as many examples as the first"
            )
        return AnalysisError(
            f"analysis {analysis.name!r} returned values that the study has no labels for: {piece} "
            f"{fault}; return as many at every point as coordinates() gives labels for the first "
            "seed, NaN where there are none"
        )

    def _analysis_of(self, name: str) -> Analysis | None:
        """The analysis that a variable of the dataset comes from; None for the study's own."""
        for analysis in self.analyses:
            if any(name in (one.name, f"{one.name}_gp") for one in analysis.variables):
                return analysis
        return None

    def _check_declared(self, piece: Piece, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check that points have all variables of the study; one that failed has its status alone.

        Raises
        ------
        TaskError
            If the data of its seed are of other kinds than those of the first.
        """
        dims = self.folder.declared_variables(piece)
        declared = {name for name in dims if "temperature" in dims[name]}
        for values in rows:
            if len(values) > 1 and (missing := sorted(declared - values.keys())):
                raise TaskError(
                    f"seed {piece.seed} of the task {self.study.task.name!r} has no {missing[0]}, "
                    "unlike the first seed; give every seed the same kinds of examples"
                )

    def _joined(
        self, piece: Piece, stored: Values, rows: Mapping[float, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Stored values of a piece, with those at more temperatures behind them."""
        variables = self.folder.template.variables
        temperatures = stored.get("temperature", np.zeros(0)).tolist()
        joined = {
            name: array
            for name, array in stored.items()
            if "temperature" not in variables[name].dims
        }
        along = {name: array for name, array in stored.items() if name not in joined}
        every: list[Mapping[str, Any]] = [
            {name: array[row] for name, array in along.items()} for row in range(len(temperatures))
        ]
        every += rows.values()
        for name in dict.fromkeys(name for row in every for name in row if name != "temperature"):
            dtype = variables[name].dtype
            shapes = {np.shape(row[name]) for row in every if name in row}
            if len(shapes) > 1 and any(map(math.prod, shapes)):
                several = " and ".join(map(str, sorted(shapes)))
                fault = f"holds {name} of shapes {several} at different temperatures, not of one"
                raise self._shape_error(piece, name, fault)
            like = np.asarray(next(row[name] for row in every if name in row), dtype)
            # a point that failed has its status alone
            blank = np.full_like(like, np.nan if dtype.kind == "f" else 0)
            entries = [row.get(name, blank) for row in every]
            # of sub-networks there may be none, and then the other axes have no certain length
            joined[name] = np.stack(entries if like.size else [blank] * len(entries))
        return joined | {"temperature": np.array([*temperatures, *rows])}

    def _limits(
        self, piece: Piece, data: SeedData, missing: Sequence[float], report: Report
    ) -> dict[float, Mapping[str, Any]]:
        """Values of the Gaussian process limits at some temperatures."""
        rows: dict[float, Mapping[str, Any]] = {}
        for temperature in missing:
            report(Progress(0, 0, self._doing(piece, temperature)))
            rows[temperature] = reference_values(
                data.data, data.problem, temperature, self._of_solution
            )
        return rows

    def _compute_points(
        self,
        missing: Mapping[Piece, Sequence[float]],
        stored: Mapping[Piece, Values],
        data: SeedData,
        report: Report,
    ) -> None:
        """Compute the grid points of pieces of a seed at some temperatures, and write their files.

        Minima at other temperatures above them are computed again, as starts only.
        """
        # by the widths of the study, not those that are missing: it resumes in the same form
        problem = data.problem.for_points(len(self.study.widths))
        pieces = list(missing)
        rows: dict[Piece, dict[float, Mapping[str, Any]]] = {piece: {} for piece in pieces}
        n_solved = 0

        def is_over(index: int, temperature: float) -> bool:
            temperature = _on_grid(temperature)
            return temperature < min(missing[pieces[index]])

        def reporter(index: int, temperature: float) -> Report:
            point = Progress(n_solved, None, self._doing(pieces[index], temperature))
            report(point)

            def report_step(step: Progress) -> None:
                numbers = {"evaluations": step.done, **step.numbers}
                report(dataclasses.replace(point, done=n_solved, numbers=numbers))

            return report_step

        def on_point(index: int, temperature: float, outcome: Outcome) -> None:
            nonlocal n_solved
            piece, temperature = pieces[index], _on_grid(temperature)
            if temperature not in missing[piece]:
                return
            solution = outcome if isinstance(outcome, Solution) else None
            rows[piece][temperature] = point_values(data.data, solution, self._of_solution)
            n_solved += 1
            if solution is not None:
                status, count = solution.status.name.lower(), solution.evaluations
                doing = self._doing(piece, temperature)
                _log.debug("%s: %s after %d evaluations", doing, status, count)
            if temperature == min(missing[piece]):
                self._write(piece, stored[piece], rows.pop(piece))

        # from the highest temperature of the study, also if only the lowest is missing: a minimum
        # that depended on what was computed before would differ between interrupted and other runs
        networks = [data.network(piece) for piece in pieces]
        temperatures = (math.nan,) if self.study.has_probabilities else self.study.temperatures
        minimise_grid(problem, networks, temperatures, on_point, is_over=is_over, reporter=reporter)

    def _doing(self, piece: Piece, temperature: float) -> str:
        """Present activity at a point, for progress and log; classes have no temperature."""
        return f"{piece}" if self.study.has_probabilities else f"{piece}, T = {temperature:g}"

    @property
    def _of_solution(self) -> list[Analysis]:
        return [analysis for analysis in self.analyses if analysis.scope == "solution"]


def _on_grid(temperature: float) -> float:
    """Temperature of the study for that of a solution, which classes do not have."""
    return CLASS_TEMPERATURE if math.isnan(temperature) else temperature


@dataclass(frozen=True, eq=False)
class SeedData:
    """Data of a seed of a study, and the problem that they pose."""

    folder: StudyFolder  # where sums are stored, if training examples are too many to hold
    study: Study
    seed: int
    report: Report = silent
    realisation: Realisation | None = None  # where it is drawn already

    @cached_property
    def library(self) -> ArrayLibrary:
        """Array library of the study."""
        return array_library(self.study.backend, self.study.dtype)

    def network(self, piece: Piece) -> Network:
        """Network at the width of a piece."""
        network = self.data.network
        width = cast(float, piece.width)
        return dataclasses.replace(network, widths=(width,) * len(network.widths))

    @cached_property
    def data(self) -> PreparedData:
        """Data along the paths."""
        return prepare_data(self.study, self.seed, self.library, self.realisation)

    @cached_property
    def problem(self) -> Problem:
        """Training examples; a sum over many takes long."""
        if self.data.blocks is None:
            return self.data.problem()
        sums = sum_examples(self.folder, self.seed, self.data, self.library, self.report)
        return Problem.from_statistics(sums)


Job = tuple[Computation, Piece]
"""A piece of one of the studies that are computed together."""


class DrawnRealisations(Protocol):
    """Realisations of seeds that are drawn already."""

    def __call__(self, task: Task, seed: int, *, is_last: bool) -> Realisation | None:
        """The realisation of a seed, if it is drawn; released if it is not needed again."""


def compute_here(
    missing: Mapping[Job, Sequence[float]],
    drawn: DrawnRealisations,
    report: Report,
) -> None:
    """Compute pieces in this process, one after another, at the temperatures that they lack.

    ``drawn`` gives realisations of seeds that are drawn already. Progress counts grid points.
    """
    points, label = 0, ""

    def tell(progress: Progress) -> None:
        doing = f"{label}, {progress.doing}" if label else progress.doing
        report(dataclasses.replace(progress, done=points + progress.done, doing=doing))

    # seed by seed, so that one set of data and one problem are in memory
    seeds = {key: list(jobs) for key, jobs in itertools.groupby(missing, key=_data_of)}
    left = [(computation.study.task, seed) for computation, seed in seeds]
    for (computation, seed), jobs in seeds.items():
        label = computation.label
        tell(Progress(0, None, f"seed {seed}: data and attention"))
        task, _ = left.pop(0)
        # values of an option that is not of the task have the same data
        realisation = drawn(task, seed, is_last=(task, seed) not in left)
        data = computation.data(seed, tell, realisation)
        computation.compute([piece for _, piece in jobs], data, tell)
        points += sum(len(missing[job]) for job in jobs if job[1].width is not None)
        del data, realisation  # before those of the next seed are drawn


def _data_of(job: Job) -> tuple[Computation, int]:
    """Data that a piece is computed from."""
    computation, piece = job
    return computation, piece.seed


def compute_by_workers(
    missing: Mapping[Job, Sequence[float]],
    executor: Executor,
    threads: int | None,
    report: Report,
) -> None:
    """Compute pieces by workers, after the sums over blocks of examples."""
    computation, _ = next(iter(missing))
    try:  # an executor would fail later, in a thread, and name neither the task nor the remedy
        pickle.dumps(computation)
    except Exception as error:  # whatever the objects inside raise
        raise TaskError(
            f"the task {computation.study.task.name!r} or an analysis cannot be sent to workers "
            f"({error}); define its class in a module that workers can import; its options hold "
            "plain data"
        ) from None
    report(Progress(0, None, "waiting for workers"))
    # sums first: with several workers at one seed, each would otherwise sum all of its examples
    sums = [
        (computation, seed, number)
        for computation, seed in dict.fromkeys(map(_data_of, missing))
        if not is_summed(computation.folder, seed)
        and (blocks := draw_blocks(computation.study.task, seed)) is not None
        for number in range(number_of_parts(len(blocks)))
    ]
    with naming_lost_workers(computation.folder.path):
        summed = mapped(executor, threads, _sum_part, sums)
        for count, _ in enumerate(summed, start=1):
            report(Progress(0, None, f"{count / len(sums):.0%} of the examples summed"))
        # of Dask's executor, whose workers come and go, the number is not known
        batches, points = _batches(list(missing), getattr(executor, "_max_workers", 0)), 0
        for batch, _ in zip(batches, mapped(executor, threads, _compute_batch, batches)):
            points += sum(len(missing[job]) for job in batch if job[1].width is not None)
            report(Progress(points, None, "workers compute"))


def _compute_batch(jobs: Sequence[Job]) -> None:
    """Compute pieces in a worker."""
    with _ONE_AT_A_TIME:
        for (computation, seed), of_seed in itertools.groupby(jobs, key=_data_of):
            pieces = [piece for _, piece in of_seed]
            computation.compute(pieces, _worker_data(computation, seed), silent)


def _sum_part(part: tuple[Computation, int, int]) -> None:
    """Sum over some blocks of training examples, in a worker."""
    computation, seed, number = part
    with _ONE_AT_A_TIME:
        prepared = _worker_data(computation, seed)
        sum_part(computation.folder, seed, prepared.data, prepared.library, number)


@functools.lru_cache(maxsize=1)
def _worker_data(computation: Computation, seed: int) -> SeedData:
    """Data of a seed, of which a worker has several pieces one after another.

    Raises
    ------
    StudyError
        If the worker, which may run elsewhere, has other code or files than the study.
    """
    prepared, expected = computation.data(seed), computation.folder.identity
    actual = identity_of(computation.study, [prepared.data.realisation])
    if seed != expected["seeds"][0]:  # the identity has the fingerprint of that seed alone
        actual["drawn"] = expected["drawn"]
    if different := differences(expected, actual, "a worker"):
        raise StudyError(
            f"a worker would compute another study than {computation.folder.path} "
            f"({'; '.join(different)}); install the same versions everywhere, give absolute paths "
            "of files, and start workers in this folder"
        )
    return prepared


def _batches(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """Batches of pieces for workers, which prepare the data of every seed that they see.

    Every worker computes the same number of complete seeds, so that no data are prepared twice; the
    remaining pieces are batches of their own, so that no worker waits for another.
    """
    seeds = [list(group) for _, group in itertools.groupby(jobs, key=_data_of)]
    complete = seeds[: len(seeds) // workers * workers] if workers else []
    return complete + [[job] for seed in seeds[len(complete) :] for job in seed]
