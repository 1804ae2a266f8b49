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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pathkernel_core.attention import Attention, Layer
from pathkernel_core.task import Examples
from pathkernel_tasks.array_files import StoredArray, read_arrays
from pathkernel_tasks.array_guards import real_numbers, too_large
from pathkernel_tasks.labels import Labels, read_labels

SUFFIXES = (".npz", ".safetensors", ".zarr")
HELD = 10_000  # training examples, of more than which those of a Zarr folder stay there
_NAME = re.compile(r"(test_)?(inputs|labels|attention)((?:\.[^.]+)*)")
_LAYER = re.compile(r"[1-9][0-9]{0,3}")
_SLIP = re.compile(r"(train\w*?|test|val\w*?)?[\W_]*(input|label|attention)", re.IGNORECASE)


class _Array(NamedTuple):
    """What an array of a data file is."""

    examples: str  # name of the test set, "" for the training examples
    kind: str
    layer: int = 0


_Held = Mapping[_Array, tuple[str, np.ndarray]]
"""Arrays with the names that they have in the file."""


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
    where = f"data file {str(path)!r}"
    arrays, note = read_arrays(path, "data file", lambda name: _is_wanted(name, where), _stays)
    if labels is not None:
        own = f"labels file {str(labels)!r}"
        found, more = read_arrays(
            labels,
            "labels file",
            lambda name: _is_wanted(name, own) and _parse(name).kind == "labels",
        )
        note = "; ".join(filter(None, (note, more)))
        twice = sorted(found.keys() & arrays.keys())
        if twice:
            raise ValueError(f"{where} and {own} both hold {twice[0]!r}")
        arrays |= found
    try:
        data = _assemble(arrays, key_axis, kind)
    except MemoryError as error:
        raise ValueError(too_large(path, "data file")) from error
    except ValueError as error:  # a misspelt name or lost chunks may be the reason
        raise ValueError(f"{where}: {error}{note and f' ({note})'}") from error
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


def take(examples: Examples | StoredExamples, kept: np.ndarray) -> Examples:
    """Some of the examples, by their indices."""
    if isinstance(examples, Examples):
        layers = examples.layers
        if layers is not None:
            layers = [layer.convert(lambda omega: omega[kept]) for layer in layers]
        return Examples(examples.inputs[kept], examples.labels[kept], layers)
    rows = examples.rows[kept]
    inputs = examples.inputs[rows]
    matrices = [
        _attention(name, omega[rows], examples.key_axis) for name, omega in examples.attention
    ]
    return Examples(inputs, examples.labels[kept], matrices or None)


def _stays(name: str, shape: tuple[int, ...]) -> bool:
    """Whether an array is left in its Zarr folder: of the training examples, if they are many."""
    what = _parse(name)
    one_each = what is not None and not what.examples and what.kind in ("inputs", "attention")
    return one_each and len(shape) > 0 and shape[0] > HELD


def _parse(name: str) -> _Array | None:
    """What the array of a name is; None if the name is another."""
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


def _is_wanted(name: str, where: str) -> bool:
    if _parse(name):
        return True
    if _SLIP.match(name):  # a slip must not pass unseen
        raise ValueError(
            f"{where} holds {name!r}; names must be inputs, labels, attention.1, attention.2 …, "
            "test_inputs, test_labels, test_attention.1, or test_inputs.NAME, test_labels.NAME, "
            "test_attention.NAME.1 and so on. Rename it, or leave it out"
        )
    return False


def _spelt(array: _Array) -> str:
    """Name under which an array is looked for."""
    parts = [f"test_{array.kind}" if array.examples else array.kind]
    parts += [array.examples] if array.examples not in ("", "test") else []
    parts += [str(array.layer)] if array.layer else []
    return ".".join(parts)


def _assemble(arrays: Mapping[str, np.ndarray], key_axis: str, kind: str | None) -> CustomData:
    held: dict[_Array, tuple[str, np.ndarray]] = {}
    for name, array in arrays.items():
        what = _parse(name)
        if what in held:
            raise ValueError(f"{held[what][0]!r} and {name!r} are the same; leave one of them out")
        held[what] = name, array
    tested = {what.examples for what in held if what.kind == "inputs"} - {""}
    names = ["", *sorted(tested, key=lambda name: (name != "test", name))]
    _check_present(held, [_Array(name, kind) for name in names for kind in ("inputs", "labels")])
    for what, (name, _) in held.items():
        if what.examples not in names:
            raise ValueError(f"{name!r} belongs to no test_inputs of that name")
    labels = read_labels(dict(held[_Array(name, "labels")] for name in names), kind)
    layers = _layer_numbers(held)
    paths = _paths(*held[_Array("", "paths")], layers) if _Array("", "paths") in held else ()
    stored: StoredExamples | None = None
    sets: dict[str, Examples] = {}
    heads: dict[str, list[int]] = {}
    width = 0
    for name in names:
        title, inputs = held[_Array(name, "inputs")]
        if not isinstance(inputs, StoredArray):
            inputs = real_numbers(repr(title), inputs, whole=True)
        if len(inputs.shape) != 3 or 0 in inputs.shape:
            raise ValueError(
                f"{title!r} must have shape (P, M, N_0), examples × tokens × width, but has "
                f"{inputs.shape}"
            )
        if inputs.shape[2] != (width or inputs.shape[2]):
            raise ValueError(
                f"{title!r} has tokens of width {inputs.shape[2]}, but 'inputs' of {width}"
            )
        if paths and inputs.shape[1] != math.prod(paths):
            raise ValueError(
                f"{title!r} has {inputs.shape[1]} tokens, but 'paths' of {paths} heads asks for "
                f"{math.prod(paths)}, one for every path"
            )
        own = held[_Array(name, "labels")][0]
        if inputs.shape[0] != len(labels.values[own]):
            raise ValueError(
                f"{own!r} holds {len(labels.values[own])} labels for the {inputs.shape[0]} "
                f"examples of {title!r}"
            )
        given = [_Array(name, "attention", number) for number in layers]
        _check_present(held, given)
        omegas = [held[what] for what in given]
        for layer, omega in omegas:
            _check_shape(layer, omega.shape, inputs.shape)
        if isinstance(inputs, StoredArray):
            rows = np.arange(inputs.shape[0])
            stored = StoredExamples(inputs, labels.values[own], omegas, key_axis, rows)
        else:
            matrices = [_attention(*omega, key_axis) for omega in omegas]
            sets[name] = Examples(inputs, labels.values[own], matrices or None)
        heads[name], width = [omega.shape[1] for _, omega in omegas], inputs.shape[2]
        if heads[name] != heads[""]:
            raise ValueError(
                f"test set {name!r} has attention of {heads[name]} heads in its layers, but "
                f"training has {heads['']}"
            )
    train = sets.pop("") if stored is None else stored
    return CustomData(train, sets, labels, paths=paths)


def _paths(name: str, array: np.ndarray, layers: Sequence[int]) -> tuple[int, ...]:
    """Numbers of heads, where sequences are attentioned inputs."""
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 1:
        raise ValueError(f"{name!r} must hold the number of heads of each layer, not {array!r}")
    if layers:
        raise ValueError(
            f"{name!r} says that inputs are attentioned already, so that 'attention.1' has no "
            "place; leave one of the two out"
        )
    return tuple(array.tolist())


def _check_shape(name: str, shape: tuple[int, ...], inputs: tuple[int, ...]) -> None:
    """Check the shape of attention matrices on some inputs."""
    examples, tokens, _ = inputs
    if len(shape) != 4 or shape != (examples, shape[1] or 1, tokens, tokens):
        raise ValueError(
            f"{name!r} must have shape ({examples}, H, {tokens}, {tokens}), but has {shape}"
        )


def _attention(name: str, omega: np.ndarray, key_axis: str) -> Layer:
    """Attention matrices of one layer."""
    omega = real_numbers(repr(name), omega, whole=True)
    if omega.min() < -1e-6:
        raise ValueError(f"{name!r} holds negative numbers; give attention after the softmax")
    if key_axis == "last":
        omega = omega.swapaxes(-1, -2)
    excess = abs(omega.sum(axis=-2) - 1).max()
    if excess > 1e-3:
        other = {"first": "last", "last": "first"}[key_axis]
        raise ValueError(
            f"{name!r} must sum to 1 over key tokens, but is off by {excess:.3g}; key_axis is "
            f"{key_axis!r}, so if its last two axes are the other way round, use {other!r}"
        )
    return Attention(omega)


def _layer_numbers(held: _Held) -> range:
    """Layers of which there is attention of any examples; none may be left out."""
    numbers = sorted({what.layer for what in held if what.layer})
    for number, found in enumerate(numbers, start=1):
        if number != found:
            _check_present(held, [_Array("", "attention", number)])
    return range(1, len(numbers) + 1)


def _check_present(held: _Held, wanted: Iterable[_Array]) -> None:
    missing = [repr(_spelt(what)) for what in wanted if what not in held]
    if missing:
        names = sorted(name for name, _ in held.values())
        known = f"it holds {', '.join(names)}" if names else "no array has a name that is read"
        raise ValueError(f"lacks {', '.join(missing)}; {known}")
