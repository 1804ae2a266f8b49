"""Minimisation for classes: warm starts, branches, curvature, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.action.evaluations import Action
from pathkernel_core.energy import likelihoods
from pathkernel_core.energy.costs import Sizes, minimisation_bytes, minimisation_seconds
from pathkernel_core.energy.likelihoods.softmax import Softmax
from pathkernel_core.prediction.input_gradients import log_evidence_gradient
from pathkernel_core.system.errors import TooLargeError


def data(classes, examples=20, paths=4, width=5, seed=0):
    rng = np.random.default_rng(seed)
    xi = rng.normal(size=(examples, paths, width))
    if classes == 1:
        return xi, np.sign(xi[:, 0, 0] + 0.3 * rng.normal(size=examples)), "logistic"
    scores = xi[:, 0, :classes] + 0.3 * rng.normal(size=(examples, classes))
    return xi, scores.argmax(axis=1), "softmax"


def problem_of(classes, **sizes):
    xi, labels, likelihood = data(classes, **sizes)
    return pk.Problem(xi, labels, likelihood=likelihood)


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
def test_all_libraries_give_the_same(space, library):
    xi, labels, likelihood = data(3)
    kernels = np.einsum("api,bqi->pqab", xi, xi) / 5
    network = pk.Network((2, 2), 20, outputs=3)

    def solve(array, integers):
        if space == "kernels":
            problem = pk.Problem.from_kernels(array(kernels), integers, likelihood=likelihood)
            own = array(np.einsum("pqaa->pqa", kernels)[:, :, :4])
            new = array(kernels[:, :, :4]), own
        else:
            problem = pk.Problem(array(xi), integers, space, likelihood=likelihood)
            new = (array(xi[:4]),)
        solution = pk.minimise_action(problem, network)
        mean = solution.predict_mean(new[0])
        return solution, solution.predict(*new), mean, solution.training_kernel()

    expected = solve(np.asarray, labels)
    solution, prediction, mean, kernel = solve(library.array, library.array(labels, "int64"))
    assert solution.status.ok
    assert solution.log_evidence == pytest.approx(expected[0].log_evidence, rel=1e-11)
    pairs = {
        "order parameter": (solution.order_parameter, expected[0].order_parameter),
        "probabilities": (prediction.probabilities, expected[1].probabilities),
        "variance": (prediction.variance, expected[1].variance),
        "mean": (prediction.mean, expected[1].mean),
        "mean alone": (mean, expected[1].mean),
        "kernel": (kernel, expected[3]),
    }
    for name, (actual, wanted) in pairs.items():
        np.testing.assert_allclose(library.numpy(actual), wanted, atol=1e-9, err_msg=name)


def test_warm_modes_change_results_by_rounding_only():
    problem = problem_of(3)
    action = Action(problem, pk.Network((2, 2), 20, outputs=3), np.nan)
    assert action.form is not problem.form
    rng = np.random.default_rng(1)
    for _ in range(4):
        factor = np.tril(rng.normal(size=(12, 12))) + 2 * np.eye(12)
        warm = action.form.energy_and_gradient(factor, np.nan)
        cold = problem.form.energy_and_gradient(factor, np.nan)
        assert warm[0] == pytest.approx(cold[0], rel=1e-13)
        np.testing.assert_allclose(warm[1], cold[1], rtol=0, atol=1e-11 * abs(cold[1]).max())
    assert problem.form.memory is None  # the warmth is the descent's alone


class CountingSoftmax(Softmax):
    """The softmax, which counts factorisations of its curvature."""

    name, count, is_multinomial = "counting", 0, False

    def derivatives(self, outputs, targets):
        CountingSoftmax.count += 1
        return super().derivatives(outputs, targets)


@pytest.mark.parametrize("space", ["examples", "features"])
@pytest.mark.parametrize("solve", [pk.gp_limit, pk.minimise_action])
def test_posterior_starts_from_the_mode_of_the_solution(solve, space, monkeypatch):
    counting = {**likelihoods.LIKELIHOODS, "counting": CountingSoftmax()}
    monkeypatch.setattr(likelihoods, "LIKELIHOODS", counting)
    xi, labels, _ = data(3)
    problem = pk.Problem(xi, labels, space, likelihood="counting")
    solution = solve(problem, pk.Network((2, 2), 20, (9.0, 1, 1, 1), outputs=3))
    CountingSoftmax.count = 0
    warm = solution.predict(xi[:3])
    steps = CountingSoftmax.count
    cold = replace(solution, form=None).predict(xi[:3])
    assert 2 * steps < CountingSoftmax.count - steps
    np.testing.assert_allclose(warm.mean, cold.mean, rtol=1e-12)
    np.testing.assert_allclose(warm.variance, cold.variance, rtol=1e-12)


def test_independent_branches_of_given_kernels_are_those_of_shared_heads_with_a_diagonal():
    xi, labels, likelihood = data(1, paths=3)
    kernels = np.einsum("api,bpi->pab", xi, xi) / 5
    branches = pk.Problem.from_kernels(kernels, labels, branches=True, likelihood=likelihood)
    u = np.array([0.5, 2.0, 1.3])
    energy, gradient = branches.energy_and_gradient(u)
    pairs = pk.Problem(xi, labels, likelihood=likelihood)
    expected, full = pairs.energy_and_gradient(np.diag(u))
    assert energy == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, full.diagonal(), rtol=1e-10)
    network = pk.Network((3,), 10, shared=False)
    solution = pk.minimise_action(branches, network)
    assert solution.status.ok
    own = np.einsum("laa->la", kernels)
    assert solution.predict(kernels[:, :2], own[:, :2]).probabilities.shape == (2, 2)
    with pytest.raises(ValueError, match=r"same_path_kernels\(xi\) to Problem.from_kernels"):
        pk.minimise_action(pairs, network)


def test_skips_and_sub_networks():
    xi, labels, likelihood = data(3)
    problem = pk.Problem(xi, labels, likelihood=likelihood)
    solution = pk.minimise_action(problem, pk.Network((1, 2), 10, outputs=3, skips=(0.7, None)))
    for space in ("features", "examples"):
        silent = pk.Network((1, 2), 10, outputs=3, skips=(0.0, None))
        pk.minimise_action(pk.Problem(xi, labels, space, likelihood=likelihood), silent)
    assert solution.status.ok
    smaller = problem.keep_paths([0, 1])
    assert smaller.likelihood is problem.likelihood
    direct = pk.Problem(xi[:, :2], labels, likelihood=likelihood)
    network = pk.Network((2,), 10, outputs=3)
    one, two = (pk.minimise_action(p, network).log_evidence for p in (smaller, direct))
    assert one == pytest.approx(two, rel=1e-10)


@pytest.mark.parametrize("space", ["examples", "features"])
def test_hessian_agrees_with_differences_of_the_action(space):
    xi, labels, likelihood = data(3, examples=12, paths=2)
    problem = pk.Problem(xi, labels, space, likelihood=likelihood)
    solution = pk.minimise_action(problem, pk.Network((2,), 15, outputs=3))
    assert solution.stability().kind in ("minimum", "marginal")
    direction = np.random.default_rng(0).normal(size=solution.hessian.size)
    curvature = solution.problem.form.curvature(solution.factors[0], np.nan)
    change = np.random.default_rng(1).normal(size=(6, 6))
    change = change + change.T
    u = solution.factors[0] @ solution.factors[0].T
    step = 1e-5
    up, down = (problem.energy_and_gradient(u + s * change)[1] for s in (step, -step))
    np.testing.assert_allclose(curvature.along(change), (up - down) / (2 * step), atol=1e-6)
    assert solution.hessian.product(direction) @ direction > -1e-6
    variances = solution.response().variances
    moved = [
        pk.minimise_action(problem, pk.Network((2,), 15, (1.0, 1.0, 1.0 + s), outputs=3))
        for s in (1e-3, -1e-3)
    ]
    change = (moved[0].order_parameter - moved[1].order_parameter) / 2e-3
    np.testing.assert_allclose(variances[-1], change, atol=1e-4)
    with pytest.raises(ValueError, match="no temperature to respond to"):
        _ = solution.response().temperature
    with pytest.raises(ValueError, match="do not change by small amounts"):
        solution.response().along_labels(np.zeros((12, 3)))


def test_scale_of_the_prior_out_of_proportion_warns():
    xi, labels, likelihood = data(3)
    for factor, message in ((1e-3, "is small.*equally probable"), (1e3, "is large.*Laplace")):
        problem = pk.Problem(factor * xi, labels, likelihood=likelihood)
        with pytest.warns(pk.ScaleWarning, match=message):
            pk.minimise_action(problem, pk.Network((2, 2), 20, outputs=3), starts=1)


def test_what_needs_the_squared_loss_is_refused():
    xi, labels, likelihood = data(3)
    problem = pk.Problem(xi, labels, likelihood=likelihood)
    network = pk.Network((2, 2), 20, outputs=3)
    solution = pk.minimise_action(problem, network)
    with pytest.raises(ValueError, match=r"leave-one-out.*squared loss.*validation"):
        pk.leave_one_out(solution, xi, labels)
    with pytest.raises(ValueError, match="gradients with respect to inputs need the squared"):
        log_evidence_gradient(solution, xi, np.eye(3)[labels])
    with pytest.raises(ValueError, match="temperature must be left out: the softmax"):
        pk.minimise_actions(problem, [network], [0.1])
    squared = pk.Problem(xi, labels.astype(float))
    with pytest.raises(ValueError, match="temperature is missing"):
        pk.minimise_actions(squared, [pk.Network((2, 2), 20)])
    with pytest.raises(ValueError, match="cannot be differentiated automatically"):
        problem.form.energy(solution.factors[0], np.nan)
    with pytest.raises(ValueError, match='space="kernels" does not serve'):
        pk.Problem(xi, labels, "kernels", likelihood=likelihood)
    assert (
        pk.gp_limit(pk.Problem(xi, labels.astype(float)), pk.Network((2, 2), 9), 0.1)
        .predict(xi)
        .probabilities
        is None
    )


def test_many_networks_have_a_solution_each():
    problem = problem_of(3)
    networks = [pk.Network((2, 2), N, outputs=3) for N in (10, 50)]
    rows = pk.minimise_actions(problem, networks)
    assert [len(row) for row in rows] == [1, 1]
    for (solution,), network in zip(rows, networks):
        single = pk.minimise_action(problem, network)
        assert solution.action == pytest.approx(single.action, rel=1e-10)


def test_too_many_rows_are_refused_with_the_sizes():
    xi = np.random.default_rng(0).normal(size=(700, 20, 40))
    labels = np.arange(700) % 10
    problem = pk.Problem(xi, labels, likelihood="softmax")
    with pytest.raises(TooLargeError, match="700 examples with 10 outputs have P·C = 7000 rows"):
        pk.minimise_action(problem, pk.Network((20,), 50, outputs=10))
    with pytest.raises(TooLargeError, match="8000 features"):
        pk.Problem(xi, labels, "features", likelihood="softmax")
    kernels = np.broadcast_to(np.eye(700), (1, 1, 700, 700))
    with pytest.raises(TooLargeError, match=r"at most 489 examples, and 9 for finite widths"):
        pk.Problem.from_kernels(kernels, np.arange(700) % 650, likelihood="softmax")
    few = pk.Problem(xi[:, :2, :3], labels, likelihood="softmax")
    assert few.space == "features"  # 60 features of 7,000 rows


def test_cost_model_knows_classes():
    squared, classes = Sizes(500, 16, 50, 10), Sizes(500, 16, 50, 10, classes=True)
    assert minimisation_seconds(classes, 100, "examples") > minimisation_seconds(
        Sizes(250, 16, 50, 10, classes=True), 100, "examples"
    )
    assert minimisation_seconds(classes, 100) > 10
    assert minimisation_bytes(classes, 100, "examples") > 8 * 5 * (5000**2)
    assert minimisation_bytes(squared, 100, "examples") > 0
