"""Scores of a trained network's heads against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_networks import WIDTHS, by_hand, made_up
from test_outputs import outputs_of

from pathkernel_core import Network, head_scores
from pathkernel_trained.checkpoint import Checkpoint
from pathkernel_trained.heads import every_head
from pathkernel_trained.network import join_layers
from pathkernel_trained.outputs import PathOutputs
from pathkernel_trained.path_network import along_paths
from pathkernel_trained.scores import (
    ablation_scores,
    gradient_scores,
    lost_without,
    per_layer,
    trained_scores,
)

SHAPES = [(3,), (2, 3), (2, 2, 2), (1, 3), (3, 2, 1)]


@pytest.mark.parametrize("heads", SHAPES)
def test_gradient_importance_is_the_derivative_in_the_heads_factors(heads, episodes):
    """By the central difference of a loss that is a square of something linear: exact."""
    weights, (tokens, labels) = made_up(heads), episodes
    found = gradient_scores(outputs_of(weights, episodes), normalised=False)
    for head in every_head(heads):
        losses = []
        for factor in (0.5, 1.5):
            factors = dict.fromkeys(every_head(heads), 1.0) | {head: factor}
            losses.append((by_hand(weights, tokens, factors=factors) - labels) ** 2)
        expected = np.mean(abs(losses[1] - losses[0]))
        assert found[head[0] - 1][head[1] - 1] == pytest.approx(expected, rel=1e-10)


def test_gradient_importance_against_automatic_differentiation(episodes):
    jax = pytest.importorskip("jax")
    from pathkernel_one_shot.layer_form import network_output

    heads, (tokens, labels) = (3, 2), episodes
    weights = made_up(heads)

    def loss(factors, x, label):
        masked = dict(weights)
        masked["values"] = tuple(
            values * factor[:, None, None] for values, factor in zip(weights["values"], factors)
        )
        return (network_output(masked, x[None])[0] - label) ** 2

    ones = [np.ones(count) for count in heads]
    slopes = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(ones, tokens, labels)
    outputs = outputs_of(weights, episodes)
    for found, slope in zip(gradient_scores(outputs, normalised=False), slopes):
        np.testing.assert_allclose(found, np.abs(slope).mean(axis=0), rtol=1e-10)


def test_gradient_importance_as_published_is_normalised_in_every_layer(episodes):
    outputs = outputs_of(made_up((3, 2, 1)), episodes)
    raw, published = gradient_scores(outputs, normalised=False), gradient_scores(outputs)
    for one, other in zip(raw, published):
        np.testing.assert_allclose(other, one / np.sqrt(np.sum(one**2)))
        assert np.sum(other**2) == pytest.approx(1)
    silent = PathOutputs((2, 1), np.zeros((4, 2)), np.ones(4))
    assert np.concatenate(gradient_scores(silent)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("heads", SHAPES)
def test_ablation_is_the_loss_of_a_network_without_the_head(heads, episodes):
    weights, (tokens, labels) = made_up(heads, seed=5), episodes
    whole = by_hand(weights, tokens) * labels > 0
    outputs = outputs_of(weights, episodes)
    found, lost = ablation_scores(outputs), lost_without(outputs)
    for place, (layer, head) in enumerate(every_head(heads)):
        if heads[layer - 1] == 1:  # it cannot be removed alone
            assert np.isnan(lost[:, place]).all()
            assert np.isnan(found[layer - 1][head - 1])
            continue
        right = by_hand(weights, tokens, [(layer, head)]) * labels > 0
        np.testing.assert_array_equal(lost[:, place], whole.astype(float) - right)
        assert found[layer - 1][head - 1] == pytest.approx(whole.mean() - right.mean())


def test_magnitude_and_trained_scores():
    weights = made_up((2, 3))
    network = along_paths(Checkpoint(weights))
    for layer, found in zip(weights["values"], network.value_norms):
        np.testing.assert_allclose(found, [np.linalg.norm(value) for value in layer])
    # the empirical order parameter, path by path
    along = np.array(
        [
            weights["readout"] @ second @ first
            for first in weights["values"][0]
            for second in weights["values"][1]
        ]
    )
    expected = head_scores(Network((2, 3), 1), along @ along.T)
    for found, layer in zip(trained_scores(network), expected):
        np.testing.assert_allclose(found, layer, rtol=1e-12)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_scores_follow_their_heads_when_heads_are_renamed(heads, seed):
    """Scores of the weights and of what the network does on episodes."""
    generator = np.random.default_rng(seed)
    weights = made_up(heads, seed)
    tokens, labels = generator.normal(size=(12, 4, WIDTHS[2])), np.repeat([1.0, -1.0], 6)
    new = [generator.permutation(count) for count in heads]
    moved = dict(weights)
    for name in ("values", "queries", "keys"):
        moved[name] = join_layers([layer[names] for layer, names in zip(weights[name], new)])
    outputs, others = (outputs_of(held, (tokens, labels)) for held in (weights, moved))
    networks = [along_paths(Checkpoint(held)) for held in (weights, moved)]
    pairs = [[trained_scores(held) for held in networks], [held.value_norms for held in networks]]
    pairs += [(score(outputs), score(others)) for score in (gradient_scores, ablation_scores)]
    for before, after in pairs:
        for one, other, names in zip(before, after, new):
            np.testing.assert_allclose(other, one[names], rtol=1e-9)


def test_per_layer():
    first, second = per_layer(np.arange(5), (2, 3))
    assert first.tolist() == [0, 1]
    assert second.tolist() == [2, 3, 4]
