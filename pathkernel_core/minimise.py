"""Minimisation of the action over the order parameters, and the Solution it gives."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pathkernel_core import quasi_newton
from pathkernel_core.backend import (
    Array,
    array_namespace,
    batches,
    compiled,
    from_host,
    joined,
    not_overflown,
    real_floating,
    rows_of,
    to_host,
)
from pathkernel_core.coordinates import ChainCoordinates
from pathkernel_core.errors import MinimisationError, NotPositiveDefiniteError
from pathkernel_core.kernels import PathKernels, predictor_mean
from pathkernel_core.network import Network, positive
from pathkernel_core.notebook import matrix, table
from pathkernel_core.order_parameter import head_scores, skip_scores
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_core.spaces import Posterior

PREDICTION_ELEMENTS = 2**22  # features of new examples held at once, 32 MiB in float64
_COORDINATES = 100  # tolerance of the gradient in the chain's coordinates, which has no units,
# over that in the order parameters, which has those of 1 / U and says little where U is large


class Status(enum.Enum):
    """How a Solution was reached. Only the first two can be used without a second look."""

    CONVERGED = "the gradient is below the tolerance"
    GP_LIMIT = "the Gaussian process limit, which no minimisation reached"
    MAX_EVALUATIONS = "the limit on evaluations was reached before the tolerance"
    STALLED = "rounding hides any further descent before the tolerance"

    @property
    def ok(self) -> bool:
        """Whether the solution is what was asked for."""
        return self in (Status.CONVERGED, Status.GP_LIMIT)


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictor on new examples.

    Attributes
    ----------
    mean : array, shape (P_new,) or (P_new, C)
        Posterior mean of the network's output (Eq. 9, 29).
    variance : array, shape (P_new,) or (P_new, C)
        Posterior variance given U, without the observation noise T (Eq. 30).
    """

    mean: Array
    variance: Array


@dataclass(frozen=True, eq=False)
class Solution:
    """Order parameters at the minimum of the action, and what follows from them.

    Attributes
    ----------
    order_parameters : tuple of arrays
        U_1, …, U_L, u_a in the problem's array library.
    factors : tuple of arrays
        Lower triangular B with U = B Bᵀ for each of them, NumPy in float64.
    action, entropy, energy : float
        Action per width, S/N, and its two terms; N is the largest width (Eq. 11, 32).
    status : Status
        How the solution was reached.
    evaluations, iterations : int
        Evaluations of the energy, and accepted steps.
    gradient_norm : float
        Largest entry of the gradients ∂(S/N)/∂U of all order parameters.
    action_history, gradient_history : arrays, shape (iterations + 1,)
        Action per width and gradient norm at the start and after each step.
    network, problem, temperature
        What was solved.
    log_evidence : float
        Leading-order ln p(Y) of all training labels, in nats; NaN at widths below the sizes of U.
    curvature : tuple
        Steps and the changes of the gradient along them, which a minimisation that starts from
        this solution goes on with.
    """

    order_parameters: tuple[Array, ...] = field(repr=False)
    factors: tuple[np.ndarray, ...] = field(repr=False)
    action: float
    entropy: float
    energy: float
    status: Status
    evaluations: int
    iterations: int
    gradient_norm: float
    action_history: np.ndarray = field(repr=False)
    gradient_history: np.ndarray = field(repr=False)
    network: Network
    problem: PathKernels = field(repr=False)
    temperature: float
    curvature: tuple[quasi_newton.Pair, ...] = field(default=(), repr=False)

    @property
    def order_parameter(self) -> Array:
        """The order parameter U = U_1, shape (n·C, n·C), path index before output index."""
        return self.order_parameters[0]

    @property
    def head_scores(self) -> list[np.ndarray]:
        """Score of every head, layer by layer: see :func:`pathkernel_core.head_scores`."""
        return head_scores(self.network, self.order_parameter)

    @property
    def skip_scores(self) -> np.ndarray:
        """Score of every skip connection: see :func:`pathkernel_core.skip_scores`."""
        return skip_scores(self.network, self.order_parameter)

    def _repr_html_(self) -> str:
        network, scores = self.network, enumerate(self.head_scores, start=1)
        about = {
            "status": f"{self.status.name}: {self.status.value}",
            "temperature T": f"{self.temperature:g}",
            "action S/N": f"{self.action:.6g}, of it entropy {self.entropy:.6g}",
            "log evidence": f"{self.log_evidence:.6g} nats",
            "evaluations": f"{self.evaluations}; gradient {self.gradient_norm:.2g}",
            "network": repr(network),
            "problem": repr(self.problem),
            **{f"head scores, layer {n}": " ".join(f"{x:.2f}" for x in row) for n, row in scores},
        }
        if network.has_skips:
            about["scores of skips"] = " ".join(f"{x:.2f}" for x in self.skip_scores)
        outputs = [""] if network.outputs == 1 else [f", {c}" for c in range(network.outputs)]
        labels = [f"{path}{output}" for path in network.path_labels for output in outputs]
        order_parameter = to_host(self.order_parameter)
        return table("Solution", about) + matrix("order parameter U", order_parameter, labels)

    @property
    def log_evidence(self) -> float:
        """Leading-order log evidence ln p(Y), in nats; exact in the Gaussian process limit.

        NaN where a width is smaller than its order parameter: the prior of that one is singular,
        and the expansion about a regular minimum not defined.
        """
        sizes = zip(self.network.degrees_of_freedom, self.network.sizes)
        if self.status is not Status.GP_LIMIT and any(width < size for width, size in sizes):
            return math.nan
        coordinates = ChainCoordinates(self.network)
        excess = coordinates.excess_entropy(coordinates.from_factors(self.factors))
        n_labels = self.problem.n_examples * self.network.outputs
        energy = self.network.width * self.energy
        return -0.5 * (excess + energy + n_labels * math.log(2 * math.pi))

    def predict(self, xi: Array) -> Prediction:
        """Predictor's mean and variance on new examples (Eq. 29, 30).

        Both are given U at the minimum. What the fluctuations of U change is of order 1/N and left
        out: in the mean, and in the variance, to which they also add that of the mean.
        ``pathkernel_sampling.corrections.predict_next_order`` has them.

        Parameters
        ----------
        xi : array, shape (P_new, n, N_0)
            Attentioned inputs of the new examples.

        Raises
        ------
        ValueError
            If the shape does not fit, or a value is or becomes NaN or infinite.
        """
        self._check_new(xi)
        posterior, factor = self.posterior
        per_example = xi.shape[1] * xi.shape[2] * self.network.outputs**2
        step = max(1, PREDICTION_ELEMENTS // max(1, per_example))
        with np.errstate(over="ignore", invalid="ignore"):
            moments = [
                self.problem.posterior_moments(posterior, factor, rows_of(xi, batch))
                for batch in batches(xi.shape[0], step)
            ]
        mean, variance = map(joined, zip(*moments))
        for name, array in (("mean", mean), ("variance", variance)):
            not_overflown(f"the predictor's {name}", array, "rescale xi")
        if self.network.outputs == 1:
            mean, variance = mean[:, 0], variance[:, 0]
        return Prediction(mean, variance)

    def predict_mean(self, xi: Array) -> Array:
        """Predictor's mean alone on new examples (Eq. 29), much faster than with the variance.

        Parameters
        ----------
        xi : array, shape (P_new, n, N_0)
            Attentioned inputs of the new examples.

        Returns
        -------
        array, shape (P_new,) or (P_new, C)
        """
        xp = self._check_new(xi)
        xi = real_floating("xi", xi)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = compiled(predictor_mean, xp)(xi, self.posterior[0].weights, self.problem.basis)
        not_overflown("the predictor's mean", mean, "rescale xi")
        return mean[:, 0] if self.network.outputs == 1 else mean

    def _check_new(self, xi: Array) -> Any:
        """Namespace of new examples, after checking that there are some."""
        xp = array_namespace(xi=xi, training=self.problem.array)
        if xi.ndim != 3 or xi.shape[0] == 0:
            raise ValueError(f"xi must have shape (P_new, n, N_0), but has {tuple(xi.shape)}")
        paths, width = self.problem.n_paths, self.problem.input_width
        if xi.shape[1:] != (paths, width):
            raise ValueError(
                f"xi must have shape (P_new, {paths}, {width}), but has {tuple(xi.shape)}; tokens "
                "go through attentioned_inputs first, with the layers and the readout of the "
                "training examples"
            )
        return xp

    @cached_property
    def posterior(self) -> tuple[Posterior, np.ndarray]:
        """Gaussian posterior of the predictor, and its factor of U times σ²_0 n c_π c_π'."""
        factor = math.sqrt(self.network.variances[0]) * self.factors[0]
        factor *= self.network.path_scales[:, None]
        return self.problem.form.posterior(factor, self.temperature), factor


def minimise_action(
    problem: PathKernels,
    network: Network,
    temperature: float,
    *,
    tolerance: float | None = None,
    start: Solution | None = None,
    max_evaluations: int = 2000,
    throw: bool = True,
    report: Report = silent,
) -> Solution:
    """Minimise the action over all order parameters (Eq. 11, 32).

    The minimum found is a local one, downhill from the start. On the paper's problems every start
    tried reached the same; far from them (prior variances around 0.2, say) it can matter, and a
    solution at larger variances or widths is another start to try.

    Parameters
    ----------
    problem : PathKernels
        Training examples.
    network : Network
        Heads, widths, variances and outputs.
    temperature : float
        Positive Gibbs temperature T.
    tolerance : float, optional
        Largest entry allowed in the gradients ∂(S/N)/∂U. By default 1e-8 in float64, and in
        lower precision the smaller of 1e-2 and 1 / (2N).
    start : Solution, optional
        Where to begin, for example the solution at a neighbouring temperature or width. By
        default the Gaussian process limit. The curvature that was seen on the way to it, rather
        than its nearness, is what saves evaluations.
    max_evaluations : int
        Limit on evaluations of the energy.
    throw : bool
        Raise if the tolerance is not reached. With False, look at ``Solution.status``.
    report : callable
        Called with a Progress after every step: the evaluations so far, and the gradient.

    Raises
    ------
    MinimisationError
        If the tolerance is not reached; the error holds the Solution at the last step.
    NotPositiveDefiniteError
        If the kernel cannot be factorised at the start.
    ValueError
        If the network does not fit the problem or a number is out of range.
    """
    temperature = positive("temperature", temperature)
    _check_network(problem, network)
    if tolerance is None:
        double = problem.array.dtype == array_namespace(array=problem.array).float64
        # in float32 twice what rounding leaves of the gradient, which shrinks with the width
        tolerance = 1e-8 if double else min(1e-2, 0.5 / network.width)
    positive("tolerance", tolerance)
    if not isinstance(max_evaluations, int) or max_evaluations < 1:
        raise ValueError(f"max_evaluations must be a whole number from 1, not {max_evaluations!r}")
    action = _Action(problem, network, temperature)
    coordinates, pairs = action.coordinates.gp_limit, ()
    if start is not None:
        coordinates, pairs = _warm_start(action.coordinates, start), start.curvature
    history = _History()

    def stop(point: quasi_newton.Iterate) -> bool:
        history.append(point.detail)
        norm = point.detail.gradient_norm
        report(Progress(action.evaluations, None, "minimising", {"gradient": norm}))
        steepest = float(np.abs(point.gradient).max())
        return norm <= tolerance and steepest <= _COORDINATES * tolerance

    status = Status.STALLED
    try:
        action.limit = max_evaluations
        found, pairs = quasi_newton.minimise(
            action, coordinates, action.coordinates.curvature, stop, pairs
        )
        if found:
            status = Status.CONVERGED
    except _OutOfEvaluationsError:
        status = Status.MAX_EVALUATIONS
    at = history.flattest if status is Status.STALLED else history.last
    solution = _solution(action, at, status, history, pairs)
    if throw and not status.ok:
        raise MinimisationError(
            f"the action was not minimised: {status.value}. The gradient of S/N is "
            f"{solution.gradient_norm:.2g} after {solution.evaluations} evaluations, the "
            f"tolerance {tolerance:.2g}. Raise the tolerance or max_evaluations, start from a "
            "neighbouring solution, or pass throw=False to use the point as it is",
            solution,
        )
    return solution


def gp_limit(problem: PathKernels, network: Network, temperature: float) -> Solution:
    """Solution of the infinite-width limit N → ∞, where U is Π σ² times the identity.

    The action is that of the given finite network at this order parameter.
    """
    temperature = positive("temperature", temperature)
    _check_network(problem, network)
    action = _Action(problem, network, temperature)
    history = _History()
    history.append(action(action.coordinates.gp_limit).detail)
    return _solution(action, history.last, Status.GP_LIMIT, history)


class _OutOfEvaluationsError(Exception):
    pass


@dataclass(frozen=True, eq=False)
class _Evaluation:
    factors: list[np.ndarray]
    entropy: float
    energy: float
    gradient_norm: float

    @property
    def action(self) -> float:
        return self.entropy + self.energy


class _History:
    """Numbers of all accepted steps, and the two evaluations of which one is the solution.

    Attributes
    ----------
    last, flattest : _Evaluation
        The second has the smallest gradient of those whose actions differ from the lowest by no
        more than rounding, which is where a descent ends that rounding hides.
    """

    last: _Evaluation
    flattest: _Evaluation

    def __init__(self) -> None:
        self.actions: list[float] = []
        self.norms: list[float] = []

    def append(self, evaluation: _Evaluation) -> None:
        """Add an accepted step."""
        action, norm = evaluation.action, evaluation.gradient_norm
        self.last = evaluation
        lowest = min([action, *self.actions])
        rounding = quasi_newton.ROUNDING * max(1.0, abs(lowest))
        if (
            not self.actions
            or self.flattest.action > lowest + rounding
            or (action <= lowest + rounding and norm < self.flattest.gradient_norm)
        ):
            self.flattest = evaluation
        self.actions.append(action)
        self.norms.append(norm)


class _Action:
    """Action per width as a function of the chain's coordinates; counts its evaluations."""

    def __init__(self, problem: PathKernels, network: Network, temperature: float):
        self.problem, self.network, self.temperature = problem, network, temperature
        self.coordinates = ChainCoordinates(network)
        self._scales = network.path_scales[:, None] if network.has_skips else None
        self.evaluations, self.limit = 0, math.inf

    def __call__(self, coordinates: np.ndarray) -> quasi_newton.Iterate:
        if self.evaluations >= self.limit:
            raise _OutOfEvaluationsError
        self.evaluations += 1
        width, variance = self.network.width, self.network.variances[0]
        with np.errstate(over="ignore", invalid="ignore"):
            relative = self.coordinates.relative_factors(coordinates)
            factors = self.coordinates.factors(relative)
        try:
            energy, gradient = self.problem.form.energy_and_gradient(
                math.sqrt(variance) * factors[0], self.temperature, self._scales
            )
            energy, gradient = energy / width, gradient * (variance / width)
            entropy = self.coordinates.entropy(relative)
            norm = self.coordinates.largest_slope(relative, factors, gradient)
        except (NotPositiveDefiniteError, np.linalg.LinAlgError, ValueError):
            if self.evaluations == 1:  # at the start this is the user's problem; later, a long step
                raise
            return quasi_newton.Iterate(coordinates, math.inf, np.full_like(coordinates, np.nan))
        gradient = self.coordinates.gradient(relative, factors, gradient)
        detail = _Evaluation(factors, entropy, energy, norm)
        return quasi_newton.Iterate(coordinates, detail.action, gradient, detail)


def _solution(
    action: _Action,
    at: _Evaluation,
    status: Status,
    history: _History,
    curvature: tuple[quasi_newton.Pair, ...] = (),
) -> Solution:
    return Solution(
        order_parameters=tuple(
            from_host(factor @ factor.T, action.problem.array) for factor in at.factors
        ),
        factors=tuple(at.factors),
        action=at.action,
        entropy=at.entropy,
        energy=at.energy,
        status=status,
        evaluations=action.evaluations,
        iterations=len(history.actions) - 1,
        gradient_norm=at.gradient_norm,
        action_history=np.array(history.actions),
        gradient_history=np.array(history.norms),
        network=action.network,
        problem=action.problem,
        temperature=action.temperature,
        curvature=curvature,
    )


def _warm_start(coordinates: ChainCoordinates, start: Solution) -> np.ndarray:
    if not isinstance(start, Solution):
        raise TypeError(f"start must be a Solution, not {type(start).__name__}")
    found, network = start.network, coordinates.network
    if found.sizes != network.sizes or found.shared_sizes != network.shared_sizes:
        raise ValueError(
            f"start has order parameters of sizes {found.sizes}, but this network "
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
    if network.outputs != problem.outputs:
        raise ValueError(
            f"network has {network.outputs} outputs, but labels have {problem.outputs}; "
            f"set outputs={problem.outputs} in Network"
        )
