"""Sufficient statistics of training examples: sums that stream, add up and are kept in files."""

from __future__ import annotations

import math
import operator
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pathkernel_core.backend import (
    Array,
    array_namespace,
    batches,
    compiled,
    differentiated,
    gram_matrix,
    holds,
    real_floating,
    rows_of,
    to_host,
)
from pathkernel_core.network import positive

_BATCH_ELEMENTS = 2**22  # features held at once while statistics are summed, 32 MiB in float64


@dataclass(frozen=True, eq=False)
class SufficientStatistics:
    """All that the feature-space energy needs of the examples: sums that stream and add up.

    Attributes
    ----------
    gram : array, shape (n, N_0, n, N_0)
        ξᵀξ summed over examples, unscaled.
    projections : array, shape (n, N_0, C)
        ξᵀY summed over examples.
    label_square : float
        Sum of all squared labels.
    n_examples : int
        Number of examples P.

    Notes
    -----
    However the examples are split and merged, an entry of the sums is off by at most
    (b + k) u Σ|ξ||ξ'|, where u is 1.1e-16 in float64 (6e-8 in float32), b is the number of rows of
    a batch, of which one product sums, and k the number of additions on the way from there to the
    total: the batches one after another, or the depth of a tree.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> batches = [(rng.normal(size=(50, 2, 3)), rng.normal(size=50)) for _ in range(4)]
    >>> SufficientStatistics.of_batches(batches).n_examples
    200
    """

    gram: Array
    projections: Array
    label_square: float
    n_examples: int

    def __post_init__(self):
        array_namespace(gram=self.gram, projections=self.projections)
        real_floating("projections", self.projections, ("n", "N_0", "C"))
        shape = tuple(self.projections.shape[:2])
        real_floating("gram", self.gram, shape * 2)
        positive("n_examples", self.n_examples)

    @classmethod
    def of(cls, xi: Array, labels: Array) -> SufficientStatistics:
        """Statistics of one batch: attentioned inputs (P, n, N_0), labels (P,) or (P, C)."""
        xi, labels = check_examples(xi, labels)
        xp = array_namespace(xi=xi)
        examples, paths, width = xi.shape
        step = max(1, _BATCH_ELEMENTS // (paths * width))
        first, *others = batches(examples, step)
        sums = compiled(batch_sums, xp)(rows_of(xi, first), rows_of(labels, first))
        for batch in others:
            more = compiled(batch_sums, xp)(xi[batch, ...], labels[batch, :])
            sums = tuple(one + two for one, two in zip(sums, more))
        gram, projections, label_square = sums
        return cls(gram, projections, float(label_square), examples)

    @classmethod
    def of_batches(cls, batches: Iterable[tuple[Array, Array]]) -> SufficientStatistics:
        """Statistics of batches as for :meth:`of`, of which one is held at a time.

        Raises
        ------
        ValueError
            If there are none, or they do not fit together.
        """
        total = sum(cls.of(*batch) for batch in batches)
        if not isinstance(total, cls):
            raise ValueError("batches hold no examples; give at least one batch")
        return total

    @classmethod
    def load(cls, path: str | os.PathLike) -> SufficientStatistics:
        """Statistics that :meth:`save` wrote, with NumPy arrays.

        Raises
        ------
        ValueError
            If the file is damaged or another.
        """
        try:
            with open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
                gram, projections, label_square, n_examples = (
                    _member(archive, field.name) for field in fields(cls)
                )
            return cls(gram, projections, float(label_square), operator.index(n_examples[()]))
        except OSError:
            raise
        except Exception as error:  # whatever the reader of a damaged file raises
            raise ValueError(
                f"{os.fspath(path)!r} holds no sufficient statistics, or is damaged ({error}); "
                "delete it, and sum them anew"
            ) from error

    def save(self, path: str | os.PathLike) -> None:
        """Write them into a file, in NumPy's format npz."""
        with open(path, "wb") as stream:  # savez would append a suffix to a path
            np.savez(
                stream,
                gram=to_host(self.gram),
                projections=to_host(self.projections),
                label_square=self.label_square,
                n_examples=self.n_examples,
            )

    def convert(self, function: Callable[[Array], Array]) -> SufficientStatistics:
        """Statistics with their arrays replaced by ``function(array)``, such as on a device."""
        return replace(self, gram=function(self.gram), projections=function(self.projections))

    def __radd__(self, other: object) -> SufficientStatistics:
        """Let ``sum`` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __add__(self, other: SufficientStatistics) -> SufficientStatistics:
        if self.projections.shape != other.projections.shape:
            raise ValueError(
                f"statistics of shapes {tuple(self.projections.shape)} and "
                f"{tuple(other.projections.shape)} (paths, N_0, outputs) do not add up"
            )
        array_namespace(left=self.gram, right=other.gram)
        return SufficientStatistics(
            self.gram + other.gram,
            self.projections + other.projections,
            self.label_square + other.label_square,
            self.n_examples + other.n_examples,
        )


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Array of an archive in NumPy's format npz, read to the end, where its checksum is."""
    with archive.open(f"{name}.npy") as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):
            raise ValueError(f"its {name} of shape {array.shape} does not end where it should")
    return array


def row_batches(xi: Any, labels: Any, rows: int | None = None) -> Iterator[tuple[Array, Array]]:
    """Batches of arrays that may lie on disk, such as Zarr's, HDF5's or memory maps.

    Parameters
    ----------
    xi : sliceable, shape (P, n, N_0)
        Attentioned inputs; only slices along the first axis are taken of it.
    labels : sliceable, shape (P,) or (P, C)
    rows : int, optional
        Examples of a batch. By default as many as 32 MiB hold, in whole chunks where ``xi`` has
        any.
    """
    if rows is None:
        rows = max(1, _BATCH_ELEMENTS // math.prod(xi.shape[1:]))
        chunk = (getattr(xi, "shards", None) or getattr(xi, "chunks", None) or (1,))[0]
        rows = max(chunk, rows - rows % chunk)
    for batch in batches(xi.shape[0], rows):
        yield xi[batch], labels[batch]


def check_examples(xi: Array, labels: Array) -> tuple[Array, Array]:
    """Attentioned inputs (P, n, N_0) and labels (P, C) of one dtype, after their checks."""
    xp = array_namespace(xi=xi, labels=labels)
    for name, array in (("xi", xi), ("labels", labels)):
        if differentiated(array):
            raise TypeError(
                f"{name} of shape {tuple(array.shape)} is to be differentiated or compiled, which "
                "a minimisation that runs on the host does not follow; call "
                "pathkernel_core.differentiable_solution, or detach the array for numbers alone"
            )
    xi = real_floating("xi", xi, ("P", "n", "N_0"))
    integers, shape = xp.isdtype(labels.dtype, ("integral", "bool")), tuple(labels.shape)
    labels = real_floating("labels", labels)
    if labels.ndim == 1:
        labels = labels[:, None]
    if (
        integers
        and labels.shape[1:] == (1,)
        and holds(xp.all(labels * (labels - 1) == 0))
        and holds(xp.any(labels == 0))
    ):
        raise ValueError(
            f"labels of shape {shape} are integers 0 and 1; give −1 and 1 for two classes "
            "(2 * labels - 1), or floating-point numbers for targets"
        )
    if labels.ndim != 2:
        raise ValueError(f"labels must have shape (P,) or (P, C), but has {tuple(labels.shape)}")
    if xi.shape[0] != labels.shape[0]:
        raise ValueError(
            f"labels holds {labels.shape[0]} examples, but xi of shape {tuple(xi.shape)} "
            f"holds {xi.shape[0]}; give one label per example"
        )
    if 0 in labels.shape:
        raise ValueError(f"labels of shape {tuple(labels.shape)} hold no outputs")
    return xi, xp.astype(labels, xi.dtype, copy=False)


def batch_sums(xi: Array, labels: Array) -> tuple[Array, Array, Array]:
    """ξᵀξ (n, N_0, n, N_0), ξᵀY (n, N_0, C) and ΣY² of a batch."""
    xp = array_namespace(xi=xi)
    examples, paths, width = xi.shape
    flat = xp.reshape(xi, (examples, -1))
    projections = xp.matmul(xp.matrix_transpose(flat), labels)
    return (
        xp.reshape(gram_matrix(flat, xp), (paths, width, paths, width)),
        xp.reshape(projections, (paths, width, labels.shape[1])),
        xp.sum(labels**2),
    )
