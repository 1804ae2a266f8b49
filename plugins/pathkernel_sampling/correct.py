"""The next order in 1/N at a point of a study, kept in the study's store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_core.hooks import Plugins
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import minimise_action
from pathkernel_core.network import Network
from pathkernel_core.progress import Progress, Report
from pathkernel_core.solution import Solution
from pathkernel_datasets.evaluation import predicted_values
from pathkernel_datasets.labelling import coordinates_along, labelled, path_dims
from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.next_evidence import grid_corrections, grid_group
from pathkernel_datasets.pieces import minimise_from
from pathkernel_datasets.point import Point
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import number
from pathkernel_datasets.store import check_store
from pathkernel_datasets.stored import StoredStudy, compute_result
from pathkernel_sampling.corrections import Correction, next_order, predict_next_order
from pathkernel_sampling.results import NextOrder

_NEXT = "next order in 1/N, to be added"
_EVIDENCE = (
    Variable("log_evidence", (), "log evidence ln p(Y) at leading order", "nat"),
    Variable("log_evidence_correction", (), f"log evidence ln p(Y), {_NEXT}", "nat"),
    Variable(
        "log_evidence_two_loops",
        (),
        "part of the correction of the log evidence from cubic and quartic terms",
        "nat",
    ),
)
_OUTPUT = "the network's output at the saddle point"
_OF_A_DISTRIBUTION = "log_predictive_density"  # to next order it takes more than mean and variance


def correct_study(
    store: str | os.PathLike,
    *,
    width: float,
    temperature: float | None = None,
    seed: int | None = None,
    executor: Executor | None = None,
    plugins: Plugins | None = None,
) -> Point:
    """Compute the next order in 1/N at a point of a study, unless the store holds it.

    Parameters
    ----------
    store : path
        Result store of the study.
    width : float
        Width N, one of the study's.
    temperature : float, optional
        Temperature T, one of the study's; by default as for :class:`Selection`.
    seed : int, optional
        Seed of data and heads, one of the study's; by default its first.
    executor : concurrent.futures.Executor, optional
        Workers to compute with.
    plugins : Plugins, optional
        Where the study's task is looked up; by default those installed.

    Returns
    -------
    Point
        For :func:`open_correction`.

    Raises
    ------
    StoreError
        If the store is damaged, lacks the point, was made from other data, or another process
        writes into it.
    ValueError
        If there is no expansion: a width is smaller than its order parameter, or the action has
        no minimum.
    """
    wanted = NextOrder(widths=(width,), temperature=temperature, seed=seed)
    (at,) = wanted.wanted(compute_result(wanted, store, executor=executor, plugins=plugins))
    return at


def open_correction(store: str | os.PathLike, at: Point) -> xr.Dataset | None:
    """The next order at a point of a study; None if it is not computed.

    Returns
    -------
    xarray.Dataset
        ``order_parameter`` at the saddle point and ``order_parameter_correction``, dims (path,
        [output,] path_dual, [output_dual]); ``log_evidence``, ``log_evidence_correction`` and its
        part ``log_evidence_two_loops``, in nats; ``predictor_mean``, ``predictor_variance``, dims
        (test_set, example[, output]), and ``accuracy`` or the measures of targets, dims
        (test_set,), each with its ``…_correction``.
    """
    group = f"{NextOrder.name}/{at}"
    check_store(Path(store))
    if not (Path(store) / group / "zarr.json").exists():
        return None
    return xr.open_zarr(store, group=group, chunks=None, consolidated=False)


def corrected(study: StoredStudy, at: Point) -> xr.Dataset:
    """Compute the next order at a point, see :func:`open_correction`."""
    point = study.rebuild(at)
    network = point.network
    problem = PathKernels(point.data.xi, point.data.labels)
    solution, correction = _next_order(problem, network, at.temperature)
    matrix = path_dims(network.outputs)
    shape = [study.dataset.sizes[dim.removesuffix("_dual")] for dim in matrix]
    example = ("test_set", "example", *(["output"] if network.outputs > 1 else []))
    described = (
        Variable("order_parameter", matrix, "order parameter U at the saddle point"),
        Variable("predictor_mean", example, f"posterior mean of {_OUTPUT}"),
        Variable("predictor_variance", example, f"posterior variance of {_OUTPUT}, without noise"),
        *(
            Variable(measure.name, ("test_set",), measure.long_name, measure.units)
            for measure in measures_of(study.dataset)
            if measure.name != _OF_A_DISTRIBUTION
        ),
    )
    variables = (
        *described,
        *(
            replace(one, name=f"{one.name}_correction", long_name=f"{one.long_name}; {_NEXT}")
            for one in described
        ),
        *_EVIDENCE,
    )
    tests = [xi for xi, _ in point.data.test_sets.values()]
    saddle = [solution.predict(xi) for xi in tests]
    following = [predict_next_order(solution, xi, correction) for xi in tests]
    before, after = (
        predicted_values(
            point.data,
            [found.mean for found in moments],
            [found.variance for found in moments],
            at.temperature,
        )
        for moments in (saddle, following)
    )
    names = [one.name for one in described if one.name in before]
    values = {
        "order_parameter": correction.order_parameter.reshape(shape),
        "order_parameter_correction": correction.order_parameter_correction.reshape(shape),
        **{one.name: getattr(correction, one.name) for one in _EVIDENCE},
        **{name: before[name] for name in names},
        **{f"{name}_correction": after[name] - before[name] for name in names},
    }
    coordinates = coordinates_along(study.dataset, {*matrix, *example})
    return labelled(values, variables, coordinates)


def grid_evidence(
    study: StoredStudy,
    widths: Sequence[float],
    report: Report,
    each: Callable[..., Iterator[xr.Dataset]] = map,
) -> Iterator[tuple[str, xr.Dataset]]:
    """Next order of the log evidence over the grid, where the store lacks it.

    A part for every seed and width, dims (temperature,): ``log_evidence_correction`` and its part
    ``log_evidence_two_loops``, in nats; NaN where the study's minimisation did not converge.
    """
    for width in widths:
        if study.dataset["log_evidence"].sel(width=width).isnull().all():
            raise ValueError(
                f"the study has no log evidence at N = {number(width)}: not computed, or the width "
                "is smaller than its order parameter; leave it out of widths"
            )
    _, lacking = grid_corrections(study.path, study.dataset)
    lacking = lacking.any("temperature")
    rows = [
        (int(seed), float(width))
        for seed in study.dataset["seed"].values
        for width in widths
        if lacking.sel(seed=seed, width=width)
    ]
    found = each(partial(_grid_row, study), rows)
    for done, (seed, width) in enumerate(rows):
        report(Progress(done, len(rows), f"N = {number(width)}, seed {seed}"))
        place = grid_group(seed, width).removeprefix(f"{NextOrder.name}/")
        yield place, next(found)


def _grid_row(study: StoredStudy, row: tuple[int, float]) -> xr.Dataset:
    """Next order of the log evidence of a seed and width, at all temperatures."""
    seed, width = row
    temperatures = study.dataset["temperature"].values
    point = study.rebuild(Point(width, float(temperatures[0]), seed))
    problem = PathKernels(point.data.xi, point.data.labels)
    status = study.dataset["status"].sel(seed=seed, width=width).values
    _, *described = _EVIDENCE
    variables = [replace(one, dims=("temperature",)) for one in described]
    values, solution = np.full((2, len(temperatures)), np.nan), None
    order = np.argsort(-temperatures)  # as the study was computed: from one to the next
    for t in order[status[order] == STATUS_CODES["converged"]]:
        solution, correction = _next_order(problem, point.network, temperatures[t], solution)
        values[:, t] = [getattr(correction, one.name) for one in variables]
    named = dict(zip((one.name for one in variables), values))
    return labelled(named, variables, coordinates_along(study.dataset, ("temperature",)))


def _next_order(
    problem: PathKernels, network: Network, temperature: float, start: Solution | None = None
) -> tuple[Solution, Correction]:
    solution = minimise_from(problem, network, float(temperature), start)
    if solution is None or not solution.status.ok:  # raises, with its reason
        solution = minimise_action(problem, network, float(temperature))
    return solution, next_order(solution)
