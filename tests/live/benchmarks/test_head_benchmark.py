"""The benchmark of orders of heads, on a model small enough for seconds."""

import importlib.util

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="the benchmark is of PyTorch models")
pytest.importorskip("altair")
from torch import nn

from pathkernel_core.paths.heads import every_head


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
    from benchmarks.heads.models import HeadModel

    def make(name, _):
        torch.manual_seed(0)
        model = Regression().eval()
        sets = {}
        for part, count in (("train", 40), ("validation", 140), ("test", 30)):
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
    from benchmarks.heads.measurements import Task, measure_task
    from benchmarks.heads.models import HEAD_MODELS
    from benchmarks.heads.orders import FINE_TUNED, ORDERS, REFERENCE
    from benchmarks.heads.tables import write_results

    monkeypatch.setitem(HEAD_MODELS, "small", small_model)
    # the projection of nn.MultiheadAttention, which Torch-Pruning does not see, runs in a function
    defined = [order for order in ORDERS if not order.startswith("Torch-Pruning")]
    orders = tuple(ORDERS if importlib.util.find_spec("torch_pruning") else defined)
    task = Task("small", 0, True, orders, tmp_path / "out", tmp_path)
    measure_task(task)
    assert task.missing() == []
    csv, markdown, svg = write_results(tmp_path / "out", ["small"], orders, tmp_path)
    frame = pd.read_csv(csv)
    assert set(frame["order"]) == set(defined)
    counts = {"plain": 3 * len(defined), "refitted": 3 * len(defined), "fine-tuned": 12}
    assert frame["treatment"].value_counts().to_dict() == counts  # three numbers of heads
    assert set(frame[frame["treatment"] == "fine-tuned"]["order"]) == {*FINE_TUNED} & {*defined}
    assert set(frame["removed"]) == {2, 4, 6}
    assert np.isfinite(frame[["loss", "error", "passes", "cpu_seconds"]]).all(axis=None)
    reference = frame[(frame["order"] == REFERENCE) & (frame["treatment"] != "plain")]
    assert (reference["difference"] == 0).all()
    # 8 + 7 trials for two heads, 26 for four and 33 for six
    plain = frame[(frame["order"] == REFERENCE) & (frame["treatment"] == "plain")]
    assert plain["passes"].tolist() == [15, 26, 33]
    text = markdown.read_text(encoding="utf-8")
    assert all(f"| {order} |" in text for order in defined)
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
    from benchmarks.heads.trials import Gained, Trials

    model = small_model("small", None)
    gained, batches = Gained(model), model.batches("validation", 0, 40)
    trials, off = Trials(gained, batches), [1, 6]
    assert trials.start(off) == pytest.approx(gained.loss(batches, gained.without(off)))
    for head in (0, 3, 4, 7):
        expected = gained.loss(batches, gained.without([*off, head]))
        assert trials.loss(off, head) == pytest.approx(expected, rel=1e-6)


def test_orders_are_compared_on_the_draws_that_they_share(small_model, tmp_path, monkeypatch):
    from benchmarks.heads.measurements import Task, measure_task
    from benchmarks.heads.models import HEAD_MODELS
    from benchmarks.heads.orders import REFERENCE
    from benchmarks.heads.tables import read_measurements

    monkeypatch.setitem(HEAD_MODELS, "small", small_model)
    orders, out = (REFERENCE, "random", "magnitude"), tmp_path / "out"
    for draw, measured in enumerate([orders, orders[:2]]):
        measure_task(Task("small", draw, True, measured, out, tmp_path))
    (out / "small" / "large-draw3").mkdir()  # interrupted at its start
    frame = read_measurements(out, ["small"], (*orders, "Fisher"))
    draws = frame.groupby("order")["draws"].unique().map(list)
    assert draws.to_dict() == {REFERENCE: [2], "random": [2], "magnitude": [1]}


def test_fine_tuning_lowers_the_loss_and_is_undone(small_model):
    from benchmarks.heads.trials import Gained
    from benchmarks.heads.tuning import fine_tuned

    model = small_model("small", None)
    model.model.requires_grad_(False)
    gained, batches = Gained(model), model.batches("train")
    gains = gained.without([0, 3, 5])
    gains[1] = 0.7
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    loss = gained.loss(batches, gains)
    with fine_tuned(gained, gains, 0):
        assert gained.loss(batches, gains) < loss
        changed = model.model.state_dict()
        assert all(not torch.equal(changed[name], before[name]) for name in ("readout.weight",))
    assert all(torch.equal(value, before[name]) for name, value in changed.items())
    assert not any(weight.requires_grad for weight in model.model.parameters())


@pytest.fixture
def gpt2_and_llama():
    """Makes language models of 2 × 2 heads with two batches of tokens."""
    transformers = pytest.importorskip("transformers")
    from benchmarks.heads.models import HeadModel

    shape = {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 0}

    def make(family, **options):
        torch.manual_seed(1)
        if family == "gpt2":
            config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=8, **shape)
            model = transformers.GPT2LMHeadModel(config)
        else:
            sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 12}
            config = transformers.LlamaConfig(**sizes, **options, **shape)
            model = transformers.LlamaForCausalLM(config)
        tokens = torch.randint(11, (8, 7))
        batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}

        def outputs(batch):
            logits = model(input_ids=batch["input_ids"], use_cache=False).logits
            return logits.flatten(0, 1), batch["labels"].flatten()

        examples = {"test": batch}
        return HeadModel(
            *(family, "language model", model.eval().requires_grad_(False), "cross-entropy"),
            *((8, 4), outputs, examples, torch.zeros(8)),
            batch=4,
        )

    return make


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_importances_by_torch_pruning_are_those_of_the_weights(gpt2_and_llama, family):
    pytest.importorskip("torch_pruning")
    from benchmarks.heads.importances import magnitude_importances, taylor_importances
    from benchmarks.heads.trials import Gained

    model = gpt2_and_llama(family, num_attention_heads=2, num_key_value_heads=2)
    gained, batches = Gained(model), model.batches("test")
    modules = list(map(type, model.model.modules()))
    magnitudes, taylor = magnitude_importances(gained, batches), taylor_importances(gained, batches)
    assert list(map(type, model.model.modules())) == modules
    assert all(not w.requires_grad and w.grad is None for w in model.model.parameters())

    model.model.requires_grad_(True)
    with torch.enable_grad():
        sum(model.losses(batch).sum() for batch in batches).backward()
    for number, attention in enumerate(gained.layers):
        squares = torch.stack([w**2 for w, _ in by_channel(attention.module, family)])
        slopes = torch.stack([(w * g).abs() for w, g in by_channel(attention.module, family)])
        # of a channel summed over its weights, of a head and the group averaged
        squares, slopes = (part.sum(-1).mean(0).detach() for part in (squares, slopes))
        own = slice(2 * number, 2 * number + 2)
        expected = (squares / squares.mean()).reshape(2, -1).mean(1)
        np.testing.assert_allclose(magnitudes[own], expected, rtol=1e-4)
        expected = slopes.reshape(2, -1).mean(1)
        np.testing.assert_allclose(taylor[own], expected, rtol=1e-4)


def by_channel(attention, family):
    """Weights and gradients of queries, keys, values and output, a row for each channel."""
    if family == "gpt2":
        joined, output = attention.c_attn.weight, attention.c_proj.weight
        inputs = zip(joined.T.chunk(3), joined.grad.T.chunk(3))
        return [*inputs, (output, output.grad)]
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    output = attention.o_proj.weight
    inputs = [(projection.weight, projection.weight.grad) for projection in projections]
    return [*inputs, (output.T, output.grad.T)]


def test_heads_that_share_keys_have_no_importances_by_torch_pruning(gpt2_and_llama):
    pytest.importorskip("torch_pruning")
    from benchmarks.heads.importances import UntracedError, taylor_importances
    from benchmarks.heads.trials import Gained

    model = gpt2_and_llama("llama", num_attention_heads=4, num_key_value_heads=2)
    with pytest.raises(UntracedError, match="share keys"):
        taylor_importances(Gained(model), model.batches("test"))


def test_errors_of_differences_are_of_examples_and_draws():
    from benchmarks.heads.tables import paired

    examples = np.tile([1.0, -1.0, 3.0], (4, 1))  # no draw differs
    assert paired(examples) == pytest.approx((1.0, 2 / np.sqrt(3)))
    draws = np.repeat([[0.0], [2.0]], 5, axis=1)  # no example differs
    assert paired(draws) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("name", ["2-8-512-64", "3-3-512-170"])
def test_a_path_module_is_its_network_and_loses_the_paths_of_heads(name):
    from benchmarks.heads.path_module import bundled_module
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
