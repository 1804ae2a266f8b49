"""The benchmark of orders of heads, on a model small enough for seconds."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="the benchmark is of PyTorch models")
pytest.importorskip("altair")
from torch import nn

from pathkernel_core.paths.heads import every_head

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def checkout():
    """The benchmarks, which are no part of the distribution."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(ROOT)])
        yield


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 4, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.readout = nn.Linear(8, 1)

    def forward(self, tokens):
        return self.readout(self.encoder(tokens).mean(dim=1))[:, 0]


@pytest.fixture
def small_model():
    """Makes a model of 2 × 4 heads with 40 examples in each of two draws."""
    from benchmarks.head_models import HeadModel

    def make(name, _):
        torch.manual_seed(0)
        model = Regression().eval()
        sets = {}
        for part, count in (("validation", 140), ("test", 30)):
            labels = torch.tensor([-1.0, 1.0]).repeat(count // 2)
            tokens = torch.randn(count, 5, 8) + labels[:, None, None]
            sets[part] = {"tokens": tokens, "labels": labels}
        return HeadModel(
            *(name, "regression", model, "squared", (40, 20)),
            lambda batch: (model(batch["tokens"]), batch["labels"]),
            *(sets, sets["validation"]["labels"]),
            batch=16,
            drawn=40,
        )

    return make


@pytest.mark.filterwarnings("ignore:.*examples are few:RuntimeWarning")
def test_the_table_has_every_order(small_model, tmp_path, monkeypatch):
    from benchmarks.head_models import HEAD_MODELS
    from benchmarks.head_orders import ORDERS, REFERENCE
    from benchmarks.head_tables import write_results
    from benchmarks.heads import Task, measure_task

    monkeypatch.setitem(HEAD_MODELS, "small", small_model)
    task = Task("small", 0, True, tuple(ORDERS), tmp_path / "out", tmp_path)
    measure_task(task)
    assert task.missing() == []
    csv, markdown, svg = write_results(tmp_path / "out", ["small"], tuple(ORDERS), tmp_path)
    frame = pd.read_csv(csv)
    assert set(frame["order"]) == set(ORDERS)
    assert (frame.groupby("order").size() == 6).all()  # three counts, with and without refit
    assert set(frame["removed"]) == {2, 4, 6}
    assert np.isfinite(frame[["loss", "error", "passes", "cpu_seconds"]]).all(axis=None)
    reference = frame[(frame["order"] == REFERENCE) & frame["refit"]]
    assert (reference["difference"] == 0).all()
    # 8 + 7 trials for two heads, 26 for four and 33 for six
    plain = frame[(frame["order"] == REFERENCE) & ~frame["refit"]]
    assert plain["passes"].tolist() == [15, 26, 33]
    text = markdown.read_text(encoding="utf-8")
    assert all(f"| {order} |" in text for order in ORDERS)
    assert svg.stat().st_size > 0


def test_draws_are_balanced_mixed_and_disjoint(small_model):
    model = small_model("small", None)
    rows = []
    for draw in (0, 1):
        for size in (20, 40):
            batches = model.batches("validation", draw, size)
            labels = torch.cat([batch["labels"] for batch in batches])
            assert len(labels) == size
            assert labels.sum() == 0
            assert abs(batches[0]["labels"].sum()) < len(batches[0]["labels"])
        rows.append({tuple(row.tolist()) for b in batches for row in b["tokens"].flatten(1)})
    assert not rows[0] & rows[1]


def test_trials_from_the_first_changed_layer_equal_whole_passes(small_model):
    from benchmarks.head_trials import Gained, Trials

    model = small_model("small", None)
    gained, batches = Gained(model), model.batches("validation", 0, 40)
    trials, off = Trials(gained, batches), [1, 6]
    assert trials.start(off) == pytest.approx(gained.loss(batches, gained.without(off)))
    for head in (0, 3, 4, 7):
        expected = gained.loss(batches, gained.without([*off, head]))
        assert trials.loss(off, head) == pytest.approx(expected, rel=1e-6)


def test_errors_of_differences_are_of_examples_and_draws():
    from benchmarks.head_tables import paired

    examples = np.tile([1.0, -1.0, 3.0], (4, 1))  # no draw differs
    assert paired(examples) == pytest.approx((1.0, 2 / np.sqrt(3)))
    draws = np.repeat([[0.0], [2.0]], 5, axis=1)  # no example differs
    assert paired(draws) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("name", ["2-8-512-64", "3-3-512-170"])
def test_a_path_module_is_its_network_and_loses_the_paths_of_heads(name):
    from benchmarks.path_module import bundled_module
    from pathkernel_core.contracts.task import Examples
    from pathkernel_models.heads_off import heads_off
    from pathkernel_trained.bundled import heads_path
    from pathkernel_trained.evaluator import path_outputs
    from pathkernel_trained.path_network import read_paths

    module, _ = bundled_module(f"trained:{name}")
    network = read_paths(heads_path(f"trained:{name}"))
    tokens = torch.randn(4, 6, 192, generator=torch.Generator().manual_seed(0))
    outputs = path_outputs(network, [Examples(tokens.double().numpy(), np.ones(4))])
    np.testing.assert_allclose(module(tokens).detach(), outputs.output(), atol=1e-5)
    off = [(1, 2), (2, 1)]
    with heads_off(module, off):
        without = module(tokens).detach()
    columns = [every_head(outputs.heads).index(head) for head in off]
    left = ~outputs.through[:, columns].any(axis=1)
    expected = outputs.values[:, left].sum(axis=1) / np.sqrt(len(left))  # no layer is rescaled
    np.testing.assert_allclose(without, expected, atol=1e-5)
