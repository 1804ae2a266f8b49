"""Losses of the theory's own predictor without single heads: in accuracy, and in squared error.

Without the paths through a head, U and the kernels C_ππ' of the other paths leave three predictors:

- silenced: rows and columns of U are zero, and α = (K + T1)⁻¹ Y is fitted again for the kernel
  that is left, as in the published code;
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

from pathkernel_core.kernels import PathKernels, total_kernel
from pathkernel_core.network import Network
from pathkernel_datasets.computing import minimise_from
from pathkernel_datasets.point import PointData
from pathkernel_trained.heads import Head, kept_heads, removable_heads
from pathkernel_trained.layout import labelled_orders

PREDICTIONS = ("silenced", "restricted", "re-equilibrated")


def theory_drops(
    here: PointData,
    order_parameter: np.ndarray,
    test_sets: Sequence[str],
    report: Callable[[str], None] = lambda doing: None,
) -> xr.Dataset:
    """Accuracy that the theory's predictor loses with every single head, and how its error rises.

    Accuracy is that on the test sets, NaN for those that the study does not have. The squared
    error, which may score heads, is that on validation examples, or on training examples where
    there are none. ``order_parameter`` is U (n, n) at the point; ``report`` is called with the next
    step. The dataset has ``theory_accuracy``, ``theory_drop``, ``theory_drop_error`` and
    ``theory_error_rise`` as docs/pruning.md lists them, NaN for the only head of a layer.
    """
    data, network = here.data, here.network
    fixed = FixedKernels(
        data.xi, data.labels, order_parameter, here.point.temperature, network.variances[0]
    )
    problem = PathKernels(data.xi, data.labels)
    tests = {name: data.test_sets[name] for name in test_sets if name in data.test_sets}
    whole = {name: fixed.restricted(xi) * y > 0 for name, (xi, y) in tests.items()}
    held_out, targets = data.validation or (data.xi, data.labels)
    whole_error = np.mean((fixed.restricted(held_out) - targets) ** 2)
    of_heads = network.n_layers, max(network.heads)
    drop, error = np.full((2, len(PREDICTIONS), len(test_sets), *of_heads), np.nan)
    rise = np.full((len(PREDICTIONS), *of_heads), np.nan)
    for layer, head in removable_heads(network.heads):
        report(f"theory without head {layer}-{head}")
        predictors = fixed.without((layer, head), network, problem)
        for way, predict in enumerate(predictors.values()):
            at = layer - 1, head - 1
            rise[way, *at] = np.mean((predict(held_out) - targets) ** 2) - whole_error
            for name, (xi, labels) in tests.items():
                lost = whole[name].astype(float) - (predict(xi) * labels > 0)
                index = way, list(test_sets).index(name), *at
                drop[index], error[index] = lost.mean(), lost.std() / np.sqrt(len(lost))
    return labelled_orders(
        {
            "theory_accuracy": [np.mean(whole.get(name, np.nan)) for name in test_sets],
            "theory_drop": drop,
            "theory_drop_error": error,
            "theory_error_rise": rise,
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
        Attentioned inputs of the training examples, of the labels (P,).
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

    def without(
        self, head: Head, network: Network, problem: PathKernels | None
    ) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        """Predictors without a head, from (P', n, N_0) to (P',), by name.

        Without the training examples as a ``problem``, or where the action has no minimum, there
        is no re-equilibrated predictor.
        """
        kept = kept_heads(network.heads, [head])
        paths = network.paths_through(kept)
        ways = [partial(self.silenced, paths=paths), partial(self.restricted, paths=paths)]
        if problem is not None:
            left = problem.keep_paths(paths), network.keep_heads(kept)
            solution = minimise_from(*left, self._temperature, None)
            if solution is not None:
                ways.append(lambda xi: solution.predict_mean(xi[:, paths]))
        return dict(zip(PREDICTIONS, ways))

    def silenced(self, xi: np.ndarray, paths: np.ndarray) -> np.ndarray:
        """Mean (P',) for examples (P', n, N_0) by the paths that are left, fitted again."""
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
