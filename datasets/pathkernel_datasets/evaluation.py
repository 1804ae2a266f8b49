"""The variables of a study: their descriptions, and their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pathkernel_core.analysis import Analysis, Situation, Variable
from pathkernel_core.backend import Array, array_namespace, to_host
from pathkernel_core.cross_validation import leave_one_out
from pathkernel_core.errors import NotPositiveDefiniteError, PathkernelError
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import gp_limit
from pathkernel_core.solution import Solution
from pathkernel_datasets.labelling import padded_rows, path_dims
from pathkernel_datasets.measures import MEASURES, Predictions
from pathkernel_datasets.prepared import PreparedData
from pathkernel_datasets.schema import REFERENCE
from pathkernel_datasets.study import POINT

_IN_THE_LIMIT = "in the Gaussian process limit"
VARIANCE = "posterior variance of the output given U, without observation noise"
_OF_MINIMUM = ("action", "entropy", "energy", "gradient_norm", "evaluations")


class AnalysisError(PathkernelError, RuntimeError):
    """An analysis, perhaps of a plugin, failed or returned other values than it declares."""


def variables(data: PreparedData, analyses: Iterable[Analysis]) -> Iterator[Variable]:
    """Variables of a study with such data, the dimensions of the grid in front of their own."""
    output = ("output",) if data.network.outputs > 1 else ()
    example = ("test_set", "example", *output)
    yield Variable("status", POINT, "how the minimisation of this grid point ended")
    yield Variable("reference_done", REFERENCE, f"1 where the values {_IN_THE_LIMIT} are computed")
    yield Variable("data_done", ("seed",), "1 where the quantities of the data alone are computed")
    yield Variable("test_label", ("seed", *example), "label of the test example")
    kind = str(data.realisation.kind)
    density = "mean log density of a training label given all others at fixed U"
    error = "mean squared error of a training label predicted from all others at fixed U"
    scores = [
        Variable("log_evidence", (), "leading-order log evidence ln p(Y)", "nat"),
        Variable("leave_one_out_log_density", (), density, "nat"),
        Variable("leave_one_out_squared_error", (), error),
    ]
    for measure in MEASURES[kind]:
        scores.append(Variable(measure.name, ("test_set",), measure.long_name, measure.units))
        if measure.validation and data.realisation.validation is not None:
            name = f"{measure.name}_validation"
            scores.append(Variable(name, (), measure.validation, measure.units))
    meaning = "posterior mean of the output"
    moments = [Variable("predictor_mean", example, meaning, "1", "Eq. 9, 29")]
    if data.network.has_skips:
        meaning = "score of a layer's skip connection; the largest of a head is 1"
        moments.append(Variable("skip_score", ("skip",), meaning))
    for analysis in analyses:
        if analysis.scope == "data":
            yield from _on_grid(analysis.variables, ("seed",))
        else:
            moments += analysis.variables
    matrix = path_dims(data.network.outputs)
    of_minimum = [
        Variable("order_parameter", matrix, "order parameter U", "1", "Eq. 11"),
        Variable("action", (), "action per width S/N at its minimum", "1", "Eq. 11, 32"),
        Variable("entropy", (), "entropy term of the action per width", "1", "Eq. 33"),
        Variable("energy", (), "energy term of the action per width", "1", "Eq. 12, 34"),
        Variable("gradient_norm", (), "largest entry of the gradients of S/N at the minimum"),
        Variable("evaluations", (), "evaluations of the energy during the minimisation"),
        Variable("minima", (), "number of minima of the action that the search found"),
        Variable("action_gap", (), "action per width of the next higher minimum, less S/N"),
    ]
    if kind == "targets":
        of_minimum.append(Variable("predictor_variance", example, VARIANCE, "1", "Eq. 30"))
    yield from _on_grid((*of_minimum, *scores, *moments), POINT)
    yield from _on_grid((*scores, *moments), REFERENCE, "_gp", f", {_IN_THE_LIMIT}")
    share = "explained share of the squared labels that the limit's features span"
    yield Variable("explained_share_gp", REFERENCE, share)
    meaning = f", of a sub-network {_IN_THE_LIMIT}"
    yield from _on_grid(scores, (*REFERENCE, "sub_network"), "_sub_network", meaning)


def _on_grid(
    declared: Iterable[Variable], grid: tuple[str, ...], suffix: str = "", meaning: str = ""
) -> Iterator[Variable]:
    """Variables with the grid's dimensions in front, and more after their name and meaning."""
    for variable in declared:
        yield dataclasses.replace(
            variable,
            name=variable.name + suffix,
            dims=(*grid, *variable.dims),
            long_name=variable.long_name + meaning,
        )


def data_values(data: PreparedData, analyses: Iterable[Analysis]) -> dict[str, Any]:
    """Variables of a seed's data alone, by name."""
    of_data = [analysis for analysis in analyses if analysis.scope == "data"]
    values = _analyse(of_data, Situation(data.realisation, data.xi, data.labels, data.network))
    labels = [to_host(labels) for _, labels in data.test_sets.values()]
    return values | {"test_label": padded_rows(labels)}


def point_values(
    data: PreparedData, solution: Solution | None, analyses: Iterable[Analysis]
) -> dict[str, Any]:
    """Variables of one grid point, by name; none where there is no solution."""
    if solution is None:
        return {}
    matrix = to_host(solution.order_parameter)
    outputs, higher_minima = solution.network.outputs, solution.other_minima
    if outputs > 1:
        matrix = matrix.reshape((solution.network.n_paths, outputs) * 2)
    return {
        "order_parameter": matrix,
        **{name: getattr(solution, name) for name in _OF_MINIMUM},
        "minima": 1 + len(higher_minima),
        "action_gap": higher_minima[0].action - solution.action if higher_minima else math.nan,
        **_solution_values(data, solution, analyses),
    }


def reference_values(
    data: PreparedData, problem: PathKernels, temperature: float, analyses: Iterable[Analysis]
) -> dict[str, Any]:
    """Variables of the Gaussian process limits of the whole network and of its sub-networks."""
    try:
        limit = gp_limit(problem, data.network, temperature)
        spectrum = problem.label_spectrum(data.network)
        values = {
            "explained_share": spectrum.explained_share(temperature),
            **_solution_values(data, limit, analyses),
        }
        parts = [
            _of_sub_network(data, problem, heads, temperature)
            for heads in data.realisation.sub_networks.values()
        ]
    except (NotPositiveDefiniteError, np.linalg.LinAlgError):
        return {}
    values = {f"{name}_gp": value for name, value in values.items()}
    for name in parts[0] if parts else ():
        values[f"{name}_sub_network"] = np.array([part[name] for part in parts])
    return values


def _of_sub_network(
    data: PreparedData, problem: PathKernels, heads: Sequence[Sequence[int]], temperature: float
) -> dict[str, Any]:
    """Scores of the Gaussian process limit of a sub-network."""
    paths = data.network.paths_through(heads)
    limit = gp_limit(problem.keep_paths(paths), data.network.keep_heads(heads), temperature)
    xp = array_namespace(xi=data.xi)

    def on_paths(xi: Array) -> Array:
        return xp.stack([xi[:, int(path), :] for path in paths], axis=1)

    tests = {name: (on_paths(xi), labels) for name, (xi, labels) in data.test_sets.items()}
    validation = data.validation and (on_paths(data.validation[0]), data.validation[1])
    part = dataclasses.replace(data, xi=on_paths(data.xi), test_sets=tests, validation=validation)
    return _solution_values(part, limit)


def predicted_values(
    data: PreparedData, means: Sequence[Array], variances: Sequence[Array], temperature: float
) -> dict[str, Any]:
    """Moments of predictions on the test examples, and how well they do, by name of the variable.

    Means and variances are arrays of shape (P,) or (P, C) for each test set, without offset and
    noise, whose variance is the temperature T. Classes need no variances.
    """
    means = [to_host(mean) + data.offset for mean in means]
    variances = [to_host(variance) for variance in variances]
    labels = [to_host(labels) for _, labels in data.test_sets.values()]
    predictions = [
        Predictions(mean[None], label, None if variance is None else variance[None], temperature)
        for mean, label, variance in zip(means, labels, variances or [None] * len(means))
    ]
    values: dict[str, Any] = {
        measure.name: np.array([measure.function(predicted) for predicted in predictions])
        for measure in MEASURES[str(data.realisation.kind)]
    }
    values["predictor_mean"] = padded_rows(means)
    if variances:
        values["predictor_variance"] = padded_rows(variances)
    return values


def _solution_values(
    data: PreparedData, solution: Solution, analyses: Iterable[Analysis] = ()
) -> dict[str, Any]:
    """Evidence, leave-one-out errors, predictions and analyses; the variance of targets alone."""
    left_out = leave_one_out(solution, data.xi, data.labels)
    regress = data.realisation.kind == "targets"
    tests = [xi for xi, _ in data.test_sets.values()]
    if regress:
        predictions = [solution.predict(xi) for xi in tests]
        means = [prediction.mean for prediction in predictions]
        variances = [prediction.variance for prediction in predictions]
    else:
        means, variances = [solution.predict_mean(xi) for xi in tests], []
    values = predicted_values(data, means, variances, solution.temperature)
    if data.validation is not None:
        xi, labels = data.validation
        mean = to_host(solution.predict_mean(xi)) + data.offset
        predicted = Predictions(mean[None], to_host(labels))
        for measure in MEASURES[str(data.realisation.kind)]:
            if measure.validation:
                values[f"{measure.name}_validation"] = measure.function(predicted)
    if solution.network.has_skips:
        values["skip_score"] = solution.skip_scores
    situation = Situation(data.realisation, data.xi, data.labels, solution.network, solution)
    return {
        "log_evidence": solution.log_evidence,
        "leave_one_out_log_density": left_out.log_density,
        "leave_one_out_squared_error": left_out.squared_error,
        **values,
        **_analyse(analyses, situation),
    }


def _analyse(analyses: Iterable[Analysis], situation: Situation) -> dict[str, Any]:
    """Values of all analyses; whatever one does wrong is reported under its name."""
    values: dict[str, Any] = {}
    for analysis in analyses:
        declared = {variable.name: len(variable.dims) for variable in analysis.variables}
        try:
            computed = analysis.compute(situation)
            arrays = {name: np.asarray(value) for name, value in computed.items()}
        except Exception as error:
            message = f"analysis {analysis.name!r} failed: {type(error).__name__}: {error}"
            raise AnalysisError(message) from error
        for name, array in arrays.items():
            if declared.get(name) != array.ndim:
                raise AnalysisError(
                    f"analysis {analysis.name!r} returned {name!r} of shape {array.shape}, but "
                    f"declares {declared} (variables and their numbers of dimensions)"
                )
        values |= arrays
    return values
