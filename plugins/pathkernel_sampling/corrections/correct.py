"""The next order in 1/N at a point of a study, a part of the result ``corrections``."""

from __future__ import annotations

from dataclasses import asdict

import xarray as xr

from pathkernel_core.action.continuation import minimise_from
from pathkernel_core.action.minimise import minimise_action
from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.energy.problem import Problem
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.labelling import coordinates_along, label_arrays
from pathkernel_datasets.variables.quantities import VARIANCE, predicted_values
from pathkernel_sampling.corrections.next_order import next_order, predict_next_order
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
    part = f"{NextOrder.name}/{point}"
    return study.result(part).to_dataset() if study.holds(part) else None


def compute_correction(study: StoredStudy, point: Point) -> xr.Dataset:
    """Compute the next order at a point, see :func:`open_correction`.

    Raises
    ------
    ValueError
        If there is no expansion: the width is smaller than the order parameter, or the action has
        no minimum.
    """
    rebuilt = study.rebuild(point)
    data, temperature = rebuilt.data, point.temperature
    problem = Problem(data.xi, data.labels)
    solution = minimise_from(problem, rebuilt.network, temperature, None)
    if solution is None or not solution.status.ok:  # raises, with its reason
        solution = minimise_action(problem, rebuilt.network, temperature)
    correction = next_order(solution)
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
            [predict_next_order(solution, xi, correction=correction) for xi in tests],
        )
    )
    # of the predictive density, mean and variance do not give the next order
    saddle.pop("log_predictive_density", None)
    changes = {name: following[name] - values for name, values in saddle.items()}
    saddle["order_parameter"] = correction.order_parameter
    changes["order_parameter"] = correction.order_parameter_correction
    evidence = {variable.name: getattr(correction, variable.name) for variable in _EVIDENCE}
    dataset = label_arrays(evidence, _EVIDENCE, coordinates_along(study.dataset, _DIMS))
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
