"""Files of heads: the queries and keys of a network trained anywhere, as safetensors or npz.

Arrays in the file, with layers numbered from 1:

==================  ==================  ============================================================
``queries.1`` …     (H, G, N_0)         queries of each layer
``keys.1`` …        (H, G, N_0)         keys of each layer
``scale``           () or (layers,)     factor of the scores; 1 / √G of each layer if left out
``labels``          (3, N_0)            label vectors of −, + and ?, if the network has its own
==================  ==================  ============================================================

H and G may differ between layers. Arrays of other names are ignored, so that a checkpoint can hold
the rest of its network.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathkernel_core.attention import QueryKey

SUFFIXES = (".safetensors", ".npz")


@dataclass(frozen=True)
class Heads:
    """Content of a heads file.

    Attributes
    ----------
    layers : tuple of QueryKey
        The first layer first, float64.
    label_vectors : array, shape (3, N_0), or None
        Label vectors of −, + and ?, if the file holds them.
    """

    layers: tuple[QueryKey, ...]
    label_vectors: np.ndarray | None = None


def check_suffix(path: str | Path) -> None:
    """Raise a ValueError unless the path ends as a heads file does."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"heads file {str(path)!r} must end in {' or '.join(SUFFIXES)}")


def heads_digest(path: str | Path) -> str:
    """SHA-256 of a heads file, in hexadecimal.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    return hashlib.sha256(_content(path)).hexdigest()


def read_heads(path: str | Path, width: int) -> Heads:
    """Read and check a heads file.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.safetensors`` or ``.npz``.
    width : int
        Width N_0 of the tokens that the heads must fit.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the suffix is another, the file is damaged or holds pickled objects, or an array is
        missing, of a wrong shape or type, or not finite. The message names the file and the array.
    """
    check_suffix(path)
    arrays = _arrays(path)
    numbers = _layer_numbers(path, arrays)
    vectors = None
    if "labels" in arrays:
        vectors = _real(path, "labels", arrays["labels"])
        if vectors.shape != (3, width):
            raise ValueError(
                f"heads file {str(path)!r}: 'labels' must have shape (3, {width}), one vector for "
                f"each of −, + and ?, but has {vectors.shape}"
            )
    pairs = []
    for number in numbers:
        queries, keys = (
            _real(path, f"{kind}.{number}", arrays[f"{kind}.{number}"])
            for kind in ("queries", "keys")
        )
        if queries.ndim != 3 or 0 in queries.shape or queries.shape[2] != width:
            raise ValueError(
                f"heads file {str(path)!r}: 'queries.{number}' must have shape (H, G, {width}), "
                f"heads × query width × token width, but has {queries.shape}"
            )
        if keys.shape != queries.shape:
            raise ValueError(
                f"heads file {str(path)!r}: 'keys.{number}' must have the shape {queries.shape} of "
                f"'queries.{number}', but has {keys.shape}"
            )
        pairs.append((queries, keys))
    scales = [1 / math.sqrt(queries.shape[1]) for queries, _ in pairs]
    if "scale" in arrays:
        scale = _real(path, "scale", arrays["scale"])
        if scale.size != 1 and scale.shape != (len(pairs),):
            raise ValueError(
                f"heads file {str(path)!r}: 'scale' must hold one number, or one for each of the "
                f"{len(pairs)} layers, but has shape {scale.shape}"
            )
        scales = np.broadcast_to(scale.ravel(), (len(pairs),)).tolist()
    return Heads(tuple(QueryKey(*pair, scale) for pair, scale in zip(pairs, scales)), vectors)


def save_heads(
    path: str | Path,
    layers: Sequence[QueryKey],
    scale: float | None = None,
    label_vectors: np.ndarray | None = None,
) -> None:
    """Write a heads file, which :func:`read_heads` and the option ``heads`` of the task read.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.safetensors`` or ``.npz``; replaced if it exists.
    layers : sequence of QueryKey
        The first layer first. Arrays are written in their own precision.
    scale : float, optional
        Factor of the scores of all layers. By default each layer's own.
    label_vectors : array, shape (3, N_0), optional
        Label vectors of −, + and ? that the network was trained with.

    Raises
    ------
    ValueError
        If there is no layer, or the suffix is another.
    """
    check_suffix(path)
    if not layers:
        raise ValueError("layers must hold at least one layer, but is empty")
    arrays = {}
    for number, layer in enumerate(layers, start=1):
        arrays[f"queries.{number}"] = np.ascontiguousarray(layer.queries)
        arrays[f"keys.{number}"] = np.ascontiguousarray(layer.keys)
    if scale is None:
        arrays["scale"] = np.array([_scale(layer) for layer in layers])
    else:
        arrays["scale"] = np.array(float(scale))
    if label_vectors is not None:
        arrays["labels"] = np.ascontiguousarray(label_vectors)
    if Path(path).suffix.lower() == ".npz":
        with open(path, "wb") as stream:  # savez would append the suffix to a name in capitals
            np.savez(stream, **arrays)
    else:
        from safetensors.numpy import save

        Path(path).write_bytes(save(arrays))


def _scale(layer: QueryKey) -> float:
    if layer.scale is not None:
        return float(layer.scale)
    _, qk_width, width = layer.queries.shape
    return 1 / (width * math.sqrt(qk_width))  # QueryKey's default


def _content(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no heads file {str(path)!r}") from error


def _arrays(path: str | Path) -> dict[str, np.ndarray]:
    content = _content(path)
    damaged = f"heads file {str(path)!r} is damaged or of another format"
    if Path(path).suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return load(content)
        except SafetensorError as error:
            raise ValueError(f"{damaged}: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:  # bfloat16 and other types that
            raise ValueError(  # NumPy lacks
                f"heads file {str(path)!r} holds arrays of a type that NumPy lacks ({error}); "
                "write float32 or float64"
            ) from error
    if not content.startswith(b"PK"):  # np.load would take anything else for a pickle
        raise ValueError(f"{damaged}: it is no archive of arrays")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (
        *(ValueError, OSError, EOFError, RuntimeError, NotImplementedError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        if "allow_pickle" in str(error):
            raise ValueError(
                f"heads file {str(path)!r} holds Python objects, which are never loaded because "
                "they can run code; write plain float arrays"
            ) from error
        raise ValueError(f"{damaged}: {error}") from error
    # members that are no arrays come as bytes
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _layer_numbers(path: str | Path, arrays: dict[str, np.ndarray]) -> range:
    found = {"queries": set(), "keys": set()}
    for name in arrays:
        if match := re.fullmatch(r"(queries|keys)\.([1-9][0-9]*)", name):
            found[match[1]].add(int(match[2]))
        elif re.match(r"quer|key", name, re.IGNORECASE):  # a slip must not drop a layer unseen
            raise ValueError(
                f"heads file {str(path)!r} holds {name!r}; queries and keys must be named "
                "'queries.1', 'keys.1', 'queries.2' and so on"
            )
    numbers = range(1, max(found["queries"] | found["keys"], default=0) + 1)
    missing = [
        f"'{kind}.{number}'"
        for number in numbers or (1,)
        for kind in ("queries", "keys")
        if number not in found[kind]
    ]
    if missing:
        raise ValueError(
            f"heads file {str(path)!r} lacks {', '.join(missing)}; it must hold the queries and "
            "the keys of every layer, numbered from 1 without gaps"
        )
    return numbers


def _real(path: str | Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f":
        raise ValueError(
            f"heads file {str(path)!r}: {name!r} must hold real floating-point numbers, but holds "
            f"{array.dtype}"
        )
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"heads file {str(path)!r}: {name!r} holds NaN or infinity")
    return array
