"""Files of a user's own token sequences, with labels and attention matrices if there are any.

==========================  ================  ===================================================
``inputs``                  (P, M, N_0)       training sequences
``labels``                  (P,) or (P, C)    their labels
``attention.1`` …           (P, H, M, M)      attention matrices of each layer, instead of heads
``test_inputs``             (P', M', N_0)     a test set; ``test_labels`` and ``test_attention.1`` …
                                              belong to it
``test_inputs.NAME`` …      (P', M', N_0)     or several, with ``test_labels.NAME`` and
                                              ``test_attention.NAME.1`` …
==========================  ================  ===================================================

Arrays of other names are ignored. Labels may lie in a file of their own, under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pathkernel_core.attention import Attention, Layer
from pathkernel_core.task import Examples
from pathkernel_tasks.array_files import read_arrays
from pathkernel_tasks.labels import targets

SUFFIXES = (".npz", ".safetensors", ".zarr")
_SLIPS = re.compile(r"(test_)?(inputs?|labels?|attentions?)\b", re.IGNORECASE)
_KNOWN = re.compile(
    r"inputs|labels|attention\.[1-9]\d*"
    r"|test_(inputs|labels)(\.[^.]+)?|test_attention(\.[^.]+)?\.[1-9]\d*"
)


@dataclass(frozen=True, eq=False)
class CustomData:
    """Content of a data file.

    Attributes
    ----------
    train : Examples
        With layers of attention matrices if the file holds them.
    test_sets : dict of str to Examples
        By name; ``"test"`` if it has none. Empty if the file has no test set.
    note : str
        What became of the labels; empty if they are as they were.
    """

    train: Examples
    test_sets: dict[str, Examples]
    note: str


def read_data(path: str | Path, labels: str | Path | None, key_axis: str) -> CustomData:
    """Read and check a data file.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.npz``, ``.safetensors`` or ``.zarr``.
    labels : str or Path, optional
        File of labels, if the data file has none.
    key_axis : "first" or "last"
        Which of the last two axes of attention matrices counts key tokens.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is damaged or holds pickled objects, or an array is missing, of a wrong shape or
        type, or not finite. The message names the file and the array.
    """
    arrays = read_arrays(path, "data file")
    where = f"data file {str(path)!r}"
    if labels is not None:
        given = read_arrays(labels, "labels file")
        found = {name: array for name, array in given.items() if "labels" in name}
        twice = sorted(found.keys() & arrays.keys())
        if twice:
            raise ValueError(f"{where} and labels file {str(labels)!r} both hold {twice[0]!r}")
        arrays |= found
    for name in arrays:
        if _SLIPS.match(name) and not _KNOWN.fullmatch(name):  # a slip must not pass unseen
            raise ValueError(
                f"{where} holds {name!r}; names must be inputs, labels, attention.1, test_inputs, "
                "test_labels, test_attention.1, or test_inputs.NAME and so on"
            )
    try:
        return _assemble(arrays, key_axis)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


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
    count = data.train.inputs.shape[0]
    tested = round(fraction * count)
    if not 0 < tested < count:
        raise ValueError(f"test_fraction={fraction:g} of {count} examples leaves one side empty")
    order = np.random.default_rng(seed).permutation(count)
    test = _take(data.train, order[:tested])
    return replace(data, train=_take(data.train, order[tested:]), test_sets={"test": test})


def _assemble(arrays: dict[str, np.ndarray], key_axis: str) -> CustomData:
    suffixes = {"": ""}  # what follows test_inputs → name of the test set
    for name in sorted(arrays):
        if name == "test_inputs":
            suffixes["test"] = ""
        elif name.startswith("test_inputs."):
            suffixes[name.removeprefix("test_inputs.")] = name.removeprefix("test_inputs")
    prefixes = {name: "test_" if name else "" for name in suffixes}
    names = {name: f"{prefixes[name]}labels{suffix}" for name, suffix in suffixes.items()}
    _check_present(arrays, ["inputs", *names.values()])
    for name in sorted(arrays):
        match = re.fullmatch(r"test_(?:labels|attention(?=.*\.\d+$))(\.[^.]+)??(\.\d+)?", name)
        if match and (match[1] or "") not in list(suffixes.values())[1:]:
            raise ValueError(f"{name!r} belongs to no test_inputs of that name")
    mapped, note = targets({label: arrays[label] for label in names.values()})
    layers = _layer_numbers(arrays)
    sets = {}
    for name, suffix in suffixes.items():
        prefix = prefixes[name]
        inputs = _real(f"{prefix}inputs{suffix}", arrays[f"{prefix}inputs{suffix}"])
        if inputs.ndim != 3 or 0 in inputs.shape:
            raise ValueError(
                f"'{prefix}inputs{suffix}' must have shape (P, M, N_0), examples × tokens × width, "
                f"but has {inputs.shape}"
            )
        if sets and inputs.shape[2] != sets[""].inputs.shape[2]:
            raise ValueError(
                f"'{prefix}inputs{suffix}' has tokens of width {inputs.shape[2]}, but 'inputs' of "
                f"{sets[''].inputs.shape[2]}"
            )
        if len(inputs) != len(mapped[names[name]]):
            raise ValueError(
                f"'{names[name]}' holds {len(mapped[names[name]])} labels for the {len(inputs)} "
                f"examples of '{prefix}inputs{suffix}'"
            )
        given = _attention(arrays, f"{prefix}attention{suffix}", layers, inputs, key_axis)
        sets[name] = Examples(inputs, mapped[names[name]], given)
    train = sets.pop("")
    for name, examples in sets.items():
        _check_same_heads(name, examples, train)
    return CustomData(train, sets, note)


def _attention(
    arrays: dict[str, np.ndarray], stem: str, layers: range, inputs: np.ndarray, key_axis: str
) -> list[Layer] | None:
    """Attention matrices of one set of examples, or None if there are none at all."""
    if not layers:
        return None
    names = [f"{stem}.{number}" for number in layers]
    _check_present(arrays, names)
    found: list[Layer] = []
    examples, tokens, _ = inputs.shape
    for name in names:
        omega = _real(name, arrays[name])
        if omega.ndim != 4 or omega.shape != (examples, omega.shape[1] or 1, tokens, tokens):
            raise ValueError(
                f"{name!r} must have shape ({examples}, H, {tokens}, {tokens}), but has "
                f"{omega.shape}"
            )
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
        found.append(Attention(omega))
    return found


def _layer_numbers(arrays: dict[str, np.ndarray]) -> range:
    """Layers that the training examples' attention matrices are of; all must be there."""
    numbers = [
        int(match[1])
        for name in arrays
        if (match := re.fullmatch(r"(?:test_)?attention(?:\.[^.]+)??\.([1-9]\d*)", name))
    ]
    return range(1, max(numbers, default=0) + 1)


def _check_present(arrays: dict[str, np.ndarray], names: Iterable[str]) -> None:
    missing = [repr(name) for name in names if name not in arrays]
    if missing:
        raise ValueError(
            f"lacks {', '.join(missing)}; it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )


def _check_same_heads(name: str, examples: Examples, train: Examples) -> None:
    heads, expected = ([layer.n_heads for layer in part.layers or ()] for part in (examples, train))
    if heads != expected:
        raise ValueError(
            f"test set {name!r} has attention of {heads} heads in its layers, but training has "
            f"{expected}"
        )


def _real(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name!r} must hold real numbers, but holds {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} holds NaN or infinity")
    return array


def _take(examples: Examples, kept: np.ndarray) -> Examples:
    layers = examples.layers
    if layers is not None:
        layers = [layer.convert(lambda omega: omega[kept]) for layer in layers]
    return Examples(examples.inputs[kept], examples.labels[kept], layers)
