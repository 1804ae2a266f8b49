"""Computing a study into its store, grid point by grid point.

At each width the temperatures are gone through from the highest, where the minimum is nearest to
the Gaussian process limit, to the lowest; a minimisation begins at its neighbour's minimum with the
curvature that was seen on the way there. That takes fewer evaluations than upwards, or from width
to width. A run that was stopped finds the starts that it lacks by minimising again, so that its
store is bit for bit that of a run that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Analysis, Situation
from pathkernel_core.errors import NotPositiveDefiniteError
from pathkernel_core.hooks import load_plugins
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import Solution, minimise_action
from pathkernel_core.network import Network
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_datasets.array_libraries import ArrayLibrary, array_library
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.evaluation import (
    AnalysisError,
    data_values,
    point_values,
    reference_values,
)
from pathkernel_datasets.groups import sole_writer
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.schema import (
    KNOWN_DIMENSIONS,
    STATUS_CODES,
    analysis_variables,
    coordinates,
    core_variables,
    validation_variables,
)
from pathkernel_datasets.store import Store, check_store, open_store
from pathkernel_datasets.study import Study, versions
from pathkernel_datasets.swept import Layout, joined_layout, label_of, words_of
from pathkernel_datasets.watching import supervised

_RECORDED_VERSIONS = ("pathkernel", "numpy", "scipy", "array-api-compat", "jax", "torch", "cupy")


def run_study(
    study: Study,
    path: str | os.PathLike,
    *,
    analyses: Iterable[Analysis] | None = None,
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
    threads : int, optional
        Threads of the linear algebra on the CPU; None leaves their number as it is.
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
        writes into it.
    """
    if not isinstance(study, Study):
        raise TypeError(f"study must be a Study, not {study!r}; call run_study(Study(task), path)")
    array_library(study.backend, study.dtype)  # loaded before its threads are limited
    with supervised(report, threads) as tell:
        compute_study(study, path, analyses=analyses, report=tell)
    return open_store(path)


def compute_study(
    study: Study,
    path: str | os.PathLike,
    *,
    analyses: Iterable[Analysis] | None = None,
    report: Report = silent,
) -> int:
    """Compute a study as :func:`run_study` does; the number of grid points that were computed."""
    path = Path(path)
    analyses = tuple(load_plugins().analyses.values() if analyses is None else analyses)
    library = array_library(study.backend, study.dtype)
    with sole_writer(path):
        store: Any = None
        if path.exists() and not _is_empty_folder(path):
            held = check_store(path)
            begun = study.begun(held)
            store = Store.resume(path, held, begun.identity())
            analyses = _stored_analyses(store, analyses)
            study = study.joined(begun)
        computed = 0
        total = math.prod(map(len, study.grid.values()))
        grows = store is None or study != begun
        worked = False
        for index, single, seed, words in _draws(study):
            if not grows and _complete(store, index):
                continue
            worked = True
            done = 0 if store is None else int((store.marker("status") != 0).sum())
            report(Progress(done, total, f"{words}: data and attention"))
            data = prepare_data(single, seed, library)
            if grows:
                store = _create(path, study, data, analyses, library, store)
                grows = False
            computed += _fill_seed(store, single, index, words, data, analyses, report, total)
        if worked:
            report(Progress(total, total, "complete"))
        return computed


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
    layouts = []
    for place, single in enumerate(study.singles):  # before any is computed
        drawn = prepare_data(single, study.seeds[0], library) if place else data
        label = label_of(single.task, study.sweep)
        layouts.append(_layout(single, label, drawn, analyses, library))
    layout = joined_layout(study, layouts) if study.sweep else layouts[0]
    whole = (layout.variables, layout.coordinates, layout.attributes)
    return Store.create(path, *whole, study.identity(), held)


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
        *core_variables(network.outputs, kind),
        *(validation_variables(kind) if data.validation is not None else ()),
        *(variable for analysis in analyses for variable in analysis_variables(analysis)),
    ]
    return Layout(
        variables,
        coordinates(
            network,
            {"seed": study.seeds, "temperature": study.temperatures, "width": study.widths},
            {name: xi.shape[0] for name, (xi, _) in data.test_sets.items()},
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
            "readout": str(data.realisation.readout),
            "kind": kind,
            "centred": data.realisation.centred,
            "notes": dict(data.realisation.notes),
            "training_examples": data.xi.shape[0],
            "dtype": study.dtype,
            "backend": study.backend,
            "device": library.device,
            "package_versions": versions(_RECORDED_VERSIONS),
        },
    )


def _draws(study: Study) -> Iterator[tuple[tuple[int, ...], Study, int, str]]:
    """Data to be drawn: place in the grid, study of one value of each option, seed, words."""
    for place, single in enumerate(study.singles):
        value = "".join(f"{words_of(name, getattr(single.task, name))}, " for name in study.sweep)
        for index, seed in enumerate(study.seeds):
            yield (place, index) if study.sweep else (index,), single, seed, f"{value}seed {seed}"


def _complete(store: Store, place: tuple[int, ...]) -> bool:
    return all(bool((store.marker(name)[place] != 0).all()) for name in store.markers)


def _fill_seed(
    store: Store,
    study: Study,
    place: tuple[int, ...],
    words: str,
    data: PreparedData,
    analyses: tuple[Analysis, ...],
    report: Report,
    total: int,
) -> int:
    """Compute what the store lacks for one seed; returns the number of grid points."""
    problem = PathKernels(data.xi, data.labels)
    done = int((store.marker("status") != 0).sum())
    of_solution = [analysis for analysis in analyses if analysis.of == "solution"]
    if not store.marker("data_done")[place]:
        store.write(place, data_values(data, analyses), "data_done", 1)
    for t, temperature in enumerate(study.temperatures):
        if not store.marker("reference_done")[(*place, t)]:
            report(Progress(done, total, f"{words}, T = {temperature:g}, GP limit"))
            values = reference_values(data, problem, temperature, of_solution)
            store.write((*place, t), values, "reference_done", 1)
    computed = 0
    for w, width in enumerate(study.widths):
        network = dataclasses.replace(data.network, widths=(width,) * len(data.network.widths))
        missing = np.flatnonzero(store.marker("status")[place][:, w] == 0)
        start = None
        for t in _down_to(study.temperatures, missing):
            temperature = study.temperatures[t]
            doing = f"{words}, T = {temperature:g}, N = {width:g}"
            here = Progress(done + computed, total, doing)
            report(here)

            def within(step: Progress, here: Progress = here) -> None:
                numbers = {"evaluations": step.done, **step.numbers}
                report(dataclasses.replace(here, numbers=numbers))

            solution = minimise_from(problem, network, temperature, start, within)
            if t in missing:  # the others were stored before a stop; here they are starts only
                code = "not_positive_definite" if solution is None else solution.status.name.lower()
                values = point_values(data, solution, of_solution)
                store.write((*place, t, w), values, "status", STATUS_CODES[code])
                computed += 1
            start = solution if solution is not None and solution.status.ok else None
    return computed


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
    """Minimum of the action from a neighbour's, or else from the limit; None if that fails."""
    if start is not None:
        with contextlib.suppress(NotPositiveDefiniteError, np.linalg.LinAlgError):
            solution = minimise_action(
                problem, network, temperature, start=start, throw=False, report=report
            )
            if solution.status.ok:
                return solution
    with contextlib.suppress(NotPositiveDefiniteError, np.linalg.LinAlgError):
        return minimise_action(problem, network, temperature, throw=False, report=report)
    return None


def _check_dimensions(analysis: Analysis, extra: Mapping[str, Any]) -> None:
    for variable in analysis.variables:
        for dim in variable.dims:
            if dim not in extra and dim not in KNOWN_DIMENSIONS:
                raise AnalysisError(
                    f"analysis {analysis.name!r} declares {variable.name!r} with the dimension "
                    f"{dim!r}, for which its coordinates() gives no labels"
                )
