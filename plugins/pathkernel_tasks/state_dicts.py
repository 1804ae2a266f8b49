"""Queries and keys from state dicts of common libraries, saved as safetensors.

Only NumPy and safetensors are needed, not the library of the model. With a bias b the score
(W_K x + b_K)·(W_Q y + b_Q) is that of tokens with a constant 1 appended and of the wider heads
[W_K b_K] and [W_Q b_Q]. The keys' bias cancels in the softmax; the queries' does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathkernel_core.attention import QueryKey
from pathkernel_core.local_files import regular_files
from pathkernel_core.text import printable
from pathkernel_tasks.array_files import read_arrays, safetensors_shapes
from pathkernel_tasks.array_guards import Shape, check_shapes, check_suffix, real_numbers
from pathkernel_tasks.layouts import Layout, find_modules

_KIND = "state dict"
_FILE = "model.safetensors"
_INDEX_SIZE = 2**26  # largest number of bytes of an index
_DEPTH = (
    "its attention sees hidden states and not the bare tokens, and its nonlinear blocks and "
    "normalisation are left out, and its skip connections but for those of --skips"
)
_ATTENTION = re.compile(  # arrays of a module of attention alone
    r"(in_proj|out_proj|proj|dense|c_attn|c_proj|[qkvo]_proj|[qkv]_lin|out_lin|query|key|value|qkv"
    r"|query_key_value|[qkv])[._](weight|bias)"
)
_NORM = re.compile(r"\b(q|k|query|key)_?(norm|ln|layernorm)\b")


@dataclass(frozen=True)
class ExtractedHeads:
    """Heads from a state dict.

    Attributes
    ----------
    layers : tuple of QueryKey
        Of width N_0 + 1 if ``constant``.
    modules : tuple of str
        Prefix of each layer's arrays.
    constant : bool
        Whether tokens need a constant 1 appended, because of biases.
    approximation : str
        How the model departs from the theory's network; empty for a lone attention module.
    """

    layers: tuple[QueryKey, ...]
    modules: tuple[str, ...]
    constant: bool
    approximation: str


def extract_heads(
    path: str | Path,
    heads_per_layer: int,
    layout: str = "auto",
    layers: Sequence[int] | None = None,
    biases: bool = True,
    scale: float | None = None,
) -> ExtractedHeads:
    """Read the queries and keys of a model from its state dict.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.safetensors``, the index of a model in several of them
        (``.safetensors.index.json``), or the folder that holds either.
    heads_per_layer : int
        Heads H of each layer, which a state dict does not tell.
    layout : str
        The name of one of :data:`~pathkernel_tasks.layouts.LAYOUTS`, or ``"auto"``.
    layers : sequence of int, optional
        Modules to take, numbered from 1 in the order of
        :func:`~pathkernel_tasks.layouts.find_modules`; all by default.
    biases : bool
        Widen the heads by their biases, if they have any that are not zero.
    scale : float, optional
        Factor of the scores; 1 / √G by default.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file, the layout, a shape or the scale does not fit, an array holds NaN or infinity,
        or the arrays do not fit into memory. The message names the array.
    """
    title, shapes = f"{_KIND} {str(path)!r}", state_dict_shapes(path)
    modules = find_modules(shapes, layout)
    numbers = range(1, len(modules) + 1) if layers is None else layers
    if not numbers or min(numbers) < 1 or max(numbers) > len(modules):
        raise ValueError(
            f"layers names {list(numbers)}, but {title} has attention modules 1 to {len(modules)}"
        )
    if heads_per_layer < 1:
        raise ValueError(f"heads_per_layer must be at least 1, but is {heads_per_layer}")
    prefixes = tuple(list(modules)[number - 1] for number in numbers)
    names = [name for prefix in prefixes for name in _names(modules[prefix], prefix)]
    arrays = _read(path, names)
    pairs = [
        _queries_and_keys(title, modules[prefix], prefix, arrays, heads_per_layer)
        for prefix in prefixes
    ]
    biased = any(part[..., -1].any() for pair in pairs for part in pair)
    if not (biased and biases):
        pairs = [(queries[..., :-1], keys[..., :-1]) for queries, keys in pairs]
    widths = sorted({queries.shape[2] for queries, _ in pairs})
    if len(widths) > 1:
        raise ValueError(
            f"the modules {', '.join(prefixes)} see tokens of different widths {widths}; choose "
            "some of one width with layers (--layers on the command line)"
        )
    heads = tuple(
        QueryKey(queries, keys, queries.shape[1] ** -0.5 if scale is None else scale)
        for queries, keys in pairs
    )
    departures = _departures(modules, prefixes, shapes)
    if biased and not biases:
        departures.append("biases of its queries and keys are left out")
    origins = "; ".join(dict.fromkeys(modules[prefix].origin for prefix in prefixes))
    sentence = f"heads of a trained model ({origins}): {'; '.join(departures)}"
    return ExtractedHeads(heads, prefixes, biased and biases, sentence if departures else "")


def state_dict_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a state dict's arrays, without reading them.

    Parameters and errors are those of :func:`extract_heads`.
    """
    return {
        name: shape
        for part in _parts(path)
        for name, shape in safetensors_shapes(part, _KIND).items()
    }


def _read(path: str | Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """Some arrays of a state dict, in float64."""
    arrays = {}
    for part in _parts(path):
        for name, array in read_arrays(part, _KIND, names.__contains__)[0].items():
            title = f"{_KIND} {str(part)!r}: {name!r}"
            arrays[name] = real_numbers(title, array, whole=False)
    return arrays


def _parts(path: str | Path) -> list[Path]:
    """Safetensors files that a state dict consists of."""
    path = Path(path)
    if path.is_dir():
        files = [path / name for name in (_FILE, f"{_FILE}.index.json") if (path / name).exists()]
        if not files:
            raise FileNotFoundError(
                f"the folder {str(path)!r} holds no {_FILE} and no {_FILE}.index.json"
            )
        path = files[0]
    if not path.name.endswith(".safetensors.index.json"):
        check_suffix(path, _KIND, (".safetensors",))
        return [path]
    regular_files(path, _KIND)
    try:
        if path.stat().st_size > _INDEX_SIZE:
            raise ValueError(f"it takes {path.stat().st_size} bytes")
        files = {*json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()}
        parts = [path.with_name(file) for file in sorted(files)]  # refuses other folders
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        reason = printable(str(error))[:300]
        raise ValueError(f"index {str(path)!r} of a {_KIND} is damaged: {reason}") from error
    for part in parts:
        check_suffix(part, _KIND, (".safetensors",))
    return parts


def _names(layout: Layout, prefix: str) -> tuple[str, ...]:
    """Arrays of a module's weights, of queries first, then of biases, which it may lack."""
    weights = [layout.weights, *filter(None, [layout.keys])]
    biases = [name.removesuffix("weight") + "bias" for name in weights]
    if not layout.keys:
        biases += ["q_bias", "k_bias", "bias_k"]
    return tuple(prefix + name for name in (*weights, *biases))


def _queries_and_keys(
    title: str, layout: Layout, prefix: str, arrays: Mapping[str, np.ndarray], heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys (H, G, N_0 + 1), with their biases last; grouped keys are repeated."""
    read = _separate if layout.keys else _fused
    return read(title, layout, prefix, arrays, heads)


def _fused(
    title: str, layout: Layout, prefix: str, arrays: Mapping[str, np.ndarray], heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of an array that holds queries, keys and values of equal size."""
    weights, bias, q_bias, k_bias, extra = _names(layout, prefix)
    if extra in arrays:
        raise ValueError(f"{extra} adds a key that no token holds; the theory has none")
    width = min(arrays[weights].shape, default=0)
    transposed = layout.name == "gpt2" and arrays[weights].shape == (width, 3 * width)
    biases: dict[str, Shape] = {bias: (3 * width,), q_bias: (width,), k_bias: (width,)}
    shapes = {name: shape for name, shape in biases.items() if name in arrays}
    shapes[weights] = (width, 3 * width) if transposed else (3 * width, width)
    check_shapes(title, arrays, shapes)
    _check_heads(prefix, width, heads)
    parts = [arrays.get(name, np.zeros(width)) for name in (q_bias, k_bias)]
    stacked = np.column_stack(
        [
            arrays[weights].T if transposed else arrays[weights],
            arrays.get(bias, np.concatenate([*parts, np.zeros(width)])),
        ]
    )
    if layout.by_head:
        queries, keys, _ = stacked.reshape(heads, 3, -1, width + 1).swapaxes(0, 1)
    else:
        queries, keys, _ = stacked.reshape(3, heads, -1, width + 1)
    return queries, keys


def _separate(
    title: str, layout: Layout, prefix: str, arrays: Mapping[str, np.ndarray], heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of an array each."""
    weights, key_weights, bias, key_bias = _names(layout, prefix)
    shapes: dict[str, Shape] = {weights: ("H G", "N_0"), key_weights: ("rows", "N_0")}
    shapes |= {bias: ("H G",)} if bias in arrays else {}
    shapes |= {key_bias: ("rows",)} if key_bias in arrays else {}
    check_shapes(title, arrays, shapes)
    rows, key_rows = len(arrays[weights]), len(arrays[key_weights])
    _check_heads(prefix, rows, heads)
    qk_width = rows // heads
    if key_rows % qk_width or heads % (key_rows // qk_width):
        raise ValueError(
            f"{prefix}: {key_rows} rows of keys do not divide into groups for {heads} heads of "
            f"width {qk_width}; is heads_per_layer right?"
        )
    queries, groups = (
        np.column_stack([arrays[name], arrays.get(constant, np.zeros(len(arrays[name])))]).reshape(
            -1, qk_width, arrays[name].shape[1] + 1
        )
        for name, constant in ((weights, bias), (key_weights, key_bias))
    )
    return queries, np.repeat(groups, heads // len(groups), axis=0)


def _check_heads(prefix: str, rows: int, heads: int) -> None:
    if rows % heads:
        raise ValueError(f"{prefix}: {rows} rows of queries do not divide into {heads} heads")


def _departures(
    modules: Mapping[str, Layout], prefixes: Sequence[str], names: Iterable[str]
) -> list[str]:
    """Parts of a model that its heads leave out."""
    names = list(names)
    inside = [n.removeprefix(prefix) for prefix in prefixes for n in names if n.startswith(prefix)]
    lone = len(prefixes) == 1 and len(inside) == len(names)
    lone = lone and all(map(_ATTENTION.fullmatch, inside))
    parts = [] if lone else [_DEPTH]
    parts += dict.fromkeys(
        modules[prefix].departures for prefix in prefixes if modules[prefix].departures
    )
    if any(map(_NORM.search, inside)):
        parts.append("the normalisation of its queries and keys is left out")
    return parts
