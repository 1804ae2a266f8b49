"""Queries and keys out of state dicts of common libraries, saved as safetensors.

Only NumPy and safetensors are needed, not the library that the model is of. With a bias b the score
(W_K x + b_K)·(W_Q y + b_Q) is that of tokens with a constant 1 appended and of the wider heads
[W_K b_K] and [W_Q b_Q]. The keys' bias cancels in the softmax; the queries' does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathkernel_core.attention import QueryKey
from pathkernel_tasks.layouts import Layout, Pair, find_modules
from pathkernel_tasks.state_dict_files import KIND, read_state_dict, state_dict_shapes

_DEPTH = (
    "its attention sees hidden states and not the bare tokens, and its nonlinear blocks and "
    "normalisation are left out, and its skip connections but for those of --skips"
)
_OWN = frozenset(  # what a module of attention alone consists of
    (
        *("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
        *("q_proj", "k_proj", "v_proj", "out_proj", "o_proj", "qkv", "proj"),
        *("query", "key", "value", "c_attn", "c_proj", "q_bias", "k_bias", "v_bias"),
        *("q_lin", "k_lin", "v_lin", "out_lin", "query_key_value", "dense"),
    )
)


@dataclass(frozen=True)
class ExtractedHeads:
    """What was read out of a state dict.

    Attributes
    ----------
    layers : tuple of QueryKey
        Of width N_0 + 1 if ``constant``.
    modules : tuple of str
        Prefix of each layer's arrays.
    constant : bool
        Whether tokens need a constant 1 appended, because of biases.
    approximation : str
        In what the model departs from the theory's network; empty for a lone attention module.
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
    """Queries and keys of a model, from its state dict.

    Parameters
    ----------
    path : str or Path
        File that ends in ``.safetensors``, the index of a model in several of them
        (``.safetensors.index.json``), or the folder that holds either.
    heads_per_layer : int
        Heads H of each layer, which a state dict does not tell.
    layout : str
        A key of :data:`LAYOUTS`, or ``"auto"``.
    layers : sequence of int, optional
        Modules to take, numbered from 1 in the order of :func:`find_modules`; all by default.
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
    shapes = state_dict_shapes(path)
    kind, modules = find_modules(list(shapes), layout)
    chosen = range(1, len(modules) + 1) if layers is None else layers
    if not chosen or min(chosen) < 1 or max(chosen) > len(modules):
        raise ValueError(
            f"layers names {list(chosen)}, but {KIND} {str(path)!r} has attention modules 1 to "
            f"{len(modules)}"
        )
    if heads_per_layer < 1:
        raise ValueError(f"heads_per_layer must be at least 1, but is {heads_per_layer}")
    kept = tuple(modules[number - 1] for number in chosen)
    pairs = [kind.read(_module(path, shapes, prefix), prefix, heads_per_layer) for prefix in kept]
    biased = any(bias is not None and bias.any() for pair in pairs for _, bias in pair)
    extracted = []
    for prefix, pair in zip(kept, pairs):
        queries, keys = _split(prefix, pair, heads_per_layer, biased and biases)
        extracted.append(
            QueryKey(queries, keys, queries.shape[1] ** -0.5 if scale is None else scale)
        )
    widths = sorted({layer.queries.shape[2] for layer in extracted})
    if len(widths) > 1:
        raise ValueError(
            f"the modules {', '.join(kept)} see tokens of different widths {widths}; choose some "
            "of one width with layers (--layers on the command line)"
        )
    departures = _departures(kind, shapes, kept, biased and not biases)
    return ExtractedHeads(tuple(extracted), kept, biased and biases, departures)


def _split(
    prefix: str, pair: tuple[Pair, Pair], heads: int, widen: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys (H, G, N_0 or N_0 + 1) from stacked rows; grouped keys are repeated."""
    rows = pair[0][0].shape[0]
    if rows % heads:
        raise ValueError(f"{prefix}: {rows} rows of queries do not divide into {heads} heads")
    qk_width = rows // heads
    split = []
    for weights, bias in pair:
        if weights.shape[0] % qk_width or heads % (weights.shape[0] // qk_width or heads + 1):
            raise ValueError(
                f"{prefix}: {weights.shape[0]} rows of keys do not divide into groups for {heads} "
                f"heads of width {qk_width}; is heads_per_layer right?"
            )
        if widen:
            column = np.zeros(weights.shape[0]) if bias is None else bias
            weights = np.column_stack([weights, column])
        groups = weights.reshape(-1, qk_width, weights.shape[1])
        split.append(np.repeat(groups, heads // len(groups), axis=0))
    queries, keys = split
    if queries.shape != keys.shape:
        raise ValueError(
            f"{prefix}: queries see tokens of width {queries.shape[2]}, keys of {keys.shape[2]}; "
            "attention to another sequence has no place in the theory"
        )
    return queries, keys


def _departures(
    kind: Layout,
    shapes: Mapping[str, tuple[int, ...]],
    kept: Sequence[str],
    biases_left: bool,
) -> str:
    inside = [
        name.removeprefix(prefix) for prefix in kept for name in shapes if name.startswith(prefix)
    ]
    lone = len(kept) == 1 and len(inside) == len(shapes)
    lone = lone and all(name.partition(".")[0] in _OWN for name in inside)
    parts = [] if lone else [_DEPTH]
    parts += filter(None, [kind.departs(shapes, kept)])
    if any(re.search(r"(q|k|query|key)_?(norm|ln|layernorm)\b", name) for name in inside):
        parts.append("the normalisation of its queries and keys is left out")
    if biases_left:
        parts.append("biases of its queries and keys are left out")
    if not parts:
        return ""
    return f"heads of a trained model ({kind.origin}): {'; '.join(parts)}"


def _module(path: str | Path, shapes: Mapping[str, tuple], prefix: str) -> dict[str, np.ndarray]:
    """Arrays of a module that have to do with queries and keys."""
    wanted = re.compile(
        r"(?:in_proj|q_proj|k_proj)_weight|in_proj_bias|bias_k|[qk]_bias"
        r"|(?:qkv|query|key|c_attn|q_proj|k_proj|q_lin|k_lin|query_key_value)\.(?:weight|bias)"
    )
    names = [
        name
        for name in shapes
        if name.startswith(prefix) and wanted.fullmatch(name.removeprefix(prefix))
    ]
    arrays = read_state_dict(path, names)
    for name, array in arrays.items():
        expected = 1 if name.endswith("bias") else 3 if name.endswith("bias_k") else 2
        if array.ndim != expected or 0 in array.shape:
            raise ValueError(
                f"{KIND} {str(path)!r}: {name!r} must have {expected} axes, but has shape "
                f"{array.shape}"
            )
        fused = re.search(r"(in_proj|qkv\.|c_attn\.|query_key_value\.)_?weight$", name)
        if fused and 3 * min(array.shape) != max(array.shape):
            raise ValueError(
                f"{KIND} {str(path)!r}: {name!r} of shape {array.shape} does not hold queries, "
                "keys and values of equal size, 3 N × N; of another layout, such as with grouped "
                "keys, write the arrays with pathkernel_tasks.heads_file.save_heads"
            )
    return _Module(path, arrays)


class _Module(dict):
    """Arrays of a module; one that is missing is reported with its file."""

    def __init__(self, path: str | Path, arrays: Mapping[str, np.ndarray]):
        super().__init__(arrays)
        self.path = path

    def __missing__(self, name: str) -> np.ndarray:
        raise ValueError(f"{KIND} {str(self.path)!r} lacks {name!r}")
