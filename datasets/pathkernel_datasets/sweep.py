"""Computing a study: a map over the pieces that are missing, then publishing."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Analysis
from pathkernel_core.hooks import load_plugins
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_datasets.array_libraries import array_library
from pathkernel_datasets.atomic import remove_leftovers
from pathkernel_datasets.computing import Work, compute_by_workers, compute_here
from pathkernel_datasets.damage import Scan, scan
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.labelling import json_attribute
from pathkernel_datasets.lock import lock_of, locked
from pathkernel_datasets.piece_files import Piece, PieceFiles, pieces_of
from pathkernel_datasets.pieces import lacking
from pathkernel_datasets.publishing import check_space, publish_study
from pathkernel_datasets.store import TEMPLATE, check_store, open_store, unfinished, without_values
from pathkernel_datasets.study import OTHER_DATA, Study, differences, grid_of
from pathkernel_datasets.template import study_template
from pathkernel_datasets.watching import supervised

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

    Pieces of the study, each a seed at one width and all temperatures, are files in a folder beside
    the store until all are there; then they are published as one store. More widths, temperatures
    or seeds than the store has extend it, and nothing that it holds is computed again. The grid of
    the store beyond what is asked for is kept, and computed where it is missing.

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
        a bar shows it, on a terminal and in a notebook; elsewhere a line on stderr every minute.

    Returns
    -------
    xarray.Dataset
        All that is computed, lazily once it is published.

    Raises
    ------
    StoreError
        If the store holds another study or cannot be written; or if a worker ended before its work
        was done, or has other code or files.
    TaskError
        If the task or an analysis cannot be sent to workers.
    ValueError
        If there is no such part.
    """
    if not isinstance(study, Study):
        raise TypeError(f"study must be a Study, not {study!r}; call run_study(Study(task), path)")
    array_library(study.backend, study.dtype)  # loaded before its threads are limited
    with supervised(report, threads) as tell:
        compute_study(
            study,
            path,
            analyses=analyses,
            executor=executor,
            part=part,
            threads=threads,
            report=tell,
        )
    return open_store(path)


def compute_study(
    study: Study,
    path: str | os.PathLike,
    *,
    analyses: Iterable[Analysis] | None = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    threads: int | None = 1,
    report: Report = silent,
) -> int:
    """Compute a study as :func:`run_study` does; the number of grid points that were computed."""
    path, part = Path(path).resolve(), part or (1, 1)
    if not 1 <= part[0] <= part[1]:
        raise ValueError(f"part must be a number and how many there are, as (1, 3), not {part}")
    analyses = tuple(load_plugins().analyses.values() if analyses is None else analyses)

    def waiting() -> None:
        report(Progress(0, None, f"waiting for another process that reads or publishes {path}"))

    with locked(path, lock_of(path), waiting=waiting):
        work, published = _begin(study, path, analyses, report)
        pieces = pieces_of(work.study.grid, part)
        lacked = {piece: _lacking(piece, work, published) for piece in pieces}
        missing = {piece: temperatures for piece, temperatures in lacked.items() if temperatures}
        _take_back(missing, work, published)
    total = len(work.study.temperatures) * sum(piece.width is not None for piece in pieces)
    computed = sum(len(missing[piece]) for piece in missing if piece.width is not None)
    _log.info("%s: %d of %d grid points are computed already", path, total - computed, total)

    def tell(here: Progress) -> None:
        report(dataclasses.replace(here, done=total - computed + here.done, total=total))

    template = unfinished(path)
    if template is None:  # nothing is missing
        return 0
    if executor is None:
        compute_here(work, template, missing, tell)
    elif missing:
        tell(Progress(0, None, "waiting for workers"))
        compute_by_workers(work, missing, executor, threads, tell)
    tell(Progress(computed, None, "complete"))
    with locked(path, lock_of(path), waiting=waiting):
        _publish(work, published)
    return computed


def _begin(
    study: Study, path: Path, analyses: tuple[Analysis, ...], report: Report
) -> tuple[Work, Scan]:
    """Check that a store is of this study, and write the template if anything is to be computed.

    Returns
    -------
    work : Work
        On the grid of the store and of what is asked for.
    published : Scan
        What the store holds.
    """
    remove_leftovers(path)
    template, published = unfinished(path), Scan()
    if path.exists() and not _is_empty_folder(path):
        published = scan(path)
        if published.identity is None:
            check_store(path)  # says what it is
    attributes = published.attributes if template is None else template.attrs
    asked, identity = study, None
    if "study" in attributes:
        held = json.loads(attributes["study"])
        begun = study.begun(held)
        identity = begun.identity()
        _check_same(path, held, identity)
        analyses = _stored_analyses(path, attributes, analyses)
        study = study.joined(begun)
        if study != begun:
            _log.info("%s is extended", path)
        _check_results(path, published, study, begun)
        identity = identity if study == begun else None
    else:
        _log.info("%s is begun", path)
    identity = study.identity() if identity is None else identity
    work = Work(study, path, json.dumps(identity, sort_keys=True), analyses)
    faults = [fault for owner, fault in published.faults() if owner == "study"]
    lost = any(_unpublished(piece, work, published) for piece in pieces_of(study.grid))
    if faults:
        warnings.warn(
            f"{path} was damaged ({faults[0]}{', and others' * (len(faults) > 1)}); what is "
            "damaged is computed again",
            StoreWarning,
            stacklevel=4,
        )
    if not lost and not faults:
        work.files.remove()  # left by a process that was killed after it had published
        return work, published
    more = [name for name in study.grid if {*study.along(name)} - {*asked.along(name)}]
    if more:
        warnings.warn(
            f"{path} holds more {' and '.join(f'{name}s' for name in more)} than are asked for; "
            "all of its grid is computed",
            StoreWarning,
            stacklevel=4,
        )
    if template is None or template.attrs["study"] != work.identity:
        report(Progress(0, None, f"seed {study.seeds[0]}: data and attention"))
        template = study_template(study, analyses)
        check_space(path, template.nbytes)
        work.files.write(TEMPLATE, without_values(template), "")
    return work, published


def _unpublished(piece: Piece, work: Work, published: Scan) -> list[float]:
    """Temperatures of a piece that are not in the store."""
    known = published.temperatures if published.holds(piece, work.core(piece)) else []
    return [temperature for temperature in work.study.temperatures if temperature not in known]


def _lacking(piece: Piece, work: Work, published: Scan) -> list[float]:
    """Temperatures of a piece that are not in its file; without one, in the store."""
    unpublished = _unpublished(piece, work, published)
    held = work.read(piece) if unpublished else None
    return unpublished if held is None else lacking(work.study, held)


def _take_back(pieces: Iterable[Piece], work: Work, published: Scan) -> None:
    """Make files of pieces of which the store holds some temperatures."""
    for piece in pieces:
        if piece.name not in work.files and published.holds(piece, work.core(piece)):
            values = published.read(piece, work.core(piece))
            work.files.write(piece.name, values, work.core(piece))


def _publish(work: Work, published: Scan) -> None:
    """Publish a study if all of its pieces are there."""
    template = unfinished(work.path)
    if template is None:  # another process has published it
        work.files.remove()
        return
    if grid_of(json.loads(template.attrs["study"])) != grid_of(json.loads(work.identity)):
        return  # another process computes a larger grid
    pieces = pieces_of(work.study.grid)
    if any(_lacking(piece, work, published) for piece in pieces):
        return  # other parts are missing

    def read(piece: Piece) -> xr.Dataset:
        if not _unpublished(piece, work, published):
            return published.read(piece, work.core(piece))
        values = work.read(piece)
        if values is None:
            raise StoreError(
                f"the piece {piece} of {work.path} is damaged; run the same command again"
            )
        return values

    publish_study(work.path, template, pieces, read)
    work.files.remove()
    sums = PieceFiles(work.path, "sums")
    sums.remove(name for name in sums.names() if "/" in name)  # parts of totals


def _check_same(path: Path, held: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Check that a store, or the pieces beside it, are of this study."""
    different = differences(held, identity, "this run")
    if different:
        other_data = different[-1].startswith(OTHER_DATA)
        raise StoreError(
            f"{path} holds another study and is left as it is ({'; '.join(different)}). Choose "
            "another file (--out on the command line)"
            + ("" if other_data else ", or run with the store's own settings to resume it")
        )


def _check_results(path: Path, published: Scan, study: Study, begun: Study) -> None:
    """Check that results of a store of a single value do not get several."""
    if published.results and study.sweep.keys() - begun.sweep.keys():
        raise StoreError(
            f"{path} holds results of a single value of {next(iter(study.sweep))} "
            f"({', '.join(sorted(published.results))}), which do not go with several; choose "
            "another file"
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


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
