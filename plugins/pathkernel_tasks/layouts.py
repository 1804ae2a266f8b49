"""How libraries name and lay out the queries and keys of attention in their state dicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_MASKED = "its causal mask is left out"
_ROTARY = "its causal mask and the rotary embedding of positions are left out, where it has them"
_IMAGES = re.compile(r"patch_embed|vision_model|visual\.")  # where there is no mask
_TEXT = re.compile(r"text_model|token_embed|word_embed|embed_tokens|decoder|\bwte\b")

Arrays = Mapping[str, np.ndarray]
Pair = tuple[np.ndarray, np.ndarray | None]
"""Weights (rows, N_0) and bias (rows,), if there is one."""


@dataclass(frozen=True)
class Layout:
    """How a library names and lays out the queries and keys of an attention module.

    Attributes
    ----------
    name : str
        By which it is chosen.
    origin : str
        Which models have it.
    pattern : str
        Regular expression of the name of a module's first array; its group is the module's prefix.
    read : callable
        (arrays, prefix, heads H) → queries and keys, each with weights (H·G, N_0) and a bias or
        None.
    departures : str
        What of the model's attention the heads leave out, besides its depth.
    beside, without : str
        Names of arrays that a module must have, or must not have, after its prefix.
    """

    name: str
    origin: str
    pattern: str
    read: Callable[[Arrays, str, int], tuple[Pair, Pair]]
    departures: str = ""
    beside: str = ""
    without: str = ""

    def modules(self, names: Collection[str]) -> tuple[str, ...]:
        """Prefixes of the modules of this layout, layers by number; none of attention to others."""
        matches = [re.fullmatch(self.pattern, name) for name in names]
        found = {match[1] for match in matches if match and not _OTHER.search(match[1])}
        if self.beside:
            found = {prefix for prefix in found if prefix + self.beside in names}
        if self.without:
            found = {prefix for prefix in found if prefix + self.without not in names}
        return tuple(sorted(found, key=_by_number))

    def departs(self, names: Collection[str], modules: Sequence[str]) -> str:
        """Its departures, but for a mask where the modules plainly see images."""
        towers = [*modules] if any(map(_IMAGES.search, modules)) else [*names]
        if self.name == "clip" and any(map(_IMAGES.search, towers)):
            return self.departures if any(map(_TEXT.search, towers)) else ""
        return self.departures


def _multihead(arrays: Arrays, prefix: str, heads: int) -> tuple[Pair, Pair]:
    if f"{prefix}bias_k" in arrays:
        raise ValueError(f"{prefix}bias_k adds a key that no token holds; the theory has none")
    bias = arrays.get(f"{prefix}in_proj_bias")
    biases = (None, None) if bias is None else np.split(bias, 3)[:2]
    if f"{prefix}in_proj_weight" in arrays:
        weights = np.split(arrays[f"{prefix}in_proj_weight"], 3)[:2]
    else:
        weights = [arrays[f"{prefix}{kind}_proj_weight"] for kind in "qk"]
    return (weights[0], biases[0]), (weights[1], biases[1])


def _fused(arrays: Arrays, prefix: str, heads: int) -> tuple[Pair, Pair]:
    queries, keys, _ = np.split(arrays[f"{prefix}qkv.weight"], 3)
    bias = arrays.get(f"{prefix}qkv.bias")
    if bias is not None:
        return (queries, np.split(bias, 3)[0]), (keys, np.split(bias, 3)[1])
    return (queries, arrays.get(f"{prefix}q_bias")), (keys, arrays.get(f"{prefix}k_bias"))


def _by_head(arrays: Arrays, prefix: str, heads: int) -> tuple[Pair, Pair]:
    """Rows of queries, keys and values of the first head, then of the second, and so on."""
    weights, bias = (arrays.get(f"{prefix}query_key_value.{kind}") for kind in ("weight", "bias"))
    if weights.shape[0] % (3 * heads):
        raise ValueError(
            f"{prefix}query_key_value.weight: {weights.shape[0]} rows do not divide into queries, "
            f"keys and values of {heads} heads"
        )

    def part(rows: np.ndarray, which: int) -> np.ndarray:
        by_head = rows.reshape(heads, 3, -1, *rows.shape[1:])
        return by_head[:, which].reshape(-1, *rows.shape[1:])

    query, key = ((part(weights, k), None if bias is None else part(bias, k)) for k in (0, 1))
    return query, key


def _gpt2(arrays: Arrays, prefix: str, heads: int) -> tuple[Pair, Pair]:
    stacked = arrays[f"{prefix}c_attn.weight"]
    if stacked.shape[1] == 3 * stacked.shape[0]:  # (N_0, 3 N_0), inputs first, as published
        stacked = stacked.T
    weights = np.split(stacked, 3)
    bias = arrays.get(f"{prefix}c_attn.bias")
    biases = (None, None) if bias is None else np.split(bias, 3)[:2]
    return (weights[0], biases[0]), (weights[1], biases[1])


def _separate(queries: str, keys: str) -> Callable[[Arrays, str, int], tuple[Pair, Pair]]:
    def read(arrays: Arrays, prefix: str, heads: int) -> tuple[Pair, Pair]:
        query, key = (
            (arrays[f"{prefix}{name}.weight"], arrays.get(f"{prefix}{name}.bias"))
            for name in (queries, keys)
        )
        return query, key

    return read


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            "multihead",
            "torch.nn.MultiheadAttention, nn.TransformerEncoder",
            r"(|.*\.)(?:in_proj|q_proj)_weight",
            _multihead,
        ),
        Layout("fused", "fused queries, keys and values: timm", r"(|.*\.)qkv\.weight", _fused),
        Layout(
            "bert",
            "BERT, RoBERTa, ViT and their like of Hugging Face",
            r"(.*attention\.(?:self|attention)\.)query\.weight",
            _separate("query", "key"),
        ),
        Layout(
            "distilbert",
            "DistilBERT",
            r"(.*attention\.)q_lin\.weight",
            _separate("q_lin", "k_lin"),
        ),
        Layout(
            "vit",
            "ViT, DeiT and DINOv2 as transformers 5 holds them",
            r"((?:|.*\.)attention\.)q_proj\.weight",
            _separate("q_proj", "k_proj"),
            beside="o_proj.weight",
        ),
        Layout(
            "clip",
            "CLIP, SigLIP, BART, Whisper, OPT and their like",
            r"(|.*\.)q_proj\.weight",
            _separate("q_proj", "k_proj"),
            _ROTARY,
            beside="out_proj.weight",
        ),
        Layout("gpt2", "GPT-2", r"(|.*\.)c_attn\.weight", _gpt2, _MASKED),
        Layout(
            "neox",
            "GPT-NeoX, Pythia, BLOOM",
            r"(.*attention\.)query_key_value\.weight",
            _by_head,
            "its causal mask and the positions that its attention sees are left out",
        ),
        Layout(
            "llama",
            "Llama, Mistral, Qwen and their like, with grouped queries",
            r"((?:|.*\.)(?<!\battention\.))q_proj\.weight",
            _separate("q_proj", "k_proj"),
            _ROTARY,
            without="out_proj.weight",
        ),
    )
}
"""Known layouts by name."""

_OTHER = re.compile(r"cross_?att|multihead_attn|encoder_attn|encdecatt", re.IGNORECASE)
"""Modules that attend to another sequence, which has no place in the theory."""


def find_modules(names: Sequence[str], layout: str = "auto") -> tuple[Layout, tuple[str, ...]]:
    """Attention modules of a state dict, from the names of its arrays.

    Parameters
    ----------
    names : sequence of str
    layout : str
        A key of :data:`LAYOUTS`, or ``"auto"`` for the only one that fits.

    Returns
    -------
    layout : Layout
    modules : tuple of str
        Prefixes of the modules' arrays, layers by number; without those that attend to another
        sequence.

    Raises
    ------
    ValueError
        If the layout is unknown or fits nothing, or several fit.
    """
    if layout != "auto" and layout not in LAYOUTS:
        raise ValueError(f"layout must be auto or one of {', '.join(LAYOUTS)}, not {layout!r}")
    chosen = LAYOUTS.values() if layout == "auto" else [LAYOUTS[layout]]
    if {"queries.1", "keys.1"} <= set(names):
        raise ValueError(
            "it holds queries and keys already, as pathkernel writes them; take it as it is: "
            "pathkernel run custom --heads FILE"
        )
    modules = {candidate.name: candidate.modules(set(names)) for candidate in chosen}
    found = {name: prefixes for name, prefixes in modules.items() if prefixes}
    if len(found) == 1:
        ((name, modules),) = found.items()
        return LAYOUTS[name], modules
    if found:
        raise ValueError(
            f"the layouts {', '.join(found)} all fit; name one of them (--layout on the command "
            "line)"
        )
    layouts = ", ".join(f"{entry.name} ({entry.origin})" for entry in chosen)
    raise ValueError(
        f"no queries and keys are found among {len(names)} arrays, such as "
        f"{', '.join(sorted(names)[:5]) or 'none'}. Known layouts: {layouts}. Of another model, "
        "write the arrays yourself with pathkernel_tasks.heads_file.save_heads"
    )


def _by_number(prefix: str) -> list[tuple[int, str]]:
    """Sorting key by which layer 10 follows layer 9."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", prefix)
    ]
