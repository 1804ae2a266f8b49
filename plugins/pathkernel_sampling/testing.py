"""Checks of a sampler for the tests of its author: a failure says what to change.

import pathkernel as pk

def test_mine():
    pk.plugins.check_sampler(Mine())
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.contracts.options import NAME_PATTERN
from pathkernel_core.contracts.sampler import Model, Sampler
from pathkernel_core.paths.network import Network

_NETWORKS = (Network((2, 1), 4), Network((2,), 6, outputs=2))


def check_sampler(sampler: Sampler) -> None:
    """Check density, gradient, order parameter and predictions of a sampler's models.

    Raises
    ------
    AssertionError
        At the first check that fails, saying what to change.
    """
    assert re.fullmatch(NAME_PATTERN, sampler.name), (
        f"name {sampler.name!r} must be lower-case words joined by hyphens"
    )
    assert sampler.summary.strip(), "summary must say in one line what it draws"
    for model, x, network, new in _small_models(sampler):
        _check_density(model, x)
        _check_draw(model, x, network, new)


def _check_density(model: Model, x: jax.Array) -> None:
    """Density and gradient are finite at a start, and the gradient is that of the density."""
    density, gradient = jax.jit(jax.value_and_grad(_density, argnums=1))(model, x)
    assert jnp.isfinite(density), "log_density is not finite at a start"
    assert gradient.shape == (model.dimension,), "the gradient must have model.dimension"
    # along one direction: two evaluations for any dimension; 1e-5 balances rounding and curvature
    direction = jnp.asarray(np.random.default_rng(1).normal(size=model.dimension))
    upper, lower = (float(_density(model, x + step * direction)) for step in (1e-5, -1e-5))
    slope = (upper - lower) / 2e-5
    along = float(gradient @ direction)
    assert np.isclose(slope, along, rtol=1e-4, atol=1e-4 * abs(float(density))), (
        f"the gradient of log_density is {along} along a direction, not {slope}"
    )


def _check_draw(model: Model, x: jax.Array, network: Network, new: np.ndarray) -> None:
    """A draw has a positive semi-definite order parameter, and predictions."""
    size = network.n_paths * network.outputs
    matrix, mean, variance = map(np.asarray, _read(model, x, new))
    assert matrix.shape == (size, size), f"U must have shape {(size, size)}"
    smallest = np.linalg.eigvalsh((matrix + matrix.T) / 2).min()
    assert smallest > -1e-9 * np.abs(matrix).max(), "U must be positive semi-definite"
    assert mean.shape == variance.shape, "mean and variance must have one shape"
    assert np.isfinite(mean).all(), "the mean is not finite"
    assert (variance > -1e-9).all(), "a variance is negative"


def _small_models(sampler: Sampler) -> Iterator[tuple[Model, jax.Array, Network, np.ndarray]]:
    generator = np.random.default_rng(0)
    for network in _NETWORKS:
        shape = (7, network.n_paths, 3)
        xi, labels = generator.normal(size=shape), generator.normal(size=(7, network.outputs))
        copies = xi.copy(), labels.copy()
        model = sampler.build(xi, labels, network, 0.5)
        for name, before, after in zip(("xi", "labels"), copies, (xi, labels)):
            assert np.array_equal(before, after), f"build must not change {name}; take a copy"
        yield model, model.initial(jax.random.key(0)), network, generator.normal(size=shape)


@jax.jit
def _density(model: Model, x: jax.Array) -> jax.Array:
    return model.log_density(x)


@jax.jit
def _read(model: Model, x: jax.Array, new: np.ndarray) -> tuple[jax.Array, ...]:
    return model.order_parameter(x), *model.predict(x, new)
