"""Energy of examples that change: its gradient in the order parameter's factor and in the inputs.

Where attention is drawn, the features Φ (P, n, N_0) change with every step. Of the energy

    E = ln det(K + T1) + Yᵀ (K + T1)⁻¹ Y,        K = Φ (F Fᵀ ⊗ 1) Φᵀ

both gradients follow from one factorisation and one inverse, in feature space

    B = T1 + (F ⊗ 1)ᵀ G (F ⊗ 1),   w = B⁻¹ (F ⊗ 1)ᵀ ΦᵀY,   ∂E/∂B = B⁻¹ + w wᵀ/T

with G = ΦᵀΦ, in example space ∂E/∂K = (K + T1)⁻¹ − α αᵀ, α = (K + T1)⁻¹ Y. JAX would
differentiate the factorisation, by further triangular solves of its size.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pathkernel_core.arrays.backend import add_to_diagonal, log_determinant
from pathkernel_sampling.models.likelihood import at_most_square

Evaluation = tuple[jax.Array, tuple[jax.Array, jax.Array]]


@jax.custom_vjp
def energy_of_inputs(
    factor: jax.Array, features: jax.Array, labels: jax.Array, temperature: jax.Array
) -> jax.Array:
    """Energy ln det(K + T1) + Yᵀ(K + T1)⁻¹Y (Eq. 34), differentiable in factor and features.

    Parameters
    ----------
    factor : array, shape (n·C, r)
        F of the order parameter U = F Fᵀ, multiplied by all scales.
    features : array, shape (P, n, N_0)
        Attentioned inputs ξ / √(n N_0).
    labels : array, shape (P, C)
    temperature : array, shape ()
    """
    return _evaluate(factor, features, labels, temperature)[0]


def _forward(
    factor: jax.Array, features: jax.Array, labels: jax.Array, temperature: jax.Array
) -> Evaluation:
    return _evaluate(factor, features, labels, temperature)


def _backward(
    gradients: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    of_factor, of_features = gradients
    return cotangent * of_factor, cotangent * of_features, None, None  # the rest is given


energy_of_inputs.defvjp(_forward, _backward)


# one after another under vmap: on a CPU a batched factorisation takes two to three times as long
@jax.custom_batching.sequential_vmap
def _evaluate(
    factor: jax.Array, features: jax.Array, labels: jax.Array, temperature: jax.Array
) -> Evaluation:
    """Energy, and its gradients in factor (n·C, r) and features (P, n, N_0)."""
    _examples, paths, width = features.shape
    reduced, rotation = at_most_square(factor)
    by_path = reduced.reshape(paths, labels.shape[1], -1)
    in_examples = labels.size <= by_path.shape[2] * width
    evaluate = _in_example_space if in_examples else _in_feature_space
    value, of_factor, of_features = evaluate(by_path, features, labels, temperature)
    of_factor = of_factor.reshape(reduced.shape)
    if rotation is not None:
        of_factor = of_factor @ rotation.T
    return value, (of_factor, of_features)


def _in_feature_space(
    factor: jax.Array, features: jax.Array, labels: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Energy and gradients of a factor (n, C, r) by a matrix of r·N_0 rows."""
    (paths, outputs, rank), width = factor.shape, features.shape[2]
    flat = features.reshape(len(features), -1)
    gram = (flat.T @ flat).reshape(paths, width, paths, width)
    projections = (flat.T @ labels).reshape(paths, width, outputs)
    half = jnp.einsum("piqj,qck->pcikj", gram, factor)  # G (F ⊗ 1)
    matrix = jnp.einsum("pck,pcilj->kilj", factor, half).reshape(2 * (rank * width,))
    lower = _cholesky(add_to_diagonal(matrix, temperature, jnp))
    inverse_root = _solve(lower, jnp.eye(len(lower)))
    target = inverse_root @ jnp.einsum("pck,pic->ki", factor, projections).reshape(-1)
    weights = inverse_root.T @ target
    excess = labels.size - len(lower)
    value = excess * jnp.log(temperature) + log_determinant(lower, jnp)
    value = value + (jnp.sum(labels**2) - target @ target) / temperature

    slope = inverse_root.T @ inverse_root + jnp.outer(weights, weights) / temperature  # ∂E/∂B
    slope = slope.reshape(rank, width, rank, width)
    weights = weights.reshape(rank, width)
    of_factor = jnp.einsum("pcilj,kilj->pck", half, slope)
    of_factor -= jnp.einsum("pic,ki->pck", projections, weights) / temperature
    half_slope = jnp.einsum("pck,kilj->pcilj", factor, slope)
    of_gram = jnp.einsum("pcilj,qcl->piqj", half_slope, factor).reshape(gram.shape)
    of_projections = jnp.einsum("pck,ki->cpi", factor, weights).reshape(outputs, -1)
    of_features = flat @ of_gram.reshape(2 * (paths * width,))
    of_features -= labels @ of_projections / temperature
    return value, 2 * of_factor, 2 * of_features.reshape(features.shape)


def _in_example_space(
    factor: jax.Array, features: jax.Array, labels: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Energy and gradients of a factor (n, C, r) by a matrix of P·C rows."""
    count = labels.size
    mixed = jnp.einsum("xpi,pck->xcki", features, factor)
    flat, targets = mixed.reshape(count, -1), labels.reshape(-1)
    lower = _cholesky(add_to_diagonal(flat @ flat.T, temperature, jnp))
    inverse_root = _solve(lower, jnp.eye(count))
    target = inverse_root @ targets
    weights = inverse_root.T @ target
    value = log_determinant(lower, jnp) + target @ target
    slope = inverse_root.T @ inverse_root - jnp.outer(weights, weights)  # ∂E/∂K
    of_mixed = (slope @ flat).reshape(mixed.shape)
    of_factor = jnp.einsum("xpi,xcki->pck", features, of_mixed)
    of_features = jnp.einsum("pck,xcki->xpi", factor, of_mixed)
    return value, 2 * of_factor, 2 * of_features


def _cholesky(matrix: jax.Array) -> jax.Array:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


def _solve(lower: jax.Array, right: jax.Array) -> jax.Array:
    return jax.lax.linalg.triangular_solve(lower, right, left_side=True, lower=True)
