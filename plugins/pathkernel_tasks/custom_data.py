"""Files of a user's own token sequences, with labels and attention matrices if there are any.

==========================  ================  ===================================================
``inputs``                  (P, M, N_0)       training sequences
``labels``                  (P,) or (P, C)    their labels
``attention.1`` …           (P, H, M, M)      attention matrices of each layer, instead of heads
``paths``                   (L,)              numbers of heads H_ℓ, where sequences are attentioned
                                              inputs, with a token for each of M = H_1 H_2 … paths
``test_inputs``             (P', M', N_0)     a test set; ``test_labels`` and ``test_attention.1`` …
                                              belong to it
``test_inputs.NAME`` …      (P', M', N_0)     or several, with ``test_labels.NAME`` and
                                              ``test_attention.NAME.1`` …
==========================  ================  ===================================================

Names that begin alike but are none of these are refused; arrays of other names are not read, and a
note says so. Labels may lie in a file of their own, under the same names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pathkernel_core.attention import Attention, Layer
from pathkernel_core.task import Examples
from pathkernel_tasks.array_files import StoredArray, read_arrays
from pathkernel_tasks.array_guards import Shape, check_shapes, real_numbers
from pathkernel_tasks.labels import Labels, read_labels

SUFFIXES = (".npz", ".safetensors", ".zarr")
HELD = 10_000  # training examples, of more than which those of a Zarr folder stay there
_NAME = re.compile(r"(test_)?(inputs|labels|attention)((?:\.[^.]+)*)")
_LAYER = re.compile(r"[1-9][0-9]{0,3}")
_SLIP = re.compile(r"(train\w*?|test|val\w*?)?[\W_]*(input|label|attention)", re.IGNORECASE)


_SHAPES: dict[str, Shape] = {
    "inputs": ("P", "M", "N_0"),
    "labels": ("P", "..."),
    "attention": ("P", "H", "M", "M"),
    "paths": ("L",),
}
"""P and M are those of each set of examples, and H that of each layer."""


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
class StoredExamples:
    """Labelled token sequences that stay in a Zarr folder.

    Attributes
    ----------
    inputs : StoredArray, shape (P', M, N_0)
    labels : array, shape (P,) or (P, C)
    attention : sequence of (str, StoredArray)
        Name and matrices of each layer, if there are any.
    key_axis : str
    rows : array, shape (P,)
        Of the stored arrays, those that are meant.
    """

    inputs: StoredArray
    labels: np.ndarray
    attention: Sequence[tuple[str, StoredArray]]
    key_axis: str
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class CustomData:
    """Content of a data file.

    Attributes
    ----------
    train : Examples or StoredExamples
        With layers of attention matrices if the file holds them. More than 10,000 of a Zarr folder
        stay there.
    test_sets : dict of str to Examples
        By name; ``"test"`` if it has none. Empty if the file has no test set.
    labels : Labels
        Of all sets: their kind, and what became of them.
    files : str
        Which arrays were not read, or lack chunks; empty if there are none.
    paths : tuple of int
        Numbers of heads, if the sequences are attentioned inputs along their paths.
    """

    train: Examples | StoredExamples
    test_sets: dict[str, Examples]
    labels: Labels
    files: str = ""
    paths: tuple[int, ...] = ()


def read_data(
    path: str | Path, labels: str | Path | None, key_axis: str, kind: str | None = None
) -> CustomData:
    """Read and check a data file.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.npz``, ``.safetensors`` or ``.zarr``.
    labels : str or Path, optional
        File of labels, if the data file has none.
    key_axis : "first" or "last"
        Which of the last two axes of attention matrices counts key tokens.
    kind : "classes", "targets" or None
        What the labels are; None if their type is to tell.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is damaged, too large for the memory or holds pickled objects, a name is a slip,
        or an array is missing, of a wrong shape or type, or holds NaN or infinity. The message
        names the file and the array.
    """
    title = f"data file {str(path)!r}"
    arrays, note = read_arrays(path, "data file", lambda name: _is_wanted(name, title), _stays)
    if labels is not None:
        of_labels = f"labels file {str(labels)!r}"
        more, more_notes = read_arrays(
            labels,
            "labels file",
            lambda name: _is_wanted(name, of_labels) and _parse(name).kind == "labels",
        )
        note = "; ".join(filter(None, (note, more_notes)))
        if twice := sorted(more.keys() & arrays.keys()):
            raise ValueError(f"{title} and {of_labels} both hold {twice[0]!r}")
        arrays |= more
    try:
        data = _assemble(title, arrays, key_axis, kind)
    except ValueError as error:  # a misspelt name or lost chunks may be the reason
        raise ValueError(f"{error}{note and f' ({note})'}") from error
    return replace(data, files=note)


def split(data: CustomData, fraction: float, seed: int) -> CustomData:
    """Set a fraction of the examples aside as a test set, at random.

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
    count = data.train.labels.shape[0]
    tested = round(fraction * count)
    if not 0 < tested < count:
        raise ValueError(f"test_fraction={fraction:g} of {count} examples leaves one side empty")
    order = np.random.default_rng(seed).permutation(count)
    test, rest = take(data.train, order[:tested]), order[tested:]
    train: Examples | StoredExamples
    if isinstance(data.train, StoredExamples):
        rest = np.sort(rest)  # blocks of it lie together
        train = replace(data.train, labels=data.train.labels[rest], rows=data.train.rows[rest])
    else:
        train = take(data.train, rest)
    return replace(data, train=train, test_sets={"test": test})


def take(examples: Examples | StoredExamples, indices: np.ndarray) -> Examples:
    """Some of the examples, by their indices."""
    if isinstance(examples, Examples):
        layers = examples.layers
        if layers is not None:
            layers = [layer.convert(lambda omega: omega[indices]) for layer in layers]
        return Examples(examples.inputs[indices], examples.labels[indices], layers)
    rows = examples.rows[indices]
    matrices = [
        _attention(name, omega[rows], examples.key_axis) for name, omega in examples.attention
    ]
    return Examples(examples.inputs[rows], examples.labels[indices], matrices or None)


def _stays(name: str, shape: tuple[int, ...]) -> bool:
    """Whether an array is left in its Zarr folder: of the training examples, if they are many."""
    array = _parse(name)
    training = array is not None and not array.examples and array.kind in ("inputs", "attention")
    return training and len(shape) > 0 and shape[0] > HELD


def _parse(name: str) -> _Array | None:
    """Meaning of a name; None if it is no name of a data file."""
    if name == "paths":
        return _Array("", "paths")
    if not (match := _NAME.fullmatch(name)):
        return None
    test, kind, rest = match.groups()
    parts, layer = rest.split(".")[1:], 0
    if kind == "attention":
        if not parts or not _LAYER.fullmatch(parts[-1]):
            return None
        layer = int(parts.pop())
    if len(parts) > bool(test):  # training examples have no name
        return None
    return _Array((parts or ["test"])[0] if test else "", kind, layer)


def _is_wanted(name: str, title: str) -> bool:
    if _parse(name):
        return True
    if _SLIP.match(name):  # a slip must not pass unseen
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
    numbers = range(1, min(max(layers, default=0), len(layers) + 1) + 1)  # one gap is enough
    paths = _paths(title, arrays["paths"], layers) if "paths" in arrays else ()

    expected: dict[str, Shape] = {}
    for examples in sets:
        wanted = [_Array(examples, "inputs"), _Array(examples, "labels")]
        wanted += [_Array(examples, "attention", number) for number in numbers]
        expected |= {str(array): array.shape for array in wanted}
    tokens = {str(_Array(examples, "inputs").shape[1]) for examples in sets} if paths else ()
    known = {symbol: (math.prod(paths), f"'paths' {paths}") for symbol in tokens}
    check_shapes(title, arrays, expected, known)

    names = [str(_Array(examples, "labels")) for examples in sets]
    try:
        labels = read_labels({name: arrays[name] for name in names}, kind)
    except ValueError as error:
        raise ValueError(f"{title}: {error}") from error
    parts: dict[str, Examples | StoredExamples] = {}
    for examples, values in zip(sets, labels.values.values(), strict=True):
        name, inputs = str(_Array(examples, "inputs")), arrays[str(_Array(examples, "inputs"))]
        attention = [str(_Array(examples, "attention", number)) for number in numbers]
        omegas = [(f"{title}: {name!r}", arrays[name]) for name in attention]
        if isinstance(inputs, StoredArray):
            rows = np.arange(len(values))
            parts[examples] = StoredExamples(inputs, values, omegas, key_axis, rows)
        else:
            inputs = real_numbers(f"{title}: {name!r}", inputs, whole=True)
            matrices = [_attention(*omega, key_axis) for omega in omegas]
            parts[examples] = Examples(inputs, values, matrices or None)
    return CustomData(parts.pop(""), parts, labels, paths=paths)


def _paths(title: str, array: np.ndarray, layers: Collection[int]) -> tuple[int, ...]:
    """Numbers of heads, where sequences are attentioned inputs."""
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
        other = {"first": "last", "last": "first"}[key_axis]
        raise ValueError(
            f"{title} must sum to 1 over key tokens, but is off by {excess:.3g}; key_axis is "
            f"{key_axis!r}, so if its last two axes are the other way round, use {other!r}"
        )
    return Attention(omega)
