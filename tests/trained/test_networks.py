"""Pruned checkpoints: what is left of a network, its file, and what is saved."""

import numpy as np
import pytest
from made_up_networks import WIDTHS, made_up

from pathkernel_core import Network
from pathkernel_core.paths.heads import kept_heads
from pathkernel_tasks.heads_file import read_heads
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from pathkernel_trained.network import Cost, NetworkShape, initial_weights, network_cost, shape_of
from pathkernel_trained.path_network import along_paths, empirical_order_parameter, without_heads
from pathkernel_trained.scores import trained_scores

ABOUT = {"step": 7, "validation_accuracy": 0.75}


@pytest.fixture
def network():
    return Checkpoint(made_up((3, 3)), np.ones((3, WIDTHS[2])), ABOUT)


@pytest.mark.parametrize("removed", [[(1, 2)], [(1, 1), (2, 3)], [(2, 1), (2, 2), (1, 3)]])
def test_a_pruned_network_is_written_and_read(tmp_path, network, removed):
    pruned = without_heads(network, removed)
    path = tmp_path / "pruned.safetensors"
    save_checkpoint(path, pruned)
    restored = read_checkpoint(path)
    remaining = kept_heads((3, 3), removed)
    assert restored.shape.heads_per_layer == tuple(len(layer) for layer in remaining)
    assert restored.shape == pruned.shape == shape_of(pruned.weights)
    for name in ("values", "queries", "keys"):
        for layer, (left, heads) in enumerate(zip(restored.weights[name], remaining)):
            expected = network.weights[name][layer][np.array(heads) - 1]
            np.testing.assert_array_equal(left, expected)
    for name in ("projection", "readout"):
        np.testing.assert_array_equal(restored.weights[name], network.weights[name])
    assert restored.about["removed_heads"] == [list(head) for head in removed]
    assert restored.about["heads_of_whole_network"] == [3, 3]
    assert restored.about["whole_network"] == ABOUT
    assert "validation_accuracy" not in restored.about, "it is that of the whole network"
    # a file of heads, too
    layers = read_heads(path, WIDTHS[2]).layers
    assert tuple(layer.n_heads for layer in layers) == restored.shape.heads_per_layer
    # which the theory's network without those heads takes
    theory = Network((3, 3), 10).keep_heads(remaining)
    assert theory.heads == restored.shape.heads_per_layer
    # its order parameter is that part of the whole one
    paths = Network((3, 3), 10).paths_through(remaining)
    np.testing.assert_allclose(
        empirical_order_parameter(restored.weights),
        empirical_order_parameter(network.weights)[np.ix_(paths, paths)],
        rtol=1e-12,
    )
    assert len(trained_scores(along_paths(restored))) == sum(map(len, remaining))


def test_what_cannot_be_pruned(network):
    with pytest.raises(ValueError, match="every head of layer 2, and the output would be 0"):
        without_heads(network, [(2, 1), (2, 2), (2, 3)])
    with pytest.raises(ValueError, match="layer 1 has heads 1 to 3"):
        without_heads(network, [(1, 4)])


def test_a_pruned_network_can_be_pruned_again(network):
    once = without_heads(network, [(1, 2)])  # what was head 3 is now head 2
    twice = without_heads(once, [(1, 2), (2, 1)])
    direct = without_heads(network, [(1, 2), (1, 3), (2, 1)])
    for name in direct.weights:
        for first, second in zip(twice.weights[name], direct.weights[name]):
            np.testing.assert_array_equal(first, second)


def test_sizes_of_unequal_layers():
    shape = NetworkShape(2, (3, 1), 6, 4)
    assert shape.heads_per_layer == (3, 1)
    assert NetworkShape(2, (3, 3), 6, 4) == NetworkShape(2, 3, 6, 4)
    assert shape.weight_shapes(5)["queries"] == ((3, 4, 5), (1, 4, 5))
    with pytest.raises(ValueError, match="one for each of the 3 layers"):
        NetworkShape(3, (3, 1), 6, 4)
    with pytest.raises(ValueError, match="heads must be a whole number of at least 1, but is 0"):
        NetworkShape(2, (3, 0), 6, 4)
    with pytest.raises(ValueError, match="equally many heads in all layers"):
        initial_weights(shape, 5, 0)


@pytest.mark.parametrize("heads", [(1,), (3,), (3, 2), (2, 1, 3)])
def test_parameters_and_operations_are_those_counted(heads):
    """Numbers in the arrays, and products in the compiler's own description of the network."""
    weights = made_up(heads)
    cost = network_cost(shape_of(weights), WIDTHS[2], 4)
    arrays = [array for layers in weights.values() for array in layers]
    assert cost.parameters == sum(array.size for array in arrays)
    jax = pytest.importorskip("jax")
    from pathkernel_one_shot.layer_form import output_by_layers

    program = jax.make_jaxpr(output_by_layers)(weights, np.ones((1, 4, WIDTHS[2])))
    products = [step for step in program.jaxpr.eqns if step.primitive.name == "dot_general"]
    assert len(products) >= 2 + 5 * len(heads)
    counted = 0
    for step in products:
        (contracted, _), _ = step.params["dimension_numbers"]
        summed = np.prod([step.invars[0].aval.shape[axis] for axis in contracted])
        counted += 2 * int(np.prod(step.outvars[0].aval.shape) * summed)
    assert cost.flops == counted


def test_cost_of_the_papers_network():
    """4 + 4 heads of width 512 and query-key width 128 on 48 tokens of width 192."""
    cost = network_cost(NetworkShape(2, 4, 512, 128), 192, 48)
    assert cost.parameters == 512 * 192 + 512 + 8 * (512 * 512 + 2 * 128 * 192)
    assert isinstance(cost, Cost)
    smaller = network_cost(NetworkShape(2, (4, 3), 512, 128), 192, 48)
    assert cost.parameters - smaller.parameters == 512 * 512 + 2 * 128 * 192
