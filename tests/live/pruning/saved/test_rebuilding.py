"""Models built again without drawing random weights."""

import json
import math

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

import pathkernel as pk
from pathkernel_pruning.live.saved.rebuilding import _Undrawn, with_infinities


@pytest.mark.parametrize("limits", [(-2.0, 2.0), (0.1, 3.0), (1.5, 2.0), (2.0, 3.0)])
def test_initialisers_that_draw_until_values_fit_end(limits):
    """Memory that is not initialised may hold anything, such as values out of range."""
    weights = nn.Parameter(torch.full((30, 40), 9.0))
    with _Undrawn():
        nn.init.trunc_normal_(weights, a=limits[0], b=limits[1])


def test_weights_stay_as_they_are():
    with _Undrawn():
        weight = torch.full((5,), 9.0)
        nn.init.normal_(weight)
        nn.init.uniform_(weight)
        nn.init.kaiming_uniform_(weight[None])
    assert (weight == 9).all()


def test_configurations_with_infinite_numbers(tmp_path):
    """As the limits of time steps of Mamba's layers, in Falcon-H1 and Granite 4."""
    transformers = pytest.importorskip("transformers", minversion="5")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    limits = [0.0, math.inf, {"least": -math.inf}]
    config = transformers.BertConfig(**sizes, num_hidden_layers=1, limits=limits)
    assert "Infinity" in config.to_json_string()
    assert with_infinities(json.loads(config.to_json_string()))["limits"] == limits
    model = transformers.BertModel(config).eval()
    ids = torch.tensor([[3, 4, 5]])
    pk.remove_heads(model, [(1, 1)], batch=ids, smaller=True)
    assert pk.save_model(model, tmp_path / "model").loaded_by == "load_model"
    loaded = pk.load_model(tmp_path / "model")
    assert loaded.config.limits == limits
    with torch.no_grad():
        assert torch.equal(loaded(ids)[0], model(ids)[0])


def test_other_mappings_stay_as_they_are():
    options = {"one": {"__float__": "1e3"}, "two": {"__float__": "Infinity", "name": 1}}
    assert with_infinities(options) == options
