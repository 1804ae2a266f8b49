"""A network along its paths: written, read, and the same as its weights."""

import numpy as np
import pytest
from made_up_networks import WIDTHS, by_hand, made_up
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pathkernel_core.paths.heads import every_head
from pathkernel_tasks.heads_file import read_heads
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from pathkernel_trained.network import NetworkShape, initial_weights
from pathkernel_trained.path_network import (
    along_paths,
    empirical_order_parameter,
    read_paths,
    save_paths,
    without_heads,
)

ABOUT = {"step": 7}


def assert_same(first, second, **tolerance):
    assert first.shape == second.shape
    pairs = [
        (first.path_weights, second.path_weights),
        (first.order_parameter, second.order_parameter),
        *zip(first.value_norms, second.value_norms),
    ]
    for left, right in zip(first.layers, second.layers):
        assert left.scale == right.scale
        pairs += [(left.queries, right.queries), (left.keys, right.keys)]
    for left, right in pairs:
        assert left.dtype == right.dtype == np.float64
        np.testing.assert_allclose(left, right, **{"rtol": 0} | tolerance)


@pytest.fixture
def trained():
    """A checkpoint in single precision, as training writes it."""
    weights = initial_weights(NetworkShape(2, 3, 6, 4), 5, 0)
    return Checkpoint(weights, np.random.default_rng(1).normal(size=(3, 5)), ABOUT, scale=0.3)


@pytest.fixture
def path(tmp_path, trained):
    save_paths(tmp_path / "paths.safetensors", along_paths(trained))
    return tmp_path / "paths.safetensors"


def test_paths_are_products_of_the_weights():
    weights = made_up((2, 3))
    network = along_paths(Checkpoint(weights))
    expected = [
        weights["readout"] @ second @ first @ weights["projection"]
        for first in weights["values"][0]
        for second in weights["values"][1]
    ]
    np.testing.assert_allclose(network.path_weights, expected, rtol=1e-12)
    np.testing.assert_array_equal(network.order_parameter, empirical_order_parameter(weights))
    assert network.shape == NetworkShape(2, (2, 3), *WIDTHS[:2])


def test_it_is_written_and_read_to_the_last_bit(tmp_path, trained, path):
    actual = read_paths(path)
    assert_same(actual, along_paths(trained))
    np.testing.assert_array_equal(actual.label_vectors, trained.label_vectors)
    assert actual.about == ABOUT
    with safe_open(path, framework="np") as file:
        assert file.get_slice("queries.1").get_dtype() == "F32", "as it was trained"
    # whatever is not exact in single precision
    save_paths(path, along_paths(Checkpoint(made_up((3, 2)))))
    assert_same(read_paths(path), along_paths(Checkpoint(made_up((3, 2)))))
    # and from a file of all weights
    save_checkpoint(tmp_path / "network.safetensors", trained)
    assert_same(read_paths(tmp_path / "network.safetensors"), along_paths(trained))


def test_it_is_a_file_of_heads_but_no_checkpoint(path, trained):
    heads = read_heads(path, 5)
    for layer, expected in zip(heads.layers, along_paths(trained).layers):
        np.testing.assert_array_equal(layer.queries, expected.queries)
        assert layer.scale == 0.3
    np.testing.assert_array_equal(heads.label_vectors, trained.label_vectors)
    with pytest.raises(ValueError, match=r"along its paths, without its weights\. Train it again"):
        read_checkpoint(path)


@pytest.mark.parametrize("removed", [[(1, 2)], [(1, 1), (2, 3)], [(2, 1), (2, 2), (1, 3)]])
def test_heads_are_removed_as_from_the_weights(tmp_path, trained, removed):
    actual, expected = (
        without_heads(along_paths(trained), removed),
        without_heads(trained, removed),
    )
    assert_same(actual, along_paths(expected), rtol=1e-13)
    assert actual.about == expected.about
    save_paths(tmp_path / "pruned.safetensors", actual)
    assert_same(read_paths(tmp_path / "pruned.safetensors"), actual)


@pytest.mark.parametrize("removed", [[], [(1, 2)], [(2, 1), (2, 2), (1, 3)]])
def test_gains_are_multiplied_into_the_network(tmp_path, removed, episodes):
    """The output is that of the whole network with gains, without any rescaling."""
    weights, (tokens, _) = made_up((3, 3)), episodes
    gains = np.array([1.3, 0.8, -0.4, 1.0, 0.6, 2.0])
    pruned = without_heads(Checkpoint(weights, None, ABOUT), removed, gains=gains)
    left = [head not in removed for head in every_head((3, 3))]
    factors = dict(zip(every_head((3, 3)), gains * left))
    expected = by_hand(weights, tokens, factors=factors)
    np.testing.assert_allclose(by_hand(pruned.weights, tokens), expected, rtol=1e-11)
    assert pruned.about["whole_network"] == ABOUT
    assert np.concatenate(pruned.about["gains"]).tolist() == gains[left].tolist()
    along = without_heads(along_paths(Checkpoint(weights, None, ABOUT)), removed, gains=gains)
    assert_same(along, along_paths(pruned), rtol=1e-12)
    assert along.about == pruned.about
    save_paths(tmp_path / "pruned.safetensors", along)
    assert_same(read_paths(tmp_path / "pruned.safetensors"), along)


def test_gains_leave_the_precision_of_the_weights(trained):
    pruned = without_heads(trained, [(1, 1)], gains=np.full(6, 1.1))
    assert {layer.dtype for layer in pruned.weights["values"]} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("gains", "message"),
    [
        (np.ones(5), r"each of the network's 6 heads, shape \(6,\), but has shape \(5,\)$"),
        (np.full(6, np.nan), r"has shape \(6,\) and some that are not finite"),
    ],
)
def test_gains_that_do_not_fit(trained, gains, message):
    with pytest.raises(ValueError, match=message):
        without_heads(trained, [(1, 1)], gains=gains)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "path_weights",
            np.ones((9, 4)),
            r"'path_weights' must have shape \(9, 5\), but has \(9, 4\)",
        ),
        ("order_parameter", np.ones((3, 3)), r"'order_parameter' must have shape \(9, 9\)"),
        ("order_parameter", np.full((9, 9), np.nan), "'order_parameter' holds NaN"),
        ("value_norms.2", np.ones(2), r"'value_norms\.2' must have shape"),
        ("value_norms.1", None, r"lacks 'value_norms\.1'"),
        ("width", np.array([6.0, 6.0]), "'width' must have shape"),
        ("width", np.array(0), "'width' must be at least 1"),
    ],
)
def test_damaged_files(path, name, array, message):
    arrays = load_file(path)
    with safe_open(path, framework="np") as file:
        header = file.metadata()
    del header["sha256"], arrays[name]  # as a file of another program
    save_file(arrays | ({} if array is None else {name: array}), path, metadata=header)
    with pytest.raises(ValueError, match=message) as raised:
        read_paths(path)
    assert "paths.safetensors'" in str(raised.value)
