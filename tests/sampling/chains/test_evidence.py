"""The evidence by bridge sampling, against integrals that are done in other ways."""

import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
pytest.importorskip("arviz_stats")

from scipy import integrate
from scipy.signal import lfilter
from scipy.special import logsumexp

from pathkernel_core import Network
from pathkernel_sampling.chains.chain import draw_states, warm_up
from pathkernel_sampling.chains.evidence import log_evidence
from pathkernel_sampling.models.likelihood import pytree
from pathkernel_sampling.models.models import build_model


def model_of(network, temperature, count=6, width=4, name="order-parameter"):
    generator = np.random.default_rng(0)
    xi = generator.standard_normal((count, network.n_paths, width))
    labels = 1.5 * generator.standard_normal((count, network.outputs))
    return build_model(name, xi, labels, network, temperature)


def sampled(model, draws, chains=2):
    positions, densities = [], []
    for chain in range(chains):
        key = jax.random.fold_in(jax.random.key(1), chain)
        state = warm_up(model, jax.random.fold_in(key, 0), 300)
        _, drawn = draw_states(model, state, jax.random.fold_in(key, 1), draws)
        positions.append(drawn["position"])
        densities.append(drawn["lp"])
    return np.array(positions), np.array(densities)


def test_of_one_path_it_is_the_integral_over_both_variances():
    model = model_of(Network((1,), 6), 0.3)
    density = jax.jit(model.log_density)
    exact, _ = integrate.dblquad(
        lambda y, x: np.exp(density(np.array([x, y]))), -14, 8, -14, 8, epsrel=1e-6
    )
    estimate = log_evidence(model, *sampled(model, 1000))
    assert 1e-4 < estimate.error < 0.02
    assert abs(estimate.log_evidence - np.log(exact)) < 4 * estimate.error + 1e-5


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(Network((2, 2), 3), id="singular"),
        pytest.param(Network((2,), (3, 4), outputs=2), id="outputs", marks=pytest.mark.slow),
    ],
)
def test_it_is_the_mean_likelihood_of_the_prior(network):
    model = model_of(network, 1.0, count=3)
    generator = np.random.default_rng(5)
    keys = [jax.random.key(int(k)) for k in generator.integers(2**31, size=5_000)]
    draws = np.array([model.initial(key) for key in keys])

    def log_likelihood(x):
        return model.log_density(x) - model.log_prior(x)

    values = np.asarray(jax.jit(lambda x: jax.lax.map(log_likelihood, x))(draws))
    exact = logsumexp(values) - np.log(values.size)
    error = np.exp(values - exact).std() / np.sqrt(values.size)
    estimate = log_evidence(model, *sampled(model, 1000))
    assert np.hypot(error, estimate.error) < 0.05
    assert abs(estimate.log_evidence - exact) < 4 * np.hypot(error, estimate.error)


@pytree(())
class StandardNormal:
    """A density that the bridge knows: exp(−x²/2), whose integral is √2π."""

    def log_density(self, x):
        return -0.5 * (x @ x)


def test_the_error_is_the_spread_over_draws_and_proposals():
    """With a fit three times too wide, most of the error is that of the proposals."""
    estimates = []
    for seed in range(100):
        positions = np.random.default_rng([7, seed]).standard_normal((2, 400, 1))
        positions[:, :200] *= 3  # what the Gaussian is fitted to
        estimates.append(
            log_evidence(StandardNormal(), positions, -0.5 * positions[..., 0] ** 2, seed)
        )
    values, errors = np.array(estimates).T
    exact = 0.5 * np.log(2 * np.pi)
    assert abs(values.mean() - exact) < 4 * values.std() / 10
    np.testing.assert_allclose(errors.mean(), values.std(), rtol=0.25)


def correlated(seed, fit):
    """Chains (2, 400, 1) of a standard normal, x' = .95 x + noise; the half that is fitted iid."""
    generator = np.random.default_rng([7, seed])
    noise = math.sqrt(1 - 0.95**2) * generator.standard_normal((2, 400, 1))
    noise[:, 200] = generator.standard_normal((2, 1))
    chains = lfilter([1.0], [1.0, -0.95], noise[:, 200:], axis=1)
    return np.concatenate([fit * generator.standard_normal((2, 200, 1)), chains], axis=1)


def estimates(fit, seeds):
    """Log evidence and its error from correlated chains, of each seed."""
    estimates_of_seeds = []
    for seed in range(seeds):
        chains = correlated(seed, fit)
        estimates_of_seeds.append(
            log_evidence(StandardNormal(), chains, -0.5 * chains[..., 0] ** 2, seed)
        )
    return np.array(estimates_of_seeds).T


def test_the_error_counts_correlated_draws_for_less():
    """With a fit ten times too narrow, most of the error is that of the draws."""
    values, errors = estimates(0.1, 80)
    np.testing.assert_allclose(errors.mean(), values.std(), rtol=0.2)


def test_correlated_draws_do_not_spoil_the_proposals():
    """The optimal bridge has no larger error than importance sampling from the proposals alone.

    That of 400 from a Gaussian of deviation σ = 3 is known: (σ²/√(2σ² − 1) − 1)/400 squared.
    """
    values, _ = estimates(3.0, 40)
    assert values.std() < 1.3 * math.sqrt((9 / math.sqrt(17) - 1) / 400)


def test_too_few_draws_give_no_estimate():
    model = model_of(Network((2, 2), 3), 1.0, count=3)  # which another test has compiled
    positions, densities = sampled(model, 30)
    assert np.isnan(log_evidence(model, positions, densities)).all()


def test_chains_that_do_not_move_give_none():
    model = model_of(Network((1,), 6), 0.3)
    stuck = np.repeat(np.arange(8.0).reshape(4, 1, 2), 100, axis=1)
    assert np.isnan(log_evidence(model, stuck, np.zeros((4, 100)))).all()
