"""Spinodals: a flat direction, a minimum on one side alone, and curves with a cusp."""

import numpy as np
import pytest
from two_heads import PLANE, along_variance, minima, over_the_plane

from pathkernel_core.phases.coexistence import follow
from pathkernel_core.phases.spinodals import spinodal_curves, spinodal_towards

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")


@pytest.mark.parametrize(("start", "target"), [(0.4, 0.001), (0.02, 5.0)])
def test_a_minimum_ends_where_the_action_is_flat_along_a_direction(start, target):
    family = along_variance(0.01)
    minimum, beyond = family.search(np.log([start])), np.log([target])
    spinodal = spinodal_towards(family, minimum, beyond)
    hessian = family.hessian(spinodal.point, spinodal.coordinates)
    assert abs(hessian.smallest(1)[0][0]) < 1e-8
    assert np.abs(hessian.product(spinodal.mode)).max() < 1e-3
    assert np.abs(family.evaluate(spinodal.point, spinodal.coordinates)[1]).max() < 1e-8
    assert spinodal.softest_other > 0.1
    # the minimum exists on one side, and its softest eigenvalue falls as the root of the distance
    assert np.sign(spinodal.inside) == np.sign(minimum.point - spinodal.point)
    distances = np.array([4e-5, 1e-5])
    softest = [
        follow(family, minimum, spinodal.point + d * spinodal.inside).solution.stability().softest
        for d in distances
    ]
    assert softest[0] / softest[1] == pytest.approx(2.0, rel=0.1)
    outside = spinodal.point - 1e-4 * spinodal.inside
    assert not np.array_equal(follow(family, minimum, outside).point, outside)


def test_a_state_that_reaches_the_target_has_no_spinodal():
    family = along_variance(0.01)
    assert spinodal_towards(family, family.search(np.log([0.4])), np.log([0.2])) is None


def test_two_spinodals_meet_in_a_cusp():
    family = over_the_plane()
    (used,) = minima(family, [0.4, 0.01])
    spinodal = spinodal_towards(family, used, np.log([0.005, 0.01]))
    parts = spinodal_curves(family, spinodal, PLANE)
    assert len(parts) == 2
    cusp = parts[0][-1]
    assert parts[1][0] is cusp
    # there the cubic term of the action vanishes, too: at the critical point both minima are one
    along = [cusp.coordinates + step * cusp.mode for step in (0.02, -0.02)]
    bends = [family.hessian(cusp.point, x).product(cusp.mode) @ cusp.mode for x in along]
    assert bends[0] > 0 < bends[1]
    assert abs(bends[0] - bends[1]) < 0.2 * (bends[0] + bends[1])
    assert np.exp(cusp.point) == pytest.approx([0.218, 0.0314], rel=0.01)


def test_every_point_of_a_curve_is_a_spinodal_and_the_given_values_are_among_them():
    family = over_the_plane()
    (used,) = minima(family, [0.4, 0.01])
    spinodal = spinodal_towards(family, used, np.log([0.005, 0.01]))
    points = [point for part in spinodal_curves(family, spinodal, PLANE) for point in part]
    for point in points[::4]:
        assert np.abs(family.evaluate(point.point, point.coordinates)[1]).max() < 1e-7
        softest = family.hessian(point.point, point.coordinates).smallest(1)[0][0]
        assert abs(softest) < 1e-7
    logs = np.array([point.point for point in points])
    for temperature in (0.003, 0.01):  # one point on either curve
        assert (logs[:, 1] == np.log(temperature)).sum() == 2
    for end in (logs[0], logs[-1]):
        border = np.isclose(end, PLANE.low) | np.isclose(end, PLANE.high)
        assert border.any()


def test_the_curve_is_that_of_single_searches():
    family = over_the_plane()
    (used,) = minima(family, [0.4, 0.01])
    spinodal = spinodal_towards(family, used, np.log([0.005, 0.01]))
    curve = spinodal_curves(family, spinodal, PLANE)
    for temperature in (0.003, 0.01):
        alone = along_variance(temperature)
        minimum, silent = minima(alone, 0.4, 0.01)
        ends = [
            spinodal_towards(alone, minimum, np.log([0.005])),
            spinodal_towards(alone, silent, np.log([5.0])),
        ]
        of_curve = sorted(
            point.point[0]
            for part in curve
            for point in part
            if point.point[1] == np.log(temperature)
        )
        np.testing.assert_allclose(of_curve, sorted(end.point[0] for end in ends), atol=1e-7)
