"""The next order in 1/N at a point of a study, as it is stored with the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_core.continuation import minimise_from
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import minimise_action
from pathkernel_core.network import Network
from pathkernel_core.progress import Progress, Report
from pathkernel_core.solution import Solution
from pathkernel_datasets.evaluation import VARIANCE, predicted_values
from pathkernel_datasets.labelling import coordinates_along, labelled
from pathkernel_datasets.next_evidence import grid_corrections, grid_group
from pathkernel_datasets.point import Point
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import number
from pathkernel_datasets.stored_study import StoredStudy
from pathkernel_sampling.corrections import Correction, next_order, predict_next_order
from pathkernel_sampling.results import NextOrder

_DIMS = ("path", "path_dual", "output", "output_dual", "test_set", "example")
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


def open_correction(study: StoredStudy, point: Point) -> xr.Dataset | None:
    """Open the next order at a point of a study, lazily; None if it is not computed.

    Returns
    -------
    xarray.Dataset
        ``order_parameter`` at the saddle point and ``order_parameter_correction``, dims (path,
        [output,] path_dual, [output_dual]); ``log_evidence``, ``log_evidence_correction`` and its
        part ``log_evidence_two_loops``, in nats; ``predictor_mean``, ``predictor_variance``, dims
        (test_set, example[, output]), and ``accuracy`` or the measures of targets, dims
        (test_set,), each with its ``…_correction``.
    """
    group = f"{NextOrder.name}/{point}"
    return study.result(group).to_dataset() if study.holds(group) else None


def corrected(study: StoredStudy, point: Point) -> xr.Dataset:
    """Compute the next order at a point, see :func:`open_correction`.

    Raises
    ------
    ValueError
        If there is no expansion: the width is smaller than the order parameter, or the action has
        no minimum.
    """
    rebuilt = study.rebuild(point)
    data, temperature = rebuilt.data, point.temperature
    problem = PathKernels(data.xi, data.labels)
    solution, correction = _next_order(problem, rebuilt.network, temperature)
    tests = [xi for xi, _ in data.test_sets.values()]
    saddle, following = (
        predicted_values(
            data,
            [prediction.mean for prediction in predictions],
            [prediction.variance for prediction in predictions],
            temperature,
        )
        for predictions in (
            [solution.predict(xi) for xi in tests],
            [predict_next_order(solution, xi, correction) for xi in tests],
        )
    )
    # of the predictive density, mean and variance do not give the next order
    saddle.pop("log_predictive_density", None)
    changes = {name: following[name] - values for name, values in saddle.items()}
    saddle["order_parameter"] = correction.order_parameter
    changes["order_parameter"] = correction.order_parameter_correction
    evidence = {variable.name: getattr(correction, variable.name) for variable in _EVIDENCE}
    dataset = labelled(evidence, _EVIDENCE, coordinates_along(study.dataset, _DIMS))
    mean = study.dataset["predictor_mean"]  # the study has no variances of classes
    variables = study.dataset.assign(predictor_variance=mean.assign_attrs(long_name=VARIANCE))
    for name, change in changes.items():
        theory = variables[name].sel(asdict(point), drop=True)
        meaning = f"{theory.attrs['long_name']}, at the saddle point"
        for key, values, long_name in (
            (name, saddle[name], meaning),
            (f"{name}_correction", change, f"{meaning}; {_NEXT}"),
        ):
            attributes = {"long_name": long_name, "units": theory.attrs["units"]}
            dataset[key] = theory.dims, values.reshape(theory.shape), attributes
    return dataset


def grid_evidence(
    study: StoredStudy,
    widths: Sequence[float],
    report: Report,
    map_parts: Callable[..., Iterator[xr.Dataset]] = map,
) -> Iterator[tuple[str, xr.Dataset]]:
    """Next order of the log evidence over the grid, where the store lacks it.

    A part for every seed and width, dims (temperature,): ``log_evidence_correction`` and its part
    ``log_evidence_two_loops``, in nats; NaN where the study's minimisation did not converge.

    Raises
    ------
    ValueError
        If the study has no log evidence at one of the widths.
    """
    for width in widths:
        if study.dataset["log_evidence"].sel(width=width).isnull().all():
            raise ValueError(
                f"the study has no log evidence at N = {number(width)}: not computed, or the width "
                "is smaller than its order parameter; leave it out of widths"
            )
    _, missing = grid_corrections(study.folder, study.dataset)
    missing = missing.any("temperature")
    rows = [
        (int(seed), float(width))
        for seed in study.dataset["seed"].values
        for width in widths
        if missing.sel(seed=seed, width=width)
    ]
    corrections = map_parts(partial(_grid_row, study), rows)
    for count, (seed, width) in enumerate(rows):
        report(Progress(count, len(rows), f"N = {number(width)}, seed {seed}"))
        yield grid_group(seed, width).removeprefix(f"{NextOrder.name}/"), next(corrections)


def _grid_row(study: StoredStudy, row: tuple[int, float]) -> xr.Dataset:
    """Next order of the log evidence of a seed and width, at all temperatures."""
    seed, width = row
    temperatures = study.dataset["temperature"].values
    rebuilt = study.rebuild(Point(width, float(temperatures[0]), seed))
    problem = PathKernels(rebuilt.data.xi, rebuilt.data.labels)
    status = study.dataset["status"].sel(seed=seed, width=width).values
    variables = [replace(variable, dims=("temperature",)) for variable in _EVIDENCE[1:]]
    values = {variable.name: np.full(len(temperatures), np.nan) for variable in variables}
    solution = None
    order = np.argsort(-temperatures)  # as in the study: each solution starts the next search
    for t in order[status[order] == STATUS_CODES["converged"]]:
        solution, correction = _next_order(problem, rebuilt.network, temperatures[t], solution)
        for name in values:
            values[name][t] = getattr(correction, name)
    return labelled(values, variables, coordinates_along(study.dataset, ("temperature",)))


def _next_order(
    problem: PathKernels, network: Network, temperature: float, start: Solution | None = None
) -> tuple[Solution, Correction]:
    solution = minimise_from(problem, network, float(temperature), start)
    if solution is None or not solution.status.ok:  # raises, with its reason
        solution = minimise_action(problem, network, float(temperature))
    return solution, next_order(solution)
