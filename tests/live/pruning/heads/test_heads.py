"""Heads that may be removed, orders of removal, and what they do not depend on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_core import Network, head_scores
from pathkernel_core.paths.heads import every_head, kept_heads
from pathkernel_datasets.variables.head_axis import heads_named, scores_by_head
from pathkernel_pruning.heads.heads import (
    are_removable,
    keep_every_layer,
    random_orders,
    removal_order,
)

HEADS = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def scored(draw):
    """Scores of a network's heads, some of them equal."""
    heads = draw(HEADS)
    return [np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))) for n in heads]


def test_every_head_and_those_kept():
    assert every_head((2, 1)) == ((1, 1), (1, 2), (2, 1))
    assert kept_heads((3, 2), [(1, 3), (2, 1)]) == ((1, 2), (2,))
    assert kept_heads((1,), []) == ((1,),)
    present = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1]], dtype=bool)
    assert keep_every_layer(present, (2, 1)).tolist() == [True, True, False, False]


def test_the_axis_of_heads_is_labelled():
    heads = every_head((2, 3))
    assert Network((2, 3), 10).head_labels == ("1-1", "1-2", "2-1", "2-2", "2-3")
    scores = scores_by_head(heads, np.arange(10.0).reshape(5, 2), np.ones((5, 2)), needs="weights")
    assert scores.dims == ("head", "draw")
    assert scores.sel(head="2-1").values.tolist() == [4, 5]
    assert scores.where(scores["layer"] == 2, drop=True)["number"].values.tolist() == [1, 2, 3]
    assert scores["standard_error"].dims == scores.dims
    assert scores.attrs == {"needs": "weights"}


def test_heads_are_named_by_pairs_labels_or_the_labels_of_scores():
    heads = [(2, 3), (10, 1)]
    labels = scores_by_head(heads, [1.0, 2.0])["head"]
    for named in (heads, ["2-3", "10-1"], labels, np.array(heads), labels.values, iter(heads)):
        assert heads_named(named) == heads
    for wrong in ([2, 3], ["2"], ["2-x"], [(1.5, 2)], [(1, 2, 3)], 4, "2-3"):
        with pytest.raises(TypeError, match="pairs of layer and head"):
            heads_named(wrong)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ([(1, 1), (1, 2)], "every head of layer 1, and the output would be 0; leave one"),
        ([(2, 1)], "every head of layer 2"),
        ([(1, 3)], r"\(1, 3\), but layer 1 has heads 1 to 2, layer 2 has heads 1 to 1"),
        ([(0, 1)], r"names \(layer, head\) = \(0, 1\)"),
        ([(1, 2), (1, 2)], "can be removed once"),
    ],
)
def test_what_cannot_be_removed(removed, message):
    with pytest.raises(ValueError, match=message):
        kept_heads((2, 1), removed)


@given(scored(), st.booleans())
def test_an_order_goes_by_score_and_empties_no_layer(scores, keeps_layers):
    heads = [len(layer) for layer in scores]
    flat, names = np.concatenate(scores), every_head(heads)
    order = removal_order(flat, heads, keeps_layers=keeps_layers).tolist()
    assert len(order) == sum(heads) - len(heads) * keeps_layers
    for count, head in enumerate(order):
        left = [candidate for candidate in range(sum(heads)) if candidate not in order[:count]]
        if keeps_layers:  # the lowest of those that are not the last of their layers is next
            layers = [names[candidate][0] for candidate in left]
            left = [candidate for candidate in left if layers.count(names[candidate][0]) > 1]
        assert head == min(left, key=lambda candidate: (flat[candidate], candidate))


def test_a_layers_last_head_is_skipped():
    assert removal_order([0.1, 0.2, 0.3, 0.4], (2, 2)).tolist() == [0, 2]
    assert removal_order([0.1, 0.2, 0.3, 0.4], (2, 2), keeps_layers=False).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="scores hold NaN"):
        removal_order([0.1, np.nan], (2,))


def test_the_only_head_of_a_layer_has_no_place_in_an_order():
    assert are_removable((3, 1, 2)).tolist() == [True] * 3 + [False] + [True] * 2
    for lowest in (-1.0, np.nan, 9.0):  # its score, whatever it is, changes nothing
        assert removal_order([0.2, 0.4, lowest], (2, 1)).tolist() == [0]
    assert len(removal_order([np.nan], (1,))) == 0
    with pytest.raises(ValueError, match="scores hold NaN"):
        removal_order([0.1, np.nan], (1, 1), keeps_layers=False)


@given(HEADS, st.integers(0, 2**32 - 1))
def test_scores_go_with_the_heads_when_heads_are_renamed(heads, seed):
    """Renaming the heads of a layer permutes paths and scores, and changes nothing else."""
    generator = np.random.default_rng(seed)
    network = Network(heads, 10)
    factor = generator.normal(size=(network.n_paths, 3))
    order_parameter = factor @ factor.T
    new = [generator.permutation(count) for count in heads]  # new name of each head, from 0
    paths = np.array(network.paths) - 1
    renamed = np.stack([names[paths[:, layer]] for layer, names in enumerate(new)], axis=1)
    paths_after = np.ravel_multi_index(renamed.T, heads)
    renamed_matrix = np.empty_like(order_parameter)
    renamed_matrix[np.ix_(paths_after, paths_after)] = order_parameter
    before, after = head_scores(network, order_parameter), head_scores(network, renamed_matrix)
    starts = np.cumsum([0, *heads])
    positions = np.concatenate([start + names for start, names in zip(starts, new)])
    np.testing.assert_allclose(after[positions], before, rtol=1e-12)
    if len(np.unique(before.round(9))) == sum(heads):
        expected = positions[removal_order(before, heads)]
        np.testing.assert_array_equal(removal_order(after, heads), expected)


def test_random_orders():
    orders = random_orders((3, 2), 400, seed=1)
    assert orders.shape == (400, 3)
    np.testing.assert_array_equal(orders, random_orders((3, 2), 400, seed=1))
    assert not np.array_equal(orders, random_orders((3, 2), 400, seed=2))
    for head in range(5):  # each first with probability 1/5; 400 draws: ± 0.02
        assert abs(np.mean(orders[:, 0] == head) - 0.2) < 0.08
    assert random_orders((3, 2), 4, seed=1, keeps_layers=False).shape == (4, 5)
