"""Arrays in memory, saved as data files that studies can read again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import to_host
from pathkernel_core.paths.layers import QueryKey
from pathkernel_tasks.array_files import content_digest
from pathkernel_tasks.heads_file import save_heads


def name_arrays(name: str, value: Any, *, layers: bool = False) -> dict[str, np.ndarray]:
    """Name an array, or the arrays of a mapping from test sets, as a data file does.

    With ``layers``, there is a list of arrays, one for each layer, instead of each array.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping) or layers:
        nested = isinstance(value, Mapping)
        parts = value.items() if nested else enumerate(value, start=1)
        arrays = [
            name_arrays(f"{name}.{key}", part, layers=nested and layers) for key, part in parts
        ]
        return {key: array for part in arrays for key, array in part.items()}
    array = np.asarray(to_host(value))
    if array.dtype.kind in "OT" and all(isinstance(entry, str) for entry in array.flat):
        array = array.astype(str)
    if array.dtype.hasobject:
        raise ValueError(
            f"{name} of shape {array.shape} holds Python objects; make it an array of numbers or "
            "text"
        )
    return {name: array}


def save_arrays(
    arrays: Mapping[str, np.ndarray],
    heads: Sequence[QueryKey] | None,
    folder: str | os.PathLike | None = None,
) -> tuple[Path, Path | None]:
    """Write a data file and a heads file, named for their content; by default in the user's cache.

    Returns
    -------
    data, heads : Path, Path or None
    """
    import pooch

    folder = Path(pooch.os_cache("pathkernel")) / "arrays" if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = _write_by_content(folder, "data", lambda path: np.savez(path, **arrays))
    if heads is None:
        return data, None
    for number, layer in enumerate(heads, start=1):
        if not isinstance(layer, QueryKey):
            raise TypeError(
                f"heads must be QueryKey, or the name of a file of heads, but layer {number} is "
                f"{type(layer).__name__}; of other attention give its matrices as attention"
            )
    layers = [layer.convert(to_host) for layer in heads]
    return data, _write_by_content(folder, "heads", lambda path: save_heads(path, layers))


def _write_by_content(folder: Path, stem: str, write: Callable[[Path], None]) -> Path:
    """Write a file, and name it for its content."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary, "new.npz")
        write(new)
        return new.replace(folder / f"{stem}-{content_digest(new, stem)[:16]}.npz")
