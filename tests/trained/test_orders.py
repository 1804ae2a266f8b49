"""Comparison of orders: every number against its definition."""

import numpy as np
import pytest
import xarray as xr
from made_up_networks import WIDTHS, made_up
from scipy.stats import spearmanr

from pathkernel_trained.checkpoint import Checkpoint
from pathkernel_trained.heads import random_orders, removal_order
from pathkernel_trained.network import NetworkShape
from pathkernel_trained.networks import network_cost, pruned_checkpoint
from pathkernel_trained.orders import FIRST, RANDOM, are_nested, compare_orders, removed_heads
from pathkernel_trained.outputs import PathOutputs

HEADS = (3, 2, 1)
SHAPE = NetworkShape(3, HEADS, 6, 3)
SCORES = {
    "one": [np.array([0.5, 0.1, 1.0]), np.array([0.3, 0.2]), np.array([0.05])],
    "two": [np.array([3.0, 2.0, 1.0]), np.array([9.0, 8.0]), np.array([0.0])],
}
EPISODES = 60


def made_up_outputs(seed):
    generator = np.random.default_rng(seed)
    labels = np.repeat([1.0, -1.0], EPISODES // 2)
    values = generator.normal(size=(EPISODES, 6)) + labels[:, None] * np.arange(6) / 6
    return PathOutputs(HEADS, values, labels)


TESTS = {"near": made_up_outputs(0), "far": made_up_outputs(1)}


@pytest.fixture(scope="module")
def result():
    return compare_orders(SCORES, TESTS, SHAPE, WIDTHS[2], 4, random=25, resamples=50, seed=3)


def accuracy(outputs, removed):
    return np.mean(outputs.output(removed) * outputs.labels > 0)


def test_accuracies_are_those_of_the_networks_that_are_left(result):
    assert result["removed"].values.tolist() == [0, 1, 2, 3]
    for name, scores in SCORES.items():
        order = removal_order(scores)
        for test_set, outputs in TESTS.items():
            for count in range(4):
                found = result.sel(order=name, test_set=test_set, removed=count)
                p = accuracy(outputs, order.first(count))
                assert float(found["accuracy"]) == pytest.approx(p)
                error = np.sqrt(p * (1 - p) / EPISODES)  # binomial
                assert float(found["accuracy_error"]) == pytest.approx(error)
                right, whole = (
                    outputs.output(removed) * outputs.labels > 0
                    for removed in (order.first(count), ())
                )
                lost = whole.astype(float) - right
                expected = np.std(lost) / np.sqrt(EPISODES)
                assert float(found["accuracy_drop_error"]) == pytest.approx(expected)


def test_random_orders_are_averaged(result):
    orders = random_orders(HEADS, 25, 3)
    for test_set, outputs in TESTS.items():
        each = [accuracy(outputs, order.first(2)) for order in orders]
        at = {"test_set": test_set, "removed": 2}
        assert float(result["accuracy"].sel(order=RANDOM, **at)) == pytest.approx(np.mean(each))
        deviation = float(result["random_deviation"].sel(at))
        assert deviation == pytest.approx(np.std(each, ddof=1))
    assert result["score"].sel(order=RANDOM).isnull().all()


def test_no_set_of_heads_does_better_than_the_best(result):
    for test_set, outputs in TESTS.items():
        best = result["best_accuracy"].sel(test_set=test_set)
        assert float(best.sel(removed=0)) == pytest.approx(accuracy(outputs, ()))
        removable = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]  # 3-1 is the only one of its layer
        singles = [accuracy(outputs, [head]) for head in removable]
        assert float(best.sel(removed=1)) == pytest.approx(max(singles))
        left = [
            accuracy(outputs, [(1, head) for head in (1, 2, 3) if head != one] + [(2, two)])
            for one in (1, 2, 3)
            for two in (1, 2)
        ]
        assert float(best.sel(removed=3)) == pytest.approx(max(left))
        assert (result["accuracy"].sel(test_set=test_set) <= best + 1e-12).all()


def test_orders_without_scores(result):
    """Sets of heads that need not contain one another."""
    sets = [(), ((1, 2),), ((1, 1), (2, 2)), ((1, 1), (1, 2), (2, 1))]
    given = {"sets": sets}
    found = compare_orders(
        SCORES, TESTS, SHAPE, WIDTHS[2], 4, removals=given, random=25, resamples=50, seed=3
    )
    found.attrs["heads_per_layer"] = HEADS
    assert found["order"].values.tolist() == ["one", "two", "sets", RANDOM]
    # to rounding, since products of other shapes may be summed in another order
    given = found.drop_sel(order="sets").drop_attrs()
    xr.testing.assert_allclose(given, result.drop_attrs(), rtol=1e-12, atol=1e-12)
    here = found.sel(order="sets")
    for count, removed in enumerate(sets):
        assert removed_heads(found, "sets", count) == list(removed)
        for test_set, outputs in TESTS.items():
            at = here["accuracy"].sel(removed=count, test_set=test_set)
            assert float(at) == pytest.approx(accuracy(outputs, removed))
    assert here["score"].isnull().all()
    assert here["rank_correlation"].isnull().all()
    assert not are_nested(found, "sets")
    assert are_nested(found, "one")
    assert removed_heads(found, "one") == list(removal_order(SCORES["one"]).removed)
    with pytest.raises(ValueError, match="4 heads cannot be removed: between 0 and 3 can"):
        removed_heads(found, "one", 4)


def test_accuracies_are_compared_on_the_same_episodes():
    """Less those of the first order and of random ones; intervals as wide as their errors say."""
    same = [np.exp(layer) for layer in SCORES["one"]]
    scores = {"one": SCORES["one"], "same": same, "two": SCORES["two"]}
    found = compare_orders(scores, TESTS, SHAPE, WIDTHS[2], 4, random=2, resamples=2000)
    accuracies, less = found["accuracy"], found["accuracy_difference"]
    xr.testing.assert_allclose(
        less.sel(reference=FIRST, drop=True), accuracies - accuracies.sel(order="one", drop=True)
    )
    xr.testing.assert_allclose(
        less.sel(reference=RANDOM, drop=True), accuracies - accuracies.sel(order=RANDOM, drop=True)
    )
    ends = found["accuracy_difference_interval"].sel(reference=FIRST)
    np.testing.assert_array_equal(ends.sel(order=["one", "same"]), 0)
    for test_set, outputs in TESTS.items():
        for count in (1, 2):
            right = [
                outputs.output(removal_order(SCORES[name]).first(count)) * outputs.labels > 0
                for name in ("two", "one")
            ]
            each = right[0].astype(float) - right[1]
            at = ends.sel(order="two", removed=count, test_set=test_set)
            lower, upper = at.transpose("bound").values
            assert (lower + upper) / 2 == pytest.approx(each.mean(), abs=0.02)
            assert upper - lower == pytest.approx(2 * 1.96 * each.std() / 60**0.5, rel=0.15)


def test_heads_are_labelled(result):
    assert result["score"].dims == ("order", "layer", "head")
    one = result.sel(order="one")
    assert float(one["score"].sel(layer=2, head=1)) == 0.3
    assert one["score"].notnull().values.tolist() == [
        [True] * 3,
        [True, True, False],
        [True, False, False],
    ]
    # 3-1 and 2-1 are the last of their layers when their turn comes
    gone = one["gone"].transpose("layer", "head", "removed").values
    assert gone[0].tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert gone[1, :2].tolist() == [[0, 0, 0, 0], [0, 0, 1, 1]]
    assert gone[2, 0].tolist() == [0, 0, 0, 0]
    assert np.isnan(gone[1, 2]).all()
    assert np.isnan(gone[2, 1:]).all()
    drop = result["ablation_drop"].sel(test_set="far", layer=1, head=2)
    outputs = TESTS["far"]
    assert float(drop) == pytest.approx(accuracy(outputs, ()) - accuracy(outputs, [(1, 2)]))


def test_the_only_head_of_a_layer_is_left_out():
    """With heads (3, 2, 1), whatever is said of head 3-1 changes no correlation and no order."""
    removable = [
        np.array([accuracy(TESTS["near"], ()) - accuracy(TESTS["near"], [(layer, head)])])
        for layer, head in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))
    ]
    flat = np.concatenate(removable)
    found = []
    for last in (np.nan, -1.0, 1.0):
        scores = {"ablation": [flat[:3], flat[3:], np.array([last])], "one": SCORES["one"]}
        found.append(compare_orders(scores, TESTS, SHAPE, WIDTHS[2], 4, random=2, resamples=50))
    one = found[0]
    np.testing.assert_allclose(
        one["rank_correlation"].sel(order="ablation", test_set="near"), 1, rtol=1e-12
    )
    expected = spearmanr(np.concatenate(SCORES["one"])[:5], flat).statistic
    at = {"order": "one", "test_set": "near", "coefficient": "spearman"}
    assert float(one["rank_correlation"].sel(at)) == pytest.approx(expected)
    for name in ("ablation_drop", "ablation_drop_error"):
        assert one[name].sel(layer=3).isnull().all()
        assert (one[name].sel(layer=2).notnull().sum("head") == 2).all()
    assert (one["gone"].sel(order="ablation", layer=3, head=1) == 0).all()
    for other in found[1:]:
        xr.testing.assert_identical(other.drop_vars("score"), one.drop_vars("score"))


def test_without_a_head_to_spare():
    outputs = PathOutputs((1, 1), np.ones((4, 1)), np.array([1.0, 1.0, -1.0, -1.0]))
    scores = {"one": [np.ones(1), np.ones(1)]}
    with pytest.raises(ValueError, match="every layer has one head only"):
        compare_orders(scores, {"near": outputs}, NetworkShape(2, 1, 6, 3), 5, 4)


def test_everything_is_described(result):
    for name in (*result.data_vars, *result.coords):
        assert result[name].attrs["long_name"], name
    assert all(result[name].attrs["units"] == "1" for name in result.data_vars)


def test_correlations_have_their_places(result):
    """A score that is what truly is lost correlates perfectly, on its own test set."""
    truth = [
        result["ablation_drop"].sel(test_set="near", layer=layer).values[:count]
        for layer, count in enumerate(HEADS, start=1)
    ]
    scores = {"truth": truth, "opposite": [-values for values in truth]}
    found = compare_orders(scores, TESTS, SHAPE, WIDTHS[2], 4, random=2, resamples=50)
    correlations = found["rank_correlation"].sel(test_set="near")
    np.testing.assert_allclose(correlations.sel(order="truth"), 1)
    np.testing.assert_allclose(correlations.sel(order="opposite"), -1)
    assert (found["rank_correlation"].sel(test_set="far", order="truth") < 1).all()
    ends = found["rank_correlation_interval"].sel(test_set="near")
    np.testing.assert_allclose(ends.sel(order="truth", resampled="heads"), 1)
    lower, upper = ends.sel(order="truth", resampled="episodes").transpose("bound", ...).values
    assert (lower < upper).all()
    assert (upper <= 1 + 1e-12).all()


def test_differences_of_correlations_are_paired():
    """Of two scores that rank heads alike, the difference is 0 in every resample."""
    rising = [np.arange(3.0), np.arange(3.0, 5.0), np.array([np.nan])]
    scores = {
        "one": rising,
        "same": [np.exp(layer) for layer in rising],
        "two": SCORES["two"],
    }
    found = compare_orders(scores, TESTS, SHAPE, WIDTHS[2], 4, random=2, resamples=300)
    plain, less = found["rank_correlation"], found["correlation_difference"]
    xr.testing.assert_allclose(less, (plain.sel(order="one") - plain).transpose(*less.dims))
    ends = found["correlation_difference_interval"]
    for name in ("one", "same"):
        np.testing.assert_array_equal(less.sel(order=name), 0)
        np.testing.assert_array_equal(ends.sel(order=name), 0)
    other = found["rank_correlation_interval"].sel(order="one")
    assert (other.sel(bound="upper") - other.sel(bound="lower") > 0.1).all(), "not for certainty"
    lower, upper = ends.sel(order="two").transpose("bound", ...).values
    assert (lower < upper).all()
    assert found["correlation_difference"].sel(order=RANDOM).isnull().all()
    assert ends.sel(order=RANDOM).isnull().all()


def test_costs_are_those_of_the_pruned_networks(result):
    whole = Checkpoint(made_up(HEADS), np.ones((3, 5)), {})
    for scores in SCORES.values():
        for count in range(4):
            left = pruned_checkpoint(whole, removal_order(scores).first(count)).shape
            cost = network_cost(left, WIDTHS[2], 4)
            assert int(result["parameters"].sel(removed=count)) == cost.parameters
            assert int(result["flops"].sel(removed=count)) == cost.flops


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tests": {}}, "at least one order and one test set"),
        ({"scores": {}}, "at least one order and one test set"),
        ({"random": 1}, "random must be at least 2"),
        ({"resamples": 0}, "resamples at least 1"),
    ],
)
def test_wrong_arguments(changed, message):
    arguments = {"scores": SCORES, "tests": TESTS, **changed}
    with pytest.raises(ValueError, match=message):
        compare_orders(shape=SHAPE, token_width=5, tokens=4, **arguments)
