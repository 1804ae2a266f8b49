"""Minimisation of the action over the order parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pathkernel_core.action.approximation import warn_of_approximation
from pathkernel_core.action.asking import answer_all
from pathkernel_core.action.descents import Descender
from pathkernel_core.action.evaluations import Action
from pathkernel_core.action.minima import warn_of_scale
from pathkernel_core.action.solution import Solution
from pathkernel_core.action.solvers import (
    energies,
    failed_solution,
    limit_solver,
    prepare_evaluations,
    solver,
)
from pathkernel_core.arrays.backend import is_double
from pathkernel_core.arrays.scalars import positive, whole_number
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import MinimisationError, NotPositiveDefiniteError
from pathkernel_core.system.progress import Report, silent
from pathkernel_core.system.text import number

UNSOLVABLE = (NotPositiveDefiniteError, np.linalg.LinAlgError)
"""Errors of a point whose kernel cannot be factorised."""

_ABSENT = ", or give rows (P, C) of 0 and a 1 for labels if some classes have no example"
_SHOWN = 6  # widths in a message, of which branches may have thousands


def minimise_action(
    problem: Problem,
    network: Network,
    temperature: float | None = None,
    *,
    tolerance: float | None = None,
    start: Solution | None = None,
    starts: int | None = None,
    max_evaluations: int = 2000,
    throw: bool = True,
    report: Report = silent,
    check: str | None = None,
    mixed_precision: bool | None = None,
) -> Solution:
    """Minimise the action over all order parameters (Eq. 11, 32).

    The action may have several minima where the kernel is small against temperature and labels. A
    bounded search returns the lowest that it finds, with the rest in
    :attr:`Solution.other_minima`; :mod:`pathkernel_core.action.minima` decides whether to search.

    Parameters
    ----------
    problem : Problem
        Training examples.
    network : Network
        Heads, widths, variances and outputs; or independent branches (``shared=False``).
    temperature : float, optional
        Positive Gibbs temperature T of the squared loss. Likelihoods of classes have none: their
        scale is the prior variance of the outputs, of ``variances`` in Network.
    tolerance : float, optional
        Largest entry allowed in the gradients ∂(S/N)/∂U, with N the smallest finite width. By
        default 1e-8 in float64, and in lower precision the smaller of 1e-2 and 1 / (2N); or what
        rounding leaves of the gradient where that is more, as where U is tiny.
    start : Solution, optional
        The only start, such as the solution at a neighbouring temperature or width; there is no
        search for other minima. Its stored curvature saves evaluations.
    starts : int, optional
        Number of starts: 1 is the Gaussian process limit alone; more add the scaled limit, single
        heads switched on, and random ones. By default as many as the test of
        :mod:`pathkernel_core.action.minima` asks for, at most 24, until two single heads in a row
        lead back to known minima; 1 for independent branches.
    max_evaluations : int
        Limit on evaluations of the energy from each start. An end that a symmetry of the problem
        may have kept on a saddle is a further start, with small noise.
    throw : bool
        Raise if the tolerance is not reached, or the kernel cannot be factorised. If False, check
        ``Solution.status``.
    report : callable
        Called with a Progress after every step: the evaluations so far, and the gradient.
    check : {"ep"}, optional
        Check of Laplace's approximation for two classes: the minimum by expectation propagation
        becomes :attr:`Solution.check`, with U, evidence and predictions of its own.
    mixed_precision : bool, optional
        Whether a descent begins in float32, in half of the time, until its gradient is near its
        rounding, and ends in float64 with the curvature that was seen: at the same minimum, to the
        same tolerance. By default where evaluations of the squared loss are long:
        :func:`pathkernel_core.energy.costs.pays_in_single`. It needs float64 arrays, and memory for
        a copy in float32.

    Raises
    ------
    MinimisationError
        If the tolerance is not reached; its ``solution`` is the last step.
    NotPositiveDefiniteError
        If the kernel cannot be factorised at the start.
    TooLargeError
        If classes have more rows P·C than fit, 6,000; of the limit, if their kernel is too large to
        be factorised class by class, too. Take fewer examples, or rescale the inputs.
    ValueError
        If the network does not fit the problem, a number is out of range, or both start and starts
        are set. If the squared loss has no temperature, or classes have one. If mixed precision
        is asked for of float32 arrays.

    Warns
    -----
    ScaleWarning
        If inputs are so small or so large that temperature and variances have little effect. If
        U or a probability of a training example differs from the check by more than 1/N, N the
        smallest finite width.

    Notes
    -----
    On a grid, go from high to low temperatures and pass each solution as the next ``start``, which
    saves a fifth to a third of the evaluations, but also the search for other minima.
    If U hardly differs from its limit, or the status is ``STALLED``, look for a ScaleWarning first:
    attentioned inputs should have entries of order 1. In float32 the default tolerance is loose;
    convert the arrays to float64 for response, stability or the next order in 1/N.

    Problems with evaluations below 50 ms, such as those of 100 or 600 examples, use one BLAS
    thread. Larger ones keep the threads of the process, as ``OPENBLAS_NUM_THREADS`` or
    ``threadpoolctl.threadpool_limits`` set them.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> xi = rng.normal(size=(20, 4, 5))
    >>> problem = pk.Problem(xi, np.sign(xi[:, 0, 0]))
    >>> solution = pk.minimise_action(problem, pk.Network((2, 2), widths=10), temperature=0.01)
    >>> solution.status.name, solution.order_parameter.shape
    ('CONVERGED', (4, 4))
    """
    starts = None if starts is None else whole_number("starts", starts)
    if start is not None and starts is not None:
        raise ValueError("start excludes starts: leave one of them out")
    settings = tolerance, max_evaluations, report
    descend = descender(problem, network, temperature, *settings, mixed_precision)
    if check not in (None, "ep"):
        raise ValueError(f'check must be "ep" or left out, not {check!r}')
    checking = None if check is None else problem.by_ep()
    if start is None and descend.action.coordinates.size:
        warn_of_scale(problem, network, descend.action.temperature)
    try:
        with prepare_evaluations(problem, [network]):
            (solution,) = answer_all([solver(descend, start, starts)], energies)
    except UNSOLVABLE as error:
        failure = not_factorised(error, network, descend.action.temperature)
        if throw:
            raise failure from None
        return failed_solution(problem, network, descend.action.temperature, str(failure))
    if throw and not solution.status.ok:
        raise not_minimised(solution, descend)
    if checking is None:
        return solution
    descend = descender(checking, network, None, *settings)
    try:
        with prepare_evaluations(checking, [network]):
            (by_ep,) = answer_all([solver(descend, solution, None)], energies)
    except UNSOLVABLE as error:  # the solution stands, with a check that says why it failed
        failure = str(not_factorised(error, network, descend.action.temperature))
        by_ep = failed_solution(checking, network, descend.action.temperature, failure)
    solution = replace(solution, check=by_ep)
    warn_of_approximation(solution)
    return solution


def not_minimised(solution: Solution, descend: Descender) -> MinimisationError:
    """Error about a solution that has not the tolerance, with the remedies."""
    return MinimisationError(
        f"the action was not minimised at {_point(solution.network, solution.temperature)}: "
        f"{solution.status.value}. The largest gradient is "
        f"{solution.gradient_norm:.2g} after {solution.evaluations} evaluations (at most "
        f"{descend.max_evaluations} from each start), the tolerance {descend.tolerance:.2g}. "
        "Raise max_evaluations or the tolerance, or leave the tolerance out, which accepts a "
        "gradient of rounding alone; start from a neighbouring solution; or pass throw=False to "
        "use the point as it is",
        solution,
    )


def not_factorised(
    error: Exception, network: Network, temperature: float
) -> NotPositiveDefiniteError:
    """Error about a point whose kernel cannot be factorised, with the remedies."""
    return NotPositiveDefiniteError(f"at {_point(network, temperature)}, {error}")


def _point(network: Network, temperature: float) -> str:
    at = "" if math.isnan(temperature) else f" and temperature {temperature:g}"
    if len(set(network.widths)) == 1:
        return f"width {number(network.widths[0])}{at}"
    widths = ", ".join(map(number, network.widths[:_SHOWN]))
    more = ", …" if len(network.widths) > _SHOWN else ""
    return f"widths ({widths}{more}){at}"


def descender(
    problem: Problem,
    network: Network,
    temperature: float | None,
    tolerance: float | None,
    max_evaluations: int,
    report: Report = silent,
    mixed_precision: bool | None = None,
) -> Descender:
    """Minimiser of the action at a point, whose arguments are checked."""
    temperature = _checked_temperature(problem, network, temperature)
    is_default, double = tolerance is None, is_double(problem.array)
    if tolerance is None:
        # in float32 twice the rounding of the gradient, which shrinks with the width
        tolerance = 1e-8 if double else min(1e-2, 0.5 / network.smallest_width)
    tolerance = positive("tolerance", tolerance)
    max_evaluations = whole_number("max_evaluations", max_evaluations)
    if mixed_precision is None:
        mixed_precision = double and problem.pays_in_single(network)
    elif not isinstance(mixed_precision, bool):
        raise TypeError(f"mixed_precision must be True, False or None, not {mixed_precision!r}")
    elif mixed_precision and not double:
        raise ValueError(
            f"mixed_precision needs float64 arrays, but the problem has {problem.array.dtype}; "
            "leave it out, or convert xi and labels, or kernels, to float64"
        )
    action = Action(problem, network, temperature, mixed_precision)
    problem.check_size(network)
    return Descender(action, tolerance, max_evaluations, report, to_rounding=is_default)


def gp_limit(problem: Problem, network: Network, temperature: float | None = None) -> Solution:
    """Return the Gaussian process limit N → ∞, where U is Π σ² times the identity.

    The action is that of the finite network at this order parameter; of levels of infinite width
    it has no terms. Parameters and errors as for
    :func:`minimise_action`.

    Compare it with a finite network at its own best temperature: the limit often needs a lower one,
    and at a common one part of the difference is that of the temperatures.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
    >>> problem = pk.Problem(xi, np.sign(xi[:, 0, 0]))
    >>> pk.gp_limit(problem, pk.Network((2, 2), widths=10), 0.01).order_parameter.diagonal()
    array([1., 1., 1., 1.])
    """
    temperature = _checked_temperature(problem, network, temperature)
    infinite = replace(network, widths=(math.inf,) * len(network.widths))
    with prepare_evaluations(problem, [infinite]):
        (solution,) = answer_all([limit_solver(Action(problem, network, temperature))], energies)
    return solution


def _checked_temperature(problem: Problem, network: Network, temperature: float | None) -> float:
    """Temperature of a point whose arguments are checked; NaN of classes, which have none."""
    _check_network(problem, network)
    return problem.likelihood.temperature(temperature)


def _check_network(problem: Problem, network: Network) -> None:
    for name, value, kind in (("problem", problem, Problem), ("network", network, Network)):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")
    if network.n_paths != problem.n_paths:
        skips = f" and skips {network.skips}" if network.has_skips else ""
        raise ValueError(
            f"network has heads {network.heads}{skips}, hence {network.n_paths} paths, but the "
            f"problem has {problem.n_paths} paths; build both from the same layers"
        )
    if network.shared and not problem.has_pairs:
        raise ValueError(
            "problem has kernels of single branches only, for independent branches: set "
            "shared=False in Network, or give kernels of pairs of paths to Problem.from_kernels"
        )
    of_classes = not problem.likelihood.is_gaussian and problem.outputs > 1
    if network.outputs != problem.outputs:
        raise ValueError(
            f"network has {network.outputs} outputs, but labels have {problem.outputs}; "
            f"set outputs={problem.outputs} in Network{_ABSENT if of_classes else ''}"
        )
