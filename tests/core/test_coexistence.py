"""Crossings and spinodals of two branches of minima."""

import math

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.coexistence import Branch, coexistence

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")


class SmallKernel:
    """Twenty examples, of which one head out of two tells the label, against the prior variance."""

    def __init__(self, temperature, scale=0.1):
        xi = np.random.default_rng(3).normal(size=(20, 2, 4))
        self.problem = pk.PathKernels(scale * xi, np.sign(xi[:, 0, 0]))
        self.temperature = temperature

    def solve(self, variance, start=None):
        network = pk.Network((2,), 20, variance)
        return pk.minimise_action(self.problem, network, self.temperature, start=start)

    def coexistence(self, below=0.02, above=0.4):
        sides = [(variance, self.solve(variance)) for variance in (below, above)]
        return coexistence(self.solve, *sides, limits=(1e-4, 10.0))


def uses_its_paths(solution):
    return np.trace(solution.order_parameter) > 1.0


@pytest.mark.parametrize("temperature", [0.005, 0.01, 0.02])
def test_the_crossing_is_where_the_lowest_minimum_changes(temperature):
    system = SmallKernel(temperature)
    result = system.coexistence()
    low, high = 0.02, 0.4
    while high / low > 1 + 1e-5:  # by hand, with a full search at every value
        middle = math.sqrt(low * high)
        low, high = (low, middle) if uses_its_paths(system.solve(middle)) else (middle, high)
    assert result.crossing == pytest.approx(low, rel=1e-4)
    assert result.lower_spinodal < result.crossing < result.upper_spinodal


def test_the_softest_eigenvalue_vanishes_at_both_spinodals():
    system = SmallKernel(0.01)
    result = system.coexistence()
    for start, end in ((0.4, result.lower_spinodal), (0.02, result.upper_spinodal)):
        branch = Branch(system.solve, start, system.solve(start))
        crossing, spinodal = (
            branch.solution(value).stability().softest for value in (result.crossing, end)
        )
        assert 0 < spinodal < 0.2 * crossing  # falls as the root of the distance
        assert branch.solution(end * (end / result.crossing) ** 0.01) is None


def test_one_branch_has_no_crossing():
    assert SmallKernel(0.01, scale=3.0).coexistence() is None


def test_a_branch_that_reaches_the_end_of_the_range_has_no_spinodal():
    system = SmallKernel(0.01)
    sides = [(variance, system.solve(variance)) for variance in (0.08, 0.09)]
    result = coexistence(system.solve, *sides, limits=(0.0795, 0.0905))
    assert math.isnan(result.lower_spinodal)
    assert math.isnan(result.upper_spinodal)
    assert 0.08 < result.crossing < 0.09


def test_two_branches_that_both_end_between_the_sides_do_not_cross():
    """A third branch in between: neither side can be followed to the middle."""
    system = SmallKernel(0.01)
    below, above = ((variance, system.solve(variance)) for variance in (0.02, 0.4))

    def solve(variance, start):
        return None if 0.05 < variance < 0.2 else system.solve(variance, start)

    assert Branch(solve, *below).solution(0.1) is None
    assert Branch(solve, *above).solution(0.1) is None
    assert coexistence(solve, below, above, limits=(1e-4, 10.0)) is None
