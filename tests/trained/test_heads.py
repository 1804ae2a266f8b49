"""Heads that may be removed, orders of removal, and what they do not depend on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_core import Network, head_scores
from pathkernel_trained.heads import (
    are_removable,
    every_head,
    kept_heads,
    pruned_network,
    random_orders,
    removable_heads,
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
    network = Network((3, 2), 10, (1.0, 0.5, 0.5, 1.0))
    pruned = pruned_network(network, [(1, 3)])
    assert pruned == Network((2, 2), 10, (1.0, 0.5, 0.5, 1.0))


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ([(1, 1), (1, 2)], "every head of layer 1, and the output would be 0; leave one"),
        ([(2, 1)], "every head of layer 2"),
        ([(1, 3)], r"\(1, 3\), but layer 1 has heads 1 to 2, layer 2 has heads 1 to 1"),
        ([(0, 1)], r"names \(layer, head\) = \(0, 1\)"),
        ([(1, 2), (1, 2)], "twice"),
    ],
)
def test_what_cannot_be_removed(removed, message):
    with pytest.raises(ValueError, match=message):
        kept_heads((2, 1), removed)


@given(scored())
def test_an_order_never_empties_a_layer_and_goes_by_score(scores):
    heads = [len(layer) for layer in scores]
    order = removal_order(scores)
    value = {head: scores[head[0] - 1][head[1] - 1] for head in every_head(heads)}
    for count in range(len(order.removed) + 1):
        left = kept_heads(heads, order.first(count))  # raises if a layer is empty
        if count < len(order.removed):
            # the next one is the lowest of those that are not the last of their layers
            free = [(la, h) for la, layer in enumerate(left, 1) for h in layer if len(layer) > 1]
            assert order.removed[count] == min(free, key=lambda head: (value[head], head))
    assert len(order.removed) == sum(heads) - len(heads)
    gone = [value[head] for head in order.removed]
    assert gone == sorted(gone)
    # passed over: what stays although something that ranks higher goes
    stays = set(removable_heads(heads)) - set(order.removed)
    last = max(((value[head], head) for head in order.removed), default=(-1, ()))
    assert set(order.skipped) == {head for head in stays if (value[head], head) < last}


def test_a_layers_last_head_is_skipped():
    order = removal_order([np.array([0.1, 0.2]), np.array([0.3, 0.4])])
    assert order.removed == ((1, 1), (2, 1))
    assert order.skipped == ((1, 2),)
    with pytest.raises(ValueError, match="3 heads cannot be removed: between 0 and 2 can"):
        order.first(3)
    with pytest.raises(ValueError, match="scores hold NaN"):
        removal_order([np.array([0.1, np.nan])])


def test_the_only_head_of_a_layer_has_no_place_in_an_order():
    assert removable_heads((3, 1, 2)) == ((1, 1), (1, 2), (1, 3), (3, 1), (3, 2))
    assert are_removable((3, 1, 2)).tolist() == [True] * 3 + [False] + [True] * 2
    assert removable_heads((1, 1)) == ()
    for lowest in (-1.0, np.nan, 9.0):  # its score, whatever it is, changes nothing
        order = removal_order([np.array([0.2, 0.4]), np.array([lowest])])
        assert order.removed == ((1, 1),)
        assert order.skipped == ()
    assert removal_order([np.array([np.nan])]).removed == ()


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
    place = np.ravel_multi_index(renamed.T, heads)
    moved = np.empty_like(order_parameter)
    moved[np.ix_(place, place)] = order_parameter
    before, after = head_scores(network, order_parameter), head_scores(network, moved)
    for old, found, names in zip(before, after, new):
        np.testing.assert_allclose(found[names], old, rtol=1e-12)
    expected = [
        (layer, 1 + new[layer - 1][head - 1]) for layer, head in removal_order(before).removed
    ]
    if len(np.unique(np.concatenate(before).round(9))) == sum(heads):
        assert removal_order(after).removed == tuple(expected)


def test_random_orders():
    orders = random_orders((3, 2), 400, seed=1)
    assert orders == random_orders((3, 2), 400, seed=1)
    assert orders != random_orders((3, 2), 400, seed=2)
    for order in orders:
        assert kept_heads((3, 2), order.removed)
        assert len(order.removed) == 3
    first = [order.removed[0] for order in orders]
    for head in every_head((3, 2)):  # each with probability 1/5; 400 draws: ± 0.02
        assert abs(first.count(head) / 400 - 0.2) < 0.08
