"""How libraries name and lay out the queries and keys of attention in their state dicts."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_OTHER = re.compile(r"cross_?att|multihead_attn|encoder_attn", re.IGNORECASE)
"""Modules that attend to another sequence, which the theory does not cover."""


@dataclass(frozen=True)
class Layout:
    """Names of the arrays of queries and keys in an attention module, and their order.

    Attributes
    ----------
    name : str
    origin : str
        Models that have it.
    weights : str
        Array of the queries' weights, or of those of queries, keys and values together.
    keys : str
        Array of the keys' weights; empty if they share an array with the queries'.
    by_head : bool
        Whether the array holds head after head, instead of all queries, all keys and all values.
    departures : str
        Parts of the model's attention that the heads leave out, besides its depth.
    """

    name: str
    origin: str
    weights: str
    keys: str = ""
    by_head: bool = False
    departures: str = ""


LAYOUTS = (
    Layout("multihead", "torch.nn.MultiheadAttention, nn.TransformerEncoder", "in_proj_weight"),
    Layout("separate", "BERT, RoBERTa, ViT and their like", "query.weight", "key.weight"),
    Layout("separate", "DistilBERT", "q_lin.weight", "k_lin.weight"),
    Layout(
        "separate",
        "Llama, Mistral, Qwen, CLIP, BART, Whisper and their like",
        "q_proj.weight",
        "k_proj.weight",
        departures="its causal mask and the rotary embedding of positions are left out, where it "
        "has them",
    ),
    Layout("gpt2", "GPT-2", "c_attn.weight", departures="its causal mask is left out"),
    Layout("fused", "timm", "qkv.weight"),
    Layout(
        "fused",
        "GPT-NeoX, Pythia, BLOOM",
        "query_key_value.weight",
        by_head=True,
        departures="its causal mask and the positions that its attention sees are left out",
    ),
)
LAYOUT_NAMES = tuple(dict.fromkeys(layout.name for layout in LAYOUTS))


def find_modules(names: Collection[str], layout: str = "auto") -> dict[str, Layout]:
    """Find the attention modules of a state dict by the names of its arrays.

    Parameters
    ----------
    names : collection of str
    layout : str
        One of :data:`LAYOUT_NAMES`, or ``"auto"`` for the only one that fits.

    Returns
    -------
    dict of str to Layout
        By the prefix of the module's arrays, layers by number; without modules that attend to
        another sequence.

    Raises
    ------
    ValueError
        If the layout is unknown or fits nothing, or several fit.
    """
    if layout not in ("auto", *LAYOUT_NAMES):
        raise ValueError(f"layout must be auto or one of {', '.join(LAYOUT_NAMES)}, not {layout!r}")
    if {"queries.1", "keys.1"} <= set(names):
        raise ValueError(
            "it holds queries and keys already, as pathkernel writes them; take it as it is: "
            "pathkernel run custom --heads FILE"
        )
    modules = {
        match[1]: entry
        for entry in LAYOUTS
        for name in names
        if layout in ("auto", entry.name)
        and (match := re.fullmatch(rf"(|.*\.){re.escape(entry.weights)}", name))
        and not _OTHER.search(match[1])
    }
    if not modules:
        listed = ", ".join(f"{entry.name} ({entry.origin})" for entry in LAYOUTS)
        raise ValueError(
            f"no queries and keys are found among {len(names)} arrays, such as "
            f"{', '.join(sorted(names)[:5]) or 'none'}. Known layouts: {listed}. Of another model, "
            "write the arrays yourself with pathkernel_tasks.heads_file.save_heads"
        )
    if len(fitting := sorted({entry.name for entry in modules.values()})) > 1:
        raise ValueError(
            f"the layouts {', '.join(fitting)} all fit; name one of them (--layout on the command "
            "line)"
        )
    return {prefix: modules[prefix] for prefix in sorted(modules, key=_by_number)}


def _by_number(prefix: str) -> list[tuple[int, str]]:
    """Sorting key by which layer 10 follows layer 9."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", prefix)
    ]
