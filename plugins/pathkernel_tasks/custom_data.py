"""Data files of token sequences, labels and attention matrices.

==========================  ================  ===================================================
``inputs``                  (P, M, N_0)       training sequences
``labels``                  (P,) or (P, C)    their labels
``attention.1`` …           (P, H, M, M)      attention matrices of each layer, instead of heads
``paths``                   (L,)              numbers of heads H_ℓ, if sequences are attentioned
                                              inputs, with a token for each of M = H_1 H_2 … paths
``test_inputs``             (P', M', N_0)     a test set, with ``test_labels`` and
                                              ``test_attention.1`` …
``test_inputs.NAME`` …      (P', M', N_0)     or several, with ``test_labels.NAME`` and
                                              ``test_attention.NAME.1`` …
==========================  ================  ===================================================

Similar names are refused as misspelt; arrays of other names are ignored, with a note. Labels may
lie in a separate file, under the same names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pathkernel_core.contracts.task import Examples
from pathkernel_core.paths.layers import Attention, Layer
from pathkernel_tasks.array_files import StoredArray, read_arrays
from pathkernel_tasks.array_guards import Shape, check_shapes, real_numbers
from pathkernel_tasks.labels import Labels, read_labels

SUFFIXES = (".npz", ".safetensors", ".zarr")
HELD = 10_000  # largest number of training examples that are read at once from a Zarr folder
_NAME = re.compile(r"(test_)?(inputs|labels|attention)((?:\.[^.]+)*)")
_LAYER = re.compile(r"[1-9][0-9]{0,3}")
_SLIP = re.compile(r"(train\w*?|test|val\w*?)?[\W_]*(input|label|attention)", re.IGNORECASE)

_SHAPES: dict[str, Shape] = {
    "inputs": ("P", "M", "N_0"),
    "labels": ("P", "..."),
    "attention": ("P", "H", "M", "M"),
    "paths": ("L",),
}
"""P and M differ between sets of examples, and H between layers."""


class _Array(NamedTuple):
    """Meaning of an array's name in a data file."""

    examples: str  # name of the test set, "" for the training examples
    kind: str
    layer: int = 0

    def __str__(self) -> str:
        parts = [f"test_{self.kind}" if self.examples else self.kind]
        parts += [self.examples] if self.examples not in ("", "test") else []
        return ".".join([*parts, *([str(self.layer)] if self.layer else [])])

    @property
    def shape(self) -> Shape:
        """Expected shape, as :func:`~pathkernel_tasks.array_guards.check_shapes` takes it."""
        of_set = f"_{self.examples}" if self.examples else ""
        symbols = {"P": f"P{of_set}", "M": f"M{of_set}", "H": f"H_{self.layer}"}
        return tuple(symbols.get(str(axis), axis) for axis in _SHAPES[self.kind])


@dataclass(frozen=True, eq=False)
class FileExamples:
    """Labelled token sequences of a data file, in memory or in a Zarr folder.

    Attributes
    ----------
    inputs : (str, array or StoredArray), shape (P', M, N_0)
        With a title for messages.
    labels : array, shape (P,) or (P, C)
    attention : sequence of (str, array or StoredArray), shape (P', H, M, M)
        Attention of each layer, if there are any.
    key_axis : "first" or "last"
    rows : array, shape (P,)
        Indices of these examples in the arrays of the file.
    """

    inputs: tuple[str, Any]
    labels: np.ndarray
    attention: Sequence[tuple[str, Any]]
    key_axis: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, indices: np.ndarray) -> FileExamples:
        """Some of the examples, by their indices."""
        return replace(self, labels=self.labels[indices], rows=self.rows[indices])

    def read(self, indices: np.ndarray | None = None) -> Examples:
        """Read and check the examples, or some of them.

        Raises
        ------
        ValueError
            If inputs or attention matrices are no numbers, or attention does not sum to 1.
        """
        examples = self if indices is None else self.part(indices)
        rows: Any = examples.rows
        title, inputs = self.inputs
        if isinstance(inputs, np.ndarray) and len(rows) == len(inputs):
            rows = slice(None)  # all in their order, without a copy
        numbers = real_numbers(title, inputs[rows], whole=True)
        layers = [_attention(title, omega[rows], self.key_axis) for title, omega in self.attention]
        return Examples(numbers, examples.labels, layers or None)


@dataclass(frozen=True, eq=False)
class CustomData:
    """Content of a data file.

    Attributes
    ----------
    train : FileExamples
    test_sets : dict of str to FileExamples
        By name; ``"test"`` if it has none. Empty if the file has no test set.
    labels : Labels
        Coding of the labels of all sets.
    note : str
        Names of the arrays that were not read, or lack chunks; empty if there are none.
    paths : tuple of int
        Numbers of heads, if the sequences are attentioned inputs along their paths.
    """

    train: FileExamples
    test_sets: dict[str, FileExamples]
    labels: Labels
    note: str = ""
    paths: tuple[int, ...] = ()


def read_data(
    path: str | Path, labels: str | Path | None, key_axis: str, kind: str | None = None
) -> CustomData:
    """Read a data file, and a file of labels if there is one, and check their arrays.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is damaged, too large for the memory or holds pickled objects, or an array is
        misnamed, missing, or of a wrong shape or type. The message names the file and the array.
    """
    title = f"data file {str(path)!r}"
    arrays, note = read_arrays(path, "data file", lambda name: _is_data_array(name, title), _stays)
    if labels is not None:
        labels_title = f"labels file {str(labels)!r}"
        label_arrays, labels_note = read_arrays(
            labels,
            "labels file",
            lambda name: _is_data_array(name, labels_title) and _parse(name).kind == "labels",
        )
        note = "; ".join(filter(None, (note, labels_note)))
        if twice := sorted(label_arrays.keys() & arrays.keys()):
            raise ValueError(f"{title} and {labels_title} both hold {twice[0]!r}")
        arrays |= label_arrays
    try:
        data = _assemble(title, arrays, key_axis, kind)
    except ValueError as error:  # a misspelt name or lost chunks may be the reason
        raise ValueError(f"{error}{note and f' ({note})'}") from error
    return replace(data, note=note)


def split_examples(data: CustomData, fraction: float, seed: int) -> CustomData:
    """Set a random fraction of the examples aside as a test set.

    Raises
    ------
    ValueError
        If there is a test set already, or no example would be left on one side.
    """
    if data.test_sets:
        raise ValueError(
            f"test_fraction={fraction:g} would split the examples, but the data have test sets: "
            f"{', '.join(data.test_sets)}. Leave one of the two out"
        )
    count = len(data.train)
    tested = round(fraction * count)
    if not 0 < tested < count:
        raise ValueError(f"test_fraction={fraction:g} of {count} examples leaves one side empty")
    order = np.random.default_rng(seed).permutation(count)
    trained = order[tested:]
    if isinstance(data.train.inputs[1], StoredArray):
        trained = np.sort(trained)  # so that blocks of examples lie together
    test_sets = {"test": data.train.part(order[:tested])}
    return replace(data, train=data.train.part(trained), test_sets=test_sets)


def _stays(name: str, shape: tuple[int, ...]) -> bool:
    """Whether an array is left in its Zarr folder: of many training examples."""
    array = _parse(name)
    training = array is not None and not array.examples and array.kind in ("inputs", "attention")
    return training and len(shape) > 0 and shape[0] > HELD


def _parse(name: str) -> _Array | None:
    """Meaning of a name; None if it is no name of a data file."""
    if name == "paths":
        return _Array("", "paths")
    if not (match := _NAME.fullmatch(name)):
        return None
    test, kind, suffixes = match.groups()
    parts, layer = suffixes.split(".")[1:], 0
    if kind == "attention":
        if not parts or not _LAYER.fullmatch(parts[-1]):
            return None
        layer = int(parts.pop())
    if len(parts) > bool(test):  # training examples have no name
        return None
    return _Array((parts or ["test"])[0] if test else "", kind, layer)


def _is_data_array(name: str, title: str) -> bool:
    if _parse(name):
        return True
    if _SLIP.match(name):
        raise ValueError(
            f"{title} holds {name!r}; names must be inputs, labels, attention.1, attention.2 …, "
            "test_inputs, test_labels, test_attention.1, or test_inputs.NAME, test_labels.NAME, "
            "test_attention.NAME.1 and so on. Rename it, or leave it out"
        )
    return False


def _assemble(
    title: str, arrays: Mapping[str, np.ndarray], key_axis: str, kind: str | None
) -> CustomData:
    parsed = {name: _parse(name) for name in arrays}
    for name, array in parsed.items():
        if str(array) != name and str(array) in arrays:
            raise ValueError(
                f"{title}: {str(array)!r} and {name!r} are the same; leave one of them out"
            )
    arrays = {str(parsed[name]): values for name, values in arrays.items()}
    tested = {array.examples for array in parsed.values() if array.kind == "inputs"} - {""}
    sets = ["", *sorted(tested, key=lambda name: (name != "test", name))]
    for name, array in parsed.items():
        if array.examples not in sets:
            raise ValueError(f"{title}: {name!r} belongs to no test_inputs of that name")
    layers = {array.layer for array in parsed.values()} - {0}
    numbers = range(1, min(max(layers, default=0), len(layers) + 1) + 1)  # up to the first gap
    paths = _paths(title, arrays["paths"], layers) if "paths" in arrays else ()

    inputs = [_Array(examples, "inputs") for examples in sets]
    labels = [_Array(examples, "labels") for examples in sets]
    attention = [[_Array(examples, "attention", number) for number in numbers] for examples in sets]
    named = [array for row in zip(inputs, labels) for array in row]
    named += [array for row in attention for array in row]
    tokens = {str(array.shape[1]) for array in inputs} if paths else ()
    lengths = {symbol: (math.prod(paths), f"'paths' {paths}") for symbol in tokens}
    check_shapes(title, arrays, {str(array): array.shape for array in named}, lengths)
    try:
        targets = read_labels({str(array): arrays[str(array)] for array in labels}, kind)
    except ValueError as error:
        raise ValueError(f"{title}: {error}") from error

    def name_array(array: _Array) -> tuple[str, Any]:
        return f"{title}: {str(array)!r}", arrays[str(array)]

    train, *tests = (
        FileExamples(
            name_array(array), values, [*map(name_array, layers)], key_axis, np.arange(len(values))
        )
        for array, values, layers in zip(inputs, targets.values.values(), attention, strict=True)
    )
    return CustomData(train, dict(zip(sets[1:], tests, strict=True)), targets, paths=paths)


def _paths(title: str, array: np.ndarray, layers: Collection[int]) -> tuple[int, ...]:
    """Numbers of heads, if sequences are attentioned inputs."""
    check_shapes(title, {"paths": array}, {"paths": _SHAPES["paths"]})
    if array.dtype.kind not in "iu" or array.min() < 1:
        raise ValueError(
            f"{title}: 'paths' must hold the number of heads of each layer, not {array!r}"
        )
    if layers:
        raise ValueError(
            f"{title}: 'paths' says that inputs are attentioned already, so that 'attention.1' has "
            "no place; leave one of the two out"
        )
    return tuple(array.tolist())


def _attention(title: str, omega: np.ndarray, key_axis: str) -> Layer:
    """Attention matrices of one layer."""
    omega = real_numbers(title, omega, whole=True)
    if omega.min() < -1e-6:
        raise ValueError(f"{title} holds negative numbers; give attention after the softmax")
    if key_axis == "last":
        omega = omega.swapaxes(-1, -2)
    excess = abs(omega.sum(axis=-2) - 1).max()
    if excess > 1e-3:
        opposite = {"first": "last", "last": "first"}[key_axis]
        raise ValueError(
            f"{title} must sum to 1 over key tokens, but is off by {excess:.3g}; key_axis is "
            f"{key_axis!r}, so if its last two axes are the other way round, use {opposite!r}"
        )
    return Attention(omega)
