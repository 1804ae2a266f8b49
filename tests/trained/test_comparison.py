"""Agreement of order parameters against plain formulas, its invariances, and its p-values."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from pathkernel_core import Network
from pathkernel_trained.comparison import compare_order_parameters
from pathkernel_trained.path_network import empirical_order_parameter

NETWORKS = [Network(heads, 10) for heads in ((2, 3), (3, 2), (4,), (2, 2, 2))]


def random_order_parameters(network, seed, count=None):
    """Positive definite matrices with entries of either sign."""
    shape = (*(() if count is None else (count,)), network.n_paths, network.n_paths + 5)
    weights = np.random.default_rng(seed).standard_normal(shape)
    return weights @ weights.swapaxes(-1, -2) / shape[-1]


def named(agreement, values):
    return dict(zip((statistic.name for statistic in agreement.statistics), values))


def values_of(network, ours, theirs):
    agreement = compare_order_parameters(network, ours, theirs)
    return named(agreement, agreement.values)


def relabelled(network, matrix, labels):
    """U of the network whose head h of layer l was number labels[l][h - 1] + 1 before."""
    positions = {path: index for index, path in enumerate(network.paths)}
    order = [
        positions[tuple(names[head - 1] + 1 for names, head in zip(labels, path))]
        for path in network.paths
    ]
    return matrix[np.ix_(order, order)]


def all_labels(network):
    return itertools.product(*(itertools.permutations(range(count)) for count in network.heads))


def expected_statistics(network, ours, theirs):
    """The statistics pair by pair, as their names say."""
    n, paths = network.n_paths, network.paths
    pairs = [(i, j) for i in range(n) for j in range(i, n)]
    x, y = ([matrix[pair] for pair in pairs] for matrix in (ours, theirs))
    off = [pair for pair in pairs if pair[0] != pair[1]]
    x_off, y_off = ([matrix[pair] for pair in off] for matrix in (ours, theirs))
    products = np.array(x_off) * np.array(y_off)
    actual = {
        "correlation": pearsonr(x, y)[0],
        "correlation_off_diagonal": pearsonr(x_off, y_off)[0],
        "rank_correlation": spearmanr(x, y)[0],
        "rank_correlation_off_diagonal": spearmanr(x_off, y_off)[0],
        "equal_signs": np.mean(products > 0),
        "equal_signs_weighted": products[products > 0].sum() / np.abs(products).sum(),
    }
    for layer, count in enumerate(network.heads):
        blocks = ([], [])
        for first, second in itertools.combinations_with_replacement(range(1, count + 1), 2):
            rows = [i for i in range(n) if paths[i][layer] == first]
            columns = [j for j in range(n) if paths[j][layer] == second]
            for means, matrix in zip(blocks, (ours, theirs)):
                means.append(np.mean([abs(matrix[i, j]) for i in rows for j in columns]))
        actual[f"blocks_layer_{layer + 1}"] = pearsonr(*blocks)[0]
    scores = []
    for matrix in (ours, theirs):
        through = [
            sum(
                abs(matrix[i, j])
                for i in range(n)
                for j in range(n)
                if head in (paths[i][layer], paths[j][layer])
            )
            for layer, count in enumerate(network.heads)
            for head in range(1, count + 1)
        ]
        scores.append(through)
    return actual | {"head_scores": spearmanr(*scores)[0]}


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: str(network.heads))
def test_statistics_are_what_their_names_say(network):
    ours, theirs = random_order_parameters(network, 1, 2)
    actual = values_of(network, ours, theirs)
    expected = expected_statistics(network, ours, theirs)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-10, err_msg=name)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: str(network.heads))
def test_p_values_count_the_relabellings_that_agree_as_well(network):
    ours, theirs = random_order_parameters(network, 2, 2)
    agreement = compare_order_parameters(network, ours, theirs)
    observed = expected_statistics(network, ours, theirs)
    by_chance = [
        expected_statistics(network, ours, relabelled(network, theirs, labels))
        for labels in all_labels(network)
    ]
    assert agreement.exact
    assert agreement.relabellings == len(by_chance)
    for name, p_value in named(agreement, agreement.p_values).items():
        reached = sum(values[name] >= observed[name] - 1e-9 for values in by_chance)
        assert p_value == pytest.approx(reached / len(by_chance)), name


@given(st.integers(0, 10**6), st.sampled_from(NETWORKS), st.data())
def test_relabelling_both_alike_changes_nothing(seed, network, data):
    ours, theirs = random_order_parameters(network, seed, 2)
    labels = [data.draw(st.permutations(range(count))) for count in network.heads]
    before, after = (
        compare_order_parameters(network, *pair)
        for pair in (
            (ours, theirs),
            (relabelled(network, ours, labels), relabelled(network, theirs, labels)),
        )
    )
    np.testing.assert_allclose(after.values, before.values, atol=1e-10)
    np.testing.assert_allclose(after.p_values, before.p_values, atol=1e-12)


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_the_scale_of_the_trained_weights_does_not_matter(seed, scale):
    network = NETWORKS[0]
    ours, theirs = random_order_parameters(network, seed, 2)
    before, after = (
        compare_order_parameters(network, ours, matrix) for matrix in (theirs, scale * theirs)
    )
    np.testing.assert_allclose(after.values, before.values, atol=1e-10)
    np.testing.assert_allclose(after.p_values, before.p_values, atol=1e-12)


def test_an_order_parameter_agrees_with_itself_and_with_no_relabelling():
    network = NETWORKS[0]
    matrix = random_order_parameters(network, 3)
    agreement = compare_order_parameters(network, matrix, matrix)
    np.testing.assert_allclose(agreement.values, 1, rtol=1e-12)
    p_values = named(agreement, agreement.p_values)
    assert agreement.relabellings == 2 * 6
    assert p_values.pop("blocks_layer_1") == pytest.approx(1 / 2), "layer 2 has no say in it"
    assert p_values.pop("blocks_layer_2") == pytest.approx(1 / 6)
    for name, p_value in p_values.items():
        assert p_value == pytest.approx(1 / 12), name


def test_p_values_of_unrelated_networks_are_uniform():
    network = NETWORKS[0]
    trials, groups = 400, 12
    ours = random_order_parameters(network, 4, trials)
    theirs = random_order_parameters(network, 5, trials)
    names = ("correlation", "correlation_off_diagonal", "equal_signs_weighted")
    samples = {name: [] for name in names}
    for theory, trained in zip(ours, theirs):
        agreement = compare_order_parameters(network, theory, trained)
        for name in names:
            samples[name].append(named(agreement, agreement.p_values)[name])
    for name, p_values in samples.items():
        for level in (1, 3, 6):
            chance = level / groups
            error = np.sqrt(chance * (1 - chance) / trials)
            reached = np.mean(np.array(p_values) < chance + 1e-9)
            assert abs(reached - chance) < 4 * error, (name, level)


def test_where_there_are_many_relabellings_random_ones_stand_for_them():
    network = Network((4, 4), 10)
    ours, theirs = random_order_parameters(network, 6, 2)
    theirs = theirs + 0.3 * ours
    exact = compare_order_parameters(network, ours, theirs)
    assert (exact.exact, exact.relabellings) == (True, 576)
    sampled = compare_order_parameters(network, ours, theirs, relabellings=400, seed=1)
    assert (sampled.exact, sampled.relabellings) == (False, 400)
    np.testing.assert_array_equal(sampled.values, exact.values)
    assert sampled.p_values.min() >= 1 / 400, "the labels as they are count, too"
    error = np.sqrt(exact.p_values * (1 - exact.p_values) / 400)
    assert (np.abs(sampled.p_values - exact.p_values) < 4 * error + 1 / 400).all()
    repeated = compare_order_parameters(network, ours, theirs, relabellings=400, seed=1)
    np.testing.assert_array_equal(repeated.p_values, sampled.p_values)


def test_a_grid_is_compared_point_by_point():
    network = NETWORKS[1]
    grid = random_order_parameters(network, 8, 6).reshape(2, 3, 6, 6)
    trained = random_order_parameters(network, 9)
    grid[1, 2] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agreement = compare_order_parameters(network, grid, trained)
    assert agreement.values.shape == agreement.p_values.shape == (2, 3, 9)
    for index in np.ndindex(2, 3):
        single = compare_order_parameters(network, grid[index], trained)
        np.testing.assert_allclose(agreement.values[index], single.values, atol=1e-12)
        np.testing.assert_array_equal(agreement.p_values[index], single.p_values)
    assert np.isnan(agreement.values[1, 2]).all()
    assert np.isnan(agreement.p_values[1, 2]).all()


@pytest.mark.filterwarnings("error")
def test_what_is_not_defined_is_nan():
    network = NETWORKS[0]
    trained = random_order_parameters(network, 10)
    agreement = compare_order_parameters(network, np.eye(6) * 0.1, trained)
    values, p_values = (named(agreement, x) for x in (agreement.values, agreement.p_values))
    for name in ("correlation_off_diagonal", "rank_correlation_off_diagonal"):
        assert np.isnan(values[name]), "all its entries are equal"
        assert np.isnan(p_values[name])
    assert np.isnan(values["equal_signs_weighted"])
    assert values["equal_signs"] == 0.5, "a zero counts half"
    assert values["correlation"] > 0.3, "both have their weight on the diagonal"
    assert p_values["correlation"] == 1, "which every relabelling has"
    single = compare_order_parameters(Network((1,), 10), np.ones((1, 1)), np.ones((1, 1)))
    assert np.isnan(single.values).all()


@pytest.mark.parametrize(
    ("network", "shapes", "options", "message"),
    [
        (Network((2,), 10, outputs=2), ((4, 4), (4, 4)), {}, "network must have one output"),
        (Network((2,), 10), ((3, 3), (2, 2)), {}, r"of 2 paths must have shape \(2, 2\)"),
        (Network((2,), 10), ((5, 2, 2), (3, 3)), {}, r"trained has \(3, 3\)"),
        (Network((2,), 10), ((2, 2), (2, 2)), {"relabellings": 0}, "relabellings must be at least"),
    ],
)
def test_wrong_arguments(network, shapes, options, message):
    with pytest.raises(ValueError, match=message):
        compare_order_parameters(network, *(np.ones(shape) for shape in shapes), **options)


# -- what may be done to a network without changing U, and what may not


def network_weights(width, heads=2, layers=2, seed=0):
    """A draw from the prior, at the scale of a trained network: without factors 1/√N."""
    generator = np.random.default_rng(seed)
    shapes = {
        "projection": (width, 3),
        "values": (layers, heads, width, width),
        "readout": (width,),
    }
    weights = {
        name: generator.standard_normal(shape) / np.sqrt(width) for name, shape in shapes.items()
    }
    return weights | {name: np.ones((layers, heads, 4, 3)) for name in ("queries", "keys")}


def path_products(weights):
    """What the output is a sum of: readout, values and projection along each path."""
    return [
        weights["readout"] @ second @ first @ weights["projection"]
        for first in weights["values"][0]
        for second in weights["values"][1]
    ]


def test_no_sign_is_left_to_be_matched():
    weights = network_weights(20)
    before = empirical_order_parameter(weights)
    rotations = [np.linalg.qr(np.random.default_rng(s).normal(size=(20, 20)))[0] for s in range(3)]
    first, second, third = rotations
    rotated = weights | {
        "projection": first @ weights["projection"],
        "values": np.stack(
            [second @ weights["values"][0] @ first.T, third @ weights["values"][1] @ second.T]
        ),
        "readout": weights["readout"] @ third.T,
    }
    flipped = weights | {
        "values": weights["values"] * np.array([-1, 1])[:, None, None, None],
        "readout": -weights["readout"],
    }
    for equivalent in (rotated, flipped):
        np.testing.assert_allclose(path_products(equivalent), path_products(weights), atol=1e-12)
        np.testing.assert_allclose(empirical_order_parameter(equivalent), before, atol=1e-12)


def test_the_flip_of_one_head_is_another_network():
    weights = network_weights(20)
    values = weights["values"].copy()
    values[0, 1] *= -1  # head 2 of layer 1
    flipped = weights | {"values": values}
    signs = np.array([1, 1, -1, -1])  # of paths 1-1, 1-2, 2-1, 2-2
    np.testing.assert_allclose(
        path_products(flipped), signs[:, None] * path_products(weights), atol=1e-12
    )
    before, after = (empirical_order_parameter(w) for w in (weights, flipped))
    np.testing.assert_allclose(after, np.outer(signs, signs) * before, atol=1e-12)


def test_a_wide_network_from_the_prior_has_u_near_the_identity():
    """U = 1 in the limit; at width N its diagonal has the largest spread, √(2(L + 1)/N)."""
    typical = []
    for width in (50, 800):
        drawn = [empirical_order_parameter(network_weights(width, seed=seed)) for seed in range(5)]
        distance = np.abs(np.array(drawn) - np.eye(4))
        assert distance.max() < 4.5 * np.sqrt(6 / width)
        typical.append(np.sqrt(np.mean(distance**2)))
    assert 2.5 < typical[0] / typical[1] < 6, "falls as 1/√N, here by a factor of 4"
