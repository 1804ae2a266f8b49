"""Log evidence ln p(Y) from draws of the posterior, by bridge sampling.

A Gaussian fitted to one half of the draws is bridged to the posterior by the other half: Meng and
Wong's optimal bridge (1996), with the relative error of Frühwirth-Schnatter (2004). It is cheap
where the posterior has few dimensions, as that of the order parameters, and hopeless for weights.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from arviz_stats.base import array_stats
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from pathkernel_core.contracts.sampler import Model

LARGEST_DIMENSION = 200
"""Dimension up to which the evidence of a model is estimated."""

_PER_DIMENSION = 5  # draws that a fit needs for each dimension
_LEAST_DRAWS = 20  # of each half of a chain
_ITERATIONS = 200


class Evidence(NamedTuple):
    """Estimate of ln p(Y), in nats, and its standard error; both NaN if draws give none."""

    log_evidence: float
    error: float


UNKNOWN = Evidence(float("nan"), float("nan"))


def log_evidence(
    model: Model, positions: np.ndarray, log_densities: np.ndarray, seed: int = 0
) -> Evidence:
    """Estimate the log evidence of a model from draws of its posterior.

    Parameters
    ----------
    model : Model
        Whose log density is normalised: it integrates to the evidence.
    positions : array, shape (chain, draw, dimension)
    log_densities : array, shape (chain, draw)
        Log density of the model at the positions.
    seed : int
        Seed of the draws from the fitted Gaussian.

    Notes
    -----
    If it is NaN, draw more: each half needs 20 draws of a chain, and 5 for each dimension. Compare
    evidences of two models only if their difference is large against both errors, which do not see
    a mode that no chain reached.
    """
    chains, draws, dimension = positions.shape
    half = draws // 2  # a Gaussian that is fitted to the draws it is bridged to biases the estimate
    if half < _LEAST_DRAWS or chains * half < _PER_DIMENSION * dimension:
        return UNKNOWN
    fitted = positions[:, :half].reshape(-1, dimension)
    mean = fitted.mean(0)
    try:
        lower = np.linalg.cholesky(np.atleast_2d(np.cov(fitted.T)))
    except np.linalg.LinAlgError:  # chains that hardly move
        return UNKNOWN

    def log_gaussian(x: np.ndarray) -> np.ndarray:
        whitened = solve_triangular(lower, (x - mean).T, lower=True)
        normaliser = dimension * np.log(2 * np.pi) / 2 + np.log(np.diagonal(lower)).sum()
        return -0.5 * (whitened**2).sum(0) - normaliser

    drawn = positions[:, half:].reshape(-1, dimension)
    proposed = np.random.default_rng(seed).standard_normal(drawn.shape) @ lower.T + mean
    # log ratios of posterior density and Gaussian
    at_draws = log_densities[:, half:].reshape(-1) - log_gaussian(drawn)
    at_proposals = np.asarray(_densities(model, proposed)) - log_gaussian(proposed)
    at_proposals = np.where(np.isnan(at_proposals), -np.inf, at_proposals)  # no kernel: no density
    # the optimal bridge weighs both samples by their sizes, of which correlated draws have less
    shape = (chains, draws - half)
    effective = float(array_stats.ess(at_draws.reshape(shape), method="mean"))
    return _bridge(at_draws.reshape(shape), at_proposals, effective)


@jax.jit
def _densities(model: Model, positions: np.ndarray) -> jax.Array:
    return jax.lax.map(model.log_density, positions)


def _bridge(at_draws: np.ndarray, at_proposals: np.ndarray, effective: float) -> Evidence:
    """Fixed point of the optimal bridge; draws (chain, draw) count as ``effective`` ones."""
    count = at_proposals.size
    share = np.log(effective / (effective + count)), np.log(count / (effective + count))
    value = float(np.median(at_draws))
    for _ in range(_ITERATIONS):
        # both bridge functions lie between 0 and 1 / share: in logarithms they cannot overflow
        numerator = at_proposals - np.logaddexp(share[0] + at_proposals, share[1] + value)
        denominator = -np.logaddexp(share[0] + at_draws, share[1] + value)
        previous = value
        value = logsumexp(numerator) - np.log(count) - logsumexp(denominator)
        value = float(value + np.log(denominator.size))
        if abs(value - previous) < 1e-10 * max(1.0, abs(value)):
            break
    else:
        return UNKNOWN
    proposals, draws = (np.exp(logs - logs.max()) for logs in (numerator, denominator))
    size = float(array_stats.ess(draws, method="mean"))
    variance = (proposals.var() / proposals.mean() ** 2) / count
    variance += (draws.var() / draws.mean() ** 2) / size
    return Evidence(value, float(np.sqrt(variance)))
