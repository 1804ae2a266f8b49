"""Descents of one action from any start, and the bounded search for its lowest minimum.

All are generators that ask for energies and are told them, see
:mod:`pathkernel_core.action.asking`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from pathkernel_core.action import quasi_newton
from pathkernel_core.action.branches import BranchCoordinates
from pathkernel_core.action.evaluations import (
    Action,
    AskingEnergy,
    Evaluation,
    History,
    OutOfEvaluationsError,
)
from pathkernel_core.action.minima import (
    AGREEING,
    STRONG,
    further_starts,
    may_have_several,
    scaled_limit,
    structured_starts,
    suspicion,
)
from pathkernel_core.action.single_precision import (
    FAR_OVER_TOLERANCE,
    LARGEST_NOISE,
    LastDigits,
    line_search,
    most_evaluations,
    relative_noise,
)
from pathkernel_core.action.solution import Status
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
class Descent:
    """End of a descent from one start."""

    evaluation: Evaluation
    status: Status
    history: History
    curvature: tuple[quasi_newton.Pair, ...] = ()


class _Handover(NamedTuple):
    """Where a descent in float64 begins: coordinates, curvature, and the steps until then.

    With the evaluation in float64 at its coordinates, if there is one.
    """

    start: np.ndarray
    curvature: Sequence[quasi_newton.Pair]
    history: History | None = None
    point: quasi_newton.Iterate | None = None


class _AbandonedError(Exception):
    pass


class _NotInSingleError(Exception):
    """Raised where float32 cannot take a descent."""


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
        action, status, before = self.action, Status.STALLED, self.action.all_evaluations
        action.limit = action.evaluations + self.max_evaluations
        handover = _Handover(start, curvature)
        if action.mixed_precision and self.max_evaluations > 2:
            handover = yield from self._begin(handover, minima, tolerance)
            allowed = self.max_evaluations - (action.all_evaluations - before)
            action.limit = action.evaluations + allowed
        history = History(handover.history)

        def stop(point: quasi_newton.Iterate) -> bool:
            if point.detail is None or self.is_near(point.detail, minima, _APPROACH):
                raise _AbandonedError
            history.append(point.detail)
            self._report_step(point.detail)
            return self._over_tolerance(point, tolerance) <= 1

        pairs: tuple[quasi_newton.Pair, ...] = ()
        asking = quasi_newton.minimiser(handover.start, action.curvature, stop, handover.curvature)
        try:
            converged, pairs = yield from action.answer(asking, handover.point)
            if converged:
                status = Status.CONVERGED
        except OutOfEvaluationsError:
            status = Status.MAX_EVALUATIONS
        end = history.flattest if status is Status.STALLED else history.last
        if status is Status.STALLED and self._to_rounding and (yield from self._is_rounding(end)):
            status = Status.CONVERGED
        return Descent(end, status, history, pairs)

    def _report_step(self, evaluation: Evaluation) -> None:
        numbers = {"gradient": evaluation.gradient_norm}
        self._report(Progress(self.action.all_evaluations, None, "minimising", numbers))

    def _over_tolerance(self, point: quasi_newton.Iterate, tolerance: float) -> float:
        """Largest entry of the gradients over what is allowed."""
        # both, since ∂S/∂x is about 2U ∂S/∂U: the former hides paths that are switched off, the
        # latter strong ones
        steepest = float(np.abs(point.gradient).max())
        return max(point.detail.gradient_norm, steepest / _COORDINATES) / tolerance

    def _begin(
        self, given: _Handover, minima: Sequence[Descent], tolerance: float
    ) -> AskingEnergy[_Handover]:
        """Begin a descent in float32, unless the start is near a minimum; the handover."""
        if given.curvature:  # of a neighbour
            point = yield from self.action.evaluate(given.start)
            given = given._replace(point=point)
            if point.detail is None or self._over_tolerance(point, tolerance) < FAR_OVER_TOLERANCE:
                return given
        with contextlib.suppress(
            _NotInSingleError, NotPositiveDefiniteError, np.linalg.LinAlgError, ValueError
        ):
            handover = yield from self._descend_in_single(given, minima, tolerance)
            # the step to it was not searched: it may lead to where no kernel can be factorised
            point = yield from self.action.evaluate(handover.start)
            if point.detail is not None:
                return handover._replace(point=point)
        self.action.fallbacks += 1
        return given

    def _descend_in_single(
        self, given: _Handover, minima: Sequence[Descent], tolerance: float
    ) -> AskingEnergy[_Handover]:
        """Descend in float32 to its last digits; the handover from there.

        It raises the error of the first evaluation, or _NotInSingleError.
        """
        whole = self.action
        noise = relative_noise(whole.problem, whole.network, whole.temperature)
        if not noise <= LARGEST_NOISE:
            raise _NotInSingleError
        action, search = whole.in_single_precision, line_search(noise)
        history, last_digits = History(rounding=search.rounding), LastDigits(noise)
        action.limit = action.evaluations + whole.limit - whole.evaluations - 1
        most = action.evaluations + most_evaluations(whole.problem, whole.network)

        def stop(point: quasi_newton.Iterate) -> bool:
            if point.detail is None:
                raise _NotInSingleError
            if self.is_near(point.detail, minima, _APPROACH):
                raise _AbandonedError
            history.append(point.detail)
            self._report_step(point.detail)
            reached = last_digits.reached(point, self._over_tolerance(point, tolerance))
            return reached or action.evaluations >= most

        pairs: Sequence[quasi_newton.Pair] = ()
        asking = quasi_newton.minimiser(
            given.start, action.curvature, stop, given.curvature, search
        )
        with contextlib.suppress(OutOfEvaluationsError):
            _, pairs = yield from action.answer(asking)
        if not last_digits.are_clean:
            whole.fallbacks += 1
            pairs = pairs[: max(0, len(pairs) - last_digits.idle)]
            return _Handover(history.flattest.coordinates, pairs, history)
        # where float32 has digits left, its next step is that of float64: no point is evaluated
        # twice
        end = last_digits.point
        step = quasi_newton.newton_step(end.gradient, pairs, action.curvature)
        return _Handover(end.x + step, pairs, history)

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
