"""Output of a trained network path by path: every pruned network is a sum of its columns.

The network is f = n^{-1/2} Σ_π w_π · ξ_π (Eq. 5), with w_π the product of its weights along path π
and ξ_π the attentioned input (Eq. 7). Neither changes when heads are removed: the sum loses the
paths through them, and its factor is that of the paths left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pathkernel_core.attention import Readout, attentioned_inputs
from pathkernel_core.network import Network
from pathkernel_core.task import Examples
from pathkernel_trained.heads import Head, every_head, kept_heads
from pathkernel_trained.path_network import PathNetwork

_SUMS = 2**22  # outputs of pruned networks that are held at once


@dataclass(frozen=True, eq=False)
class PathOutputs:
    """What every path of a network adds to its output, on some episodes.

    Attributes
    ----------
    heads : tuple of int
        Heads H_1 … H_L of each layer.
    values : array, shape (P, n)
        w_π · ξ_π of every episode and path, without the factor n^{-1/2}.
    labels : array, shape (P,)
        Targets ±1.

    Raises
    ------
    ValueError
        If the shapes do not fit together.
    """

    heads: tuple[int, ...]
    values: np.ndarray
    labels: np.ndarray

    def __post_init__(self):
        expected = (len(self.labels), int(np.prod(self.heads)))
        if self.values.shape != expected:
            raise ValueError(
                f"values must have shape {expected}, episodes × paths, but has {self.values.shape}"
            )

    @property
    def through(self) -> np.ndarray:
        """Which paths pass through which head, (n, ΣH_ℓ), heads as in ``every_head``."""
        paths = np.array(Network(self.heads, 1).paths)
        return np.stack(
            [paths[:, layer - 1] == head for layer, head in every_head(self.heads)], axis=1
        )

    def output(self, removed: Iterable[Head] = ()) -> np.ndarray:
        """Output of the network without some heads, its layers rescaled, (P,).

        Raises
        ------
        ValueError
            If there is no such head, or a layer would be left without any.
        """
        kept = Network(self.heads, 1).paths_through(kept_heads(self.heads, removed))
        return self.values[:, kept].sum(axis=1) / np.sqrt(len(kept))

    def correct(self, removed: Iterable[Iterable[Head]]) -> np.ndarray:
        """Which episodes networks without some heads classify correctly.

        The sign of the output decides, which the factor of a layer leaves as it is; an output of
        exactly zero is wrong.

        Parameters
        ----------
        removed : iterable of K iterables of (layer, head)
            Heads that each of the networks lacks.

        Returns
        -------
        array of bool, shape (P, K)
        """
        numbers = {head: place for place, head in enumerate(every_head(self.heads))}
        masks = []
        through = self.through
        for heads in removed:
            heads = list(heads)
            kept_heads(self.heads, heads)  # raises where they cannot be removed
            masks.append(~through[:, [numbers[head] for head in heads]].any(axis=1))
        sums = np.stack(masks, axis=1).astype(float)
        right = np.empty((len(self.values), len(masks)), dtype=bool)
        step = max(1, _SUMS // len(masks))
        for start in range(0, len(right), step):
            part = slice(start, start + step)
            right[part] = (self.values[part] @ sums) * self.labels[part, None] > 0
        return right


def path_outputs(
    network: PathNetwork,
    batches: Iterable[Examples],
    readout: Readout = "mean",
) -> PathOutputs:
    """Path outputs of a trained network.

    Parameters
    ----------
    network : PathNetwork
        From :func:`pathkernel_trained.path_network.read_paths`.
    batches : iterable of Examples
        Token sequences (P, M, N_0) and labels ±1, part by part.
    readout : "first", "last", "mean" or int
        Token at which the network is read out.

    Returns
    -------
    PathOutputs
        In float64.

    Raises
    ------
    ValueError
        If the arrays do not fit together.
    """
    values, labels = [], []
    for batch in batches:
        xi = attentioned_inputs(batch.inputs, network.layers, readout=readout)
        values.append(np.einsum("pni,ni->pn", xi, network.path_weights))
        labels.append(batch.labels)
    heads = network.shape.heads_per_layer
    return PathOutputs(heads, np.concatenate(values), np.concatenate(labels))
