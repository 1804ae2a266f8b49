"""Files of heads: the queries and keys of a network trained anywhere, as safetensors or npz.

Arrays in the file, with layers numbered from 1:

==================  ==================  ============================================================
``queries.1`` …     (H, G, N_0)         queries of each layer
``keys.1`` …        (H, G, N_0)         keys of each layer
``scale``           () or (layers,)     factor of the scores; 1 / √G of each layer if left out
``labels``          (3, N_0)            label vectors of −, + and ?, if the network has its own
==================  ==================  ============================================================

H and G may differ between layers. Arrays of other names are ignored, so that the file may hold a
whole network; similar names are refused as misspelt. A sentence ``approximation``, in the header of
a safetensors file or as an array of text in an npz file, says how the network of the heads departs
from the theory's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathkernel_core.paths.layers import QueryKey
from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.text import printable
from pathkernel_tasks import array_files, array_guards

SUFFIXES = (".safetensors", ".npz")
_KIND = "heads file"
_LAYER = re.compile(r"(queries|keys)\.([1-9][0-9]{0,3})")
_OPTIONAL = ("scale", "labels", "approximation")


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
        How the network of the heads departs from the theory's; empty if unknown.
    ignored : str
        Names of the arrays that were not read, as a note; empty if there are none.
    """

    layers: tuple[QueryKey, ...]
    label_vectors: np.ndarray | None = None
    approximation: str = ""
    ignored: str = ""


def check_heads_suffix(path: str | Path) -> None:
    """Check that a path has a suffix of heads files; raise ValueError if not."""
    array_guards.check_suffix(path, _KIND, SUFFIXES)


def heads_digest(path: str | Path) -> str:
    """Compute the SHA-256 of a heads file, in hexadecimal.

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
        Required width N_0 of the tokens. By default that of the first layer.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file has another suffix, is damaged, too large for the memory or holds pickled
        objects, or an array is misnamed, missing, of a wrong shape or type, or holds NaN or
        infinity. The message names the file and the array.
    """
    check_heads_suffix(path)
    title = f"{_KIND} {str(path)!r}"
    arrays, ignored = array_files.read_arrays(
        path, _KIND, lambda name: _is_heads_array(title, name)
    )
    header = _header(path)
    if ignored and header.get("format", "").startswith("pathkernel "):
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
    lengths = {} if width is None else {"N_0": (width, "the tokens")}
    array_guards.check_shapes(title, arrays, shapes, lengths)
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
    return Heads(tuple(layers), numbers.get("labels"), _approximation(header, arrays), ignored)


def save_heads(
    path: str | Path,
    layers: Sequence[QueryKey],
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
    label_vectors : array, shape (3, N_0), optional
        Label vectors of −, + and ? that the network was trained with.
    approximation : str
        How the network of the heads departs from the theory's.

    Raises
    ------
    ValueError
        If there is no layer, one has linear attention, the label vectors hold NaN or infinity, or
        the suffix is another. Nothing is written then.
    """
    check_heads_suffix(path)
    if not layers:
        raise ValueError("layers must hold at least one layer, but is empty")
    arrays = {}
    for number, layer in enumerate(layers, start=1):
        if layer.linear:
            raise ValueError(
                f"layer {number} has linear attention, but a heads file holds heads with softmax; "
                "return linear layers from a task of your own"
            )
        arrays[f"queries.{number}"] = np.ascontiguousarray(layer.queries)
        arrays[f"keys.{number}"] = np.ascontiguousarray(layer.keys)
    arrays["scale"] = np.array([_scale(layer) for layer in layers])
    if label_vectors is not None:
        if not np.isfinite(label_vectors).all():
            raise ValueError("label_vectors holds NaN or infinity")
        arrays["labels"] = np.ascontiguousarray(label_vectors)
    with replace_file(path) as partial:
        if Path(path).suffix.lower() == ".npz":
            arrays |= {"approximation": np.array(approximation)} if approximation else {}
            with open(partial, "wb") as stream:  # to a name NumPy would append the suffix
                np.savez(stream, **arrays)
        else:
            from safetensors.numpy import save

            header = {"approximation": approximation} if approximation else None
            partial.write_bytes(save(arrays, metadata=header))


def _scale(layer: QueryKey) -> float:
    _, qk_width, width = layer.queries.shape
    default = 1 / (width * math.sqrt(qk_width))  # of QueryKey
    return default if layer.scale is None else float(layer.scale)


def _header(path: str | Path) -> dict[str, str]:
    if Path(path).suffix.lower() != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return file.metadata() or {}


def _approximation(header: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    sentence = arrays.get("approximation", np.array(""))
    text = str(sentence) if sentence.dtype.kind == "U" and sentence.ndim == 0 else ""
    return printable(header.get("approximation", text))


def _is_heads_array(title: str, name: str) -> bool:
    if _LAYER.fullmatch(name) or name in _OPTIONAL:
        return True
    if re.match(r"quer|key|scal|label|approx", name, re.IGNORECASE):
        raise ValueError(
            f"{title} holds {name!r}; queries and keys must be named 'queries.1', 'keys.1', "
            f"'queries.2' and so on, without gaps, and the others {', '.join(_OPTIONAL)}"
        )
    return False
