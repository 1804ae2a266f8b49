import math

import formulas
import numpy as np
import pytest

from pathkernel_core import Network, Problem, gp_limit, minimise_action


def test_log_evidence_approaches_the_limits_at_any_width(generator):
    """ln p(Y) of a Gaussian process, approached as 1/N up to the largest width there is."""
    xi, labels = formulas.random_examples(Network((2, 2), 1), 12, 5, generator)
    kernel = formulas.kernel(xi, xi, np.eye(4)) + 0.3 * np.eye(12)
    expected = -0.5 * (labels @ np.linalg.solve(kernel, labels) + np.linalg.slogdet(kernel)[1])
    expected -= 6 * math.log(2 * math.pi)
    problem = Problem(xi, labels)
    for width in (1e6, 1e9, 1e15, 1e200, 1e308):
        solution = minimise_action(problem, Network((2, 2), width), 0.3)
        assert abs(solution.log_evidence - expected) < 100 / width + 1e-9
    for width in (0.5, 3, 100):  # narrower than U, too, the limit is a Gaussian process
        assert gp_limit(problem, Network((2, 2), width), 0.3).log_evidence == pytest.approx(
            expected
        )


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
        fitted = labels @ np.linalg.solve(noisy, np.tile(labels[:, None], (draws, 1, 1)))[..., 0].T
        log_likelihood = -0.5 * (
            fitted + np.linalg.slogdet(noisy)[1] + examples * math.log(2 * math.pi)
        )
        largest = log_likelihood.max()
        exact = largest + math.log(np.exp(log_likelihood - largest).mean())
        solution = minimise_action(Problem(xi, labels), network, temperature)
        errors.append(abs(solution.log_evidence - exact))
    assert errors[0] < 0.5
    assert errors[1] < errors[0] / 2
    assert errors[2] < max(errors[1] / 2, 0.02)


def test_log_evidence_is_defined_down_to_the_size_of_the_order_parameter(generator):
    """A Wishart matrix has a density from as many degrees of freedom as rows on."""
    network, narrower = Network((2, 2), 4), Network((2, 2), math.nextafter(4, 0))
    xi, labels = formulas.random_examples(network, 12, 5, generator)
    problem = Problem(xi, labels)
    solution = minimise_action(problem, network, 0.3)
    above = formulas.action(np, network, solution.order_parameters, xi, labels, 0.3).real
    above -= formulas.entropy(np, network, formulas.limit(network)).real
    expected = -0.5 * (above + 12 * math.log(2 * math.pi))
    assert solution.log_evidence == pytest.approx(expected, rel=1e-9)
    assert math.isnan(minimise_action(problem, narrower, 0.3).log_evidence)
