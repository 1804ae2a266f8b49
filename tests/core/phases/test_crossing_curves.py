"""Crossings as curves: equal actions, ends at critical and triple points, and symmetries."""

import numpy as np
import pytest
from two_heads import PLANE, along_variance, minima, over_the_plane

import pathkernel as front
import pathkernel_core as pk
from pathkernel_core.phases import crossing_curves
from pathkernel_core.phases.coexistence import ActionFamily, crossings_between, is_lower
from pathkernel_core.phases.crossing_curves import crossing_curve, curve_onwards
from pathkernel_core.phases.curves import Stops

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")


def curve_of(family):
    (crossing,) = crossings_between(family, *minima(family, [0.02, 0.01], [0.4, 0.01]))
    return crossing_curve(family, crossing, PLANE)


def test_both_minima_have_the_same_action_all_along():
    family = over_the_plane()
    points = curve_of(family).points
    assert len(points) > 8
    for point in points:
        actions = [minimum.solution.action for minimum in point.minima]
        assert actions[0] == pytest.approx(actions[1], rel=1e-9)
        # either is the lowest on its own side
        left, right = (family.search(point.point + sign * point.normal) for sign in (-0.02, 0.02))
        traces = [np.trace(m.solution.order_parameter) for m in (left, right, *point.minima)]
        assert (traces[0] < traces[1]) == (traces[2] < traces[3])


def test_the_curve_is_that_of_single_crossings():
    family = over_the_plane()
    logs = np.array([point.point for point in curve_of(family).points])
    for temperature in (0.003, 0.01):
        alone = along_variance(temperature)
        (crossing,) = crossings_between(alone, *minima(alone, 0.01, 0.4))
        (of_curve,) = logs[logs[:, 1] == np.log(temperature), 0]
        assert of_curve == pytest.approx(crossing.point[0], abs=1e-7)
    for variance in (0.1, 0.2):  # values of the other parameter, too
        assert (logs[:, 0] == np.log(variance)).sum() == 1


def test_the_curve_ends_at_the_critical_point():
    points = curve_of(over_the_plane()).points
    last = max(points, key=lambda point: point.point[1])
    assert np.exp(last.point) == pytest.approx([0.218, 0.0314], rel=0.01)
    one, other = (minimum.coordinates for minimum in last.minima)
    assert np.abs(one - other).max() < 0.3
    one, other = (minimum.coordinates for minimum in points[len(points) // 2].minima)
    assert np.abs(one - other).max() > 0.7


def test_inputs_labels_and_temperature_in_other_units_move_the_curve_by_these():
    """K and T scale by c², labels by c: the action changes by a constant, so T by c²."""
    factor = 3.0
    scaled = over_the_plane(scale=0.1 * factor, labels=factor)
    (crossing,) = crossings_between(
        scaled, *minima(scaled, [0.02, 0.01 * factor**2], [0.4, 0.01 * factor**2])
    )
    shift = np.array([0.0, 2 * np.log(factor)])
    stops = Stops(
        PLANE.low + shift,
        PLANE.high + shift,
        (PLANE.values[0], PLANE.values[1] + shift[1]),
    )
    points = crossing_curve(scaled, crossing, stops).points
    expected = curve_of(over_the_plane()).points
    for temperature in PLANE.values[1]:
        (one,) = [p.point[0] for p in expected if p.point[1] == temperature]
        (other,) = [p.point[0] for p in points if np.isclose(p.point[1], temperature + shift[1])]
        assert one == pytest.approx(other, abs=1e-7)


def test_three_curves_meet_at_a_triple_point(monkeypatch):
    task = front.HiddenMarkov().realise(seed=0)
    xi = front.attentioned_inputs(task.train.inputs, task.layers, readout=task.readout)
    problem = pk.Problem(xi, task.train.labels)
    family = ActionFamily(
        problem, lambda values: (pk.Network(task.heads, 10, values[0]), float(values[1]))
    )
    below, above = minima(family, [0.07, 0.1], [0.15, 0.1])
    (crossing,) = crossings_between(family, below, above)
    stops = Stops(np.log([0.02, 0.02]), np.log([0.2, 0.1]), (np.log([0.05, 0.1]), np.log([0.03])))
    curve = crossing_curve(family, crossing, stops)
    assert len(curve.further_starts) == 2
    (triple,) = [p for p in (curve.points[0], curve.points[-1]) if p.point[1] < np.log(0.09)]
    actions = [triple.minima[0].solution.action] + [
        minimum.solution.action for start in curve.further_starts for minimum in start.minima
    ]
    np.testing.assert_allclose(actions, actions[0], rtol=1e-8)
    # it ends there: no third minimum is lower at the point before, nor lies that beyond
    ordered = curve.points if curve.points[0] is triple else curve.points[::-1]
    before = ordered[1]
    assert not is_lower(family.search(before.point), before.minima[0])
    distances = [np.linalg.norm(point.point - triple.point) for point in ordered]
    assert distances == sorted(distances)
    assert 0 < distances[1] < distances[2] - distances[1]
    # where the triple point is not found, at the last point before
    towards = ordered[2] if curve.points[-1] is triple else ordered[2].opposite
    with monkeypatch.context() as patch:
        patch.setattr(crossing_curves, "_triple_point", lambda *_: None)
        open_end = curve_onwards(family, towards, stops)
    assert open_end.further_starts == []
    assert not is_lower(family.search(open_end.points[-1].point), open_end.points[-1].minima[0])
    assert len(open_end.points) > 1
    for start in curve.further_starts:
        np.testing.assert_array_equal(start.point, triple.point)
        further = curve_onwards(family, start, stops).points
        assert len(further) > 2
        # no other minimum is lower on the way
        point = further[len(further) // 2]
        lowest = family.search(point.point).solution.action
        assert lowest == pytest.approx(point.minima[0].solution.action, rel=1e-7)
