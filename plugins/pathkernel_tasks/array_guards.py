"""What is asked of a user's file of arrays before it is read, and of the numbers in it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pathkernel_datasets.memory import bytes_in_words, memory_bound

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_CONVERSION = (
    "Such files of PyTorch can run code, and are never loaded; convert a model's once, where you "
    "trust it: state = torch.load(FILE, map_location='cpu', weights_only=True); "
    "safetensors.torch.save_file({name: array.clone() for name, array in state.items()}, "
    "'model.safetensors')"
)


def check_suffix(path: str | Path, kind: str, suffixes: Sequence[str]) -> None:
    """Raise a ValueError unless the path ends in one of the suffixes.

    Parameters
    ----------
    path : str or Path
    kind : str
        What the file is, for the message, such as ``"heads file"``.
    suffixes : sequence of str
        Such as ``".npz"``, in lower case.

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
    """The file, or all files of a folder, sorted; a link stands for what it leads to.

    Parameters
    ----------
    path : str or Path
    kind : str
        What it is, for messages.

    Raises
    ------
    FileNotFoundError
        If there is neither.
    ValueError
        If one is no plain file but a pipe, a device or a broken link, which may block or never end,
        or a folder links to one that it lies in.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no {kind} {str(path)!r}")
    files, places = [path], {}
    if path.is_dir():
        files = []
        for folder, _, names in os.walk(path, followlinks=True):
            place = places[Path(folder)] = os.path.realpath(folder)
            if place in (places.get(above) for above in Path(folder).parents):
                raise ValueError(f"{kind} {str(path)!r}: the link {folder!r} leads in a circle")
            files += [Path(folder, name) for name in names]
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"{kind} {str(path)!r} cannot be read: {str(file)!r} is no plain file but a pipe, "
                "a device or a broken link; copy what it gives into a file"
            )
    return sorted(files)


def check_names(path: str | Path, kind: str, names: Iterable[str]) -> None:
    """Check that names can be printed and, taken as paths, do not lead out of their file.

    Raises
    ------
    ValueError
        If one cannot, or does.
    """
    for name in names:
        if not name.isprintable():
            raise ValueError(
                f"{kind} {str(path)!r} holds the name {name!r}, with characters that cannot be "
                "printed; rename that array"
            )
        if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
            raise ValueError(
                f"{kind} {str(path)!r} holds the name {name!r}, a path that leads out of the file; "
                "do not use files of this origin"
            )


def check_size(
    path: str | Path, kind: str, stored: Mapping[str, tuple[tuple[int, ...], int]]
) -> None:
    """Check that arrays fit into memory, by what their headers say.

    Parameters
    ----------
    path : str or Path
    kind : str
        What the file is, for the message.
    stored : mapping of str to (shape, bytes of an element)
        By the array's name. An element counts at least 8 bytes, as numbers are computed with in
        double precision.

    Raises
    ------
    ValueError
        If together they would take more than half of the memory.
    """
    sizes = {name: math.prod(shape) * max(8, size) for name, (shape, size) in stored.items()}
    total, bound = sum(sizes.values()), memory_bound()
    if total > bound:
        largest = max(sizes, key=sizes.__getitem__)
        raise ValueError(
            f"{kind} {str(path)!r} holds arrays that would take {bytes_in_words(total)} in double "
            f"precision, {bytes_in_words(sizes[largest])} of it {largest!r} of shape "
            f"{stored[largest][0]}; no more than half of the memory, "
            f"{bytes_in_words(bound)}, is read. Take fewer examples, tokens, heads or layers"
        )


def too_large(path: str | Path, kind: str) -> str:
    """Message for a file that is within the bound, but for which too little memory is free."""
    return (
        f"{kind} {str(path)!r} does not fit into the memory that is free; take fewer examples, "
        "tokens, heads or layers"
    )


def real_numbers(name: str, array: np.ndarray, *, whole: bool) -> np.ndarray:
    """Array in float64.

    Parameters
    ----------
    name : str
        Of the array, for the message, with the file where that is not told elsewhere.
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
        raise ValueError(f"{name} must hold {wanted}, but holds {array.dtype}")
    array = array.astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return array
