"""Computing a study into its store: what is there already, what is not, and who computes it."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from itertools import groupby
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Analysis, Situation
from pathkernel_core.hooks import load_plugins
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_datasets.array_libraries import ArrayLibrary, array_library
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.evaluation import AnalysisError
from pathkernel_datasets.groups import part_writer
from pathkernel_datasets.pieces import (
    Drawn,
    Piece,
    compute_pieces,
    draws_of,
    fill,
    is_complete,
    lacking,
    pieces_of,
    sum_examples,
)
from pathkernel_datasets.prepared import PreparedData, expected_seconds, prepare_data
from pathkernel_datasets.schema import (
    KNOWN_DIMENSIONS,
    analysis_variables,
    coordinates,
    core_variables,
    validation_variables,
)
from pathkernel_datasets.store import Store, check_store, open_store
from pathkernel_datasets.study import Study, versions
from pathkernel_datasets.swept import Layout, joined_layout, label_of
from pathkernel_datasets.watching import supervised
from pathkernel_datasets.workers import check_sendable, telling_of_lost_workers

_log = logging.getLogger("pathkernel.study")

_SECONDS = 5.0  # between looks at what workers have written
_RECORDED_VERSIONS = ("pathkernel", "numpy", "scipy", "array-api-compat", "jax", "torch", "cupy")


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
    """Compute a study into a Zarr store, or go on where an earlier run stopped.

    More widths, temperatures or seeds than the store has extend it, and nothing that it holds is
    computed again; what it has beyond those that are asked for is computed too.

    Parameters
    ----------
    study : Study
    path : path
        Store to make or to go on with.
    analyses : iterable of Analysis, optional
        Analyses whose variables the store also holds; by default all that are registered, as on
        the command line. A store that was begun with others goes on with those.
    executor : concurrent.futures.Executor, optional
        Workers to compute the study, each a seed at one width at a time: processes, such as those
        of :func:`pathkernel_datasets.workers.processes`, or those of Dask. They write into the
        store themselves, so that it must be where all of them see it; it comes out the same.
    part : tuple of int, optional
        Compute one part of the study only, such as (1, 3), the first of three. Other processes,
        which share the file system, compute the others, at the same time or later; the store comes
        out the same.
    threads : int, optional
        Threads of the linear algebra on the CPU, of every worker; None leaves their number as it
        is.
    report : callable, optional
        Called with a Progress before every step, not at all if nothing was left to do. By default
        a bar shows it, on a terminal and in a notebook; elsewhere a line on stderr every minute.

    Returns
    -------
    xarray.Dataset
        All that the store holds, lazily.

    Raises
    ------
    StoreError
        If the store is damaged, holds another study, or cannot be written, or another process
        writes into it; or if a worker ended before its work was done, or has other code or files.
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
    path = Path(path)
    analyses = tuple(load_plugins().analyses.values() if analyses is None else analyses)
    library = array_library(study.backend, study.dtype)

    def waiting() -> None:
        report(Progress(0, None, f"waiting for another part of {path} that begins"))

    with part_writer(path, part, waiting) as (alone, let_others_in):
        store: Any = None
        drawn: Drawn | None = None
        if path.exists() and not _is_empty_folder(path):
            held = check_store(path)
            begun = study.begun(held)
            store = Store.resume(path, held, begun.identity(), compare=alone)
            analyses = _stored_analyses(store, analyses)
            study = study.joined(begun)
        mine = pieces_of(study, part or (1, 1))
        total = len(study.temperatures) * sum(piece.width is not None for piece in mine)
        done, computed, expected = 0, 0, math.nan

        def tell(here: Progress) -> None:
            at = done + computed + here.done
            report(dataclasses.replace(here, done=at, total=total, expected=expected))

        if store is None or study != begun:
            _log.info("%s is %s", path, "begun" if store is None else "extended")
            if not alone:
                raise StoreError(
                    f"parts of {path} are being computed on another grid; wait until they end"
                )
            first = next(draws_of(study))
            tell(Progress(0, total, f"{first.words}: data and attention"))
            if store is None and executor is None and (part or (1, 1))[0] == 1:
                drawn = Drawn.of(first, path, tell)  # for its pieces, too
            data = _prepared_for_layout(first.study, library) if drawn is None else drawn.data
            store = _create(path, study, data, analyses, library, store)
        let_others_in()
        pieces = [piece for piece in mine if not is_complete(piece, store)]
        done = total - sum(lacking(piece, store).size for piece in pieces)
        _log.info("%s: %d of %d grid points are computed already", path, done, total)
        if executor is None:
            try:
                for piece in pieces:
                    if drawn is None or drawn.draw.place != piece.draw.place:
                        tell(Progress(0, total, f"{piece.draw.words}: data and attention"))
                        drawn = Drawn.of(piece.draw, path, tell)
                    if math.isnan(expected):
                        expected = expected_seconds(drawn.data, _widths_lacking(pieces, store))
                    computed += fill(piece, store, drawn, analyses, tell)
            finally:
                store.flush()
        elif pieces:
            tell(Progress(0, total, "waiting for workers"))
            for points in _distributed(executor, store, pieces, analyses, threads, tell):
                computed = points
                tell(Progress(0, total, "workers compute"))
        if pieces:
            tell(Progress(0, total, "complete"))
        return computed


def _widths_lacking(pieces: Sequence[Piece], store: Store) -> list[float]:
    """Width of every grid point that is to be computed."""
    return [
        piece.draw.study.widths[piece.width]
        for piece in pieces
        if piece.width is not None
        for _ in lacking(piece, store)
    ]


def _prepared_for_layout(single: Study, library: ArrayLibrary) -> PreparedData:
    return prepare_data(single, single.seeds[0], library, training_only=True)


def _distributed(
    executor: Executor,
    store: Store,
    pieces: Sequence[Piece],
    analyses: tuple[Analysis, ...],
    threads: int | None,
    report: Report,
) -> Iterator[int]:
    """Let workers compute pieces; now and then, how many of their grid points are computed."""
    task = pieces[0].draw.study.task
    things = {f"the analysis {analysis.name!r}": analysis for analysis in analyses}
    check_sendable(executor, {f"the task {task.name!r}": task} | things)
    missing = sum(lacking(piece, store).size for piece in pieces)
    path = store.path.resolve()
    with telling_of_lost_workers(store.path):
        for draw in dict.fromkeys(piece.draw for piece in pieces):
            sum_examples(executor, draw, path, store.identity, threads, report)
    shared = (path, store.identity, analyses, threads)
    batches = _batches(pieces, getattr(executor, "_max_workers", 0))
    futures = [executor.submit(compute_pieces, batch, *shared) for batch in batches]
    pending = set(futures)
    try:
        with telling_of_lost_workers(store.path):
            while pending:
                done, pending = wait(pending, _SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                store.forget_markers()
                yield missing - sum(lacking(piece, store).size for piece in pieces)
    finally:
        for future in futures:
            future.cancel()
        wait(futures)  # while the store is ours


def _batches(pieces: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Pieces that one worker computes, which has to prepare the data of each draw.

    As many whole draws for all workers as there are for each, so that nothing is prepared twice;
    what is left in single pieces, so that no worker waits for another.
    """
    draws = [list(group) for _, group in groupby(pieces, key=lambda piece: piece.draw.place)]
    largest = max(map(len, draws))
    whole = [draw for draw in draws if len(draw) == largest]
    whole = whole[: len(whole) // workers * workers] if workers else []
    taken = {draw[0].draw.place for draw in whole}
    return whole + [[piece] for piece in pieces if piece.draw.place not in taken]


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _stored_analyses(store: Store, analyses: tuple[Analysis, ...]) -> tuple[Analysis, ...]:
    """Analyses that the store was begun with; plugins that came later do not touch it."""
    available = {analysis.name: analysis for analysis in analyses}
    missing = [name for name in store.analyses if name not in available]
    if missing:
        raise StoreError(
            f"{store.path} was begun with the analysis {', '.join(missing)}, which is not "
            "available; install its plugin to go on, or choose another file"
        )
    return tuple(available[name] for name in store.analyses)


def _create(
    path: Path,
    study: Study,
    data: PreparedData,
    analyses: tuple[Analysis, ...],
    library: ArrayLibrary,
    held: Store | None,
) -> Store:
    layouts, realisations = [], []
    for place, single in enumerate(study.singles):  # before any is computed
        drawn = _prepared_for_layout(single, library) if place else data
        label = label_of(single.task, study.sweep)
        layouts.append(_layout(single, label, drawn, analyses, library))
        realisations.append(drawn.realisation)
    layout = joined_layout(study, layouts) if study.sweep else layouts[0]
    whole = (layout.variables, layout.coordinates, layout.attributes)
    return Store.create(path, *whole, study.identity(realisations), held)


def _layout(
    study: Study,
    label: str,
    data: PreparedData,
    analyses: tuple[Analysis, ...],
    library: ArrayLibrary,
) -> Layout:
    """What the store of a study holds."""
    network = data.network
    situation = Situation(data.realisation, data.xi, data.labels, network)
    extra: dict[str, Any] = {}
    meanings: dict[str, str] = {}
    for analysis in analyses:
        meanings |= analysis.dimensions
        extra |= analysis.coordinates(situation)
        _check_dimensions(analysis, extra)
    kind = str(data.realisation.kind)
    variables = [
        *core_variables(network.outputs, kind, network.has_skips),
        *(validation_variables(kind) if data.realisation.validation is not None else ()),
        *(variable for analysis in analyses for variable in analysis_variables(analysis)),
    ]
    return Layout(
        variables,
        coordinates(
            network,
            {"seed": study.seeds, "temperature": study.temperatures, "width": study.widths},
            {name: len(test.labels) for name, test in data.realisation.test_sets.items()},
            data.realisation.sub_networks,
            extra,
            meanings,
            data.realisation.output_names,
        ),
        {
            "title": f"Attention-path theory of {label}: {study.task.summary}",
            "task": study.task.name,
            "label": label,
            "analyses": [analysis.name for analysis in analyses],
            "sub_networks": {
                name: " and ".join(
                    f"heads {', '.join(map(str, heads))} of layer {layer}"
                    for layer, heads in enumerate(kept, start=1)
                )
                for name, kept in data.realisation.sub_networks.items()
            },
            "heads_per_layer": list(network.heads),
            "variances": list(network.variances),
            **({"skips": network.skip_words} if network.has_skips else {}),
            "readout": str(data.realisation.readout),
            "kind": kind,
            "centred": data.realisation.centred,
            "notes": dict(data.realisation.notes),
            "training_examples": data.n_examples,
            "dtype": study.dtype,
            "backend": study.backend,
            "device": library.device,
            "package_versions": versions(_RECORDED_VERSIONS),
        },
    )


def _check_dimensions(analysis: Analysis, extra: Mapping[str, Any]) -> None:
    for variable in analysis.variables:
        for dim in variable.dims:
            if dim not in extra and dim not in KNOWN_DIMENSIONS:
                raise AnalysisError(
                    f"analysis {analysis.name!r} declares {variable.name!r} with the dimension "
                    f"{dim!r}, for which its coordinates() gives no labels"
                )
