"""Density of queries and keys to next order in 1/N, with its gradient.

The correction Δ of the log evidence is a function of the minimum x* and of the attentioned inputs
ξ, by loops. The envelope theorem says nothing of it: x* moves with ξ, by −H⁻¹ ∂²φ/∂x∂ξ with H the
Hessian of φ = S/2. With the adjoint λ = H⁻¹ ∂Δ/∂x one gradient of JAX takes that in:

    dΔ/dξ = ∂/∂ξ [Δ(x*, ξ) − λ·∂φ/∂x (x*, ξ)]        at constant λ
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.action.coordinates import (
    ChainCoordinates,
    Level,
    chain_factors,
    relative_factors,
)
from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import from_host, solve_triangular, to_host
from pathkernel_core.energy.rows import per_output
from pathkernel_core.learned.posterior import AttentionDensity, AttentionPosterior
from pathkernel_core.paths.network import Network
from pathkernel_sampling.corrections.chain_derivatives import derivatives, derivatives_along
from pathkernel_sampling.corrections.loops import (
    Chain,
    Expansion,
    expand,
    prior_loops,
    remainder_slope,
)
from pathkernel_sampling.corrections.next_order import check_curved, check_expandable


def next_order_density(
    posterior: AttentionPosterior, position: np.ndarray, start: Solution | None = None
) -> AttentionDensity:
    """Log density of labels and parameters of attention to next order in 1/N, and its gradient.

    The first call for a network and a number of examples compiles, which takes some ten seconds.
    The time goes into p² products of P·C × P·C matrices, with p = nC(nC + 1)/2 entries of U, and
    as many of the gradient; p such matrices are in memory.

    Parameters
    ----------
    posterior : AttentionPosterior
    position, start
        As for :meth:`AttentionPosterior.evaluate`.

    Raises
    ------
    ValueError, PrecisionError, MinimisationError, NotPositiveDefiniteError
        As :meth:`AttentionPosterior.evaluate` and :func:`next_order` do.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> inputs, labels = rng.normal(size=(20, 6, 5)), np.sign(rng.normal(size=20))
    >>> heads = pk.KeyVectors(np.zeros((2, 5)))
    >>> posterior = pk.AttentionPosterior(inputs, labels, [heads], pk.Network((2,), 20), 0.1)
    >>> x = posterior.initial(rng)
    >>> leading, following = posterior.evaluate(x), pk.next_order_density(posterior, x)
    >>> abs(following.log_evidence - leading.log_evidence) < 1
    True
    """
    leading = posterior.evaluate(position, start)
    layers = posterior.layers_at(position)
    xi = posterior.attend(layers)
    correction, of_xi = _correction(leading.solution, to_host(xi), to_host(posterior.labels))
    change = posterior.pull_back(layers, from_host(of_xi, xi))
    return dataclasses.replace(
        leading,
        log_density=leading.log_density + correction,
        gradient=leading.gradient + change,
        log_evidence=leading.log_evidence + correction,
    )


def _correction(solution: Solution, xi: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Correction of the log evidence, and its gradient with respect to ξ (P, n, N_0)."""
    check_expandable(solution)
    network = solution.network
    coordinates = ChainCoordinates(network)
    value, gradient, hessian = correction_and_gradient(
        coordinates.levels,
        network.outputs,
        jnp.asarray(coordinates.from_factors(solution.factors)),
        jnp.asarray(xi.astype(float)),
        constants_of(network, solution.temperature, labels, xi.shape),
    )
    check_curved(np.asarray(hessian), solution)
    return float(value) - sum(prior_loops(network)), np.asarray(gradient)


def constants_of(
    network: Network, temperature: float, labels: np.ndarray, shape: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Arrays that the loops depend on, besides x and ξ of this shape (P, n, N_0)."""
    path_scales = math.sqrt(network.kernel_variance) * network.path_scales
    return (
        jnp.asarray(ChainCoordinates(network).scales),
        jnp.asarray(network.widths),
        jnp.asarray(path_scales / math.sqrt(shape[1] * shape[2])),
        jnp.asarray(np.asarray(labels, dtype=float).reshape(-1)),
        jnp.asarray(float(temperature)),
    )


@partial(jax.jit, static_argnums=(0, 1))
def expansion_at(
    levels: tuple[Level, ...],
    outputs: int,
    x: jax.Array,
    xi: jax.Array,
    constants: tuple[jax.Array, ...],
) -> tuple[Expansion, Chain, jax.Array, jax.Array]:
    """Expansion around a minimum x, the chain's derivatives, the Hessian of φ and U (n·C, n·C)."""
    u, energy = _energy_at(levels, outputs, x, xi, constants)
    scales, widths, *_ = constants
    of_chain = levels, scales, widths, x, energy.first
    chain = Chain(*derivatives(*of_chain))
    along = partial(derivatives_along, *of_chain)
    expansion = expand(chain, energy, x, remainder_slope(levels), along)
    return expansion, chain, chain.hessian(energy.second), u


@partial(jax.jit, static_argnums=(0, 1))
def correction_and_gradient(
    levels: tuple[Level, ...],
    outputs: int,
    x: jax.Array,
    xi: jax.Array,
    constants: tuple[jax.Array, ...],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One and two loops without those of the prior, their gradient in ξ, and the Hessian of φ."""

    def loops(x: jax.Array, xi: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        expansion, chain, hessian, _ = expansion_at(levels, outputs, x, xi, constants)
        return expansion.one_loop + expansion.two_loops, (hessian, chain.jacobian)

    of_both = jax.value_and_grad(loops, argnums=(0, 1), has_aux=True)
    (value, (hessian, jacobian)), (of_x, of_xi) = of_both(x, xi)
    # the change of U by the adjoint: ∂φ/∂x depends on ξ through half the energy's slope in U alone
    change = jacobian @ jnp.linalg.solve(hessian, of_x)
    of_slope = jax.grad(lambda xi: change @ _energy_at(levels, outputs, x, xi, constants)[1].first)
    return value, of_xi - of_slope(xi) / 2, hessian


def _energy_at(
    levels: tuple[Level, ...],
    outputs: int,
    x: jax.Array,
    xi: jax.Array,
    constants: tuple[jax.Array, ...],
) -> tuple[jax.Array, _Energy]:
    scales, _, path_scales, labels, temperature = constants
    factor, *_ = chain_factors(relative_factors(x, levels, scales), levels, scales)
    u = factor @ factor.T
    return u, _Energy(u, path_scales[:, None] * per_output(xi, outputs), labels, temperature)


class _Energy:
    """``EnergyDerivatives`` of the models, as JAX differentiates them.

    The energy is that of an order parameter u (n·C, n·C), scaled features (R, n·C, N_0) and labels
    (R,).
    """

    def __init__(self, u: jax.Array, rows: jax.Array, labels: jax.Array, temperature: jax.Array):
        count = len(rows)
        mixed = jnp.einsum("ab,pbi->pai", u, rows)
        noisy = mixed.reshape(count, -1) @ rows.reshape(count, -1).T
        lower = jnp.linalg.cholesky(noisy + temperature * jnp.eye(count))
        whitened = solve_triangular(lower, rows.reshape(count, -1), jnp).reshape(rows.shape)
        one, other = np.tril_indices(len(u))
        left, right = (whitened.transpose(1, 0, 2)[paths] for paths in (one, other))
        products = left @ right.transpose(0, 2, 1)
        twice = products + products.transpose(0, 2, 1)
        self._kernels = jnp.where((one == other)[:, None, None], products, twice)  # A, (p, R, R)
        self._labels = solve_triangular(lower, labels[:, None], jnp)[:, 0]  # w
        self._images = self._kernels @ self._labels  # A_a w

    @cached_property
    def first(self) -> jax.Array:
        """First derivatives, (p,)."""
        return jnp.trace(self._kernels, axis1=1, axis2=2) - self._images @ self._labels

    @cached_property
    def second(self) -> jax.Array:
        """Second derivatives, (p, p)."""
        stack = self._kernels.reshape(len(self._kernels), -1)
        return 2 * self._images @ self._images.T - stack @ stack.T

    def higher(self, basis: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Third derivatives (p, p, p) along directions, and Σ_rs of the fourth in r, r, s, s."""
        kernels = jnp.einsum("ar,aij->rij", basis, self._kernels)
        images = kernels @ self._labels
        twice = jnp.einsum("sij,rj->rsi", kernels, images)  # A_s A_r w
        sandwich = jnp.einsum("rsi,ti->rst", twice, images)  # wᵀ A_r A_s A_t w
        stack = kernels.reshape(len(kernels), -1)

        def of_pair(r: jax.Array) -> tuple[jax.Array, jax.Array]:
            products = kernels[r] @ kernels  # A_r A_s
            traces = products.reshape(len(kernels), -1) @ stack.T
            return traces, jnp.sum(products * products.transpose(0, 2, 1))

        traces, crossed = jax.lax.map(of_pair, jnp.arange(len(kernels)))
        third = 2 * (traces - sandwich - sandwich.transpose(1, 0, 2) - sandwich.transpose(0, 2, 1))
        square = jnp.einsum("rij,rjk->ik", kernels, kernels)  # Σ A_r²
        mapped = square @ self._labels
        quadratic = mapped @ mapped + jnp.einsum("ri,ij,rj->", images, square, images)
        quadratic += jnp.einsum("rsi,sri->", twice, twice)
        return third, 8 * quadratic - 4 * jnp.sum(square**2) - 2 * jnp.sum(crossed)
