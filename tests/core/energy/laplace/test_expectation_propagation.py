"""Expectation propagation: a check of Laplace's approximation for two classes."""

import numpy as np
import pytest
import scipy

import pathkernel_core as pk
from pathkernel_core.action.approximation import difference


def data(examples=20, width=4, seed=0):
    rng = np.random.default_rng(seed)
    xi = rng.normal(size=(examples, 2, width))
    return xi, np.sign(xi[:, 0, 0] + 0.5 * rng.normal(size=examples))


def test_one_example_is_exact():
    """EP matches the moments of a single example exactly, at any scale."""
    for scale in (0.01, 1.0, 50.0, 2000.0):
        problem = pk.Problem(np.ones((1, 1, 1)), np.array([1.0]), likelihood="logistic").by_ep()
        solution = pk.gp_limit(problem, pk.Network((1,), 10, (scale, 1, 1)))
        assert solution.log_evidence == pytest.approx(np.log(0.5), abs=1e-10)

        def density(f, scale=scale):
            return scipy.special.expit(f) * scipy.stats.norm.pdf(f, scale=np.sqrt(scale)) / 0.5

        ends = -12 * np.sqrt(scale), 12 * np.sqrt(scale)
        settings = {"points": [0.0], "limit": 200, "epsabs": 1e-12}
        mean = scipy.integrate.quad(lambda f: f * density(f), *ends, **settings)[0]
        prediction = solution.predict(np.ones((1, 1, 1)))
        assert prediction.mean[0] == pytest.approx(mean, rel=1e-8)


def test_two_examples_have_the_evidence_of_a_quadrature():
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    weights = weights / weights.sum()
    kernel = np.array([[3.0, 1.0], [1.0, 2.0]])
    problem = pk.Problem.from_kernels(
        kernel[None, None], np.array([1.0, -1.0]), likelihood="logistic"
    )
    lower = np.linalg.cholesky(kernel)
    f = lower @ np.array(np.meshgrid(nodes, nodes)).reshape(2, -1)
    values = scipy.special.expit(f[0]) * scipy.special.expit(-f[1])
    exact = np.log(values @ np.outer(weights, weights).reshape(-1))
    network = pk.Network((1,), np.inf)
    by_ep, laplace = (pk.gp_limit(p, network).log_evidence for p in (problem.by_ep(), problem))
    assert abs(by_ep - exact) < 2e-3
    assert abs(by_ep - exact) < 0.1 * abs(laplace - exact)


@pytest.mark.parametrize("classes", [1, 2])
def test_gradient_agrees_with_differences(classes):
    xi, signs = data(8)
    labels = signs if classes == 1 else (signs > 0).astype(int)
    likelihood = "logistic" if classes == 1 else "softmax"
    problem = pk.Problem(xi, labels, likelihood=likelihood).by_ep()
    rng = np.random.default_rng(1)
    factor = rng.normal(size=(2 * classes, 9))
    u, direction = factor @ factor.T / 3, rng.normal(size=(2 * classes,) * 2)
    direction = direction + direction.T
    _, gradient = problem.energy_and_gradient(u)

    def energy(t):
        return problem.energy_and_gradient(u + t * direction)[0]

    near, far = energy(1e-3) - energy(-1e-3), energy(2e-3) - energy(-2e-3)
    assert np.sum(gradient * direction) == pytest.approx((8 * near - far) / 12e-3, abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_random_problems_have_the_derivative_along_their_scale(seed):
    """From 1e-6 to 1e4, with equal inputs of different classes."""
    rng = np.random.default_rng(seed)
    examples, width = rng.integers(1, (12, 6))
    xi, labels = rng.normal(size=(examples, 2, width)), rng.choice([-1, 1], size=examples)
    if rng.random() < 0.5:
        xi[examples // 2] = xi[0]
    problem = pk.Problem(xi, labels, likelihood="logistic").by_ep()
    scale = 10 ** rng.uniform(-6, 4)

    def energy(log):
        return problem.energy_and_gradient(np.eye(2), variance=scale * np.exp(log))

    _, gradient = energy(0)
    near, far = (energy(step)[0] - energy(-step)[0] for step in (1e-3, 2e-3))
    assert gradient.trace() == pytest.approx((8 * near - far) / 12e-3, abs=1e-7)


def test_a_prior_wider_than_the_quadrature_is_refused():
    xi, labels = data()
    problem = pk.Problem(1e4 * xi, labels, likelihood="logistic")
    with pytest.raises(pk.NotPositiveDefiniteError, match="standard deviation of an output is"):
        pk.gp_limit(problem.by_ep(), pk.Network((2,), 10))


def test_check_is_a_solution_beside_and_agrees_at_small_scale(library):
    xi, labels = data()
    problem = pk.Problem(library.array(xi), library.array(labels), likelihood="logistic")
    solution = pk.minimise_action(problem, pk.Network((2,), 20, (0.3, 1, 1)), check="ep")
    assert solution.check.status.ok
    assert solution.check.problem.likelihood is problem.likelihood
    differing = difference(solution)
    assert 0 < differing.order_parameter < 0.05
    assert abs(differing.log_evidence) < 0.1
    one, two = (
        library.numpy(s.predict(library.array(xi)).probabilities)
        for s in (solution, solution.check)
    )
    np.testing.assert_allclose(one, two, atol=0.02)
    assert differing.probability == pytest.approx(abs(one - two).max(), rel=1e-6)


def test_check_from_features_and_given_kernels():
    xi, labels = data(20, width=2)
    network = pk.Network((2,), 10)
    features = pk.Problem(xi, labels, "features", likelihood="logistic")
    kernels = np.einsum("api,bqi->pqab", xi, xi) / 2
    given = pk.Problem.from_kernels(kernels, labels, likelihood="logistic")
    one, two = (pk.minimise_action(p, network, check="ep") for p in (features, given))
    assert one.check.log_evidence == pytest.approx(two.check.log_evidence, rel=1e-9)
    assert difference(one).probability == pytest.approx(difference(two).probability, rel=1e-6)


def test_a_large_scale_warns():
    xi, labels = data()
    problem = pk.Problem(xi, labels, likelihood="logistic")
    with pytest.warns(pk.ScaleWarning, match="expectation propagation differ by"):
        solution = pk.minimise_action(problem, pk.Network((2,), 50, (100.0, 1, 1)), check="ep")
    # the error does not fall with the width: the evidence is lower by about a nat
    assert difference(solution).log_evidence < -0.3


def test_an_example_without_inputs_has_even_odds():
    xi, labels = data()
    silent = np.concatenate([xi, np.zeros((2, 2, 4))])
    both = np.concatenate([labels, [1.0, -1.0]])
    network = pk.Network((2,), 20)
    one, two = (
        pk.minimise_action(pk.Problem(x, y, likelihood="logistic"), network, check="ep")
        for x, y in ((xi, labels), (silent, both))
    )
    for solution, other in ((one, two), (one.check, two.check)):
        assert other.status.ok
        difference_of_evidence = solution.log_evidence - other.log_evidence
        assert difference_of_evidence == pytest.approx(2 * np.log(2), abs=1e-8)
        np.testing.assert_allclose(other.predict(silent).probabilities[-1], 0.5, atol=1e-12)


def test_a_check_that_fails_leaves_the_solution(monkeypatch):
    monkeypatch.setattr("pathkernel_core.energy.laplace.expectation_propagation._SWEEPS", 1)
    xi, labels = data()
    problem, network = pk.Problem(xi, labels, likelihood="logistic"), pk.Network((2,), 50)
    with pytest.warns(pk.ScaleWarning, match="no check by expectation propagation: .* converge"):
        solution = pk.minimise_action(problem, network, check="ep")
    assert solution.status.ok
    assert not solution.check.status.ok
    assert solution.log_evidence == pk.minimise_action(problem, network).log_evidence


def test_more_classes_and_the_squared_loss_are_refused():
    xi, _ = data()
    network = pk.Network((2,), 10, outputs=3)
    three = pk.Problem(xi, np.arange(20) % 3, likelihood="softmax")
    with pytest.raises(ValueError, match=r"for two classes.*softmax.*has 3"):
        pk.minimise_action(three, network, check="ep")
    squared = pk.Problem(xi, np.sign(xi[:, 0, 0]))
    with pytest.raises(ValueError, match="squared loss needs no check"):
        pk.minimise_action(squared, pk.Network((2,), 10), 0.1, check="ep")
    with pytest.raises(ValueError, match='check must be "ep"'):
        pk.minimise_action(three, network, check="EP")
