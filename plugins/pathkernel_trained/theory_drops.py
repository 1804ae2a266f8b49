"""Losses of the theory's own predictor without single heads: in accuracy, and in squared error.

Without the paths through a head, U and the kernels C_ππ' of the other paths leave three predictors:

- silenced: rows and columns of U are zero, and α = (K + T1)⁻¹ Y is fitted again for the kernel
  that is left, as in the published code;
- restricted: the mean predictor Σ U_ππ' C_ππ' α over the pairs of paths that are left, with the α
  of the whole network;
- re-equilibrated: the network without the head is a network of its own, and U minimises its
  action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import xarray as xr

from pathkernel_core.kernels import PathKernels, total_kernel
from pathkernel_core.network import Network
from pathkernel_datasets.computing import minimise_from
from pathkernel_datasets.point import PointData
from pathkernel_trained.heads import Head, by_layer, every_head, kept_heads, removable_heads
from pathkernel_trained.layout import labelled_orders

PREDICTIONS = ("silenced", "restricted", "re-equilibrated")


def theory_drops(
    point_data: PointData,
    order_parameter: np.ndarray,
    test_sets: Sequence[str],
    report: Callable[[str], None] = lambda activity: None,
) -> xr.Dataset:
    """Accuracy that the theory's predictor loses with every single head, and rise of its error.

    Accuracy is on the test sets, NaN for those that the study does not have. The squared error,
    which may score heads, is on validation examples, or on training examples where there are none.
    ``order_parameter`` is U (n, n) at the point; ``report`` is called with the next step. The
    dataset has ``theory_accuracy``, ``theory_drop``, ``theory_drop_error`` and
    ``theory_error_rise`` as docs/pruning.md lists them, NaN for the only head of a layer.
    """
    data, network = point_data.data, point_data.network
    fixed = FixedKernels(
        data.xi, data.labels, order_parameter, point_data.point.temperature, network.variances[0]
    )
    problem = PathKernels(data.xi, data.labels)
    tests = {
        number: data.test_sets[name]
        for number, name in enumerate(test_sets)
        if name in data.test_sets
    }
    correct = {number: fixed.restricted(xi) * y > 0 for number, (xi, y) in tests.items()}
    held_out, targets = data.validation or (data.xi, data.labels)
    error_before = np.mean((fixed.restricted(held_out) - targets) ** 2)
    heads = every_head(network.heads)
    drop, error = np.full((2, len(PREDICTIONS), len(test_sets), len(heads)), np.nan)
    rise = np.full((len(PREDICTIONS), len(heads)), np.nan)
    for layer, head in removable_heads(network.heads):
        report(f"theory without head {layer}-{head}")
        column = heads.index((layer, head))
        predictors = fixed.without((layer, head), network, problem)
        for row, predict in enumerate(predictors.values()):
            rise[row, column] = np.mean((predict(held_out) - targets) ** 2) - error_before
            for number, (xi, labels) in tests.items():
                lost = correct[number].astype(float) - (predict(xi) * labels > 0)
                drop[row, number, column] = lost.mean()
                error[row, number, column] = lost.std() / np.sqrt(len(lost))
    return labelled_orders(
        {
            "theory_accuracy": [
                np.mean(correct.get(number, np.nan)) for number in range(len(test_sets))
            ],
            "theory_drop": by_layer(drop, network.heads),
            "theory_drop_error": by_layer(error, network.heads),
            "theory_error_rise": by_layer(rise, network.heads),
        },
        {
            "prediction": PREDICTIONS,
            "test_set": test_sets,
            "layer": range(1, network.n_layers + 1),
            "head": range(1, max(network.heads) + 1),
        },
    )


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
        self._paths = np.arange(len(weights))
        self._coefficients = self._fitted(self._paths)

    def without(
        self, head: Head, network: Network, problem: PathKernels | None
    ) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        """Predictors without a head, from (P', n, N_0) to (P',), by name.

        Without the training examples as a ``problem``, or where the action has no minimum, there
        is no re-equilibrated predictor.
        """
        remaining = kept_heads(network.heads, [head])
        paths = network.paths_through(remaining)
        predictors = [partial(self.silenced, paths=paths), partial(self.restricted, paths=paths)]
        if problem is not None:
            smaller = problem.keep_paths(paths), network.keep_heads(remaining)
            solution = minimise_from(*smaller, self._temperature, None)
            if solution is not None:
                predictors.append(lambda xi: solution.predict_mean(xi[:, paths]))
        return dict(zip(PREDICTIONS, predictors))

    def silenced(self, xi: np.ndarray, paths: np.ndarray) -> np.ndarray:
        """Mean (P',) for examples (P', n, N_0) by some of the paths, fitted again."""
        return self._kernel(xi, paths) @ self._fitted(paths)

    def restricted(self, xi: np.ndarray, paths: np.ndarray | None = None) -> np.ndarray:
        """Mean (P',) by some of the paths, by default all, fitted with all."""
        return self._kernel(xi, self._paths if paths is None else paths) @ self._coefficients

    def _fitted(self, paths: np.ndarray) -> np.ndarray:
        noise = self._temperature * np.eye(len(self._labels))
        return np.linalg.solve(self._kernel(self._xi, paths) + noise, self._labels)

    def _kernel(self, xi: np.ndarray, paths: np.ndarray) -> np.ndarray:
        weights = self._weights[np.ix_(paths, paths)]
        share = len(paths) / len(self._weights)  # the whole network's number of paths divides
        return share * total_kernel(xi[:, paths], weights, self._xi[:, paths], self._variance)
