"""The table of heads in print."""

import pandas as pd
import pytest

pytest.importorskip("torch", reason="heads are of PyTorch models")
from torch import nn

import pathkernel as pk


@pytest.mark.parametrize("length", [1, 20, 60])
def test_every_column_is_printed_in_80_characters(length):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    table = pk.list_heads(nn.ModuleDict({"m" * length: encoder}))
    with pd.option_context("display.width", 40, "display.max_columns", 3):
        lines = str(table).splitlines()
    assert "..." not in str(table)
    assert all(any(name in line for line in lines) for name in table.columns)
    name = max(map(len, table["module"]))
    assert max(map(len, lines)) <= max(80, name + 10)
