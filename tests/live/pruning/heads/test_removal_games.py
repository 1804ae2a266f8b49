"""Games of players that are removed: axioms, and sums over all orders of arrival."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from pathkernel_pruning.heads.removal_games import (
    best_of,
    every_coalition,
    exact_shapley,
    greedy_order,
    left_after,
    sampled_shapley,
)

SEEDS = st.integers(0, 2**32 - 1)


def made_up_game(players, seed):
    """Worths of all coalitions, and a function that looks them up."""
    worths = np.random.default_rng(seed).normal(size=2**players)
    digits = 2 ** np.arange(players)[::-1]
    return worths, lambda coalitions: worths[coalitions @ digits]


@given(st.integers(1, 4), SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_value_is_the_mean_over_all_orders_of_arrival(players, seed):
    worths, worth = made_up_game(players, seed)
    added = []
    for order in itertools.permutations(range(players)):
        present, gain = np.zeros(players, dtype=bool), np.empty(players)
        for player in order:
            before = worth(present[None])[0]
            present[player] = True
            gain[player] = worth(present[None])[0] - before
        added.append(gain)
    expected = np.mean(added, axis=0)
    np.testing.assert_allclose(exact_shapley(worth, players), expected, atol=1e-12)
    np.testing.assert_allclose(exact_shapley(worths, players), expected, atol=1e-12)


@given(st.integers(2, 7), SEEDS)
@settings(max_examples=30, deadline=None)
def test_axioms(players, seed):
    (first, worth), (two, _) = made_up_game(players, seed), made_up_game(players, seed + 1)
    values = exact_shapley(first, players)
    assert values.sum() == pytest.approx(first[-1] - first[0]), "efficiency"
    sums = exact_shapley(2 * first - 3 * two, players)
    np.testing.assert_allclose(sums, 2 * values - 3 * exact_shapley(two, players), atol=1e-12)

    swapped = [1, 0, *range(2, players)]

    def symmetric(coalitions):
        return worth(coalitions) + worth(coalitions[:, swapped])

    first, second = exact_shapley(symmetric, players)[:2]
    assert first == pytest.approx(second), "symmetry"

    def with_dummy(coalitions):  # the first player adds 0.7, whoever else is there
        remaining = coalitions.copy()
        remaining[:, 0] = False
        return worth(remaining) + 0.7 * coalitions[:, 0]

    assert exact_shapley(with_dummy, players)[0] == pytest.approx(0.7), "dummy"


def test_sixteen_players_by_the_size_of_their_coalition():
    """A worth that knows only how much weight is there, squared: φ_h = w_h (Σ w) exactly."""
    weights = np.random.default_rng(0).normal(size=16)
    values = exact_shapley(lambda coalitions: (coalitions @ weights) ** 2, 16)
    np.testing.assert_allclose(values, weights * weights.sum(), atol=1e-10)


def test_sampled_values_are_the_exact_ones_within_their_errors():
    worths, worth = made_up_game(6, 1)
    exact, deviations, calls = exact_shapley(worths, 6), [], []

    def counted(coalitions):
        calls.append(len(coalitions))
        return worth(coalitions)

    for seed in range(60):
        values, errors = sampled_shapley(counted, 6, 40, np.random.default_rng(seed))
        assert values.sum() == pytest.approx(worths[-1] - worths[0]), "efficiency, without error"
        deviations.append((values - exact) / errors)
    assert np.mean(np.square(deviations)) == pytest.approx(1, abs=0.25)
    assert abs(np.mean(deviations)) < 0.2
    assert max(calls) <= 2**6, "no coalition twice"


@pytest.mark.parametrize("permutations", [8, 20])
def test_intervals_of_few_orders_are_those_of_students_t(permutations):
    worths, worth = made_up_game(10, 1)
    exact, inside = exact_shapley(worths, 10), []
    reach = student.ppf(0.975, permutations // 2 - 1)
    for seed in range(300):
        values, errors = sampled_shapley(worth, 10, permutations, np.random.default_rng(seed))
        inside.append(abs(values - exact) < reach * errors)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)


def test_orders_forwards_and_backwards_leave_no_error_in_pairs():
    """Worths of pairs of players: an order and its reverse have the exact value as their mean."""
    pairs = np.random.default_rng(2).normal(size=(7, 7))

    def worth(coalitions):
        return np.einsum("ki,ij,kj->k", coalitions.astype(float), pairs, coalitions.astype(float))

    values, errors = sampled_shapley(worth, 7, 4, np.random.default_rng(0))
    np.testing.assert_allclose(values, exact_shapley(worth, 7), atol=1e-12)
    np.testing.assert_allclose(errors, 0, atol=1e-12)


@given(st.integers(1, 6), SEEDS, st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_each_greedy_step_is_the_best_that_there_is(players, seed, largest):
    _, worth = made_up_game(players, seed)
    last = players - 1  # must not be alone: a rule for whole coalitions

    def allowed(coalitions):
        return ~(coalitions[:, last] & (coalitions.sum(axis=1) == 1))

    order, left = greedy_order(worth, players, allowed, largest), set(range(players))
    for player in order:
        worths = {}
        for candidate in left:
            present = np.isin(range(players), list(left - {candidate}))[None]
            if allowed(present)[0]:
                worths[candidate] = worth(present)[0]
        assert player == max(worths, key=worths.get)
        left.remove(player)
    assert len(order) <= largest
    if len(order) < min(largest, players):
        assert left == {last}, "no other coalition may not be left"
    assert greedy_order(lambda sets: np.zeros(len(sets)), players) == tuple(range(players))


def test_the_best_of_every_size():
    worths, worth = made_up_game(4, 3)
    every = every_coalition(4)
    sizes = every.sum(axis=1)
    actual = best_of(worth, every)
    assert actual.sum(axis=1).tolist() == [4, 3, 2, 1, 0]
    np.testing.assert_allclose(
        worth(actual), [worths[sizes == size].max() for size in range(4, -1, -1)]
    )
    drawn = left_after([(3, 0), (1, 2)], 4)
    assert drawn.astype(int).tolist() == [
        [[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 0]],
        [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1]],
    ]
    best = best_of(worth, drawn.reshape(-1, 4))
    np.testing.assert_allclose(worth(best), worth(drawn.reshape(-1, 4)).reshape(2, 3).max(axis=0))


def test_wrong_games():
    with pytest.raises(ValueError, match=r"between 1 and 16 .* but is 17; .* sampled_shapley"):
        exact_shapley(np.zeros(2**17), 17)
    with pytest.raises(ValueError, match=r"each of 8 coalitions, but has shape \(4,\)"):
        exact_shapley(np.zeros(4), 3)
    with pytest.raises(ValueError, match=r"shape \(8,\) and 8 that are not finite"):
        exact_shapley(lambda coalitions: np.full(len(coalitions), np.nan), 3)
    for permutations in (2, 5):
        with pytest.raises(ValueError, match=f"even and at least 4, but are 3 and {permutations}"):
            sampled_shapley(np.sum, 3, permutations, np.random.default_rng(0))
