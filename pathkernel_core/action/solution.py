"""Order parameters at a minimum of the action, and the predictor that follows from them."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np

from pathkernel_core.action import quasi_newton
from pathkernel_core.action.branches import coordinates_of
from pathkernel_core.action.stability import ActionHessian, Response, Stability
from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    batches,
    from_host,
    join_batches,
    not_overflown,
    real_floating,
    rows_of,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.form import Form, Predictor
from pathkernel_core.energy.laplace.forms import LaplaceForm
from pathkernel_core.energy.posterior import PREDICTION_ELEMENTS
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.input_kernels import total_kernel
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import head_scores, scaled_order_parameter, skip_scores
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_core.system.notebook import matrix, table
from pathkernel_core.system.threads import blas_threads_for

_SHOWN = 16  # branches in a notebook
CLOSE = 10.0  # nats of the log evidence within which two minima may both contribute


class Status(enum.Enum):
    """How a Solution was reached; only the first two are reliable."""

    CONVERGED = "the gradient is below the tolerance, or by default at the level of rounding"
    GP_LIMIT = "the Gaussian process limit, which no minimisation reached"
    MAX_EVALUATIONS = "the limit on evaluations was reached before the tolerance"
    STALLED = "rounding hides any further descent before the tolerance"
    NOT_POSITIVE_DEFINITE = "the kernel plus the temperature cannot be factorised"

    @property
    def ok(self) -> bool:
        """Whether the solution can be used as it is."""
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
    probabilities : array, shape (P_new, C), or None
        Probabilities of the classes, averaged over the Gaussian of the outputs; of the logistic
        likelihood those of −1 and +1, (P_new, 2). None for the squared loss.
    probability_error : array, of the shape of probabilities, or None
        Numerical error of these averages: a bound of the quadrature for two classes, one standard
        error of 4,096 seeded draws for more.
    """

    mean: Array
    variance: Array
    probabilities: Array | None = None
    probability_error: Array | None = None


@dataclass(frozen=True, eq=False)
class Minimum:
    """Minimum of the action above that of the solution.

    Attributes
    ----------
    action : float
        Action per width, S/N.
    status : Status
        How it was reached.
    order_parameter : array, shape (n·C, n·C)
        U_1 there.
    """

    action: float
    status: Status
    order_parameter: Array = field(repr=False)


@dataclass(frozen=True, eq=False)
class Solution:
    """Order parameters at the minimum of the action, with predictor and evidence.

    Attributes
    ----------
    order_parameters : tuple of arrays
        U_1, …, U_L, u_a in the problem's array library; of independent branches, one array (B,) of
        all u_l.
    factors : tuple of arrays
        Lower triangular B with U = B Bᵀ for each of them, NumPy in float64; of independent
        branches, the square roots (B,) of u_l.
    action, entropy, energy : float
        Action per width, S/N, and its two terms; N is the largest width (Eq. 11, 32).
    status : Status
        How the solution was reached.
    evaluations, iterations : int
        Evaluations of the energy, in float64 and float32, and accepted steps.
    gradient_norm : float
        Largest entry of the gradients ∂(S/N)/∂U of all order parameters; of independent branches
        with u_l below σ² times u_l/σ². NaN at the limit of classes, where it is not computed.
    action_history, gradient_history : arrays, shape (iterations + 1,)
        Action per width and gradient norm at the start and after each step; with mixed precision
        the first of them with the rounding of float32.
    network, problem, temperature
        Arguments of the minimisation; the temperature of classes, which have none, is NaN.
    curvature : tuple
        Steps and changes of the gradient along them, for minimisations that start here.
    other_minima : tuple of Minimum
        Minima of a higher action, the lowest first.
    searched : bool
        Whether other minima were searched for; not if the caller set the start.
    failure : str
        Reason and remedy where the kernel cannot be factorised, the status
        ``NOT_POSITIVE_DEFINITE``; otherwise empty. Numbers and order parameters are then NaN, and
        methods raise a NotPositiveDefiniteError.
    check : Solution or None
        Minimum by expectation propagation, if :func:`minimise_action` was asked for it.
    form : Form or None
        Form of the energy that was evaluated last. Of classes it knows a mode of the outputs near
        that of the solution, from which the posterior starts, unless it is evaluated in another
        form than the energy.
    single_evaluations : int
        Evaluations in float32 among ``evaluations``; 0 without mixed precision.
    single_fallbacks : int
        Descents with mixed precision that float32 did not bring to its last digits. Those in
        float64 went on from where it stalled, or from the start where it could not factorise.
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
    problem: Problem = field(repr=False)
    temperature: float
    curvature: tuple[quasi_newton.Pair, ...] = field(default=(), repr=False)
    other_minima: tuple[Minimum, ...] = ()
    searched: bool = True
    failure: str = ""
    check: Solution | None = field(default=None, repr=False)
    form: Form | None = field(default=None, repr=False)
    single_evaluations: int = 0
    single_fallbacks: int = 0

    @property
    def order_parameter(self) -> Array:
        """The order parameter U = U_1, shape (n·C, n·C), path index before output index.

        For independent branches it is its diagonal u, (B,).
        """
        return self.order_parameters[0]

    @property
    def head_scores(self) -> np.ndarray:
        """Score of every head, (ΣH_ℓ,): see :func:`pathkernel_core.head_scores`."""
        self._check()
        return head_scores(self.network, self.order_parameter)

    @property
    def head_contributions(self) -> np.ndarray:
        """Contribution of every head to the kernel, (ΣH_ℓ,), the largest 1.

        It is Σ |U_ππ' C̄_ππ'| over the pairs of which π or π' passes through the head, with the
        mean kernels C̄ of :attr:`Problem.mean_kernels`. Other than :attr:`head_scores` it
        counts what a path does where paths differ in size. The sizes alone, without U, are the
        contributions in the limit, ``gp_limit(problem, network, T).head_contributions``: give them
        as a baseline. For skips, outputs and failures see :func:`pathkernel_core.head_scores`.
        """
        self._check()
        if not self.network.shared:
            mean_kernels = to_host(self.problem.mean_branch_kernels)
            return head_scores(self.network, to_host(self.order_parameter) * mean_kernels)
        sizes = np.abs(to_host(self.problem.mean_kernels))
        of_outputs = np.ones((self.network.outputs,) * 2)
        return head_scores(self.network, to_host(self.order_parameter) * np.kron(sizes, of_outputs))

    @property
    def skip_scores(self) -> np.ndarray:
        """Score of every skip connection: see :func:`pathkernel_core.skip_scores`."""
        self._check()
        return skip_scores(self.network, self.order_parameter)

    @property
    def close_minima(self) -> tuple[Minimum, ...]:
        """Other minima within 10 nats of log evidence by their actions, which may contribute."""
        nats = 0.5 * self.network.width  # ln p(Y) = −S/2 + …, and action is S/N
        excess = [nats * (minimum.action - self.action) for minimum in self.other_minima]
        return tuple(m for m, difference in zip(self.other_minima, excess) if difference < CLOSE)

    @property
    def note(self) -> str:
        """Sentences about a failure or other minima; empty if there are none."""
        if self.failure:
            return self.failure
        if not self.searched:
            return "The minimum downhill from the given start, without a search for others."
        if not self.close_minima:
            return ""
        actions = ", ".join(f"{minimum.action:.6g}" for minimum in self.close_minima)
        return (
            f"Close minima of the action: S/N = {self.action:.6g}, and {actions}. The posterior "
            "may hold both; sample it, or move away from the crossing."
        )

    def _repr_html_(self) -> str:
        network = self.network
        in_single = f", {self.single_evaluations} of them in float32"
        rows = {
            "status": f"{self.status.name}: {self.status.value}",
            "action S/N": f"{self.action:.6g}, of which entropy {self.entropy:.6g}",
            "log evidence": f"{self.log_evidence:.6g} nats",
            "evaluations": f"{self.evaluations}{in_single if self.single_evaluations else ''}; "
            f"gradient {self.gradient_norm:.2g}",
            "network": repr(network),
            "problem": repr(self.problem),
        }
        if not math.isnan(self.temperature):
            rows["temperature T"] = f"{self.temperature:g}"
        if self.note:
            rows["note"] = self.note
        if self.failure:
            return table("Solution", rows)
        order_parameter = to_host(self.order_parameter)
        if not network.shared:
            dots = " …" if network.n_paths > _SHOWN else ""
            values = " ".join(f"{u:.3g}" for u in order_parameter[:_SHOWN])
            rows["order parameter u"] = values + dots
            return table("Solution", rows)
        by_layer = np.split(self.head_scores, np.cumsum(network.heads)[:-1])
        for number, scores in enumerate(by_layer, start=1):
            rows[f"head scores, layer {number}"] = " ".join(f"{score:.2f}" for score in scores)
        if network.has_skips:
            rows["scores of skips"] = " ".join(f"{x:.2f}" for x in self.skip_scores)
        outputs = [""] if network.outputs == 1 else [f", {c}" for c in range(network.outputs)]
        labels = [f"{path}{output}" for path in network.path_labels for output in outputs]
        return table("Solution", rows) + matrix("order parameter U", order_parameter, labels)

    def training_kernel(self, xi: Array | None = None) -> Array:
        """Total kernel K of the training examples (Eq. 10), outputs expanded, (P·C, P·C).

        Parameters
        ----------
        xi : array, shape (P, n, N_0), optional
            Their attentioned inputs, which a problem in feature space does not store.

        Raises
        ------
        ValueError
            If the shape does not fit, or a problem in feature space has several outputs. If xi is
            passed for a problem of given kernels.
        """
        posterior, factor = self.posterior
        root = posterior.root
        if not self.problem.likelihood.is_gaussian:
            return cast("LaplaceForm", self.problem.form_for(self.network)).full_kernel(factor)
        if xi is not None:
            if self.problem.is_of_kernels:
                raise ValueError("xi is not part of a problem of given kernels; leave it out")
            xi = real_floating("xi", xi, ("P", self.problem.n_paths, self.problem.input_width))
        if root is None:
            if xi is None:
                raise ValueError("xi of the training examples is needed: feature space has none")
            if self.network.outputs > 1:
                raise ValueError(
                    f"the kernel of {self.network.outputs} outputs is not formed in feature space; "
                    'build Problem with space="examples"'
                )
            weights = scaled_order_parameter(self.network, self.order_parameter)
            return total_kernel(xi, weights, variance=self.network.kernel_variance)
        xp = array_namespace(root=root)
        kernel = matmul(root, xp.matrix_transpose(root))
        return add_to_diagonal(kernel, from_host(-self.temperature, root), xp)

    @property
    def log_evidence(self) -> float:
        """Leading-order log evidence ln p(Y), in nats; exact in the Gaussian process limit.

        Of classes it is that of Laplace's approximation, which is not exact there.
        NaN where a width is smaller than its order parameter, whose prior is then singular.
        """
        if self.failure:
            return math.nan
        sizes = zip(self.network.widths, self.network.sizes)
        if self.status is not Status.GP_LIMIT and any(width < size for width, size in sizes):
            return math.nan
        # above the limit's, since the prior is e^{−S_entropy/2} only up to a normaliser: at leading
        # order its value at the limit. A difference of entropies has no digit left at N = 10⁹
        coordinates = coordinates_of(self.network)
        excess = coordinates.excess_entropy(coordinates.from_factors(self.factors))
        n_labels = self.problem.n_examples * self.network.outputs
        energy = self.network.width * self.energy
        return -0.5 * (excess + energy + n_labels * self.problem.likelihood.constant)

    def stability(self, count: int = 1) -> Stability:
        """Smallest eigenvalues of the action's Hessian, and the changes of U along them.

        Parameters
        ----------
        count : int
            Number of eigenvalues.

        Raises
        ------
        numpy.linalg.LinAlgError
            If Lanczos' method does not converge.

        Examples
        --------
        >>> import numpy as np
        >>> import pathkernel as pk
        >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
        >>> problem = pk.Problem(xi, np.sign(xi[:, 0, 0]))
        >>> pk.minimise_action(problem, pk.Network((2, 2), 50), 0.1).stability().kind
        'minimum'
        """
        return self.hessian.stability(count)

    def response(self) -> Response:
        """Linear response of U to the temperature, the variances, the labels and the paths.

        If it is huge, the solution is close to a spinodal, where it holds for tiny changes only:
        look at ``stability().softest``.
        """
        return Response(self.hessian)

    @cached_property
    def hessian(self) -> ActionHessian:
        """Hessian of the action per width S/N in the chain's coordinates."""
        self._check()
        return ActionHessian(self.problem, self.network, self.factors, self.temperature)

    def _check(self) -> None:
        if self.failure:
            raise NotPositiveDefiniteError(f"there is no solution here: {self.failure}")

    def predict(self, xi: Array, own: Array | None = None) -> Prediction:
        """Predictor's mean and variance on new examples (Eq. 29, 30), and class probabilities.

        All are conditional on U at the minimum, without corrections of order 1/N by fluctuations
        of U, which ``pathkernel_sampling.corrections.next_order.predict_next_order`` computes.

        Parameters
        ----------
        xi : array, shape (P_new, n, N_0)
            Attentioned inputs of the new examples. For a problem of given kernels those of new and
            training examples, C_ππ'(x_new, x), shape (n, n, P_new, P), or for independent branches
            C_ll(x_new, x), (n, P_new, P).
        own : array, shape (n, n, P_new) or (n, P_new), optional
            For a problem of given kernels those of every new example with itself.

        Raises
        ------
        ValueError
            If a shape does not fit, own is not symmetric in its paths, or a value is or becomes NaN
            or infinite.
        NotPositiveDefiniteError
            If own has a negative eigenvalue, or a variance is negative beyond rounding: cross and
            own are then not kernels of the same examples.

        Notes
        -----
        If labels were centred, add their mean to the result. For the density of a noisy label, add
        the temperature to the variance. Where classes alone matter, :meth:`predict_mean` is enough.
        """
        shared = self.network.shared
        self.problem.check_new(xi, own, shared=shared)
        posterior, factor = self.posterior
        # features of new examples are expanded by outputs, and mixed, batch by batch
        axis = 1 + shared if self.problem.is_of_kernels else 0
        per_example = math.prod(xi.shape) // xi.shape[axis] * self.network.outputs**2
        step = max(1, PREDICTION_ELEMENTS // max(1, per_example))
        seconds = self.problem.seconds_for(self.network)
        with blas_threads_for(seconds), np.errstate(over="ignore", invalid="ignore"):
            moments = [
                self.problem.posterior_moments(
                    posterior,
                    factor,
                    rows_of(xi, batch, axis),
                    None if own is None else rows_of(own, batch, axis),
                )
                for batch in batches(xi.shape[axis], step)
            ]
        mean, variance, *of_classes = map(join_batches, zip(*moments))
        for name, array in (("mean", mean), ("variance", variance)):
            not_overflown(f"the predictor's {name}", array, "rescale xi")
        if self.network.outputs == 1:
            mean, variance = mean[:, 0], variance[:, 0]
        return Prediction(mean, variance, *of_classes)

    def predict_mean(self, xi: Array) -> Array:
        """Predictor's mean (P_new,) or (P_new, C) on new examples (Eq. 29) without the variance.

        Much faster than :meth:`predict`, with the same first parameter.
        """
        self.problem.check_new(xi, None, needs_own=False, shared=self.network.shared)
        xi = real_floating("cross" if self.problem.is_of_kernels else "xi", xi)
        posterior, factor = self.posterior
        with np.errstate(over="ignore", invalid="ignore"):
            mean = posterior.mean(xi, from_host(factor, xi), self.problem.basis)
        not_overflown("the predictor's mean", mean, "rescale xi")
        return mean[:, 0] if self.network.outputs == 1 else mean

    @cached_property
    def posterior(self) -> tuple[Predictor, np.ndarray]:
        """Gaussian posterior of the predictor, and its factor of U times σ²_0 n c_π c_π'."""
        self._check()
        network = self.network
        factor = math.sqrt(network.kernel_variance) * self.factors[0]
        if network.has_skips:
            factor *= network.path_scales[:, None]
        form = self.form or self.problem.form_for(network)
        with blas_threads_for(self.problem.seconds_for(network)):
            return form.posterior(factor, self.temperature), factor
