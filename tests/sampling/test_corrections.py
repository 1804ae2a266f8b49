"""The next order in 1/N against quadrature, brute-force derivatives and exact samples."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
array_stats = pytest.importorskip("arviz_stats.base").array_stats
jnp = jax.numpy

from scipy import special  # noqa: E402

import pathkernel_core as pk  # noqa: E402
from pathkernel_sampling.chains import draw, warm_up  # noqa: E402
from pathkernel_sampling.corrections import next_order  # noqa: E402
from pathkernel_sampling.models import build_model  # noqa: E402
from pathkernel_tasks.hidden_markov import HiddenMarkov  # noqa: E402


def examples(network, count, width, scale=1.5, seed=1):
    generator = np.random.default_rng(seed)
    xi = generator.standard_normal((count, network.n_paths, width))
    return xi, scale * generator.standard_normal((count, network.outputs))


def solve(network, xi, labels, temperature, space="auto"):
    return pk.minimise_action(
        pk.PathKernels(xi, labels, space), network, temperature, tolerance=1e-9
    )


# One path, one output: the hierarchy is two numbers, and integrals over it are sums over a grid.


def quadrature(kernel, labels, temperature, widths):
    """ln p(Y) and ⟨U⟩ of U_1 = χ²_{N_0}/N_0 · χ²_{N_1}/N_1, by the trapezoidal rule."""
    axes = []
    for width in widths:
        spread = 1 / math.sqrt(2 * width)
        centre = math.log(width) / 2
        log = np.linspace(centre - 20 * spread, centre + 14 * spread, 1201)  # ln χ
        density = math.log(2) + width * log - np.exp(2 * log) / 2
        density -= width / 2 * math.log(2) + special.gammaln(width / 2)
        axes.append((2 * log - math.log(width), density + math.log(log[1] - log[0])))
    (one, log_one), (two, log_two) = axes
    u = np.exp(one[:, None] + two)
    log_weights = log_one[:, None] + log_two - len(labels) / 2 * math.log(2 * math.pi)
    values, vectors = np.linalg.eigh(kernel)
    for value, label in zip(values, vectors.T @ labels):
        variance = max(value, 0.0) * u + temperature
        log_weights -= (np.log(variance) + label**2 / variance) / 2
    weights = np.exp(log_weights - log_weights.max())
    return log_weights.max() + math.log(weights.sum()), (weights * u).sum() / weights.sum()


def errors(network, xi, labels, temperature):
    """Errors of leading and next order: of the log evidence, and of ⟨U⟩."""
    correction = next_order(solve(network, xi, labels, temperature))
    kernel = xi[:, 0] @ xi[:, 0].T / xi.shape[2]
    evidence, mean = quadrature(kernel, labels[:, 0], temperature, network.widths)
    return np.abs(
        [
            [evidence - correction.log_evidence, mean - correction.order_parameter[0, 0]],
            [
                evidence - correction.next_log_evidence,
                mean - correction.mean_order_parameter[0, 0],
            ],
        ]
    )


def orders(coarse, fine, factor):
    """Powers of 1/N with which errors fall."""
    return np.log(coarse / fine) / math.log(factor)


def test_errors_fall_one_order_faster_at_fixed_examples():
    """Of the log evidence as 1/N and 1/N³, of ⟨U⟩ as 1/N² and 1/N³ once N exceeds P."""
    small, large = (
        errors(pk.Network((1,), width), *examples(pk.Network((1,), 1), 4, 6), 0.5)
        for width in (160, 1280)
    )
    leading, following = orders(small, large, 8)
    np.testing.assert_allclose(leading, (1, 2), atol=0.15)
    np.testing.assert_array_less((2.6, 2.6), following)
    np.testing.assert_array_less(large[1], (1e-6, 1e-6))


def test_errors_fall_one_order_faster_in_proportion_to_the_examples():
    """With P/N fixed: of the log evidence as 1 and 1/N², of ⟨U⟩ as 1/N and 1/N².

    The examples are those of N = 5 in N/5 orthogonal subspaces, so that the action per N does not
    change, and the expansion is one in powers of 1/N exactly.
    """
    xi, labels = examples(pk.Network((1,), 1), 4, 6)
    found = []
    for copies in (1, 4, 16):
        repeated = math.sqrt(copies) * np.kron(np.eye(copies), xi[:, 0])[:, None]
        network = pk.Network((1,), 5 * copies)
        found.append(errors(network, repeated, np.tile(labels, (copies, 1)), 0.5))
    leading, following = orders(found[1], found[2], 4)
    np.testing.assert_allclose(leading, (0, 1), atol=0.1)
    np.testing.assert_allclose(following, (2, 2), atol=0.35)
    for error in found:  # an improvement even at N = 5
        np.testing.assert_array_less(error[1], 0.1 * error[0])


# Any network


def test_without_data_the_prior_is_exact():
    """⟨U⟩ of the prior is the Gaussian process limit at every width, to all orders."""
    network = pk.Network((2, 2), (6, 5, 4), (1.3, 0.7, 1.2, 0.9))
    xi, labels = examples(network, 5, 3, scale=1e-3)
    correction = next_order(solve(network, 1e-6 * xi, labels, 1.0))
    np.testing.assert_allclose(correction.order_parameter_correction, 0, atol=1e-10)
    assert abs(correction.log_evidence_correction) < 1e-10


def whole_tensors(action, remainder, observable, x):
    """Laplace's method to next order from whole tensors of derivatives, in any coordinates.

    Of exp(−action − remainder): the log integral relative to the action's minimum, without 2π,
    and the correction of the observable.
    """
    hessian = jax.hessian(action)
    third = jax.jacfwd(hessian)
    fourth = np.asarray(jax.jit(jax.jacfwd(third))(x))
    third, second = np.asarray(jax.jit(third)(x)), np.asarray(jax.jit(hessian)(x))
    covariance = np.linalg.inv(second)
    slope = np.asarray(jax.grad(remainder)(x))
    curvature = np.asarray(jax.jit(jax.hessian(remainder))(x))
    tadpole = np.einsum("ijk,jk->i", third, covariance)
    change = np.einsum("aij,ij->a", jax.jit(jax.hessian(observable))(x), covariance) / 2
    change -= np.asarray(jax.jit(jax.jacfwd(observable))(x)) @ covariance @ (slope + tadpole / 2)
    total = -np.linalg.slogdet(second)[1] / 2 - remainder(x)
    total -= np.einsum("ijkl,ij,kl->", fourth, covariance, covariance) / 8
    total += tadpole @ covariance @ tadpole / 8
    total += np.einsum("ijk,lmn,il,jm,kn->", third, third, *[covariance] * 3, optimize=True) / 12
    total += slope @ covariance @ (slope + tadpole) / 2 - np.sum(curvature * covariance) / 2
    return total, change


def test_whole_tensors_in_other_coordinates():
    """U_1 = u V Vᵀ with V = 1 + a lower triangle, in which c is not linear."""
    network = pk.Network((2,), (7.0, 5.0))
    xi, labels = examples(network, 12, 3)
    solution = solve(network, xi, labels, 0.3)
    (rows, columns), (below, above) = np.tril_indices(2), network.widths
    features, label = xi / math.sqrt(2 * xi.shape[2]), labels[:, 0]

    def split(x):
        factor = jnp.zeros((2, 2)).at[rows, columns].set(x[1:]) + jnp.eye(2)
        return jnp.exp(x[0]), factor

    def order_parameter(x):
        u, factor = split(x)
        return u * factor @ factor.T

    def entropy(x):
        u, factor = split(x)
        logarithms = jnp.log(jnp.diagonal(factor))
        return (below * ((factor**2).sum() - 2 * logarithms.sum()) + above * (u - x[0])) / 2

    def action(x):
        kernel = jnp.einsum("pai,ab,qbi->pq", features, order_parameter(x), features)
        noisy = kernel + 0.3 * jnp.eye(12)
        energy = jnp.linalg.slogdet(noisy)[1] + label @ jnp.linalg.solve(noisy, label)
        return entropy(x) + energy / 2

    def remainder(x):
        """−ln of the invariant measure dU_1/|U_1|^{3/2} du/u over dx."""
        return (jnp.array([1.0, 2.0]) * jnp.log(jnp.diagonal(split(x)[1]))).sum()

    def packed(x):
        return order_parameter(x)[rows, columns]

    u_1, u_a = (np.asarray(matrix) for matrix in solution.order_parameters)
    factor = np.linalg.cholesky(u_1 / u_a) - np.eye(2)
    x = jnp.asarray(np.concatenate([np.log(u_a[0]), factor[rows, columns]]))
    np.testing.assert_allclose(jax.grad(action)(x), 0, atol=1e-6)
    posterior, change = whole_tensors(action, remainder, packed, x)
    prior, none = whole_tensors(entropy, remainder, packed, jnp.zeros(4))
    correction = next_order(solution)
    np.testing.assert_allclose(correction.log_evidence_correction, posterior - prior, rtol=1e-7)
    found = correction.order_parameter_correction[rows, columns]
    np.testing.assert_allclose(found, change, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(none, 0, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 2])
def test_all_spaces_agree(outputs):
    network = pk.Network((2,), (9, 7), (1.1, 0.8, 1.3), outputs)
    for count in (4, 20):  # fewer and more examples than features
        xi, labels = examples(network, count, 3)
        one, *others = (
            next_order(solve(network, xi, labels, 0.2, space))
            for space in ("examples", "features", "kernels")
        )
        for field, two in itertools.product(dataclasses.fields(one), others):
            np.testing.assert_allclose(
                getattr(one, field.name), getattr(two, field.name), rtol=1e-6, atol=1e-8
            )


def importance_samples(model, draws, seed=0, freedom=12, spread=1.1):
    """ln p(Y) and ⟨U⟩ with their errors, from a Student distribution around the mode."""
    value = jax.jit(model.log_density)
    gradient = jax.jit(jax.grad(model.log_density))
    hessian = jax.jit(jax.jacfwd(jax.grad(model.log_density)))
    x = np.asarray(model.initial(jax.random.key(seed)))
    for _ in range(100):  # damped Newton steps
        values, vectors = np.linalg.eigh(-np.asarray(hessian(x)))
        step = vectors @ ((vectors.T @ np.asarray(gradient(x))) / np.maximum(np.abs(values), 1.0))
        length = 1.0
        while not value(x + length * step) >= value(x) and length > 1e-9:
            length /= 2
        x = x + length * step
        if np.abs(step).max() < 1e-9:
            break
    assert values.min() > 0
    root = vectors * np.sqrt(spread / values)
    dimension, generator = len(x), np.random.default_rng(seed)
    z = generator.standard_normal((draws, dimension))
    z /= np.sqrt(generator.chisquare(freedom, (draws, 1)) / freedom)
    log_proposal = special.gammaln((freedom + dimension) / 2) - special.gammaln(freedom / 2)
    log_proposal -= dimension / 2 * math.log(freedom * math.pi) + np.log(spread / values).sum() / 2
    log_proposal = log_proposal - (freedom + dimension) / 2 * np.log1p((z**2).sum(1) / freedom)
    evaluate = jax.jit(jax.vmap(lambda x: (model.log_density(x), model.order_parameter(x))))
    signs = []
    for steps in (z @ root.T, -z @ root.T):  # antithetic pairs
        blocks = [evaluate(x + block) for block in np.array_split(steps, 20)]
        signs.append([np.concatenate(parts) for parts in zip(*blocks)])
    log_density, u = (np.stack(parts) for parts in zip(*signs))
    log_weights = log_density - log_proposal
    weights = np.exp(log_weights - log_weights.max())
    weights /= (scale := weights.mean())
    evidence = log_weights.max() + math.log(scale)
    mean = np.einsum("sk,skab->ab", weights, u) / (2 * draws)
    error = (weights[..., None, None] * (u - mean)).mean(0).std(0) / math.sqrt(draws)
    return evidence, weights.mean(0).std() / math.sqrt(draws), mean, error


@pytest.mark.parametrize(
    ("network", "evidence_bound", "fraction"),
    [
        (pk.Network((2, 2), 20), 0.01, 0.1),
        (pk.Network((2, 2), 80), 0.001, 0.03),
        (pk.Network((2,), (30, 20), (1.1, 0.8, 1.3), outputs=2), 0.01, 0.1),
    ],
    ids=["N=20", "N=80", "two outputs"],
)
def test_the_exact_hierarchy(network, evidence_bound, fraction):
    """Within Monte-Carlo error of a small fraction of the leading order's error."""
    xi, labels = examples(network, 12, 4)
    correction = next_order(solve(network, xi, labels, 0.2))
    model = build_model("order-parameter", xi, labels, network, 0.2)
    evidence, evidence_error, mean, mean_error = importance_samples(model, 20_000)
    assert evidence_error < 0.01
    assert abs(evidence - correction.log_evidence) > 0.2
    assert abs(evidence - correction.next_log_evidence) < 4 * evidence_error + evidence_bound
    leading = np.abs(mean - correction.order_parameter).max()
    allowed = 4 * mean_error + fraction * leading
    assert mean_error.max() < 0.2 * leading
    np.testing.assert_array_less(np.abs(mean - correction.mean_order_parameter), allowed)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "closed"), [(10, 0.85), (30, 0.9), (100, 0.85)])
def test_most_of_the_gap_to_exact_samples_is_closed_at_paper_size(width, closed):
    realised = HiddenMarkov().realise(0)
    xi = pk.attentioned_inputs(realised.train.inputs, realised.layers, realised.readout)
    network = pk.Network((2, 2), width)
    correction = next_order(solve(network, xi, realised.train.labels, 0.01))
    model = build_model("order-parameter", xi, realised.train.labels, network, 0.01)
    drawn = []
    for chain in range(2):
        key = jax.random.fold_in(jax.random.key(0), chain)
        state = warm_up(model, jax.random.fold_in(key, 0), 300)
        drawn.append(draw(model, state, jax.random.fold_in(key, 1), 8000)[1]["order_parameter"])
    u = np.stack(drawn)
    mean = u.mean((0, 1))
    sizes = [[array_stats.ess(u[..., a, b], method="mean") for a in range(4)] for b in range(4)]
    error = np.linalg.norm(u.std((0, 1)) / np.sqrt(sizes))
    before = np.linalg.norm(mean - correction.order_parameter)
    after = np.linalg.norm(mean - correction.mean_order_parameter)
    assert error < before / 4
    assert after < (1 - closed) * before + 2 * error


# Errors


@pytest.mark.parametrize(("widths", "named"), [((3, 8, 8), "N_0 = 3"), ((8, 1.5, 8), "N_1 = 1.5")])
def test_a_width_below_its_matrix_size_is_refused(widths, named):
    network = pk.Network((2, 2), widths)
    solution = solve(network, *examples(network, 6, 3), 0.3)
    with pytest.raises(ValueError, match=rf"{named}.* smaller than the size"):
        next_order(solution)


def test_a_solution_that_did_not_converge_is_refused():
    network = pk.Network((2,), 9)
    problem = pk.PathKernels(*examples(network, 6, 3))
    with pytest.raises(ValueError, match="GP_LIMIT"):
        next_order(pk.gp_limit(problem, network, 0.3))
    short = pk.minimise_action(problem, network, 0.3, max_evaluations=2, throw=False)
    with pytest.raises(ValueError, match="MAX_EVALUATIONS"):
        next_order(short)


def test_single_precision_is_refused():
    network = pk.Network((2,), 9)
    xi, labels = examples(network, 6, 3)
    problem = pk.PathKernels(xi.astype(np.float32), labels.astype(np.float32))
    with pytest.raises(pk.PrecisionError, match="float64"):
        next_order(pk.minimise_action(problem, network, 0.3))
