"""A trained network evaluated on examples without some of its heads.

A trained network of the theory's form is f = n^{-1/2} Σ_π w_π · ξ_π (Eq. 5), with w_π the product
of its weights along path π and ξ_π the attentioned input (Eq. 7). Neither changes when heads are
removed: the sum loses the paths through them, and n is the number of paths left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pathkernel_core.contracts.task import Examples
from pathkernel_core.paths.contraction import Readout, attentioned_inputs
from pathkernel_core.paths.heads import Head, kept_heads
from pathkernel_core.paths.network import Network
from pathkernel_trained.path_network import PathNetwork


@dataclass(frozen=True, eq=False)
class PathOutputs:
    """Contribution of every path of a network to its output, on some examples.

    Attributes
    ----------
    heads : tuple of int
        Heads H_1 … H_L of each layer.
    values : array, shape (P, n)
        w_π · ξ_π of every example and path, without the factor n^{-1/2}.
    labels : array, shape (P,)
        Targets ±1.
    """

    heads: tuple[int, ...]
    values: np.ndarray
    labels: np.ndarray

    @property
    def through(self) -> np.ndarray:
        """Which paths pass through which head, bool (n, ΣH_ℓ), heads as in ``every_head``."""
        return (self.positions[:, :, None] == np.arange(sum(self.heads))).any(axis=1)

    @property
    def positions(self) -> np.ndarray:
        """Position on the axis of heads of every path's head in each layer, int (n, L)."""
        starts = np.cumsum([0, *self.heads[:-1]])
        return starts + np.array(Network(self.heads, 1).paths) - 1

    def path_gains(self, gains: np.ndarray) -> np.ndarray:
        """Factor of every path, the product of the gains of its heads, (…, ΣH_ℓ) to (…, n)."""
        return np.asarray(gains, dtype=float)[..., self.positions].prod(axis=-1)

    def output(self, removed: Iterable[Head] = ()) -> np.ndarray:
        """Output (P,) of the network without some heads, its layers rescaled."""
        paths = Network(self.heads, 1).paths_through(kept_heads(self.heads, removed))
        return self.values[:, paths].sum(axis=1) / np.sqrt(len(paths))

    def correct(self, gains: np.ndarray) -> np.ndarray:
        """Whether networks with ``gains`` of their heads, (k, ΣH_ℓ), classify right, (k, P).

        Gains may be bool, the heads that are present. The sign of the output decides, which does
        not depend on n: 1 if it is right, 0 if it is wrong, ½ for an output of zero, such as that
        of a layer without heads.
        """
        # the number of paths divides every output alike, so that it has no say in the sign
        return (1 + np.sign(self.path_gains(gains) @ self.values.T * self.labels)) / 2


@dataclass(frozen=True, eq=False)
class PathEvaluator:
    """Evaluator of the accuracy of a trained network on sets of examples."""

    sets: Mapping[str, PathOutputs]
    quantities: ClassVar[Mapping[str, int]] = {"accuracy": 1}
    keeps_layers: ClassVar[bool] = True

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads H_1 … H_L of each layer."""
        return next(iter(self.sets.values())).heads

    def evaluate(self, examples: str, present: np.ndarray) -> np.ndarray:
        """1 where the network is right, 0 where it is wrong, (k, 1, P, 1).

        Besides heads that are present, it takes their gains, as :meth:`PathOutputs.correct` does.
        """
        return self.sets[examples].correct(present)[:, None, :, None]


def path_outputs(
    network: PathNetwork,
    batches: Iterable[Examples],
    readout: Readout = "mean",
) -> PathOutputs:
    """Path outputs of a trained network in float64, on batches of sequences (P, M, N_0).

    The network is read out at the ``"first"`` or ``"last"`` token, another, or their mean.
    """
    values, labels = [], []
    for batch in batches:
        xi = attentioned_inputs(batch.inputs, network.layers, readout=readout)
        values.append(np.einsum("pni,ni->pn", xi, network.path_weights))
        labels.append(batch.labels)
    heads = network.shape.heads_per_layer
    return PathOutputs(heads, np.concatenate(values), np.concatenate(labels))
