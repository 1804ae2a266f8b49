"""Computing missing pieces of a study: in this process, or by workers."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import xarray as xr
from threadpoolctl import threadpool_limits

from pathkernel_core.analysis import Analysis
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.piece_files import Piece, PieceFiles
from pathkernel_datasets.pieces import Draw, compute_piece, lacking
from pathkernel_datasets.prepared import expected_seconds
from pathkernel_datasets.store import unfinished
from pathkernel_datasets.study import Study, core_of, draw_blocks, fingerprint, task_versions
from pathkernel_datasets.sums import number_of_parts, sum_part
from pathkernel_datasets.workers import check_sendable, telling_of_lost_workers

_SECONDS = 5.0  # between looks at what workers have written

_ONE_AT_A_TIME = threading.Lock()  # of a worker's threads, which share the linear algebra's

_OF_WORKERS = {  # entries of a study's identity: what is wrong where they differ, and the remedy
    "versions": ("has another version of the code", "install the same everywhere"),
    "provenance": (
        "finds other files",
        "give their absolute paths, and start workers in this folder",
    ),
    "drawn": ("draws other data", "its code has changed: install the same everywhere"),
}


@dataclass(frozen=True)
class Work:
    """A study whose pieces are computed, as workers get it.

    Attributes
    ----------
    study : Study
    path : Path
        Store; the pieces go into the folder beside it.
    identity : str
        Of the study, as JSON.
    analyses : tuple of Analysis
    """

    study: Study
    path: Path
    identity: str
    analyses: tuple[Analysis, ...]

    @property
    def files(self) -> PieceFiles:
        """Files of the pieces."""
        return PieceFiles(self.path, "study")

    def core(self, piece: Piece) -> str:
        """All that determines a piece besides its key."""
        return core_of(json.loads(self.identity), piece.swept, piece.value)

    def single(self, piece: Piece) -> Study:
        """The study of the piece's value of the option that has several."""
        return self.study.on_grid({} if piece.swept is None else {piece.swept: [piece.value]})

    def draw(self, piece: Piece, report: Report = silent) -> Draw:
        """Data of a piece."""
        return Draw.of(self.single(piece), piece, self.path, self.core(piece), report)

    def read(self, piece: Piece) -> xr.Dataset | None:
        """A piece at the temperatures that are computed; None if there are none."""
        return self.files.read(piece.name, self.core(piece))

    def write(self, piece: Piece, draw: Draw, template: xr.Dataset, report: Report) -> None:
        """Compute a piece where it is not computed yet, and write its file."""
        values = compute_piece(piece, draw, template, self.analyses, self.read(piece), report)
        self.files.write(piece.name, values, self.core(piece))


def compute_here(
    work: Work, template: xr.Dataset, missing: Mapping[Piece, Sequence[float]], report: Report
) -> None:
    """Compute pieces in this process, one after another.

    Parameters
    ----------
    work : Work
    template : Dataset
        Of the study.
    missing : mapping of Piece to sequence of float
        Pieces, and the temperatures at which they are not computed.
    report : callable
        Called with a Progress in grid points of these pieces.
    """
    expected, done = math.nan, 0

    def tell(here: Progress) -> None:
        report(dataclasses.replace(here, done=done + here.done, expected=expected))

    for data, group in groupby(missing, key=lambda piece: piece.data):
        tell(Progress(0, None, f"{data}: data and attention"))
        draw = work.draw(data, tell)
        if math.isnan(expected):
            widths = [piece.width for piece in missing for _ in missing[piece]]
            expected = expected_seconds(draw.data, [width for width in widths if width])
        for piece in group:
            work.write(piece, draw, template, tell)
            done += 0 if piece.width is None else len(missing[piece])


def compute_by_workers(
    work: Work,
    missing: Mapping[Piece, Sequence[float]],
    executor: Executor,
    threads: int | None,
    report: Report,
) -> None:
    """Let the workers of an executor compute pieces; parameters as for :func:`compute_here`."""
    task = work.study.task
    things = {f"the analysis {analysis.name!r}": analysis for analysis in work.analyses}
    check_sendable(executor, {f"the task {task.name!r}": task} | things)
    with telling_of_lost_workers(work.path):
        parts = [
            (data, number)
            for data in dict.fromkeys(piece.data for piece in missing)
            if data.name not in PieceFiles(work.path, "sums")
            and (blocks := draw_blocks(work.single(data).task, data.seed)) is not None
            for number in range(number_of_parts(len(blocks)))
        ]
        for count in _mapped(executor, functools.partial(_sum_part, work, threads), parts):
            report(Progress(0, None, f"{count / len(parts):.0%} of the examples summed"))
        batches = _batches(list(missing), getattr(executor, "_max_workers", 0))
        compute = functools.partial(_compute_pieces, work, threads)
        before = {piece: work.files.written(piece.name) for piece in missing}
        for _ in _mapped(executor, compute, batches):
            done = sum(
                len(missing[piece])
                for piece in missing
                if piece.width is not None and work.files.written(piece.name) != before[piece]
            )
            report(Progress(done, None, "workers compute"))


def _mapped(executor: Executor, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Any:
    """Call a function for every argument, by workers; yields again and again how many are done."""
    futures = [executor.submit(function, argument) for argument in arguments]
    pending = set(futures)
    try:
        while pending:
            done, pending = wait(pending, _SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            yield len(futures) - len(pending)
    finally:
        for future in pending:
            future.cancel()


def _compute_pieces(work: Work, threads: int | None, pieces: Sequence[Piece]) -> None:
    """Compute pieces in a worker."""
    with _ONE_AT_A_TIME, threadpool_limits(limits=threads):
        template = unfinished(work.path)
        if template is None:  # another process has published the study meanwhile
            return
        for piece in pieces:
            if lacking(work.study, work.read(piece)):
                work.write(piece, _last_draw(work, piece.data), template, silent)


def _sum_part(work: Work, threads: int | None, part: tuple[Piece, int]) -> None:
    """Sum over some blocks of training examples, in a worker."""
    data, number = part
    with _ONE_AT_A_TIME, threadpool_limits(limits=threads):
        draw = _last_draw(work, data)
        files = PieceFiles(work.path, "sums")
        sum_part(data.name, work.core(data), files, draw.data, draw.library, number)


@functools.lru_cache(maxsize=1)
def _last_draw(work: Work, data: Piece) -> Draw:
    """A worker has several pieces of the same data, one after another."""
    identity = json.loads(work.identity)
    expected = identity
    if data.swept in identity.get("sweep", {}):
        expected = identity | identity["sweep"][data.swept][str(data.value)]
    task = work.single(data).task
    _check_worker("versions", task_versions(task), expected)
    _check_worker("provenance", task.provenance(), expected)
    draw = work.draw(data)
    if data.seed == identity["seeds"][0]:
        _check_worker("drawn", fingerprint(draw.data.realisation), expected)
    return draw


def _check_worker(entry: str, here: Any, expected: Mapping[str, Any]) -> None:
    """Check that a worker, which may run elsewhere, has the code and files of the study."""
    if here != expected[entry]:
        what, remedy = _OF_WORKERS[entry]
        raise StoreError(
            f"a worker {what} than the study was begun with ({json.dumps(here)} instead of "
            f"{json.dumps(expected[entry])}); {remedy}"
        )


def _batches(pieces: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Pieces that one worker computes, which has to prepare the data of each seed.

    As many whole seeds for all workers as there are for each, so that nothing is prepared twice;
    the others in single pieces, so that no worker waits for another.
    """
    seeds = [list(group) for _, group in groupby(pieces, key=lambda piece: piece.data)]
    whole = seeds[: len(seeds) // workers * workers] if workers else []
    return whole + [[piece] for seed in seeds[len(whole) :] for piece in seed]
