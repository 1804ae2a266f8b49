import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_core import Network

pytestmark = pytest.mark.version

heads_of_layers = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(heads_of_layers, st.integers(1, 3))
def test_paths_are_numbered_with_the_first_layer_slowest(heads, outputs):
    network = Network(heads, 10, outputs=outputs)
    assert network.n_layers == len(heads)
    assert network.n_paths == len(network.paths) == len(set(network.paths)) == math.prod(heads)
    for index, path in enumerate(network.paths):
        position = 0
        for head, count in zip(path, heads):
            position = position * count + head - 1
        assert position == index
        assert network.path_labels[index] == "-".join(str(head) for head in path)


@given(heads_of_layers, st.integers(1, 3))
def test_sizes_count_partial_paths_times_outputs(heads, outputs):
    network = Network(heads, 10, outputs=outputs)
    partial = [len(list(itertools.product(*map(range, heads[i:])))) for i in range(len(heads) + 1)]
    assert network.sizes == tuple(count * outputs for count in partial)
    assert network.sizes[-1] == outputs


@given(heads_of_layers, st.data())
def test_keep_heads_keeps_exactly_the_paths_through_them(heads, data):
    network = Network(heads, 10)
    subset = [
        data.draw(st.sets(st.integers(1, count), min_size=1), label="kept") for count in heads
    ]
    indices = network.paths_through(subset)
    smaller = network.keep_heads(subset)
    assert smaller.heads == tuple(len(layer) for layer in subset)
    assert len(indices) == smaller.n_paths
    renumbered = [sorted(layer) for layer in subset]
    for index, path in zip(indices, smaller.paths):
        original = tuple(layer[head - 1] for layer, head in zip(renumbered, path))
        assert network.paths[index] == original


def test_one_number_stands_for_every_layer():
    network = Network(heads=(2, 3), widths=10, variances=0.5)
    assert network.widths == (10.0, 10.0, 10.0)
    assert network.variances == (0.5,) * 4
    assert network == Network([2, 3], [10] * 3, [0.5] * 4)
    assert hash(network) == hash(Network([2, 3], [10] * 3, [0.5] * 4))


def test_numpy_numbers_are_numbers():
    network = Network(np.array([2, 2]), np.array([10.0, 20.0, 30.0]), np.float32(1.0))
    assert network.heads == (2, 2)
    assert network.width == 30.0
    assert Network(2, np.int64(7)).widths == (7.0, 7.0)


def test_the_network_survives_its_inputs():
    widths = [10.0, 20.0]
    network = Network((2,), widths)
    widths[0] = 99.0
    assert network.widths == (10.0, 20.0)
    with pytest.raises(AttributeError):
        network.heads = (3,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": ()}, "heads must name at least one layer, for example"),
        ({"heads": (2, 0)}, "heads must be positive whole numbers, but has 0"),
        ({"heads": (2, -1)}, "heads must be positive whole numbers, but has -1"),
        ({"heads": (2.5, 1)}, "heads must be positive whole numbers, but has 2.5"),
        ({"outputs": 0}, "outputs must be positive whole numbers, but has 0"),
        ({"widths": 0}, "widths must be positive and finite, but is 0"),
        ({"widths": -3.0}, "widths must be positive and finite, but is -3.0"),
        ({"widths": math.nan}, "widths must be positive and finite, but is nan"),
        ({"widths": -math.inf}, "widths must be positive and finite, but is -inf"),
        ({"variances": math.inf}, "variances must be positive and finite, but is inf"),
        ({"widths": (10, 10)}, "widths must be one number or 3 numbers .*but has 2"),
        ({"variances": 0.0}, "variances must be positive and finite, but is 0.0"),
        ({"variances": (1, 1, -1, 1)}, "variances must be positive and finite, but is -1"),
        ({"variances": (1, 1)}, "variances must be one number or 4 numbers .*but has 2"),
    ],
)
def test_bad_numbers_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Network(**{"heads": (2, 2), "widths": 10} | arguments)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("widths", "50", r"widths must be one number or 2 numbers \(N_1 … N_{L\+1}\), not '50'"),
        ("widths", ("50",), "each of widths must be one number, but is '50'"),
        ("variances", ([1, 2], 1, 1), r"each of variances must be one number, but is \[1, 2\]"),
    ],
)
def test_text_and_lists_are_no_numbers(name, value, message):
    with pytest.raises(TypeError, match=message):
        Network(**{"heads": (4,), "widths": 50} | {name: value})


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        (((1,),), "heads must name those of each of the 2 layers, but has 1 entries"),
        (((1,), ()), r"layer 2 has heads 1 to 2, .* but heads names \[\]"),
        (((3,), (1,)), r"layer 1 has heads 1 to 2, .* but heads names \[3\]"),
        (((0,), (1,)), r"layer 1 has heads 1 to 2, .* but heads names \[0\]"),
    ],
)
def test_bad_sub_networks_are_named(subset, message):
    network = Network((2, 2), 10)
    for method in (network.keep_heads, network.paths_through):
        with pytest.raises(ValueError, match=message):
            method(subset)


def test_tolerances_and_actions_refer_to_finite_widths():
    network = Network((2, 2), (5, math.inf, 7))
    assert (network.width, network.smallest_width) == (7, 5)
    limit = Network((2, 2), math.inf)
    assert (limit.width, limit.smallest_width) == (1, 1)
