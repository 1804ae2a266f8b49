"""Models of the joint posterior of weights, or order parameters, and queries and keys.

Given queries and keys, the models of :mod:`pathkernel_sampling.models.models` are exact at every
width. Their parameters beside those of attention, with their Gaussian prior, give the exact joint
posterior: no minimum, no expansion in 1/N. :class:`MarginalModel` has the density of
:class:`pathkernel_core.learned.posterior.AttentionPosterior`, which is theirs with all weights
integrated out at leading order in 1/N, or at the next.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import cached_property, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import to_host
from pathkernel_core.contracts.hooks import unknown_name
from pathkernel_core.contracts.sampler import Model
from pathkernel_core.learned.posterior import AttentionPosterior
from pathkernel_core.prediction.differentiable import traceable_form
from pathkernel_core.system.errors import MinimisationError, NotPositiveDefiniteError
from pathkernel_sampling.attention.corrections import (
    constants_of,
    correction_and_gradient,
    expansion_at,
)
from pathkernel_sampling.corrections.loops import Expansion, prior_loops
from pathkernel_sampling.models.energy_derivatives import EnergyDerivatives
from pathkernel_sampling.models.input_gradients import energy_of_inputs
from pathkernel_sampling.models.likelihood import at_most_square, pytree
from pathkernel_sampling.models.models import (
    MODELS,
    OrderParameterModel,
    WeightsModel,
    host_generator,
)


class _Likelihood:
    """As :class:`pathkernel_sampling.models.likelihood.Likelihood`, differentiable in ξ, too."""

    def __init__(
        self, xi: jax.Array, labels: jax.Array, deviation: jax.Array, temperature: jax.Array
    ):
        self._xi, self._labels = xi, labels
        self._deviation, self._temperature = deviation, temperature

    def log_likelihood(self, factor: jax.Array) -> jax.Array:
        """Normalised log density of the labels at U = F Fᵀ, for F (n·C, r)."""
        _, paths, width = self._xi.shape
        features = self._xi / math.sqrt(paths * width)
        value = energy_of_inputs(
            self._deviation * factor, features, self._labels, self._temperature
        )
        return -0.5 * (value + self._labels.size * math.log(2 * math.pi))

    def moments(self, factor: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (Eq. 29, 30) of the predictor given U = F Fᵀ at ξ of new examples."""
        examples, paths, width = self._xi.shape
        space = "examples" if examples <= paths * width else "features"
        form: Any = traceable_form(self._xi, self._labels, space)
        factor, _ = at_most_square(self._deviation * factor)
        posterior = form.posterior(factor, self._temperature)
        return posterior.moments(test, None, factor)


class _Form:
    """What compiled code depends on: equal for posteriors that differ in numbers alone.

    Widths and variances of the network enter by its model, and temperature by its value.
    """

    def __init__(self, posterior: AttentionPosterior, name: str):
        self.posterior, self.name = posterior, name
        learned = {number for number, *_ in posterior.parts}
        self._key: tuple[Any, ...] = (id(posterior),)
        if name == OrderParameterModel.name and len(learned) == len(posterior.layers):
            network = posterior.network
            layers = cast("list[Any]", posterior.layers)
            scales = [(layer.score_scale, layer.linear) for layer in layers]
            kinds = [type(layer) for layer in posterior.layers]
            parts = [(name, shape, sigma) for _, name, _, shape, sigma in posterior.parts]
            structure = network.heads, tuple(s is None for s in network.skips), network.outputs
            self._key = (name, *structure, *kinds, *scales, *parts, posterior.readout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@pytree(("inputs", "labels", "deviation", "temperature", "beside"), ("form",))
class JointModel:
    """Exact posterior of attention and of weights, or of order parameters.

    The parameters are those of a model of :mod:`pathkernel_sampling.models.models`, then those of
    attention, divided by their prior deviation. New examples are token sequences. Of order
    parameters widths, variances and temperature are data of compiled code.

    Parameters
    ----------
    posterior : AttentionPosterior
    name : {"order-parameter", "collapsed", "weights"}
        Whose parameters are drawn besides those of attention.

    Attributes
    ----------
    beside : Model
        Model of the weights or order parameters, without data: what their prior decides.
    """

    def __init__(self, posterior: AttentionPosterior, name: str):
        self.form = _Form(posterior, name)
        self.inputs, self.labels = posterior.inputs, posterior.labels
        network = posterior.network
        scales = math.sqrt(network.kernel_variance) * network.path_scales
        self.deviation = jnp.asarray(scales[:, None])
        self.temperature = jnp.asarray(float(posterior.temperature))
        if name == WeightsModel.name:
            no_examples = jnp.empty((0, network.n_paths, self.inputs.shape[2]))
            no_labels = jnp.empty((0, network.outputs))
            self.beside: Model = WeightsModel(no_examples, no_labels, network, 1.0)
        else:
            self.beside = MODELS[name](None, network)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """Name of the sampler."""
        return self.form.name

    @property
    def posterior(self) -> AttentionPosterior:
        """Posterior of attention, or in compiled code one of the same form."""
        return self.form.posterior

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.beside.dimension + self.posterior.dimension

    def initial(self, key: jax.Array) -> jax.Array:
        """Draw (dimension,) from the prior, on the host."""
        attention = self.posterior.initial(host_generator(jax.random.fold_in(key, 1)))
        return jnp.concatenate([self.beside.initial(key), attention])

    def log_prior(self, x: jax.Array) -> jax.Array:
        """Normalised log density of the prior at x (dimension,)."""
        weights, attention = self._split(x)
        return self.beside.log_prior(weights) + _log_normal(attention)

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,)."""
        weights, attention = self._split(x)
        return self._condition_on(attention).log_density(weights) + _log_normal(attention)

    def order_parameter(self, x: jax.Array) -> jax.Array:
        """Order parameter U (n·C, n·C) of a draw."""
        weights, attention = self._split(x)
        return self._condition_on(attention).order_parameter(weights)

    def predict(self, x: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (P_test, C) of f given the draw, of sequences (P_test, M, N_0)."""
        weights, attention = self._split(x)
        layers = self.posterior.layers_at(attention)
        return self._condition_on(attention).predict(weights, self.posterior.attend(layers, test))

    def attention(self, x: jax.Array) -> jax.Array:
        """Parameters of attention (posterior.dimension,) among all."""
        return self._split(x)[1]

    def _split(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = self.beside.dimension
        return x[:size], x[size:]

    def _condition_on(self, attention: jax.Array) -> Model:
        """Model of the weights given the parameters of attention."""
        posterior = self.posterior
        xi = posterior.attend(posterior.layers_at(attention), self.inputs)
        labels = self.labels.reshape(len(xi), -1)
        if self.name == WeightsModel.name:
            return WeightsModel(xi, labels, posterior.network, self.temperature)
        model: Any = copy.copy(self.beside)
        model.likelihood = _Likelihood(xi, labels, self.deviation, self.temperature)
        return model


@pytree((), ("posterior", "next_order"))
class MarginalModel:
    """Posterior of attention alone: all weights integrated out at the minimum of the action.

    The parameters are those of attention, divided by their prior deviation. Every evaluation
    minimises the action on the host, from one and the same solution, so that the density depends on
    the parameters alone and a chain resumes bit for bit.

    Parameters
    ----------
    posterior : AttentionPosterior
        Posterior of attention, of NumPy's arrays.
    next_order : bool
        Whether the density, U and the predictor are those to next order in 1/N.
    """

    name = "marginal"

    def __init__(self, posterior: AttentionPosterior, next_order: bool = False):
        self.posterior, self.next_order = posterior, next_order

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.posterior.dimension

    def initial(self, key: jax.Array) -> jax.Array:
        """Draw (dimension,) from the prior, on the host."""
        return jnp.asarray(self.posterior.initial(host_generator(key)))

    def log_prior(self, x: jax.Array) -> jax.Array:
        """Normalised log density of the prior at x (dimension,)."""
        return _log_normal(x)

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,)."""
        return _log_density(self, x)

    def order_parameter(self, x: jax.Array) -> jax.Array:
        """Order parameter U (n·C, n·C) of a draw."""
        if self.next_order:
            expansion, u = self._expansion(x)
            return u + _unpack_triangle(expansion.order_parameter_correction, u)
        size = self.posterior.network.sizes[0]
        result = jax.ShapeDtypeStruct((size, size), x.dtype)
        return jax.pure_callback(self._order_parameter, result, x)

    def predict(self, x: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (P_test, C) of f given the draw, of sequences (P_test, M, N_0)."""
        shape = jax.ShapeDtypeStruct((len(test), self.posterior.network.outputs), x.dtype)
        arguments: tuple[jax.Array, ...] = ()
        if self.next_order:
            expansion, u = self._expansion(x)
            shift = _unpack_triangle(expansion.order_parameter_correction, u)
            arguments = shift, expansion.covariance
        return jax.pure_callback(self._predict, (shape, shape), x, test, *arguments)

    def attention(self, x: jax.Array) -> jax.Array:
        """Parameters of attention (posterior.dimension,): all."""
        return x

    def density_and_gradient(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log density and its gradient; −∞ where there is no minimum."""
        size = self._coordinates.size
        shapes = [jax.ShapeDtypeStruct(shape, x.dtype) for shape in ((), x.shape, (size,))]
        value, gradient, minimum = jax.pure_callback(self._evaluate, tuple(shapes), x)
        if self.next_order:
            # outside the callback: JAX that is called from a callback of JAX may wait for itself
            posterior = traceable(self.posterior)
            xi, pull_back = jax.vjp(lambda x: posterior.attend(posterior.layers_at(x)), x)
            loops, of_xi, _ = correction_and_gradient(*self._settings(minimum, xi))
            value = value + loops - sum(prior_loops(posterior.network))
            gradient = gradient + pull_back(of_xi)[0]
        exists = jnp.isfinite(value)
        return jnp.where(exists, value, -jnp.inf), jnp.where(exists, gradient, 0.0)

    def _expansion(self, x: jax.Array) -> tuple[Expansion, jax.Array]:
        """Expansion around the minimum at x, and U there."""
        shape = jax.ShapeDtypeStruct((self._coordinates.size,), x.dtype)
        minimum = jax.pure_callback(self._minimum, shape, x)
        posterior = traceable(self.posterior)
        xi = posterior.attend(posterior.layers_at(x))
        expansion, _, _, u = expansion_at(*self._settings(minimum, xi))
        return expansion, u

    def _settings(self, minimum: jax.Array, xi: jax.Array) -> tuple[Any, ...]:
        network, labels = self.posterior.network, self.posterior.labels
        constants = constants_of(network, self.posterior.temperature, labels, xi.shape)
        return self._coordinates.levels, network.outputs, minimum, xi, constants

    @cached_property
    def _coordinates(self) -> ChainCoordinates:
        return ChainCoordinates(self.posterior.network)

    # on the host, in NumPy alone

    @cached_property
    def _start(self) -> Solution:
        return self.posterior.solve(np.zeros(self.dimension))

    def _evaluate(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        try:
            density = self.posterior.evaluate(np.asarray(x), self._start)
        except (MinimisationError, NotPositiveDefiniteError, ValueError, np.linalg.LinAlgError):
            zeros = np.zeros(self.dimension), np.zeros(self._coordinates.size)
            return np.array(-np.inf), *zeros
        minimum = self._coordinates.from_factors(density.solution.factors)
        return np.array(density.log_density), density.gradient, minimum

    def _solution(self, x: np.ndarray) -> Solution:
        return self.posterior.solve(np.asarray(x), self._start)

    def _minimum(self, x: np.ndarray) -> np.ndarray:
        return self._coordinates.from_factors(self._solution(x).factors)

    def _order_parameter(self, x: np.ndarray) -> np.ndarray:
        return to_host(self._solution(x).order_parameter)

    def _predict(
        self, x: np.ndarray, test: np.ndarray, *correction: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        solution = self._solution(x)
        layers = self.posterior.layers_at(np.asarray(x))
        xi = self.posterior.attend(layers, np.asarray(test))
        shape = len(xi), self.posterior.network.outputs
        prediction = solution.predict(xi)
        mean, variance = (np.reshape(m, shape) for m in (prediction.mean, prediction.variance))
        if correction:
            energy = EnergyDerivatives(solution)
            changes = energy.of_predictor(xi, *map(np.asarray, correction))
            mean, variance = (m + np.reshape(c, shape) for m, c in zip((mean, variance), changes))
        return mean, variance


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_density(model: MarginalModel, x: jax.Array) -> jax.Array:
    return model.density_and_gradient(x)[0]


def _backward(model: MarginalModel, gradient: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    return (cotangent * gradient,)


_log_density.defvjp(MarginalModel.density_and_gradient, _backward)


def _unpack_triangle(packed: jax.Array, like: jax.Array) -> jax.Array:
    """Symmetric matrix of its lower triangle (p,)."""
    rows, columns = np.tril_indices(len(like))
    return jnp.zeros_like(like).at[rows, columns].set(packed).at[columns, rows].set(packed)


def traceable(posterior: AttentionPosterior) -> AttentionPosterior:
    """Posterior of JAX's arrays."""
    return dataclasses.replace(
        posterior,
        inputs=jnp.asarray(posterior.inputs),
        labels=jnp.asarray(posterior.labels),
        layers=[layer.convert(jnp.asarray) for layer in posterior.layers],
        variances=posterior.variances,
    )


def attention_model(name: str, posterior: AttentionPosterior) -> JointModel | MarginalModel:
    """Build a model of the posterior of attention.

    Parameters
    ----------
    name : {"order-parameter", "collapsed", "weights", "marginal", "marginal-next-order"}
        What is drawn besides the parameters of attention: order parameters, value and readout
        weights, all weights, or nothing.
    posterior : AttentionPosterior
        Posterior of attention, of NumPy's arrays.

    Raises
    ------
    ValueError
        If there is no such model, or a width is not whole for one that draws weights.
    """
    names = [*MODELS, "marginal", "marginal-next-order"]
    if name not in names:
        raise ValueError(unknown_name("model", name, names))
    if name == "marginal-next-order" and math.isinf(posterior.network.widths[0]):
        raise ValueError("width N_1 is infinite: there is no next order; take marginal")
    if name not in MODELS:
        return MarginalModel(posterior, name != "marginal")
    for width in posterior.network.widths:
        if math.isinf(width) or (width % 1 and name != "order-parameter"):
            raise ValueError(f"widths must be whole numbers to be sampled, but has {width:g}")
    return JointModel(traceable(posterior), name)


def _log_normal(x: jax.Array) -> jax.Array:
    return -0.5 * (x @ x + len(x) * math.log(2 * math.pi))
