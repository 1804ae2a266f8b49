"""Widths that are infinite, which drop their level, and widths that differ by many orders."""

import math

import numpy as np
import pytest

import pathkernel_core as pk

VARIANCES = (1.0, 2.0, 0.5, 1.5)
INF = math.inf


def problem_of(network, seed=0):
    rng = np.random.default_rng(seed)
    xi = rng.normal(size=(24, network.n_paths, 6))
    labels = 3 * np.sign(xi[:, 0, 0])
    if network.outputs > 1:
        labels = np.stack([labels, xi[:, 1, 1]], axis=1)
    return xi, labels, pk.Problem(xi, labels)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("large", [1e4, 1e6, 1e8, 1e9, 1e12])
def test_the_tolerance_is_that_of_the_smallest_width(large, order):
    network = pk.Network((1,), (5, INF)[::order])
    _, _, problem = problem_of(network)
    limit = pk.minimise_action(problem, network, 0.1)
    wide = pk.minimise_action(problem, pk.Network((1,), (5, large)[::order]), 0.1)
    np.testing.assert_allclose(wide.order_parameter, limit.order_parameter, rtol=1e-6 + 10 / large)
    assert wide.log_evidence == pytest.approx(limit.log_evidence, abs=1e-5 + 100 / large)


@pytest.mark.parametrize(
    ("widths", "skips", "outputs"),
    [
        ((8, 9, INF), None, 1),
        ((8, INF, 10), None, 1),
        ((INF, 9, 10), None, 2),
        ((8, INF, INF), None, 1),
        ((INF, INF, 10), None, 1),
        ((INF, INF, 8), (0.5, None), 1),
        ((9, INF, INF), (None, 0.5), 1),
        ((INF, 9, 9), (None, 0.5), 1),
    ],
)
def test_an_infinite_width_is_the_limit_of_large_ones(widths, skips, outputs):
    network = pk.Network((2, 2), widths, VARIANCES, outputs, skips)
    xi, _, problem = problem_of(network)
    large = tuple(1e7 if width == INF else width for width in widths)
    wide_network = pk.Network((2, 2), large, VARIANCES, outputs, skips)
    solution, wide = (pk.minimise_action(problem, one, 0.1) for one in (network, wide_network))
    assert solution.status is pk.Status.CONVERGED

    def compare(one, other):
        one, other = np.asarray(one), np.asarray(other)
        np.testing.assert_allclose(one, other, atol=3e-5 * abs(other).max())

    for level in range(3):
        compare(solution.order_parameters[level], wide.order_parameters[level])
    compare(solution.log_evidence, wide.log_evidence)
    compare(solution.predict(xi[:3] + 0.1).variance, wide.predict(xi[:3] + 0.1).variance)
    for name in ("temperature", "variances", "path_norms"):
        compare(getattr(solution.response(), name), getattr(wide.response(), name))
    softest = solution.stability().softest * network.width
    assert softest == pytest.approx(wide.stability().softest * wide_network.width, rel=1e-3)
    started = pk.minimise_action(problem, network, 0.1, start=wide)
    compare(started.order_parameter, solution.order_parameter)
    compare(
        pk.minimise_action(problem, wide_network, 0.1, start=solution).order_parameter,
        wide.order_parameter,
    )


def test_all_widths_infinite_are_the_gaussian_process_limit():
    network = pk.Network((2, 2), INF, VARIANCES)
    xi, _, problem = problem_of(network)
    solution = pk.minimise_action(problem, network, 0.1)
    limit = pk.gp_limit(problem, pk.Network((2, 2), 10, VARIANCES), 0.1)
    assert solution.status is pk.Status.GP_LIMIT
    np.testing.assert_array_equal(solution.order_parameter, limit.order_parameter)
    assert solution.log_evidence == pytest.approx(limit.log_evidence)
    np.testing.assert_allclose(solution.predict(xi).mean, limit.predict(xi).mean)
    assert not solution.response().temperature.any()
    with pytest.raises(ValueError, match="all widths are infinite"):
        solution.stability()


@pytest.mark.parametrize("widths", [(INF, 9, 10), INF])
def test_gradients_through_a_minimum_take_infinite_widths(widths):
    torch = pytest.importorskip("torch")
    network = pk.Network((2, 2), widths)
    xi, labels, problem = problem_of(network)
    solution = pk.minimise_action(problem, network, 0.1)
    temperature = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    arrays = map(torch.as_tensor, (xi, labels))
    differentiable = pk.differentiable_solution(*arrays, network, temperature)
    assert float(differentiable.action.detach()) == pytest.approx(solution.action)
    assert float(differentiable.log_evidence.detach()) == pytest.approx(solution.log_evidence)
    differentiable.log_evidence.backward()
    step = 1e-5
    sides = [
        pk.minimise_action(problem, network, 0.1 + sign * step).log_evidence for sign in (1, -1)
    ]
    assert float(temperature.grad) == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-4)


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_a_search_for_minima_leaves_infinite_layers_alone():
    rng = np.random.default_rng(3)
    xi = rng.normal(size=(20, 2, 4))
    problem = pk.Problem(0.1 * xi, np.sign(xi[:, 0, 0]))
    large, infinite = (
        pk.minimise_action(problem, pk.Network((2,), (20, width), 0.02), 0.01, starts=8)
        for width in (1e7, INF)
    )
    assert infinite.log_evidence == pytest.approx(large.log_evidence, abs=1e-3)
