"""Weights of chains: shares of their evidences, or equal ones."""

import numpy as np
import pytest
import xarray as xr

from pathkernel_sampling.chains.weights import chain_weights, error_factor, evidence_shares


def evidences_of(values):
    """Log evidences of chains, which had others in the stage before."""
    values = np.asarray(values, dtype=float)
    both = np.stack([values[::-1], values], axis=1)
    return xr.Dataset(
        {"log_evidence": (("chain", "stage"), both)},
        {"chain": range(len(values)), "stage": ["before", "draws"]},
    )


def test_chains_of_tempering_count_by_their_evidences():
    generator = np.random.default_rng()
    values = generator.normal(size=4)
    tempering = evidences_of(values - 2000.0)  # whose exponentials underflow
    run = xr.DataTree.from_dict({"tempering": tempering})
    weights = chain_weights(run)
    np.testing.assert_allclose(weights, np.exp(values) / np.exp(values).sum())
    np.testing.assert_array_equal(weights, evidence_shares(tempering))


def test_no_chain_counts_nothing():
    weights = evidence_shares(evidences_of([0.0, -5000.0]))
    assert (weights > 0).all()
    assert weights[1] < 1e-100
    assert error_factor(weights) == pytest.approx(2**0.5)


def test_other_chains_count_equally():
    draws = xr.Dataset({"lp": (("chain", "draw"), np.zeros((3, 5)))})
    weights = chain_weights(xr.DataTree.from_dict({"sample_stats": draws}))
    np.testing.assert_allclose(weights, 1 / 3)
    assert error_factor(weights) == pytest.approx(1)
