"""Comparison of orders: every number against its definition."""

import itertools

import numpy as np
import pytest
import xarray as xr
from scipy.stats import spearmanr

from pathkernel_core.paths.heads import every_head
from pathkernel_datasets.variables.head_axis import scores_by_head
from pathkernel_pruning.heads.heads import random_orders, removal_order
from pathkernel_pruning.heads.orders import FIRST, RANDOM, compare_orders, removed_heads
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs

HEADS = (3, 2, 1)
NAMES = every_head(HEADS)
REMOVABLE = NAMES[:5]
SCORES = {"one": [0.5, 0.1, 1.0, 0.3, 0.2, 0.05], "two": [3.0, 2.0, 1.0, 9.0, 8.0, np.nan]}
EXAMPLES = 60


def made_up_outputs(seed):
    generator = np.random.default_rng(seed)
    labels = np.repeat([1.0, -1.0], EXAMPLES // 2)
    values = generator.normal(size=(EXAMPLES, 6)) + labels[:, None] * np.arange(6) / 6
    return PathOutputs(HEADS, values, labels)


SETS = {name: made_up_outputs(seed) for seed, name in enumerate(("validation", "near", "far"))}
TESTS = {name: SETS[name] for name in ("near", "far")}


def compare(scores=SCORES, **options):
    head_scores = {
        name: scores_by_head(NAMES, np.array(values).T) for name, values in scores.items()
    }
    options = {"random": 25, "resamples": 50, "seed": 3} | options
    return compare_orders(PathEvaluator(SETS), head_scores, "validation", list(TESTS), **options)


@pytest.fixture(scope="module")
def result():
    return compare(shapley="exact", greedy=1, best_of=7, best=True)


def right(outputs, removed):
    return outputs.output(removed) * outputs.labels > 0


def accuracy(outputs, removed):
    return right(outputs, removed).mean()


def first(name, count):
    return [NAMES[head] for head in removal_order(np.array(SCORES[name]), HEADS)[:count]]


def test_accuracies_are_those_of_the_networks_that_are_left(result):
    assert result["removed"].values.tolist() == [0, 1, 2, 3]
    for name, (test_set, outputs), count in itertools.product(SCORES, TESTS.items(), range(4)):
        assert removed_heads(result, name, count) == first(name, count)
        actual = result.squeeze().sel(order=name, test_set=test_set, removed=count)
        p = accuracy(outputs, first(name, count))
        assert float(actual["measured"]) == pytest.approx(p)
        error = np.sqrt(p * (1 - p) / EXAMPLES)  # binomial
        assert float(actual["measured_error"]) == pytest.approx(error)
        lost = right(outputs, ()).astype(float) - right(outputs, first(name, count))
        expected = np.std(lost) / np.sqrt(EXAMPLES)
        assert float(actual["change_error"]) == pytest.approx(expected)


def test_random_orders_are_averaged(result):
    orders = random_orders(HEADS, 25, 3)
    for test_set, outputs in TESTS.items():
        accuracies = [accuracy(outputs, [NAMES[head] for head in order[:2]]) for order in orders]
        actual = result.isel(quantity=0, draw=0).sel(test_set=test_set, removed=2)
        np.testing.assert_allclose(actual["random_measured"], accuracies)
        assert float(actual["measured"].sel(order=RANDOM)) == pytest.approx(np.mean(accuracies))
        share = np.mean(np.array(accuracies) >= accuracy(outputs, first("one", 2)) - 1e-12)
        assert float(actual["random_as_good"].sel(order="one")) == pytest.approx(share)
    assert result["score"].sel(order=RANDOM).isnull().all()


def test_no_set_of_heads_does_better_than_the_best(result):
    for test_set, outputs in TESTS.items():
        best = result["best_measured"].sel(test_set=test_set).squeeze()
        assert float(best[0]) == pytest.approx(accuracy(outputs, ()))
        assert float(best[1]) == pytest.approx(max(accuracy(outputs, [h]) for h in REMOVABLE))
        assert (result["measured"].sel(test_set=test_set).squeeze() <= best + 1e-12).all()


def test_scores_ask_the_network_on_validation_examples(result, monkeypatch):
    """Each by its definition; all networks without one layer are right in half of the cases."""
    outputs = SETS["validation"]
    lost = [accuracy(outputs, ()) - accuracy(outputs, [head]) for head in REMOVABLE]
    scores = {name: values_of(result, name) for name in ("ablation", "shapley", "greedy")}
    np.testing.assert_allclose(scores["ablation"][:5], lost)
    assert np.isnan(scores["ablation"][5]), "the only head of its layer"
    assert scores["shapley"].sum() == pytest.approx(accuracy(outputs, ()) - 0.5)
    steps = [removed_heads(result, "greedy", count) for count in range(4)]
    assert steps[1] == [REMOVABLE[int(np.argmin(lost))]]
    for before, after in itertools.pairwise(steps):
        candidates = [[*before, head] for head in REMOVABLE if head not in before]
        allowed = [set_ for set_ in candidates if {(1, 1), (1, 2), (1, 3)} - {*set_}]
        allowed = [set_ for set_ in allowed if {(2, 1), (2, 2)} - {*set_}]
        reached = max(accuracy(outputs, set_) for set_ in allowed)
        assert accuracy(outputs, after) == pytest.approx(reached)
    drawn = random_orders(HEADS, 7, 3)
    for count in (1, 2, 3):
        sets = [[NAMES[head] for head in order[:count]] for order in drawn]
        actual = accuracy(outputs, removed_heads(result, "best-of 7", count))
        assert actual == pytest.approx(max(accuracy(outputs, set_) for set_ in sets))
    sampled = compare(shapley=400)
    error = result["score"].sel(order="shapley") - sampled["score"].sel(order="shapley")
    pulls = error / sampled["score_error"].sel(order="shapley")
    assert float(abs(pulls).max()) < 4
    monkeypatch.setattr("pathkernel_pruning.heads.head_game.EXACT_PLAYERS", 4)
    assert compare(best=True)["best_measured"].isnull().all()


def values_of(result, name):
    table = result["score"].sel(order=name, draw=1)
    return np.array([float(table.sel(head=f"{layer}-{number}")) for layer, number in NAMES])


def test_values_are_compared_on_the_same_examples():
    """Less those of the first order and of random ones; intervals as wide as their errors say."""
    monotone = np.exp(SCORES["one"])
    actual = compare({**SCORES, "same": monotone}, random=2, resamples=2000).squeeze()
    measured, less = actual["measured"], actual["difference"]
    for reference, name in ((FIRST, "one"), (RANDOM, RANDOM)):
        expected = measured - measured.sel(order=name, drop=True)
        difference = less.sel(reference=reference, drop=True)
        xr.testing.assert_allclose(difference, expected.transpose(*difference.dims))
    ends = actual["difference_interval"].sel(reference=FIRST)
    np.testing.assert_allclose(ends.sel(order=["one", "same"]), 0, atol=1e-12)
    for (test_set, outputs), count in itertools.product(TESTS.items(), (1, 2)):
        pair = [right(outputs, first(name, count)).astype(float) for name in ("two", "one")]
        accuracies = pair[0] - pair[1]
        lower, upper = ends.sel(order="two", removed=count, test_set=test_set).values
        assert (lower + upper) / 2 == pytest.approx(accuracies.mean(), abs=0.02)
        assert upper - lower == pytest.approx(2 * 1.96 * accuracies.std() / 60**0.5, rel=0.15)


def test_heads_are_labelled(result):
    first_order = result.sel(order="one", draw=1)
    assert float(first_order["score"].sel(head="2-1")) == 0.3
    assert first_order["layer"].values.tolist() == [1, 1, 1, 2, 2, 3]
    assert first_order["number"].values.tolist() == [1, 2, 3, 1, 2, 1]
    # 3-1 and 2-1 are the last of their layers when their turn comes
    removed = first_order["is_removed"].transpose("head", "removed").values
    assert removed[:3].tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert removed[3:].tolist() == [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]
    lost = result["lost"].sel(test_set="far", head="1-2").item()
    outputs = TESTS["far"]
    assert lost == pytest.approx(accuracy(outputs, ()) - accuracy(outputs, [(1, 2)]))
    for name in (*result.data_vars, *result.coords):
        assert result[name].attrs["long_name"], name
    assert all(result[name].attrs["units"] == "1" for name in result.data_vars)
    assert dict(zip(result["order"].values, result["needs"].values))["shapley"] == "examples"


def test_the_only_head_of_a_layer_is_left_out(result):
    """With heads (3, 2, 1), whatever is said of head 3-1 changes no correlation and no order."""
    values = TESTS["near"]
    lost = [accuracy(values, ()) - accuracy(values, [head]) for head in REMOVABLE]
    results = [
        compare({"truth": [*lost, last], "opposite": [*np.negative(lost), last], **SCORES})
        for last in (np.nan, -1.0)
    ]
    correlations = results[0]["rank_correlation"].sel(test_set="near", draw=1)
    np.testing.assert_allclose(correlations.sel(order="truth"), 1)
    np.testing.assert_allclose(correlations.sel(order="opposite"), -1)
    expected = spearmanr(SCORES["one"][:5], lost).statistic
    assert float(correlations.sel(order="one")) == pytest.approx(expected)
    assert results[0]["lost"].sel(head="3-1").isnull().all()
    xr.testing.assert_identical(results[0].drop_vars("score"), results[1].drop_vars("score"))
    ends = results[0]["rank_correlation_interval"].sel(test_set="near", order="truth")
    np.testing.assert_allclose(ends.sel(resampled="heads"), 1)
    lower, upper = ends.sel(resampled="examples").values
    assert lower < upper <= 1 + 1e-12


def test_differences_of_correlations_are_paired():
    """Of two scores that rank heads alike, the difference is 0 in every resample."""
    rising = np.arange(6.0)
    actual = compare({"one": rising, "same": np.exp(rising), "two": SCORES["two"]}, resamples=300)
    plain, less = actual["rank_correlation"].squeeze("draw"), actual["correlation_difference"]
    np.testing.assert_allclose(less, plain - plain.sel(order="one"), atol=1e-12)
    ends = actual["correlation_difference_interval"]
    np.testing.assert_array_equal(ends.sel(order=["one", "same"]), 0)
    lower, upper = ends.sel(order="two").transpose("bound", ...).values
    assert (lower < upper).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"random": 1}, "random must be a whole number of at least 2"),
        ({"resamples": 0}, "resamples must be .* at least 1"),
        ({"removed": (1, 4)}, "growing numbers of the 3 heads that can be removed"),
        ({"scores": {"ablation": SCORES["one"]}}, "'ablation', which is computed here"),
        ({"scores": {"one": [SCORES["one"]] * 2}}, "for each of 1 draws of the measure, but has 2"),
    ],
)
def test_wrong_arguments(changed, message):
    with pytest.raises(ValueError, match=message):
        compare(**changed)


def test_without_a_head_to_spare():
    outputs = PathOutputs((1, 1), np.ones((4, 1)), np.array([1.0, 1.0, -1.0, -1.0]))
    with pytest.raises(ValueError, match="every layer has one head only"):
        compare_orders(PathEvaluator({"one": outputs}), {}, "one", ["one"])


def test_scores_of_any_array_with_labels():
    """In another order, of further heads, without layers and numbers, with errors of each head."""
    labels = [f"{layer}-{number}" for layer, number in NAMES]
    plain = xr.DataArray(
        [9.0, *SCORES["one"][::-1]],
        {"head": ["0-0", *labels[::-1]], "standard_error": ("head", np.arange(7.0))},
        dims="head",
        attrs={"needs": "weights"},
    )
    options = {"random": 2, "resamples": 5}
    given = compare_orders(PathEvaluator(SETS), {"one": plain}, "validation", ["near"], **options)
    expected = compare({"one": SCORES["one"]}, **options).sel(test_set=["near"])
    for name in ("score", "is_removed"):
        np.testing.assert_array_equal(given[name], expected[name])
    assert given["score_error"].sel(order="one").values.ravel().tolist() == [6, 5, 4, 3, 2, 1]
    assert given["needs"].values[0] == "weights"
    for wrong, message in (
        (plain.isel(head=slice(3, None)), r"lacks \(layer, head\) = \(2, 2\)"),
        (xr.concat([plain, plain[:2]], "head"), "has head 0-0 twice"),
        (plain.expand_dims(layer=2), r"of dims \('layer', 'head'\)"),
        (plain.drop_vars("head"), r"lacks \(layer, head\) = \(1, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_orders(PathEvaluator(SETS), {"one": wrong}, "validation", ["near"], **options)


def test_scores_with_different_errors_and_points_stand_side_by_side():
    """As samples at two widths, and scores of a store at two temperatures."""
    scores = {
        f"sampled N={width}": scores_by_head(NAMES, SCORES["one"], np.full(6, width)).assign_coords(
            width=width
        )
        for width in (10.0, 100.0)
    }
    options = {"random": 2, "resamples": 5}
    result = compare_orders(PathEvaluator(SETS), scores, "validation", ["near"], **options)
    errors = result["score_error"].sel(order=list(scores), draw=1)
    np.testing.assert_array_equal(errors, [[10.0] * 6, [100.0] * 6])


def test_scores_that_are_not_known_are_named():
    for head, is_needed in (("1-2", True), ("3-1", False)):
        scores = scores_by_head(NAMES, SCORES["one"])
        scores.loc[head] = np.nan
        arguments = PathEvaluator(SETS), {"mine": scores}, "validation", ["near"]
        if is_needed:
            with pytest.raises(ValueError, match=r"scores\['mine'\] has NaN for head 1-2"):
                compare_orders(*arguments, random=2, resamples=5)
        else:
            compare_orders(*arguments, random=2, resamples=5)


def test_what_a_comparison_does_not_hold_is_told(result):
    for name, count in (("none", None), (RANDOM, 1), ("one", 9)):
        with pytest.raises(ValueError, match=f"but not '{name}' with {count}"):
            removed_heads(result, name, count)
