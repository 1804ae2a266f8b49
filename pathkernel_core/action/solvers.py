"""Solutions from descents: generators that ask for energies, and the answers to what they ask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from pathkernel_core.action import quasi_newton
from pathkernel_core.action.branches import BranchCoordinates, coordinates_of
from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.action.descents import Descender, Descent, search
from pathkernel_core.action.evaluations import (
    Action,
    AskingEnergy,
    EnergyAnswer,
    EnergyQuestion,
    History,
)
from pathkernel_core.action.solution import Minimum, Solution, Status
from pathkernel_core.arrays.backend import Array, from_host
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_core.system.threads import blas_threads_for


def solver(
    descend: Descender, start: Solution | None, starts: int | None
) -> AskingEnergy[Solution]:
    """Solution of the lowest minimum: from one start, or by a search from several.

    Parameters
    ----------
    descend : Descender
        Descent of the action at a point.
    start : Solution, optional
        Solution at a neighbouring point, the only start.
    starts : int, optional
        Number of starts, as for :func:`pathkernel_core.action.minimise.minimise_action`.
    """
    action = descend.action
    if not action.coordinates.size:  # all widths are infinite
        return (yield from limit_solver(action))
    if start is None:
        descents = yield from search(descend, starts)
    else:
        warm_start = _warm_start(action.coordinates, start)
        # curvature belongs to coordinates, which levels of infinite width do not have
        networks = action.network, start.network
        infinite, before = (tuple(map(math.isinf, network.widths)) for network in networks)
        curvature = start.curvature if infinite == before else ()
        descents = [(yield from descend(warm_start, curvature))]
    return _solution(action, descents, searched=start is None)


def limit_solver(action: Action) -> AskingEnergy[Solution]:
    """Solution at the Gaussian process limit."""
    point = yield from action.evaluate(action.coordinates.gp_limit, needs_gradient=False)
    return _without_descent(action, point, Status.GP_LIMIT)


def stationary_solver(action: Action, coordinates: np.ndarray) -> AskingEnergy[Solution]:
    """Solution at coordinates where the gradient is known to vanish."""
    point = yield from action.evaluate(coordinates)
    return _without_descent(action, point, Status.CONVERGED, searched=False)


def _without_descent(
    action: Action, point: quasi_newton.Iterate, status: Status, searched: bool = True
) -> Solution:
    history = History()
    history.append(point.detail)
    return _solution(action, [Descent(point.detail, status, history)], searched)


@contextmanager
def prepare_evaluations(problem: Problem, networks: Sequence[Network]) -> Iterator[None]:
    """One BLAS thread for short evaluations, and no warnings of overflows.

    A factorisation raises where one matters.
    """
    seconds = max(problem.seconds_for(network) for network in networks)
    with blas_threads_for(seconds), np.errstate(all="ignore"):
        yield


def energies(questions: Sequence[EnergyQuestion]) -> list[EnergyAnswer | Exception]:
    """Energies and gradients M − R, or the exceptions that their evaluations raised."""
    answers: list[EnergyAnswer | Exception | None] = [None] * len(questions)
    by_form: dict[int, list[int]] = {}
    for index, question in enumerate(questions):
        by_form.setdefault(id(question.form), []).append(index)
    for indices in by_form.values():
        form = questions[indices[0]].form
        if len(indices) > 1 and form.pays_together(len(indices)):
            asked = [questions[index] for index in indices]
            together = form.energies_and_gradients(
                [question.factor for question in asked],
                [question.temperature for question in asked],
                [question.scales for question in asked],
            )
            for index, (energy, gradient) in zip(indices, together):
                # one that fails may fail the others in its library: they are evaluated alone
                if math.isfinite(energy):
                    answers[index] = energy, gradient
    return [
        _energy(question) if answer is None else answer
        for question, answer in zip(questions, answers)
    ]


def _energy(question: EnergyQuestion) -> EnergyAnswer | Exception:
    arguments = question.factor, question.temperature, question.scales
    form = question.form
    evaluate = form.energy_and_gradient if question.needs_gradient else form.evaluate_energy
    try:
        return evaluate(*arguments)
    except (NotPositiveDefiniteError, np.linalg.LinAlgError, ValueError) as error:
        return error


def _solution(action: Action, descents: Sequence[Descent], searched: bool = True) -> Solution:
    """Solution of the descent that ended lowest, or as low and converged."""
    by_value = sorted(descents, key=lambda descent: descent.evaluation.value)
    lowest = by_value[0].evaluation.value
    minima = [descent for descent in by_value if descent.status.ok]
    descent = by_value[0]
    # a stalled descent may end lower than a converged one by rounding alone
    if minima and minima[0].evaluation.value <= lowest + 1e-9 * max(1.0, abs(lowest)):
        descent = minima[0]
    end, history = descent.evaluation, descent.history
    entropy, energy = action.per_width(end)
    limit = action.coordinates.entropy(action.coordinates.gp_limit)

    def order_parameter(factor: np.ndarray) -> Array:
        return from_host(action.coordinates.order_parameter(factor), action.problem.array)

    return Solution(
        order_parameters=tuple(map(order_parameter, end.factors)),
        factors=tuple(end.factors),
        action=entropy + energy,
        entropy=entropy,
        energy=energy,
        status=descent.status,
        evaluations=action.evaluations + action.single_evaluations,
        iterations=len(history.values) - 1,
        gradient_norm=end.gradient_norm,
        # descents count from the limit's entropy and per smallest width, users from 0 and per N
        action_history=limit + np.array(history.values) / action.unit,
        gradient_history=np.array(history.norms),
        network=action.network,
        problem=action.problem,
        temperature=action.temperature,
        curvature=descent.curvature,
        other_minima=tuple(
            Minimum(
                sum(action.per_width(minimum.evaluation)),
                minimum.status,
                order_parameter(minimum.evaluation.factors[0]),
            )
            for minimum in minima
            if minimum is not descent
        ),
        searched=searched,
        form=action.form,
        single_evaluations=action.single_evaluations,
        single_fallbacks=action.fallbacks,
    )


def failed_solution(
    problem: Problem, network: Network, temperature: float, failure: str
) -> Solution:
    """Solution of a point whose kernel cannot be factorised: NaN, with the reason."""
    coordinates = coordinates_of(network)
    limit = coordinates.factors(coordinates.relative_factors(coordinates.gp_limit))
    factors = tuple(np.full_like(factor, math.nan) for factor in limit)
    order_parameters = tuple(
        from_host(np.full_like(factor, math.nan), problem.array) for factor in factors
    )
    return Solution(
        order_parameters=order_parameters,
        factors=factors,
        action=math.nan,
        entropy=math.nan,
        energy=math.nan,
        status=Status.NOT_POSITIVE_DEFINITE,
        evaluations=1,
        iterations=0,
        gradient_norm=math.nan,
        action_history=np.empty(0),
        gradient_history=np.empty(0),
        network=network,
        problem=problem,
        temperature=temperature,
        failure=failure,
    )


def _warm_start(coordinates: ChainCoordinates | BranchCoordinates, start: Solution) -> np.ndarray:
    if not isinstance(start, Solution):
        raise TypeError(f"start must be a Solution, not {type(start).__name__}")
    if start.failure:
        raise ValueError(f"start has no order parameters: {start.failure}")
    sizes, network = start.network.sizes, coordinates.network
    if start.network.shared is not network.shared:
        raise ValueError(
            "start and network must both have independent branches (shared=False), or neither"
        )
    if sizes != network.sizes or start.network.shared_sizes != network.shared_sizes:
        raise ValueError(
            f"start has order parameters of sizes {sizes}, but this network "
            f"needs {network.sizes}; start from a network with the same heads and skip connections"
        )
    return coordinates.from_factors(start.factors)
