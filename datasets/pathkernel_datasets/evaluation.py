"""Everything that a store holds of a study: what each variable is, and its values."""

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
from pathkernel_core.network import Network
from pathkernel_core.predictor import accuracy, regression
from pathkernel_core.solution import Solution
from pathkernel_datasets.labelling import padded_rows, path_dims
from pathkernel_datasets.measures import MEASURES
from pathkernel_datasets.prepared import PreparedData
from pathkernel_datasets.schema import POINT, REFERENCE

_IN_THE_LIMIT = "in the Gaussian process limit"


class AnalysisError(PathkernelError, RuntimeError):
    """An analysis, perhaps of a plugin, failed or returned something else than it declares."""


def variables(data: PreparedData, analyses: Iterable[Analysis]) -> Iterator[Variable]:
    """Variables of a study with such data, the dimensions of the grid in front of their own."""
    output = ("output",) if data.network.outputs > 1 else ()
    example = ("test_set", "example", *output)
    yield Variable("status", POINT, "how the minimisation of this grid point ended")
    yield Variable("reference_done", REFERENCE, f"1 where the values {_IN_THE_LIMIT} are computed")
    yield Variable("data_done", ("seed",), "1 where the quantities of the data alone are computed")
    yield Variable("test_label", ("seed", *example), "label of the test example")
    scores = _score_variables(data)
    moments = [
        Variable("predictor_mean", example, "posterior mean of the output", "1", "Eq. 9, 29"),
    ]
    if data.network.has_skips:
        what = "score of a layer's skip connection; the largest of a head is 1"
        moments.append(Variable("skip_score", ("layer",), what))
    for analysis in analyses:
        if analysis.of == "data":
            yield from _on_grid(analysis.variables, ("seed",))
        else:
            moments += analysis.variables
    matrix = path_dims(data.network.outputs)
    of_minimum = (
        Variable("order_parameter", matrix, "order parameter U", "1", "Eq. 11"),
        Variable("action", (), "action per width S/N at its minimum", "1", "Eq. 11, 32"),
        Variable("entropy", (), "entropy term of the action per width", "1", "Eq. 33"),
        Variable("energy", (), "energy term of the action per width", "1", "Eq. 12, 34"),
        Variable("gradient_norm", (), "largest entry of the gradients of S/N at the minimum"),
        Variable("evaluations", (), "evaluations of the energy during the minimisation"),
        Variable("minima", (), "number of minima of the action that the search found"),
        Variable("action_gap", (), "action per width of the next higher minimum, less S/N"),
        Variable(
            "predictor_variance",
            example,
            "posterior variance of the output given U, without observation noise",
            equation="Eq. 30",
        ),
    )
    yield from _on_grid((*of_minimum, *scores, *moments), POINT)
    yield from _on_grid((*scores, *moments), REFERENCE, "_gp", f", {_IN_THE_LIMIT}")
    yield Variable(
        "explained_share_gp",
        REFERENCE,
        "explained share of the squared labels that the limit's features span",
    )
    of_part, words = (*REFERENCE, "sub_network"), f", of a sub-network {_IN_THE_LIMIT}"
    yield from _on_grid(scores, of_part, "_sub_network", words)


def _score_variables(data: PreparedData) -> list[Variable]:
    """How well a solution explains the training examples and predicts others."""
    kind = str(data.realisation.kind)
    scores = [
        Variable("log_evidence", (), "leading-order log evidence ln p(Y)", "nat"),
        Variable(
            "leave_one_out_log_density",
            (),
            "mean log density of a training label given all others at fixed U",
            "nat",
        ),
        Variable(
            "leave_one_out_squared_error",
            (),
            "mean squared error of a training label predicted from all others at fixed U",
        ),
        *(
            Variable(measure.name, ("test_set",), measure.long_name, measure.units)
            for measure in MEASURES[kind]
        ),
    ]
    if data.realisation.validation is not None:
        name, what = {
            "classes": ("accuracy", "fraction of validation examples classified correctly"),
            "targets": ("mean_squared_error", "mean squared error on validation examples"),
        }[kind]
        scores.append(Variable(f"{name}_validation", (), what))
    return scores


def _on_grid(
    declared: Iterable[Variable], grid: tuple[str, ...], suffix: str = "", words: str = ""
) -> Iterator[Variable]:
    """Variables with the grid's dimensions in front."""
    for one in declared:
        yield dataclasses.replace(
            one,
            name=one.name + suffix,
            dims=(*grid, *one.dims),
            long_name=one.long_name + words,
        )


def data_values(data: PreparedData, analyses: Iterable[Analysis]) -> dict[str, Any]:
    """Variables of a seed's data alone, by name."""
    situation = Situation(data.realisation, data.xi, data.labels, data.network)
    of_data = [analysis for analysis in analyses if analysis.of == "data"]
    values = _compute(of_data, situation)
    labels = [to_host(labels) for _, labels in data.test_sets.values()]
    return values | {"test_label": padded_rows(labels)}


def point_values(
    data: PreparedData, solution: Solution | None, analyses: Iterable[Analysis]
) -> dict[str, Any]:
    """Variables of one grid point, by name; none where there is no solution."""
    if solution is None:
        return {}
    return {
        "order_parameter": _split_outputs(solution.network, to_host(solution.order_parameter)),
        "action": solution.action,
        "entropy": solution.entropy,
        "energy": solution.energy,
        "log_evidence": solution.log_evidence,
        "gradient_norm": solution.gradient_norm,
        "evaluations": solution.evaluations,
        "minima": 1 + len(solution.other_minima),
        "action_gap": _action_gap(solution),
        **_left_out(solution, data.xi, data.labels),
        **_of_skips(solution),
        **_predictions(data, solution, variance=True),
        **_analyse(data, solution, analyses),
    }


def reference_values(
    data: PreparedData, problem: PathKernels, temperature: float, analyses: Iterable[Analysis]
) -> dict[str, Any]:
    """Variables of the Gaussian process limits of the whole network and of its sub-networks."""
    try:
        whole = gp_limit(problem, data.network, temperature)
        found = {
            "log_evidence": whole.log_evidence,
            "explained_share": problem.label_spectrum(data.network).explained_share(temperature),
            **_left_out(whole, data.xi, data.labels),
            **_of_skips(whole),
            **_predictions(data, whole, variance=False),
            **_analyse(data, whole, analyses),
        }
        parts = [
            _of_sub_network(data, problem, kept, temperature)
            for kept in data.realisation.sub_networks.values()
        ]
    except (NotPositiveDefiniteError, np.linalg.LinAlgError):
        return {}
    values = {f"{name}_gp": value for name, value in found.items()}
    for name in parts[0] if parts else ():
        values[f"{name}_sub_network"] = np.array([part[name] for part in parts])
    return values


def _of_sub_network(
    data: PreparedData, problem: PathKernels, kept: Sequence[Sequence[int]], temperature: float
) -> dict[str, Any]:
    """Scores and accuracies of the Gaussian process limit of a sub-network."""
    paths = data.network.paths_through(kept)
    part = gp_limit(problem.keep_paths(paths), data.network.keep_heads(kept), temperature)

    def kept_paths(examples: tuple[Array, Array]) -> tuple[Array, Array]:
        return _take_paths(examples[0], paths), examples[1]

    xi, labels = kept_paths((data.xi, data.labels))
    tests = {name: kept_paths(test) for name, test in data.test_sets.items()}
    validation = None if data.validation is None else kept_paths(data.validation)
    seen = dataclasses.replace(data, xi=xi, test_sets=tests, validation=validation)
    found = _predictions(seen, part, variance=False)
    del found["predictor_mean"]
    return {"log_evidence": part.log_evidence, **_left_out(part, xi, labels), **found}


def _action_gap(solution: Solution) -> float:
    """Action per width of the next higher minimum above that of the solution; NaN if none."""
    others = solution.other_minima
    return others[0].action - solution.action if others else math.nan


def _left_out(solution: Solution, xi: Array, labels: Array) -> dict[str, float]:
    found = leave_one_out(solution, xi, labels)
    return {
        "leave_one_out_log_density": found.log_density,
        "leave_one_out_squared_error": found.squared_error,
    }


def _of_skips(solution: Solution) -> dict[str, np.ndarray]:
    """Scores of skip connections, if there are any."""
    return {"skip_score": solution.skip_scores} if solution.network.has_skips else {}


def predicted_values(
    data: PreparedData, means: Sequence[Array], variances: Sequence[Array], temperature: float
) -> dict[str, Any]:
    """Variables of predictions on the test examples, by name: moments and how well they do.

    Parameters
    ----------
    data : PreparedData
    means, variances : sequences of array, shape (P,) or (P, C)
        Moments of the output on each test set, without offset and noise. There may be no variances
        if the examples are classes.
    temperature : float
        Variance T of the observation noise.
    """
    means = [to_host(mean) + data.offset for mean in means]
    variances = [to_host(variance) for variance in variances]
    labels = [to_host(labels) for _, labels in data.test_sets.values()]
    if data.realisation.kind == "targets":
        scores = [
            dataclasses.asdict(regression(mean, variance, wanted, temperature))
            for mean, variance, wanted in zip(means, variances, labels)
        ]
    else:
        scores = [{"accuracy": accuracy(*pair)} for pair in zip(means, labels)]
    values = {name: np.array([found[name] for found in scores]) for name in scores[0]}
    values["predictor_mean"] = padded_rows(means)
    if variances:
        values["predictor_variance"] = padded_rows(variances)
    return values


def _predictions(data: PreparedData, solution: Solution, variance: bool) -> dict[str, Any]:
    """Moments on the test examples, with or without the variance, and how well they do."""
    regress = data.realisation.kind == "targets"
    tests, variances = [xi for xi, _ in data.test_sets.values()], []
    if variance or regress:
        moments = [solution.predict(xi) for xi in tests]
        means, variances = ([getattr(m, name) for m in moments] for name in ("mean", "variance"))
    else:
        means = [solution.predict_mean(xi) for xi in tests]
    values = predicted_values(data, means, variances, solution.temperature)
    if not variance:
        values.pop("predictor_variance", None)
    if data.validation is not None:
        xi, labels = data.validation
        mean = solution.predict_mean(xi)
        if regress:
            error = to_host(mean) + data.offset - to_host(labels)
            values["mean_squared_error_validation"] = float(np.mean(error**2))
        else:
            values["accuracy_validation"] = accuracy(mean, labels)
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


def _take_paths(xi: Array, paths: np.ndarray) -> Array:
    xp = array_namespace(xi=xi)
    return xp.stack([xi[:, int(path), :] for path in paths], axis=1)


def _split_outputs(network: Network, order_parameter: np.ndarray) -> np.ndarray:
    """(n·C, n·C) → (n, C, n, C) for several outputs."""
    if network.outputs == 1:
        return order_parameter
    return order_parameter.reshape((network.n_paths, network.outputs) * 2)
