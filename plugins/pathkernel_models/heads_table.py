"""List the heads of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from torch import nn

from pathkernel_models.attention_module import AttentionModule, outermost_block
from pathkernel_models.families.recognition import attention_modules

_LINE = 80  # characters


class _HeadTable(pd.DataFrame):
    """A table that prints all its columns, below each other where a line has no room for them."""

    def __repr__(self) -> str:
        return self.to_string(line_width=_LINE)


def list_heads(model: nn.Module) -> pd.DataFrame:
    """List the attention of a model, a row for every layer.

    A module that runs several times in a pass, as ALBERT's, is one layer.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel.capture`. Cross-attention is listed if it is included, see
        :func:`pathkernel.include_cross_attention`, or describes its heads.

    Returns
    -------
    pandas.DataFrame
        Printed with all columns in lines of 80 characters. Indexed by ``layer``, the number by
        which other functions name it, from 1. Columns: ``heads``; ``groups``, heads of keys and
        values; ``sharing``, the first heads that share keys and values, such as ``1 to 4, …`` if
        every four do, else empty; ``head_size``, numbers that a head passes on; ``width``, those
        that the output projection returns; ``attention``, ``"cross"`` where the module's names tell
        that it attends to another sequence, else ``"self"``; and ``module``, its name in the model.
        ``attrs["without_heads"]`` names the blocks between these that have no known attention, such
        as those of linear attention or state-space models, which are left whole.

    Raises
    ------
    CaptureError
        If the model has no attention of a known form.

    Examples
    --------
    >>> import pathkernel as pk
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> print(pk.list_heads(model).drop(columns="width"))
           heads  groups sharing  head_size attention              module
    layer
    1          2       2                  4      self  layers.0.self_attn
    2          2       2                  4      self  layers.1.self_attn
    """
    rows, layers = [], attention_modules(model)
    for attention in layers:
        shape = attention.output.shape
        width = shape[0] if attention.output_axis else shape[-1]
        rows.append(
            {
                "layer": attention.number,
                "heads": attention.heads,
                "groups": attention.groups,
                "sharing": _sharing(attention.heads // attention.groups, attention.groups),
                "head_size": math.prod(shape) // width // attention.heads,
                "width": width,
                "attention": "cross" if attention.crossed else "self",
                "module": attention.name,
            }
        )
    table = _HeadTable(pd.DataFrame(rows).set_index("layer"))
    table.attrs["without_heads"] = _blocks_without(model, layers)
    return table


def _sharing(size: int, groups: int) -> str:
    """Return the first heads that share keys and values, as a text; empty if none do."""
    return f"1 to {size}{', …' * (groups > 1)}" if size > 1 else ""


def _blocks_without(model: nn.Module, layers: Sequence[AttentionModule]) -> tuple[str, ...]:
    """Return the names of blocks without these layers, in the outermost lists of the others."""
    blocks = dict.fromkeys(filter(None, (outermost_block(layer.name) for layer in layers)))
    lists = dict.fromkeys(block.rpartition(".")[0] for block in blocks)
    beside = {
        f"{name}.{number}".lstrip("."): block
        for name in lists
        for number, block in model.get_submodule(name).named_children()
    }
    return tuple(
        name for name, block in beside.items() if name not in blocks and [*block.parameters()]
    )
