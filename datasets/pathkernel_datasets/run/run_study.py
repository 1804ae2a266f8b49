"""Computing a study into its folder: a map over the pieces that are missing, then publishing."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import xarray as xr

from pathkernel_core.contracts.analysis import Analysis
from pathkernel_core.contracts.hooks import load_plugins
from pathkernel_core.system.local_files import check_local
from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_datasets.folder.lock import lock_of, unwritable_error, waiting_lock
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.study_folder import (
    DESCRIPTION,
    PIECES,
    STUDY,
    described_study,
    remove_empty,
)
from pathkernel_datasets.folder.sweep_folder import SweepFolder, folder_of
from pathkernel_datasets.run.comparing import begin
from pathkernel_datasets.run.computing import Job, compute_by_workers, compute_here
from pathkernel_datasets.run.progress_bar import supervised
from pathkernel_datasets.study.prepared import array_library
from pathkernel_datasets.study.study import Study

_log = logging.getLogger("pathkernel.study")


def run_study(
    study: Study,
    path: str | os.PathLike,
    *,
    analyses: Iterable[Analysis] | None = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    threads: int | None = 1,
    report: Report | None = None,
) -> xr.Dataset:
    """Compute a study into a folder, or resume an interrupted run.

    The study is computed in pieces, one per seed and width with all temperatures. They are files in
    the folder until all are complete; then they become one Zarr, ``study.zarr``. New widths,
    temperatures or seeds extend the study, and no point is computed twice. Points of the folder
    that the study does not name stay, and are computed if they are missing. Every one of several
    values of an option has a folder of its own inside, such as ``examples-50``; ``study.zarr`` is
    then their joined dataset.

    Parameters
    ----------
    study : Study
    path : path
        Folder to make, to resume or to extend.
    analyses : iterable of Analysis, optional
        Analyses whose variables the dataset also holds; by default all that are registered, as on
        the command line. A study that was begun with others keeps those.
    executor : concurrent.futures.Executor, optional
        Workers to compute the pieces: processes, such as those of
        :func:`pathkernel_datasets.run.workers.processes`, or those of Dask. They write into the
        folder themselves, so that it must be where all of them see it.
    part : tuple of int, optional
        Compute one part of the study only, such as (1, 3), the first of three. Other processes,
        which share the file system, compute the others, at the same time or later; the one that
        completes the study publishes it.
    threads : int, optional
        Threads of the linear algebra on the CPU, of every worker; None leaves their number as it
        is.
    report : callable, optional
        Called with a Progress before every step, not at all if nothing was left to do. By default
        a bar shows it, on a terminal and in a notebook.

    Returns
    -------
    xarray.Dataset
        All that is computed, lazily once it is published.

    Raises
    ------
    StudyError
        If the folder holds another study or cannot be written; or if a worker ended early,
        or has other code or files.
    TaskError
        If the task or an analysis cannot be sent to workers, or the values of an option that has
        several do not fit into one dataset.
    ValueError
        If there is no such part.

    Notes
    -----
    If a run is interrupted or a worker is lost, call it again: what is computed is never computed
    twice. If the folder holds another study, the message names the differences; give the same
    settings, or another path. Begin workers inside of ``if __name__ == "__main__":``, and define
    tasks of your own in a module, or the workers cannot import them. Points that fail do not stop a
    study: look at ``dataset.status`` before its values.

    Examples
    --------
    >>> import pathkernel as pk
    >>> task = pk.HiddenMarkov(examples=20, test_examples=20)
    >>> dataset = pk.run_study(pk.Study(task, widths=(10, 100), seeds=(0, 1)), "small")
    >>> dataset["accuracy"].sel(width=10).dims
    ('seed', 'temperature', 'test_set')
    """
    if not isinstance(study, Study):
        raise TypeError(f"study must be a Study, not {study!r}; call run_study(Study(task), path)")
    array_library(study.backend, study.dtype)  # loaded before its threads are limited
    with supervised(report, threads) as tell:
        compute_study(study, path, analyses, executor, part, threads, tell)
    return open_study(path)


def compute_study(
    study: Study,
    path: str | os.PathLike,
    analyses: Iterable[Analysis] | None = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    threads: int | None = 1,
    report: Report = silent,
) -> int:
    """Compute a study as :func:`run_study` does; return the number of grid points computed."""
    check_local(path)
    path, part = Path(os.path.realpath(path)), part or (1, 1)
    if not 1 <= part[0] <= part[1]:
        raise ValueError(f"part must be a number and how many there are, as (1, 3), not {part}")
    analyses = tuple(load_plugins().analyses.values() if analyses is None else analyses)
    # The lock is held while the study is compared with its folder, and while it is published, not
    # in between: parts compute at the same time, and pieces are whole or absent without a lock
    with _folder(path), waiting_lock(path, report):
        computations, first_seeds, is_complete = begin(study, path, analyses, report)
    if is_complete:
        return 0
    jobs = _part([(one, piece) for one in computations for piece in one.folder.pieces], part)
    missing = {}
    for one, piece in jobs:
        if lacking := one.folder.missing_temperatures(piece, one.is_sound):
            missing[one, piece] = lacking
    total = sum(len(one.study.temperatures) for one, piece in jobs if piece.width is not None)
    computed = sum(len(missing[job]) for job in missing if job[1].width is not None)
    _log.info("%s: %d of %d grid points are computed already", path, total - computed, total)

    def tell(progress: Progress) -> None:  # of this part, with what earlier runs have computed
        points = total - computed + progress.done
        report(dataclasses.replace(progress, done=points, total=total))

    if executor is None:
        compute_here(missing, first_seeds.drawn, tell)
    elif missing:
        compute_by_workers(missing, executor, threads, tell)
    tell(Progress(computed, None, "complete"))
    with waiting_lock(path, report):
        _publish(path, [one.folder.path for one in computations], report)
    return computed


def _part(jobs: Sequence[Job], part: tuple[int, int]) -> Sequence[Job]:
    """A part of the pieces, such as (1, 3), the first of three; parts are of equal size."""
    # a run of pieces, so that a part prepares the data of few seeds
    first, last = (len(jobs) * number // part[1] for number in (part[0] - 1, part[0]))
    return jobs[first:last]


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder, which goes again if there is an error before anything is in it."""
    is_new = not os.path.lexists(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable_error(path, error.strerror) from error
    try:
        yield
    except BaseException:
        if not any((path / name).exists() for name in (DESCRIPTION, STUDY, PIECES)):
            for lock in (*path.glob("*/.lock"), lock_of(path)):
                lock.unlink(missing_ok=True)
            if is_new:
                remove_empty(path)
        raise


def _publish(path: Path, folders: Iterable[Path], report: Report = silent) -> None:
    """Publish the studies of which all pieces are there, and join them."""
    for inside in folders:
        with waiting_lock(inside, report) if inside != path else nullcontext():
            # the lock was free meanwhile: others may have extended the study, or published it
            if (template := described_study(inside)) is not None:
                folder = folder_of(inside, template.attrs["study"])
                if folder.in_progress:
                    folder.publish()
                else:
                    folder.end()  # computed at the same time by another process
    if (template := described_study(path)) is not None:
        sweep = folder_of(path, template.attrs["study"])
        if isinstance(sweep, SweepFolder) and sweep.in_progress:
            sweep.publish()
