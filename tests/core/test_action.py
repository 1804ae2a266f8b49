import math

import formulas
import numpy as np
import pytest
import scipy.stats

from pathkernel_core import (
    Network,
    PathKernels,
    entropy,
    entropy_gradient,
    gp_limit,
    gp_order_parameters,
    minimise_action,
)
from pathkernel_core.action import partial_trace
from pathkernel_core.coordinates import ChainCoordinates


def test_entropy_is_the_formula(network, generator):
    chain = formulas.random_chain(network, generator)
    assert entropy(network, chain) == pytest.approx(
        formulas.entropy(np, network, chain).real, rel=1e-12
    )


def test_entropy_gradients_are_derivatives(network, generator, derivative):
    chain = formulas.random_chain(network, generator)
    want = derivative(lambda xp, arrays: formulas.entropy(xp, network, arrays), chain)
    got = entropy_gradient(network, chain)
    assert [gradient.shape[0] for gradient in got] == list(network.sizes)
    for ours, theirs in zip(got, want):
        assert formulas.relative_error(ours, theirs) < 1e-11


def test_entropy_is_lowest_in_the_gaussian_process_limit(network, generator):
    limit = gp_order_parameters(network)
    scale = 1.0
    for variance, matrix in zip(network.variances[:0:-1], limit[::-1]):
        scale *= variance
        np.testing.assert_allclose(matrix, scale * np.eye(len(matrix)), rtol=1e-15)
    for gradient in entropy_gradient(network, limit):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-12)
    lowest = entropy(network, limit)
    for _ in range(20):
        assert entropy(network, formulas.random_chain(network, generator)) > lowest


def test_entropy_scales_with_the_widths(network, generator):
    wide = Network(
        network.heads, [7 * n for n in network.widths], network.variances, network.outputs
    )
    chain = formulas.random_chain(network, generator)
    assert entropy(wide, chain) == pytest.approx(7 * entropy(network, chain), rel=1e-13)


def test_entropy_is_minus_twice_the_log_prior():
    """With respect to dU/|U|^((m+1)/2) the Wishart hierarchy has the density exp(-S/2)/Z."""
    network = Network((2, 2), (9, 11, 8), (1.0, 0.6, 1.7, 1.2), outputs=2)
    generator = np.random.default_rng(3)
    constants = []
    for _ in range(5):
        chain = formulas.random_chain(network, generator)
        log_prior = 0.0
        for level, matrix in enumerate(chain):
            if level < network.n_layers:
                scale = np.kron(np.eye(network.heads[level]), chain[level + 1])
            else:
                scale = np.eye(network.outputs)
            degrees = network.widths[level]
            scale = network.variances[1 + level] * scale / degrees
            log_prior += scipy.stats.wishart.logpdf(matrix, degrees, scale)
            log_prior += (len(matrix) + 1) / 2 * np.linalg.slogdet(matrix)[1]
        constants.append(log_prior + entropy(network, chain) / 2)
    np.testing.assert_allclose(constants, constants[0], rtol=1e-12)


def test_entropy_is_infinite_off_the_positive_definite_matrices():
    network = Network((2,), 10)
    assert entropy(network, [np.diag([1.0, -1.0]), np.eye(1)]) == math.inf
    assert entropy(network, [np.diag([1.0, 0.0]), np.eye(1)]) == math.inf


def test_partial_trace_sums_the_slowest_index(generator):
    matrix = generator.standard_normal((6, 6))
    want = sum(matrix[2 * h : 2 * h + 2, 2 * h : 2 * h + 2] for h in range(3))
    np.testing.assert_allclose(partial_trace(matrix, 3), want, rtol=1e-14)


def test_excess_entropy_is_that_above_the_limit(generator):
    network = Network((2, 3), (9.5, 14, 11), (1, 0.7, 1.3, 0.6), outputs=2)
    coordinates = ChainCoordinates(network)
    at_limit = entropy(network, gp_order_parameters(network))
    assert coordinates.excess_entropy(coordinates.gp_limit) == 0.0
    x = 0.3 * generator.standard_normal(coordinates.gp_limit.shape)
    factors = coordinates.factors(coordinates.relative_factors(x))
    want = entropy(network, [factor @ factor.T for factor in factors]) - at_limit
    assert coordinates.excess_entropy(x) == pytest.approx(want, rel=1e-11)


def test_log_evidence_approaches_the_limits_at_any_width(generator):
    """ln p(Y) of a Gaussian process, approached as 1/N up to the largest width there is."""
    xi, labels = formulas.random_examples(Network((2, 2), 1), 12, 5, generator)
    kernel = formulas.kernel(xi, xi, np.eye(4)) + 0.3 * np.eye(12)
    want = -0.5 * (labels @ np.linalg.solve(kernel, labels) + np.linalg.slogdet(kernel)[1])
    want -= 6 * math.log(2 * math.pi)
    problem = PathKernels(xi, labels)
    for width in (1e6, 1e9, 1e15, 1e200, 1e308):
        solution = minimise_action(problem, Network((2, 2), width), 0.3)
        assert abs(solution.log_evidence - want) < 100 / width + 1e-9
    for width in (0.5, 3, 100):  # narrower than U, too, the limit is a Gaussian process
        assert gp_limit(problem, Network((2, 2), width), 0.3).log_evidence == pytest.approx(want)


def test_log_evidence_agrees_with_the_exact_integral_as_one_over_the_width():
    """Average of the likelihood over the hierarchy's prior, which is exact at every width."""
    generator = np.random.default_rng(11)
    examples, temperature, draws = 12, 0.3, 40_000
    xi = generator.standard_normal((examples, 2, 4))
    labels = np.sign(generator.standard_normal(examples))
    path_path = np.einsum("mpi,nqi->pqmn", xi, xi) / (2 * 4)
    errors = []
    for width in (20, 80, 320):
        network = Network((2,), width)
        u = formulas.wishart_hierarchy(network, draws, generator)[0]
        noisy = np.einsum("zpq,pqmn->zmn", u, path_path) + temperature * np.eye(examples)
        fit = labels @ np.linalg.solve(noisy, np.tile(labels[:, None], (draws, 1, 1)))[..., 0].T
        log_likelihood = -0.5 * (
            fit + np.linalg.slogdet(noisy)[1] + examples * math.log(2 * math.pi)
        )
        largest = log_likelihood.max()
        exact = largest + math.log(np.exp(log_likelihood - largest).mean())
        solution = minimise_action(PathKernels(xi, labels), network, temperature)
        errors.append(abs(solution.log_evidence - exact))
    assert errors[0] < 0.5
    assert errors[1] < errors[0] / 2
    assert errors[2] < max(errors[1] / 2, 0.02)
