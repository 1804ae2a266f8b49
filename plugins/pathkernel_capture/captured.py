"""Captured examples of a model: attentioned inputs, labels and the heads of every path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pathkernel_core.arrays.backend import to_host
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.paths.heads import every_head, head_label
from pathkernel_core.system.atomic import replace_file
from pathkernel_datasets.variables.head_axis import scores_by_head
from pathkernel_models.arguments import described

if TYPE_CHECKING:
    from pathkernel_tasks.custom import Custom


def check_captured(examples: Any, name: str) -> None:
    """Raise a TypeError unless examples are those of a capture."""
    if not isinstance(examples, Captured):
        raise TypeError(
            f"{name} must be captured examples, of pathkernel.capture, but is {described(examples)}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Captured:
    """Examples along attention paths of a model.

    Attributes
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs in double precision, in the order of ``members``, those of the first
        layer slowest; in the tangent picture derivatives by the maps of heads.
    labels : array, shape (P,) or (P, C), or None
        Labels of the batches; in the tangent picture the targets. Integers stay classes, for
        ``Problem(xi, labels, likelihood="softmax")``.
    members : tuple of L tuples of (layer, head)
        Heads of the model, both numbered from 1, that the theory's network has in each layer.
        (0, 0) is the identity path, past all layers.
    means : array, shape (n or 1, N_0)
        Mean token that every path attends to; 0 in the tangent picture.
    deviations : array, shape (n or 1,)
        Standard deviation of all entries of these tokens, about one mean; in the tangent picture
        the root mean square of the entries of ``xi``, one for all heads.
    notes : mapping of str to str
        Parts of the model that are left out.
    skips : bool
        Whether there are paths past the heads of every layer, first in each layer, for
        ``Network(heads, widths, skips=s)``.
    shift, factor : array, shapes (n or 1, N_0) and (n or 1,)
        What :meth:`scale_tokens` did: the tokens of the model less ``shift``, times ``factor``.
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

    def scale_tokens(self, scale: float, like: Captured | None = None) -> Captured:
        """Centre the tokens, divide them by their deviation and multiply them by ``scale``.

        In the tangent picture nothing is centred, and one factor multiplies all heads, whose sizes
        tell what they can do: the root mean square of all entries becomes ``scale``.

        Parameters
        ----------
        scale : float
            Positive.
        like : Captured, optional
            Training examples, whose mean and deviation a test set takes; by default these examples.
            Earlier scaling of either has no effect.

        Raises
        ------
        ValueError
            If the scale is not positive, or ``like`` is of other paths.
        """
        like = self if like is None else like
        scale = positive("scale", scale)
        self.check_alike(like, "like")
        shift = like.means / like.factor[:, None] + like.shift  # mean of the model's tokens
        deviations = like.deviations / like.factor
        factor = scale / np.where(deviations > 0, deviations, 1.0)
        further = factor / self.factor
        # the attention of a path sums to 1, so that its average of centred tokens is this
        xi = self.xi - (shift - self.shift) * self.factor[:, None]
        xi *= further[:, None]
        means = (self.means - (shift - self.shift) * self.factor[:, None]) * further[:, None]
        # the mean and the deviation are those of the tokens, not of their averages along paths,
        # whose spread says how much attention differs between examples
        scaled = {"xi": xi, "means": means, "deviations": self.deviations * further}
        return replace(self, **scaled, shift=shift, factor=factor)

    def task(self, test: Captured | None = None, **options: Any) -> Custom:
        """Return these examples as a task ``custom`` for a study.

        Parameters
        ----------
        test : Captured, optional
            A test set; left out with ``test_fraction``.
        **options
            Further options of :meth:`pathkernel_tasks.custom.Custom.from_arrays`.

        Raises
        ------
        ValueError
            If there are no labels, the test set is of other heads, or there are skips.
        """
        from pathkernel_tasks.custom import Custom

        arguments = {"approximation": self.notes.get("approximation")} | options
        return Custom.from_arrays(**self._arrays(test), **arguments)

    def save(self, path: str | os.PathLike, test: Captured | None = None) -> None:
        """Write these examples as a data file for ``pathkernel run custom --inputs FILE``.

        Neither the model nor PyTorch is needed to run it. The file has no note of the
        approximation; ``--approximation`` takes a sentence.

        Parameters
        ----------
        path : path
            File that ends in ``.npz``; replaced if it exists.
        test : Captured, optional
            A test set; without one, run with ``--test-fraction``.

        Raises
        ------
        ValueError
            As for :meth:`task`, or if the path has another suffix. Nothing is written then.
        """
        if not isinstance(path, str | os.PathLike) or Path(path).suffix.lower() != ".npz":
            raise ValueError(f"path must end in .npz, but is {path!r}")
        arrays = self._arrays(test)
        with replace_file(path) as partial, open(partial, "wb") as stream:
            np.savez(stream, **arrays)

    def _arrays(self, test: Captured | None) -> dict[str, Any]:
        """Arrays of a data file of the task ``custom``, by name."""
        if self.skips:
            raise ValueError(
                "a study takes no paths that were captured with skips; capture without, or "
                "minimise with pathkernel.Network(captured.heads, widths, skips=s) yourself"
            )
        if test is not None:
            self.check_alike(test, "test")
        if self.labels is None or (test is not None and test.labels is None):
            raise ValueError(
                "a task needs labels; give batches with labels, pairs (inputs, labels), to capture"
            )
        arrays = {"inputs": self.xi, "labels": self.labels, "paths": self.heads}
        if test is not None:
            self.check_scaled_alike(test, "test")
            arrays |= {"test_inputs": test.xi, "test_labels": test.labels}
        return arrays

    def check_alike(self, examples: Captured, name: str) -> None:
        """Raise a ValueError unless another capture is of the same heads."""
        check_captured(examples, name)
        if (examples.members, examples.skips) != (self.members, self.skips):
            raise ValueError(
                f"{name} holds heads {examples.members}{' and skips' * examples.skips}, but these "
                f"are {self.members}{' and skips' * self.skips}; capture both alike"
            )

    def check_scaled_alike(self, examples: Captured, name: str) -> None:
        """Raise a ValueError unless another capture is of the same heads, scaled alike."""
        self.check_alike(examples, name)
        same_shift = np.allclose(self.shift, examples.shift, rtol=1e-6)
        if not (same_shift and np.allclose(self.factor, examples.factor, rtol=1e-6)):
            raise ValueError(
                f"{name} is scaled differently from the training examples; take "
                f"{name}.scale_tokens(scale, like=train), with the scale of train"
            )

    def by_head(self, scores: Sequence[float] | xr.DataArray) -> xr.DataArray:
        """Label scores such as ``Solution.head_scores`` with the heads of the model.

        Parameters
        ----------
        scores : array, shape (ΣH_ℓ,)
            In the order of the theory's heads; or ``head_score`` of a study at one point, in any
            order, as its labels are those of the theory's heads.

        Returns
        -------
        xarray.DataArray, dims (head,)
            With labels such as ``2-1``, and the coordinates ``layer`` and ``number`` of the head in
            the model. The path through no head, if it was captured, is ``0-0``.

        Raises
        ------
        ValueError
            If the shape or the labels do not fit these heads.
        """
        theory = list(map(head_label, every_head(self.heads)))
        if isinstance(scores, xr.DataArray) and "head" in scores.coords:
            if sorted(scores["head"].values.tolist()) != sorted(theory):
                given = ", ".join(scores["head"].values.tolist())
                raise ValueError(
                    f"scores are of heads {given}, but those of the theory are "
                    f"{', '.join(theory)}; take head_score of a study of this capture"
                )
            scores = scores.sel(head=theory).values
        try:
            values = np.asarray(to_host(scores))
        except ValueError:
            raise ValueError(
                f"scores have unequal rows; give those of {self.heads} heads, shape "
                f"({sum(self.heads)},)"
            ) from None
        if values.shape != (sum(self.heads),):
            raise ValueError(
                f"scores must be of {self.heads} heads, shape ({sum(self.heads)},), but have shape "
                f"{values.shape}; of a study's head_score take one point, selecting seed, "
                "temperature and width"
            )
        members = [head for layer in self.members for head in layer]
        return scores_by_head(members, values, needs="theory")
