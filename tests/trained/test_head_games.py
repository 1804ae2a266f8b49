"""The heads of a path network as a game, against networks from which they are removed."""

import itertools

import numpy as np
import pytest

from pathkernel_trained import head_games
from pathkernel_trained.head_games import (
    AccuracyGame,
    best_accuracies,
    best_removals,
    greedy_removals,
    shapley_scores,
)
from pathkernel_trained.heads import every_head, random_orders
from pathkernel_trained.outputs import PathOutputs
from pathkernel_trained.removal_games import every_coalition

HEADS = (3, 2)
NAMES = every_head(HEADS)


@pytest.fixture(scope="module")
def outputs():
    generator = np.random.default_rng(0)
    labels = np.repeat([1.0, -1.0], 40)
    return PathOutputs(HEADS, generator.normal(size=(80, 6)) + 0.3 * labels[:, None], labels)


@pytest.fixture(scope="module")
def game(outputs):
    return AccuracyGame(outputs)


def accuracy(outputs, removed):
    return np.mean(outputs.output(removed) * outputs.labels > 0)


def test_worths_are_the_accuracies_of_the_networks_that_are_left(outputs, game):
    every = every_coalition(5)
    keeps = game.keeps_every_layer(every)
    for coalition, worth, kept in zip(every, game(every), keeps):
        assert kept == (coalition[:3].any() and coalition[3:].any())
        removed = [name for name, stays in zip(NAMES, coalition) if not stays]
        assert worth == pytest.approx(accuracy(outputs, removed) if kept else 0.5)


def test_many_heads_are_not_all_tried(outputs, game, monkeypatch):
    """Worths are then computed as they are asked for, and Shapley values are drawn."""
    exact, no_errors = shapley_scores(game)
    assert no_errors is None
    assert np.concatenate(exact).sum() == pytest.approx(accuracy(outputs, ()) - 0.5)
    greedy = greedy_removals(game)
    monkeypatch.setattr(head_games, "EXACT_PLAYERS", 4)
    other = AccuracyGame(outputs)
    monkeypatch.setattr(head_games, "_AT_ONCE", 80 * 7)  # in several parts
    np.testing.assert_array_equal(other(every_coalition(5)), game.table)
    assert greedy_removals(other) == greedy
    assert np.isnan(best_accuracies(other)).all()
    values, errors = shapley_scores(other, seed=1)
    pulls = (np.concatenate(values) - np.concatenate(exact)) / np.concatenate(errors)
    assert np.abs(pulls).max() < 4
    assert [len(layer) for layer in errors] == list(HEADS)


def test_heads_are_removed_jointly(outputs, game):
    greedy, best = greedy_removals(game), best_accuracies(game)
    singles = [accuracy(outputs, [name]) for name in NAMES]
    assert greedy[0] == ()
    assert greedy[1] == (NAMES[int(np.argmax(singles))],)
    assert [len(gone) for gone in greedy] == [0, 1, 2, 3]
    for before, after in itertools.pairwise(greedy):
        assert set(before) < set(after)
    np.testing.assert_allclose(best[:2], [accuracy(outputs, ()), max(singles)])
    found = best_removals(game, 7, seed=4)
    drawn = random_orders(HEADS, 7, 4)
    for count, gone in enumerate(found):
        reached = [accuracy(outputs, order.first(count)) for order in drawn]
        assert accuracy(outputs, gone) == pytest.approx(max(reached))
        assert accuracy(outputs, gone) <= best[count] + 1e-12
        assert accuracy(outputs, greedy[count]) <= best[count] + 1e-12
