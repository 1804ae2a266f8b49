"""Quantities of a study: one table of its variables, each with the function that computes it.

The table serves declaring and computing alike, so that neither lacks what the other has. Analyses
declare and compute apart; their values are compared with what they declare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

from pathkernel_core.action.solution import Solution, Status
from pathkernel_core.arrays.backend import Array, to_host
from pathkernel_core.contracts.analysis import Analysis, Variable
from pathkernel_core.energy.problem import Problem
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_datasets.errors import AnalysisError
from pathkernel_datasets.study.prepared import PreparedData
from pathkernel_datasets.study.study import POINT
from pathkernel_datasets.variables.contexts import (
    DataContext,
    LimitContext,
    SolutionContext,
    labelled_predictions,
)
from pathkernel_datasets.variables.labelling import padded_rows, stored_dims
from pathkernel_datasets.variables.measures import MEASURES, Measure

REFERENCE = ("seed", "temperature")
STATUS_CODES = {
    "not computed": 0,
    Status.CONVERGED.name.lower(): 1,
    Status.MAX_EVALUATIONS.name.lower(): 2,
    Status.STALLED.name.lower(): 3,
    "not_positive_definite": 4,
}
VARIANCE = "posterior variance of the output given U, without observation noise"
_IN_THE_LIMIT = "in the Gaussian process limit"
_EXAMPLE = ("test_set", "example", "output")


@dataclass(frozen=True)
class Quantity(Variable):
    """A variable of a study, and the function that computes it.

    Attributes
    ----------
    function : callable
        Context, such as a :class:`SolutionContext` → number or array, whose axes are ``dims``.
    dtype : str
        "float64", where NaN is missing; of whole numbers "int32" or "int8", where 0 is.
    present : callable
        Prepared data → whether a study of such data has the variable.
    """

    _: KW_ONLY
    function: Callable[[Any], Any]
    dtype: str = "float64"
    present: Callable[[PreparedData], bool] = lambda data: True


def status_name(solution: Solution | None) -> str:
    """Key of a minimisation's end in ``STATUS_CODES``."""
    return "not_positive_definite" if solution is None else solution.status.name.lower()


def _order_parameter(context: SolutionContext) -> np.ndarray:
    matrix, network = to_host(context.solution.order_parameter), context.solution.network
    return matrix.reshape((network.n_paths, network.outputs) * 2) if network.outputs > 1 else matrix


def _has_squared_loss(data: PreparedData) -> bool:
    return not data.has_probabilities


def _action_gap(context: SolutionContext) -> float:
    higher_minima = context.solution.other_minima
    return higher_minima[0].action - context.solution.action if higher_minima else math.nan


def _attribute(name: str, long_name: str, **settings: Any) -> Quantity:
    """Number that is an attribute of the solution."""
    return Quantity(name, (), long_name, function=attrgetter(f"solution.{name}"), **settings)


def _flag(name: str, long_name: str) -> Quantity:
    return Quantity(name, (), long_name, function=lambda context: 1, dtype="int8")


def _take_analysis(name: str) -> Callable[[Any], Any]:
    return lambda context: context.analysis_values[name]


def _of_measure(measure: Measure, kind: str) -> Quantity:
    return Quantity(
        measure.name,
        ("test_set",),
        measure.long_name,
        measure.units,
        function=lambda context: np.array([measure.function(each) for each in context.predictions]),
        present=lambda data: data.scoring == kind,
    )


def _of_validation(measure: Measure, kind: str) -> Quantity:
    return replace(
        _of_measure(measure, kind),
        name=f"{measure.name}_validation",
        dims=(),
        long_name=measure.validation,
        function=lambda context: measure.function(context.validation),
        present=lambda data: data.scoring == kind and data.realisation.validation is not None,
    )


_STATUS = Quantity(  # of every grid point, also without a solution
    "status",
    (),
    "how the minimisation of this grid point ended",
    function=lambda solution: STATUS_CODES[status_name(solution)],
    dtype="int8",
)
_REFERENCE_DONE = _flag(  # also where a limit does not exist
    "reference_done", f"1 where the values {_IN_THE_LIMIT} are computed"
)
_DATA = (
    _flag("data_done", "1 where the quantities of the data alone are computed"),
    Quantity(
        "test_label",
        _EXAMPLE,
        "label of the test example",
        function=lambda context: padded_rows(
            [to_host(labels) for _, labels in context.data.test_sets.values()]
        ),
    ),
)
_PREDICTOR_VARIANCE = Quantity(
    "predictor_variance",
    _EXAMPLE,
    VARIANCE,
    equation="Eq. 30",
    function=lambda context: padded_rows([of_set.variances[0] for of_set in context.predictions]),
    present=lambda data: data.realisation.kind == "targets",
)
_MINIMA = (
    Quantity(
        "order_parameter",
        ("path", "output", "path_dual", "output_dual"),
        "order parameter U",
        equation="Eq. 11",
        function=_order_parameter,
    ),
    _attribute("action", "action per width S/N at its minimum", equation="Eq. 11, 32"),
    _attribute("entropy", "entropy term of the action per width", equation="Eq. 33"),
    _attribute("energy", "energy term of the action per width", equation="Eq. 12, 34"),
    _attribute("gradient_norm", "largest entry of the gradients of S/N at the minimum"),
    _attribute("evaluations", "evaluations of the energy during the minimisation", dtype="int32"),
    _attribute("single_evaluations", "evaluations in float32, among all", dtype="int32"),
    Quantity(
        "minima",
        (),
        "number of minima of the action that the search found",
        function=lambda context: 1 + len(context.solution.other_minima),
        dtype="int32",
    ),
    Quantity(
        "action_gap",
        (),
        "action per width of the next higher minimum, less S/N",
        function=_action_gap,
    ),
    _PREDICTOR_VARIANCE,
)
_MEASURES = tuple(_of_measure(measure, kind) for kind in MEASURES for measure in MEASURES[kind])
_PREDICTOR_MEAN = Quantity(
    "predictor_mean",
    _EXAMPLE,
    "posterior mean of the output",
    equation="Eq. 9, 29",
    function=lambda context: padded_rows([of_set.means[0] for of_set in context.predictions]),
)
_SCORES = (  # of minima, limits and sub-networks
    _attribute("log_evidence", "leading-order log evidence ln p(Y)", units="nat"),
    Quantity(
        "leave_one_out_log_density",
        (),
        "mean log density of a training label given all others at fixed U",
        "nat",
        function=attrgetter("left_out.log_density"),
        present=_has_squared_loss,
    ),
    Quantity(
        "leave_one_out_squared_error",
        (),
        "mean squared error of a training label predicted from all others at fixed U",
        function=attrgetter("left_out.squared_error"),
        present=_has_squared_loss,
    ),
    *_MEASURES,
    *(
        _of_validation(measure, kind)
        for kind in MEASURES
        for measure in MEASURES[kind]
        if measure.validation
    ),
)
_SOLUTIONS = (  # of minima and limits
    *_SCORES,
    _PREDICTOR_MEAN,
    Quantity(
        "probability",
        ("test_set", "example", "class"),
        "probability of the class, averaged over the Gaussian of the outputs",
        function=lambda context: padded_rows(
            [of_set.probabilities for of_set in context.predictions]
        ),
        present=lambda data: data.has_probabilities,
    ),
    Quantity(
        "probability_error",
        ("test_set", "example", "class"),
        "numerical error of the probability, of its average over the Gaussian of the outputs",
        function=lambda context: padded_rows(
            [of_set.probability_error for of_set in context.predictions]
        ),
        present=lambda data: data.has_probabilities,
    ),
    Quantity(
        "skip_score",
        ("skip",),
        "score of a layer's skip connection; the largest of a head is 1",
        function=attrgetter("solution.skip_scores"),
        present=lambda data: data.network.has_skips,
    ),
)


def _in_the_limit(quantity: Quantity) -> Quantity:
    return replace(
        quantity,
        name=f"{quantity.name}_gp",
        long_name=f"{quantity.long_name}, {_IN_THE_LIMIT}",
        function=lambda limits: quantity.function(limits.whole),
    )


def _of_sub_networks(quantity: Quantity) -> Quantity:
    dims = ("sub_network", *quantity.dims)

    def values(limits: LimitContext) -> np.ndarray:
        of_parts = [quantity.function(part) for part in limits.sub_networks]
        return np.array(of_parts) if of_parts else np.empty((0,) * len(dims))

    return replace(
        quantity,
        name=f"{quantity.name}_sub_network",
        dims=dims,
        long_name=f"{quantity.long_name}, of a sub-network {_IN_THE_LIMIT}",
        function=values,
    )


_LIMITS = (
    *map(_in_the_limit, _SOLUTIONS),
    Quantity(
        "explained_share_gp",
        (),
        "explained share of the squared labels that the limit's features span",
        function=attrgetter("explained_share"),
        present=_has_squared_loss,
    ),
    *map(_of_sub_networks, _SCORES),
)


def declare_quantities(data: PreparedData, analyses: Sequence[Analysis]) -> tuple[Quantity, ...]:
    """Variables of a study with such data, the dimensions of the grid in front of their own.

    Raises
    ------
    AnalysisError
        If an analysis has an unknown scope.
    """
    for analysis in analyses:
        if analysis.scope not in ("solution", "data"):
            raise AnalysisError(
                f"analysis {analysis.name!r} has the scope {analysis.scope!r}: choose 'solution' "
                "or 'data'"
            )
    grids = (
        (POINT, [_STATUS]),
        (REFERENCE, [_REFERENCE_DONE]),
        (("seed",), _of_data(data, analyses)),
        (POINT, _of_points(data, analyses)),
        (REFERENCE, _of_limits(data, analyses)),
    )
    return tuple(
        replace(quantity, dims=(*grid, *stored_dims(quantity.dims, data.network.outputs)))
        for grid, quantities in grids
        for quantity in quantities
    )


def core_variables(outputs: int) -> dict[str, tuple[tuple[str, ...], str]]:
    """Dimensions and types of all variables but those of analyses, by name."""
    grids = (
        (POINT, (_STATUS, *_MINIMA, *_SOLUTIONS)),
        (REFERENCE, (_REFERENCE_DONE, *_LIMITS)),
        (("seed",), _DATA),
    )
    return {
        quantity.name: ((*grid, *stored_dims(quantity.dims, outputs)), quantity.dtype)
        for grid, quantities in grids
        for quantity in quantities
    }


def data_values(data: PreparedData, analyses: Sequence[Analysis]) -> dict[str, Any]:
    """Variables of a seed's data alone, by name."""
    return _values(_of_data(data, analyses), DataContext(data, analyses))


def point_values(
    data: PreparedData, solution: Solution | None, analyses: Sequence[Analysis]
) -> dict[str, Any]:
    """Variables of one grid point, by name; its status alone where there is no solution."""
    values = _values([_STATUS], solution)
    if solution is not None:
        context = SolutionContext(data, analyses, solution)
        values |= _values(_of_points(data, analyses), context)
    return values


def reference_values(
    data: PreparedData, problem: Problem, temperature: float, analyses: Sequence[Analysis]
) -> dict[str, Any]:
    """Variables of the Gaussian process limits of the whole network and of its sub-networks.

    ``reference_done`` alone where one of the limits does not exist.
    """
    limits = LimitContext(data, analyses, problem, temperature)
    done = _values([_REFERENCE_DONE], limits)
    try:
        # no mistake of an analysis ends here: whatever it raises is an AnalysisError
        return done | _values(_of_limits(data, analyses), limits)
    except (NotPositiveDefiniteError, np.linalg.LinAlgError):
        return done


def predicted_values(
    data: PreparedData, means: Sequence[Array], variances: Sequence[Array], temperature: float
) -> dict[str, Any]:
    """Moments of predictions on the test examples, and how well they do, by name of the variable.

    Means and variances are arrays of shape (P,) or (P, C) for each test set, without offset and
    noise, whose variance is the temperature T. Classes need no variances.
    """
    context = SimpleNamespace(predictions=labelled_predictions(data, means, variances, temperature))
    moments = (_PREDICTOR_MEAN, _PREDICTOR_VARIANCE) if variances else (_PREDICTOR_MEAN,)
    return _values((*_present(_MEASURES, data), *moments), context)


def _of_data(data: PreparedData, analyses: Sequence[Analysis]) -> list[Quantity]:
    return [*_present(_DATA, data), *_of_analyses(analyses, "data")]


def _of_points(data: PreparedData, analyses: Sequence[Analysis]) -> list[Quantity]:
    return [*_present((*_MINIMA, *_SOLUTIONS), data), *_of_analyses(analyses, "solution")]


def _of_limits(data: PreparedData, analyses: Sequence[Analysis]) -> list[Quantity]:
    return [*_present(_LIMITS, data), *map(_in_the_limit, _of_analyses(analyses, "solution"))]


def _present(quantities: Iterable[Quantity], data: PreparedData) -> list[Quantity]:
    return [quantity for quantity in quantities if quantity.present(data)]


def _of_analyses(analyses: Iterable[Analysis], scope: str) -> list[Quantity]:
    return [
        Quantity(**vars(variable), function=_take_analysis(variable.name))
        for analysis in analyses
        if analysis.scope == scope
        for variable in analysis.variables
    ]


def _values(quantities: Iterable[Quantity], context: Any) -> dict[str, Any]:
    return {quantity.name: quantity.function(context) for quantity in quantities}
