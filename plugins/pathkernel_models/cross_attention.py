"""Include attention to another sequence among the layers of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pandas as pd
from torch import nn

from pathkernel_models.arguments import check_model, described
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.parts import INCLUDED, is_included
from pathkernel_models.families.recognition import crossed_attention
from pathkernel_models.heads_table import list_heads


def include_cross_attention(
    model: nn.Module, modules: Collection[str] | None = None
) -> pd.DataFrame:
    """Count the cross-attention of a model among its layers from now on.

    Without this call it is left alone. Afterwards its heads are listed, switched off, scored,
    chosen, removed, saved and loaded as others are. Layers are numbered in the order of the model,
    so that numbers of self-attention change, too: call it first, before heads are scored. A model
    that :func:`pathkernel.load_model` loads has the layers of the saved one; one that is built or
    loaded in another way needs a call of its own. Nothing that the model computes changes.

    Parameters
    ----------
    model : torch.nn.Module
        Such as of BART, T5 or Whisper, an ``nn.TransformerDecoder``, or one with attention of
        learned queries that pools a sequence.
    modules : collection of str, optional
        Names of the modules that are layers from now on; all by default. Others are left alone
        again, as with ``[]`` all are, unless they describe their heads.

    Returns
    -------
    pandas.DataFrame
        All layers, as :func:`pathkernel.list_heads` lists them.

    Raises
    ------
    CaptureError
        If the model has no cross-attention of a known form.
    TypeError, ValueError
        If the model is no module, or ``modules`` are no names of cross-attention.

    Examples
    --------
    >>> import pathkernel as pk
    >>> import torch
    >>> layer = torch.nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = torch.nn.TransformerDecoder(layer, 1)
    >>> print(pk.include_cross_attention(model)[["heads", "attention", "module"]])
           heads attention                   module
    layer
    1          2      self       layers.0.self_attn
    2          2     cross  layers.0.multihead_attn
    """
    check_model(model)
    crossed = crossed_attention(model)
    if not crossed:
        raise CaptureError(
            f"{type(model).__name__} has no attention to another sequence of a known form: "
            "multihead_attn beside self_attn, or modules named as cross-attention, encoder_attn or "
            "EncDecAttention whose heads are known by their projections. Give your own attention "
            "class a method pathkernel_heads that returns pathkernel.AttentionHeads"
        )
    names = crossed.keys() if modules is None else _checked_names(modules, crossed)
    exclude(module for module in crossed.values() if not _describes_heads(module))
    include_named(model, names)
    return list_heads(model)


def _checked_names(modules: Any, crossed: Collection[str]) -> set[str]:
    """Return names of modules, which must be among those of cross-attention."""
    if isinstance(modules, str) or not isinstance(modules, Collection):
        raise TypeError(
            f"modules must be a list of names of modules, but is {described(modules)}; put a "
            "single one into a list"
        )
    for name in modules:
        if name not in crossed:
            raise ValueError(
                f"modules names {name!r:.80}, which is no cross-attention of a known form; choose "
                f"from {', '.join([*crossed][:8])}"
            )
    return {*modules}


def include_named(model: nn.Module, names: Collection[str]) -> list[nn.Module]:
    """Include the cross-attention of some names; return the modules that were not before."""
    modules = [
        module
        for name, module in crossed_attention(model).items()
        if name in names and not (is_included(module) or _describes_heads(module))
    ]
    for module in modules:
        vars(module)[INCLUDED] = True
    return modules


def exclude(modules: Iterable[nn.Module]) -> None:
    """Leave modules alone again that :func:`include_named` may have included."""
    for module in modules:
        vars(module).pop(INCLUDED, None)


def _describes_heads(module: nn.Module) -> bool:
    """Whether a module is a layer anyhow."""
    return hasattr(module, "pathkernel_heads")
