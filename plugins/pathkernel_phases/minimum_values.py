"""What a map shows of a minimum: its stiffness, its size, its state, and how well it predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import to_host
from pathkernel_datasets.results.point import PointData
from pathkernel_datasets.variables.contexts import SolutionContext
from pathkernel_datasets.variables.measures import Measure

_EXPLAINED = 0.5  # share of the squared training labels from which a network is in use
_NEAR_PRIOR = 10.0  # trace of U over that of its limit, up to which it is near


@dataclass(frozen=True)
class Values:
    """Values of one minimum.

    Attributes
    ----------
    softest : float
        Smallest eigenvalue of the Hessian of S/N.
    trace_ratio : float
        Trace of U relative to the Gaussian process limit.
    state : str
        ``silent`` if less than half of the squared training labels is explained while U is within
        a factor of ten of its limit, or ``in use``.
    strongest_path : str
        Label of the path with the largest U(π, π).
    measure : float
        First measure of the study on its first test set.
    """

    softest: float
    trace_ratio: float
    state: str
    strongest_path: str
    measure: float


MinimumValues: TypeAlias = Callable[[Solution], Values]


def minimum_values(rebuilt: PointData, measure: Measure) -> MinimumValues:
    """Function that gives the values of minima of one problem."""
    data = rebuilt.data
    labels = to_host(data.labels)

    def values(solution: Solution) -> Values:
        network = solution.network
        residual = labels - to_host(solution.predict_mean(data.xi))
        explained = 1 - float((residual**2).sum() / (labels**2).sum())
        order_parameter = to_host(solution.order_parameter)
        by_path = order_parameter.diagonal().reshape(network.n_paths, -1).sum(axis=1)
        predictions = SolutionContext(data, (), solution).predictions
        trace_ratio = float(by_path.sum() / network.limit_diagonal.sum())
        # near its end a state in use explains little, too, but U is far from the limit
        is_silent = explained < _EXPLAINED and trace_ratio < _NEAR_PRIOR
        return Values(
            solution.stability().softest,
            trace_ratio,
            "silent" if is_silent else "in use",
            network.path_labels[int(np.argmax(by_path))],
            measure.function(predictions[0]),
        )

    return values
