"""Rank correlations against SciPy, and their intervals against plain resampling."""

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from pathkernel_trained.correlation import (
    interval,
    rank_correlations,
    resampled_episodes,
    resampled_heads,
)


@pytest.mark.parametrize("ties", [False, True])
def test_coefficients_are_scipys(ties):
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 20, 8))
    if ties:
        one, other = one.round(), other.round()
    spearman, kendall = rank_correlations(one, other)
    for a, b, rho, tau in zip(one, other, spearman, kendall):
        assert rho == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
        assert tau == pytest.approx(kendalltau(a, b).statistic, abs=1e-12)


def test_shapes_and_constants():
    scores = np.arange(6.0).reshape(2, 3)
    found = rank_correlations(scores[:, None], scores[None])
    np.testing.assert_allclose(found, np.ones((2, 2, 2)))
    assert np.isnan(rank_correlations(np.ones(3), np.arange(3.0))).all()
    assert np.isnan(rank_correlations(np.arange(1.0), np.arange(1.0))).all(), (
        "one head has no order"
    )


def test_episode_intervals_are_those_of_plain_resampling():
    generator = np.random.default_rng(1)
    score = generator.random((2, 12))
    lost = (generator.random((400, 12)) < 0.1 + 0.02 * np.arange(12)).astype(float)
    lost -= generator.random((400, 12)) < 0.05
    found = interval(resampled_episodes(score, lost, 4000, generator))
    assert found.shape == (2, 2, 2)
    rows = generator.integers(400, size=(4000, 400))
    means = lost[rows].sum(axis=1)
    for place, values in enumerate(score):
        plain = rank_correlations(values, means)
        expected = np.quantile(plain, [0.025, 0.975], axis=1).T
        np.testing.assert_allclose(found[:, place], expected, atol=0.05)
        assert (expected[:, 1] - expected[:, 0] > 0.2).all()


def test_episode_intervals_shrink_to_the_value():
    """With losses far apart every resample has the same order."""
    lost = np.zeros((1000, 3))
    lost[:300, 1] = lost[:700, 2] = 1
    score, generator = np.array([1.0, 3.0, 2.0]), np.random.default_rng(0)
    found = interval(resampled_episodes(score, lost, 200, generator))
    np.testing.assert_allclose(found, [[0.5, 0.5], [1 / 3, 1 / 3]])


def test_head_intervals():
    generator = np.random.default_rng(2)
    loss = np.arange(8.0)
    score = np.stack([loss, -loss, generator.random(8)])
    found = interval(resampled_heads(score, loss, 2000, generator))
    np.testing.assert_allclose(found[:, 0], 1)  # whichever heads are drawn
    np.testing.assert_allclose(found[:, 1], -1)
    assert (found[:, 2, 1] - found[:, 2, 0] > 0.5).all(), "8 heads say little"
    assert np.isnan(interval(resampled_heads(loss[:1], loss[:1], 50, generator))).all()


@pytest.mark.parametrize("drawn", ["episodes", "heads"])
def test_all_scores_see_the_same_resamples(drawn):
    """Two equal scores differ in no resample, and a score's correlation is minus its negative's."""
    generator = np.random.default_rng(4)
    lost = (generator.random((300, 8)) < 0.1 + 0.02 * np.arange(8)).astype(float)
    score = generator.random(8)
    scores = np.stack([score, score, -score])
    if drawn == "episodes":
        found = resampled_episodes(scores, lost, 500, generator)
    else:
        found = resampled_heads(scores, lost.mean(axis=0), 500, generator)
    assert found.shape == (2, 3, 500)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    np.testing.assert_allclose(found[:, 0], -found[:, 2], atol=1e-12)
    assert (found[:, 0].std(axis=-1) > 0.05).all()


def test_an_interval_leaves_out_what_is_not_known():
    values = np.full((2, 41), np.nan)
    values[0] = np.arange(41.0)
    np.testing.assert_allclose(interval(values), [[1, 39], [np.nan, np.nan]])
    values[0, ::2] = np.nan  # 1, 3, … 39 are left
    np.testing.assert_allclose(
        interval(values)[0], np.quantile(np.arange(1, 40, 2), [0.025, 0.975])
    )
