"""Three models of one posterior (Eq. 8, 19), with different weights integrated analytically.

All parameters are scaled to a standard normal prior, or are Bartlett's for a Wishart matrix. Log
densities are normalised, so that their integral over the parameters is the evidence p(Y).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln

from pathkernel_core.action.coordinates import (
    ChainCoordinates,
    Level,
    chain_factors,
    check_shared,
    lower_trapezoid,
)
from pathkernel_core.contracts.hooks import unknown_name
from pathkernel_core.contracts.sampler import Model
from pathkernel_core.energy.likelihoods import likelihood_of
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import path_weights
from pathkernel_core.system.text import number
from pathkernel_sampling.models.class_models import class_model
from pathkernel_sampling.models.likelihood import (
    Likelihood,
    NewExamples,
    host_generator,
    pytree,
)


class _FactorModel:
    """Model whose likelihood depends on a factor of the order parameter alone."""

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,)."""
        return self.log_prior(x) + self.likelihood.log_likelihood(self.factor(x))

    def order_parameter(self, x: jax.Array) -> jax.Array:
        """Return the order parameter U (n·C, n·C) of a draw."""
        factor = self.factor(x)
        return factor @ factor.T

    def predict(self, x: jax.Array, test: NewExamples) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance (P_test, C) of f given U (Eq. 29, 30)."""
        return self.likelihood.moments(self.factor(x), test)


class _StandardNormal:
    """Prior of models whose parameters are scaled weights."""

    def initial(self, key: jax.Array) -> jax.Array:
        """Draw (dimension,) from the prior, on the host."""
        return jnp.asarray(host_generator(key).standard_normal(self.dimension))

    def log_prior(self, x: jax.Array) -> jax.Array:
        """Normalised log density of the prior at x (dimension,)."""
        return -0.5 * (x @ x + self.dimension * math.log(2 * math.pi))


@pytree(("likelihood", "degrees", "rates", "scale", "repeats", "normaliser"), ("levels",))
class OrderParameterModel(_FactorModel):
    """All weights integrated: the Wishart hierarchy of the order parameters.

    From the readout down, U_ℓ given U_{ℓ+1} is Wishart with N_ℓ degrees of freedom and mean
    σ²_ℓ (1 ⊗ U_{ℓ+1}), exactly at every width. Its factor is

        F_ℓ = σ_ℓ (1 ⊗ F_{ℓ+1}) A_ℓ / √N_ℓ

    with Bartlett's A_ℓ, lower trapezoidal: A_jj = √χ²_{N_ℓ − j} (j from 0), standard normal
    below the diagonal. A width smaller than the matrix makes U_ℓ singular, and A_ℓ a tall matrix.
    A skip connection repeats F_{ℓ+1}: the first rows of A_ℓ are √N_ℓ/σ_ℓ times the identity.

    The parameters are, of each level, the readout's first, row by row, A_ij and √(2k) ln(A_jj/√k)
    with k = N_ℓ − j, so that all of them have a prior of about unit variance.

    Widths and variances are data of compiled code: it serves all widths that leave no U_ℓ singular.

    Parameters
    ----------
    likelihood : Likelihood or None
        None for the prior alone.
    network : Network
        Its widths must be whole numbers where they are smaller than the matrix.
    """

    name = "order-parameter"

    def __init__(self, likelihood: Likelihood | None, network: Network):
        self.likelihood, self.levels = likelihood, _levels(network)
        levels = zip(reversed(network.widths), reversed(self.levels))
        degrees = np.concatenate(
            [np.where(level.diagonal, N - np.nonzero(level.free)[1], 0.0) for N, level in levels]
        )
        # A = χ_k has in x = √(2k) t, t = ln(A/√k), the density
        # (k/2)^{k/2} / [√(k/2) Γ(k/2)] · exp(k t − k e^{2t}/2)
        k = degrees[degrees > 0]
        normaliser = np.sum(k / 2 * np.log(k / 2) - 0.5 * np.log(k / 2) - gammaln(k / 2))
        normaliser -= 0.5 * math.log(2 * math.pi) * np.sum(degrees == 0)
        rates = np.zeros_like(degrees)
        rates[degrees > 0] = 1 / np.sqrt(2 * k)
        # σ_ℓ/√N_ℓ of all levels are numbers, and multiply the readout's factor alone
        variances = math.prod(network.order_parameter_variances) / math.prod(network.widths)
        # k, and 1/√(2k), where a parameter is on the diagonal, 0 below it
        self.degrees, self.rates = jnp.asarray(degrees), jnp.asarray(rates)
        self.scale, self.normaliser = jnp.asarray(math.sqrt(variances)), jnp.asarray(normaliser)
        # diagonal of the identity that repeats F_{ℓ+1}
        repeats = np.sqrt(np.divide(network.widths, network.order_parameter_variances))
        self.repeats = jnp.asarray(repeats)

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return len(self.degrees)

    def initial(self, key: jax.Array) -> jax.Array:
        """Draw (dimension,) from the prior."""
        generator, draws = host_generator(key), np.empty(self.dimension)
        for level in reversed(self.levels):
            entries = draws[level.part]
            entries[:] = generator.standard_normal(len(entries))
            degrees = np.asarray(self.degrees)[level.part][level.diagonal]
            square = generator.chisquare(degrees)
            entries[level.diagonal] = np.sqrt(degrees / 2) * np.log(square / degrees)
        return jnp.asarray(draws)

    def log_prior(self, x: jax.Array) -> jax.Array:
        """Normalised log density of the prior at x (dimension,)."""
        logs = self.rates * x  # ln(A_jj/√k)
        below = jnp.where(self.degrees > 0, 0, x)
        diagonal = self.degrees @ (logs - 0.5 * jnp.exp(2 * logs))
        return diagonal - 0.5 * below @ below + self.normaliser

    def bartlett_entries(self, x: jax.Array) -> jax.Array:
        """Entries (dimension,) of Bartlett's matrices at x (dimension,)."""
        on_diagonal = self.degrees > 0  # elsewhere the rate is 0, and the exponential 1
        return jnp.where(on_diagonal, jnp.sqrt(self.degrees) * jnp.exp(self.rates * x), x)

    def factor(self, x: jax.Array) -> jax.Array:
        """Factor F (n·C, r) of U = F Fᵀ."""
        entries = self.bartlett_entries(x)
        bartlett = [
            lower_trapezoid(entries[level.part], level, repeat)
            for level, repeat in zip(self.levels, self.repeats)
        ]
        scales = (*[1.0] * (len(bartlett) - 1), self.scale)
        return chain_factors(bartlett, self.levels, scales)[0]


def position_at(network: Network, factors: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the parameters of :class:`OrderParameterModel` at a solution.

    Parameters
    ----------
    network : Network
    factors : sequence of arrays
        B_1, …, B_L, B_a of the order parameters, as :attr:`Solution.factors`.

    Returns
    -------
    array, shape (dimension,), or None
        None where a width is smaller than its order parameter, which no draw then equals.
    """
    if any(width < size for width, size in zip(network.widths, network.sizes)):
        return None
    coordinates = ChainCoordinates(network)
    relative = coordinates.relative_factors(coordinates.from_factors(factors))
    position = np.empty(coordinates.size)
    for width, factor, level in zip(network.widths, relative, _levels(network)):
        entries = position[level.part]
        entries[:] = math.sqrt(width) * factor[level.free]  # A_ℓ = √N_ℓ X_ℓ
        k = width - np.nonzero(level.free)[1][level.diagonal]
        entries[level.diagonal] = np.sqrt(2 * k) * np.log(entries[level.diagonal] / np.sqrt(k))
    return position


def _levels(network: Network) -> tuple[Level, ...]:
    """Levels of U_1, …, U_L, u_a for Bartlett's A; the readout's parameters come first."""
    levels, rank, start = [], network.outputs, 0
    skips = (None, *network.skips[::-1])
    for width, steps, skip in zip(reversed(network.widths), (1, *network.steps[::-1]), skips):
        # a Wishart matrix of fewer degrees of freedom than rows has a factor of as many columns,
        # and each block of rows of the next A as many rows
        size, shared = steps * rank, 0 if skip is None else rank
        rank = min(size, math.ceil(width))
        levels.insert(0, Level(steps, size, rank, shared, start))
        start = levels[0].part.stop
    return tuple(levels)


@pytree(("likelihood",), ("network",))
class CollapsedModel(_StandardNormal, _FactorModel):
    """The projection V⁰ integrated: Y ~ Normal(0, K(U(W)) + T1) with U of the weights by Eq. 13.

    The parameters are the value weights of each layer, (H_ℓ, N_{ℓ+1}, N_ℓ), the first layer first,
    then the readout (C, N_{L+1}), all divided by their prior deviation.

    Parameters
    ----------
    likelihood : Likelihood
    network : Network
        Its widths must be whole numbers.
    """

    name = "collapsed"

    def __init__(self, likelihood: Likelihood, network: Network):
        self.likelihood, self.network = likelihood, network

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return sum(map(math.prod, _weight_shapes(self.network)))

    def factor(self, x: jax.Array) -> jax.Array:
        """Factor F = W / √N_0 (n·C, N_0) of U (Eq. 13)."""
        return _path_factor(self.network, x)


@pytree(("features", "labels", "temperature"), ("network",))
class WeightsModel(_StandardNormal):
    """Nothing integrated: all weights of the network, as the paper samples them (Appendix F).

    The parameters are the projection V⁰ (N_0, input width), then those of
    :class:`CollapsedModel`, all divided by their prior deviation.

    Parameters
    ----------
    xi : array, shape (P, n, input width)
        Attentioned inputs, unscaled.
    labels : array, shape (P, C)
    network : Network
        Its widths must be whole numbers.
    temperature : float
    """

    name = "weights"

    def __init__(self, xi: np.ndarray, labels: np.ndarray, network: Network, temperature: float):
        self.network = network
        self.features = jnp.asarray(xi * self._scale(xi.shape))
        self.labels, self.temperature = jnp.asarray(labels), jnp.asarray(temperature)

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        shapes = _weight_shapes(self.network)
        return self._projection_size + sum(map(math.prod, shapes))

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,) (Eq. 8)."""
        error = self._outputs(x, self.features) - self.labels
        energy = jnp.sum(error**2) / self.temperature
        normaliser = error.size * jnp.log(2 * math.pi * self.temperature)
        return self.log_prior(x) - 0.5 * (energy + normaliser)

    def order_parameter(self, x: jax.Array) -> jax.Array:
        """Order parameter U (n·C, n·C) of a draw (Eq. 13)."""
        factor = _path_factor(self.network, x[self._projection_size :])
        return factor @ factor.T

    def predict(self, x: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the output f (P_test, C) of the network (Eq. 4), and its variance: zero."""
        mean = self._outputs(x, test * self._scale(test.shape))
        return mean, jnp.zeros_like(mean)

    def _outputs(self, x: jax.Array, features: jax.Array) -> jax.Array:
        # along paths: weights are multiplied first, and meet the examples in one product, where a
        # pass through the layers would take all tokens of all examples for every gradient
        size = self._projection_size
        projection = x[:size].reshape(-1, features.shape[2])
        scales = self.network.path_scales[:, None]
        weights = scales * _path_factor(self.network, x[size:]) @ projection  # (n·C, input width)
        weights = weights.reshape(-1, self.network.outputs, features.shape[2])
        flat = weights.transpose(0, 2, 1).reshape(-1, self.network.outputs)
        return features.reshape(features.shape[0], -1) @ flat

    @property
    def _projection_size(self) -> int:
        return int(self.network.widths[0]) * self.features.shape[2]

    def _scale(self, shape: tuple[int, ...]) -> float:
        return math.sqrt(self.network.variances[0] / (shape[1] * shape[2]))


MODELS = {model.name: model for model in (OrderParameterModel, CollapsedModel, WeightsModel)}


def build_model(
    name: str,
    xi: np.ndarray,
    labels: np.ndarray,
    network: Network,
    temperature: float | None = None,
    likelihood: str = "squared",
) -> Model:
    """Build a model of the posterior given the training examples of a task.

    Parameters
    ----------
    name : {"order-parameter", "collapsed", "weights"}
    xi : array, shape (P, n, N_0)
        Attentioned inputs, unscaled; or kernels of pairs of paths (n, n, P, P), as for
        :meth:`Problem.from_kernels`, which have no weights. Models then predict for a pair of
        kernels in place of inputs, as for ``Solution.predict``.
    labels : array, shape (P,) or (P, C)
    network : Network
    temperature : float, optional
        Positive temperature T of the squared loss.
    likelihood : {"squared", "logistic", "softmax"}
        What labels are, as for :class:`Problem`. Those of classes have the model
        "order-parameter" alone, which draws the outputs f, too.

    Raises
    ------
    ValueError
        If there is no such model, also for the likelihood, a shape does not fit the network, or a
        value is not finite.
    PrecisionError
        If JAX's 64-bit mode is off.

    Notes
    -----
    Begin with "order-parameter", whose dimension does not grow with the width; take "collapsed" to
    check it, and "weights" only at small widths and high temperature. Centre the labels, as for
    :class:`Problem`.
    """
    if name not in MODELS:
        raise ValueError(unknown_name("model", name, MODELS))
    check_shared(network)
    named = likelihood_of(likelihood)
    temperature = named.temperature(temperature)
    xi, labels = np.asarray(xi, dtype=float), np.asarray(labels)
    if named.is_gaussian:
        labels = np.asarray(labels, dtype=float)
    elif name != OrderParameterModel.name:
        raise ValueError(
            f"the model {name!r} draws from the posterior of the squared loss; of the {named.name} "
            'likelihood only "order-parameter" does, with the outputs'
        )
    of_kernels = xi.ndim == 4
    if of_kernels and name == WeightsModel.name:
        raise ValueError(
            f"xi of shape {xi.shape} holds kernels, whose network has no weights of a projection; "
            'take the model "order-parameter", or attentioned inputs (P, n, N_0)'
        )
    build = Problem.from_kernels if of_kernels else Problem
    problem = build(xi, labels, likelihood=likelihood)
    if (problem.n_paths, problem.outputs) != (network.n_paths, network.outputs):
        raise ValueError(
            f"xi of shape {xi.shape} and labels of shape {labels.shape} have {problem.n_paths} "
            f"paths and {problem.outputs} outputs, but the network {network.n_paths} and "
            f"{network.outputs}; build all from the same layers"
        )
    for width, size in zip(network.widths, network.sizes):
        if math.isinf(width):
            raise ValueError(
                "widths must be finite to be sampled, but has inf; use a large one, such as 1e6"
            )
        if width % 1 and (width < size or name != OrderParameterModel.name):
            raise ValueError(f"widths must be whole numbers to be sampled, but has {number(width)}")
    if not named.is_gaussian:
        return class_model(problem, xi, network, OrderParameterModel(None, network))
    of_labels = Likelihood(problem, network, temperature)
    if name == WeightsModel.name:
        return WeightsModel(xi, labels.reshape(len(xi), -1), network, temperature)
    return MODELS[name](of_labels, network)


def _weight_shapes(network: Network) -> list[tuple[int, ...]]:
    """Shapes of the value weights of each layer, and of the readout."""
    widths = [int(width) for width in network.widths]
    values = zip(network.heads, widths[1:], widths[:-1])
    return [*values, (network.outputs, widths[-1])]


def _path_factor(network: Network, x: jax.Array) -> jax.Array:
    """W / √N_0 (n·C, N_0) of scaled weights, so that U = F Fᵀ (Eq. 13)."""
    shapes = _weight_shapes(network)
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    *values, readout = (
        math.sqrt(variance) * weights.reshape(shape)
        for variance, weights, shape in zip(network.variances[1:], jnp.split(x, ends[:-1]), shapes)
    )
    return path_weights(values, readout, network.skips) / math.sqrt(network.widths[0])
