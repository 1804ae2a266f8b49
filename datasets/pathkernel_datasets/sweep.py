"""Computing a study into its store, grid point by grid point."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.analysis import Analysis, Situation
from pathkernel_core.backend import Array, array_namespace, to_host
from pathkernel_core.errors import NotPositiveDefiniteError
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import Solution, gp_limit, minimise_action
from pathkernel_core.network import Network
from pathkernel_core.predictor import accuracy
from pathkernel_datasets.array_libraries import ArrayLibrary, array_library
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.schema import (
    KNOWN_DIMENSIONS,
    STATUS_CODES,
    analysis_variables,
    coordinates,
    core_variables,
)
from pathkernel_datasets.store import Store, StoreError
from pathkernel_datasets.study import Study, versions

_RECORDED_VERSIONS = ("pathkernel", "numpy", "scipy", "array-api-compat", "jax", "torch", "cupy")


class AnalysisError(RuntimeError):
    """An analysis, perhaps of a plugin, failed or returned something else than it declares."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands: ``done`` of ``total`` grid points, and what it does now."""

    done: int
    total: int
    doing: str


def run_study(
    study: Study,
    path: str | os.PathLike,
    *,
    analyses: Iterable[Analysis] = (),
    report: Callable[[Progress], None] = lambda progress: None,
) -> int:
    """Compute a study into a Zarr store, or go on where an earlier run stopped.

    Parameters
    ----------
    study : Study
    path : path
        Store to make or to go on with.
    analyses : iterable of Analysis
        Analyses whose variables the store also holds.
    report : callable
        Called with a Progress before every step.

    Returns
    -------
    int
        Number of grid points that were computed; 0 if the store was complete.

    Raises
    ------
    StoreError
        If the store is damaged, holds another study, or cannot be written.
    """
    path, analyses = Path(path), tuple(analyses)
    identity = study.identity()
    library = array_library(study.backend, study.dtype)
    store = None
    if path.exists() and not _is_empty_folder(path):
        store = Store.resume(path, identity)
        analyses = _stored_analyses(store, analyses)
    computed = 0
    total = len(study.seeds) * len(study.temperatures) * len(study.widths)
    for index, seed in enumerate(study.seeds):
        if store is not None and _complete(store, index):
            continue
        done = 0 if store is None else int((store.marker("status") != 0).sum())
        report(Progress(done, total, f"seed {seed}: data and attention"))
        data = prepare_data(study, seed, library)
        if store is None:
            store = _create(path, study, identity, data, analyses, library)
        computed += _fill_seed(store, study, index, data, analyses, report, total)
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
    identity: Mapping[str, Any],
    data: PreparedData,
    analyses: tuple[Analysis, ...],
    library: ArrayLibrary,
) -> Store:
    network = data.network
    situation = Situation(data.realisation, data.xi, data.labels, network)
    extra: dict[str, Any] = {}
    meanings: dict[str, str] = {}
    for analysis in analyses:
        meanings |= analysis.dimensions
        extra |= analysis.coordinates(situation)
        _check_dimensions(analysis, extra)
    variables = [
        *core_variables(network.outputs),
        *(variable for analysis in analyses for variable in analysis_variables(analysis)),
    ]
    return Store.create(
        path,
        variables,
        coordinates(
            network,
            {"seed": study.seeds, "temperature": study.temperatures, "width": study.widths},
            {name: xi.shape[0] for name, (xi, _) in data.test_sets.items()},
            data.realisation.sub_networks,
            extra,
            meanings,
        ),
        {
            "title": f"Attention-path theory of {study.task.label}: {study.task.summary}",
            "task": study.task.name,
            "label": study.task.label,
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
            "notes": dict(data.realisation.notes),
            "training_examples": data.xi.shape[0],
            "dtype": study.dtype,
            "backend": study.backend,
            "device": library.device,
            "package_versions": versions(_RECORDED_VERSIONS),
        },
        identity,
    )


def _complete(store: Store, seed: int) -> bool:
    return all(
        bool((store.marker(name)[seed] != 0).all())
        for name in ("status", "reference_done", "data_done")
    )


def _fill_seed(
    store: Store,
    study: Study,
    seed: int,
    data: PreparedData,
    analyses: tuple[Analysis, ...],
    report: Callable[[Progress], None],
    total: int,
) -> int:
    """Compute what the store lacks for one seed; returns the number of grid points."""
    problem = PathKernels(data.xi, data.labels)
    of_solution = [analysis for analysis in analyses if analysis.of == "solution"]
    if not store.marker("data_done")[seed]:
        store.write((seed,), _of_data(data, analyses), "data_done", 1)
    computed = 0
    for t, temperature in enumerate(study.temperatures):
        if not store.marker("reference_done")[seed, t]:
            values = _references(data, problem, temperature, of_solution)
            store.write((seed, t), values, "reference_done", 1)
        for w, width in enumerate(study.widths):
            status = store.marker("status")
            if status[seed, t, w]:
                continue
            doing = f"seed {study.seeds[seed]}, T = {temperature:g}, N = {width:g}"
            report(Progress(int((status != 0).sum()), total, doing))
            values, code = _point(data, problem, width, temperature, of_solution)
            store.write((seed, t, w), values, "status", code)
            computed += 1
    return computed


def _of_data(data: PreparedData, analyses: Iterable[Analysis]) -> dict[str, Any]:
    situation = Situation(data.realisation, data.xi, data.labels, data.network)
    of_data = [analysis for analysis in analyses if analysis.of == "data"]
    values = _compute(of_data, situation)
    labels = [to_host(labels) for _, labels in data.test_sets.values()]
    return values | {"test_label": _stack(labels)}


def _point(
    data: PreparedData,
    problem: PathKernels,
    width: float,
    temperature: float,
    analyses: Iterable[Analysis],
) -> tuple[dict[str, Any], int]:
    """Variables of one grid point, and its status code."""
    network = Network(
        data.network.heads, width, data.network.variances, outputs=data.network.outputs
    )
    try:
        solution = minimise_action(problem, network, temperature, throw=False)
    except (NotPositiveDefiniteError, np.linalg.LinAlgError):
        return {}, STATUS_CODES["not_positive_definite"]
    values = {
        "order_parameter": _split_outputs(network, to_host(solution.order_parameter)),
        "action": solution.action,
        "entropy": solution.entropy,
        "energy": solution.energy,
        "log_evidence": solution.log_evidence,
        "gradient_norm": solution.gradient_norm,
        "evaluations": solution.evaluations,
        **_predictions(data, solution, variance=True),
        **_analyse(data, solution, analyses),
    }
    return values, STATUS_CODES[solution.status.name.lower()]


def _references(
    data: PreparedData, problem: PathKernels, temperature: float, analyses: Iterable[Analysis]
) -> dict[str, Any]:
    """Gaussian process limits of the whole network and of its sub-networks."""
    try:
        whole = gp_limit(problem, data.network, temperature)
        predictions = _predictions(data, whole, variance=False) | _analyse(data, whole, analyses)
        values = {f"{name}_gp": value for name, value in predictions.items()}
        values["log_evidence_gp"] = whole.log_evidence
        table = []
        for kept in data.realisation.sub_networks.values():
            paths = data.network.paths_through(kept)
            sub_network = data.network.keep_heads(kept)
            part = gp_limit(problem.keep_paths(paths), sub_network, temperature)
            table.append(
                [
                    accuracy(part.predict(_take_paths(xi, paths)).mean, labels)
                    for xi, labels in data.test_sets.values()
                ]
            )
    except (NotPositiveDefiniteError, np.linalg.LinAlgError):
        return {}
    return values | ({"accuracy_sub_network": np.array(table)} if table else {})


def _predictions(data: PreparedData, solution: Solution, variance: bool) -> dict[str, Any]:
    predictions = {name: solution.predict(xi) for name, (xi, _) in data.test_sets.items()}
    values = {
        "accuracy": [
            accuracy(predictions[name].mean, labels) for name, (_, labels) in data.test_sets.items()
        ],
        "predictor_mean": _stack([to_host(entry.mean) for entry in predictions.values()]),
    }
    if variance:
        variances = [to_host(entry.variance) for entry in predictions.values()]
        values["predictor_variance"] = _stack(variances)
    return values


def _analyse(
    data: PreparedData, solution: Solution, analyses: Iterable[Analysis]
) -> dict[str, Any]:
    situation = Situation(data.realisation, data.xi, data.labels, solution.network, solution)
    return _compute(analyses, situation)


def _compute(analyses: Iterable[Analysis], situation: Situation) -> dict[str, Any]:
    """Values of all analyses; whatever one does wrong is reported under its name."""
    values: dict[str, Any] = {}
    for analysis in analyses:
        declared = {variable.name: len(variable.dims) for variable in analysis.variables}
        try:
            computed = {
                name: np.asarray(value) for name, value in analysis.compute(situation).items()
            }
        except Exception as error:
            message = f"analysis {analysis.name!r} failed: {type(error).__name__}: {error}"
            raise AnalysisError(message) from error
        for name, value in computed.items():
            if declared.get(name) != value.ndim:
                raise AnalysisError(
                    f"analysis {analysis.name!r} returned {name!r} of shape {value.shape}, but "
                    f"declares {declared} (variables and their numbers of dimensions)"
                )
        values |= computed
    return values


def _check_dimensions(analysis: Analysis, extra: Mapping[str, Any]) -> None:
    for variable in analysis.variables:
        for dim in variable.dims:
            if dim not in extra and dim not in KNOWN_DIMENSIONS:
                raise AnalysisError(
                    f"analysis {analysis.name!r} declares {variable.name!r} with the dimension "
                    f"{dim!r}, for which its coordinates() gives no labels"
                )


def _stack(rows: list[np.ndarray]) -> np.ndarray:
    """Values of several test sets, (test_set, example, …), NaN where a set is shorter."""
    longest = max(len(row) for row in rows)
    table = np.full((len(rows), longest, *rows[0].shape[1:]), np.nan)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def _take_paths(xi: Array, paths: np.ndarray) -> Array:
    xp = array_namespace(xi=xi)
    return xp.stack([xi[:, int(path), :] for path in paths], axis=1)


def _split_outputs(network: Network, order_parameter: np.ndarray) -> np.ndarray:
    """(n·C, n·C) → (n, C, n, C) for several outputs."""
    if network.outputs == 1:
        return order_parameter
    return order_parameter.reshape((network.n_paths, network.outputs) * 2)
