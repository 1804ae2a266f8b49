"""Models of the joint posterior of weights, or order parameters, and queries and keys.

Given queries and keys, the models of :mod:`pathkernel_sampling.models` are exact at every width.
Their parameters beside those of attention, with their Gaussian prior, give the exact joint
posterior: no minimum, no expansion in 1/N. :class:`MarginalModel` has the density of
:class:`pathkernel_core.attention_posterior.AttentionPosterior`, which is theirs with all weights
integrated out at leading order in 1/N, or at the next.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.attention_posterior import AttentionPosterior
from pathkernel_core.backend import to_host
from pathkernel_core.differentiable import traceable_form
from pathkernel_core.errors import MinimisationError, NotPositiveDefiniteError
from pathkernel_core.hooks import unknown_name
from pathkernel_core.input_moments import posterior_moments
from pathkernel_core.network import Network
from pathkernel_core.sampler import Model
from pathkernel_core.solution import Solution
from pathkernel_core.spaces import Space
from pathkernel_sampling.attention_corrections import next_order_density
from pathkernel_sampling.likelihood import at_most_square, pytree
from pathkernel_sampling.models import MODELS, WeightsModel, host_generator


class _Likelihood:
    """As :class:`pathkernel_sampling.likelihood.Likelihood`, differentiable in ξ, too."""

    def __init__(self, xi: jax.Array, labels: jax.Array, network: Network, temperature: float):
        examples, paths, width = xi.shape
        space = "examples" if examples <= paths * width else "features"
        self._form: Space = traceable_form(xi, labels, space)
        scales = math.sqrt(network.kernel_variance) * network.path_scales
        self._deviation = jnp.asarray(scales[:, None])
        self._temperature, self._rows = jnp.asarray(temperature), labels.size

    def log_likelihood(self, factor: jax.Array) -> jax.Array:
        """Normalised log density of the labels at U = F Fᵀ, for F (n·C, r)."""
        factor, _ = at_most_square(self._deviation * factor)
        value = self._form.energy(factor, self._temperature)
        return -0.5 * (value + self._rows * math.log(2 * math.pi))

    def moments(self, factor: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (Eq. 29, 30) of the predictor given U = F Fᵀ at ξ of new examples."""
        factor, _ = at_most_square(self._deviation * factor)
        posterior: Any = self._form.posterior(factor, self._temperature)  # type: ignore[arg-type]
        return posterior_moments(posterior, factor, test)


@pytree(("inputs", "labels"), ("posterior", "name"))
class JointModel:
    """Exact posterior of attention and of weights, or of order parameters.

    The parameters are those of a model of :mod:`pathkernel_sampling.models`, then those of
    attention, divided by their prior deviation. New examples are token sequences.

    Parameters
    ----------
    posterior : AttentionPosterior
    name : {"order-parameter", "collapsed", "weights"}
        Whose parameters are drawn besides those of attention.
    """

    def __init__(self, posterior: AttentionPosterior, name: str):
        self.posterior, self.name = posterior, name
        self.inputs, self.labels = posterior.inputs, posterior.labels

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self._without_data.dimension + self.posterior.dimension

    @property
    def _without_data(self) -> Model:
        """Model of the weights, for what their prior alone decides."""
        network = self.posterior.network
        if self.name == WeightsModel.name:
            no_examples = jnp.empty((0, network.n_paths, self.inputs.shape[2]))
            return WeightsModel(no_examples, jnp.empty((0, network.outputs)), network, 1.0)
        return MODELS[self.name](None, network)  # type: ignore[arg-type]

    def initial(self, key: jax.Array) -> jax.Array:
        """Draw (dimension,) from the prior, on the host."""
        attention = self.posterior.initial(host_generator(jax.random.fold_in(key, 1)))
        return jnp.concatenate([self._without_data.initial(key), attention])

    def log_prior(self, x: jax.Array) -> jax.Array:
        """Normalised log density of the prior at x (dimension,)."""
        weights, attention = self._split(x)
        return self._without_data.log_prior(weights) + _log_normal(attention)

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,)."""
        weights, attention = self._split(x)
        return self._given(attention).log_density(weights) + _log_normal(attention)

    def order_parameter(self, x: jax.Array) -> jax.Array:
        """Order parameter U (n·C, n·C) of a draw."""
        weights, attention = self._split(x)
        return self._given(attention).order_parameter(weights)

    def predict(self, x: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (P_test, C) of f given the draw, of sequences (P_test, M, N_0)."""
        weights, attention = self._split(x)
        layers = self.posterior.layers_at(attention)
        return self._given(attention).predict(weights, self.posterior.attentioned(layers, test))

    def attention(self, x: jax.Array) -> jax.Array:
        """Parameters of attention (posterior.dimension,) among all."""
        return self._split(x)[1]

    def _split(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = self._without_data.dimension
        return x[:size], x[size:]

    def _given(self, attention: jax.Array) -> Model:
        """Model of the weights given the parameters of attention."""
        posterior = self.posterior
        xi = posterior.attentioned(posterior.layers_at(attention), self.inputs)
        labels = self.labels.reshape(len(xi), -1)
        rest = labels, posterior.network, posterior.temperature
        if self.name == WeightsModel.name:
            return WeightsModel(xi, *rest)
        return MODELS[self.name](_Likelihood(xi, *rest), posterior.network)  # type: ignore[arg-type]


@pytree((), ("posterior", "next_order"))
class MarginalModel:
    """Posterior of attention alone: all weights integrated out at the minimum of the action.

    The parameters are those of attention, divided by their prior deviation. Every evaluation
    minimises the action on the host, from one and the same solution, so that the density depends on
    the parameters alone and a chain resumes bit for bit.

    Parameters
    ----------
    posterior : AttentionPosterior
        Of NumPy's arrays.
    next_order : bool
        Whether the density is that to next order in 1/N.
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
        """Order parameter U (n·C, n·C) at the minimum of the action."""
        size = self.posterior.network.sizes[0]
        result = jax.ShapeDtypeStruct((size, size), x.dtype)
        return jax.pure_callback(self._order_parameter, result, x)

    def predict(self, x: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (P_test, C) of f at the minimum, of sequences (P_test, M, N_0)."""
        shape = jax.ShapeDtypeStruct((len(test), self.posterior.network.outputs), x.dtype)
        return jax.pure_callback(self._predict, (shape, shape), x, test)

    def attention(self, x: jax.Array) -> jax.Array:
        """Parameters of attention (posterior.dimension,): all."""
        return x

    @cached_property
    def _start(self) -> Solution:
        return self.posterior.solve(np.zeros(self.dimension))

    def density_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log density and gradient on the host; −∞ where there is no minimum."""
        evaluate = partial(next_order_density, self.posterior)
        if not self.next_order:
            evaluate = self.posterior.evaluate
        try:
            density = evaluate(np.asarray(x), self._start)
        except (MinimisationError, NotPositiveDefiniteError, ValueError, np.linalg.LinAlgError):
            return np.array(-np.inf), np.zeros(self.dimension)
        return np.array(density.log_density), density.gradient

    def _order_parameter(self, x: np.ndarray) -> np.ndarray:
        return to_host(self.posterior.solve(np.asarray(x), self._start).order_parameter)

    def _predict(self, x: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = np.asarray(x)
        solution = self.posterior.solve(x, self._start)
        xi = self.posterior.attentioned(self.posterior.layers_at(x), np.asarray(test))
        prediction = solution.predict(xi)
        shape = len(xi), self.posterior.network.outputs
        return prediction.mean.reshape(shape), prediction.variance.reshape(shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_density(model: MarginalModel, x: jax.Array) -> jax.Array:
    return _forward(model, x)[0]


def _forward(model: MarginalModel, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    shapes = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(model.density_and_gradient, shapes, x)


def _backward(model: MarginalModel, gradient: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    return (cotangent * gradient,)


_log_density.defvjp(_forward, _backward)


def attention_model(name: str, posterior: AttentionPosterior) -> JointModel | MarginalModel:
    """Build a model of the posterior of attention.

    Parameters
    ----------
    name : {"order-parameter", "collapsed", "weights", "marginal", "marginal-next-order"}
        What is drawn besides the parameters of attention: order parameters, value and readout
        weights, all weights, or nothing.
    posterior : AttentionPosterior
        Of NumPy's arrays.

    Raises
    ------
    ValueError
        If there is no such model, or a width is not whole for one that draws weights.
    """
    names = [*MODELS, "marginal", "marginal-next-order"]
    if name not in names:
        raise ValueError(unknown_name("model", name, names))
    if name not in MODELS:
        return MarginalModel(posterior, name != "marginal")
    for width in posterior.network.widths:
        if math.isinf(width) or (width % 1 and name != "order-parameter"):
            raise ValueError(f"widths must be whole numbers to be sampled, but has {width:g}")
    arrays = {
        "inputs": jnp.asarray(posterior.inputs),
        "labels": jnp.asarray(posterior.labels),
        "layers": [layer.convert(jnp.asarray) for layer in posterior.layers],
    }
    return JointModel(dataclasses.replace(posterior, **arrays), name)


def _log_normal(x: jax.Array) -> jax.Array:
    return -0.5 * (x @ x + len(x) * math.log(2 * math.pi))
