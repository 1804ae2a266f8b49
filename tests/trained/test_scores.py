"""Scores of a trained network's heads against their definitions."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_networks import WIDTHS, by_hand, made_up
from test_evaluator import outputs_of

from pathkernel_core import Network, head_scores
from pathkernel_core.paths.heads import every_head
from pathkernel_trained.checkpoint import Checkpoint
from pathkernel_trained.evaluator import PathOutputs
from pathkernel_trained.network import join_layers
from pathkernel_trained.path_network import along_paths
from pathkernel_trained.scores import SCORES, path_gradient_scores, trained_scores

SHAPES = [(3,), (2, 3), (2, 2, 2), (1, 3), (3, 2, 1)]


@pytest.mark.parametrize("heads", SHAPES)
def test_gradient_importance_is_the_derivative_in_the_heads_factors(heads, episodes):
    """By the central difference of a loss that is a square of something linear: exact."""
    weights, (tokens, labels) = made_up(heads), episodes
    actual = path_gradient_scores(outputs_of(weights, episodes), normalised=False)
    for head in every_head(heads):
        losses = []
        for factor in (0.5, 1.5):
            factors = dict.fromkeys(every_head(heads), 1.0) | {head: factor}
            losses.append((by_hand(weights, tokens, factors=factors) - labels) ** 2)
        expected = np.mean(abs(losses[1] - losses[0]))
        assert actual[every_head(heads).index(head)] == pytest.approx(expected, rel=1e-10)


def test_gradient_importance_as_published_is_normalised_in_every_layer(episodes):
    outputs = outputs_of(made_up((3, 2, 1)), episodes)
    raw, published = path_gradient_scores(outputs, normalised=False), path_gradient_scores(outputs)
    for first, second in zip(np.split(raw, [3, 5]), np.split(published, [3, 5])):
        np.testing.assert_allclose(second, first / np.sqrt(np.sum(first**2)))
        assert np.sum(second**2) == pytest.approx(1)
    silent = PathOutputs((2, 1), np.zeros((4, 2)), np.ones(4))
    assert path_gradient_scores(silent).tolist() == [0, 0, 0]


def test_magnitude_and_trained_scores():
    weights = made_up((2, 3))
    network = along_paths(Checkpoint(weights))
    for layer, actual in zip(weights["values"], network.value_norms):
        np.testing.assert_allclose(actual, [np.linalg.norm(value) for value in layer])
    # the empirical order parameter, path by path
    along = np.array(
        [
            weights["readout"] @ second @ first
            for first in weights["values"][0]
            for second in weights["values"][1]
        ]
    )
    expected = head_scores(Network((2, 3), 1), along @ along.T)
    np.testing.assert_allclose(trained_scores(network), expected, rtol=1e-12)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_scores_follow_their_heads_when_heads_are_renamed(heads, seed):
    """Scores of the weights and of what the network does on episodes."""
    generator = np.random.default_rng(seed)
    weights = made_up(heads, seed)
    tokens, labels = generator.normal(size=(12, 4, WIDTHS[2])), np.repeat([1.0, -1.0], 6)
    new = [generator.permutation(count) for count in heads]
    renamed = dict(weights)
    for name in ("values", "queries", "keys"):
        renamed[name] = join_layers([layer[names] for layer, names in zip(weights[name], new)])
    outputs, renamed_outputs = (
        outputs_of(network, (tokens, labels)) for network in (weights, renamed)
    )
    networks = [along_paths(Checkpoint(network)) for network in (weights, renamed)]
    pairs = [[trained_scores(network) for network in networks]]
    pairs += [[np.concatenate(network.value_norms) for network in networks]]
    pairs += [[path_gradient_scores(network) for network in (outputs, renamed_outputs)]]
    starts = np.cumsum([0, *heads])
    positions = np.concatenate([start + names for start, names in zip(starts, new)])
    for before, after in pairs:
        np.testing.assert_allclose(after, before[positions], rtol=1e-9)


def test_the_documentation_lists_the_table():
    text = (Path(__file__).parents[2] / "docs" / "pruning.md").read_text(encoding="utf-8")
    for score in SCORES:
        (row,) = re.findall(rf"^\| `{score.name}(?: [^`]*)?` \| (.*) \| (.*) \|$", text, re.M)
        assert row == (score.needs, score.meaning.replace("|", r"\|"))
