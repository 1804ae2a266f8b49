"""Models of the posterior of classes, which draw the outputs f beside the order parameters.

No integral over the outputs is closed, so that (u_a, U, f) are drawn together: the order parameters
as Bartlett factors, and f by standard normal numbers w, either of the features, f = Φ (F ⊗ 1) w, or
of the examples, f = L w with K = LLᵀ, whichever are fewer. Both are exact; Laplace's approximation
is in none of them.
"""

from __future__ import annotations

import math
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from pathkernel_core.action.coordinates import Level
from pathkernel_core.arrays.backend import add_to_diagonal
from pathkernel_core.energy.laplace.features import mixed_features
from pathkernel_core.energy.laplace.forms import LaplaceExamples, LaplaceForm, LaplaceKernels
from pathkernel_core.energy.laplace.posterior import GivenCross, InputCross
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_sampling.models.likelihood import NewExamples, host_generator, pytree

_JITTER = 1e-10  # of the mean of K's diagonal, for K that is singular


class Chain(Protocol):
    """Prior of the order parameters, and their factor, as of ``OrderParameterModel``."""

    levels: tuple[Level, ...]

    @property
    def dimension(self) -> int:
        """Number of parameters."""

    def initial(self, key: jax.Array) -> jax.Array:
        """Draw from the prior."""

    def log_prior(self, x: jax.Array) -> jax.Array:
        """Normalised log density of the prior."""

    def factor(self, x: jax.Array) -> jax.Array:
        """Factor F (n·C, r) of U = F Fᵀ."""

    def order_parameter(self, x: jax.Array) -> jax.Array:
        """Order parameter U (n·C, n·C)."""


class _ClassModel:
    """Order parameters and standard normal numbers of the outputs.

    Attributes
    ----------
    chain : Chain
        Prior and factor of the order parameters; it has no likelihood.
    deviation : array, shape (n·C, 1)
        Scales of the paths, with σ_0.
    targets : array, shape (P, C)
    likelihood : ClassLikelihood
    """

    name = "order-parameter"
    chain: Chain
    deviation: jax.Array
    targets: jax.Array
    likelihood: ClassLikelihood
    numbers: int

    def _set(self, problem: Problem, network: Network, chain: Chain) -> None:
        form = problem.form
        assert isinstance(form, LaplaceForm)
        self.chain = chain
        scales = np.sqrt(network.kernel_variance) * network.path_scales
        self.deviation = jnp.asarray(scales[:, None])
        self.targets, self.likelihood = jnp.asarray(form.labels), form.likelihood

    @property
    def dimension(self) -> int:
        """Number of parameters: of the order parameters, then of the outputs."""
        return self.chain.dimension + self.numbers

    def initial(self, key: jax.Array) -> jax.Array:
        """Draw (dimension,) from the prior."""
        normal = host_generator(jax.random.fold_in(key, 1)).standard_normal(self.numbers)
        return jnp.concatenate([self.chain.initial(key), jnp.asarray(normal)])

    def log_prior(self, x: jax.Array) -> jax.Array:
        """Normalised log density of the prior at x (dimension,)."""
        order_parameters, normal = self._split(x)
        of_outputs = -0.5 * (normal @ normal + self.numbers * math.log(2 * math.pi))
        return self.chain.log_prior(order_parameters) + of_outputs

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,)."""
        return self.log_prior(x) + self.likelihood.log_density(self.outputs(x), self.targets)

    def order_parameter(self, x: jax.Array) -> jax.Array:
        """Return the order parameter U (n·C, n·C) of a draw."""
        return self.chain.order_parameter(self._split(x)[0])

    def outputs(self, x: jax.Array) -> jax.Array:
        """Return the outputs f of the training examples, (P, C), of a draw."""
        raise NotImplementedError

    def _split(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = self.chain.dimension
        return x[:size], x[size:]

    def _factor(self, x: jax.Array) -> jax.Array:
        return self.deviation * self.chain.factor(self._split(x)[0])


@pytree(("chain", "deviation", "targets", "features"), ("likelihood", "numbers"))
class FeatureClassModel(_ClassModel):
    """Outputs f = Φ (F ⊗ 1) w, w of as many numbers as features, r·N_0 for F (n·C, r).

    Parameters
    ----------
    problem : Problem
        Of inputs.
    xi : array, shape (P, n, N_0)
        Its attentioned inputs, as they are: w also decides on directions of new examples.
    network : Network
    chain : Chain
    """

    def __init__(self, problem: Problem, xi: np.ndarray, network: Network, chain: Chain):
        self._set(problem, network, chain)
        self.features = jnp.asarray(xi / math.sqrt(xi.shape[1] * xi.shape[2]))
        self.numbers = self.chain.levels[0].columns * xi.shape[2]

    def outputs(self, x: jax.Array) -> jax.Array:
        """Return the outputs f of the training examples, (P, C), of a draw."""
        return self._outputs(x, self.features)

    def predict(self, x: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the outputs f (P_test, C) of a draw, and their variance given it: zero."""
        test = jnp.asarray(test)
        mean = self._outputs(x, test / math.sqrt(test.shape[1] * test.shape[2]))
        return mean, jnp.zeros_like(mean)

    def _outputs(self, x: jax.Array, features: jax.Array) -> jax.Array:
        mixed = mixed_features(features, self._factor(x))
        return (mixed @ self._split(x)[1]).reshape(len(features), -1)


@pytree(("chain", "deviation", "targets", "form"), ("likelihood", "numbers"))
class KernelClassModel(_ClassModel):
    """Outputs f = L w with K = LLᵀ of the examples, w of P·C numbers.

    Parameters
    ----------
    problem : Problem
        Of inputs, or of given kernels.
    network : Network
    chain : Chain
    """

    def __init__(self, problem: Problem, network: Network, chain: Chain):
        self._set(problem, network, chain)
        form = problem.form
        if not problem.is_of_kernels:
            form = LaplaceExamples(form.labels, form.likelihood, features=form.features)
        form.check_size()
        self.form = jax.tree.map(jnp.asarray, form)
        self.numbers = math.prod(self.targets.shape)

    def outputs(self, x: jax.Array) -> jax.Array:
        """Return the outputs f of the training examples, (P, C), of a draw."""
        root = self._root(self._factor(x))
        return (root @ self._split(x)[1]).reshape(self.targets.shape)

    def predict(self, x: jax.Array, test: NewExamples) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance (P_test, C) of f given those of the training examples."""
        factor, normal = self._factor(x), self._split(x)[1]
        new, own = test if isinstance(test, tuple) else (test, None)
        crossing: InputCross | GivenCross = self.form.cross()
        cross, prior = crossing.kernels(jnp.asarray(new), own, factor, None)
        half = solve_triangular(self._root(factor), cross.T, lower=True)
        shape = (-1, self.targets.shape[1])
        explained = jnp.sum(half**2, axis=0).reshape(shape)
        variance = jnp.diagonal(prior, axis1=1, axis2=2) - explained
        return (half.T @ normal).reshape(shape), jnp.clip(variance, 0.0)

    def _root(self, factor: jax.Array) -> jax.Array:
        kernel = self.form.kernel(factor)
        jitter = _JITTER * jnp.trace(kernel) / len(kernel)
        return jnp.linalg.cholesky(add_to_diagonal(kernel, jitter, jnp))


pytree(("labels", "features"), ("likelihood", "memory"))(LaplaceExamples)
pytree(("labels", "given"), ("likelihood", "memory"))(LaplaceKernels)


def class_model(problem: Problem, xi: np.ndarray, network: Network, chain: Chain) -> _ClassModel:
    """Model with the fewer numbers of outputs, by features or by examples.

    Parameters
    ----------
    problem : Problem
        With a likelihood of classes.
    xi : array, shape (P, n, N_0), or kernels (n, n, P, P)
        What it was built from.
    network : Network
    chain : Chain
        Of the order parameters.
    """
    if not problem.is_of_kernels:
        by_features = FeatureClassModel(problem, xi, network, chain)
        if by_features.numbers <= problem.n_examples * problem.outputs or problem.basis is not None:
            return by_features
    return KernelClassModel(problem, network, chain)
