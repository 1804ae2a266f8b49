"""Mixture of Gaussians fitted to draws: the reference from which replicas of a posterior come.

Expectation maximisation with covariances shrunk to multiples of the pooled one: a component of few
draws has the shape of the others. The mixture is wider than the draws, and gives half of its weight
to all components alike, so that no mode is thought rare because a short chain seldom saw it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

_ITERATIONS = 40
_WIDER = 1.2  # covariances of the reference over those of the draws
_PSEUDO_DRAWS = 2  # of the pooled covariance in that of a component, per dimension
_SMALLEST = 1e-6  # variance of a coordinate, of the prior's 1, of draws that hardly move


class Mixture(NamedTuple):
    """Mixture of k Gaussians in d dimensions, an argument of compiled code.

    Attributes
    ----------
    log_weights : array, shape (k,)
    means : array, shape (k, d)
    factors : array, shape (k, d, d)
        Lower Cholesky factors of the covariances.
    inverses : array, shape (k, d, d)
        Their inverses.
    """

    log_weights: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    inverses: np.ndarray

    def log_density(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log density at positions x (..., d), and its gradient."""
        whitened, logs = self._logs(x)
        value = jax.scipy.special.logsumexp(logs, axis=-1)
        pulls = jnp.einsum("kij,...ki->...kj", self.inverses, whitened)
        return value, -jnp.einsum("...k,...kj->...j", jnp.exp(logs - value[..., None]), pulls)

    def responsibilities(self, copies: jax.Array, log_volumes: jax.Array) -> jax.Array:
        """Probability (k,) of each component, all of equal weight, given one of copies (C, d)."""
        logs = self._logs(copies)[1] - self.log_weights + log_volumes[:, None]
        return jax.nn.softmax(jax.scipy.special.logsumexp(logs, axis=0))

    def _logs(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        whitened = jnp.einsum("kij,...kj->...ki", self.inverses, x[..., None, :] - self.means)
        scales = jnp.sum(jnp.log(jnp.diagonal(self.inverses, axis1=1, axis2=2)), axis=1)
        normaliser = self.log_weights + scales - 0.5 * x.shape[-1] * math.log(2 * math.pi)
        return whitened, normaliser - 0.5 * jnp.sum(whitened**2, axis=-1)

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draw ``count`` positions (count, d) on the host."""
        weights = np.exp(self.log_weights)
        numbers = generator.choice(len(weights), size=count, p=weights / weights.sum())
        noise = generator.standard_normal((count, self.means.shape[1]))
        factors, positions = np.asarray(self.factors), np.asarray(self.means)[numbers]
        for number in np.unique(numbers):
            positions[numbers == number] += noise[numbers == number] @ factors[number].T
        return positions


def fit_mixture(draws: np.ndarray, components: int, seed: int) -> tuple[Mixture, np.ndarray]:
    """Fit a mixture to draws, a reference that is wider than they are.

    Parameters
    ----------
    draws : array, shape (n, d)
    components : int
    seed : int
        Seed of the first clusters.

    Returns
    -------
    mixture : Mixture
    within : array, shape (d, d)
        Pooled covariance within components.
    """
    weights, means, covariances, within = estimate_components(draws, components, seed)
    factors = np.stack([np.linalg.cholesky(_WIDER * covariance) for covariance in covariances])
    identity = np.eye(draws.shape[1])
    inverses = np.stack([solve_triangular(factor, identity, lower=True) for factor in factors])
    weights = 0.5 * weights + 0.5 / components
    return Mixture(np.log(weights), means, factors, inverses), within


def estimate_components(
    draws: np.ndarray, components: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Estimate weights (k,), means (k, d) and covariances (k, d, d) by expectation maximisation.

    The last array is the pooled covariance (d, d) within components.
    """
    count, dimension = draws.shape
    shares = np.eye(components)[_nearest_centre(draws, components, seed)]
    for _ in range(_ITERATIONS):
        sizes = shares.sum(0)
        means = (shares.T @ draws) / np.maximum(sizes, 1e-9)[:, None]
        scatters = np.empty((components, dimension, dimension))
        for number, mean in enumerate(means):
            centred = draws - mean
            scatters[number] = (centred.T * shares[:, number]) @ centred
        within = _shrink_to_diagonal(scatters.sum(0) / count, count)
        # a component that is narrower than the others has their shape, but a scale of its own
        traces = np.einsum("ij,kji->k", np.linalg.inv(within), scatters)
        scales = (traces / dimension + 1) / (sizes + 1)
        pseudo = _PSEUDO_DRAWS * dimension
        prior = pseudo * scales[:, None, None] * within
        covariances = (scatters + prior) / (sizes + pseudo)[:, None, None]
        weights = np.maximum(sizes, 1e-9) / np.maximum(sizes, 1e-9).sum()
        logs = np.log(weights) + np.stack(
            [log_gaussian(draws, *parts) for parts in zip(means, covariances)], axis=1
        )
        shares = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    return weights, means, covariances, within


def _nearest_centre(draws: np.ndarray, components: int, seed: int) -> np.ndarray:
    """Nearest of some draws that are far from each other (k-means++), as a number (n,)."""
    generator = np.random.default_rng(seed)
    squares = np.sum((draws - draws[generator.integers(len(draws))]) ** 2, axis=1)[:, None]
    for _ in range(components - 1):
        nearest = squares.min(1)
        total = nearest.sum()
        centre = generator.choice(len(draws), p=nearest / total if total > 0 else None)
        squares = np.column_stack([squares, np.sum((draws - draws[centre]) ** 2, axis=1)])
    return squares.argmin(1)


def _shrink_to_diagonal(covariance: np.ndarray, count: int) -> np.ndarray:
    """Covariance that has an inverse, of however few draws."""
    dimension = len(covariance)
    variances = np.maximum(np.diagonal(covariance), _SMALLEST)
    return (count * covariance + dimension * np.diag(variances)) / (count + dimension)


def log_gaussian(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Log density (n,) of a Gaussian at draws (n, d)."""
    lower = np.linalg.cholesky(covariance)
    whitened = solve_triangular(lower, (draws - mean).T, lower=True)
    normaliser = 0.5 * draws.shape[1] * math.log(2 * math.pi) + np.log(np.diagonal(lower)).sum()
    return -0.5 * (whitened**2).sum(0) - normaliser
