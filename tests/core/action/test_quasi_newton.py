import itertools
import math

import numpy as np
import pytest

from pathkernel_core.action import quasi_newton
from pathkernel_core.action.asking import answer_all


def run(function, start, curvature, stop, pairs=()):
    minimiser = quasi_newton.minimiser(start, curvature, stop, pairs)
    (result,) = answer_all([minimiser], lambda points: map(function, points))
    return result


def minimise(function, start, curvature=None, tolerance=1e-10):
    points = []

    def stop(point):
        points.append(point)
        return np.abs(point.gradient).max() <= tolerance

    curvature = np.ones(len(start)) if curvature is None else curvature
    result, _ = run(
        lambda x: quasi_newton.Iterate(x, *function(x)),
        np.asarray(start, dtype=float),
        curvature,
        stop,
    )
    return result, points


def rosenbrock(x):
    a, b = 1 - x[0], x[1] - x[0] ** 2
    return a**2 + 100 * b**2, np.array([-2 * a - 400 * x[0] * b, 200 * b])


def test_rosenbrock():
    result, points = minimise(rosenbrock, [-1.2, 1.0])
    assert result
    np.testing.assert_allclose(points[-1].x, 1.0, rtol=1e-9)
    values = [point.value for point in points]
    assert all(after <= before + 1e-11 for before, after in itertools.pairwise(values))


def test_known_curvature_solves_a_quadratic_in_one_step():
    scales = np.array([1.0, 1e3, 1e-3])
    result, points = minimise(
        lambda x: (0.5 * x @ (scales * x), scales * x), [1, 1e-3, 0.5], scales
    )
    assert result
    assert len(points) == 2


@pytest.mark.parametrize(("pairs", "limit"), [(100, 300), (10, 1000)])
def test_more_coordinates_than_memory(monkeypatch, pairs, limit):
    monkeypatch.setattr(quasi_newton, "_ELEMENTS", 2 * 300 * pairs)
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((300, 360))
    hessian = rows @ rows.T / 360 + 0.01 * np.eye(300)
    result, points = minimise(lambda x: (0.5 * x @ hessian @ x, hessian @ x), np.ones(300))
    assert result
    assert 100 < len(points) < limit


def quadratic(hessian, centre):
    def function(x):
        point = quasi_newton.Iterate(x, 0.5 * (x - centre) @ hessian @ (x - centre), None)
        point.gradient = hessian @ (x - centre)
        return point

    return function


def steps(function, start, pairs=()):
    shown = []

    def stop(point):
        shown.append(point)
        return np.abs(point.gradient).max() <= 1e-10

    result, pairs = run(function, start, np.ones(len(start)), stop, pairs)
    assert result
    return len(shown), pairs


def test_curvature_of_a_like_function_saves_steps():
    """Every direction was seen: another quadratic of that curvature is some steps away."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((20, 30))
    hessian = rows @ rows.T / 30 + 0.05 * np.eye(20)
    cold, pairs = steps(quadratic(hessian, np.zeros(20)), generator.standard_normal(20))
    assert cold > 10
    distant = quadratic(hessian, generator.standard_normal(20))
    repeated, _ = steps(distant, generator.standard_normal(20), pairs)
    assert repeated <= cold / 2


def test_curvature_that_misleads_is_forgotten():
    pairs = [(np.array([1.0, 0.0]), np.array([-1.0, 0.0]), -1.0)]  # a direction that goes up
    expected, _ = steps(quadratic(np.diag([1.0, 3.0]), np.ones(2)), np.zeros(2), pairs)
    assert expected < 20


def test_a_value_good_only_to_rounding_is_minimised_by_its_gradient():
    offset = 1e6  # hides changes of the value below 1e-10
    result, points = minimise(
        lambda x: (offset + 0.5 * x @ x + 0.25 * (x @ x) ** 2, x * (1 + x @ x)), [1.0, -2.0], None
    )
    assert result
    np.testing.assert_allclose(points[-1].x, 0.0, atol=1e-10)


def test_walls_are_stepped_back_from():
    def barrier(x):
        with np.errstate(invalid="ignore", divide="ignore"):
            if x[0] <= 0:
                return math.inf, np.full(1, np.nan)
            return x[0] - math.log(x[0]), 1 - 1 / x

    result, points = minimise(barrier, [1e-4], np.full(1, 1e-3))
    assert result
    np.testing.assert_allclose(points[-1].x, 1.0, rtol=1e-9)


def test_no_descent_is_admitted():
    """A gradient that lies: no step lowers the function."""
    result, points = minimise(lambda x: (abs(x[0]), -np.sign(x) - (x == 0)), [1.0])
    assert not result
    assert len(points) == 1


def test_the_start_may_be_the_minimum():
    result, points = minimise(lambda x: (x @ x, 2 * x), [0.0, 0.0])
    assert result
    assert len(points) == 1


def test_the_start_is_left_alone():
    start = np.array([-1.2, 1.0])
    minimise(rosenbrock, start)
    np.testing.assert_array_equal(start, [-1.2, 1.0])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_units_of_the_function_do_not_matter(scale):
    def scaled(x):
        value, gradient = rosenbrock(x)
        return scale * value, scale * gradient

    result, points = minimise(scaled, [-1.2, 1.0], np.full(2, scale), tolerance=1e-7 * scale)
    assert result
    np.testing.assert_allclose(points[-1].x, 1.0, rtol=1e-6)


def test_stop_sees_accepted_points_only():
    """A line search that fails is begun anew from the same point, which is not shown twice."""
    evaluated, shown = [], []

    def noisy(x):
        value = float(x @ x) + 1e-3 * np.sin(1e7 * x.sum())
        point = quasi_newton.Iterate(x, value, 2 * x, detail=len(evaluated))
        evaluated.append(point)
        return point

    def stop(point):
        shown.append(point)
        return False

    result, _ = run(noisy, np.array([1.0, -2.0]), np.ones(2), stop)
    assert not result
    assert len({point.detail for point in shown}) == len(shown)
    assert all(point is evaluated[point.detail] for point in shown)
    values = [point.value for point in shown]
    assert all(after <= before + 1e-10 for before, after in itertools.pairwise(values))
