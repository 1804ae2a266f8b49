"""Checks of a user's file: its suffix, its claims on memory, and its shapes and numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pathkernel_core.system.memory import CLAIM_RATIO, bytes_in_words, claim_bound, memory_bound

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_PICKLED_REMEDY = (
    ". Such files of PyTorch can run code, and are never loaded; load the model where you trust "
    "it, and save its attention with capture(model, batches).save('data.npz')"
)

Shape = Sequence[int | str]
"""Lengths of an array's axes: a number, or a symbol such as ``"N_0"``; last may be ``"..."``."""


def check_suffix(path: str | Path, kind: str, suffixes: Sequence[str]) -> None:
    """Check that a path ends in one of the suffixes; raise ValueError if not."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"{kind} must be named by its path, but is {type(path).__name__}; make a task of "
            "arrays with Custom.from_arrays"
        )
    if (suffix := Path(path).suffix.lower()) not in suffixes:
        remedy = _PICKLED_REMEDY if suffix in _PICKLED else ""
        raise ValueError(f"{kind} {str(path)!r} must end in {' or '.join(suffixes)}{remedy}")


def check_claimed_size(
    title: str,
    arrays: Mapping[str, tuple[Sequence[int], int]],
    stored: int,
    bound: float | None = None,
) -> None:
    """Check the memory that a file claims before any is allocated.

    Parameters
    ----------
    arrays : mapping of str to (shape, bytes of an element)
        From the headers. An element counts at least 8 bytes, as in double precision.
    stored : int
        Bytes of the file.
    bound : float, optional
        Largest number of bytes; by default half of the memory.

    Raises
    ------
    ValueError
        If the arrays together would take more; or more than 256 MiB and a thousand times the file.
    """
    sizes = {name: math.prod(shape) * max(8, size) for name, (shape, size) in arrays.items()}
    total, bound = sum(sizes.values()), memory_bound() if bound is None else bound
    if total > min(bound, claim_bound(stored)):
        largest = max(sizes, key=sizes.__getitem__)
        limit = "half of the memory" if total > bound else f"{CLAIM_RATIO} times the file"
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
    lengths: Mapping[str, tuple[int, str]] = MappingProxyType({}),
) -> None:
    """Compare arrays with a table of shapes; axes of the same symbol must have the same length.

    Parameters
    ----------
    arrays : mapping of str to array
        Anything with a shape.
    expected : mapping of str to shape
        Such as ``{"inputs": ("P", "M", "N_0"), "labels": ("P", "...")}``.
    lengths : mapping of str to (int, str)
        Lengths of symbols that are fixed beforehand, and their source.

    Raises
    ------
    ValueError
        If an array is missing, has another shape, or has an axis of length 0. The message names
        the array, the expected shape and the actual one.
    """
    if missing := [repr(name) for name in expected if name not in arrays]:
        names = sorted(arrays) or ["no array of a name that is read"]
        lists = [", ".join([*part[:10], *["…"] * (len(part) > 10)]) for part in (missing, names)]
        raise ValueError(f"{title} lacks {lists[0]}; it holds {lists[1]}")
    sizes = dict(lengths)
    for name, symbols in expected.items():
        shape = tuple(arrays[name].shape)
        axes = tuple(axis for axis in symbols if axis != "...")
        is_right = len(shape) == len(axes) or len(shape) > len(axes) < len(symbols)
        agreed = [
            f"{axis} = {sizes[axis][0]} of {sizes[axis][1]}" for axis in axes if axis in sizes
        ]
        for axis, length in zip(axes, shape):
            if isinstance(axis, str):
                axis, _ = sizes.setdefault(axis, (length, repr(name)))
            is_right &= 0 < length == axis
        if not is_right:
            listed = f" with {', '.join(dict.fromkeys(agreed))}" if agreed else ""
            raise ValueError(
                f"{title}: {name!r} must have shape ({', '.join(map(str, symbols))}){listed}, but "
                f"has {shape}"
            )


def real_numbers(title: str, array: np.ndarray, *, whole: bool) -> np.ndarray:
    """Convert an array of real numbers to float64.

    Raises
    ------
    ValueError
        If it holds anything but real numbers, or NaN or infinity; or integers, unless ``whole``.
    """
    if array.dtype.kind not in ("fiu" if whole else "f"):
        kind = "real numbers" if whole else "real floating-point numbers"
        raise ValueError(f"{title} must hold {kind}, but holds {array.dtype}")
    array = array.astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        raise ValueError(f"{title} holds NaN or infinity")
    return array
