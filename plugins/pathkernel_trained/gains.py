"""Gains in front of the heads of a network along its paths, and their refit.

With a gain m_{ℓh} in front of every head, the network is f = n^{-1/2} Σ_π f_π Π_ℓ m_{ℓπ_ℓ}, where
f_π is the contribution of path π and n counts all paths of the whole network. A gain of 0 thus
switches a head off without rescaling its layer, other than a removal, which divides by the number
of heads that are left. Accuracy is blind to this factor, the squared error is not. See "Gains of
heads" in docs/equations.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathkernel_core.paths.heads import every_head
from pathkernel_pruning.heads.evaluator import RefittedEvaluator
from pathkernel_pruning.heads.exchanges import PROPOSALS
from pathkernel_pruning.heads.gain_choice import TRIALS, choose_heads_by_gains
from pathkernel_pruning.heads.gain_network import PRIOR_VARIANCE, refit_remaining_gains
from pathkernel_pruning.heads.head_groups import HeadGroups
from pathkernel_pruning.heads.loss_form import (
    FormSums,
    LossForm,
    apply_curvature,
    loss_slopes,
    loss_values,
)
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs


@dataclass(frozen=True, eq=False)
class PathGains:
    """Mean squared error of a network along its paths, by the gains of its heads.

    It is a :class:`pathkernel_pruning.heads.gain_network.GainNetwork`.

    Attributes
    ----------
    outputs : PathOutputs
        On the examples of the mean.
    """

    outputs: PathOutputs
    passes = 0.0  # of stored contributions of paths, which cost next to nothing

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads H_1 … H_L of each layer."""
        return self.outputs.heads

    def form(self, gains: np.ndarray) -> LossForm:
        """Squared error to second order about gains (ΣH_ℓ,); exact in the gains of one layer."""
        output, labels = self._output(gains), self.outputs.labels[:, None]
        slopes = (self.outputs.values @ self._path_slopes(gains) / self._root)[:, None]
        sums = FormSums(gains, "squared")
        sums.add(
            output,
            labels,
            (loss_slopes(output, labels)[..., None] * slopes).sum(axis=(0, 1)),
            slopes[:, 0].T @ apply_curvature(output, labels, slopes)[:, 0],
        )
        return sums.result()

    def losses(self, gains: np.ndarray) -> np.ndarray:
        """Squared errors (P,) at gains (ΣH_ℓ,)."""
        return loss_values(self._output(gains), self.outputs.labels[:, None])

    def loss(self, gains: np.ndarray) -> float:
        """Mean squared error at gains (ΣH_ℓ,)."""
        return float(self.losses(gains).mean())

    def slope(self, gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Squared errors (P,) at gains (ΣH_ℓ,), and the gradient (ΣH_ℓ,) of their mean."""
        return self.losses(gains), self.form(gains).gradient

    @property
    def _root(self) -> float:
        """√n of the whole network."""
        return np.sqrt(self.outputs.values.shape[1])

    def _output(self, gains: np.ndarray) -> np.ndarray:
        """Outputs (P, 1)."""
        return self.outputs.values @ self.outputs.path_gains(gains)[:, None] / self._root

    def _path_slopes(self, gains: np.ndarray) -> np.ndarray:
        """Derivatives (n, ΣH_ℓ) of the paths' products of gains."""
        positions, slopes = self.outputs.positions, np.zeros(self.outputs.through.shape)
        paths = np.arange(len(positions))
        for layer in range(len(self.heads)):
            # of a product the derivative by one factor is the product of the others: a quotient
            # would fail where the factor is 0
            others = np.delete(gains[positions], layer, axis=1).prod(axis=1)
            slopes[paths, positions[:, layer]] = others
        return slopes


def refitted_evaluator(evaluator: PathEvaluator, validation: str) -> RefittedEvaluator:
    """Evaluator of the same network whose remaining heads have refitted gains.

    Parameters
    ----------
    evaluator : PathEvaluator
        Evaluator of the network without gains.
    validation : str
        Name of the set on which gains are refitted.
    """
    stored = dict[bytes, np.ndarray]()

    def gains(present: np.ndarray) -> np.ndarray:
        key = present.tobytes()
        if key not in stored:  # every test set asks for the same sets of heads
            stored[key] = refitted_gains(evaluator.sets[validation], present)
        return stored[key]

    def evaluate(examples: str, present: np.ndarray) -> np.ndarray:
        return evaluator.evaluate(examples, np.stack([gains(row) for row in present]))

    return RefittedEvaluator(evaluator, evaluate)


def refitted_gains(outputs: PathOutputs, present: np.ndarray) -> np.ndarray:
    """Posterior gains of the heads that are present, 0 of the others, (ΣH_ℓ,).

    Parameters
    ----------
    outputs : PathOutputs
        On the examples that gains are refitted on.
    present : array of bool, shape (ΣH_ℓ,)
    """
    return refit_remaining_gains(PathGains(outputs), present.astype(float), PRIOR_VARIANCE).gains


def path_curvature_scores(outputs: PathOutputs) -> np.ndarray:
    """Rise of the mean squared error with one head off to second order, (ΣH_ℓ,).

    No path passes through two heads of a layer, so that the rise is exact for a head whose gain
    becomes 0.
    """
    network = PathGains(outputs)
    return network.form(np.ones(sum(network.heads))).rises()


def renewed_scores(outputs: PathOutputs) -> np.ndarray:
    """Step at which heads go by the renewed form, with gains refitted as they go, (ΣH_ℓ,).

    Heads kept, the last of every layer, have the number of those that go. The only head of a
    layer has NaN.
    """
    heads = outputs.heads
    count = sum(heads) - len(heads)
    scores = np.full(sum(heads), float(count))
    if count:
        choice = choose_heads_by_gains(
            PathGains(outputs),
            count,
            trials=TRIALS,
            refits=True,
            prior_variance=PRIOR_VARIANCE,
            groups=HeadGroups(heads, heads, keeps_layers=True),
            proposals=PROPOSALS,
        )
        scores[choice.heads] = range(count)
    layers = np.array([layer for layer, _ in every_head(heads)])
    return np.where(np.array(heads)[layers - 1] > 1, scores, np.nan)
