"""The theory as a differentiable function of its inputs, on PyTorch and JAX.

The minimum x of the action S(x, θ) moves with inputs, labels, temperature and variances θ by the
implicit function theorem, see :mod:`pathkernel_core.arrays.implicit`, so that automatic
differentiation is right for every function of x(θ) and θ.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from pathkernel_core.action.coordinates import (
    ChainCoordinates,
    chain_factors,
    chain_levels,
    check_shared,
    excess_entropy,
    relative_factors,
)
from pathkernel_core.action.minimise import minimise_action
from pathkernel_core.action.solution import Prediction
from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    constant,
    derivatives,
    from_host,
    host_callback,
    is_true,
    real_floating,
    to_host,
)
from pathkernel_core.arrays.implicit import implicit_minimum
from pathkernel_core.arrays.products import full_precision, matmul
from pathkernel_core.energy.examples import ExampleSpace
from pathkernel_core.energy.features import FeatureSpace
from pathkernel_core.energy.form import Form
from pathkernel_core.energy.given_kernels import GivenKernels
from pathkernel_core.energy.kernel_index import PairIndex
from pathkernel_core.energy.kernel_packing import check_own_kernels, packed_kernels, paths_of
from pathkernel_core.energy.problem import Problem
from pathkernel_core.energy.statistics import batch_sums
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import CloseMinimaWarning

_INPUTS = ("P", "n", "N_0")
_HESSIAN_ELEMENTS = 2**26  # in memory at once while the Hessian is formed, 512 MiB in float64


@dataclass(frozen=True, eq=False)
class DifferentiableSolution:
    """Minimum of the action with evidence and predictor, as differentiable arrays.

    Attributes
    ----------
    action : array, shape ()
        Action per width S/N at the minimum (Eq. 11, 32).
    log_evidence : array, shape ()
        Leading-order log evidence ln p(Y), in nats; NaN as :attr:`Solution.log_evidence`.
    order_parameter : array, shape (n·C, n·C)
        U at the minimum, path index before output index.
    """

    action: Array
    log_evidence: Array
    order_parameter: Array = field(repr=False)
    _factor: Array = field(repr=False)  # of σ²_0 n c_π c_π' U
    _form: Form = field(repr=False)
    _temperature: Array = field(repr=False)
    _example: tuple[int, int] = field(repr=False)  # (n, N_0), or (n, P) of given kernels

    def predict(self, xi: Array, own: Array | None = None) -> Prediction:
        """Predictor's mean and variance (Eq. 29, 30) on new examples, as :meth:`Solution.predict`.

        By inputs xi (P_new, n, N_0), or by kernels (n, n, P_new, P) with the training examples and
        ``own`` (n, n, P_new) of each new example with itself. Errors as there, except while JAX
        traces.
        """
        array_namespace(xi=xi, training=self.order_parameter)
        paths, width = self._example
        posterior = self._form.posterior(self._factor, self._temperature)
        if self._form.is_of_kernels:
            xi = real_floating("cross", xi, (paths, paths, "P_new", width))
            if own is None:
                raise ValueError(
                    "own must have the kernels of every new example with itself, of shape "
                    f"{tuple(xi.shape[:3])}, but is None"
                )
            array_namespace(cross=xi, own=own)
            own = real_floating("own", own, tuple(xi.shape[:3]))
            check_own_kernels(own, shared=True)
        else:
            if own is not None:
                raise ValueError("own is for given kernels; this solution takes inputs xi alone")
            xi = real_floating("xi", xi, ("P_new", paths, width))
        mean, variance = posterior.moments(xi, own, self._factor)
        if mean.shape[1] == 1:
            mean, variance = mean[:, 0], variance[:, 0]
        return Prediction(mean, variance)


def differentiable_solution(
    xi: Array,
    labels: Array,
    network: Network,
    temperature: Array | float,
    *,
    variances: Array | None = None,
    space: Literal["auto", "examples", "features"] = "auto",
    tolerance: float | None = None,
) -> DifferentiableSolution:
    """Minimise the action differentiably (Eq. 11, 29, 30, 32).

    Results have derivatives of every order with respect to attentioned inputs (and through
    :func:`attentioned_inputs` to inputs, queries and keys), labels, temperature and variances: by
    ``backward`` in PyTorch, by ``jax.grad`` in JAX, also within ``jax.jit``; those of second
    order by ``torch.autograd.grad(…, create_graph=True)`` and ``jax.hessian``.

    Parameters
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs, unscaled, of PyTorch or JAX; or kernels of pairs of paths, of shape
        (n, n, P, P), as for :meth:`Problem.from_kernels`.
    labels : array, shape (P,) or (P, C)
    network : Network
    temperature : array of no dimensions, or float
        Positive Gibbs temperature T.
    variances : array, shape (L + 2,), optional
        σ²_0, σ²_1 … σ²_L, σ²_a instead of the network's.
    space : {"auto", "examples", "features"}
        Form of the energy, as for :class:`Problem`; kernels have one only, "auto".
    tolerance : float, optional
        As for :func:`minimise_action`.

    Raises
    ------
    TypeError
        If the arrays are of another library than PyTorch or JAX.
    ValueError, MinimisationError, NotPositiveDefiniteError
        As for :class:`Problem` and :func:`minimise_action`.

    Warns
    -----
    ScaleWarning
        As for :func:`minimise_action`.
    CloseMinimaWarning
        If another minimum is close: at a crossing, the gradient is that of one state.

    Notes
    -----
    The Hessian of the action has about n²/2 rows, so that a few hundred paths are the limit. Within
    ``jax.jit`` the minimisation runs on the host. Strengths of skip connections are constants.

    If gradients are huge or NaN, the minimum is at a spinodal or on a ring: look at
    ``minimise_action(...).stability().softest``. To learn queries and keys, regularise them: the
    log evidence alone overfits once they have more entries than there are labels.

    Examples
    --------
    >>> import pathkernel as pk
    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> xi = torch.randn(20, 4, 5, dtype=torch.float64, generator=generator)
    >>> temperature = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    >>> network = pk.Network((2, 2), 50)
    >>> solution = pk.differentiable_solution(xi, xi[:, 0, 0].sign(), network, temperature)
    >>> solution.log_evidence.backward()
    >>> bool(temperature.grad.isfinite())
    True
    """
    xp = array_namespace(xi=xi, labels=labels)
    derivatives(xp)  # refuses other libraries
    check_shared(network)
    of_kernels = xi.ndim == 4
    xi = real_floating("kernels" if of_kernels else "xi", xi, None if of_kernels else _INPUTS)
    labels = real_floating("labels", labels)
    labels = xp.astype(labels[:, None] if labels.ndim == 1 else labels, xi.dtype, copy=False)
    temperature = _numbers("temperature", temperature, xi, ())
    variances = network.variances if variances is None else variances
    variances = _numbers("variances", variances, xi, (network.n_layers + 2,))
    if space not in ("auto", "examples", "features"):
        raise ValueError(f'space must be "auto", "examples" or "features", not {space!r}')
    if of_kernels:
        if space != "auto":
            raise ValueError(f'space must be "auto" for kernels, not {space!r}')
        example = paths_of(xi), xi.shape[-1]
        form = "kernels"
    else:
        examples, *example = xi.shape
        form = "examples" if examples <= math.prod(example) else "features"
        form = form if space == "auto" else space

    theta = (xi, labels, temperature, variances)
    minimum = _minimum(tuple(map(constant, theta)), network, form, tolerance)
    evaluate = compile_function(_at_minimum, xp, static=("network", "space"))
    with full_precision(xi):  # the products of derivatives, too, which are PyTorch's own
        action, log_evidence, factor = evaluate(minimum, theta, network=network, space=form)
    scaled = factor / xp.sqrt(variances[0])
    factor = _path_scales(network, xi) * factor
    return DifferentiableSolution(
        action=action,
        log_evidence=log_evidence,
        order_parameter=matmul(scaled, xp.matrix_transpose(scaled)),
        _factor=factor,
        _form=traceable_form(xi, labels, form),
        _temperature=temperature,
        _example=tuple(example),
    )


def _at_minimum(
    minimum: Array, theta: tuple[Array, ...], *, network: Network, space: str
) -> tuple[Array, Array, Array]:
    """Action per width, log evidence and factor of σ²_0 U, with their derivatives in theta."""
    xi, labels, _, variances = theta
    xp = array_namespace(minimum=minimum)

    def action(coordinates: Array, theta: tuple[Array, ...]) -> Array:
        return _action(coordinates, *theta, network=network, space=space)

    columns = max(1, _HESSIAN_ELEMENTS // (math.prod(xi.shape) * network.outputs**2))
    above_limit, coordinates = implicit_minimum(action, minimum, theta, columns)
    free = [size - shared for size, shared in zip(network.sizes, network.shared_sizes)]
    degrees = [0.0 if math.isinf(width) else width for width in network.widths]
    sizes = [degree * size for degree, size in zip(degrees, free)]
    at_limit = sum(sizes) - xp.sum(from_host(sizes, xi) * xp.log(variances[1:]))
    n_labels = labels.shape[0] * labels.shape[1]
    regular = np.all(np.greater_equal(network.widths, network.sizes))
    return (
        (at_limit + above_limit) / network.width,
        -0.5 * (1.0 if regular else math.nan) * (above_limit + n_labels * math.log(2 * math.pi)),
        _factor(coordinates, variances, network),
    )


def _numbers(name: str, values: Any, like: Array, shape: tuple[int, ...]) -> Array:
    """Positive numbers as an array of the library of ``like``, differentiable if they were."""
    if not hasattr(values, "shape") or (
        isinstance(values, np.generic | np.ndarray) and not values.ndim
    ):
        values = from_host(np.asarray(values, dtype=float), like)
    xp = array_namespace(xi=like, **{name: values})
    values = real_floating(name, values, shape)
    if not is_true(xp.all(values > 0)):
        raise ValueError(f"{name} must be positive, but is {to_host(values)}")
    return xp.astype(values, like.dtype, copy=False)


def _minimum(
    fixed: tuple[Array, ...], network: Network, space: Any, tolerance: float | None
) -> Array:
    """Coordinates of the minimum, a constant."""

    def solve(xi: Array, labels: Array, temperature: Array, variances: Array) -> np.ndarray:
        at_variances = dataclasses.replace(network, variances=to_host(variances).tolist())
        of_kernels = space == "kernels"
        make = Problem.from_kernels if of_kernels else partial(Problem, space=space)
        problem = make(xi, labels)
        solution = minimise_action(problem, at_variances, float(temperature), tolerance=tolerance)
        if solution.close_minima:
            warnings.warn(
                f"{solution.note} Gradients are those of the state of the lowest minimum.",
                CloseMinimaWarning,
                stacklevel=2,
            )
        return ChainCoordinates(at_variances).from_factors(solution.factors)

    return host_callback(solve, (ChainCoordinates(network).size,), *fixed)


def traceable_form(xi: Array, labels: Array, space: str) -> Form:
    """Energy as a function of ξ (P, n, N_0), or kernels, and labels (P, C), to differentiate.

    In the space of "examples", "features" or given "kernels".
    """
    if space == "kernels":
        index = PairIndex(paths_of(xi), labels.shape[1])
        return GivenKernels(packed_kernels(xi, index=index), labels, index)
    examples, paths, width = xi.shape
    features = xi / math.sqrt(paths * width)
    if space == "examples":
        return ExampleSpace(features, labels)
    return FeatureSpace(*batch_sums(features, labels), examples)


def _action(
    coordinates: Array,
    xi: Array,
    labels: Array,
    temperature: Array,
    variances: Array,
    *,
    network: Network,
    space: str,
) -> Array:
    """Action S less the entropy of the Gaussian process limit, Σ N_ℓ m_ℓ (1 − ln σ²_ℓ).

    With m_ℓ the size of U_ℓ, less the rows that a skip connection repeats.
    """
    factor = _path_scales(network, xi) * _factor(coordinates, variances, network)
    entropy = excess_entropy(coordinates, chain_levels(network), network.widths)
    return traceable_form(xi, labels, space).energy(factor, temperature) + entropy


def _path_scales(network: Network, like: Array) -> Array:
    return from_host(network.path_scales[:, None], like)


def _factor(coordinates: Array, variances: Array, network: Network) -> Array:
    """Factor of σ²_0 U_1, lower triangular."""
    xp, levels = array_namespace(coordinates=coordinates), chain_levels(network)
    scales = xp.sqrt(variances[1:])
    relative = relative_factors(coordinates, levels, scales)
    return xp.sqrt(variances[0]) * chain_factors(relative, levels, scales)[0]
