"""Minimisation of the action over the order parameters."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pathkernel_core import quasi_newton
from pathkernel_core.backend import Array, array_namespace, from_host
from pathkernel_core.branches import BranchCoordinates, coordinates_of
from pathkernel_core.coordinates import ChainCoordinates
from pathkernel_core.errors import MinimisationError, NotPositiveDefiniteError
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minima import (
    STRONG,
    SUSPICIOUS,
    search_starts,
    structured_starts,
    suspicion,
    warn_of_scale,
)
from pathkernel_core.network import Network
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_core.scalars import positive, whole_number
from pathkernel_core.solution import Minimum, Solution, Status
from pathkernel_core.stability import ActionHessian
from pathkernel_core.threads import blas_threads_for

# tolerance of the dimensionless gradient in the chain's coordinates over that of the gradient in
# the order parameters, which has units of 1 / U and is uninformative where U is large
_COORDINATES = 100
_SAME = 0.2  # largest difference of coordinates within one basin, near its minimum
_NEAR_SADDLE = 1e-6  # largest tolerance of a descent from a possible saddle
_NOISE = 1e-2  # in coordinates, which breaks symmetries
_SAME_SPECTRUM = 1e-4  # relative difference of the eigenvalues of U along a ring of minima
_ROUNDING = 1e-6  # relative difference of actions of one minimum
_APPROACH = 1e-2  # relative difference of actions at which a descent counts as near a minimum


def minimise_action(
    problem: PathKernels,
    network: Network,
    temperature: float,
    *,
    tolerance: float | None = None,
    start: Solution | None = None,
    starts: int | None = None,
    max_evaluations: int = 2000,
    throw: bool = True,
    report: Report = silent,
) -> Solution:
    """Minimise the action over all order parameters (Eq. 11, 32).

    The action may have several minima where the kernel is small against temperature and labels. A
    bounded search returns the lowest that it finds, with the rest in
    :attr:`Solution.other_minima`; :mod:`pathkernel_core.minima` decides whether to search.

    Parameters
    ----------
    problem : PathKernels
        Training examples.
    network : Network
        Heads, widths, variances and outputs; or independent branches (``shared=False``).
    temperature : float
        Positive Gibbs temperature T.
    tolerance : float, optional
        Largest entry allowed in the gradients ∂(S/N)/∂U, with N the smallest finite width. By
        default 1e-8 in float64, and in lower precision the smaller of 1e-2 and 1 / (2N).
    start : Solution, optional
        The only start, such as the solution at a neighbouring temperature or width; there is no
        search for other minima. Its stored curvature saves evaluations.
    starts : int, optional
        Number of starts: 1 is the Gaussian process limit alone; more add the scaled limit, single
        heads switched on, and random ones. By default as many as the test of
        :mod:`pathkernel_core.minima` asks for, at most 24; 1 for independent branches.
    max_evaluations : int
        Limit on evaluations of the energy from each start. An end that a symmetry of the problem
        may have kept on a saddle is a further start, with small noise.
    throw : bool
        Raise if the tolerance is not reached. If False, check ``Solution.status``.
    report : callable
        Called with a Progress after every step: the evaluations so far, and the gradient.

    Raises
    ------
    MinimisationError
        If the tolerance is not reached; its ``solution`` is the last step.
    NotPositiveDefiniteError
        If the kernel cannot be factorised at the start.
    ValueError
        If the network does not fit the problem, a number is out of range, or both start and starts
        are set.

    Warns
    -----
    ScaleWarning
        If inputs are so small or so large that temperature and variances have little effect.

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
    >>> problem = pk.PathKernels(xi, np.sign(xi[:, 0, 0]))
    >>> solution = pk.minimise_action(problem, pk.Network((2, 2), widths=10), temperature=0.01)
    >>> solution.status.name, solution.order_parameter.shape
    ('CONVERGED', (4, 4))
    """
    temperature = positive("temperature", temperature)
    _check_network(problem, network)
    if tolerance is None:
        double = problem.array.dtype == array_namespace(array=problem.array).float64
        # in float32 twice the rounding of the gradient, which shrinks with the width
        tolerance = 1e-8 if double else min(1e-2, 0.5 / network.smallest_width)
    tolerance = positive("tolerance", tolerance)
    max_evaluations = whole_number("max_evaluations", max_evaluations)
    starts = None if starts is None else whole_number("starts", starts)
    if start is not None and starts is not None:
        raise ValueError("start excludes starts: leave one of them out")
    action = _Action(problem, network, temperature)
    if not action.coordinates.size:  # all widths are infinite
        return gp_limit(problem, network, temperature)
    descend = _Descender(action, tolerance, max_evaluations, report)
    with blas_threads_for(problem.seconds_for(network)):
        if start is not None:
            with np.errstate(all="ignore"):
                warm_start = _warm_start(action.coordinates, start)
                # curvature belongs to coordinates, which levels of infinite width do not have
                infinite, before = (
                    tuple(map(math.isinf, one.widths)) for one in (network, start.network)
                )
                descents = [descend(warm_start, start.curvature if infinite == before else ())]
        else:
            spectrum = problem.label_spectrum(network)
            warn_of_scale(spectrum, temperature)
            with np.errstate(all="ignore"):  # an overflow raises when it is factorised
                descents = _search(descend, starts)
    solution = _solution(action, descents, searched=start is None)
    if throw and not solution.status.ok:
        raise MinimisationError(
            f"the action was not minimised: {solution.status.value}. The largest gradient is "
            f"{solution.gradient_norm:.2g} after {solution.evaluations} evaluations (at most "
            f"{max_evaluations} from each start), the tolerance {tolerance:.2g}. Raise the "
            "tolerance or max_evaluations, start from a neighbouring solution, or pass throw=False "
            "to use the point as it is",
            solution,
        )
    return solution


def gp_limit(problem: PathKernels, network: Network, temperature: float) -> Solution:
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
    >>> problem = pk.PathKernels(xi, np.sign(xi[:, 0, 0]))
    >>> pk.gp_limit(problem, pk.Network((2, 2), widths=10), 0.01).order_parameter.diagonal()
    array([1., 1., 1., 1.])
    """
    temperature = positive("temperature", temperature)
    _check_network(problem, network)
    action = _Action(problem, network, temperature)
    with blas_threads_for(problem.seconds_for(network)):
        limit, history = action(action.coordinates.gp_limit).detail, _History()
    history.append(limit)
    return _solution(action, [_Descent(limit, Status.GP_LIMIT, history)])


class _OutOfEvaluationsError(Exception):
    pass


@dataclass(frozen=True, eq=False)
class _Evaluation:
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


class _History:
    """Values and gradients of all accepted steps, with the last and the flattest evaluation.

    The flattest has the smallest gradient of those whose values equal the lowest to rounding: the
    end of a stalled descent.
    """

    last: _Evaluation
    flattest: _Evaluation

    def __init__(self) -> None:
        self.values: list[float] = []
        self.norms: list[float] = []

    def append(self, evaluation: _Evaluation) -> None:
        """Add an accepted step."""
        value, norm = evaluation.value, evaluation.gradient_norm
        self.last = evaluation
        lowest = min([value, *self.values])
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


class _Action:
    """Action as a function of the chain's coordinates; counts its evaluations.

    Divided by the smallest finite width, and less the entropy of the limit: the terms of the
    narrowest level, which moves most, would vanish in the rounding of an action that is divided by
    a much larger width.
    """

    def __init__(self, problem: PathKernels, network: Network, temperature: float):
        self.problem, self.network, self.temperature = problem, network, temperature
        self.coordinates, self.form = coordinates_of(network), problem.form_for(network)
        self._scales = network.path_scales[:, None] if network.has_skips else None
        self.unit = network.width / network.smallest_width
        self.curvature = self.unit * self.coordinates.curvature
        self.evaluations, self.limit = 0, math.inf

    def __call__(self, coordinates: np.ndarray) -> quasi_newton.Iterate:
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
            energy, gradient = self.form.energy_and_gradient(
                math.sqrt(variance) * factors[0], self.temperature, self._scales
            )
            energy, gradient = energy / network.smallest_width, gradient * (variance / width)
            excess = self.coordinates.excess_entropy(coordinates) / network.smallest_width
            norm = unit * self.coordinates.largest_slope(coordinates, relative, factors, gradient)
        except (NotPositiveDefiniteError, np.linalg.LinAlgError, ValueError):
            if self.evaluations == 1:  # a defect of the problem; later, only too long a step
                raise
            return quasi_newton.Iterate(coordinates, math.inf, np.full_like(coordinates, np.nan))
        gradient = unit * self.coordinates.gradient(coordinates, relative, factors, gradient)
        detail = _Evaluation(coordinates, factors, excess, energy, norm)
        return quasi_newton.Iterate(coordinates, detail.value, gradient, detail)

    def per_width(self, evaluation: _Evaluation) -> tuple[float, float]:
        """Entropy and energy of an evaluation, divided by N."""
        limit = self.coordinates.entropy(self.coordinates.gp_limit)
        return limit + evaluation.excess_entropy / self.unit, evaluation.energy / self.unit

    def is_marginal(self, evaluation: _Evaluation) -> bool:
        """Whether the Hessian has a direction without curvature there."""
        arguments = self.problem, self.network, evaluation.factors, self.temperature
        return ActionHessian(*arguments).stability().kind == "marginal"


@dataclass(frozen=True, eq=False)
class _Descent:
    """End of a descent from one start."""

    evaluation: _Evaluation
    status: Status
    history: _History
    curvature: tuple[quasi_newton.Pair, ...] = ()


class _AbandonedError(Exception):
    pass


class _Descender:
    """Minimiser of one action from any start, with fixed tolerance and report."""

    def __init__(
        self, action: _Action, tolerance: float, max_evaluations: int, report: Report
    ) -> None:
        self.action, self._tolerance = action, tolerance
        self._max_evaluations, self._report = max_evaluations, report
        # bounds on the distance and excess action of a converged end, by the softest coordinate
        slope, softest = _COORDINATES * tolerance, action.curvature.min()
        self._distance = max(_SAME, slope / softest)
        self._excess = slope**2 / softest

    def __call__(
        self,
        start: np.ndarray,
        curvature: Sequence[quasi_newton.Pair] = (),
        minima: Sequence[_Descent] = (),
    ) -> _Descent:
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
        descent = self._descend(start, curvature, minima)
        end = descent.evaluation
        symmetric = self.action.coordinates.is_symmetric(end.coordinates)
        if descent.status is not Status.CONVERGED or not symmetric:
            return descent
        # less where a level is stiffer; above what the tolerance hides
        deviations = max(_NOISE, math.sqrt(self._tolerance)) * np.sqrt(
            self.action.curvature.min() / self.action.curvature
        )
        noise = deviations * np.random.default_rng(0).normal(size=len(deviations))
        # a loose tolerance would stop where the slope of the saddle is small, too
        start = end.coordinates + noise
        lower = self._descend(start, descent.curvature, minima, min(self._tolerance, _NEAR_SADDLE))
        if lower.evaluation.gradient_norm <= self._tolerance and lower.status is Status.STALLED:
            lower = replace(lower, status=Status.CONVERGED)
        rounding = quasi_newton.ROUNDING * max(1.0, abs(end.value))
        return lower if lower.evaluation.value < end.value - rounding else descent

    def _descend(
        self,
        start: np.ndarray,
        curvature: Sequence[quasi_newton.Pair],
        minima: Sequence[_Descent],
        tolerance: float | None = None,
    ) -> _Descent:
        tolerance = self._tolerance if tolerance is None else tolerance
        action, history, status = self.action, _History(), Status.STALLED

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

        action.limit = action.evaluations + self._max_evaluations
        pairs: tuple[quasi_newton.Pair, ...] = ()
        try:
            converged, pairs = quasi_newton.minimise(
                action, start, action.curvature, stop, curvature
            )
            if converged:
                status = Status.CONVERGED
        except _OutOfEvaluationsError:
            status = Status.MAX_EVALUATIONS
        end = history.flattest if status is Status.STALLED else history.last
        return _Descent(end, status, history, pairs)

    def is_near(
        self, evaluation: _Evaluation, minima: Sequence[_Descent], tolerance: float = _ROUNDING
    ) -> bool:
        """Whether an evaluation is close to one of the minima in coordinates and in action."""
        for minimum in minima:
            end = minimum.evaluation
            distance = np.abs(evaluation.coordinates - end.coordinates).max()
            if self._same_value(evaluation, end, tolerance) and distance < self._distance:
                return True
        return False

    def is_on_a_ring(self, evaluation: _Evaluation, minima: Sequence[_Descent]) -> bool:
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

    def _same_value(self, evaluation: _Evaluation, end: _Evaluation, tolerance: float) -> bool:
        allowed = max(self._excess, tolerance * max(1.0, abs(end.value)))
        return abs(evaluation.value - end.value) <= allowed


def _singular_values(evaluation: _Evaluation) -> np.ndarray:
    """Singular values of the factor of U_1."""
    return np.linalg.svd(evaluation.factors[0], compute_uv=False)


def _search(descend: _Descender, starts: int | None) -> list[_Descent]:
    """Descents into different minima, from the limit and from further promising starts."""
    action = descend.action
    network = action.network
    descents = [descend(action.coordinates.gp_limit)]
    concavity = suspicion(action.problem, network, action.temperature)
    if starts == 1 or (starts is None and concavity.ratio < SUSPICIOUS):
        return descents

    def evaluate(coordinates: np.ndarray) -> quasi_newton.Iterate:
        action.limit = math.inf  # candidates do not use up the evaluations of a descent
        return action(coordinates)

    if isinstance(action.coordinates, BranchCoordinates):
        candidates = action.coordinates.starts(concavity.scale, evaluate)
    else:
        candidates = search_starts(action.coordinates, concavity.scale, evaluate)
    last = structured_starts(network) if starts is None else starts
    for number, start in zip(range(2, last + 1), candidates):
        # a failed end is no minimum: to give up a descent near it could lose the minimum beyond
        minima = [descent for descent in descents if descent.status.ok]
        with contextlib.suppress(_AbandonedError):
            descent = descend(start, minima=minima)
            end = descent.evaluation
            if not (descend.is_near(end, minima) or descend.is_on_a_ring(end, minima)):
                descents.append(descent)
        # the scaled limit is in the basin of a network that uses all its paths; if it leads back
        # to the first minimum, only a strong suspicion is worth the descents of single heads
        if number == 2 and starts is None and len(descents) == 1 and concavity.ratio < STRONG:
            break
    return descents


def _solution(action: _Action, descents: Sequence[_Descent], searched: bool = True) -> Solution:
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
        evaluations=action.evaluations,
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
    )


def _warm_start(coordinates: ChainCoordinates | BranchCoordinates, start: Solution) -> np.ndarray:
    if not isinstance(start, Solution):
        raise TypeError(f"start must be a Solution, not {type(start).__name__}")
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


def _check_network(problem: PathKernels, network: Network) -> None:
    for name, value, kind in (("problem", problem, PathKernels), ("network", network, Network)):
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
            "shared=False in Network, or give kernels of pairs of paths to PathKernels.from_kernels"
        )
    if network.outputs != problem.outputs:
        raise ValueError(
            f"network has {network.outputs} outputs, but labels have {problem.outputs}; "
            f"set outputs={problem.outputs} in Network"
        )
