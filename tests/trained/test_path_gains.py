"""Gains of the heads of networks along paths, against networks computed head by head."""

import itertools

import numpy as np
import pytest
from made_up_networks import by_hand, made_up
from test_evaluator import outputs_of

from pathkernel_core.paths.heads import every_head
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs
from pathkernel_trained.gains import (
    PathGains,
    path_curvature_scores,
    refitted_evaluator,
    refitted_gains,
    renewed_scores,
)


def output_with(weights, tokens, gains):
    """Output (P,) of the network with gains, without any rescaling."""
    heads = every_head([len(layer) for layer in weights["values"]])
    return by_hand(weights, tokens, factors=dict(zip(heads, gains)))


def test_the_form_of_one_layer_is_the_loss_of_every_set_of_heads(episodes):
    weights, (tokens, labels) = made_up((6,)), episodes
    network = PathGains(outputs_of(weights, episodes))
    form = network.form(np.ones(6))
    whole = np.mean((by_hand(weights, tokens) - labels) ** 2)
    assert form.loss == pytest.approx(whole, rel=1e-12)
    for present in itertools.product((0.0, 1.0), repeat=6):
        loss = np.mean((output_with(weights, tokens, present) - labels) ** 2)
        assert form.rise(np.array(present) == 0) == pytest.approx(loss - whole, rel=1e-10, abs=1e-9)
        assert network.loss(np.array(present)) == pytest.approx(loss, rel=1e-12)
        if sum(present) == 5:
            head = present.index(0)
            assert form.rises()[head] == pytest.approx(loss - whole, rel=1e-10)


@pytest.mark.parametrize("heads", [(2, 3), (3, 1, 2)])
def test_derivatives_are_finite_differences(heads, episodes):
    """Outputs are linear in each gain, and losses quadratic: central differences are exact."""
    weights, (tokens, labels) = made_up(heads), episodes
    gains = np.random.default_rng(1).normal(1, 0.5, sum(heads))
    gains[1] = 0.0
    form = PathGains(outputs_of(weights, episodes)).form(gains)
    slopes, gradient = [], []
    for step in 0.5 * np.eye(len(gains)):
        upper, lower = (output_with(weights, tokens, gains + sign * step) for sign in (1, -1))
        slopes.append(upper - lower)
        gradient.append(np.mean((upper - labels) ** 2 - (lower - labels) ** 2))
    slopes = np.array(slopes)
    np.testing.assert_allclose(form.gradient, gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(form.form, 2 * slopes @ slopes.T / len(labels), rtol=1e-9)
    error = np.mean((output_with(weights, tokens, gains) - labels) ** 2)
    assert form.loss == pytest.approx(error)
    assert form.temperature == pytest.approx(2 * error)
    assert (form.examples, form.gains.tolist()) == (len(labels), gains.tolist())


def test_refitted_gains_of_one_layer_are_a_ridge_regression_about_one():
    generator = np.random.default_rng(2)
    values = generator.normal(size=(80, 5))
    labels = values @ [0.9, 0.2, 0.5, 0.4, 0.1] + 0.3 * generator.normal(size=80)
    outputs = PathOutputs((5,), values, labels)
    present = np.array([True, True, False, True, True])
    inputs = values[:, present] / np.sqrt(5)
    gains = np.ones(4)
    for _ in range(2):
        temperature = 2 * np.mean((inputs @ gains - labels) ** 2)
        rows = np.concatenate([inputs / np.sqrt(temperature / 2), np.eye(4) / np.sqrt(0.3)])
        target = np.concatenate([labels / np.sqrt(temperature / 2), np.ones(4) / np.sqrt(0.3)])
        gains = np.linalg.lstsq(rows, target, rcond=None)[0]
    actual = refitted_gains(outputs, present)
    np.testing.assert_allclose(actual[present], gains, rtol=1e-10)
    assert actual[2] == 0


def test_accuracy_with_gains_refitted_on_validation_examples(episodes):
    weights, (tokens, labels) = made_up((2, 3)), episodes
    outputs = outputs_of(weights, episodes)
    test = outputs_of(weights, (tokens[::-1], -labels[::-1]))
    evaluator = PathEvaluator({"validation": outputs, "test": test})
    refitted = refitted_evaluator(evaluator, "validation")
    assert (refitted.heads, refitted.keeps_layers) == ((2, 3), True)
    assert refitted.quantities == evaluator.quantities
    present = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 1, 0]], dtype=bool)
    right = refitted.evaluate("test", present)
    assert right.shape == (3, 1, 12, 1)
    changed = 0
    for row, of_row in zip(present, right[:, 0, :, 0]):
        gains = refitted_gains(outputs, row)
        assert (gains != 0).tolist() == row.tolist()
        network = PathGains(outputs)
        assert network.loss(gains) < network.loss(row.astype(float))
        expected = output_with(weights, tokens[::-1], gains) * -labels[::-1] > 0
        assert of_row.tolist() == expected.tolist()
        changed += np.count_nonzero(of_row != test.correct(row[None])[0])
    assert changed, "gains decide no example, so that this test shows nothing"


def test_curvature_scores_are_rises_of_the_squared_error(episodes):
    weights, (tokens, labels) = made_up((2, 1, 3)), episodes
    scores = path_curvature_scores(outputs_of(weights, episodes))
    whole = np.mean((by_hand(weights, tokens) - labels) ** 2)
    for head, score in enumerate(scores):
        without = output_with(weights, tokens, np.arange(6) != head)
        assert score == pytest.approx(np.mean((without - labels) ** 2) - whole, rel=1e-9)


def test_renewed_scores_know_that_heads_replace_one_another():
    """Heads 1 and 2 carry the same signal in halves, head 3 another, head 4 noise."""
    first, second, noise = np.random.default_rng(4).normal(size=(3, 400))
    values = 2 * np.stack([0.6 * first, 0.6 * first, second, 0.1 * noise], axis=1)  # √n = 2
    outputs = PathOutputs((4,), values, 1.2 * first + second)
    assert np.argsort(path_curvature_scores(outputs))[-1] == 2, "one of the halves costs less"
    scores = renewed_scores(outputs)
    assert scores[[3, 2]].tolist() == [0, 2]
    assert sorted(scores[:2]) == [1, 3]


def test_the_only_head_of_a_layer_has_no_renewed_score(episodes):
    scores = renewed_scores(outputs_of(made_up((1, 3)), episodes))
    assert np.isnan(scores[0])
    assert sorted(scores[1:]) == [0, 1, 2]
    assert np.isnan(renewed_scores(outputs_of(made_up((1, 1)), episodes))).all()
