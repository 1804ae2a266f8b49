"""Minima of the action followed through parameters, and where the lowest of them changes.

A state is a minimum followed as parameters θ change: temperatures, widths, prior variances. Two
states can exist at the same θ. The lower action decides which one the posterior follows, so that
the two exchange roles at a *crossing*, a transition of first order. Each continues as a metastable
minimum and ends at a *spinodal*, where it merges with a saddle: see
:mod:`pathkernel_core.phases.spinodals`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from pathkernel_core.action.asking import answer_all
from pathkernel_core.action.continuation import minimise_from
from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.action.evaluations import Action, AskingEnergy
from pathkernel_core.action.minimise import minimise_action
from pathkernel_core.action.solution import Solution
from pathkernel_core.action.solvers import energies, prepare_evaluations, stationary_solver
from pathkernel_core.action.stability import ActionHessian
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import MinimisationError, NotPositiveDefiniteError

Result = TypeVar("Result")
System = Callable[[np.ndarray], tuple[Network, float]]
"""Network and temperature at values (k,) of the parameters θ."""

JUMP = 0.3  # distance of coordinates from their extrapolation, from which another state is likely
_LARGEST_STEP = 0.5  # in ln θ
RESOLUTION = 1e-3  # in ln θ, of the end of a state
_PRECISION = 1e-9  # in ln θ, of a crossing
_SAME_ACTION = 1e-7  # relative difference of actions of one minimum
_DIFFERENCE = 1e-4  # in ln θ, of derivatives at fixed coordinates
_PRODUCT = 2.5  # evaluations of the energy that a product with the Hessian costs
_SMALLEST_INTERVAL = 1e-3  # in ln θ, in which states between two others are looked for


@dataclass(frozen=True, eq=False)
class StatePoint:
    """A minimum of the action at one point of the parameters.

    Attributes
    ----------
    point : array, shape (k,)
        ln θ.
    solution : Solution
    """

    point: np.ndarray
    solution: Solution

    @cached_property
    def coordinates(self) -> np.ndarray:
        """Coordinates of the order parameters in the chain, relative to the network there."""
        return ChainCoordinates(self.solution.network).from_factors(self.solution.factors)


class ActionFamily:
    """Actions of one problem at all values of some positive parameters; counts evaluations.

    Parameters
    ----------
    problem : Problem
    system : callable
        Network and temperature at values (k,) of the parameters. The heads must not change.

    Attributes
    ----------
    evaluations : int
        Evaluations of the energy so far; a product with the Hessian counts for two and a half.
    """

    def __init__(self, problem: Problem, system: System):
        self.problem, self._system = problem, system
        self.evaluations = 0

    def search(self, point: np.ndarray) -> StatePoint | None:
        """Lowest minimum that a search finds at a point ln θ; None if it does not converge."""
        solution = minimise_from(self.problem, *self._at(point), None)
        if solution is None or not solution.status.ok:
            return None
        self.evaluations += solution.evaluations
        return StatePoint(point, solution)

    def descend(
        self, point: np.ndarray, start: Solution, coordinates: np.ndarray
    ) -> StatePoint | None:
        """Minimum downhill from coordinates, with the curvature seen at ``start``; None if none."""
        network, temperature = self._at(point)
        start = dataclasses.replace(start, factors=tuple(_factors(network, coordinates)))
        try:
            solution = minimise_action(self.problem, network, temperature, start=start)
        except (MinimisationError, NotPositiveDefiniteError, np.linalg.LinAlgError):
            return None
        self.evaluations += solution.evaluations
        return StatePoint(point, solution)

    def evaluate(self, point: np.ndarray, coordinates: np.ndarray) -> tuple[float, np.ndarray]:
        """Action per width S/N and its gradient in the coordinates, at any of them.

        Raises
        ------
        numpy.linalg.LinAlgError, NotPositiveDefiniteError
            If the kernel cannot be factorised there.
        """
        action = Action(self.problem, *self._at(point))
        (iterate,) = self._answer(action, action.evaluate(coordinates))
        return sum(action.per_width(iterate.detail)), iterate.gradient / action.unit

    def hessian(self, point: np.ndarray, coordinates: np.ndarray) -> ActionHessian:
        """Hessian of S/N in the coordinates, at any of them."""
        network, temperature = self._at(point)
        factors = _factors(network, coordinates)
        hessian = ActionHessian(self.problem, network, factors, temperature)
        self.evaluations += math.ceil(_PRODUCT * hessian.size)
        return hessian

    def stationary_solution(self, point: np.ndarray, coordinates: np.ndarray) -> Solution:
        """Stationary point of the action as a solution, such as one at a spinodal.

        It counts as converged; no minimisation has reached it.
        """
        action = Action(self.problem, *self._at(point))
        (solution,) = self._answer(action, stationary_solver(action, coordinates))
        return solution

    def _at(self, point: np.ndarray) -> tuple[Network, float]:
        return self._system(np.exp(point))

    def _answer(self, action: Action, asking: AskingEnergy[Result]) -> list[Result]:
        """Result of what asks for one evaluation of the energy."""
        self.evaluations += 1
        with prepare_evaluations(self.problem, [action.network]):
            return answer_all([asking], energies)

    def slope(self, minimum: StatePoint) -> np.ndarray:
        """Derivative (k,) of S/N at a minimum with respect to ln θ.

        The minimum moves, too, but where the gradient vanishes its motion does not count.
        """
        steps = _DIFFERENCE * np.eye(len(minimum.point))
        rises = [
            self.evaluate(minimum.point + step, minimum.coordinates)[0]
            - self.evaluate(minimum.point - step, minimum.coordinates)[0]
            for step in steps
        ]
        return np.array(rises) / (2 * _DIFFERENCE)


def _factors(network: Network, coordinates: np.ndarray) -> list[np.ndarray]:
    chain = ChainCoordinates(network)
    return chain.factors(chain.relative_factors(coordinates))


def follow(
    family: ActionFamily, start: StatePoint, target: np.ndarray, resolution: float = RESOLUTION
) -> StatePoint:
    """Follow a minimum straight to a target ln θ; where it ends, return the last point before.

    Steps shrink where the minimum moves fast, and the end is known to ``resolution`` in ln θ.
    """
    current, before, step = start, None, math.inf
    while not np.array_equal(current.point, target):
        remaining = float(np.abs(target - current.point).max())
        step = min(2 * step, _LARGEST_STEP)
        point = target
        if step < remaining:
            point = current.point + step / remaining * (target - current.point)
        predicted = current.coordinates
        if before is not None:  # the response to the parameters, by the last step
            ratio = np.abs(point - current.point).max() / np.abs(current.point - before.point).max()
            predicted = predicted + ratio * (current.coordinates - before.coordinates)
        # a descent beyond the end of a state does not fail: it slides onto the other state,
        # and only the jump of U tells
        reached = family.descend(point, current.solution, predicted)
        if reached is not None and is_near(reached.coordinates, predicted):
            before, current = current, reached
            continue
        # U moves as the root of the distance from a spinodal: large steps up to it, then many
        # halvings, which eighths shorten
        step = min(step, remaining) / 8
        if step < resolution:
            break
    return current


def is_near(coordinates: np.ndarray, predicted: np.ndarray) -> bool:
    """Whether coordinates are on the state for which they were predicted."""
    return float(np.abs(coordinates - predicted).max()) < JUMP


@dataclass(frozen=True, eq=False)
class Crossing:
    """Two minima of the same action at one point, between which the lowest minimum changes.

    Attributes
    ----------
    minima : (StatePoint, StatePoint)
        The lowest on either side.
    """

    minima: tuple[StatePoint, StatePoint]

    @property
    def point(self) -> np.ndarray:
        """Ln θ, (k,)."""
        return self.minima[0].point


def crossings_between(family: ActionFamily, below: StatePoint, above: StatePoint) -> list[Crossing]:
    """Crossings on the straight line between two points, in order from the first.

    Parameters
    ----------
    family : ActionFamily
    below, above : StatePoint
        The lowest minima at both ends. Where a third minimum is the lowest in between, both its
        crossings are returned; a state that is the lowest on a shorter stretch may be missed.

    Returns
    -------
    list of Crossing
        Empty if both minima belong to one state.
    """
    followed = follow(family, below, above.point)
    if np.array_equal(followed.point, above.point) and _same_action(followed, above):
        return []
    ends = below.point, above.point
    low, high, share = 0.0, 1.0, 0.5
    minima = below, above
    length = float(np.abs(ends[1] - ends[0]).max())
    while True:
        point = ends[0] + share * (ends[1] - ends[0])
        one, other = (follow(family, minimum, point) for minimum in minima)
        exist = [np.array_equal(minimum.point, point) for minimum in (one, other)]
        if not any(exist):  # both have ended: a third state has the lowest action
            return _through(family, below, above, point)
        # the other minimum is not followed beyond its end, from where it could not be found again
        minima = (one if exist[0] else minima[0]), (other if exist[1] else minima[1])
        # a state that has ended counts as the higher one, since only the other is left
        difference = one.solution.action - other.solution.action
        if not all(exist):
            difference = -1.0 if exist[0] else 1.0
        low, high = (share, high) if difference < 0 else (low, share)
        proposal = (low + high) / 2
        if all(exist):
            slope = (family.slope(one) - family.slope(other)) @ (ends[1] - ends[0])
            newton = share - difference / slope if slope else math.inf
            if abs(newton - share) * length < _PRECISION:
                break
            if low < newton < high:
                proposal = newton
        if (high - low) * length < _PRECISION:
            break
        share = proposal
    if not all(exist):
        return []
    lowest = family.search(point)
    if lowest is not None and is_lower(lowest, one):
        return _through(family, below, above, point, lowest)
    return [Crossing((one, other))]


def _through(
    family: ActionFamily,
    below: StatePoint,
    above: StatePoint,
    point: np.ndarray,
    between: StatePoint | None = None,
) -> list[Crossing]:
    """Crossings from one minimum to the lowest in between, and from there to the other."""
    between = between or family.search(point)
    if between is None or np.abs(above.point - below.point).max() < _SMALLEST_INTERVAL:
        return []
    halves = (below, between), (between, above)
    return [crossing for half in halves for crossing in crossings_between(family, *half)]


def _same_action(one: StatePoint, other: StatePoint) -> bool:
    return not (is_lower(one, other) or is_lower(other, one))


def is_lower(one: StatePoint, other: StatePoint) -> bool:
    """Whether one minimum has the lower action, by more than the tolerance leaves."""
    actions = one.solution.action, other.solution.action
    return actions[0] < actions[1] - _SAME_ACTION * max(1.0, abs(actions[1]))
