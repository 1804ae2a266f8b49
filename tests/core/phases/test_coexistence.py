"""Minima followed through a parameter, and crossings on a line between two of them."""

import math

import numpy as np
import pytest
from two_heads import along_variance, minima

import pathkernel as front
import pathkernel_core as pk
from pathkernel_core.phases.coexistence import ActionFamily, crossings_between, follow

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")

SIDES = 0.02, 0.4


def uses_its_paths(minimum):
    return np.trace(minimum.solution.order_parameter) > 1.0


@pytest.mark.parametrize("temperature", [0.005, 0.01, 0.02])
def test_the_crossing_is_where_the_lowest_minimum_changes(temperature):
    family = along_variance(temperature)
    (crossing,) = crossings_between(family, *minima(family, *SIDES))
    low, high = np.log(SIDES)
    while high - low > 1e-7:  # by hand, with a full search at every value
        middle = (low + high) / 2
        used = uses_its_paths(family.search(np.array([middle])))
        low, high = (low, middle) if used else (middle, high)
    assert crossing.point[0] == pytest.approx(low, abs=1e-6)
    actions = [minimum.solution.action for minimum in crossing.minima]
    assert actions[0] == pytest.approx(actions[1], rel=1e-9)
    assert [uses_its_paths(minimum) for minimum in crossing.minima] == [False, True]
    assert family.evaluations > 0


def test_the_crossing_does_not_depend_on_the_order_of_the_sides():
    family = along_variance(0.01)
    below, above = minima(family, *SIDES)
    (one,), (other,) = (
        crossings_between(family, *pair) for pair in ((below, above), (above, below))
    )
    np.testing.assert_allclose(one.point, other.point, atol=1e-7)


def test_one_state_has_no_crossing():
    family = along_variance(0.01, scale=3.0)
    assert crossings_between(family, *minima(family, *SIDES)) == []


def test_a_third_state_between_two_has_two_crossings():
    """From silent through the paths of a random head to those that carry the signal."""
    task = front.HiddenMarkov().realise(seed=0)
    xi = front.attentioned_inputs(task.train.inputs, task.layers, readout=task.readout)
    problem = pk.Problem(xi, task.train.labels)
    family = ActionFamily(problem, lambda values: (pk.Network(task.heads, 10, values[0]), 0.03))
    below, above = minima(family, 0.02, 1.0)
    crossings = crossings_between(family, below, above)
    assert len(crossings) == 2
    strongest = [
        np.argmax(np.diag(minimum.solution.order_parameter))
        for crossing in crossings
        for minimum in crossing.minima
    ]
    assert strongest[1] == strongest[2] == 3
    assert strongest[3] == 0
    for crossing in crossings:
        action = crossing.minima[0].solution.action
        lowest = family.search(crossing.point)
        assert lowest.solution.action == pytest.approx(action, rel=1e-7)


def test_a_state_is_followed_to_the_target_or_to_its_end():
    family = along_variance(0.01)
    silent, used = minima(family, *SIDES)
    reached = follow(family, used, np.log([0.1]))
    assert reached.point[0] == math.log(0.1)
    assert uses_its_paths(reached)
    end = follow(family, used, np.log([0.01]))
    assert 0.02 < np.exp(end.point[0]) < 0.1
    assert uses_its_paths(end)
    assert not uses_its_paths(silent)


def test_the_slope_is_the_derivative_of_the_action_of_the_minimum():
    family = along_variance(0.01)
    _, used = minima(family, *SIDES)
    step = np.array([1e-3])
    above, below = (follow(family, used, used.point + sign * step) for sign in (1, -1))
    rise = (above.solution.action - below.solution.action) / 2e-3
    assert family.slope(used) == pytest.approx(rise, rel=1e-5)
