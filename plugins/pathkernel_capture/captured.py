"""What was captured of a model: attentioned inputs, labels, and whose heads they are of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pathkernel_core.backend import Array, to_host
from pathkernel_tasks.custom import Custom


@dataclass(frozen=True, eq=False, repr=False)
class Captured:
    """Examples seen along attention paths of a model.

    Attributes
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs in double precision, in the order of ``members``, those of the first
        layer slowest.
    labels : array, shape (P,) or (P, C), or None
        As they came with the batches.
    members : tuple of L tuples of (layer, head)
        Heads of the model, both numbered from 1, that the theory's network has in each layer.
        (0, 0) is none of them, but the identity, which carries tokens past all layers.
    means : array, shape (n or 1, N_0)
        Mean of the tokens that every path attends to.
    deviations : array, shape (n or 1,)
        Standard deviation of all their entries, about one mean for all of them.
    notes : mapping of str to str
        What was left out of the model.
    skips : bool
        Whether paths past the heads of every layer are among them, first in each layer: the network
        is then ``Network(heads, widths, skips=s)``.
    shift, factor : array, shapes (n or 1, N_0) and (n or 1,)
        What :meth:`scaled` did: the tokens of the model less ``shift``, times ``factor``.
    """

    xi: np.ndarray
    labels: np.ndarray | None
    members: tuple[tuple[tuple[int, int], ...], ...]
    means: np.ndarray
    deviations: np.ndarray
    notes: Mapping[str, str] = field(default_factory=dict)
    skips: bool = False
    shift: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))
    factor: np.ndarray = field(default_factory=lambda: np.ones(1))

    def __repr__(self) -> str:
        examples, paths, width = self.xi.shape
        return (
            f"Captured({examples} examples, {paths} paths, N_0 = {width}, heads {self.heads}"
            f"{' and skips' * self.skips})"
        )

    @property
    def heads(self) -> tuple[int, ...]:
        """Number of heads of each layer of the theory's network."""
        return tuple(len(layer) for layer in self.members)

    def scaled(self, scale: float, like: Captured | None = None) -> Captured:
        """Tokens of the model centred and divided by their deviation, times ``scale``.

        Parameters
        ----------
        scale : float
            Positive.
        like : Captured, optional
            The training examples, whose mean and deviation a test set must take; by default these.
            Whether they or these were scaled before makes no difference.

        Raises
        ------
        ValueError
            If the scale is not positive, or ``like`` is of other paths.
        """
        like = self if like is None else like
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be positive and finite, but is {scale}")
        self.check_alike(like, "like")
        shift = like.means / like.factor[:, None] + like.shift  # mean of the model's tokens
        deviations = like.deviations / like.factor
        factor = scale / np.where(deviations > 0, deviations, 1.0)
        further = factor / self.factor
        # the attention of a path sums to 1, so that its average of centred tokens is this
        xi = self.xi - (shift - self.shift) * self.factor[:, None]
        xi *= further[:, None]
        means = (self.means - (shift - self.shift) * self.factor[:, None]) * further[:, None]
        scaled = {"xi": xi, "means": means, "deviations": self.deviations * further}
        return replace(self, **scaled, shift=shift, factor=factor)

    def task(self, test: Captured | None = None, **options: Any) -> Custom:
        """Task ``custom`` of these examples, for a study.

        Parameters
        ----------
        test : Captured, optional
            A test set; left out with ``test_fraction``.
        **options
            Of :meth:`pathkernel_tasks.custom.Custom.from_arrays`.

        Raises
        ------
        ValueError
            If there are no labels, the test set is of other heads, or there are skips.
        """
        if self.skips:
            raise ValueError(
                "a study takes no paths that were captured with skips; capture without, or "
                "minimise with pathkernel_core.Network(captured.heads, widths, skips=s) yourself"
            )
        if self.labels is None or (test is not None and test.labels is None):
            raise ValueError(
                "a task needs labels; give batches with labels, pairs (inputs, labels), to capture"
            )
        given: dict[str, Any] = {"approximation": self.notes.get("approximation")}
        if test is not None:
            self.check_scaled_alike(test, "test")
            given |= {"test_inputs": test.xi, "test_labels": test.labels}
        return Custom.from_arrays(self.xi, self.labels, paths=self.heads, **given | options)

    def check_alike(self, other: Captured, name: str) -> None:
        """Check that another capture is of the same heads; raises a ValueError."""
        if (other.members, other.skips) != (self.members, self.skips):
            raise ValueError(
                f"{name} holds heads {other.members}{' and skips' * other.skips}, but these are "
                f"{self.members}{' and skips' * self.skips}; capture both alike"
            )

    def check_scaled_alike(self, other: Captured, name: str) -> None:
        """Check that another capture is of the same heads, scaled alike; raises a ValueError."""
        self.check_alike(other, name)
        pairs = ((self.shift, other.shift), (self.factor, other.factor))
        if not all(np.allclose(one, another, rtol=1e-6) for one, another in pairs):
            raise ValueError(
                f"{name} is scaled otherwise than the training examples; take "
                f"{name}.scaled(scale, like=train), with the scale of train"
            )

    def by_head(self, scores: Sequence[Array]) -> dict[tuple[int, int], float]:
        """Scores such as ``Solution.head_scores``, by layer and head of the model.

        Parameters
        ----------
        scores : sequence of L arrays, shape (H_ℓ,)
            Or ``head_score`` of a store, where layers of fewer heads end in NaN.

        Raises
        ------
        ValueError
            If there are others than these heads.
        """
        given = [np.asarray(to_host(layer)) for layer in scores]
        if len(given) == len(self.heads):
            given = [
                layer[:count] if np.isnan(layer[count:]).all() else layer
                for layer, count in zip(given, self.heads)
            ]
        if tuple(layer.shape for layer in given) != tuple((count,) for count in self.heads):
            raise ValueError(
                f"scores must be of {self.heads} heads, but have shapes "
                f"{[layer.shape for layer in given]}; of a study's head_score take one point, "
                "selecting seed, temperature and width"
            )
        return {
            head: float(score)
            for layer, own in zip(self.members, given)
            for head, score in zip(layer, own)
        }
