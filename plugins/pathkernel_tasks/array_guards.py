"""Checks of a user's file: its kind, its claims on memory, and the shapes and numbers in it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_datasets.memory import bytes_in_words, memory_bound

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_CONVERSION = (
    "Such files of PyTorch can run code, and are never loaded; convert a model's once, where you "
    "trust it: state = torch.load(FILE, map_location='cpu', weights_only=True); "
    "safetensors.torch.save_file({name: array.clone() for name, array in state.items()}, "
    "'model.safetensors')"
)
_SMALL, _RATIO = 2**28, 1000  # bytes that any file may take, and times its size that others may

Shape = Sequence[int | str]
"""Lengths of an array's axes: a number, or a symbol such as ``"N_0"``; last may be ``"..."``."""


def check_suffix(path: str | Path, kind: str, suffixes: Sequence[str]) -> None:
    """Check that a path ends in one of the suffixes, such as ``".npz"``.

    Raises
    ------
    ValueError
        If it does not.
    TypeError
        If it is no path but, for example, the arrays themselves.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"{kind} must be named by its path, but is {type(path).__name__}; make a task of "
            "arrays with Custom.from_arrays"
        )
    if (suffix := Path(path).suffix.lower()) not in suffixes:
        remedy = f". {_CONVERSION}" if suffix in _PICKLED else ""
        raise ValueError(f"{kind} {str(path)!r} must end in {' or '.join(suffixes)}{remedy}")


def regular_files(path: str | Path, kind: str) -> list[Path]:
    """The file, or all files of a folder, sorted. A link to a file stands for that file.

    Raises
    ------
    FileNotFoundError
        If there is neither.
    ValueError
        If a pipe, a device, a broken link or a link to another folder is among them.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no {kind} {str(path)!r}")
    files = [path]
    if path.is_dir():
        files = []
        for folder, folders, names in os.walk(path):
            entries = [Path(folder, name) for name in (*names, *folders)]
            files += [entry for entry in entries if entry.is_symlink() or not entry.is_dir()]
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"{kind} {str(path)!r} cannot be read: {str(file)!r} is no plain file but a pipe, "
                "a device, a broken link or a link to a folder; copy its content there"
            )
    return sorted(files)


def check_size(
    title: str,
    arrays: Mapping[str, tuple[Sequence[int], int]],
    stored: int,
    bound: float | None = None,
) -> None:
    """Check the memory that a file claims, before any of it is taken.

    Parameters
    ----------
    title : str
        Of the file, for the message.
    arrays : mapping of str to (shape, bytes of an element)
        As the file's headers have them. An element counts at least 8 bytes, those of a number in
        double precision.
    stored : int
        Bytes of the file.
    bound : float, optional
        Bytes that fit into memory, by default half of it.

    Raises
    ------
    ValueError
        If the arrays would take more together; or more than 256 MiB and than a thousand times the
        file.
    """
    sizes = {name: math.prod(shape) * max(8, size) for name, (shape, size) in arrays.items()}
    total, bound = sum(sizes.values()), memory_bound() if bound is None else bound
    if total > min(bound, max(_SMALL, _RATIO * stored)):
        largest = max(sizes, key=sizes.__getitem__)
        limit = "half of the memory" if total > bound else f"{_RATIO} times the file"
        raise ValueError(
            f"{title} of {bytes_in_words(stored)} holds arrays that would take "
            f"{bytes_in_words(total)} in double precision, {bytes_in_words(sizes[largest])} of it "
            f"{largest!r} of shape {tuple(arrays[largest][0])}; no more than {limit} is read. "
            "Take fewer examples, tokens, heads or layers"
        )


def check_shapes(
    title: str,
    arrays: Mapping[str, Any],
    expected: Mapping[str, Shape],
    known: Mapping[str, tuple[int, str]] | None = None,
) -> None:
    """Compare arrays with a table of shapes; axes of the same symbol must have the same length.

    Parameters
    ----------
    title : str
        Of the file, for the message.
    arrays : mapping of str to array
        Anything with a shape.
    expected : mapping of str to shape
        Such as ``{"inputs": ("P", "M", "N_0"), "labels": ("P", "...")}``.
    known : mapping of str to (int, str), optional
        Lengths of symbols that are known beforehand, and where from.

    Raises
    ------
    ValueError
        If an array is missing, has another shape, or has an axis of length 0. The message names
        the array, the shape wanted and the shape that it has.
    """
    if missing := [repr(name) for name in expected if name not in arrays]:
        names = sorted(arrays) or ["no array of a name that is read"]
        lists = [", ".join([*some[:10], *["…"] * (len(some) > 10)]) for some in (missing, names)]
        raise ValueError(f"{title} lacks {lists[0]}; it holds {lists[1]}")
    sizes = dict(known or {})
    for name, wanted in expected.items():
        shape = tuple(arrays[name].shape)
        axes = tuple(axis for axis in wanted if axis != "...")
        fits = len(shape) == len(axes) or (len(axes) < len(wanted) and len(shape) > len(axes))
        agreed = [
            f"{axis} = {sizes[axis][0]} of {sizes[axis][1]}" for axis in axes if axis in sizes
        ]
        for axis, length in zip(axes, shape):
            if isinstance(axis, str):
                axis, _ = sizes.setdefault(axis, (length, repr(name)))
            fits &= 0 < length == axis
        if not fits:
            listed = f" with {', '.join(dict.fromkeys(agreed))}" if agreed else ""
            raise ValueError(
                f"{title}: {name!r} must have shape ({', '.join(map(str, wanted))}){listed}, but "
                f"has {shape}"
            )


def real_numbers(title: str, array: np.ndarray, *, whole: bool) -> np.ndarray:
    """Array in float64.

    Parameters
    ----------
    title : str
        Of the array, for the message.
    array : array
    whole : bool
        Whether the type may be one of whole numbers.

    Raises
    ------
    ValueError
        If it holds anything but real numbers, or NaN or infinity.
    """
    if array.dtype.kind not in ("fiu" if whole else "f"):
        wanted = "real numbers" if whole else "real floating-point numbers"
        raise ValueError(f"{title} must hold {wanted}, but holds {array.dtype}")
    array = array.astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        raise ValueError(f"{title} holds NaN or infinity")
    return array
