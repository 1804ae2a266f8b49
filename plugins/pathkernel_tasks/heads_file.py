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
    title = f"{_KIND} {str(path)!r}"
    arrays, ignored = array_files.read_arrays(path, _KIND, lambda name: _is_wanted(title, name))
    about = _header(path)
    if ignored and about.get("format", "").startswith("pathkernel "):  # of a whole network
        ignored = f"{Path(path).name} is a checkpoint: compare and prune take its values, too"
    count = max((int(match[2]) for name in arrays if (match := _LAYER.fullmatch(name))), default=1)
    shapes: dict[str, array_guards.Shape] = {}
    for number in range(1, count + 1):
        shape = (f"H_{number}", f"G_{number}", "N_0")
        shapes |= {f"queries.{number}": shape, f"keys.{number}": shape}
    shapes |= {"labels": (3, "N_0")} if "labels" in arrays else {}
    if "scale" in arrays:  # one number, in an array of any shape, or one of each layer
        scale = arrays["scale"]
        shapes["scale"] = scale.shape if scale.size == 1 else (count,)
    known = {} if width is None else {"N_0": (width, "the tokens")}
    array_guards.check_shapes(title, arrays, shapes, known)
    numbers = {
        name: array_guards.real_numbers(f"{title}: {name!r}", arrays[name], whole=False)
        for name in shapes
    }
    if "scale" in numbers and not (numbers["scale"] > 0).all():
        raise ValueError(f"{title}: 'scale' must be positive, but is {numbers['scale']}")
    layers = []
    for number in range(1, count + 1):
        queries, keys = numbers[f"queries.{number}"], numbers[f"keys.{number}"]
        scale = np.resize(numbers.get("scale", queries.shape[1] ** -0.5), count)[number - 1]
        layers.append(QueryKey(queries, keys, float(scale)))
    return Heads(tuple(layers), numbers.get("labels"), _approximation(about, arrays), ignored)


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


def _is_wanted(title: str, name: str) -> bool:
    if _LAYER.fullmatch(name) or name in _OTHERS:
        return True
    if re.match(r"quer|key|scal|label|approx", name, re.IGNORECASE):  # a slip must not pass unseen
        raise ValueError(
            f"{title} holds {name!r}; queries and keys must be named 'queries.1', 'keys.1', "
            f"'queries.2' and so on, without gaps, and the rest {', '.join(_OTHERS)}"
        )
    return False
