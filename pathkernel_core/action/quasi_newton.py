"""Limited-memory BFGS for smooth functions near the limit of rounding.

SciPy's L-BFGS-B compares function values in its line search. Close to the minimum the action
changes by less than its rounding error while its gradient is still accurate, so that the search
stops early or wanders. Here a step may also satisfy the approximate Wolfe conditions of Hager and
Zhang (SIAM J. Optim. 16, 2005), which use gradients alone. The letters s, y and ρ are those of
Nocedal and Wright, Numerical Optimization, algorithm 7.4.

Evaluations of the hidden Markov task (T = 0.01) at N = 4 and 10: 40 and 30. Without the approximate
conditions both stall, after 99 and 78; with 10 pairs in memory 89 and 55; without the scale of the
last pair 46 and 35. From N = 100 on none of them matters, but without the curvature of the prior
N = 1000 takes 13 instead of 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from pathkernel_core.energy.costs import PAIRS

_MEMORY, _ELEMENTS = PAIRS
_FEWEST = 4  # pairs in memory, whatever their size
_ARMIJO = 1e-4
_CURVATURE = 0.9
ROUNDING = 1e-11  # relative error allowed for in comparisons of function values
_IDLE = 50  # steps in a row that lower neither the value nor the gradient
_PROGRESS = 1e-14  # relative change of the value that counts as lower
_LONGEST_FIRST_STEP = 1.0  # in any coordinate


Pair = tuple[np.ndarray, np.ndarray, float]
"""Step s, change y of the gradient along it, and their inner product s·y = 1/ρ."""


class LineSearch(NamedTuple):
    """How a line search allows for rounding.

    Attributes
    ----------
    rounding : float
        Relative error of the values, by which an accepted step may raise them.
    trials : int
        Most evaluations of one search.
    restarts : bool
        Whether a search that fails is followed by one along the plain gradient.
    """

    rounding: float = ROUNDING
    trials: int = 25
    restarts: bool = True


EXACT = LineSearch()
"""Line searches in float64."""

Result = TypeVar("Result")
Asking: TypeAlias = "Generator[np.ndarray, Iterate, Result]"
"""Generator that yields points x, is told the function there, and returns a result."""


@dataclass
class Iterate:
    """A point with value and gradient."""

    x: np.ndarray
    value: float
    gradient: np.ndarray
    detail: Any = None  # further results of the evaluation


def minimiser(
    start: np.ndarray,
    curvature: np.ndarray,
    stop: Callable[[Iterate], bool],
    pairs: Sequence[Pair] = (),
    line_search: LineSearch = EXACT,
) -> Asking[tuple[bool, tuple[Pair, ...]]]:
    """Minimise a function from ``start`` until ``stop(point)`` is true.

    A generator: it yields x, is told the Iterate there, whose value may be infinite outside the
    domain, and returns as below. :func:`pathkernel_core.action.asking.answer_all` runs it.

    Parameters
    ----------
    start : array
        Initial point.
    curvature : array
        Positive estimate of the Hessian's diagonal.
    stop : callable
        Called once with every accepted point, the start included.
    pairs : sequence of Pair
        Curvature from the minimisation of a similar function, dropped if it misleads.
    line_search : LineSearch

    Returns
    -------
    bool
        Whether ``stop`` was true. False if no step along the gradient lowers the function, or many
        steps in a row stay within rounding.
    tuple of Pair
        Curvature for the minimisation of a similar function.
    """
    point = yield start
    lowest, flattest, idle = point.value, float(np.abs(point.gradient).max()), 0
    memory = min(_MEMORY, max(_FEWEST, _ELEMENTS // (2 * len(start))))
    pairs = list(pairs[-memory:])
    if stop(point):
        return True, tuple(pairs)
    while True:
        direction = newton_step(point.gradient, pairs, curvature)
        step = 1.0
        if not pairs:
            # the prior's curvature says nothing of the energy's: a whole step could overflow, since
            # coordinates on the diagonal are logarithms
            step = min(1.0, _LONGEST_FIRST_STEP / max(np.abs(direction).max(), 1e-300))
        following = yield from _search(point, direction, step, line_search)
        if following is None:
            if not (pairs and line_search.restarts):
                return False, tuple(pairs)
            pairs = []  # restart along the plain gradient
            continue
        s, y = following.x - point.x, following.gradient - point.gradient
        inner = float(s @ y)
        # only s·y > 0 keeps the approximation positive definite; within rounding its sign is chance
        if inner > 1e-14 * math.sqrt(s.dot(s)) * math.sqrt(y.dot(y)):
            pairs = [*pairs[-memory + 1 :], (s, y, inner)]
        point = following
        if stop(point):
            return True, tuple(pairs)
        slope = float(np.abs(point.gradient).max())
        # accepted steps need not lower a value that is all rounding, so that a descent below its
        # reachable tolerance would wander for ever; slow progress in either measure counts
        idle += 1
        if point.value < lowest - _PROGRESS * max(1.0, abs(lowest)):
            lowest, idle = point.value, 0
        if slope < 0.9 * flattest:
            flattest, idle = slope, 0
        if idle >= _IDLE:
            return False, tuple(pairs)


def newton_step(gradient: np.ndarray, pairs: Sequence[Pair], curvature: np.ndarray) -> np.ndarray:
    """Step to the minimum of the quadratic function that pairs and curvature tell, from a gradient.

    By the two-loop recursion, whose initial Hessian is the diagonal scaled by the last pair.
    """
    direction = -gradient
    alphas = []
    for s, y, inner in reversed(pairs):  # in place, since vectors are short and pairs are many
        alpha = s.dot(direction) / inner
        alphas.append(alpha)
        direction -= alpha * y
    direction /= curvature
    if pairs:
        # the size of the Hessian along the last step, in the metric of the prior's curvature: as
        # equation 7.20 of Nocedal and Wright, whose metric is the identity
        _, y, inner = pairs[-1]
        direction *= inner / y.dot(y / curvature)
    for (s, y, inner), alpha in zip(pairs, reversed(alphas)):
        direction += (alpha - y.dot(direction) / inner) * s
    return direction


def _search(
    point: Iterate, direction: np.ndarray, step: float, line_search: LineSearch
) -> Asking[Iterate | None]:
    """Iterate along ``direction`` that satisfies the Wolfe conditions, exact or approximate."""
    slope = float(point.gradient @ direction)
    if not slope < 0:
        return None
    rounding = line_search.rounding * max(1.0, abs(point.value))
    low, low_slope, high, high_slope = 0.0, slope, None, None
    for _ in range(line_search.trials):
        trial = yield point.x + step * direction
        new_slope = float(trial.gradient @ direction) if np.isfinite(trial.value) else np.nan
        # of a quadratic function the second condition is the first, told by slopes: they are
        # accurate to rounding of the gradient where the difference of the values has no digit left
        lower = trial.value <= point.value + _ARMIJO * step * slope or (
            trial.value <= point.value + rounding and new_slope <= (2 * _ARMIJO - 1) * slope
        )
        if not lower:
            high, high_slope = step, new_slope
        elif new_slope < _CURVATURE * slope:
            low, low_slope = step, new_slope
        else:
            return trial
        step = _next_step(low, low_slope, high, high_slope)
    return None


def _next_step(low: float, low_slope: float, high: float | None, high_slope: float | None) -> float:
    if high is None:
        return 4 * max(low, 1e-3)
    # secant on the slopes, clipped away from the ends of the bracket
    if high_slope is not None and np.isfinite(high_slope) and high_slope > 0:
        fraction = low_slope / (low_slope - high_slope)
        return low + (high - low) * min(max(fraction, 0.1), 0.9)
    return low + (high - low) * 0.3
