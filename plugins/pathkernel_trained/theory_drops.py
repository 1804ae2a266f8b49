"""What the theory says is lost with a head: accuracy and error of its own predictor without it.

Without the paths through a head, U and the kernels C_ππ' of the other paths leave three predictors:

- silenced: rows and columns of U are zero, and α = (K + T1)⁻¹ Y is found anew for the kernel that
  is left, as in the published code;
- restricted: the mean predictor Σ U_ππ' C_ππ' α over the pairs of paths that are left, with the α
  of the whole network;
- re-equilibrated: the network without the head is a network of its own, and U is what minimises
  its action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import xarray as xr

from pathkernel_core.cross_validation import leave_one_out
from pathkernel_core.kernels import PathKernels, total_kernel
from pathkernel_core.network import Network
from pathkernel_core.predictor import accuracy
from pathkernel_core.solution import Solution
from pathkernel_datasets.choice import best
from pathkernel_datasets.computing import minimise_from
from pathkernel_datasets.point import PointData
from pathkernel_datasets.prepared import PreparedData
from pathkernel_trained.heads import Head, Scores, kept_heads, removable_heads
from pathkernel_trained.pruning_layout import labelled_orders

PREDICTIONS = ("silenced", "restricted", "re-equilibrated")


def theory_drops(
    here: PointData,
    order_parameter: np.ndarray,
    temperatures: Sequence[float],
    test_sets: Sequence[str],
    report: Callable[[str], None] = lambda doing: None,
) -> xr.Dataset:
    """Accuracy that the theory's predictor loses with every single head, and how its error rises.

    Accuracy is that on test examples; the squared error, which may score heads, that on validation
    examples, or on training examples where there are none.

    Parameters
    ----------
    here : PointData
        Point of a study of one output, with its data.
    order_parameter : array, shape (n, n)
        U at the point.
    temperatures : sequence of float
        Temperatures T for the network without a head; the one of largest validation accuracy is
        taken, or, without validation examples, of smallest leave-one-out error.
    test_sets : sequence of str
        Test sets, NaN for those that the study does not have.
    report : callable
        Called with what is done next.

    Returns
    -------
    xarray.Dataset
        ``theory_accuracy``, ``theory_drop`` and ``theory_drop_error``, ``theory_error_rise`` and
        ``theory_drop_temperature`` as docs/pruning.md lists them. NaN for the only head of a layer.
    """
    data, network = here.data, here.network
    fixed = FixedKernels(
        data.xi, data.labels, order_parameter, here.at.temperature, network.variances[0]
    )
    problem = PathKernels(data.xi, data.labels)
    tests = {name: data.test_sets[name] for name in test_sets if name in data.test_sets}
    whole = {name: fixed.restricted(xi) * y > 0 for name, (xi, y) in tests.items()}
    held_out, targets = data.validation or (data.xi, data.labels)
    whole_error = np.mean((fixed.restricted(held_out) - targets) ** 2)
    of_heads = network.n_layers, max(network.heads)
    drop, error = np.full((2, len(PREDICTIONS), len(test_sets), *of_heads), np.nan)
    rise, taken = np.full((len(PREDICTIONS), *of_heads), np.nan), np.full(of_heads, np.nan)
    for layer, head in removable_heads(network.heads):
        report(f"theory without head {layer}-{head}")
        at = layer - 1, head - 1
        kept = kept_heads(network.heads, [(layer, head)])
        paths = network.paths_through(kept)
        solution = equilibrated(problem, network, data, [(layer, head)], temperatures)
        taken[at] = np.nan if solution is None else solution.temperature
        ways = [partial(fixed.silenced, paths=paths), partial(fixed.restricted, paths=paths)]
        ways += [] if solution is None else [partial(_of_paths, solution, paths)]
        for place, predict in enumerate(ways):
            rise[place, *at] = np.mean((predict(held_out) - targets) ** 2) - whole_error
        for name, (xi, labels) in tests.items():
            for place, predict in enumerate(ways):
                mean = predict(xi)
                lost = whole[name].astype(float) - (mean * labels > 0)
                index = place, list(test_sets).index(name), *at
                drop[index], error[index] = lost.mean(), lost.std() / np.sqrt(len(lost))
    return labelled_orders(
        {
            "theory_accuracy": [np.mean(whole.get(name, np.nan)) for name in test_sets],
            "theory_drop": drop,
            "theory_drop_error": error,
            "theory_error_rise": rise,
            "theory_drop_temperature": taken,
        },
        {
            "prediction": PREDICTIONS,
            "test_set": test_sets,
            "layer": range(1, network.n_layers + 1),
            "head": range(1, max(network.heads) + 1),
        },
    )


def error_scores(drops: xr.Dataset, heads: Sequence[int]) -> dict[str, Scores]:
    """Scores of all heads: the rise of the theory's squared error without them, by prediction.

    A prediction that some head's removal leaves without a minimum of the action has none.
    """
    tables = {str(way): drops["theory_error_rise"].sel(prediction=way) for way in PREDICTIONS}
    return {
        way: [row[:count] for row, count in zip(table.values, heads)]
        for way, table in tables.items()
        if all(table.sel(layer=la, head=h).notnull() for la, h in removable_heads(heads))
    }


def _of_paths(solution: Solution, paths: np.ndarray, xi: np.ndarray) -> np.ndarray:
    return solution.predict_mean(xi[:, paths])


class FixedKernels:
    """Mean predictors from the kernels of some paths, weighted as in the whole network.

    Parameters
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs of the training examples.
    labels : array, shape (P,)
    weights : array, shape (n, n)
        Order parameter U as it enters the kernel.
    temperature, variance : float
        Temperature T, and prior variance σ²_0 of the projection.
    """

    def __init__(
        self,
        xi: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        temperature: float,
        variance: float,
    ):
        self._xi, self._labels, self._weights = xi, labels, weights
        self._temperature, self._variance = temperature, variance
        self._whole = self._fitted(np.arange(len(weights)))

    def silenced(self, xi: np.ndarray, paths: np.ndarray) -> np.ndarray:
        """Mean (P',) for examples (P', n, N_0) by the paths that are left, fitted anew."""
        return self._kernel(xi, paths) @ self._fitted(paths)

    def restricted(self, xi: np.ndarray, paths: np.ndarray | None = None) -> np.ndarray:
        """Mean (P',) by the paths that are left, fitted with all; by all without ``paths``."""
        paths = np.arange(len(self._weights)) if paths is None else paths
        return self._kernel(xi, paths) @ self._whole

    def _fitted(self, paths: np.ndarray) -> np.ndarray:
        noise = self._temperature * np.eye(len(self._labels))
        return np.linalg.solve(self._kernel(self._xi, paths) + noise, self._labels)

    def _kernel(self, xi: np.ndarray, paths: np.ndarray) -> np.ndarray:
        weights = self._weights[np.ix_(paths, paths)]
        share = len(paths) / len(self._weights)  # the whole network's number of paths divides
        return share * total_kernel(xi[:, paths], weights, self._xi[:, paths], self._variance)


def equilibrated(
    problem: PathKernels,
    network: Network,
    data: PreparedData,
    removed: Sequence[Head],
    temperatures: Sequence[float],
) -> Solution | None:
    """Minimum of the action without some heads, at a temperature of its own; None if all fail.

    Parameters
    ----------
    problem : PathKernels
        Of the whole network.
    network : Network
        The whole network.
    data : PreparedData
        What the temperature is chosen by.
    removed : sequence of (layer, head)
    temperatures : sequence of float
    """
    kept = kept_heads(network.heads, removed)
    paths = network.paths_through(kept)
    left, part = problem.keep_paths(paths), network.keep_heads(kept)
    solutions, solution = [], None
    for temperature in sorted(temperatures, reverse=True):
        found = minimise_from(left, part, temperature, solution)
        solution = found if found is not None and found.status.ok else None
        solutions += [] if found is None else [found]
    if len(solutions) < 2:
        return solutions[0] if solutions else None
    errors = [leave_one_out(each, data.xi[:, paths], data.labels) for each in solutions]
    scores = [-each.squared_error for each in errors]
    if data.validation is not None:
        xi, labels = data.validation
        scores = [accuracy(each.predict_mean(xi[:, paths]), labels) for each in solutions]
    ties = [each.log_density for each in errors]
    computed = np.ones((1, len(solutions)), dtype=bool)
    return solutions[best(np.array([scores]), np.array([ties]), computed)]
