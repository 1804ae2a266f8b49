"""When a descent in float32 has come to its last digits, and float64 takes over.

An evaluation in float32 takes half of the time. Its gradient follows that of float64 down to a
noise that depends on the condition of K + T1. Steps beyond are chance, and what they tell of the
curvature would mislead float64. Values are rounding much earlier, at gradients a thousand times
larger.

Yet the values measure the noise. Near the minimum f(x + s) − f(x) is s·(g + g')/2 up to terms of
third order in s; what is left is rounding of f. In these coordinates, of order 1, the rounding of
the gradient has about the same size.
"""

from __future__ import annotations

import math

import numpy as np

from pathkernel_core.action.quasi_newton import Iterate, LineSearch
from pathkernel_core.energy.costs import evaluations
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network

ROUNDING = 1e-5
"""Relative error of values in float32, at least."""

LARGEST_NOISE = 1e-4
"""Relative noise of the gradient from which float32 has too few digits."""

FAR_OVER_TOLERANCE = 1e4
"""Gradient over the tolerance below which a few steps are left, and float64 takes them alone."""

_NEAR = 10  # gradient over the tolerance from which one or two steps are left
_ABOVE_NOISE = 2  # gradient over the rounding of values
_EPSILON = float(np.finfo(np.float32).eps)
_MEASURED = 3  # steps whose values tell the noise
_SHORTER = 0.9  # of a gradient, which counts as progress
_IDLE = 3  # steps in a row without progress


class LastDigits:
    """End of a descent in float32, told by its accepted steps.

    Attributes
    ----------
    point : Iterate
        Last step.
    are_clean : bool
        Whether its gradient has a digit left, and float64 would make one or two steps more, or the
        next one would be chance.
    idle : int
        Last steps without progress.
    """

    point: Iterate

    def __init__(self, noise: float) -> None:
        self._relative_noise, self._slope = noise, 0.0
        self.are_clean, self.idle = False, 0
        self._lowest = self._shortest = self._gradient = math.inf
        self._residuals: list[float] = []

    def reached(self, point: Iterate, gradient: float) -> bool:
        """Whether an accepted step is the last one; with its gradient over the tolerance."""
        is_first, slope = math.isinf(self._gradient), float(np.abs(point.gradient).max())
        if is_first:
            self._slope = slope
        else:
            step = point.x - self.point.x
            expected = 0.5 * float(step @ (point.gradient + self.point.gradient))
            self._residuals.append(abs(point.value - self.point.value - expected))
        # the next step shortens the gradient about as much as the last one
        following = gradient if is_first else gradient * gradient / self._gradient
        self.are_clean = (
            gradient <= _NEAR or following <= 1 or slope <= _ABOVE_NOISE * self._noise(point)
        )
        self.idle += 1
        if point.value < self._lowest - ROUNDING * max(1.0, abs(point.value)):
            self._lowest, self.idle = point.value, 0
        if gradient < _SHORTER * self._shortest:
            self._shortest, self.idle = gradient, 0
        self.point, self._gradient = point, gradient
        return self.are_clean or self.idle >= _IDLE

    def _noise(self, point: Iterate) -> float:
        """Rounding: of a number of this size, of the kernel, or the least of the last steps."""
        expected = max(_EPSILON * abs(point.value), self._relative_noise * self._slope)
        if len(self._residuals) < _MEASURED:
            return expected
        return max(expected, min(self._residuals[-_MEASURED:]))


def relative_noise(problem: Problem, network: Network, temperature: float) -> float:
    """Rounding of the energy's gradient in float32 over its size, by the condition of K + T1.

    Infinite where kernels overflow. The factors are those of measured gradients.
    """
    modes, form = problem.label_spectrum(network).modes, problem.form_for(network)
    if not modes.nodes.size:
        return math.inf
    shift = problem.likelihood.search_temperature(temperature, problem.outputs)
    largest, smallest = modes.nodes.max() + shift, modes.nodes.min() + shift
    if not form.holds_examples:  # ΦᵀΦ + T1, which T alone keeps from being singular
        return _EPSILON * float(largest / shift)
    condition = float(largest / smallest)
    noise = 0.3 * condition
    if form.name == "kernels":
        # (K + T1)⁻¹ itself, whose large entries cancel in the gradient where T dominates
        rank = float(modes.weights @ (modes.nodes / (modes.nodes + shift)))
        noise = max(noise, condition**2 / (rank * math.sqrt(problem.n_examples)))
    return _EPSILON * noise


def line_search(noise: float) -> LineSearch:
    """Line search in float32, which gives up early, as many trials are noise."""
    return LineSearch(max(ROUNDING, noise), trials=5, restarts=False)


def most_evaluations(problem: Problem, network: Network) -> int:
    """Bound on the evaluations of a descent in float32: twice those expected of one in float64."""
    expected = evaluations(problem.sizes_for(network), network.smallest_width)
    return 10 + 2 * math.ceil(expected)
