"""Many points at once against the same points one by one."""

import math

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.action import solvers
from pathkernel_core.action.continuation import minimise_grid
from pathkernel_core.action.minima import may_have_several
from pathkernel_core.action.minimise import UNSOLVABLE
from pathkernel_core.arrays.backend import on_accelerator
from pathkernel_core.energy import costs, kernel_batches
from pathkernel_core.energy.kernel_batches import SharedKernels

TEMPERATURES = (0.02, 1.0, 0.2)


@pytest.fixture(scope="module")
def examples():
    generator = np.random.default_rng(3)
    xi = generator.standard_normal((40, 4, 30))
    return xi, np.sign(xi[:, 0, 0] + xi[:, 3, 1] + 0.3 * generator.standard_normal(40))


def networks(outputs=1):
    return [pk.Network((2, 2), width, outputs=outputs) for width in (5, 20, 100, 1000)]


def together(monkeypatch):
    """Let evaluations of few examples be evaluated together, as those of many are."""
    monkeypatch.setattr(costs, "_CACHED", 0)


def assert_equal(solutions, single, tolerance=1e-6):
    assert solutions.action == pytest.approx(single.action, rel=1e-9)
    assert solutions.status is single.status is pk.Status.CONVERGED
    order_parameter, expected = (
        np.asarray(solution.order_parameter) for solution in (solutions, single)
    )
    np.testing.assert_allclose(order_parameter, expected, atol=tolerance * abs(expected).max())


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
def test_grids_are_the_single_points(monkeypatch, examples, space):
    together(monkeypatch)
    problem = pk.Problem(*examples, space)
    grid = pk.minimise_actions(problem, networks(), TEMPERATURES)
    assert [len(row) for row in grid] == [3] * 4
    for network, row in zip(networks(), grid):
        for temperature, solution in zip(TEMPERATURES, row):
            assert (solution.network, solution.temperature) == (network, temperature)
            assert_equal(solution, pk.minimise_action(problem, network, temperature))


def test_points_of_every_library_together(monkeypatch, library, examples):
    together(monkeypatch)
    problem = pk.Problem(*map(library.array, examples), space="kernels")
    batches, evaluate = [], type(problem.form).energies_and_gradients

    def noted(form, factors, *given):
        batches.append(len(factors))
        return evaluate(form, factors, *given)

    monkeypatch.setattr(type(problem.form), "energies_and_gradients", noted)
    grid = pk.minimise_actions(problem, networks(), [0.1])
    assert batches[0] == 4
    assert min(batches) >= costs.TOGETHER
    reference = pk.Problem(*examples)
    for network, (solution,) in zip(networks(), grid):
        assert library.owns(solution.order_parameter)
        single = pk.minimise_action(reference, network, 0.1)
        assert solution.action == pytest.approx(single.action, rel=1e-9)
        np.testing.assert_allclose(
            library.numpy(solution.order_parameter), single.order_parameter, atol=1e-6
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_energies_together_are_the_single_ones(library, examples, dtype):
    xi, labels = (library.array(values, dtype) for values in examples)
    generator, form = np.random.default_rng(0), pk.Problem(xi, labels, "kernels").form
    assert isinstance(form, SharedKernels)
    factors = [np.tril(generator.standard_normal((4, 4))) for _ in range(5)]
    scales = [None, *[generator.uniform(0, 1, (4, 1)) for _ in range(4)]]
    temperatures = [0.3, 0.1, 1.0, 0.2, 5.0]
    rtol = 2e-4 if dtype == "float32" else 1e-10
    values = form.energies_and_gradients(factors, temperatures, scales)
    for (energy, gradient), *arguments in zip(values, factors, temperatures, scales):
        expected_energy, expected = form.energy_and_gradient(*arguments)
        assert energy == pytest.approx(expected_energy, rel=rtol)
        np.testing.assert_allclose(gradient, expected, atol=rtol * abs(expected).max())


def test_batches_are_bounded_in_memory(monkeypatch, examples):
    form = pk.Problem(*examples, "kernels").form
    arguments = [np.eye(4)] * 7, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [None] * 7
    whole = form.energies_and_gradients(*arguments)
    monkeypatch.setattr(kernel_batches, "_ELEMENTS", 3 * form.kernels.shape[1])
    for (energy, gradient), (expected, of_all) in zip(
        form.energies_and_gradients(*arguments), whole, strict=True
    ):
        assert energy == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient, of_all, atol=1e-12 * abs(of_all).max())


def test_given_kernels_together(monkeypatch, examples):
    together(monkeypatch)
    xi, labels = examples
    kernels = np.einsum("api,bqi->pqab", xi, xi) / xi.shape[2]
    problem = pk.Problem.from_kernels(kernels, labels)
    inputs = pk.minimise_actions(pk.Problem(xi, labels), networks(), TEMPERATURES)
    for row, expected in zip(pk.minimise_actions(problem, networks(), TEMPERATURES), inputs):
        for solution, of_inputs in zip(row, expected):
            assert_equal(solution, of_inputs)


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_several_minima_are_searched_for(monkeypatch):
    """Where the kernel is small against the temperature a point takes further starts."""
    together(monkeypatch)
    xi = np.random.default_rng(0).standard_normal((40, 4, 6))
    problem = pk.Problem(0.1 * xi, np.sign(xi[:, 0, 0]), "kernels")
    network = pk.Network((2, 2), 4)
    temperatures = [0.01, 0.1, 0.3, 3.0]
    (solutions, *_) = pk.minimise_actions(problem, [network, *networks()], temperatures)
    searched = [may_have_several(problem, network, temperature) for temperature in temperatures]
    assert searched == [False, True, True, False]
    for solution, temperature, is_searched in zip(solutions, temperatures, searched):
        single = pk.minimise_action(problem, network, temperature)
        assert solution.action == pytest.approx(single.action, rel=1e-9)
        if is_searched:
            assert solution.evaluations == single.evaluations


def test_one_that_cannot_be_factorised_does_not_fail_the_others(monkeypatch, library, examples):
    together(monkeypatch)
    form = pk.Problem(*map(library.array, examples), space="kernels").form
    questions = [
        solvers.EnergyQuestion(form, scale * np.eye(4), temperature, None)
        for scale, temperature in ((1.0, 0.1), (np.nan, 0.1), (1.0, 0.5), (2.0, 0.5))
    ]
    first, failed, *others = solvers.energies(questions)
    assert isinstance(failed, pk.NotPositiveDefiniteError | np.linalg.LinAlgError | ValueError)
    for question, (energy, _) in zip([questions[0], *questions[2:]], [first, *others]):
        single, _ = form.energy_and_gradient(question.factor, question.temperature)
        assert energy == pytest.approx(single, rel=1e-10)


def test_the_form_follows_the_number_of_points():
    generator = np.random.default_rng(0)
    xi = generator.standard_normal((300, 16, 30))
    problem = pk.Problem(xi, xi[:, 0, 0])
    assert problem.space == "examples"
    assert problem.for_points(1) is problem
    assert problem.for_points(10).space == "kernels"
    chosen = pk.Problem(xi, xi[:, 0, 0], "examples")
    assert chosen.for_points(10) is chosen
    assert not problem.pays_together(10)
    assert problem.for_points(10).pays_together(10)
    assert not problem.for_points(10).pays_together(1)


@pytest.mark.parametrize(
    ("outputs", "points", "together"), [(1, 1, False), (1, 2, True), (1, 9, True), (2, 9, False)]
)
def test_on_an_accelerator_all_points_of_one_output_go_together(
    monkeypatch, outputs, points, together
):
    """However small the problem. No CPU can see whether that is faster, which a GPU must show."""
    generator = np.random.default_rng(0)
    xi, labels = generator.normal(size=(6, 2, 3)), generator.normal(size=(6, outputs))
    form = pk.Problem(xi, labels, "kernels").form
    assert not form.pays_together(points)  # on the host, where the kernels stay in cache
    monkeypatch.setattr(kernel_batches, "on_accelerator", lambda array: array is form.labels)
    assert form.pays_together(points) is together


def test_an_accelerator_is_any_device_that_is_no_cpu():
    assert not on_accelerator(np.zeros(1))
    torch = pytest.importorskip("torch")
    assert not on_accelerator(torch.zeros(1))
    assert on_accelerator(torch.zeros(1, device="meta"))


def test_progress_counts_points(examples):
    seen = []
    pk.minimise_actions(pk.Problem(*examples), networks()[2:], TEMPERATURES, report=seen.append)
    assert [(progress.done, progress.total) for progress in seen] == [(k, 6) for k in range(1, 7)]


@pytest.mark.parametrize("space", ["examples", "kernels"])
def test_solutions_are_handed_over_as_soon_as_they_are_there(monkeypatch, examples, space):
    together(monkeypatch)
    handed = {}

    def on_solution(i, j, solution):
        handed[i, j] = solution

    problem = pk.Problem(*examples, space)
    grid = pk.minimise_actions(problem, networks(), TEMPERATURES, on_solution=on_solution)
    assert handed == {(i, j): grid[i][j] for i in range(4) for j in range(3)}
    first = [(i, j) for i, j in handed if i == 0]
    assert first == [(0, 1), (0, 2), (0, 0)], "from the highest temperature to the lowest"
    side_by_side = list(handed)[:3] != first
    assert side_by_side == (space == "kernels"), "one after another where that is as fast"


def test_what_a_callback_raises_ends_the_grid(examples):
    handed = []

    def on_solution(*point):
        handed.append(point)
        if len(handed) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pk.minimise_actions(
            pk.Problem(*examples), networks(), TEMPERATURES, on_solution=on_solution
        )
    assert len(handed) == 2


def test_grids_end_at_each_networks_own_temperature(examples):
    problem, points = pk.Problem(*examples), []
    lowest = [0.2, 1.0, 0.02, math.inf]

    def on_point(index, temperature, outcome):
        assert isinstance(outcome, pk.Solution)
        points.append((index, temperature))

    minimise_grid(
        problem,
        networks(),
        TEMPERATURES,
        on_point,
        is_over=lambda index, temperature: temperature < lowest[index],
    )
    assert points == [(0, 1.0), (0, 0.2), (1, 1.0), (2, 1.0), (2, 0.2), (2, 0.02)]


def test_points_that_cannot_be_factorised_are_outcomes(examples):
    xi, labels = examples
    outcomes = {}

    def on_point(index, temperature, outcome):
        outcomes[index, temperature] = outcome
        assert np.geterr()["under"] == "raise", "a callback has its caller's settings"

    with np.errstate(all="ignore"):
        problem = pk.Problem(1e160 * xi, labels)
    with np.errstate(under="raise"):
        minimise_grid(problem, networks()[:2], (0.1, 1.0), on_point)
    assert list(outcomes) == [(0, 1.0), (0, 0.1), (1, 1.0), (1, 0.1)]
    assert all(isinstance(outcome, UNSOLVABLE) for outcome in outcomes.values())


def test_failures_raise_or_are_marked(examples):
    problem = pk.Problem(*examples)
    with pytest.raises(pk.MinimisationError, match=r"at width 5 and temperature 0.1: .*most 2 fr"):
        pk.minimise_actions(problem, networks(), [0.1], max_evaluations=2)
    grid = pk.minimise_actions(problem, networks(), [0.1, 1], max_evaluations=2, throw=False)
    assert {solution.status for row in grid for solution in row} == {pk.Status.MAX_EVALUATIONS}


@pytest.mark.parametrize("space", ["examples", "kernels"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_point_that_cannot_be_factorised_costs_no_other(monkeypatch, space, shared):
    """Temperatures at random, of which some are below the rounding of a singular kernel."""
    together(monkeypatch)
    generator = np.random.default_rng(7)
    xi = generator.standard_normal((12, 4, 1))
    xi = np.concatenate([xi, xi[:6]]).astype("float32")
    problem = pk.Problem(xi, np.sign(xi[:, 0, 0]), space)
    heads = (2, 2) if shared else (4,)
    many = [pk.Network(heads, width, shared=shared) for width in (5, 20)]
    temperatures = [0.1, *10.0 ** -generator.uniform(25, 30, size=2), 1.0]
    grid = pk.minimise_actions(problem, many, temperatures, throw=False, tolerance=1e-2)
    failed = 0
    for network, row in zip(many, grid):
        for temperature, solution in zip(temperatures, row):
            assert (solution.network, solution.temperature) == (network, temperature)
            single = pk.minimise_action(problem, network, temperature, throw=False, tolerance=1e-2)
            assert solution.status is single.status
            failed += solution.status is pk.Status.NOT_POSITIVE_DEFINITE
            if temperature >= 0.1:
                assert solution.action == pytest.approx(single.action, rel=1e-3)
    assert failed == 4


def test_a_point_without_a_solution_says_why(examples):
    xi, labels = examples
    with np.errstate(all="ignore"):
        problem = pk.Problem(1e160 * xi, labels)
    network = pk.Network((2, 2), (5, 20, 100))
    message = r"at widths \(5, 20, 100\) and temperature 0.1, the kernel overflows .* rescale"
    with pytest.raises(pk.NotPositiveDefiniteError, match=message):
        pk.minimise_action(problem, network, 0.1)
    with pytest.raises(pk.NotPositiveDefiniteError, match=f"{message}.* throw=False for the other"):
        pk.minimise_actions(problem, [network], [0.1])
    ((solution,),) = pk.minimise_actions(problem, [network], [0.1], throw=False)
    assert not solution.status.ok
    assert "rescale the inputs" in solution.note
    assert "rescale the inputs" in solution._repr_html_()
    assert math.isnan(solution.action)
    assert math.isnan(solution.log_evidence)
    assert solution.order_parameter.shape == (4, 4)
    for call in (
        lambda: solution.predict(xi),
        lambda: solution.predict_mean(xi),
        lambda: solution.head_scores,
        lambda: solution.head_contributions,
        solution.stability,
        solution.response,
        solution.training_kernel,
        lambda: pk.leave_one_out(solution),
    ):
        with pytest.raises(pk.NotPositiveDefiniteError, match="there is no solution here: at wid"):
            call()
    with pytest.raises(ValueError, match="start has no order parameters: at widths"):
        pk.minimise_action(pk.Problem(xi, labels), network, 0.1, start=solution)


@pytest.mark.parametrize(
    ("many", "temperatures", "message"),
    [
        ([], [0.1], "networks is empty"),
        (networks(), [], "temperatures is empty"),
        (networks(), [0.1, 0.1], "temperatures must differ"),
        (networks(), [0.1, -1], "temperatures must be positive"),
        ([*networks(), pk.Network((3,), 5)], [0.1], "hence 3 paths"),
        (networks(outputs=2), [0.1], "has 2 outputs"),
    ],
)
def test_bad_arguments_are_named(examples, many, temperatures, message):
    with pytest.raises(ValueError, match=message):
        pk.minimise_actions(pk.Problem(*examples), many, temperatures)


def test_what_is_no_sequence_is_named(examples):
    problem = pk.Problem(*examples)
    for many, temperatures, name in (
        (networks()[0], [0.1], "networks"),
        (networks(), 0.1, "temperatures"),
        (networks(), "0.1", "temperatures"),
    ):
        with pytest.raises(TypeError, match=f"{name} must be a sequence"):
            pk.minimise_actions(problem, many, temperatures)
