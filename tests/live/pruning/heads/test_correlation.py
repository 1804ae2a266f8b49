"""Rank correlations against SciPy, and the bootstrap against plain resampling."""

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from pathkernel_pruning.heads.correlation import Bootstrap, interval, ranks, spearman


@pytest.mark.parametrize("ties", [False, True])
def test_coefficients_are_scipys(ties):
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(2, 20, 8))
    if ties:
        first, second = first.round(), second.round()
    for a, b, rho in zip(first, second, spearman(first, second)):
        assert rho == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


@pytest.mark.parametrize("shape", [(4,), (0, 3), (3, 0), (2, 5, 4)])
def test_ranks_are_those_of_scipy(shape):
    """Equal values share the mean of their ranks; rows stay contiguous, so that sums agree."""
    values = np.random.default_rng(0).integers(0, 3, shape) / 3
    np.testing.assert_array_equal(ranks(values), rankdata(values, axis=-1))
    assert ranks(values).flags["C_CONTIGUOUS"]


def test_shapes_and_constants():
    scores = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(spearman(scores[:, None], scores[None]), np.ones((2, 2)))
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
    assert np.isnan(spearman(np.arange(1.0), np.arange(1.0))), "one head has no order"


def test_intervals_are_those_of_plain_resampling(monkeypatch):
    generator = np.random.default_rng(1)
    values = generator.normal(size=(2, 400))
    actual = Bootstrap(4000, 1).means(values)
    assert actual.shape == (2, 4000)
    rows = generator.integers(400, size=(4000, 400))
    expected = np.quantile(values[:, rows].mean(axis=2), [0.025, 0.975], axis=1).T
    np.testing.assert_allclose(interval(actual), expected, atol=0.01)
    monkeypatch.setattr("pathkernel_pruning.heads.correlation._BATCH", 400 * 7)  # in many parts
    np.testing.assert_allclose(Bootstrap(4000, 1).means(values), actual, rtol=0, atol=1e-12)


def test_head_intervals():
    loss = np.arange(8.0)
    score = np.stack([loss, -loss, np.random.default_rng(2).random(8)])
    drawn = Bootstrap(2000, 0).drawn_heads(8)
    actual = interval(spearman(score[:, drawn], loss[drawn]))
    np.testing.assert_allclose(actual[:2], [[1, 1], [-1, -1]])  # whichever heads are drawn
    assert actual[2, 1] - actual[2, 0] > 0.5, "8 heads say little"


def test_an_interval_leaves_out_what_is_not_known():
    values = np.full((2, 41), np.nan)
    values[0] = np.arange(41.0)
    np.testing.assert_allclose(interval(values), [[1, 39], [np.nan, np.nan]])
    values[0, ::2] = np.nan  # 1, 3, … 39 are left
    np.testing.assert_allclose(
        interval(values)[0], np.quantile(np.arange(1, 40, 2), [0.025, 0.975])
    )
