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
    score = np.array([[0.1, 0.4, 0.5, 0.9], [3.0, 1.0, 2.0, 0.0]])
    lost = (generator.random((300, 4)) < [0.1, 0.13, 0.1, 0.2]).astype(float)
    lost -= generator.random((300, 4)) < 0.05
    found = episode_intervals(score, lost, 4000, generator)
    assert found.shape == (2, 2, 2)
    rows = generator.integers(300, size=(4000, 300))
    means = lost[rows].mean(axis=1).round(12)
    for place, values in enumerate(score):
        plain = rank_correlations(values, means)
        expected = np.nanquantile(plain, [0.025, 0.975], axis=1).T
        # of 4 heads ρ takes a step of 0.2 and τ one of 1/3, up to ties
        np.testing.assert_allclose(found[:, place], expected, atol=0.21)
    assert (found[..., 0] <= found[..., 1]).all()


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
