"""Descents that begin in float32 against those in float64 alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathkernel_core as pk
from pathkernel_core.action.quasi_newton import Iterate
from pathkernel_core.action.single_precision import LastDigits, relative_noise
from pathkernel_core.energy.costs import Sizes, minimisation_bytes, pays_in_single
from pathkernel_core.energy.form import Form

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")


def examples(paths=4, count=40, inputs=6, scale=1.0, seed=0):
    generator = np.random.default_rng(seed)
    xi = generator.standard_normal((count, paths, inputs))
    labels = np.sign(xi[:, 0, 0] + xi[:, -1, 1] + 0.3 * generator.standard_normal(count))
    return scale * xi, labels


def in_both(problem, network, temperature=None, **options):
    """Solutions with mixed precision and in float64 alone."""
    return [
        pk.minimise_action(
            problem, network, temperature, mixed_precision=mixed, throw=False, **options
        )
        for mixed in (True, False)
    ]


def assert_equal(mixed, double):
    assert mixed.status is double.status
    assert mixed.action == pytest.approx(double.action, rel=1e-10)
    assert len(mixed.other_minima) == len(double.other_minima)
    order_parameter, expected = (
        np.asarray(solution.order_parameter) for solution in (mixed, double)
    )
    np.testing.assert_allclose(order_parameter, expected, atol=1e-7 * abs(expected).max())
    assert double.single_evaluations == double.single_fallbacks == 0


POINTS = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([(1,), (3,), (2, 2), (2, 1, 2)]),
        "width": st.floats(2, 2000),
        "temperature": st.floats(-3, 0).map(lambda power: 10**power),
        "space": st.sampled_from(["examples", "features", "kernels"]),
        "scale": st.floats(-1, 1).map(lambda power: 10**power),
        "outputs": st.sampled_from([1, 1, 2]),
        "skip": st.booleans(),
        "seed": st.integers(0, 10**6),
    }
)


@settings(max_examples=20)
@given(point=POINTS)
def test_the_minimum_is_that_of_float64(point):
    skips = [0.7] * len(point["heads"]) if point["skip"] else None
    network = pk.Network(point["heads"], point["width"], outputs=point["outputs"], skips=skips)
    xi, labels = examples(network.n_paths, scale=point["scale"], seed=point["seed"])
    labels = labels if network.outputs == 1 else np.stack([labels, xi[:, 0, 1]], axis=1)
    problem = pk.Problem(xi, labels, point["space"])
    mixed, double = in_both(problem, network, point["temperature"])
    assert_equal(mixed, double)
    assert mixed.single_evaluations + mixed.single_fallbacks > 0


def test_every_library_descends_in_its_float32(library, monkeypatch):
    xi, labels = map(library.array, examples())
    problem, dtypes = pk.Problem(xi, labels, "examples"), []
    evaluate = type(problem.form).energy_and_gradient

    def note(form, *arguments):
        dtypes.append(str(form.array.dtype).rpartition(".")[2])
        return evaluate(form, *arguments)

    monkeypatch.setattr(type(problem.form), "energy_and_gradient", note)
    mixed = pk.minimise_action(problem, pk.Network((2, 2), 20), 0.1, mixed_precision=True)
    count = mixed.single_evaluations
    assert dtypes == ["float32"] * count + ["float64"] * (mixed.evaluations - count)
    assert 0 < mixed.evaluations - count < count
    assert type(mixed.order_parameter) is type(xi)
    assert mixed.order_parameter.dtype == xi.dtype


def test_given_kernels_and_independent_branches():
    xi, labels = examples()
    kernels = np.einsum("api,bqi->pqab", xi, xi) / xi.shape[2]
    assert_equal(*in_both(pk.Problem.from_kernels(kernels, labels), pk.Network((2, 2), 9), 0.1))
    branches = pk.Network((4,), 9, shared=False)
    assert_equal(*in_both(pk.Problem(xi, labels), branches, 0.1))
    problem = pk.Problem.from_kernels(pk.same_path_kernels(xi), labels, branches=True)
    assert_equal(*in_both(problem, branches, 0.1))


def test_classes():
    xi, _ = examples()
    problem = pk.Problem(xi, xi[:, 0, :3].argmax(axis=1), likelihood="softmax")
    mixed, double = in_both(problem, pk.Network((2, 2), 20, outputs=3))
    assert_equal(mixed, double)
    assert mixed.single_evaluations > 0


def test_a_symmetry_keeps_neither_on_a_saddle():
    """Rounding of float32 may break it, or keep it as float64 does."""
    labels = np.sign(np.random.default_rng(0).normal(size=20))
    xi = np.zeros((20, 4, 2))
    xi[:, [0, 3], [0, 1]] = 0.1 * labels[:, None]
    for turn in (np.eye(2), np.array([[0.8, 0.6], [-0.6, 0.8]])):
        problem = pk.Problem(xi @ turn, labels, "examples")
        mixed, double = in_both(problem, pk.Network((2, 2), 5), 0.01, starts=1)
        assert mixed.status is double.status is pk.Status.CONVERGED
        assert mixed.action == pytest.approx(double.action, rel=1e-10)
        assert mixed.stability().kind != "saddle"


@pytest.mark.parametrize("scale", [1e30, 1e-25])
@pytest.mark.parametrize("space", ["examples", "kernels"])
def test_what_float32_cannot_hold_is_left_to_float64(scale, space):
    problem = pk.Problem(*examples(count=15, scale=scale), space)
    mixed, double = in_both(problem, pk.Network((2, 2), 1000), 1.0)
    assert_equal(mixed, double)
    if scale > 1:  # an overflow
        assert mixed.single_evaluations == mixed.single_fallbacks == 1
        np.testing.assert_array_equal(mixed.order_parameter, double.order_parameter)


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
def test_singular_kernels_fall_back(space):
    xi, labels = examples()
    problem = pk.Problem(np.repeat(xi[:, :, :1], 6, axis=2) + 1e-9 * xi, labels, space)
    network = pk.Network((2, 2), 20)
    mixed, double = in_both(problem, network, 1e-5)
    assert mixed.single_fallbacks > 0
    assert relative_noise(problem, network, 1e-5) > relative_noise(problem, network, 1.0)
    assert mixed.status is double.status
    assert mixed.action == pytest.approx(double.action, rel=1e-10)


def test_kernels_that_only_float32_cannot_factorise(monkeypatch):
    """The condition, of the limit's kernel, does not foretell every failure."""
    problem, network = pk.Problem(*examples(), "examples"), pk.Network((2, 2), 20)
    evaluate, calls = type(problem.form).energy_and_gradient, []

    def fail_in_single(form, *arguments):
        calls.append(form.array.dtype)
        if form.array.dtype == np.float32 and len(calls) > fail_from:
            raise pk.NotPositiveDefiniteError("in float32")
        return evaluate(form, *arguments)

    monkeypatch.setattr(type(problem.form), "energy_and_gradient", fail_in_single)
    for successes in (0, 4):
        calls.clear()
        fail_from = successes
        mixed, double = in_both(problem, network, 0.1)
        assert mixed.single_fallbacks == 1
        assert mixed.single_evaluations > 0
        assert_equal(mixed, double)
    # steps until then are kept
    assert mixed.evaluations - mixed.single_evaluations < double.evaluations


def test_evaluations_are_limited_in_both_together():
    problem, network = pk.Problem(*examples()), pk.Network((2, 2), 5)
    for limit in (1, 2, 3, 7):
        solution = pk.minimise_action(
            problem, network, 0.1, max_evaluations=limit, mixed_precision=True, throw=False
        )
        assert solution.status is pk.Status.MAX_EVALUATIONS
        assert solution.evaluations == limit
        assert math.isfinite(solution.action)


def test_steps_and_reports_of_both_are_recorded():
    problem, reports = pk.Problem(*examples(), "examples"), []
    network = pk.Network((2, 2), 20)
    solution = pk.minimise_action(
        problem, network, 0.1, mixed_precision=True, report=reports.append
    )
    assert len(reports) == solution.iterations + 1 == len(solution.action_history)
    assert [report.done for report in reports] == sorted({report.done for report in reports})
    assert reports[-1].done == solution.evaluations
    # of float32 to its rounding, of float64 to that of float64
    assert solution.action_history[-1] == pytest.approx(solution.action, rel=1e-14)
    assert (np.diff(solution.action_history) <= 1e-5 * abs(solution.action)).all()
    assert f"{solution.single_evaluations} of them in float32" in solution._repr_html_()


def test_a_start_near_the_minimum_stays_in_float64():
    problem, network = pk.Problem(*examples()), pk.Network((2, 2), 20)
    start = pk.minimise_action(problem, network, 0.1, mixed_precision=True)
    again = pk.minimise_action(problem, network, 0.1, start=start, mixed_precision=True)
    assert (again.evaluations, again.single_evaluations, again.single_fallbacks) == (1, 0, 0)
    # far from it float32 begins with the curvature of the start
    there = pk.minimise_action(problem, network, 0.5, start=start, mixed_precision=True)
    alone = pk.minimise_action(problem, network, 0.5, start=start)
    assert_equal(there, alone)
    assert there.single_evaluations > 0


def test_grids_share_the_copy():
    problem = pk.Problem(*examples(), "kernels")
    networks = [pk.Network((2, 2), width) for width in (5, 50, 500)]
    mixed = pk.minimise_actions(problem, networks, [0.5, 0.1], mixed_precision=True)
    double = pk.minimise_actions(problem, networks, [0.5, 0.1])
    for rows in zip(mixed, double):
        for pair in zip(*rows):
            assert_equal(*pair)
            assert pair[0].single_evaluations > 0
    assert problem.form.in_single_precision is problem.form.in_single_precision
    assert problem.form.in_single_precision.kernels.dtype == np.float32


def test_arguments():
    xi, labels = examples()
    network = pk.Network((2, 2), 20)
    single = pk.Problem(xi.astype(np.float32), labels.astype(np.float32))
    with pytest.raises(ValueError, match=r"mixed_precision needs float64.*has float32"):
        pk.minimise_action(single, network, 0.1, mixed_precision=True)
    assert pk.minimise_action(single, network, 0.1).single_evaluations == 0
    for wrong in ("mixed", 1):
        with pytest.raises(TypeError, match="mixed_precision must be True, False or None"):
            pk.minimise_actions(pk.Problem(xi, labels), [network], [0.1], mixed_precision=wrong)


def test_long_evaluations_take_it_unasked(monkeypatch):
    large = Sizes(600, 256, 64)
    assert pays_in_single("examples", large)
    assert pays_in_single("examples", Sizes(600, 1024, 64))
    assert not pays_in_single("examples", Sizes(100, 4, 231))
    assert not pays_in_single("examples", Sizes(6000, 4, 200, 3, classes=True))
    # the order parameters on the host take most of the time
    assert not pays_in_single("examples", Sizes(20, 4096, 1))
    features = 8 * 600 * 256 * 64
    monkeypatch.setattr("pathkernel_core.energy.costs._LONG", math.inf)
    without = minimisation_bytes(large, 100, "examples")
    monkeypatch.setattr("pathkernel_core.energy.costs._LONG", 0.0)
    assert minimisation_bytes(large, 100, "examples") - without == features / 2
    problem = pk.Problem(*examples(), "examples")
    assert pk.minimise_action(problem, pk.Network((1, 4), 20), 0.1).single_evaluations == 0
    monkeypatch.setattr("pathkernel_core.energy.problem.pays_in_single", lambda *sizes: True)
    assert pk.minimise_action(problem, pk.Network((1, 4), 20), 0.1).single_evaluations > 0


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01])
def test_noise_is_foretold_by_the_condition(space, temperature):
    """To a factor of a hundred, as the gradient of float32 differs from that of float64."""
    problem, network = pk.Problem(*examples(count=60), space), pk.Network((2, 2), 20)
    identity, form = np.eye(4), problem.form
    _, exact = form.energy_and_gradient(identity, temperature)
    _, rounded = form.in_single_precision.energy_and_gradient(identity, temperature)
    noise = abs(rounded - exact).max() / abs(exact).max()
    assert 0.01 < relative_noise(problem, network, temperature) / noise < 100


def steps(gradients, values, length):
    return [
        Iterate(np.array([length * index]), value, np.array([gradient]))
        for index, (gradient, value) in enumerate(zip(gradients, values))
    ]


def ended(gradients, values, noise=1e-9, tolerance=1e-8, length=1e-6):
    """Number of steps until the last digits, and the state then."""
    last_digits = LastDigits(noise)
    for number, point in enumerate(steps(gradients, values, length), start=1):
        if last_digits.reached(point, abs(point.gradient[0]) / tolerance):
            return number, last_digits
    return None, last_digits


def test_the_last_digits_of_a_descent():
    gradients = [1.0, 1e-2, 1e-4, 1e-6, 1e-8]
    # the next step would be within the tolerance
    assert ended(gradients, [1e-3] * 5, tolerance=1e-7)[0] == 4
    assert ended(gradients, [1e-3] * 5, tolerance=1e-6)[0] == 4
    # the kernel's rounding, and that of a large value
    for end in (ended(gradients, [1e-3] * 5, noise=1e-4), ended(gradients, [1e3] * 5)):
        assert end[0] == 3
        assert end[1].are_clean
    # neither value nor gradient falls
    number, end = ended([1.0, 0.1, 0.1, 0.1, 0.1, 0.1], [1.0] * 6)
    assert (number, end.are_clean, end.idle) == (5, False, 3)
    # values that fall count, though gradients rise
    rising, falling = [-0.1, -0.2, -0.4, -0.8, -1.6], [0.0, -0.15, -0.45, -1.05, -2.25]
    assert ended(rising, falling, length=1.0)[0] is None


def test_numbers_of_statistics_stay_as_they_are():
    sums = pk.SufficientStatistics.of(*examples())
    sums = pk.SufficientStatistics(
        sums.gram, sums.projections, np.float64(sums.label_square), np.int64(sums.n_examples)
    )
    problem = pk.Problem.from_statistics(sums)
    assert_equal(*in_both(problem, pk.Network((2, 2), 20), 1.0))
    single = problem.form.in_single_precision
    assert single.label_square == problem.form.label_square
    assert single.n_examples == problem.form.n_examples


def test_every_form_has_a_copy_in_float32():
    def forms(kind):
        return [kind, *(form for subclass in kind.__subclasses__() for form in forms(subclass))]

    xi, labels = examples()
    problems = [pk.Problem(xi, labels, space) for space in ("examples", "features", "kernels")]
    problems.append(pk.Problem.from_kernels(np.einsum("api,bqi->pqab", xi, xi), labels))
    for space in ("examples", "features"):
        problems.append(pk.Problem(xi, labels, space, likelihood="logistic"))
    kernels = pk.same_path_kernels(xi)
    problems.append(pk.Problem.from_kernels(kernels, labels, branches=True, likelihood="logistic"))
    problems += [problem.by_ep() for problem in problems[4:]]
    copied = set()
    for problem in problems:
        branches = [] if not problem.likelihood.is_gaussian else [problem.branch_form]
        for form in (problem.form, *branches):
            single = form.in_single_precision
            assert type(single) is type(form)
            assert single.array.dtype == np.float32
            assert form.array.dtype == np.float64
            copied.add(type(form))
    concrete = {form for form in forms(Form) if not form.__abstractmethods__}
    assert {form for form in concrete if form.__module__.startswith("pathkernel")} == copied
