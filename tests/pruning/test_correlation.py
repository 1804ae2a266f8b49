"""Rank correlations against SciPy, and their intervals against plain resampling."""

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from pathkernel_pruning.correlation import episode_intervals, head_intervals, rank_correlations


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
    found = episode_intervals(score, lost, 4000, generator)
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
    found = episode_intervals(np.array([1.0, 3.0, 2.0]), lost, 200, np.random.default_rng(0))
    np.testing.assert_allclose(found, [[0.5, 0.5], [1 / 3, 1 / 3]])


def test_head_intervals():
    generator = np.random.default_rng(2)
    loss = np.arange(8.0)
    found = head_intervals(np.stack([loss, -loss, generator.random(8)]), loss, 2000, generator)
    np.testing.assert_allclose(found[:, 0], 1)  # whichever heads are drawn
    np.testing.assert_allclose(found[:, 1], -1)
    assert (found[:, 2, 1] - found[:, 2, 0] > 0.5).all(), "8 heads say little"
    assert np.isnan(head_intervals(loss[:1], loss[:1], 50, generator)).all()
