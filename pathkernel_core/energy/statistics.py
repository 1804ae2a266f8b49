"""Sufficient statistics of training examples: sums over batches that add up."""

from __future__ import annotations

import math
import operator
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, BinaryIO

import numpy as np
import scipy

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    batches,
    compile_function,
    gram_matrix,
    is_differentiated,
    is_integral,
    is_true,
    not_overflown,
    real_floating,
    rows_of,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.arrays.scalars import real_number, whole_number
from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.local_files import check_local, open_regular

_MOST_EXAMPLES = 2**53  # as double precision counts
_ROUNDING = 1e5  # of sums over examples, in units of the precision
_BATCH_ELEMENTS = 2**22  # features held at once while statistics are summed, 32 MiB in float64


@dataclass(frozen=True, eq=False)
class SufficientStatistics:
    """Sums over examples that determine the energy in feature space.

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
    The rounding error of an entry is at most (b + k) u Σ|ξ||ξ'|, where u is 1.1e-16 in float64
    (6e-8 in float32), b the number of rows of a batch, and k the number of additions from there to
    the total: the number of batches, or the depth of a tree.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> batches = [(rng.normal(size=(50, 2, 3)), rng.normal(size=50)) for _ in range(4)]
    >>> pk.SufficientStatistics.of_batches(batches).n_examples
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
        real_number("label_square", self.label_square)
        whole_number("n_examples", self.n_examples)

    @classmethod
    def of(cls, xi: Array, labels: Array) -> SufficientStatistics:
        """Statistics of one batch: attentioned inputs (P, n, N_0), labels (P,) or (P, C)."""
        xi, labels = check_examples(xi, labels)
        xp = array_namespace(xi=xi)
        examples, paths, width = xi.shape
        step = max(1, _BATCH_ELEMENTS // (paths * width))
        first, *remaining = batches(examples, step)
        with np.errstate(all="ignore"):  # an overflow is told below
            sums = compile_function(batch_sums, xp)(rows_of(xi, first), rows_of(labels, first))
            for batch in remaining:
                of_batch = compile_function(batch_sums, xp)(xi[batch, ...], labels[batch, :])
                sums = tuple(total + added for total, added in zip(sums, of_batch))
        for total in sums:
            not_overflown("a sum over examples", total, "rescale xi or labels")
        gram, projections, label_square = sums
        return cls(gram, projections, float(label_square), examples)

    @classmethod
    def of_batches(cls, batches: Iterable[tuple[Array, Array]]) -> SufficientStatistics:
        """Statistics of batches as for :meth:`of`, one in memory at a time.

        Raises ValueError if there are none, or their shapes differ.
        """
        total = sum(cls.of(*batch) for batch in batches)
        if not isinstance(total, cls):
            raise ValueError("batches hold no examples; give at least one batch")
        return total

    @classmethod
    def load(cls, path: str | os.PathLike) -> SufficientStatistics:
        """Read statistics that :meth:`save` wrote, with NumPy arrays.

        Raises ValueError if the file is damaged, of another kind, or holds sums that no examples
        have; and OSError if there is none, or it may not be read.
        """
        check_local(path)
        try:
            with _open(path) as stream, zipfile.ZipFile(stream) as archive:
                gram, projections, label_square, n_examples = (
                    _read_array(archive, field.name) for field in fields(cls)
                )
            total, count = float(label_square), operator.index(n_examples[()])
            statistics = cls(gram, projections, total, count)
            _check_possible(statistics)
            return statistics
        except OSError:
            raise
        except Exception as error:  # readers of damaged files raise many types
            raise ValueError(
                f"{os.fspath(path)!r} holds no sufficient statistics, or is damaged ({error}); "
                "delete it, and sum them again"
            ) from error

    def save(self, path: str | os.PathLike) -> None:
        """Write the statistics into a file in NumPy's format npz, whole or not at all."""
        host = self.convert(to_host)
        entries = {field.name: getattr(host, field.name) for field in fields(host)}
        # savez would append a suffix to a path
        with replace_file(path, several_writers=True) as partial, open(partial, "wb") as stream:
            np.savez(stream, **entries)

    def convert(self, function: Callable[[Array], Array]) -> SufficientStatistics:
        """Statistics with ``function(array)`` in place of each array."""
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


def row_batches(xi: Any, labels: Any, rows: int | None = None) -> Iterator[tuple[Array, Array]]:
    """Yield batches of arrays on disk, such as those of Zarr or HDF5, or memory maps.

    Parameters
    ----------
    xi : sliceable, shape (P, n, N_0)
        Attentioned inputs.
    labels : sliceable, shape (P,) or (P, C)
    rows : int, optional
        Examples of a batch; by default as many as fit in 32 MiB, in multiples of a chunk of ``xi``.

    Raises
    ------
    ValueError
        If xi and labels do not fit each other, or ``rows`` is no whole number from 1.

    Notes
    -----
    If you set ``rows``, set a multiple of the chunk length along the examples: a chunk that two
    batches share is read and decompressed twice. Centre the labels before you sum: the statistics
    cannot be centred afterwards.
    """
    shapes = tuple(xi.shape), tuple(labels.shape)
    if len(shapes[0]) != 3 or not all(shapes[0]):
        raise ValueError(f"xi must have shape (P, n, N_0), each at least 1, but has {shapes[0]}")
    if shapes[1][:1] != shapes[0][:1]:
        raise ValueError(
            f"labels of shape {shapes[1]} do not fit xi of shape {shapes[0]}; give one label per "
            "example"
        )
    if rows is not None:
        rows = whole_number("rows", rows)
    else:
        rows = max(1, _BATCH_ELEMENTS // math.prod(xi.shape[1:]))
        # a shard, where there are any, is what is stored as one object
        chunk = (getattr(xi, "shards", None) or getattr(xi, "chunks", None) or (1,))[0]
        rows = max(chunk, rows - rows % chunk)
    for batch in batches(xi.shape[0], rows):
        yield xi[batch], labels[batch]


def check_examples(xi: Array, labels: Array) -> tuple[Array, Array]:
    """Check attentioned inputs (P, n, N_0) and labels; return them, with labels (P, C)."""
    array_namespace(xi=xi, labels=labels)
    check_given("xi", xi)
    xi = real_floating("xi", xi, ("P", "n", "N_0"))
    return xi, check_labels(labels, "xi", xi, xi.shape[0])


def check_given(name: str, array: Array) -> None:
    """Raise a TypeError if an array is to be differentiated or compiled."""
    if is_differentiated(array):
        raise TypeError(
            f"{name} of shape {tuple(array.shape)} is to be differentiated or compiled, but "
            "the minimisation runs on the host; call pathkernel_core.differentiable_solution, "
            "or detach the array"
        )


def check_labels(labels: Array, name: str, array: Array, examples: int) -> Array:
    """Check labels of the examples of an array of this name, and return them as (P, C)."""
    xp = array_namespace(labels=labels)
    check_given("labels", labels)
    integers, shape = is_integral(labels.dtype, xp), tuple(labels.shape)
    labels = real_floating("labels", labels)
    if labels.ndim == 1:
        labels = labels[:, None]
    binary = integers and labels.shape[1:] == (1,) and is_true(xp.all(labels * (labels - 1) == 0))
    if binary and is_true(xp.any(labels == 0)):
        raise ValueError(
            f"labels of shape {shape} are integers 0 and 1; give −1 and 1 for two classes "
            "(2 * labels - 1), or floating-point numbers for targets"
        )
    if labels.ndim != 2:
        raise ValueError(f"labels must have shape (P,) or (P, C), but has {tuple(labels.shape)}")
    if examples != labels.shape[0]:
        raise ValueError(
            f"labels holds {labels.shape[0]} examples, but {name} of shape {tuple(array.shape)} "
            f"holds {examples}; give one label per example"
        )
    if 0 in labels.shape:
        raise ValueError(f"labels of shape {tuple(labels.shape)} hold no outputs")
    with np.errstate(all="ignore"):
        not_overflown("the sum of squared labels", xp.sum(labels**2), "divide labels by a constant")
    return xp.astype(labels, array.dtype, copy=False)


def batch_sums(xi: Array, labels: Array) -> tuple[Array, Array, Array]:
    """ξᵀξ (n, N_0, n, N_0), ξᵀY (n, N_0, C) and ΣY² of a batch."""
    xp = array_namespace(xi=xi)
    examples, paths, width = xi.shape
    flat = xp.reshape(xi, (examples, -1))
    projections = matmul(xp.matrix_transpose(flat), labels)
    return (
        xp.reshape(gram_matrix(flat, xp), (paths, width, paths, width)),
        xp.reshape(projections, (paths, width, labels.shape[1])),
        xp.sum(labels**2),
    )


def _open(path: str | os.PathLike) -> BinaryIO:
    """Open a plain file; others, such as pipes, may never end."""
    stream = open_regular(path)
    if stream is None:
        if not os.path.lexists(path):
            raise FileNotFoundError(f"there is no file {os.fspath(path)!r}")
        raise ValueError("it is no plain file")
    return stream


def _check_possible(statistics: SufficientStatistics) -> None:
    """Raise a ValueError unless there are examples with these sums, to rounding."""
    gram, label_square = statistics.gram, statistics.label_square
    size = math.prod(statistics.projections.shape[:2])
    matrix, eps = gram.reshape(size, size).astype(float), np.finfo(gram.dtype).eps
    rounding = _ROUNDING * float(eps)
    if statistics.n_examples > _MOST_EXAMPLES:
        raise ValueError(f"n_examples is {statistics.n_examples}")
    if not 0 <= label_square < math.inf:
        raise ValueError(f"label_square is {label_square:g}")
    if abs(matrix - matrix.T).max() > rounding * abs(matrix).max():
        raise ValueError("gram is not symmetric")
    # the sums of features and labels together must be positive semidefinite
    shift = rounding * float(abs(np.diagonal(matrix)).max()) + float(np.finfo(float).tiny)
    try:
        lower = scipy.linalg.cholesky(matrix + shift * np.eye(size), lower=True)
    except scipy.linalg.LinAlgError:
        raise ValueError("gram is not positive semidefinite") from None
    projections = statistics.projections.reshape(size, -1).astype(float)
    explained = (scipy.linalg.solve_triangular(lower, projections, lower=True) ** 2).sum()
    if explained > (1 + math.sqrt(rounding)) * label_square:
        raise ValueError("projections are larger than gram and label_square allow")


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read an array of an npz file to its last byte, which also checks the checksum."""
    if archive.getinfo(f"{name}.npy").compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed, as save does not write it")
    with archive.open(f"{name}.npy") as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{name} has more bytes than its header says")
    return array
