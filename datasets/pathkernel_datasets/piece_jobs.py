"""The map over the pieces of a study: in this process, or by workers."""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Analysis
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_core.task import Realisation
from pathkernel_datasets.computing import PieceData, compute_piece
from pathkernel_datasets.errors import StoreError, TaskError
from pathkernel_datasets.identity import core_of, differences, identity_of, single_identity
from pathkernel_datasets.pieces import Piece, PieceFiles
from pathkernel_datasets.store import unfinished
from pathkernel_datasets.study import Study, draw_blocks
from pathkernel_datasets.sums import number_of_parts, sum_part
from pathkernel_datasets.workers import mapped, naming_lost_workers

_ONE_AT_A_TIME = threading.Lock()  # Dask workers have several threads


@dataclass(frozen=True)
class PieceJobs:
    """The study whose pieces are computed, as it is sent to workers."""

    study: Study = field(compare=False)
    path: Path  # of the store
    identity: str  # as JSON; determines the study
    analyses: tuple[Analysis, ...] = field(compare=False)

    @property
    def files(self) -> PieceFiles:
        """Files of the pieces."""
        return PieceFiles(self.path, "study")

    def core(self, piece: Piece) -> str:
        """All that determines a piece besides its key."""
        return core_of(self._identity, piece.swept, piece.value)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return json.loads(self.identity)

    def data(
        self, piece: Piece, report: Report = silent, realisation: Realisation | None = None
    ) -> PieceData:
        """Data of a piece, drawn unless the realisation is."""
        single = self.study.on_grid({} if piece.swept is None else {piece.swept: [piece.value]})
        return PieceData(single, piece.data, self.path, self.core(piece), report, realisation)

    def read(self, piece: Piece) -> xr.Dataset | None:
        """A piece at the temperatures that are computed; None if there are none."""
        tree = self.files.read(piece.name, self.core(piece))
        return None if tree is None else tree.to_dataset()

    def lacking(self, values: xr.Dataset | None) -> list[float]:
        """Temperatures of the study that values of a piece lack."""
        computed = [] if values is None else values["temperature"].values.tolist()
        return [value for value in self.study.temperatures if value not in computed]

    def compute(self, piece: Piece, data: PieceData, template: xr.Dataset, report: Report) -> None:
        """Compute a piece where it is not computed yet, and write its file."""
        # read again: another process may have computed it since the pieces were listed
        values = self.read(piece)
        if missing := self.lacking(values):
            values = compute_piece(piece, data, template, self.analyses, missing, values, report)
            self.files.write(piece.name, values, self.core(piece))


def compute_here(
    jobs: PieceJobs,
    template: xr.Dataset,
    missing: Mapping[Piece, list[float]],
    drawn: dict[Piece, Realisation],
    report: Report,
) -> None:
    """Compute pieces in this process, one after another, at the temperatures that they lack.

    ``drawn`` may hold the realisation of the first; it is emptied, to free the memory.
    """
    points = 0

    def tell(progress: Progress) -> None:
        report(dataclasses.replace(progress, done=points + progress.done))

    # seed by seed, so that one set of data and one problem are in memory
    for data_piece, pieces in groupby(missing, key=lambda piece: piece.data):
        tell(Progress(0, None, f"{data_piece}: data and attention"))
        data = jobs.data(data_piece, tell, drawn.pop(data_piece, None))
        drawn.clear()
        for piece in pieces:
            jobs.compute(piece, data, template, tell)
            points += 0 if piece.width is None else len(missing[piece])


def compute_by_workers(
    jobs: PieceJobs,
    missing: Mapping[Piece, list[float]],
    executor: Executor,
    threads: int | None,
    report: Report,
) -> None:
    """Compute pieces by workers, after the sums over blocks of examples."""
    try:  # an executor would fail later, in a thread, and name neither the task nor the remedy
        pickle.dumps(jobs)
    except Exception as error:  # whatever the objects inside raise
        raise TaskError(
            f"the task {jobs.study.task.name!r} or an analysis cannot be sent to workers ({error})"
            "; define its class in a module that workers can import; its options hold plain data"
        ) from None
    report(Progress(0, None, "waiting for workers"))
    # sums first: with several workers at one seed, each would otherwise sum all of its examples
    sums = [
        (piece, number)
        for piece in dict.fromkeys(piece.data for piece in missing)
        if PieceFiles(jobs.path, "sums").read(piece.name, jobs.core(piece)) is None
        and (blocks := draw_blocks(jobs.data(piece).study.task, piece.seed)) is not None
        for number in range(number_of_parts(len(blocks)))
    ]
    with naming_lost_workers(jobs.path):
        summed = mapped(executor, threads, functools.partial(_sum_part, jobs), sums)
        for count, _ in enumerate(summed, start=1):
            report(Progress(0, None, f"{count / len(sums):.0%} of the examples summed"))
        # of Dask's executor, whose workers come and go, the number is not known
        batches, points = _batches(list(missing), getattr(executor, "_max_workers", 0)), 0
        computed = mapped(executor, threads, functools.partial(_compute_batch, jobs), batches)
        for batch, _ in zip(batches, computed):
            points += sum(len(missing[piece]) for piece in batch if piece.width is not None)
            report(Progress(points, None, "workers compute"))


def _compute_batch(jobs: PieceJobs, pieces: Sequence[Piece]) -> None:
    """Compute pieces in a worker."""
    with _ONE_AT_A_TIME:
        template = unfinished(jobs.path)
        if template is not None:  # else another process has published the study
            for piece in pieces:
                jobs.compute(piece, _worker_data(jobs, piece.data), template, silent)


def _sum_part(jobs: PieceJobs, part: tuple[Piece, int]) -> None:
    """Sum over some blocks of training examples, in a worker."""
    piece, number = part
    with _ONE_AT_A_TIME:
        prepared = _worker_data(jobs, piece)
        library = prepared.library
        sum_part(piece, jobs.path, jobs.core(piece), prepared.data, library, number)


@functools.lru_cache(maxsize=1)
def _worker_data(jobs: PieceJobs, piece: Piece) -> PieceData:
    """Data of a seed, of which a worker has several pieces one after another.

    Raises
    ------
    StoreError
        If the worker, which may run elsewhere, has other code or files than the study.
    """
    prepared = jobs.data(piece)
    expected = single_identity(jobs._identity, piece.swept, piece.value)
    actual = identity_of(prepared.study, [prepared.data.realisation])
    if piece.seed != expected["seeds"][0]:  # the identity has the fingerprint of that seed alone
        actual["drawn"] = expected["drawn"]
    if different := differences(expected, actual, "a worker"):
        raise StoreError(
            f"a worker would compute another study than {jobs.path} ({'; '.join(different)}); "
            "install the same versions everywhere, give absolute paths of files, and start "
            "workers in this folder"
        )
    return prepared


def _batches(pieces: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Batches of pieces for workers, which prepare the data of every seed that they see.

    Every worker computes the same number of complete seeds, so that no data are prepared twice; the
    remaining pieces are batches of their own, so that no worker waits for another.
    """
    seeds = [list(group) for _, group in groupby(pieces, key=lambda piece: piece.data)]
    complete = seeds[: len(seeds) // workers * workers] if workers else []
    return complete + [[piece] for seed in seeds[len(complete) :] for piece in seed]
