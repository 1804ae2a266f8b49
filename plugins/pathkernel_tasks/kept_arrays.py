"""Arrays in memory, kept in files of a data set's form so that studies find them again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.attention import QueryKey
from pathkernel_core.backend import to_host
from pathkernel_datasets.atomic import replacing
from pathkernel_tasks.heads_file import save_heads


def named(name: str, value: Any, *, layers: bool = False) -> dict[str, np.ndarray]:
    """Arrays by the names that a data file gives them.

    Parameters
    ----------
    name : str
        Such as ``"test_inputs"``.
    value : array, mapping of str to array, or None
        For several test sets a mapping from their names.
    layers : bool
        Whether there is a list of arrays, one for each layer, instead of each array.

    Raises
    ------
    ValueError
        If an array holds objects.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        parts = [named(f"{name}.{key}", part, layers=layers) for key, part in value.items()]
    elif layers:
        parts = [named(f"{name}.{number}", part) for number, part in enumerate(value, start=1)]
    else:
        array = np.asarray(to_host(value))
        if array.dtype.hasobject or array.dtype.kind == "T":
            array = array.astype(str) if all(isinstance(e, str) for e in array.flat) else array
        if array.dtype.hasobject:
            raise ValueError(
                f"{name} of shape {array.shape} holds Python objects; make it an array of numbers "
                "or text"
            )
        return {name: array}
    return {key: array for part in parts for key, array in part.items()}


def keep(
    arrays: Mapping[str, np.ndarray],
    heads: Sequence[QueryKey] | None,
    folder: str | os.PathLike | None = None,
) -> tuple[Path, Path | None]:
    """Write a data file, and one of heads if there are any, named for their content.

    Parameters
    ----------
    arrays : mapping of str to array
        By the names of a data file.
    heads : sequence of QueryKey, optional
    folder : path, optional
        By default one in the user's cache folder.

    Returns
    -------
    (path, path or None)
        Of the data and of the heads. What is there already is left as it is.
    """
    import pooch

    folder = Path(pooch.os_cache("pathkernel")) / "arrays" if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"data-{_digest(arrays)}.npz"
    if not data.exists():
        with replacing(data) as partial, open(partial, "wb") as stream:
            np.savez(stream, **arrays)
    if heads is None:
        return data, None
    for number, layer in enumerate(heads, start=1):
        if not isinstance(layer, QueryKey):
            raise TypeError(
                f"heads must be QueryKey, or the name of a file of heads, but layer {number} is "
                f"{type(layer).__name__}; of other attention give its matrices as attention"
            )
    layers = [layer.convert(to_host) for layer in heads]
    parts = {f"{i}.{j}": part for i, layer in enumerate(layers) for j, part in _parts(layer)}
    path = folder / f"heads-{_digest(parts)}.npz"
    if not path.exists():
        save_heads(path, layers)
    return data, path


def _parts(layer: QueryKey) -> list[tuple[str, np.ndarray]]:
    return [
        ("queries", layer.queries),
        ("keys", layer.keys),
        ("scale", np.array(str(layer.scale))),
    ]


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
