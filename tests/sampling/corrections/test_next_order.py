"""The next order in 1/N against quadrature, brute-force derivatives and exact samples."""

import itertools
import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
array_stats = pytest.importorskip("arviz_stats.base").array_stats
jnp = jax.numpy

from scipy import linalg, special

import pathkernel_core as pk
from pathkernel_sampling.chains.chain import draw_states, warm_up
from pathkernel_sampling.corrections.next_order import next_order, predict_next_order
from pathkernel_sampling.models.energy_derivatives import EnergyDerivatives
from pathkernel_sampling.models.models import build_model
from pathkernel_tasks.hidden_markov import HiddenMarkov


def examples(network, count, width, scale=1.5, seed=1):
    generator = np.random.default_rng(seed)
    xi = generator.standard_normal((count, network.n_paths, width))
    return xi, scale * generator.standard_normal((count, network.outputs))


def solve(network, xi, labels, temperature, space="auto"):
    return pk.minimise_action(pk.Problem(xi, labels, space), network, temperature, tolerance=1e-9)


# One path, one output: the hierarchy is two numbers, and integrals over it are sums over a grid.


def quadrature(kernel, labels, temperature, network):
    """ln p(Y), and U_1 = χ²_{N_1}/N_1 · χ²_{N_2}/N_2 on a grid with its posterior weights."""
    axes = []
    for width in network.widths:
        spread = 1 / math.sqrt(2 * width)
        centre = math.log(width) / 2
        log = np.linspace(centre - 20 * spread, centre + 14 * spread, 401)  # ln χ
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
    return log_weights.max() + math.log(weights.sum()), u, weights / weights.sum()


def errors(network, xi, labels, new, temperature):
    """Errors of leading and next order: log evidence, ⟨U⟩, mean and variance of the predictor.

    The last two are the largest over new examples.
    """
    solution = solve(network, xi, labels, temperature)
    correction = next_order(solution)
    every = np.concatenate([xi, new])[:, 0]
    kernel, count = every @ every.T / xi.shape[2], len(xi)
    values, vectors = np.linalg.eigh(kernel[:count, :count])
    evidence, u, weights = quadrature(kernel[:count, :count], labels[:, 0], temperature, network)
    targets, across = vectors.T @ labels[:, 0], vectors.T @ kernel[:count, count:]
    mean, variance = 0, np.diagonal(kernel)[count:, None, None] * u
    for value, target, seen in zip(values, targets, across[..., None, None]):
        gain = seen * u / (max(value, 0) * u + temperature)
        mean, variance = mean + gain * target, variance - gain * seen * u
    means = (weights * mean).sum((1, 2))
    total = (weights * (variance + mean**2)).sum((1, 2)) - means**2
    exact = evidence, (weights * u).sum(), means, total
    leading, following = (
        solution.predict(new),
        predict_next_order(solution, new, correction=correction),
    )
    approximations = (
        (correction.log_evidence, solution.order_parameter, leading.mean, leading.variance),
        (
            *(correction.next_log_evidence, correction.mean_order_parameter),
            *(following.mean, following.variance),
        ),
    )
    return np.array(
        [[abs(one - two).max() for one, two in zip(exact, row)] for row in approximations]
    )


def orders(coarse, fine, factor):
    """Powers of 1/N with which errors fall."""
    return np.log(coarse / fine) / math.log(factor)


def one_path():
    """Four examples and three new ones, of which none lies in the span of the four."""
    xi, labels = examples(pk.Network((1,), 1), 4, 6)
    return xi, labels, 0.7 * xi[:3] + examples(pk.Network((1,), 1), 3, 6, seed=2)[0]


def test_errors_fall_one_order_faster_at_fixed_examples():
    """Of the log evidence as 1/N and 1/N³, of ⟨U⟩ as 1/N² and 1/N³ once N exceeds P.

    Of the predictor as 1/N, and faster than that; the next test shows with what power.
    """
    small, large = (errors(pk.Network((1,), width), *one_path(), 0.5) for width in (160, 1280))
    leading, following = orders(small, large, 8)
    np.testing.assert_allclose(leading, (1, 2, 1, 1), atol=0.15)
    np.testing.assert_array_less((2.6, 2.6, 1.3, 1.3), following)
    np.testing.assert_array_less(large[1], (1e-6, 1e-6, 2e-5, 2e-5))


def test_errors_fall_one_order_faster_in_proportion_to_the_examples():
    """With P/N fixed: of the log evidence as 1 and 1/N², of all others as 1/N and 1/N².

    The examples are those of N = 5 in N/5 orthogonal subspaces, so that the action per N does not
    change, and the expansion is one in powers of 1/N exactly.
    """
    xi, labels, new = one_path()
    errors_of_widths = []
    for copies in (1, 4, 16):
        subspaces = math.sqrt(copies) * np.eye(copies)
        repeated, within = np.kron(subspaces, xi[:, 0]), np.kron(subspaces[:1], new[:, 0])
        data = repeated[:, None], np.tile(labels, (copies, 1)), within[:, None]
        errors_of_widths.append(errors(pk.Network((1,), 5 * copies), *data, 0.5))
    leading, following = orders(errors_of_widths[1], errors_of_widths[2], 4)
    np.testing.assert_allclose(leading, (0, 1, 1, 1), atol=0.1)
    np.testing.assert_allclose(following, (2, 2, 2, 2), atol=0.35)
    for error in errors_of_widths:  # an improvement even at N = 5
        np.testing.assert_array_less(error[1], 0.15 * error[0])


# Any network


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_without_data_the_prior_is_exact():
    """⟨U⟩ of the prior is the Gaussian process limit at every width, to all orders."""
    network = pk.Network((2, 2), (7, 6, 6), (1.3, 0.7, 1.2, 0.9), skips=(None, 0.6))
    xi, labels = examples(network, 5, 3, scale=1e-3)
    solution = solve(network, 1e-6 * xi, labels, 1.0)
    correction = next_order(solution)
    np.testing.assert_allclose(correction.order_parameter_correction, 0, atol=1e-10)
    assert abs(correction.log_evidence_correction) < 1e-10
    prediction = predict_next_order(solution, xi, correction=correction)
    np.testing.assert_allclose(prediction.mean, 0, atol=1e-7)
    np.testing.assert_allclose(prediction.variance, solution.predict(xi).variance, rtol=1e-7)


def moments_of(prediction):
    """Mean and variance by name; the squared loss has no probabilities."""
    return {"mean": prediction.mean, "variance": prediction.variance}


def test_scaling_the_projection_is_scaling_the_inputs():
    """σ²_0 multiplies the kernel, as a factor of the inputs does: nothing else may change."""
    xi, labels = examples(pk.Network((2,), 9), 6, 3)
    new, found = examples(pk.Network((2,), 9), 4, 3, seed=2)[0], []
    for variance, scale in ((1.0, math.sqrt(2.5)), (2.5, 1.0)):
        network = pk.Network((2,), 9, (variance, 0.8, 1.3))
        solution = solve(network, scale * xi, labels, 0.3)
        found.append((next_order(solution), predict_next_order(solution, scale * new)))
    one, two = ({**vars(order), **moments_of(moments)} for order, moments in found)
    for name, value in one.items():
        np.testing.assert_allclose(value, two[name], rtol=1e-6, atol=1e-8, err_msg=name)


def derivatives(function, order, x):
    """A function's value and whole tensors of its derivatives at x, from one compiled program."""
    functions = [function]
    for _ in range(order):
        functions.append(jax.jacfwd(functions[-1]))
    return map(np.asarray, jax.jit(lambda x: [each(x) for each in functions])(x))


def whole_tensors(action, remainder, observable, x):
    """Laplace's method to next order from whole tensors of derivatives, in any coordinates.

    Of exp(−action − remainder): the log integral relative to the action's minimum, without 2π,
    and the correction of the observable.
    """
    _, first, second, third, fourth = derivatives(action, 4, x)
    np.testing.assert_allclose(first, 0, atol=1e-6)
    covariance = np.linalg.inv(second)
    value, slope, curvature = derivatives(remainder, 2, x)
    _, jacobian, hessian = derivatives(observable, 2, x)
    tadpole = np.einsum("ijk,jk->i", third, covariance)
    change = np.einsum("aij,ij->a", hessian, covariance) / 2
    change -= jacobian @ covariance @ (slope + tadpole / 2)
    total = -np.linalg.slogdet(second)[1] / 2 - value
    total -= np.einsum("ijkl,ij,kl->", fourth, covariance, covariance) / 8
    total += tadpole @ covariance @ tadpole / 8
    total += np.einsum("ijk,lmn,il,jm,kn->", third, third, *[covariance] * 3, optimize=True) / 12
    total += slope @ covariance @ (slope + tadpole) / 2 - np.sum(curvature * covariance) / 2
    return total, change


@pytest.mark.slow
def test_whole_tensors_in_other_coordinates():
    """U_1 = u V Vᵀ with V = 1 + a lower triangle, in which c is not linear."""
    network = pk.Network((2,), (7.0, 5.0))
    xi, labels = examples(network, 12, 3)
    solution = solve(network, xi, labels, 0.3)
    (rows, columns), (below, above) = np.tril_indices(2), network.widths
    features, label = xi / math.sqrt(2 * xi.shape[2]), labels[:, 0]

    def split(x):
        return jnp.exp(x[0]), jnp.array([[1 + x[1], 0.0], [x[2], 1 + x[3]]])

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

    new = examples(network, 3, 3, seed=2)[0]

    def observables(x):
        """Entries of U, then f, f² and v of new examples."""
        u, at = order_parameter(x), new / math.sqrt(2 * new.shape[2])
        kernel = jnp.einsum("pai,ab,qbi->pq", features, u, features) + 0.3 * jnp.eye(12)
        across = jnp.einsum("pai,ab,qbi->pq", features, u, at)
        weights = jnp.linalg.solve(kernel, across)
        variance = jnp.einsum("pai,ab,pbi->p", at, u, at) - (across * weights).sum(0)
        mean = label @ weights
        return jnp.concatenate([u[rows, columns], mean, mean**2, variance])

    u_1, u_a = (np.asarray(matrix) for matrix in solution.order_parameters)
    factor = np.linalg.cholesky(u_1 / u_a) - np.eye(2)
    x = jnp.asarray(np.concatenate([np.log(u_a[0]), factor[rows, columns]]))
    posterior, change = whole_tensors(action, remainder, observables, x)
    prior, none = whole_tensors(entropy, remainder, observables, jnp.zeros(4))
    correction, saddle = next_order(solution), solution.predict(new)
    np.testing.assert_allclose(correction.log_evidence_correction, posterior - prior, rtol=1e-7)
    entries = correction.order_parameter_correction[rows, columns]
    np.testing.assert_allclose(entries, change[:3], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(none[:3], 0, atol=1e-12)
    mean, square, variance = change[3:].reshape(3, -1)
    following = predict_next_order(solution, new, correction=correction)
    np.testing.assert_allclose(following.mean - saddle.mean, mean, rtol=1e-5, atol=1e-8)
    total = variance + square - 2 * saddle.mean * mean
    np.testing.assert_allclose(following.variance - saddle.variance, total, rtol=1e-5, atol=1e-8)


def test_derivatives_of_the_energy_along_a_line_are_those_of_its_eigenvalues():
    """At U + tV: Σ ln(1 + tλ) + w²/(1 + tλ) and a constant, λ of K(V) relative to K(U) + T1."""
    network, generator = pk.Network((2,), 9), np.random.default_rng(4)
    xi, labels = examples(network, 8, 3)
    solution = solve(network, xi, labels, 0.3)
    energy, basis = EnergyDerivatives(solution), generator.standard_normal((3, 3))
    direction = np.array([[basis[0, 0], basis[1, 0]], [basis[1, 0], basis[2, 0]]])
    noisy = pk.total_kernel(xi, solution.order_parameter) + 0.3 * np.eye(8)
    rates, vectors = linalg.eigh(pk.total_kernel(xi, direction), noisy)
    fit = (labels[:, 0] @ vectors) ** 2
    third, fourth = energy.higher(basis * [1, 0, 0])
    along = (energy.first @ basis[:, 0], basis[:, 0] @ energy.second @ basis[:, 0])
    exact = [rates * (1 - fit), rates**2 * (2 * fit - 1)]
    exact += [rates**3 * (2 - 6 * fit), rates**4 * (24 * fit - 6)]
    np.testing.assert_allclose([*along, third[0, 0, 0], fourth], np.sum(exact, axis=1), rtol=1e-9)
    third, _ = energy.higher(basis)
    for order in itertools.permutations(range(3)):
        np.testing.assert_allclose(third, third.transpose(order), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("outputs", [1, 2])
def test_all_spaces_agree(outputs):
    network = pk.Network((2,), (9, 7), (1.1, 0.8, 1.3), outputs)
    for count in (4, 20):  # fewer and more examples than features
        xi, labels = examples(network, count, 3)
        new = examples(network, 4, 3, seed=2)[0]
        corrections = []
        for space in ("examples", "features", "kernels"):
            solution = solve(network, xi, labels, 0.2, space)
            correction = next_order(solution)
            corrections.append(
                vars(correction)
                | moments_of(predict_next_order(solution, new, correction=correction))
            )
        one, *others = corrections
        for name, two in itertools.product(one, others):
            np.testing.assert_allclose(one[name], two[name], rtol=1e-6, atol=1e-8, err_msg=name)


def importance_samples(model, draws, seed=0, freedom=12, spread=1.1):
    """ln p(Y) with its error, draws of U in antithetic pairs (2, draws, …), and their weights.

    From a Student distribution around the mode.
    """
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
    for steps in (z @ root.T, -z @ root.T):
        blocks = [evaluate(x + block) for block in np.array_split(steps, 20)]
        signs.append([np.concatenate(parts) for parts in zip(*blocks)])
    log_density, u = (np.stack(parts) for parts in zip(*signs))
    log_weights = log_density - log_proposal
    weights = np.exp(log_weights - log_weights.max())
    weights /= (scale := weights.mean())
    evidence = log_weights.max() + math.log(scale)
    return evidence, weights.mean(0).std() / math.sqrt(draws), u, weights


def weighted(weights, values):
    """Mean of values of importance samples (2, draws, …), and its error."""
    mean = np.einsum("sk,sk...->...", weights, values) / weights.size
    weights = weights.reshape(*weights.shape, *[1] * mean.ndim)
    error = (weights * (values - mean)).mean(0).std(0) / math.sqrt(values.shape[1])
    return mean, error


def predictor_given(u, network, xi, labels, new, temperature):
    """Mean and variance of new outputs given each of some U, (…, P_new·C) each, by Eq. 29, 30."""
    every, count = np.concatenate([xi, new]), labels.size
    every = network.path_scales[:: network.outputs, None] * every
    pairs = np.einsum("pai,qbi->abpq", every, every) * network.variances[0] / xi[0].size
    moments = []
    for part in np.array_split(u.reshape(-1, *(network.n_paths, network.outputs) * 2), 20):
        kernel = np.einsum("sacbd,abpq->spcqd", part, pairs, optimize=True)
        kernel = kernel.reshape(len(part), len(every) * network.outputs, -1)
        across = kernel[:, :count, count:]
        noisy = kernel[:, :count, :count] + temperature * np.eye(count)
        weights = np.linalg.solve(noisy, across)
        prior = np.diagonal(kernel, axis1=1, axis2=2)[:, count:]
        moments.append((labels.reshape(-1) @ weights, prior - (across * weights).sum(1)))
    return [np.concatenate(parts).reshape(*u.shape[:2], -1) for parts in zip(*moments)]


@pytest.mark.parametrize(
    ("network", "evidence_bound", "fraction"),
    [
        pytest.param(pk.Network((2, 2), 20), 0.01, 0.1, marks=pytest.mark.slow),
        pytest.param(pk.Network((2, 2), 80), 0.001, 0.03, marks=pytest.mark.slow),
        (pk.Network((1,), 40, (1.1, 0.8, 1.3), outputs=2, skips=0.7), 0.01, 0.1),
    ],
    ids=["N=20", "N=80", "two outputs, skips"],
)
def test_the_exact_hierarchy(network, evidence_bound, fraction):
    """Within Monte-Carlo error of a small fraction of the leading order's error."""
    xi, labels = examples(network, 12, 4)
    new = examples(network, 3, 4, seed=2)[0]
    solution = solve(network, xi, labels, 0.2)
    correction = next_order(solution)
    model = build_model("order-parameter", xi, labels, network, 0.2)
    evidence, evidence_error, u, weights = importance_samples(model, 20_000)
    assert evidence_error < 0.01
    assert abs(evidence - correction.log_evidence) > 0.2
    assert abs(evidence - correction.next_log_evidence) < 4 * evidence_error + evidence_bound
    leading, following = (
        solution.predict(new),
        predict_next_order(solution, new, correction=correction),
    )
    f, v = predictor_given(u, network, xi, labels, new, 0.2)
    mean, _ = weighted(weights, f)
    for name, values, before, after in (
        ("U", u, correction.order_parameter, correction.mean_order_parameter),
        ("mean", f, leading.mean, following.mean),
        ("variance", v + (f - mean) ** 2, leading.variance, following.variance),
    ):
        exact, error = weighted(weights, values)
        gap, left = (abs(exact - given.reshape(exact.shape)) for given in (before, after))
        assert error.max() < 0.2 * gap.max(), name
        np.testing.assert_array_less(left, 4 * error + fraction * gap.max(), err_msg=name)


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
        drawn.append(
            draw_states(model, state, jax.random.fold_in(key, 1), 8000)[1]["order_parameter"]
        )
    u = np.stack(drawn)
    mean = u.mean((0, 1))
    sizes = [[array_stats.ess(u[..., a, b], method="mean") for a in range(4)] for b in range(4)]
    error = np.linalg.norm(u.std((0, 1)) / np.sqrt(sizes))
    before = np.linalg.norm(mean - correction.order_parameter)
    after = np.linalg.norm(mean - correction.mean_order_parameter)
    assert error < before / 4
    assert after < (1 - closed) * before + 2 * error


# Errors


@pytest.mark.parametrize(("widths", "named"), [((3, 8, 8), "N_1 = 3"), ((8, 1.5, 8), "N_2 = 1.5")])
def test_a_width_below_its_matrix_size_is_refused(widths, named):
    network = pk.Network((2, 2), widths)
    solution = solve(network, *examples(network, 6, 3), 0.3)
    with pytest.raises(ValueError, match=rf"{named}.* smaller than the size"):
        next_order(solution)


def test_a_solution_that_did_not_converge_is_refused():
    network = pk.Network((2,), 9)
    problem = pk.Problem(*examples(network, 6, 3))
    with pytest.raises(ValueError, match="GP_LIMIT"):
        next_order(pk.gp_limit(problem, network, 0.3))
    short = pk.minimise_action(problem, network, 0.3, max_evaluations=2, throw=False)
    with pytest.raises(ValueError, match="MAX_EVALUATIONS"):
        next_order(short)


def test_single_precision_is_refused():
    network = pk.Network((2,), 9)
    xi, labels = examples(network, 6, 3)
    problem = pk.Problem(xi.astype(np.float32), labels.astype(np.float32))
    with pytest.raises(pk.PrecisionError, match="float64"):
        next_order(pk.minimise_action(problem, network, 0.3))
