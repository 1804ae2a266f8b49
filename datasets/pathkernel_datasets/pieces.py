"""The pieces of a study that are computed on their own, here or by a worker.

At each width the temperatures are gone through from the highest, where the minimum is nearest to
the Gaussian process limit, to the lowest; a minimisation begins at its neighbour's minimum with the
curvature that was seen on the way there. That takes fewer evaluations than upwards, or from width
to width. A run that was stopped finds the starts that it lacks by minimising again, so that its
store is bit for bit that of a run that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

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
from pathkernel_datasets.errors import StoreError, TaskError
from pathkernel_datasets.evaluation import data_values, point_values, reference_values
from pathkernel_datasets.lock import exclusive
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.store import Store
from pathkernel_datasets.study import Study, draw_blocks, fingerprint, task_versions
from pathkernel_datasets.swept import words_of
from pathkernel_datasets.tree_sums import Part, tree_sum

_BLOCKS_OF_PART = 16  # whose sums one worker computes and keeps
_GRID = {"widths", "temperatures", "seeds", "variances"}  # what sums over examples are free of

_ONE_AT_A_TIME = threading.Lock()  # of a worker's threads, which share the linear algebra's

_OF_WORKERS = {  # entries of a study's identity: what is wrong where they differ, and the remedy
    "versions": ("has another version of the code", "install the same everywhere"),
    "provenance": (
        "finds other files",
        "give their absolute paths, and start workers in this folder",
    ),
    "drawn": ("draws other data", "its code has changed: install the same everywhere"),
}

_log = logging.getLogger("pathkernel.study")


@dataclass(frozen=True)
class Draw:
    """The data of one seed, of one value of the option that is swept.

    Attributes
    ----------
    place : tuple of int
        Where it lies in the store's grid.
    study : Study
        With one value of every option.
    seed : int
    words : str
    """

    place: tuple[int, ...]
    study: Study
    seed: int
    words: str


@dataclass(frozen=True)
class Piece:
    """What is computed in one go of a draw: a width at all temperatures, or what no width enters.

    Attributes
    ----------
    draw : Draw
    width : int or None
        Index of the width; None for the data and the Gaussian process limits.
    """

    draw: Draw
    width: int | None

    @property
    def words(self) -> str:
        """What is computed."""
        if self.width is None:
            return f"{self.draw.words}, GP limit"
        return f"{self.draw.words}, N = {self.draw.study.widths[self.width]:g}"


@dataclass(frozen=True)
class Drawn:
    """Data of a draw, and the problem that they pose.

    Attributes
    ----------
    draw : Draw
    data : PreparedData
    library : ArrayLibrary
    store : Path
        Beside which sums over training examples lie, where these are too many to hold.
    report : callable
        Called while they are summed.
    """

    draw: Draw
    data: PreparedData
    library: ArrayLibrary
    store: Path
    report: Report

    @classmethod
    def of(cls, draw: Draw, store: Path, report: Report = silent) -> Drawn:
        """Draw them, in the study's array library."""
        library = array_library(draw.study.backend, draw.study.dtype)
        return cls(draw, prepare_data(draw.study, draw.seed, library), library, store, report)

    @functools.cached_property
    def problem(self) -> PathKernels:
        """Made when it is used: a process that only makes the store does without."""
        if self.data.blocks is None:
            return PathKernels(self.data.xi, self.data.labels)
        return PathKernels.from_statistics(self.sum_blocks(self.sum_part))

    def sum_blocks(self, part: Part, executor: Executor | None = None) -> SufficientStatistics:
        """Sums over all blocks, in a file beside the store; by workers, if there are any."""
        identity = self.draw.study.identity([self.data.realisation])
        own = {key: held for key, held in identity.items() if key not in _GRID}
        digest = hashlib.sha256(json.dumps([own, self.draw.seed], sort_keys=True).encode())
        store = self.store.resolve()
        path = store.with_name(f"{store.stem}-statistics") / f"{digest.hexdigest()[:16]}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts, examples = -(-self.data.n_blocks // _BLOCKS_OF_PART), self.data.n_examples

        def tell(done: int) -> None:
            doing = f"{self.draw.words}: {done / parts:.0%} of {examples} examples summed"
            self.report(Progress(0, None, doing))

        def waiting() -> None:
            doing = f"{self.draw.words}: another process sums {examples} examples"
            self.report(Progress(0, None, doing))

        # processes that compute other parts of the study wait for the one that sums
        with exclusive(path, path.with_name(f".{path.stem}.lock"), waiting=waiting):
            total = tree_sum(part, parts, path, executor, tell)
        if total.n_examples != examples:
            raise TaskError(
                f"the blocks of the task {self.draw.study.task.name!r} hold {total.n_examples} "
                f"examples instead of {examples}"
            )
        return total.convert(self.library.asarray)

    def sum_part(self, number: int) -> SufficientStatistics:
        """Sums over some blocks, drawn one after another."""
        first = number * _BLOCKS_OF_PART
        blocks = range(first, min(first + _BLOCKS_OF_PART, self.data.n_blocks))
        return SufficientStatistics.of_batches(
            self.data.block(block, self.library) for block in blocks
        )


def draws_of(study: Study) -> Iterator[Draw]:
    """All draws of a study, seed after seed."""
    for place, single in enumerate(study.singles):
        value = "".join(f"{words_of(name, getattr(single.task, name))}, " for name in study.sweep)
        for index, seed in enumerate(study.seeds):
            at = (place, index) if study.sweep else (index,)
            yield Draw(at, single, seed, f"{value}seed {seed}")


def pieces_of(study: Study, part: tuple[int, int] = (1, 1)) -> list[Piece]:
    """Pieces of a part of a study, such as (1, 3): as many in each, next to one another.

    They are of few seeds then. The store plays no role, so that a part that was stopped has the
    same when it goes on.
    """
    widths = (None, *range(len(study.widths)))
    pieces = [Piece(draw, width) for draw in draws_of(study) for width in widths]
    first, last = (len(pieces) * number // part[1] for number in (part[0] - 1, part[0]))
    return pieces[first:last]


def is_complete(piece: Piece, store: Store) -> bool:
    """Whether the store lacks nothing of a piece."""
    if piece.width is not None:
        return lacking(piece, store).size == 0
    others = (name for name in store.markers if name != "status")
    return all(np.all(store.marker(name)[piece.draw.place]) for name in others)


def lacking(piece: Piece, store: Store) -> np.ndarray:
    """Indices of the temperatures at which a piece's points are not computed."""
    if piece.width is None:
        return np.empty(0, int)
    return np.flatnonzero(store.marker("status")[piece.draw.place][:, piece.width] == 0)


def compute_pieces(
    pieces: Sequence[Piece],
    path: Path,
    identity: str,
    analyses: Sequence[Analysis],
    threads: int | None,
) -> None:
    """Compute pieces in a worker, one after another.

    Parameters
    ----------
    pieces : sequence of Piece
    path : Path
        The store, which several workers write into at the same time, at other places.
    identity : str
        Of the study: another one has other data, though its task be called the same.
    analyses : sequence of Analysis
    threads : int or None
        Threads of the linear algebra; None leaves their number as it is.
    """
    with _ONE_AT_A_TIME, threadpool_limits(limits=threads):
        store = Store(path)
        if store.identity != identity:
            raise StoreError(f"{path} holds another study by now; run that one again")
        try:
            for piece in pieces:
                fill(piece, store, _last_drawn(identity, piece.draw, path), analyses)
        finally:
            store.flush()


def sum_examples(
    executor: Executor, draw: Draw, path: Path, identity: str, threads: int | None, report: Report
) -> None:
    """Let workers sum over the training examples of a draw, if they are too many to hold."""
    if draw_blocks(draw.study.task, draw.seed) is not None:
        part = functools.partial(_sum_part, draw, path, identity, threads)
        Drawn.of(draw, path, report).sum_blocks(part, executor)


def _sum_part(
    draw: Draw, path: Path, identity: str, threads: int | None, number: int
) -> SufficientStatistics:
    """Sums over some blocks of a draw, in a worker."""
    with _ONE_AT_A_TIME, threadpool_limits(limits=threads):
        return _last_drawn(identity, draw, path).sum_part(number)


@functools.lru_cache(maxsize=1)
def _last_drawn(identity: str, draw: Draw, path: Path) -> Drawn:
    """A worker has several pieces of the same data, one after another."""
    whole = json.loads(identity)
    held = whole
    for name, values in whole.get("sweep", {}).items():
        held = held | values[str(getattr(draw.study.task, name))]
    _check_worker("versions", task_versions(draw.study.task), held)
    _check_worker("provenance", draw.study.task.provenance(), held)
    drawn = Drawn.of(draw, path)
    if draw.seed == whole["seeds"][0]:
        _check_worker("drawn", fingerprint(drawn.data.realisation), held)
    return drawn


def _check_worker(entry: str, here: Any, held: Mapping[str, Any]) -> None:
    """Check that a worker, which may run elsewhere, has the code and files of the study."""
    if here != held[entry]:
        what, remedy = _OF_WORKERS[entry]
        raise StoreError(
            f"a worker {what} than the study was begun with ({json.dumps(here)} instead of "
            f"{json.dumps(held[entry])}); {remedy}"
        )


def fill(
    piece: Piece,
    store: Store,
    drawn: Drawn,
    analyses: Sequence[Analysis],
    report: Report = silent,
) -> int:
    """Compute what the store lacks of a piece; returns the number of grid points, as reports do."""
    place, study = piece.draw.place, piece.draw.study
    data, problem = drawn.data, drawn.problem
    of_solution = [analysis for analysis in analyses if analysis.of == "solution"]
    missing, done = lacking(piece, store), 0

    def tell(temperature: float) -> Progress:
        here = Progress(done, missing.size, f"{piece.words}, T = {temperature:g}")
        report(here)
        return here

    if piece.width is None:
        if not store.marker("data_done")[place]:
            store.write(place, data_values(data, analyses), "data_done", 1)
        for t, temperature in enumerate(study.temperatures):
            if not store.marker("reference_done")[(*place, t)]:
                tell(temperature)
                values = reference_values(data, problem, temperature, of_solution)
                store.write((*place, t), values, "reference_done", 1)
        return 0
    widths = (study.widths[piece.width],) * len(data.network.widths)
    network = dataclasses.replace(data.network, widths=widths)
    start = None
    for t in _down_to(study.temperatures, missing):
        here = tell(study.temperatures[t])

        def within(step: Progress, here: Progress = here) -> None:
            numbers = {"evaluations": step.done, **step.numbers}
            report(dataclasses.replace(here, numbers=numbers))

        solution = minimise_from(problem, network, study.temperatures[t], start, within)
        if t in missing:  # the others were stored before a stop; here they are starts only
            code = "not_positive_definite" if solution is None else solution.status.name.lower()
            values = point_values(data, solution, of_solution)
            store.write((*place, t, piece.width), values, "status", STATUS_CODES[code])
            done += 1
            evaluations = 0 if solution is None else solution.evaluations
            _log.debug("%s: %s after %d evaluations", here.doing, code, evaluations)
        start = solution if solution is not None and solution.status.ok else None
    return done


def _down_to(temperatures: Sequence[float], missing: np.ndarray) -> list[int]:
    """Indices of the temperatures from the highest down to the lowest that is missing."""
    order = np.argsort(temperatures)[::-1]
    last = np.flatnonzero(np.isin(order, missing))
    return order[: last[-1] + 1].tolist() if last.size else []


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
