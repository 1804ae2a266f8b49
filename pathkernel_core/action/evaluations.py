"""The action as a function of coordinates, and what its evaluations tell.

Evaluations are generators that ask for energies and are told them, see
:mod:`pathkernel_core.action.asking`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np

from pathkernel_core.action import quasi_newton
from pathkernel_core.action.branches import coordinates_of
from pathkernel_core.action.stability import ActionHessian
from pathkernel_core.arrays.backend import array_namespace
from pathkernel_core.energy.form import Form
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import NotPositiveDefiniteError


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
    needs_gradient : bool
        Whether the answer must have the gradient, or may have None in its place.
    """

    form: Form
    factor: np.ndarray
    temperature: float
    scales: np.ndarray | None
    needs_gradient: bool = True


Result = TypeVar("Result")
EnergyAnswer: TypeAlias = "tuple[float, np.ndarray | None]"
"""Energy, and its gradient unless the question does without."""
AskingEnergy: TypeAlias = "Generator[EnergyQuestion, EnergyAnswer, Result]"
"""Generator that yields questions, is told energy and gradient, and returns a result."""


class OutOfEvaluationsError(Exception):
    """Raised where a descent may evaluate the action no more."""


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
    end of a stalled descent. Those of a history before, in lower precision, do not count.
    """

    last: Evaluation
    flattest: Evaluation

    def __init__(self, before: History | None = None, rounding: float = quasi_newton.ROUNDING):
        self._lowest, self._rounding = math.inf, rounding
        self.values: list[float] = [] if before is None else before.values.copy()
        self.norms: list[float] = [] if before is None else before.norms.copy()

    def append(self, evaluation: Evaluation) -> None:
        """Add an accepted step."""
        value, norm = evaluation.value, evaluation.gradient_norm
        is_first = math.isinf(self._lowest)
        self.last = evaluation
        self._lowest = lowest = min(value, self._lowest)
        # values this close are equal to rounding: only the gradients still rank these steps
        rounding = self._rounding * max(1.0, abs(lowest))
        if (
            is_first
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

    Parameters
    ----------
    problem : Problem
    network : Network
    temperature : float
    mixed_precision : bool
        Whether descents begin in float32.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        temperature: float,
        mixed_precision: bool = False,
    ):
        self.problem, self.network, self.temperature = problem, network, temperature
        self.coordinates = coordinates_of(network)
        self.form = problem.form_for(network).for_descent()
        self._scales = network.path_scales[:, None] if network.has_skips else None
        self.unit = network.width / network.smallest_width
        self.curvature = self.unit * self.coordinates.curvature
        self.evaluations, self.limit = 0, math.inf
        self.mixed_precision, self.fallbacks = mixed_precision, 0
        array = problem.array
        self.epsilon = float(array_namespace(array=array).finfo(array.dtype).eps)

    @cached_property
    def in_single_precision(self) -> Action:
        """Same action, evaluated in float32, with counts of its own."""
        single = copy.copy(self)
        single.form = self.problem.form_for(self.network).in_single_precision.for_descent()
        single.evaluations, single.limit = 0, math.inf
        return single

    @property
    def single_evaluations(self) -> int:
        """Number of evaluations in float32."""
        return self.in_single_precision.evaluations if self.mixed_precision else 0

    @property
    def all_evaluations(self) -> int:
        """Number of evaluations in both precisions."""
        return self.evaluations + self.single_evaluations

    def evaluate(
        self, coordinates: np.ndarray, needs_gradient: bool = True
    ) -> AskingEnergy[quasi_newton.Iterate]:
        """Value and gradient at coordinates; infinite where the kernel cannot be factorised.

        A gradient that is not needed may be NaN.
        """
        if self.evaluations >= self.limit:
            raise OutOfEvaluationsError
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
                self.form,
                math.sqrt(variance) * factors[0],
                self.temperature,
                self._scales,
                needs_gradient,
            )
            energy = energy / network.smallest_width
            excess = self.coordinates.excess_entropy(coordinates) / network.smallest_width
            if gradient is None:
                norm = math.nan if self.coordinates.size else 0.0
                slope = np.full_like(coordinates, math.nan)
                detail = Evaluation(coordinates, factors, excess, energy, norm)
                return quasi_newton.Iterate(coordinates, detail.value, slope, detail)
            gradient = gradient * (variance / width)
            norm = unit * self.coordinates.largest_slope(coordinates, relative, factors, gradient)
        except (NotPositiveDefiniteError, np.linalg.LinAlgError, ValueError):
            if self.evaluations == 1:  # a defect of the problem; later, only too long a step
                raise
            return quasi_newton.Iterate(coordinates, math.inf, np.full_like(coordinates, np.nan))
        gradient = unit * self.coordinates.gradient(coordinates, relative, factors, gradient)
        detail = Evaluation(coordinates, factors, excess, energy, norm)
        return quasi_newton.Iterate(coordinates, detail.value, gradient, detail)

    def answer(
        self, asking: quasi_newton.Asking[Result], known: quasi_newton.Iterate | None = None
    ) -> AskingEnergy[Result]:
        """Run what asks for the action at coordinates, and return its result.

        The first answer may be known.
        """
        try:
            coordinates = next(asking)
            if known is not None:
                coordinates = asking.send(known)
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
