"""Predictors of the theory without a head: silenced, restricted and re-equilibrated.

Without the paths through a head, U and the kernels C_ππ' of the other paths leave three predictors:

- silenced: rows and columns of U are zero, and α = (K + T1)⁻¹ Y is fitted again for the kernel
  that is left, as in the published code;
- restricted: the mean predictor Σ U_ππ' C_ππ' α over the pairs of paths that are left, with the α
  of the whole network;
- re-equilibrated: the network without the head is a network of its own, and U minimises its
  action.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from pathkernel_core.action.continuation import minimise_from
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.heads import Head, kept_heads
from pathkernel_core.paths.input_kernels import total_kernel
from pathkernel_core.paths.network import Network

Predictor = Callable[[np.ndarray], np.ndarray]
"""Attentioned inputs (P', n, N_0) to the mean output (P',)."""

PREDICTIONS = ("silenced", "restricted", "re-equilibrated")


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
        self._coefficients = self._fit(self._paths)

    def without(
        self, head: Head, network: Network, problem: Problem | None
    ) -> dict[str, Predictor]:
        """Predictors without a head, from (P', n, N_0) to (P',), by name.

        Without the training examples as a ``problem``, or where the action has no minimum, there
        is no re-equilibrated predictor.
        """
        remaining = kept_heads(network.heads, [head])
        paths = network.paths_through(remaining)
        predictors: list[Predictor] = [
            partial(self.predict_refitted, paths=paths),
            partial(self.predict_mean, paths=paths),
        ]
        if problem is not None:
            smaller = problem.keep_paths(paths), network.keep_heads(remaining)
            solution = minimise_from(*smaller, self._temperature, None)
            if solution is not None:
                predictors.append(lambda xi: solution.predict_mean(xi[:, paths]))
        return dict(zip(PREDICTIONS, predictors))

    def predict_refitted(self, xi: np.ndarray, paths: np.ndarray) -> np.ndarray:
        """Mean (P',) for examples (P', n, N_0) by some of the paths, fitted again."""
        return self._kernel(xi, paths) @ self._fit(paths)

    def predict_mean(self, xi: np.ndarray, paths: np.ndarray | None = None) -> np.ndarray:
        """Mean (P',) by some of the paths, by default all, fitted with all."""
        return self._kernel(xi, self._paths if paths is None else paths) @ self._coefficients

    def _fit(self, paths: np.ndarray) -> np.ndarray:
        noise = self._temperature * np.eye(len(self._labels))
        return np.linalg.solve(self._kernel(self._xi, paths) + noise, self._labels)

    def _kernel(self, xi: np.ndarray, paths: np.ndarray) -> np.ndarray:
        weights = self._weights[np.ix_(paths, paths)]
        share = len(paths) / len(self._weights)  # the whole network's number of paths divides
        return share * total_kernel(xi[:, paths], weights, self._xi[:, paths], self._variance)
