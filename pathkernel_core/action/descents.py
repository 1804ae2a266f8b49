"""Descents of one action from any start, and the bounded search for its lowest minimum.

All are generators that ask for energies and are told them, see
:mod:`pathkernel_core.action.asking`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from pathkernel_core.action import quasi_newton
from pathkernel_core.action.branches import BranchCoordinates, coordinates_of
from pathkernel_core.action.minima import (
    AGREEING,
    STRONG,
    further_starts,
    may_have_several,
    scaled_limit,
    structured_starts,
    suspicion,
)
from pathkernel_core.action.solution import Status
from pathkernel_core.action.stability import ActionHessian
from pathkernel_core.arrays.backend import array_namespace
from pathkernel_core.energy.form import Form
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_core.system.progress import Progress, Report

# tolerance of the dimensionless gradient in the chain's coordinates over that of the gradient in
# the order parameters, which has units of 1 / U and is uninformative where U is large
_COORDINATES = 100
_SAME = 0.2  # largest difference of coordinates within one basin, near its minimum
_NEAR_SADDLE = 1e-6  # largest tolerance of a descent from a possible saddle
_NOISE = 1e-2  # in coordinates, which breaks symmetries
_SAME_SPECTRUM = 1e-4  # relative difference of the eigenvalues of U along a ring of minima
_ROUNDING = 1e-6  # relative difference of actions of one minimum
_LOST = 10  # gradient that counts as rounding, over its change with the last digit of coordinates
_APPROACH = 1e-2  # relative difference of actions at which a descent counts as near a minimum


@dataclass(frozen=True, eq=False)
class EnergyQuestion:
    """Point at which a descent wants the energy and its gradient M − R.

    Attributes
    ----------
    form : Form
        Form of the energy.
    factor : array, shape (n·C, n·C) or (n,)
        Factor of σ²_0 U_1; of independent branches the square roots of its diagonal.
    temperature : float
    scales : array, shape (n·C, 1), or None
        Scales of the paths, see :meth:`Form.energy_and_gradient`.
    """

    form: Form
    factor: np.ndarray
    temperature: float
    scales: np.ndarray | None


Result = TypeVar("Result")
AskingEnergy: TypeAlias = "Generator[EnergyQuestion, tuple[float, np.ndarray], Result]"
"""Generator that yields questions, is told energy and gradient, and returns a result."""


class _OutOfEvaluationsError(Exception):
    pass


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Point of a descent; all is divided by the smallest finite width."""

    coordinates: np.ndarray
    factors: list[np.ndarray]
    excess_entropy: float  # above that of the limit
    energy: float
    gradient_norm: float

    @property
    def value(self) -> float:
        """Action less the entropy of the limit."""
        return self.excess_entropy + self.energy


class History:
    """Values and gradients of all accepted steps, with the last and the flattest evaluation.

    The flattest has the smallest gradient of those whose values equal the lowest to rounding: the
    end of a stalled descent.
    """

    last: Evaluation
    flattest: Evaluation

    def __init__(self) -> None:
        self._lowest = math.inf
        self.values: list[float] = []
        self.norms: list[float] = []

    def append(self, evaluation: Evaluation) -> None:
        """Add an accepted step."""
        value, norm = evaluation.value, evaluation.gradient_norm
        self.last = evaluation
        self._lowest = lowest = min(value, self._lowest)
        # values this close are equal to rounding: only the gradients still rank these steps
        rounding = quasi_newton.ROUNDING * max(1.0, abs(lowest))
        if (
            not self.values
            or self.flattest.value > lowest + rounding
            or (value <= lowest + rounding and norm < self.flattest.gradient_norm)
        ):
            self.flattest = evaluation
        self.values.append(value)
        self.norms.append(norm)


class Action:
    """Action as a function of the chain's coordinates; counts its evaluations.

    Divided by the smallest finite width, and less the entropy of the limit: the terms of the
    narrowest level, which moves most, would vanish in the rounding of an action that is divided by
    a much larger width.
    """

    def __init__(self, problem: Problem, network: Network, temperature: float):
        self.problem, self.network, self.temperature = problem, network, temperature
        self.coordinates = coordinates_of(network)
        self.form = problem.form_for(network).for_descent()
        self._scales = network.path_scales[:, None] if network.has_skips else None
        self.unit = network.width / network.smallest_width
        self.curvature = self.unit * self.coordinates.curvature
        self.evaluations, self.limit = 0, math.inf
        array = problem.array
        self.epsilon = float(array_namespace(array=array).finfo(array.dtype).eps)

    def evaluate(self, coordinates: np.ndarray) -> AskingEnergy[quasi_newton.Iterate]:
        """Value and gradient at coordinates; infinite where the kernel cannot be factorised."""
        if self.evaluations >= self.limit:
            raise _OutOfEvaluationsError
        self.evaluations += 1
        network, unit = self.network, self.unit
        width, variance = network.width, network.kernel_variance
        with np.errstate(over="ignore", invalid="ignore"):
            relative = self.coordinates.relative_factors(coordinates)
            factors = self.coordinates.factors(relative)
        try:
            # the kernel is linear in U, so that σ²_0 can go into its factor: no copy of the
            # features for each variance; the gradient gets σ²_0 back by the chain rule
            energy, gradient = yield EnergyQuestion(
                self.form, math.sqrt(variance) * factors[0], self.temperature, self._scales
            )
            energy, gradient = energy / network.smallest_width, gradient * (variance / width)
            excess = self.coordinates.excess_entropy(coordinates) / network.smallest_width
            norm = unit * self.coordinates.largest_slope(coordinates, relative, factors, gradient)
        except (NotPositiveDefiniteError, np.linalg.LinAlgError, ValueError):
            if self.evaluations == 1:  # a defect of the problem; later, only too long a step
                raise
            return quasi_newton.Iterate(coordinates, math.inf, np.full_like(coordinates, np.nan))
        gradient = unit * self.coordinates.gradient(coordinates, relative, factors, gradient)
        detail = Evaluation(coordinates, factors, excess, energy, norm)
        return quasi_newton.Iterate(coordinates, detail.value, gradient, detail)

    def answer(self, asking: quasi_newton.Asking[Result]) -> AskingEnergy[Result]:
        """Run what asks for the action at coordinates, and return its result."""
        try:
            coordinates = next(asking)
            while True:
                coordinates = asking.send((yield from self.evaluate(coordinates)))
        except StopIteration as ended:
            return ended.value

    def per_width(self, evaluation: Evaluation) -> tuple[float, float]:
        """Entropy and energy of an evaluation, divided by N."""
        limit = self.coordinates.entropy(self.coordinates.gp_limit)
        return limit + evaluation.excess_entropy / self.unit, evaluation.energy / self.unit

    def is_marginal(self, evaluation: Evaluation) -> bool:
        """Whether the Hessian has a direction without curvature there."""
        arguments = self.problem, self.network, evaluation.factors, self.temperature
        return ActionHessian(*arguments).stability().kind == "marginal"


@dataclass(frozen=True, eq=False)
class Descent:
    """End of a descent from one start."""

    evaluation: Evaluation
    status: Status
    history: History
    curvature: tuple[quasi_newton.Pair, ...] = ()


class _AbandonedError(Exception):
    pass


class Descender:
    """Minimiser of one action from any start, with fixed tolerance and report.

    Parameters
    ----------
    action : Action
    tolerance : float
        Largest entry allowed in the gradients.
    max_evaluations : int
    report : callable
    to_rounding : bool
        Whether a descent that stalls has converged, too, if its gradient is at the level of
        rounding: the action is then right to rounding, and no descent could do better.
    """

    def __init__(
        self,
        action: Action,
        tolerance: float,
        max_evaluations: int,
        report: Report,
        to_rounding: bool = False,
    ) -> None:
        self.action, self.tolerance = action, tolerance
        self.max_evaluations, self._report = max_evaluations, report
        self._to_rounding = to_rounding
        # bounds on the distance and excess action of a converged end, by the softest coordinate
        slope, softest = _COORDINATES * tolerance, action.curvature.min(initial=math.inf)
        self._distance = max(_SAME, slope / softest)
        self._excess = slope**2 / softest

    def __call__(
        self,
        start: np.ndarray,
        curvature: Sequence[quasi_newton.Pair] = (),
        minima: Sequence[Descent] = (),
    ) -> AskingEnergy[Descent]:
        """Descend from coordinates to a minimum.

        An exact symmetry, such as that of heads with orthogonal features, keeps coordinates at
        zero from the start to the end, which may then be a saddle; one of independent branches
        keeps them equal. A second descent from there starts with noise. Other symmetries are curved
        in these coordinates, and no step keeps them.

        Raises
        ------
        _AbandonedError
            If the descent comes close to one of the minima, or the start cannot be evaluated.
        """
        descent = yield from self._descend(start, curvature, minima)
        end = descent.evaluation
        symmetric = self.action.coordinates.is_symmetric(end.coordinates)
        if descent.status is not Status.CONVERGED or not symmetric:
            return descent
        # less where a level is stiffer; above what the tolerance hides
        deviations = max(_NOISE, math.sqrt(self.tolerance)) * np.sqrt(
            self.action.curvature.min() / self.action.curvature
        )
        noise = deviations * np.random.default_rng(0).normal(size=len(deviations))
        # a loose tolerance would stop where the slope of the saddle is small, too
        start = end.coordinates + noise
        tolerance = min(self.tolerance, _NEAR_SADDLE)
        lower = yield from self._descend(start, descent.curvature, minima, tolerance)
        if lower.evaluation.gradient_norm <= self.tolerance and lower.status is Status.STALLED:
            lower = replace(lower, status=Status.CONVERGED)
        rounding = quasi_newton.ROUNDING * max(1.0, abs(end.value))
        return lower if lower.evaluation.value < end.value - rounding else descent

    def _descend(
        self,
        start: np.ndarray,
        curvature: Sequence[quasi_newton.Pair],
        minima: Sequence[Descent],
        tolerance: float | None = None,
    ) -> AskingEnergy[Descent]:
        tolerance = self.tolerance if tolerance is None else tolerance
        action, history, status = self.action, History(), Status.STALLED

        def stop(point: quasi_newton.Iterate) -> bool:
            if point.detail is None or self.is_near(point.detail, minima, _APPROACH):
                raise _AbandonedError
            history.append(point.detail)
            norm = point.detail.gradient_norm
            self._report(Progress(action.evaluations, None, "minimising", {"gradient": norm}))
            # both, since ∂S/∂x is about 2U ∂S/∂U: the former hides paths that are switched off, the
            # latter strong ones
            steepest = float(np.abs(point.gradient).max())
            return norm <= tolerance and steepest <= _COORDINATES * tolerance

        action.limit = action.evaluations + self.max_evaluations
        pairs: tuple[quasi_newton.Pair, ...] = ()
        try:
            converged, pairs = yield from action.answer(
                quasi_newton.minimiser(start, action.curvature, stop, curvature)
            )
            if converged:
                status = Status.CONVERGED
        except _OutOfEvaluationsError:
            status = Status.MAX_EVALUATIONS
        end = history.flattest if status is Status.STALLED else history.last
        if status is Status.STALLED and self._to_rounding and (yield from self._is_rounding(end)):
            status = Status.CONVERGED
        return Descent(end, status, history, pairs)

    def _is_rounding(self, end: Evaluation) -> AskingEnergy[bool]:
        """Whether action and gradient at the end of a descent differ from a minimum's by rounding.

        The gradient does if it changes as much with the last digit of the coordinates; the action
        if a step of Newton's method would lower it by less than its own rounding.
        """
        action = self.action
        action.limit = math.inf
        gradient = (yield from action.evaluate(end.coordinates)).gradient
        excess = 0.5 * float(np.sum(gradient**2 / action.curvature))
        if not excess <= _LOST * action.epsilon * max(1.0, abs(end.value)):
            return False
        change, generator = 0.0, np.random.default_rng(0)
        for _ in range(2):
            digits = action.epsilon * generator.choice([-1.0, 1.0], size=len(gradient))
            shifted = yield from action.evaluate(end.coordinates + digits)
            change = max(change, float(np.abs(shifted.gradient - gradient).max()))
        return float(np.abs(gradient).max()) <= _LOST * change

    def is_near(
        self, evaluation: Evaluation, minima: Sequence[Descent], tolerance: float = _ROUNDING
    ) -> bool:
        """Whether an evaluation is close to one of the minima in coordinates and in action."""
        for minimum in minima:
            end = minimum.evaluation
            distance = np.abs(evaluation.coordinates - end.coordinates).max()
            if self._same_value(evaluation, end, tolerance) and distance < self._distance:
                return True
        return False

    def is_on_a_ring(self, evaluation: Evaluation, minima: Sequence[Descent]) -> bool:
        """Whether a continuous symmetry takes an evaluation to one of the minima.

        It is a rotation of heads, which leaves the action and the eigenvalues of U as they are.
        """
        if not self.action.network.shared:
            return False  # an exchange of branches is discrete
        ends = [minimum.evaluation for minimum in minima]
        same = [end for end in ends if self._same_value(evaluation, end, _ROUNDING)]
        values = _singular_values(evaluation)
        close = _SAME_SPECTRUM * values.max()
        rotated = any(np.abs(values - _singular_values(end)).max() < close for end in same)
        return rotated and self.action.is_marginal(evaluation)

    def _same_value(self, evaluation: Evaluation, end: Evaluation, tolerance: float) -> bool:
        allowed = max(self._excess, tolerance * max(1.0, abs(end.value)))
        return abs(evaluation.value - end.value) <= allowed


def _singular_values(evaluation: Evaluation) -> np.ndarray:
    """Singular values of the factor of U_1."""
    return np.linalg.svd(evaluation.factors[0], compute_uv=False)


def search(descend: Descender, starts: int | None) -> AskingEnergy[list[Descent]]:
    """Descents into different minima, from the limit and from further promising starts."""
    action = descend.action
    network, coordinates = action.network, action.coordinates
    descents = [(yield from descend(coordinates.gp_limit))]
    point = action.problem, network, action.temperature
    if starts == 1 or (starts is None and not may_have_several(*point)):
        return descents

    def finds_another(start: np.ndarray) -> AskingEnergy[bool]:
        # a failed end is no minimum: to give up a descent near it could lose the minimum beyond
        minima = [descent for descent in descents if descent.status.ok]
        with contextlib.suppress(_AbandonedError):
            descent = yield from descend(start, minima=minima)
            end = descent.evaluation
            if not (descend.is_near(end, minima) or descend.is_on_a_ring(end, minima)):
                descents.append(descent)
                return True
        return False

    concavity = suspicion(*point)
    if isinstance(coordinates, BranchCoordinates):
        scaling, others = coordinates.scaled_limit, coordinates.further_starts
    else:
        scaling = partial(scaled_limit, coordinates)
        others = partial(further_starts, coordinates)
    action.limit = math.inf  # candidates do not use up the evaluations of a descent
    scaled = yield from action.answer(scaling(concavity.scale))
    another = yield from finds_another(scaled)
    # the scaled limit is in the basin of a network that uses all its paths; if it leads back to
    # the first minimum, only a strong suspicion is worth the descents of single heads
    if starts is None and not another and concavity.ratio < STRONG:
        return descents
    last = structured_starts(network) if starts is None else starts
    if last == 2:
        return descents
    action.limit = math.inf
    candidates: Iterable[np.ndarray] = yield from action.answer(others(scaled))
    agreeing = 0
    for start in itertools.islice(candidates, last - 2):
        another = yield from finds_another(start)
        agreeing = 0 if another else agreeing + 1
        if starts is None and agreeing == AGREEING:
            break
    return descents
