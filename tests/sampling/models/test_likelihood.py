"""Energy, gradient and predictor in every space, against dense formulas and autodiff."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from pathkernel_core import Network, Problem
from pathkernel_core.system.errors import PrecisionError
from pathkernel_sampling.models.likelihood import Likelihood, energy

TEMPERATURE = 0.3


def problem(outputs=1, examples=7, paths=3, width=5):
    generator = np.random.default_rng(outputs)
    features = generator.standard_normal((examples, paths, width)) / np.sqrt(paths * width)
    return features, generator.standard_normal((examples, outputs))


def likelihood_of(xi, labels, kind="auto", variance=1.0):
    network = Network((xi.shape[1],), 1, (variance, 1.0, 1.0), labels.shape[1])
    return Likelihood(Problem(xi, labels, kind), network, TEMPERATURE)


def space(kind, features, labels):
    """The space with unscaled inputs, so that its features are the given ones."""
    xi = features * np.sqrt(features.shape[1] * features.shape[2])
    return likelihood_of(xi, labels, kind).problem.form


def dense_kernel(factor, left, right, outputs):
    paths = left.shape[1]
    u = (factor @ factor.T).reshape(paths, outputs, paths, outputs)
    kernel = jnp.einsum("mpi,pcqd,nqi->mcnd", left, u, right)
    return kernel.reshape(len(left) * outputs, len(right) * outputs)


def dense_energy(factor, features, labels):
    kernel = dense_kernel(factor, features, features, labels.shape[1])
    noisy = kernel + TEMPERATURE * jnp.eye(labels.size)
    lower = jnp.linalg.cholesky(noisy)
    flat = labels.reshape(-1)
    return 2 * jnp.log(jnp.diag(lower)).sum() + flat @ jnp.linalg.solve(noisy, flat)


# compiled once for all tests
dense_energy_and_gradient = jax.jit(jax.value_and_grad(dense_energy))
energy_and_gradient = jax.jit(jax.value_and_grad(energy, argnums=1))


CASES = [  # ranks: singular, square for one output, more columns than rows
    pytest.param(kind, outputs, rank, marks=[] if outputs + rank in (2, 11) else pytest.mark.slow)
    for kind in ("examples", "features", "kernels")
    for outputs in (1, 2)
    for rank in (1, 3, 9)
]


@pytest.mark.parametrize(("kind", "outputs", "rank"), CASES)
def test_energy_and_gradient_are_those_of_the_dense_formula(kind, outputs, rank):
    features, labels = problem(outputs)
    generator = np.random.default_rng(rank)
    factor = jnp.asarray(generator.standard_normal((3 * outputs, rank)))
    form = space(kind, features, labels)
    want, want_gradient = dense_energy_and_gradient(factor, features, labels)
    got, gradient = energy_and_gradient(form, factor, TEMPERATURE)
    np.testing.assert_allclose(got, want, rtol=1e-11)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("kind", "outputs", "rank"), CASES)
def test_gradient_is_that_of_finite_differences(kind, outputs, rank):
    form = space(kind, *problem(outputs))
    generator = np.random.default_rng(rank)
    factor = generator.standard_normal((3 * outputs, rank))
    direction = generator.standard_normal(factor.shape)
    slope = np.sum(energy_and_gradient(form, factor, TEMPERATURE)[1] * direction)
    step = 1e-5
    above, below = (
        energy_and_gradient(form, factor + s * direction, TEMPERATURE)[0] for s in (step, -step)
    )
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-6)


def test_the_energy_is_that_of_the_core():
    features, labels = problem()
    xi = features * np.sqrt(15)
    factor = np.random.default_rng(0).standard_normal((3, 3))
    want, m_minus_r = Problem(xi, labels).energy_and_gradient(
        factor @ factor.T, TEMPERATURE, variance=1.7
    )
    likelihood = likelihood_of(xi, labels, variance=1.7)
    value, gradient = jax.jit(jax.value_and_grad(likelihood.log_likelihood))(factor)
    np.testing.assert_allclose(value, -0.5 * (want + 7 * np.log(2 * np.pi)), rtol=1e-12)
    np.testing.assert_allclose(gradient, -m_minus_r @ factor, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "rank", [pytest.param(2, marks=pytest.mark.slow), 6, pytest.param(9, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("kind", "examples", "width", "outputs", "span"),
    [
        ("kernels", 40, 60, 1, 60),
        ("examples", 4, 9, 2, 9),
        ("examples", 6, 15, 2, 4),  # rotated into the inputs' span
        ("features", 60, 4, 1, 4),
        ("features", 60, 9, 2, 3),
    ],
)
def test_moments_are_those_of_the_gaussian_process(kind, examples, width, outputs, span, rank):
    generator = np.random.default_rng(3)
    paths, variance = 3, 0.6
    basis = np.linalg.qr(generator.standard_normal((width, width)))[0][:span]
    xi = generator.standard_normal((examples, paths, span)) @ basis
    test = generator.standard_normal((5, paths, width))
    labels = generator.standard_normal((examples, outputs))
    factor = generator.standard_normal((paths * outputs, rank))
    likelihood = likelihood_of(xi, labels, variance=variance)
    assert likelihood.problem.space == kind
    assert (likelihood.problem.basis is None) == (span == width)
    mean, spread = jax.jit(likelihood.moments)(factor, test)
    scale = np.sqrt(variance / (paths * width))
    noisy = dense_kernel(factor, scale * xi, scale * xi, outputs)
    noisy += TEMPERATURE * np.eye(len(noisy))
    across = dense_kernel(factor, scale * test, scale * xi, outputs)
    prior = dense_kernel(factor, scale * test, scale * test, outputs)
    want = across @ np.linalg.solve(noisy, labels.reshape(-1))
    np.testing.assert_allclose(mean, want.reshape(5, outputs), rtol=1e-9, atol=1e-10)
    want = np.diag(prior - across @ np.linalg.solve(noisy, across.T))
    np.testing.assert_allclose(spread, want.reshape(5, outputs), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["examples", "kernels"])
def test_a_kernel_that_cannot_be_factorised_gives_nan_and_not_a_number(kind):
    features, labels = problem(examples=40)  # more examples than the 15 features
    bad = space(kind, 1e9 * features, labels)
    assert np.isnan(jax.jit(energy)(bad, np.eye(3), 1e-9))


def test_single_precision_is_refused():
    xi, labels = problem()
    with jax.enable_x64(False), pytest.raises(PrecisionError, match="JAX_ENABLE_X64"):
        likelihood_of(xi, labels)
