"""Many points at once, and minimisation from the solution at a neighbouring temperature."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from pathkernel_core.action.asking import answer_all
from pathkernel_core.action.evaluations import AskingEnergy
from pathkernel_core.action.minima import may_have_several, warn_of_scale
from pathkernel_core.action.minimise import UNSOLVABLE, descender, not_factorised, not_minimised
from pathkernel_core.action.solution import Solution
from pathkernel_core.action.solvers import (
    energies,
    failed_solution,
    prepare_evaluations,
    solver,
)
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_core.system.progress import Progress, Report, silent

Outcome: TypeAlias = "Solution | NotPositiveDefiniteError | np.linalg.LinAlgError"
"""What a point of a grid ends with: its solution, or the error of its factorisation."""


def minimise_from(
    problem: Problem,
    network: Network,
    temperature: float | None,
    start: Solution | None,
    report: Report = silent,
    tolerance: float | None = None,
) -> Solution | None:
    """Lowest minimum of the action that the search finds; None if that fails.

    Classes have no temperature, which is None or NaN.

    A neighbour's solution is a start only where the action has no other minimum, so that the result
    depends on the point alone.
    """
    temperature = problem.likelihood.temperature(temperature)
    with prepare_evaluations(problem, [network]), suppress(*UNSOLVABLE):
        (solution,) = answer_all(
            [solver_from(problem, network, temperature, start, report=report, tolerance=tolerance)],
            energies,
        )
        return solution
    return None


def solver_from(
    problem: Problem,
    network: Network,
    temperature: float,
    start: Solution | None,
    *,
    tolerance: float | None = None,
    max_evaluations: int = 2000,
    report: Report = silent,
    mixed_precision: bool | None = None,
) -> AskingEnergy[Solution]:
    """As :func:`minimise_from`, for a point beside others: a generator that asks for energies."""
    settings = tolerance, max_evaluations, report, mixed_precision
    if start is not None and not may_have_several(problem, network, temperature):
        with suppress(*UNSOLVABLE):
            descend = descender(problem, network, temperature, *settings)
            solution = yield from solver(descend, start, None)
            if solution.status.ok:
                return solution
    return (yield from solver(descender(problem, network, temperature, *settings), None, None))


def minimise_grid(
    problem: Problem,
    networks: Sequence[Network],
    temperatures: Sequence[float],
    on_point: Callable[[int, float, Outcome], None],
    *,
    is_over: Callable[[int, float], bool] = lambda index, temperature: False,
    reporter: Callable[[int, float], Report] = lambda index, temperature: silent,
    tolerance: float | None = None,
    max_evaluations: int = 2000,
    mixed_precision: bool | None = None,
) -> None:
    """Minimise the actions of networks, each from the highest temperature to the lowest.

    A minimisation starts from the solution at the temperature above, with the curvature that was
    seen there, as :func:`solver_from` does. Networks go side by side where evaluations are faster
    together, otherwise one after another; the order changes no value.

    Parameters
    ----------
    problem : Problem
        Training examples, in the form in which they are evaluated.
    networks : sequence of Network
    temperatures : sequence of float
        Each once, in any order.
    on_point : callable
        Called as soon as a point ends, with the network's index, the temperature and the outcome,
        under the caller's settings of floating-point errors. What it raises ends the grid.
    is_over : callable, optional
        Called before a point, with the same index and temperature. If it returns True, the network
        is not minimised there and at lower temperatures.
    reporter : callable, optional
        Called when a point begins, with the same arguments; it returns the receiver of the
        Progress of its steps.
    tolerance, max_evaluations, mixed_precision
        As for :func:`minimise_actions`.
    """
    callers = np.geterr()

    def along_temperatures(index: int) -> AskingEnergy[None]:
        start: Solution | None = None
        for temperature in sorted(temperatures, reverse=True):
            if is_over(index, temperature):
                return
            outcome: Outcome
            try:
                outcome = yield from solver_from(
                    problem,
                    networks[index],
                    temperature,
                    start,
                    tolerance=tolerance,
                    max_evaluations=max_evaluations,
                    report=reporter(index, temperature),
                    mixed_precision=mixed_precision,
                )
            except UNSOLVABLE as error:
                outcome = error
            # overflows are silent for steps of a minimisation that go too far, not for the caller
            with np.errstate(**callers):
                on_point(index, temperature, outcome)
            start = outcome if isinstance(outcome, Solution) and outcome.status.ok else None

    indices = list(range(len(networks)))
    groups = [indices] if problem.pays_together(len(networks)) else [[index] for index in indices]
    for group in groups:
        with prepare_evaluations(problem, [networks[index] for index in group]):
            answer_all([along_temperatures(index) for index in group], energies)


def minimise_actions(
    problem: Problem,
    networks: Sequence[Network],
    temperatures: Sequence[float] | None = None,
    *,
    tolerance: float | None = None,
    max_evaluations: int = 2000,
    throw: bool = True,
    report: Report = silent,
    on_solution: Callable[[int, int, Solution], None] | None = None,
    mixed_precision: bool | None = None,
) -> list[list[Solution]]:
    """Minimise the actions of several networks at several temperatures (Eq. 11, 32).

    Where it is faster, the networks go side by side, and their evaluations share the kernels of
    pairs of paths: with 600 examples and 16 paths a grid of ten widths and ten temperatures takes
    six tenths of the time of single minimisations. Each network goes from the highest temperature
    to the lowest, and starts from its solution at the temperature above, with the curvature that
    was seen there; where the action may have several minima, it searches as
    :func:`minimise_action` does.

    Parameters
    ----------
    problem : Problem
        Training examples.
    networks : sequence of Network
        Such as those of several widths, with the same heads.
    temperatures : sequence of float, optional
        Positive Gibbs temperatures, each once, in any order. Classes have none, and one solution
        for each network.
    tolerance : float, optional
        As for :func:`minimise_action`, for each network.
    max_evaluations : int
        Limit on evaluations of the energy from each start.
    throw : bool
        Raise at the first point where the tolerance is not reached, or the kernel cannot be
        factorised. If False, such points cost no others: check ``Solution.status``.
    report : callable
        Called with a Progress after every step: the points so far, and all of them.
    on_solution : callable, optional
        Called with i, j and ``solutions[i][j]`` as soon as this point is solved, for example to
        store it. What it raises ends the computation.
    mixed_precision : bool, optional
        As for :func:`minimise_action`.

    Returns
    -------
    list of lists of Solution
        ``solutions[i][j]`` of ``networks[i]`` at ``temperatures[j]``, equal to single minimisations
        up to the tolerance.

    Raises
    ------
    MinimisationError, NotPositiveDefiniteError
        As for :func:`minimise_action`.
    ValueError
        If there is no network or temperature, a temperature is there twice, or a network does not
        fit the problem.
    TypeError
        If networks or temperatures are no sequence.

    Warns
    -----
    ScaleWarning
        As for :func:`minimise_action`.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
    >>> problem = pk.Problem(xi, np.sign(xi[:, 0, 0]))
    >>> networks = [pk.Network((2, 2), N) for N in (10, 100)]
    >>> solutions = pk.minimise_actions(problem, networks, [0.1, 0.01])
    >>> [[round(solution.action, 2) for solution in row] for row in solutions]
    [[9.46, 13.68], [7.33, 8.0]]
    """
    if temperatures is None:
        temperatures = [problem.likelihood.temperature(None)]  # raises for the squared loss
    for name, sequence in (("networks", networks), ("temperatures", temperatures)):
        if isinstance(sequence, str) or not isinstance(sequence, Iterable):
            raise TypeError(
                f"{name} must be a sequence, not {type(sequence).__name__}; "
                "give a list, even of one"
            )
    networks, temperatures = list(networks), list(temperatures)
    if problem.likelihood.is_gaussian:
        temperatures = [positive("temperatures", t) for t in temperatures]
    else:
        temperatures = [problem.likelihood.temperature(t) for t in temperatures]
    for name, values in (("networks", networks), ("temperatures", temperatures)):
        if not values:
            raise ValueError(f"{name} is empty; give at least one")
    if len(set(temperatures)) < len(temperatures):
        raise ValueError(f"temperatures must differ, but are {temperatures}")
    highest = max(temperatures)
    settings = tolerance, max_evaluations, silent, mixed_precision
    for network in networks:  # a bad one is named before any minimisation
        if descender(problem, network, highest, *settings).action.coordinates.size:
            warn_of_scale(problem, network, highest)
    if all(network.shared for network in networks):
        problem = problem.for_points(len(networks))
    total, solved = len(networks) * len(temperatures), itertools.count(1)
    rows: list[dict[float, Solution]] = [{} for _ in networks]

    def on_point(index: int, temperature: float, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            failure = not_factorised(outcome, networks[index], temperature)
            if throw:
                raise NotPositiveDefiniteError(
                    f"{failure}; or leave this point out, or pass throw=False for the other points"
                ) from None
            outcome = failed_solution(problem, networks[index], temperature, str(failure))
        if throw and not outcome.status.ok:
            failed = descender(problem, networks[index], temperature, *settings)
            raise not_minimised(outcome, failed)
        rows[index][temperature] = outcome
        if on_solution is not None:
            on_solution(index, temperatures.index(temperature), outcome)
        report(Progress(next(solved), total, "minimising"))

    minimise_grid(
        problem,
        networks,
        temperatures,
        on_point,
        tolerance=tolerance,
        max_evaluations=max_evaluations,
        mixed_precision=mixed_precision,
    )
    return [[row[temperature] for temperature in temperatures] for row in rows]
