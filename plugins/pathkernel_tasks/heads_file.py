"""Files of heads: the queries and keys of a network trained anywhere, as safetensors or npz.

Arrays in the file, with layers numbered from 1:

==================  ==================  ============================================================
``queries.1`` …     (H, G, N_0)         queries of each layer
``keys.1`` …        (H, G, N_0)         keys of each layer
``scale``           () or (layers,)     factor of the scores; 1 / √G of each layer if left out
``labels``          (3, N_0)            label vectors of −, + and ?, if the network has its own
==================  ==================  ============================================================

H and G may differ between layers. Arrays of other names are not read, so that a checkpoint can hold
the rest of its network; names that begin alike are refused. A sentence ``approximation``, in the
header of a safetensors file or as an array of text in an npz file, says in what the heads' network
departs from the theory's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathkernel_core.attention import QueryKey
from pathkernel_core.text import printable
from pathkernel_datasets.atomic import replacing
from pathkernel_tasks import array_files, array_guards

SUFFIXES = (".safetensors", ".npz")
_KIND = "heads file"
_LAYER = re.compile(r"(queries|keys)\.([1-9][0-9]{0,3})")
_OTHERS = ("scale", "labels", "approximation")


@dataclass(frozen=True)
class Heads:
    """Content of a heads file.

    Attributes
    ----------
    layers : tuple of QueryKey
        The first layer first, float64.
    label_vectors : array, shape (3, N_0), or None
        Label vectors of −, + and ?, if the file holds them.
    approximation : str
        In what the network that the heads come from departs from the theory's; empty if unknown.
    ignored : str
        Which arrays of the file were not read; empty if there are none.
    """

    layers: tuple[QueryKey, ...]
    label_vectors: np.ndarray | None = None
    approximation: str = ""
    ignored: str = ""


def check_suffix(path: str | Path) -> None:
    """Check that the path ends as a heads file does.

    Raises
    ------
    ValueError
        If it does not.
    """
    array_guards.check_suffix(path, _KIND, SUFFIXES)


def heads_digest(path: str | Path) -> str:
    """SHA-256 of a heads file, in hexadecimal.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    return array_files.content_digest(path, _KIND)


def read_heads(path: str | Path, width: int | None = None) -> Heads:
    """Read and check a heads file.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.safetensors`` or ``.npz``.
    width : int, optional
        Width N_0 of the tokens that the heads must fit. By default that of the first layer.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the suffix is another, the file is damaged, too large for the memory or holds pickled
        objects, a name is a slip, or an array is missing, of a wrong shape or type, or holds NaN or
        infinity. The message names the file and the array.
    """
    check_suffix(path)
    arrays, ignored = array_files.read_arrays(path, _KIND, lambda name: _is_wanted(path, name))
    about = _header(path)
    if ignored and about.get("format", "").startswith("pathkernel "):  # of a whole network
        ignored = f"{Path(path).name} is a checkpoint: compare and prune take its values, too"
    numbers = _layer_numbers(path, arrays)
    if width is None:
        width = (arrays["queries.1"].shape or (0,))[-1]
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
        if not (scale > 0).all():
            raise ValueError(f"heads file {str(path)!r}: 'scale' must be positive, but is {scale}")
        scales = np.broadcast_to(scale.ravel(), (len(pairs),)).tolist()
    layers = tuple(QueryKey(*pair, scale) for pair, scale in zip(pairs, scales))
    return Heads(layers, vectors, _approximation(about, arrays), ignored)


def save_heads(
    path: str | Path,
    layers: Sequence[QueryKey],
    scale: float | None = None,
    label_vectors: np.ndarray | None = None,
    approximation: str = "",
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
    approximation : str
        In what the network that the heads come from departs from the theory's.

    Raises
    ------
    ValueError
        If there is no layer, the scale is not positive and finite, the label vectors hold NaN or
        infinity, or the suffix is another. Nothing is written then.
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
    elif 0 < scale < math.inf:
        arrays["scale"] = np.array(float(scale))
    else:
        raise ValueError(f"scale must be positive and finite, but is {scale}")
    if label_vectors is not None:
        if not np.isfinite(label_vectors).all():
            raise ValueError("label_vectors holds NaN or infinity")
        arrays["labels"] = np.ascontiguousarray(label_vectors)
    if Path(path).suffix.lower() == ".npz":
        if approximation:
            arrays["approximation"] = np.array(approximation)
        with replacing(path) as partial, open(partial, "wb") as stream:
            np.savez(stream, **arrays)  # to a stream: to a name it would append the suffix
    else:
        from safetensors.numpy import save

        about = {"approximation": approximation} if approximation else None
        with replacing(path) as partial:
            partial.write_bytes(save(arrays, metadata=about))


def _scale(layer: QueryKey) -> float:
    if layer.scale is not None:
        return float(layer.scale)
    _, qk_width, width = layer.queries.shape
    return 1 / (width * math.sqrt(qk_width))  # QueryKey's default


def _header(path: str | Path) -> dict[str, str]:
    if Path(path).suffix.lower() != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return file.metadata() or {}


def _approximation(about: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    if "approximation" in about:
        return printable(about["approximation"])
    sentence = arrays.get("approximation", np.array(""))
    return printable(str(sentence)) if sentence.dtype.kind == "U" and sentence.ndim == 0 else ""


def _is_wanted(path: str | Path, name: str) -> bool:
    if _LAYER.fullmatch(name) or name in _OTHERS:
        return True
    if re.match(r"quer|key|scal|label|approx", name, re.IGNORECASE):  # a slip must not pass unseen
        raise ValueError(
            f"heads file {str(path)!r} holds {name!r}; queries and keys must be named 'queries.1', "
            f"'keys.1', 'queries.2' and so on, and the rest {', '.join(_OTHERS)}"
        )
    return False


def _layer_numbers(path: str | Path, arrays: dict[str, np.ndarray]) -> range:
    found = {(match[1], int(match[2])) for name in arrays if (match := _LAYER.fullmatch(name))}
    numbers = range(1, max((number for _, number in found), default=1) + 1)
    wanted = [(kind, number) for number in numbers for kind in ("queries", "keys")]
    missing = [f"'{kind}.{number}'" for kind, number in wanted if (kind, number) not in found]
    if missing:
        listed = ", ".join(missing[:6]) + (", …" if len(missing) > 6 else "")
        raise ValueError(
            f"heads file {str(path)!r} lacks {listed}; it must hold the queries and the keys of "
            "every layer, numbered from 1 without gaps. Out of a model's state dict they are read "
            "by: pathkernel heads"
        )
    return numbers


def _real(path: str | Path, name: str, array: np.ndarray) -> np.ndarray:
    title = f"{_KIND} {str(path)!r}: {name!r}"
    return array_guards.real_numbers(title, array, whole=False)
