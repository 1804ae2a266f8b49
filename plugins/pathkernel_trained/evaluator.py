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

from pathkernel_core.attention import Readout, attentioned_inputs
from pathkernel_core.heads import Head, every_head, kept_heads
from pathkernel_core.network import Network
from pathkernel_core.task import Examples
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
        layers, numbers = np.array(every_head(self.heads)).T
        return np.array(Network(self.heads, 1).paths)[:, layers - 1] == numbers

    def output(self, removed: Iterable[Head] = ()) -> np.ndarray:
        """Output (P,) of the network without some heads, its layers rescaled."""
        paths = Network(self.heads, 1).paths_through(kept_heads(self.heads, removed))
        return self.values[:, paths].sum(axis=1) / np.sqrt(len(paths))

    def correct(self, present: np.ndarray) -> np.ndarray:
        """Whether networks with heads ``present``, bool (k, ΣH_ℓ), classify examples right, (k, P).

        The sign of the output decides, which does not depend on n: 1 if it is right, 0 if it is
        wrong, ½ for an output of zero, such as that of a layer without heads.
        """
        # a path is left if none of its heads is removed; the number of paths divides every output
        # alike, so that it has no say in the sign
        is_path_left = (~np.asarray(present) @ self.through.T == 0).astype(float)  # (k, n)
        return (1 + np.sign(is_path_left @ self.values.T * self.labels)) / 2


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
        """1 where the network is right, 0 where it is wrong, (k, 1, P, 1)."""
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
