"""Path outputs against networks computed head by head, and by the two forms of the training."""

import numpy as np
import pytest
from made_up_networks import by_hand, made_up

from pathkernel_core import Examples
from pathkernel_core.paths.heads import every_head
from pathkernel_trained.checkpoint import Checkpoint
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs, path_outputs
from pathkernel_trained.path_network import along_paths, without_heads

CASES = [
    ((4,), ((1, 2), (1, 4))),
    ((1,), ()),
    ((3, 3), ((1, 1), (2, 3))),
    ((2, 3), ((2, 1), (2, 2), (1, 1))),
    ((2, 1, 3), ((3, 2), (1, 2))),
    ((3, 3, 3), ((1, 1), (3, 2), (3, 1))),
]


def outputs_of(weights, episodes):
    tokens, labels = episodes
    parts = [Examples(tokens[part], labels[part]) for part in (slice(0, 5), slice(5, None))]
    return path_outputs(along_paths(Checkpoint(weights)), parts)


@pytest.mark.parametrize(("heads", "removed"), CASES)
def test_sums_of_path_outputs_are_the_network_and_its_prunings(heads, removed, episodes):
    weights = made_up(heads)
    outputs = outputs_of(weights, episodes)
    assert outputs.heads == heads
    for heads_off in ((), removed):
        expected = by_hand(weights, episodes[0], heads_off)
        np.testing.assert_allclose(outputs.output(heads_off), expected, rtol=1e-11, atol=1e-11)
        present = np.array([[head not in heads_off for head in every_head(heads)]])
        evaluate = PathEvaluator({"made up": outputs}).evaluate
        right = evaluate("made up", np.repeat(present, 2, axis=0))
        assert right.shape == (2, 1, 12, 1)
        assert np.array_equal(right[0, 0, :, 0], expected * episodes[1] > 0)


@pytest.mark.parametrize(("heads", "removed"), CASES)
@pytest.mark.parametrize("form", ["layers", "paths"])
def test_the_trainings_forms_of_the_pruned_network_agree(heads, removed, form, episodes):
    reason = "training needs the extra: pip install pathkernel[training]"
    jax = pytest.importorskip("jax", reason=reason)
    from pathkernel_one_shot import layer_form, path_form

    weights, (tokens, _) = made_up(heads), episodes
    pruned = without_heads(Checkpoint(weights, np.ones((3, 5)), {}), removed).weights
    if form == "layers":
        actual = jax.jit(layer_form.output_by_layers)(pruned, tokens)
    else:
        space = path_form.TokenSpace(np.eye(5), np.zeros((4, 5)))
        actual = jax.jit(path_form.output_along_paths)(pruned, space, tokens)
        along = jax.eval_shape(path_form.products_along_paths, pruned)
        assert along.shape == (np.prod(pruned_heads(heads, removed)), 5)
    expected = outputs_of(weights, episodes).output(removed)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)


def pruned_heads(heads, removed):
    return [count - [la for la, _ in removed].count(la) for la, count in enumerate(heads, 1)]


def test_paths_through_heads():
    outputs = PathOutputs((2, 3), np.ones((1, 6)), np.ones(1))
    assert outputs.through.sum(axis=0).tolist() == [3, 3, 2, 2, 2]
    assert outputs.through.sum(axis=1).tolist() == [2] * 6
    column = every_head((2, 3)).index((2, 3))
    assert np.flatnonzero(outputs.through[:, column]).tolist() == [2, 5]


def test_an_output_of_zero_is_half_right():
    """Also that of a layer without heads."""
    outputs = PathOutputs((2,), np.array([[1.0, -1.0], [2.0, -1.0]]), np.ones(2))
    present = np.array([[1, 1], [0, 1], [1, 0], [0, 0]], dtype=bool)
    assert outputs.correct(present).tolist() == [[0.5, 1], [0, 0], [1, 1], [0.5, 0.5]]


def test_a_layer_keeps_a_head():
    outputs = PathOutputs((2,), np.ones((1, 2)), np.ones(1))
    with pytest.raises(ValueError, match="every head of layer 1"):
        outputs.output([(1, 1), (1, 2)])
