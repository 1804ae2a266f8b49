"""Computing a study: a map over the pieces that are missing, then publishing."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Analysis
from pathkernel_core.atomic import remove_leftovers
from pathkernel_core.hooks import load_plugins
from pathkernel_core.local_files import check_local
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_core.task import Realisation
from pathkernel_datasets.array_libraries import array_library
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.identity import OTHER_DATA, differences, grid_of, identity_of
from pathkernel_datasets.labelling import json_attribute
from pathkernel_datasets.lock import locked
from pathkernel_datasets.piece_jobs import PieceJobs, compute_by_workers, compute_here
from pathkernel_datasets.pieces import Piece, PieceFiles, pieces_folder, pieces_of
from pathkernel_datasets.progress_bar import supervised
from pathkernel_datasets.published import METADATA, Published
from pathkernel_datasets.publishing import publish_study
from pathkernel_datasets.store import (
    TEMPLATE,
    check_regular,
    check_store,
    open_store,
    read_piece,
    unfinished,
)
from pathkernel_datasets.study import Study, draw
from pathkernel_datasets.swept_option import described
from pathkernel_datasets.template import SCHEMA_VERSION, on_grid, study_template

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
    """Compute a study into a Zarr store, or resume an interrupted run.

    The study is computed in pieces, one per seed and width with all temperatures. They are files in
    a folder next to the store until all are complete; then they become one store. New widths,
    temperatures or seeds extend the store, and no point is computed twice. Points of the store that
    the study does not name stay, and are computed if they are missing.

    Parameters
    ----------
    study : Study
    path : path
        Store to make, to resume or to extend.
    analyses : iterable of Analysis, optional
        Analyses whose variables the store also holds; by default all that are registered, as on
        the command line. A store that was begun with others keeps those.
    executor : concurrent.futures.Executor, optional
        Workers to compute the pieces: processes, such as those of
        :func:`pathkernel_datasets.workers.processes`, or those of Dask. They write into the folder
        of pieces themselves, so that it must be where all of them see it.
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
    StoreError
        If the store holds another study or cannot be written; or if a worker ended early,
        or has other code or files.
    TaskError
        If the task or an analysis cannot be sent to workers.
    ValueError
        If there is no such part.

    Notes
    -----
    If a run is interrupted or a worker is lost, call it again: what is computed is never computed
    twice. If the store holds another study, the message names the differences; give the same
    settings, or another path. Begin workers inside of ``if __name__ == "__main__":``, and define
    tasks of your own in a module, or the workers cannot import them. Points that fail do not stop a
    study: look at ``dataset.status`` before its values.

    Examples
    --------
    >>> import pathkernel as pk
    >>> task = pk.HiddenMarkov(examples=20, test_examples=20)
    >>> dataset = pk.run_study(pk.Study(task, widths=(10, 100), seeds=(0, 1)), "small.zarr")
    >>> dataset["accuracy"].sel(width=10).dims
    ('seed', 'temperature', 'test_set')
    """
    if not isinstance(study, Study):
        raise TypeError(f"study must be a Study, not {study!r}; call run_study(Study(task), path)")
    array_library(study.backend, study.dtype)  # loaded before its threads are limited
    with supervised(report, threads) as tell:
        compute_study(study, path, analyses, executor, part, threads, tell)
    return open_store(path)


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

    def waiting() -> None:
        report(Progress(0, None, f"waiting for another process that reads or publishes {path}"))

    # The lock is held while the study is compared with its store, and while it is published, not in
    # between: parts compute at the same time, and pieces are whole or absent without a lock
    with locked(path, wait=True, waiting=waiting):
        remove_leftovers(path)
        check_regular(pieces_folder(path))
        published = Published(path)
        published.check_writable()
        jobs, template, drawn = _begin(study, path, analyses, published, report)
        if template is None:
            return 0
        pieces = pieces_of(jobs.study.grid, part)
        missing = _missing(pieces, jobs, published)
    total = len(jobs.study.temperatures) * sum(piece.width is not None for piece in pieces)
    computed = sum(len(missing[piece]) for piece in missing if piece.width is not None)
    _log.info("%s: %d of %d grid points are computed already", path, total - computed, total)

    def tell(progress: Progress) -> None:  # of this part, with what earlier runs have computed
        points = total - computed + progress.done
        report(dataclasses.replace(progress, done=points, total=total))

    if executor is None:
        compute_here(jobs, template, missing, drawn, tell)
    elif missing:
        compute_by_workers(jobs, missing, executor, threads, tell)
    tell(Progress(computed, None, "complete"))
    with locked(path, wait=True, waiting=waiting):
        _publish(jobs, template, published)
    return computed


def _begin(
    study: Study, path: Path, analyses: tuple[Analysis, ...], published: Published, report: Report
) -> tuple[PieceJobs, xr.Dataset | None, dict[Piece, Realisation]]:
    """Compare a study with its store, and write the template if anything is to be computed.

    Returns
    -------
    jobs : PieceJobs
        On the grid of the store and of the study.
    template : Dataset or None
        None if the store is complete.
    drawn : dict
        Realisation of the first piece if the template has been written, else empty.
    """
    version = published.attributes.get("schema_version", SCHEMA_VERSION)
    is_empty = not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir()))
    if version != SCHEMA_VERSION or (published.identity is None and not is_empty):
        check_store(path)  # raises
    # an interrupted run has a template beside the store, whose grid may be larger: it goes first
    template, drawn = unfinished(path), dict[Piece, Realisation]()
    attributes = published.attributes if template is None else template.attrs
    joined, stored = study, None
    if "study" in attributes:
        stored_identity = json.loads(attributes["study"])
        stored = _on_grid_of(study, stored_identity)
        identity = identity_of(stored)
        _check_same(path, stored_identity, identity)
        analyses = _stored_analyses(path, attributes, analyses)
        joined = study.joined(stored)
        _check_results(path, joined, stored)
    if damage := published.study_damage:
        _warn(
            f"{path} was damaged ({damage[0]}{', and others' * (len(damage) > 1)}); what is "
            "damaged is computed again"
        )
    if joined == stored:
        jobs = PieceJobs(joined, path, json.dumps(identity, sort_keys=True), analyses)
        if _is_published(jobs, published):
            jobs.files.remove()  # left by a process that was killed after it had published
            _log.info("%s is complete", path)
            return jobs, None, drawn
    if excess := [name for name in joined.grid if {*joined.along(name)} - {*study.along(name)}]:
        _warn(
            f"{path} holds more values of {' and '.join(map(described, excess))} than are asked "
            "for; all of its grid is computed. For a smaller study choose another file (--out)"
        )
    if joined != stored or template is None:
        _log.info("%s is %s", path, "begun" if stored is None else "extended or mended")
        report(Progress(0, None, f"seed {joined.seeds[0]}: data and attention"))
        # shapes and labels are known only from data; those of the first piece are passed on to it
        realisations = [draw(single.task, joined.seeds[0]) for single in joined.singles]
        drawn[pieces_of(joined.grid)[0]] = realisations[0]
        template = study_template(joined, analyses, realisations)
        jobs = PieceJobs(joined, path, template.attrs["study"], analyses)
        jobs.files.write(TEMPLATE, on_grid(template, {"seed": []}).copy(), "")
    return jobs, template, drawn


def _is_published(jobs: PieceJobs, published: Published) -> bool:
    """Whether the store holds all of a study, undamaged."""
    identity = published.identity
    complete = identity is not None and grid_of(identity) == grid_of(json.loads(jobs.identity))
    return complete and not published.study_damage


def _missing(
    pieces: Iterable[Piece], jobs: PieceJobs, published: Published
) -> dict[Piece, list[float]]:
    """Pieces that are to be computed, and at which temperatures.

    Those that the store holds at some temperatures become files.
    """
    missing = {}
    for piece in pieces:
        values = read_piece(piece, jobs.core(piece), jobs.files, published)
        if temperatures := jobs.lacking(values):
            missing[piece] = temperatures
            if values is not None:
                jobs.files.write(piece.name, values, jobs.core(piece))
    return missing


def _publish(jobs: PieceJobs, template: xr.Dataset, published: Published) -> None:
    """Publish a study if all of its pieces are there."""
    # the lock was free meanwhile: the study may have been published or extended by others
    latest = unfinished(jobs.path)
    if latest is None:
        if _is_published(jobs, Published(jobs.path)):
            jobs.files.remove()
            return
    elif grid_of(json.loads(latest.attrs["study"])) != grid_of(json.loads(jobs.identity)):
        return  # another process computes a larger grid

    def read(piece: Piece) -> xr.Dataset:
        values = read_piece(piece, jobs.core(piece), jobs.files, published)
        if values is None or jobs.lacking(values):  # raised within the writing, which it undoes
            raise _MissingPieceError
        return values

    with suppress(_MissingPieceError):
        publish_study(jobs.path, template, pieces_of(jobs.study.grid), read)
        jobs.files.remove()
        sums = PieceFiles(jobs.path, "sums")
        sums.remove(name for name in sums.names() if "/" in name)  # parts of totals


class _MissingPieceError(Exception):
    """A piece is missing that another process is to compute."""


def _on_grid_of(study: Study, stored: Mapping[str, Any]) -> Study:
    """A study on the grid of a store, by the identity of the study that it holds."""
    # a store of a single value, asked for several: its own value joins them
    options = study.options
    single = {name: [stored["options"].get(name, options[name])] for name in study.sweep}
    grid = single | grid_of(stored)
    return study.on_grid({name: grid[name] for name in grid if name in {*study.grid, *options}})


def _check_same(path: Path, stored: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Check that a store, or the pieces beside it, are of this study."""
    if different := differences(stored, identity, "this run"):
        other_data = different[-1].startswith(OTHER_DATA)
        raise StoreError(
            f"{path} holds another study and is left as it is ({'; '.join(different)}). Choose "
            "another file (--out on the command line)"
            + ("" if other_data else ", or run with the store's own settings to resume it")
        )


def _check_results(path: Path, study: Study, stored: Study) -> None:
    """Check that results of a store of a single value do not get several."""
    results = sorted({file.relative_to(path).parts[0] for file in path.glob(f"*/*/{METADATA}")})
    if results and study.sweep.keys() - stored.sweep.keys():
        raise StoreError(
            f"{path} holds results of a single value of {next(iter(study.sweep))} "
            f"({', '.join(results)}), which do not go with several; choose another file"
        )


def _stored_analyses(
    path: Path, attributes: Mapping[str, Any], analyses: tuple[Analysis, ...]
) -> tuple[Analysis, ...]:
    """Analyses that the store was begun with; plugins that came later do not touch it."""
    if "analyses" not in attributes:  # lost
        return analyses
    available = {analysis.name: analysis for analysis in analyses}
    names = json_attribute(attributes, "analyses")
    missing = [name for name in names if name not in available]
    if missing:
        raise StoreError(
            f"{path} was begun with the analysis {', '.join(missing)}, which is not available; "
            "install its plugin to resume it, or choose another file"
        )
    return tuple(available[name] for name in names)


def _warn(message: str) -> None:
    warnings.warn(message, StoreWarning, stacklevel=5)
