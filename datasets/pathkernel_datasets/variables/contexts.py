"""Contexts of quantities: the data of a seed, a solution, and limits, with what they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pathkernel_core.action.minimise import gp_limit
from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import Array, array_namespace, to_host
from pathkernel_core.contracts.analysis import Analysis, Situation
from pathkernel_core.contracts.read_only import read_only
from pathkernel_core.energy.problem import Problem
from pathkernel_core.prediction.cross_validation import LeaveOneOut, leave_one_out
from pathkernel_datasets.errors import AnalysisError
from pathkernel_datasets.study.prepared import PreparedData
from pathkernel_datasets.variables.labelling import stored_dims
from pathkernel_datasets.variables.measures import Predictions


@dataclass(frozen=True, eq=False)
class DataContext:
    """Data of a seed alone."""

    data: PreparedData
    analyses: Sequence[Analysis]

    @property
    def situation(self) -> Situation:
        """Situation that the analyses are given."""
        return situation_of(self.data)

    @cached_property
    def analysis_values(self) -> dict[str, np.ndarray]:
        """Values of the analyses, by name of the variable."""
        return _values_of(self.analyses, self.situation)


@dataclass(frozen=True, eq=False)
class SolutionContext(DataContext):
    """A minimum or a Gaussian process limit, with what several quantities share."""

    solution: Solution

    def __post_init__(self):
        object.__setattr__(self, "solution", read_only(self.solution))

    @cached_property
    def left_out(self) -> LeaveOneOut:
        """Training labels, each predicted from all others."""
        return leave_one_out(self.solution, self.data.xi, self.data.labels)

    @cached_property
    def predictions(self) -> list[Predictions]:
        """Predictions of each test set; their variances of targets alone."""
        if self.data.has_probabilities:
            return [self._probable(*of_set) for of_set in self.data.test_sets.values()]
        tests = [xi for xi, _ in self.data.test_sets.values()]
        temperature = self.solution.temperature
        if self.data.realisation.kind != "targets":
            means = [self.solution.predict_mean(xi) for xi in tests]
            return labelled_predictions(self.data, means, (), temperature)
        moments = [self.solution.predict(xi) for xi in tests]
        means, variances = [each.mean for each in moments], [each.variance for each in moments]
        return labelled_predictions(self.data, means, variances, temperature)

    @cached_property
    def validation(self) -> Predictions:
        """Predictions of the validation examples, without variances."""
        assert self.data.validation is not None
        xi, labels = self.data.validation
        if self.data.has_probabilities:
            return self._probable(xi, labels)
        mean = to_host(self.solution.predict_mean(xi)) + self.data.offset
        return Predictions(mean[None], to_host(labels))

    def _probable(self, xi: Array, labels: Array) -> Predictions:
        """Predictions of examples with probabilities of their classes."""
        predicted = self.solution.predict(xi)
        return Predictions(
            to_host(predicted.mean)[None],
            to_host(labels),
            probabilities=to_host(predicted.probabilities),
            probability_error=to_host(predicted.probability_error),
        )

    @property
    def situation(self) -> Situation:
        """Situation that the analyses are given."""
        solution = self.solution
        return replace(super().situation, network=solution.network, solution=solution)


@dataclass(frozen=True, eq=False)
class LimitContext:
    """Gaussian process limits at a temperature: of the whole network and of its sub-networks."""

    data: PreparedData
    analyses: Sequence[Analysis]
    problem: Problem
    temperature: float

    @cached_property
    def whole(self) -> SolutionContext:
        """Limit of the whole network."""
        limit = gp_limit(self.problem, self.data.network, self._scale)
        return SolutionContext(self.data, self.analyses, limit)

    @cached_property
    def sub_networks(self) -> list[SolutionContext]:
        """Limits of the sub-networks, of which there are no analyses."""
        return [self._of(heads) for heads in self.data.realisation.sub_networks.values()]

    @property
    def _scale(self) -> float | None:
        """The temperature, which classes with probabilities do not have."""
        return None if self.data.has_probabilities else self.temperature

    def _of(self, heads: Sequence[Sequence[int]]) -> SolutionContext:
        data = self.data
        paths = data.network.paths_through(heads)
        network = data.network.keep_heads(heads)
        limit = gp_limit(self.problem.keep_paths(paths), network, self._scale)
        xp = array_namespace(xi=data.xi)

        def on_paths(xi: Array) -> Array:
            return xp.stack([xi[:, int(path), :] for path in paths], axis=1)

        tests = {name: (on_paths(xi), labels) for name, (xi, labels) in data.test_sets.items()}
        validation = data.validation and (on_paths(data.validation[0]), data.validation[1])
        part = replace(data, xi=on_paths(data.xi), test_sets=tests, validation=validation)
        return SolutionContext(part, (), limit)

    @property
    def explained_share(self) -> float:
        """Explained share of the squared labels."""
        spectrum = self.problem.label_spectrum(self.data.network)
        return spectrum.explained_share(self.temperature)


def situation_of(data: PreparedData) -> Situation:
    """Data as analyses see them, which cannot be changed: their code may come from anywhere."""
    realisation, xi, labels = map(read_only, (data.realisation, data.xi, data.labels))
    return Situation(realisation, xi, labels, data.network)


def labelled_predictions(
    data: PreparedData, means: Sequence[Array], variances: Sequence[Array], temperature: float
) -> list[Predictions]:
    """Predictions of each test set, with the offset of the targets."""
    labels = [labels for _, labels in data.test_sets.values()]
    return [
        Predictions(
            (to_host(mean) + data.offset)[None],
            to_host(of_set),
            None if variance is None else to_host(variance)[None],
            temperature,
        )
        for mean, variance, of_set in zip(means, variances or [None] * len(means), labels)
    ]


def _values_of(analyses: Iterable[Analysis], situation: Situation) -> dict[str, np.ndarray]:
    """Values of the analyses of such a situation; mistakes are reported under their names."""
    values: dict[str, np.ndarray] = {}
    scope = "data" if situation.solution is None else "solution"
    for analysis in analyses:
        if analysis.scope == scope:
            values |= _analyse(analysis, situation)
    return values


def _analyse(analysis: Analysis, situation: Situation) -> dict[str, np.ndarray]:
    outputs = situation.network.outputs
    declared = {one.name: len(stored_dims(one.dims, outputs)) for one in analysis.variables}
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
        if array.dtype.kind not in "biuf":
            remedy = "its parts or its size" if array.dtype.kind == "c" else "numbers"
            raise AnalysisError(
                f"analysis {analysis.name!r} returned {name!r} of dtype {array.dtype}, but values "
                f"of a dataset are real numbers; return {remedy}"
            )
    if missing := ", ".join(map(repr, declared.keys() - arrays.keys())):
        raise AnalysisError(
            f"analysis {analysis.name!r} declares {missing}, but returned no such value; it must "
            "return NaN where a variable is not defined"
        )
    return arrays
