"""Head scores against what a live model loses, on a model that is linear in its heads."""

import io
import re

import numpy as np
import pytest
from scipy.stats import spearmanr

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from rich.console import Console
from torch import nn

from pathkernel_core.system.progress import silent
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.heads.correlation import spearman
from pathkernel_pruning.heads.order_views import order_views
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table

WIDTH, HEADS, TEST = 12, 6, 40
EVERY = [(1, head) for head in range(1, HEADS + 1)]
REMOVED = (2, 4)


class Attentive(nn.Module):
    """One layer of attention and two linear readouts, so that the output is a sum over heads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True).double()
        self.readouts = nn.Parameter(torch.randn(WIDTH, 2).double())

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0].mean(dim=1) @ self.readouts


@pytest.fixture(scope="module")
def model():
    return Attentive()


def examples(name):
    generator = torch.Generator().manual_seed({"validation": 1, "test": 2}[name])
    x = torch.randn(TEST, 4, WIDTH, generator=generator, dtype=torch.float64)
    return x, x[:, 0, 0].sign()[:, None]


def measure_of(model):
    """A loss that is linear in the output, which makes the heads' shares of it add up."""

    def measure(name):
        x, y = examples(name)
        assert not model.training
        right = model(x) * y
        return {"loss": -right, "accuracy": right > 0}

    return measure


@pytest.fixture(scope="module")
def parts(model):
    """What every head adds to output times label on both sets, (H, P, 2)."""
    found = {}
    for name in ("validation", "test"):
        x, y = examples(name)
        alone = []
        for head in EVERY:
            with torch.no_grad(), heads_off(model, [other for other in EVERY if other != head]):
                alone.append((model(x) * y).numpy())
        found[name] = np.array(alone)
    return found


def scores():
    drawn = np.random.default_rng(3).normal(size=(2, HEADS, 2))
    one, other = (dict(zip(EVERY, own)) for own in drawn)
    return {"one": one | {(0, 0): 9.0}, "other": {head: own[0] for head, own in other.items()}}


OPTIONS = {"removed": REMOVED, "random": 30, "shapley": 4, "greedy": 2, "best_of": 10}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept") / "off.npz"


@pytest.fixture(scope="module")
def whole(model, kept):
    model.train()
    found = compare_heads(model, measure_of(model), scores(), **OPTIONS, kept=kept, report=silent)
    assert model.training
    return found


@pytest.fixture(scope="module")
def result(whole):
    """The comparison on its only test set, without the network that has all heads."""
    return whole.squeeze("test_set").isel(removed=slice(1, None))


def test_what_single_heads_are_worth_is_their_share(result, parts):
    rises = parts["test"].mean(axis=1).T
    np.testing.assert_allclose(result["lost"], rises, atol=1e-12)
    errors = (parts["test"].std(axis=1) / np.sqrt(TEST)).T
    np.testing.assert_allclose(result["lost_error"], errors)
    shares = parts["validation"].mean(axis=1).T
    for name in ("ablation", "shapley"):
        np.testing.assert_allclose(result["score"].sel(order=name), shares, atol=1e-12)
    assert float(abs(result["score_error"].sel(order="shapley")).max()) < 1e-12
    assert result["score"].sel(order="best-of 10").isnull().all()


def off_of(result, parts):
    """Heads off for every order, number and draw, from the shares alone."""
    table = {name: np.array([own[head] for head in EVERY]) for name, own in scores().items()}
    table["other"] = np.tile(table["other"][:, None], 2)
    table |= dict.fromkeys(("ablation", "shapley"), parts["validation"].mean(axis=1))
    table["greedy"] = np.tile(parts["validation"].mean(axis=(1, 2))[:, None], 2)
    return {
        name: [[np.argsort(own[:, c])[:k] for c in range(2)] for k in REMOVED]
        for name, own in table.items()
    }


def test_values_with_heads_off_are_sums_over_the_others(result, whole, parts):
    at = {"quantity": "loss", "removed": 0, "order": "one", "test_set": "test"}
    measured, whole = whole["measured"].sel(at), parts["test"].sum(axis=0)
    np.testing.assert_allclose(measured, -whole.mean(axis=0))
    right = {}
    for name, sets in off_of(result, parts).items():
        right[name] = np.array(
            [
                [whole[:, c] - parts["test"][off, :, c].sum(axis=0) for c, off in enumerate(every)]
                for every in sets
            ]
        )  # (removed, draw, example)
        found = result["measured"].sel(order=name)
        np.testing.assert_allclose(found.sel(quantity="loss"), -right[name].mean(axis=-1))
        accuracy = (right[name] > 0).mean(axis=-1)
        np.testing.assert_allclose(found.sel(quantity="accuracy"), accuracy)
        drawn = result["random_measured"].sel(quantity="accuracy")
        share = result["random_as_good"].sel(order=name, quantity="accuracy")
        np.testing.assert_allclose(share, (drawn.values >= accuracy - 1e-12).mean(axis=0))
        drawn = result["random_measured"].sel(quantity="loss").values
        share = result["random_as_good"].sel(order=name, quantity="loss")
        np.testing.assert_allclose(share, (drawn <= found.sel(quantity="loss").values).mean(axis=0))
    gain = right["one"].mean(axis=1) - right["other"].mean(axis=1)  # losses are minus these
    here = result.sel(order="other", quantity="loss", reference="first order")
    np.testing.assert_allclose(here["difference"], gain.mean(axis=-1), atol=1e-12)
    width = np.ptp(here["difference_interval"].values, axis=-1)
    np.testing.assert_allclose(width, 2 * 1.96 * gain.std(axis=-1) / np.sqrt(TEST), rtol=0.15)


def test_the_best_random_set_is_best_on_validation_examples(result, parts):
    generator = np.random.default_rng(0)
    orders = [generator.permutation(HEADS) for _ in range(30)]
    for count in REMOVED:
        sets = [order[:count] for order in orders]
        at_random = [-np.delete(parts["test"], off, 0).sum(axis=0).mean(axis=0) for off in sets]
        found = result["random_measured"].sel(quantity="loss", removed=count)
        np.testing.assert_allclose(found, at_random)
        lost = [parts["validation"][off].sum(axis=0).mean() for off in sets[:10]]
        best = result["measured"].sel(order="best-of 10", removed=count, quantity="loss")
        np.testing.assert_allclose(best, at_random[int(np.argmin(lost))])


def test_rank_correlations(result, parts):
    rise = parts["test"].mean(axis=1)
    for name in ("one", "other", "ablation"):
        score = result["score"].sel(order=name).values
        expected = [spearmanr(score[c], rise[:, c]).statistic for c in range(2)]
        found = result.sel(order=name)
        np.testing.assert_allclose(found["rank_correlation"], expected)
        np.testing.assert_allclose(found["layer_correlation"].sel(within_layer=1), expected)
        rows = np.random.default_rng(5).integers(TEST, size=(2000, TEST))
        losses = np.moveaxis(parts["test"][:, rows].mean(axis=2), (0, 1, 2), (2, 1, 0))
        plain = spearman(score[:, None], losses).mean(axis=0)  # of (draw, resample, head)
        ends = found["rank_correlation_interval"].sel(resampled="examples")
        np.testing.assert_allclose(ends, np.quantile(plain, [0.025, 0.975]), atol=0.1)
    difference = result["rank_correlation"].mean("draw")
    difference = difference - difference.sel(order="one")
    np.testing.assert_allclose(result["correlation_difference"], difference, atol=1e-12)


def test_kept_values_are_not_measured_again(model, whole, kept):
    calls = []

    def counted(name):
        calls.append(name)
        return measure_of(model)(name)

    again = compare_heads(model, counted, scores(), **OPTIONS, kept=kept, report=silent)
    assert sorted(calls) == ["test", "validation"]  # of the whole model, to compare
    assert again.identical(whole)
    other = Attentive()
    with torch.no_grad():
        other.readouts[0, 0] += 1e-6
    with pytest.raises(ValueError, match=r"off\.npz holds values of a model with other weights"):
        compare_heads(other, measure_of(other), scores(), kept=kept, report=silent)


@pytest.mark.parametrize(
    "changed",
    [
        lambda found: {"error": found["loss"], "accuracy": found["accuracy"]},
        lambda found: found | {"loss": found["loss"] + torch.tensor([0.0, 0.05])},
        lambda found: found | {"accuracy": found["accuracy"].roll(1, dims=0)},
        lambda found: {name: each[:-1] for name, each in found.items()},
        lambda found: found | {"loss": found["loss"] * 1.005},
    ],
    ids=["names", "a draw", "order", "fewer", "scale"],
)
def test_values_of_another_measure_are_refused(model, kept, result, changed):
    measure = measure_of(model)
    with pytest.raises(ValueError, match=r"holds values of another measure or set 'validation'"):
        compare_heads(
            model, lambda name: changed(measure(name)), scores(), kept=kept, report=silent
        )


def test_files_that_are_none_of_evaluations(model, tmp_path):
    def refused(words):
        with pytest.raises(ValueError, match=words):
            compare_heads(model, pytest.fail, {}, kept=file, report=silent)

    file = tmp_path / "none" / "off.npz"
    refused("kept names a file in .*none, which is no folder; make it")
    file = tmp_path / "off.npz"
    np.savez(file, quantities=np.array(["loss"]), model=np.array("x"), **{"off test": [""]})
    whole = file.read_bytes()
    np.save(tmp_path / "one.npy", np.ones(3))
    nan = {"off test": [""], "values test": np.full((1, 1, 2, 1), np.nan)}
    np.savez(tmp_path / "nan.npz", quantities=np.array(["loss"]), model=np.array("x"), **nan)
    others = [(tmp_path / name).read_bytes() for name in ("one.npy", "nan.npz")]
    for content in (whole, whole[:-9], b"text", b"", *others):
        file.write_bytes(content)
        refused(r"off\.npz is no file in which compare_heads keeps its evaluations")
    file = tmp_path
    refused("kept must name a file, but .* is a folder")


def test_an_interrupted_comparison_says_what_it_keeps(model, tmp_path):
    measure, calls = measure_of(model), iter(range(5))

    def interrupted(name):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return measure(name)

    file = tmp_path / "off.npz"
    with pytest.raises(KeyboardInterrupt) as ended:
        compare_heads(model, interrupted, {}, random=2, kept=file, report=silent)
    assert ended.value.__notes__ == [
        f"The measured values are in {file}; the same call resumes from it."
    ]
    with np.load(file) as held:
        assert sum(len(held[name]) for name in held if name.startswith("off ")) == 5


def test_what_is_measured_outlives_a_file_that_cannot_be_written(model, tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathkernel_pruning.live.evaluations.replace_file", full)
    with pytest.warns(RuntimeWarning, match="evaluations are not kept: .*No space left"):
        compare_heads(model, measure_of(model), {}, random=2, kept=tmp_path / "off.npz")


def test_views(whole, result):
    views = list(order_views(whole, ["one", "greedy"]))
    tables = {}
    for view in views:
        if isinstance(view, Table):
            tables.setdefault(view.name, []).append(view)
    orders = [str(name) for name in result["order"].values]
    shown, *more = tables["single_heads"]
    assert shown.headings == ["head", "rise of the loss", *orders[:-2]]
    assert not more
    lost, error = (result[name].sel(head="1-3").mean() for name in ("lost", "lost_error"))
    assert shown.rows[2][:2] == ["1-3", f"{float(lost):.4f} ± {float(error):.4f}"]
    off = tables["removed"][1]  # accuracy
    at = result.sel(order="one", removed=2, quantity="accuracy").mean("draw")
    assert off.rows[0][2] == f"{float(at['measured']):.3f} ({float(at['random_as_good']):.0%})"
    assert [line[0] for line in off.rows] == [*orders, "random, 2.5 %", "random, 97.5 %"]
    correlation = result["rank_correlation"].sel(order="other")
    ends = f"{float(correlation.min()):+.2f} to {float(correlation.max()):+.2f}"
    assert tables["rank_correlations"][0].rows[1][2] == ends
    charts = {view.name: view for view in views if isinstance(view, Chart)}
    frames = {name: frame_of_chart(charts[name]) for name in ("single_heads", "removed")}
    assert len(frames["single_heads"]) == 2 * HEADS
    assert len(frames["removed"]) == 2 * 3 * (len(REMOVED) + 1)  # quantities, orders and random


def frame_of_chart(chart):
    return next(iter(chart.altair().to_dict()["datasets"].values())).splitlines()[1:]


@pytest.mark.parametrize("width", [80, 120])
def test_many_numbers_of_heads_fit_beside_their_names(whole, width):
    """Neither the names of orders nor the ends of intervals are cut."""
    wide = whole.isel(removed=[0, 1, 2, 1, 2, 1]).assign_coords(removed=[0, 1, 2, 3, 4, 5])
    text = io.StringIO()
    tables = [view for view in order_views(wide) if isinstance(view, Table)]
    for table in tables:
        Console(file=text, width=width).print(table, crop=False)
    assert "…" not in text.getvalue()
    for name in ("one", "other", "ablation", "shapley", "greedy"):
        assert len(re.findall(rf"^ ?{name} ", text.getvalue(), re.M)) >= 3
    differences = next(table for table in tables if table.name == "differences")
    for row in differences.rows:
        for cell in row[2:]:
            assert all(part in text.getvalue() for part in cell.split("\n"))


@pytest.mark.parametrize("heads", [2, 3])
def test_models_of_few_heads(heads):
    model = Attentive()
    model.attention = nn.MultiheadAttention(WIDTH, heads, bias=False, batch_first=True).double()
    found = compare_heads(model, measure_of(model), {}, random=2, report=silent)
    assert list(found["removed"].values) == [0, 1, 2][:heads]


def test_scores_of_any_kind(model):
    """Numbers beside arrays, tensors of low precision with gradients."""
    mixed = {head: torch.tensor([head[1], 2.0], dtype=torch.bfloat16) for head in EVERY}
    mixed = {head: each.requires_grad_() for head, each in mixed.items()} | {(1, 1): 7}
    found = compare_heads(model, measure_of(model), {"mixed": mixed}, random=2, report=silent)
    expected = [[7, 2, 3, 4, 5, 6], [7, 2, 2, 2, 2, 2]]
    np.testing.assert_array_equal(found["score"].sel(order="mixed"), expected)


def test_refused(model):
    measure = measure_of(model)
    whole = dict.fromkeys(EVERY, 1.0)
    for wrong, options, words in (
        ({"mine": {(1, 1): 1.0}}, {}, r"scores\['mine'\] lacks \(layer, head\) = \(1, 2\)"),
        ({"mine": whole | {(1, 3): np.nan}}, {}, "finite .* has 1 of 6 that are not"),
        ({"mine": whole | {(1, 3): np.inf}}, {}, "1 of 6 that are not finite"),
        ({"mine": whole | {(1, 3): [1, 2], (1, 4): [1, 2, 3]}}, {}, r"shapes \(\), \(2,\), \(3,\)"),
        ({"mine": dict.fromkeys(EVERY, np.ones((2, 2)))}, {}, r"shapes \(2, 2\)"),
        ({"mine": [np.ones(HEADS)]}, {}, r"but is a list; .* captured\.by_head\("),
        ({"mine": whole | {(1, 3): "high"}}, {}, "but has others than numbers"),
        ({"ablation": whole}, {}, "'ablation', which is computed here"),
        ({"best-of 5": whole}, {"best_of": 5}, "which is computed here"),
        ({"mine": whole}, {"removed": (7,)}, "growing numbers of the 6 heads"),
        ({"mine": whole}, {"removed": 3}, "growing numbers of the 6 heads .*, but is 3"),
        ({"mine": whole}, {"removed": (1.5,)}, "growing numbers of the 6 heads"),
        ({"mine": whole}, {"random": 2.5}, "random must be a whole number"),
        ({"mine": whole}, {"seed": -1}, "seed must be a whole number of at least 0"),
        ({"mine": whole}, {"random": 1}, "random must be a whole number of at least 2, but is 1"),
        ({"mine": whole}, {"shapley": 5}, "shapley must be 0, 'exact', or even and at least 4"),
        ({"mine": whole}, {"greedy": -1}, "greedy must be .* but is -1"),
    ):
        with pytest.raises(ValueError, match=words):
            compare_heads(model, pytest.fail, wrong, **options, report=silent)
    with pytest.raises(TypeError, match="scores must be a mapping of names to scores"):
        compare_heads(model, pytest.fail, [whole], report=silent)
    wrong = {head: [1.0, 2.0, 3.0] for head in EVERY}
    with pytest.raises(ValueError, match=r"one for each of 2 draws of the measure, but has 3"):
        compare_heads(model, measure, {"mine": wrong}, report=silent)
    right = torch.ones(TEST, 2, dtype=bool)
    for wrong in (
        {"accuracy": right},
        {"right": right},
        {"margin": right.double(), "loss": right.double()},
        {},
    ):
        with pytest.raises(ValueError, match="but must give first a loss"):
            compare_heads(model, lambda name, wrong=wrong: wrong, {}, report=silent)
    columns = {"test": 2, "validation": 1}
    with pytest.raises(ValueError, match=r"'test' .* for 'validation'; it must give the same"):
        compare_heads(
            model, lambda name: measure(name)["loss"][:, : columns[name]], {}, report=silent
        )
    with pytest.raises(ValueError, match=r"measure gives .*\(\).* one value for every example"):
        compare_heads(model, lambda name: measure(name)["loss"].mean(), {}, report=silent)
    with pytest.raises(
        ValueError, match=r"values for 'validation' that are NaN or infinite, with 0 heads"
    ):
        compare_heads(model, lambda name: measure(name)["loss"] * np.nan, {}, report=silent)
