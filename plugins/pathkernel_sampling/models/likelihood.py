"""Likelihood of the labels given the order parameter, and the predictor's moments (Eq. 9, 29–34).

Everything is a function of a factor F of the order parameter, U = F Fᵀ, with one row for each pair
(path, output), output fastest, and any number of columns: U may be singular. The energy

    ln det(K + T1) + Yᵀ (K + T1)⁻¹ Y,        K = Φ (U ⊗ 1) Φᵀ

and its gradient 2 (M − R) F are those of the core's spaces, for automatic differentiation.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from pathkernel_core.arrays.backend import add_to_diagonal, array_namespace, log_determinant
from pathkernel_core.energy.examples import ExampleSpace
from pathkernel_core.energy.features import FeatureSpace
from pathkernel_core.energy.form import Form
from pathkernel_core.energy.given_kernels import GivenKernels
from pathkernel_core.energy.kernel_space import KernelSpace
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network

NewExamples: TypeAlias = "jax.Array | tuple[jax.Array, jax.Array]"
"""Attentioned inputs of new examples, or their kernels with training examples and themselves."""


def pytree(data: tuple[str, ...], static: tuple[str, ...] = ()) -> Any:
    """Make a class decorator whose instances can be arguments of compiled code.

    Parameters
    ----------
    data : tuple of str
        Attributes that are arrays or other pytrees.
    static : tuple of str
        Hashable attributes: code is compiled again where they differ.
    """

    def register(cls: type) -> type:
        def flatten(instance: Any) -> tuple[list[Any], tuple[Any, ...]]:
            values = [getattr(instance, name) for name in (*data, *static)]
            return values[: len(data)], tuple(values[len(data) :])

        def unflatten(static_values: tuple[Any, ...], leaves: list[Any]) -> Any:
            # without __init__, whose checks and conversions fail on tracers and placeholders
            instance = object.__new__(cls)
            vars(instance).update(zip((*data, *static), (*leaves, *static_values)))
            return instance

        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
        return cls

    return register


pytree(("features", "labels", "rows"))(ExampleSpace)
pytree(("features", "labels", "rows", "kernels"))(KernelSpace)
pytree(("kernels", "labels"), ("index",))(GivenKernels)
pytree(("gram", "projections", "label_square", "rows"), ("n_examples",))(FeatureSpace)
pytree(("form", "basis"), ("input_width", "n_paths", "n_examples", "outputs"))(Problem)


def host_generator(key: jax.Array) -> np.random.Generator:
    """Generator on the host, where a single draw needs no compilation."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


@jax.custom_vjp
def energy(space: Form, factor: jax.Array, temperature: jax.Array) -> jax.Array:
    """Energy ln det(K + T1) + Yᵀ(K + T1)⁻¹Y (Eq. 34), differentiable in the factor (n·C, r)."""
    return energy_and_gradient(space, factor, temperature)[0]


def energy_and_gradient(
    space: Form, factor: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Energy at U = F Fᵀ and its gradient 2 (M − R) F."""
    # the core's gradient M − R: to differentiate through the Cholesky factorisation would take
    # further triangular solves of its size
    if space.name == "features":
        return _feature_space(space, factor, temperature)
    mixing = factor if space.name == "kernels" else at_most_square(factor)[0]
    value, gradient = space.evaluate(mixing, temperature)
    return value, 2 * gradient @ factor


def _backward(gradient: jax.Array, cotangent: jax.Array) -> tuple[None, jax.Array, None]:
    return None, cotangent * gradient, None  # examples and temperature are given


energy.defvjp(energy_and_gradient, _backward)


def _feature_space(
    space: FeatureSpace, factor: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Energy and gradient in feature space, of a factor that has no inverse.

    The core divides Fᵀ (M − R) F by F on both sides, which a singular U does not allow; where it
    does, the core takes nine tenths of the time.
    """
    paths, width, outputs = space.projections.shape
    reduced, rotation = at_most_square(factor)
    rank = reduced.shape[1]
    by_path = reduced.reshape(paths, outputs, rank)
    half = jnp.einsum("piqj,qck->pcikj", space.gram, by_path)  # G (F ⊗ 1)
    matrix = jnp.einsum("pck,pcilj->kilj", by_path, half).reshape(rank * width, rank * width)
    matrix = add_to_diagonal(matrix, temperature, jnp)  # B = T1 + (Fᵀ ⊗ 1) G (F ⊗ 1)
    lower = jax.lax.linalg.cholesky(matrix, symmetrize_input=False)
    solve = partial(solve_triangular, lower, lower=True)
    right = jnp.einsum("pck,pic->ki", by_path, space.projections).reshape(-1, 1)
    half = half.reshape(-1, rank * width)
    target = solve(right)
    weights = solve(target, trans=1)
    excess = space.n_examples * outputs - len(lower)
    value = excess * jnp.log(temperature) + log_determinant(lower, jnp)
    value = value + (space.label_square - jnp.sum(target**2)) / temperature
    # Φᵀ (K + T1)⁻¹ Φ (F ⊗ 1)
    mixed = solve(solve(half.T), trans=1).T
    mixed = mixed.reshape(paths, outputs, width, rank, width)
    mixed = jnp.einsum("pciki->pck", mixed).reshape(-1, rank)  # M F
    z = space.projections.transpose(0, 2, 1).reshape(-1, 1) - half @ weights
    z = z.reshape(-1, width) / temperature
    gradient = 2 * (mixed - z @ weights.reshape(rank, width).T)
    return value, gradient if rotation is None else gradient @ rotation.T


@pytree(("problem", "temperature", "deviation"))
class Likelihood:
    """Likelihood p(Y | U) = Normal(Y; 0, K + T1), and the predictor given U.

    Instances can be arguments of compiled functions.

    Parameters
    ----------
    problem : Problem
        Training examples, which are copied to JAX's arrays.
    network : Network
        Whose prior variance σ²_0 and scales of the paths multiply U.
    temperature : float
        Positive temperature T.

    Raises
    ------
    PrecisionError
        If JAX's 64-bit mode is off.
    """

    def __init__(self, problem: Problem, network: Network, temperature: float):
        problem.require_squared(
            "the likelihood of the labels given U",
            "build_model(..., likelihood=...) draws the outputs of classes, too",
        )
        self.temperature = jnp.asarray(float(temperature))
        array_namespace(temperature=self.temperature)
        scales = np.sqrt(network.kernel_variance) * network.path_scales
        self.deviation = jnp.asarray(scales[:, None])
        self.problem = jax.tree.map(jnp.asarray, problem)

    def log_likelihood(self, factor: jax.Array) -> jax.Array:
        """Normalised log density of the labels at U = F Fᵀ, for F (n·C, r)."""
        value = energy(self.problem.form, self.deviation * factor, self.temperature)
        rows = self.problem.n_examples * self.problem.outputs
        return -0.5 * (value + rows * math.log(2 * math.pi))

    def moments(self, factor: jax.Array, test: NewExamples) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (Eq. 29, 30) of the predictor given U = F Fᵀ.

        Parameters
        ----------
        factor : array, shape (n·C, r)
        test : array, shape (P_test, n, N_0), or pair of arrays
            Attentioned inputs of new examples, unscaled; for a problem of given kernels those of
            new and training examples (n, n, P_test, P), and of new ones (n, n, P_test).

        Returns
        -------
        mean, variance : array, shape (P_test, C)
        """
        factor, _ = at_most_square(self.deviation * factor)
        posterior = self.problem.form.posterior(factor, self.temperature)
        arrays = map(jnp.asarray, test if isinstance(test, tuple) else (test,))
        return self.problem.posterior_moments(posterior, factor, *arrays)


def at_most_square(factor: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Factor G with at most as many columns as rows, and Q with F = G Qᵀ (None for Q = 1)."""
    if factor.shape[1] <= factor.shape[0]:
        return factor, None
    # of the weights F has a column per hidden unit, and mixing would cost as many times the
    # features; F Fᵀ = G Gᵀ for any orthonormal Q
    rotation, upper = jnp.linalg.qr(factor.T)
    return upper.T, rotation
