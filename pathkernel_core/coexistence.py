"""Where two branches of minima of the action cross, and where each of them ends.

A branch is a minimum followed as a parameter θ changes: a temperature, a width, a prior variance.
Two branches can exist at the same θ. The lower action decides which one the posterior follows, so
that the two exchange roles at a *crossing*, a transition of first order. Each continues as
a metastable minimum and ends at a *spinodal*, where it merges with a saddle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pathkernel_core.backend import to_host
from pathkernel_core.solution import Solution

Solve = Callable[[float, Solution], Solution | None]
"""Minimum at a value of the parameter, downhill from a neighbouring solution; None if it fails."""

_JUMP = 0.3  # relative change of U in one step from which another branch is suspected
_LARGEST_STEP = 0.5  # in ln θ
_RESOLUTION = 1e-5  # in ln θ
_SAME_ACTION = 1e-7  # relative difference of actions of one minimum


@dataclass(frozen=True)
class Coexistence:
    """Crossing of two branches of minima, and the range in which both exist.

    Attributes
    ----------
    crossing : float
        θ at which both have the same action.
    lower_spinodal : float
        θ below it at which the branch that is the lowest above the crossing ends; NaN if the
        branch reaches the end of the range.
    upper_spinodal : float
        θ above it at which the branch that is the lowest below the crossing ends; NaN likewise.
    """

    crossing: float
    lower_spinodal: float
    upper_spinodal: float


class Branch:
    """A minimum followed along a positive parameter, by steps that shrink where it changes fast.

    Parameters
    ----------
    solve : callable
    parameter : float
    solution : Solution
        The minimum there.
    """

    def __init__(self, solve: Solve, parameter: float, solution: Solution):
        self._solve = solve
        self._solutions = {parameter: solution}

    def solution(self, parameter: float) -> Solution | None:
        """Return the minimum at a parameter; None where the branch has ended."""
        reached = self.follow(parameter)
        return self._solutions[parameter] if reached == parameter else None

    def follow(self, target: float) -> float:
        """Follow the branch and return the parameter that it reaches: the target or its end."""
        start = min(self._solutions, key=lambda known: abs(math.log(known / target)))
        solution, step = self._solutions[start], math.inf
        while start != target:
            step = min(2 * step, _LARGEST_STEP)
            remaining = math.log(target / start)
            parameter = target
            if abs(remaining) > step:
                parameter = start * math.exp(math.copysign(step, remaining))
            # a descent beyond the end of a branch does not fail: it slides onto the other branch,
            # and only the jump of U tells
            neighbour = self._solve(parameter, solution)
            if neighbour is not None and _change(solution, neighbour) < _JUMP:
                start, solution = parameter, neighbour
                self._solutions[parameter] = neighbour
            else:
                # U moves as the root of the distance from a spinodal: large steps up to it, then
                # many halvings, which eighths shorten
                step = min(step, abs(remaining)) / 8
                if step < _RESOLUTION:
                    break
        return start


def _change(solution: Solution, other: Solution) -> float:
    """Change of U relative to its norm."""
    matrices = to_host(solution.order_parameter), to_host(other.order_parameter)
    return float(np.linalg.norm(matrices[0] - matrices[1]) / max(map(np.linalg.norm, matrices)))


def coexistence(
    solve: Solve,
    below: tuple[float, Solution],
    above: tuple[float, Solution],
    limits: tuple[float, float],
) -> Coexistence | None:
    """Find the crossing between two lowest minima at neighbouring values of a parameter.

    Parameters
    ----------
    solve : callable
        Minimum of the action at a value of the parameter, from a neighbouring solution.
    below, above : (float, Solution)
        Values of the parameter, the smaller first, and the lowest minima there.
    limits : (float, float)
        Range of the parameter in which ends of the branches are looked for.

    Returns
    -------
    Coexistence or None
        None if both minima belong to one branch, or if both branches end before they meet.
    """
    low, high = below[0], above[0]
    lower, upper = Branch(solve, *below), Branch(solve, *above)
    followed = lower.solution(high)
    if followed is not None and _same_action(followed, above[1]):
        return None
    # bisection on the sign of the difference of actions; a branch that has ended counts as the
    # higher one, since only the other is left
    while math.log(high / low) > _RESOLUTION:
        middle = math.sqrt(low * high)
        one, other = lower.solution(middle), upper.solution(middle)
        if one is None and other is None:
            return None
        if other is None or (one is not None and one.action < other.action):
            low = middle
        else:
            high = middle
    ends = [branch.follow(limit) for branch, limit in zip((upper, lower), limits)]
    spinodals = [math.nan if end == limit else float(end) for end, limit in zip(ends, limits)]
    return Coexistence(float(math.sqrt(low * high)), *spinodals)


def _same_action(solution: Solution, other: Solution) -> bool:
    scale = max(1.0, abs(other.action))
    return abs(solution.action - other.action) <= _SAME_ACTION * scale
