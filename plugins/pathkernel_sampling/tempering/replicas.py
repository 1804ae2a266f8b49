"""Replicas of a posterior at several levels between a mixture and the posterior itself.

At level λ a replica has the density g (p/q)^λ, of the posterior p, the mixture g, and its average q
over exchanges that leave p as it is. In every sweep the replica at λ = 0 is an independent draw
from g, the others take a trajectory of Hamiltonian Monte Carlo, and neighbours swap: pairs that
begin at an even and at an odd level in turns (Okabe et al. 2001; Syed et al. 2022). So each mode
that g holds is visited again and again.

The density is that of p^λ q^{1−λ}, which an exchange leaves as it is, times the probability g/(Cq)
that x is, of its C copies, the one that g describes. Before its trajectory a replica becomes a copy
of itself that is chosen by these probabilities (Gibbs). So what is near a mode of g stays there,
and the steps fit, but no wall keeps a replica from the copies of other modes.

At λ = 1, too, the density is g p/q: means of what exchanges leave as it is are those of the
posterior, and a copy that is drawn uniformly is a draw from it.

One compiled loop serves any number of levels and sweeps: both are data.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_sampling.tempering.mixture import Mixture

MOST_LEVELS = 24
"""Number of levels that arrays have room for."""

BLOCK = 64
"""Sweeps of one call of the compiled loop."""

_LEAPFROGS = 8
_JITTER = 0.3  # of a step, so that no trajectory returns to its start
_RARELY_INSIDE = 10_000  # draws from a mixture for each that is in the domain
_IMPOSSIBLE = -1e10  # log of p/q where the posterior has no density
_DIVERGED = -1000.0  # nats of a trajectory's energy error


class Target(Protocol):
    """Normalised posterior on a domain; a registered pytree.

    The copies of x are its images P x under a group of exchanges, which leave the domain as it is,
    and the posterior: p(Px) J(x) = p(x), with the volume J, the absolute Jacobian determinant of P.
    """

    @property
    def dimension(self) -> int:
        """Number of coordinates."""

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (d,)."""

    def copies(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the copies (C, d) of x, itself first, and the logs (C,) of their volumes."""

    def contains(self, x: jax.Array) -> jax.Array:
        """Whether x (d,) is in the domain."""


class Ladder(NamedTuple):
    """Levels, and what the moves of replicas take.

    Attributes
    ----------
    mixture : Mixture
    levels : array, shape (MOST_LEVELS,)
        λ in ascending order from 0 to 1, then 1.
    steps : array, shape (MOST_LEVELS,)
        Step sizes of the integrator.
    count : array, shape ()
        Number of levels.
    inverse_mass : array, shape (d, d)
    momentum_root : array, shape (d, d)
        Lower Cholesky factor of the mass matrix.
    """

    mixture: Mixture
    levels: np.ndarray
    steps: np.ndarray
    count: np.ndarray
    inverse_mass: np.ndarray
    momentum_root: np.ndarray


class Replicas(NamedTuple):
    """State of the replicas at all K levels.

    Attributes
    ----------
    positions : array, shape (K, d)
    log_mixture, log_ratio, log_density : arrays, shape (K,)
        Of ln g, ln p − ln q and ln p.
    mixture_gradient, ratio_gradient : arrays, shape (K, d)
        Of ln g and ln p − ln q.
    parity : array, shape ()
        0 or 1, the level at which pairs of neighbours begin to swap.
    """

    positions: jax.Array
    log_mixture: jax.Array
    log_ratio: jax.Array
    log_density: jax.Array
    mixture_gradient: jax.Array
    ratio_gradient: jax.Array
    parity: jax.Array


def place_replicas(target: Target, mixture: Mixture, positions: np.ndarray) -> Replicas:
    """Evaluate replicas at positions (MOST_LEVELS, d)."""
    return _place(target, mixture, jnp.asarray(positions))


def draw_inside(
    target: Target, mixture: Mixture, generator: np.random.Generator, count: int
) -> np.ndarray:
    """Draw positions (count, d) from the part of the mixture that is in the domain.

    Raises
    ------
    ValueError
        If hardly any of the mixture is.
    """
    kept, missing, tried = [], count, 0
    while missing > 0:
        if tried > _RARELY_INSIDE * (count - missing + 1):
            raise ValueError(
                f"only {count - missing} of {tried} draws from the fitted mixture are in the "
                "domain of heads in order, which has too many heads or rows for it: take fewer "
                "heads or a lower rank, or single chains by method nuts"
            )
        tried += BLOCK
        # blocks of one shape: code is compiled once
        positions = mixture.draw(generator, BLOCK)
        inside = positions[np.asarray(_inside(target, positions))][:missing]
        kept.append(inside)
        missing -= len(inside)
    return np.concatenate(kept)


def share_inside(target: Target, mixture: Mixture, generator: np.random.Generator) -> float:
    """Share of the mixture that is in the domain, to about one per cent."""
    blocks = [mixture.draw(generator, BLOCK) for _ in range(20_000 // BLOCK)]
    return float(np.mean([np.asarray(_inside(target, block)) for block in blocks]))


def sweep(
    target: Target,
    ladder: Ladder,
    replicas: Replicas,
    key: jax.Array,
    generator: np.random.Generator,
    count: int,
) -> tuple[Replicas, dict[str, np.ndarray]]:
    """Make some sweeps.

    Parameters
    ----------
    target : Target
    ladder : Ladder
    replicas : Replicas
    key : jax.random key
    generator : numpy Generator
        Of the draws from the mixture.
    count : int
        Number of sweeps, at least 1.

    Returns
    -------
    replicas : Replicas
    rows : dict of arrays with leading dimension sweep
        ``position`` (sweep, d) at λ = 1 and its ``lp``, ``log_ratio`` (sweep, MOST_LEVELS) of all
        levels, ``accepted`` (sweep, MOST_LEVELS), the acceptance probabilities of trajectories, and
        ``diverging``, whether that at λ = 1 diverged.
    """
    blocks = []
    for first in range(0, count, BLOCK):
        size = min(BLOCK, count - first)
        fresh = draw_inside(target, ladder.mixture, generator, BLOCK)
        replicas, rows = _advance(target, ladder, replicas, key, first, fresh, size)
        blocks.append({name: np.asarray(values)[:size] for name, values in rows.items()})
    return replicas, {name: np.concatenate([rows[name] for rows in blocks]) for name in blocks[0]}


@jax.jit
def _inside(target: Any, positions: jax.Array) -> jax.Array:
    return jax.vmap(target.contains)(positions)


@jax.jit
def _place(target: Any, mixture: Mixture, positions: jax.Array) -> Replicas:
    terms = jax.lax.map(lambda x: _terms(target, mixture, x), positions)
    return Replicas(positions, *terms, jnp.asarray(0))


def _terms(target: Any, mixture: Mixture, x: jax.Array) -> tuple[jax.Array, ...]:
    """Values ln g, ln p − ln q and ln p, and the gradients of the first two."""
    (copies, log_volumes), pull_back = jax.vjp(target.copies, x)
    log_densities, gradients = mixture.log_density(copies)
    logs = log_densities + log_volumes
    log_average = jax.scipy.special.logsumexp(logs) - math.log(len(logs))
    shares = jax.nn.softmax(logs)
    (average_gradient,) = pull_back((shares[:, None] * gradients, shares))
    log_density, gradient = jax.value_and_grad(target.log_density)(x)
    log_ratio = log_density - log_average
    exists = jnp.isfinite(log_ratio)
    log_ratio = jnp.where(exists, log_ratio, _IMPOSSIBLE)
    ratio_gradient = jnp.where(exists, gradient - average_gradient, 0.0)
    return log_densities[0], log_ratio, log_density, gradients[0], ratio_gradient


def _choose_copy(
    target: Any, mixture: Mixture, key: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw the copy of x that the mixture describes (Gibbs), and say whether it is another."""
    copies, logs = weigh_copies(target, mixture, x)
    chosen = jax.random.categorical(key, logs) if len(copies) > 1 else jnp.asarray(0)
    return copies[chosen], chosen > 0


def weigh_copies(target: Any, mixture: Mixture, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the copies (C, d) of x, and ln g there plus the logs of their volumes (C,)."""
    copies, log_volumes = target.copies(x)
    return copies, mixture.log_density(copies)[0] + log_volumes


@jax.jit
def _advance(
    target: Any,
    ladder: Ladder,
    replicas: Replicas,
    key: jax.Array,
    first: int,
    fresh: jax.Array,
    count: int,
) -> tuple[Replicas, dict[str, jax.Array]]:
    """Up to a block of sweeps; rows beyond them are zero."""
    mixture, inverse_mass = ladder.mixture, ladder.inverse_mass

    def move(index: jax.Array, key: jax.Array, fresh: jax.Array, replicas: Replicas) -> tuple:
        """Replica at a level after a trajectory, or at λ = 0 after a fresh draw."""
        momentum_key, jitter_key, accept_key, copy_key = jax.random.split(key, 4)
        is_fresh = index == 0
        x, *terms = (array[index] for array in replicas[:-1])
        copy, is_other = _choose_copy(target, mixture, copy_key, x)
        x, is_new = jnp.where(is_fresh, fresh, copy), is_fresh | is_other
        level = ladder.levels[index]
        jitter = jax.random.uniform(jitter_key, (), minval=1 - _JITTER, maxval=1 + _JITTER)
        momentum = ladder.momentum_root @ jax.random.normal(momentum_key, x.shape)

        def energy(state: tuple) -> jax.Array:
            _, p, log_mixture, log_ratio, *_ = state
            return log_mixture + level * log_ratio - 0.5 * p @ inverse_mass @ p

        def leap(number: jax.Array, carry: tuple) -> tuple:
            (x, p, *_, of_mixture, of_ratio), start = carry
            # a step of size 0 evaluates a new position, so that the density stands once in the code
            is_start = number == 0
            step = jnp.where(is_start, 0.0, jitter * ladder.steps[index])
            p = p + 0.5 * step * (of_mixture + level * of_ratio)
            x = x + step * (inverse_mass @ p)
            *values, of_mixture, of_ratio = _terms(target, mixture, x)
            p = p + 0.5 * step * (of_mixture + level * of_ratio)
            state = x, p, *values, of_mixture, of_ratio
            return state, tuple(jnp.where(is_start, new, old) for new, old in zip(state, start))

        state = x, momentum, *terms
        first, last = jnp.where(is_new, 0, 1), jnp.where(is_fresh, 1, 1 + _LEAPFROGS)
        after, start = jax.lax.fori_loop(first, last, leap, (state, state))
        change = energy(after) - energy(start)
        change = jnp.where(jnp.isfinite(change) & target.contains(after[0]), change, -jnp.inf)
        accepted = is_fresh | (jnp.log(jax.random.uniform(accept_key)) < change)
        x, _, *terms = (jnp.where(accepted, new, old) for new, old in zip(after, start))
        return (x, *terms), jnp.where(is_fresh, 1.0, jnp.minimum(1.0, jnp.exp(change))), change

    def swap(key: jax.Array, replicas: Replicas) -> Replicas:
        index = jnp.arange(MOST_LEVELS)
        partner = jnp.where(index % 2 == replicas.parity, index + 1, index - 1)
        partner = jnp.where((partner < 0) | (partner >= ladder.count), index, partner)
        partner = jnp.where(index < ladder.count, partner, index)
        levels, ratios = ladder.levels, replicas.log_ratio
        log_rate = (levels - levels[partner]) * (ratios[partner] - ratios)
        uniform = jax.random.uniform(key, (MOST_LEVELS,))[jnp.minimum(index, partner)]
        source = jnp.where(jnp.log(uniform) < log_rate, partner, index)
        swapped = [array[source] for array in replicas[:-1]]
        return Replicas(*swapped, 1 - replicas.parity)

    def body(number: jax.Array, carry: tuple) -> tuple:
        replicas, rows = carry
        move_key, swap_key = jax.random.split(jax.random.fold_in(key, first + number))

        def at_level(index: jax.Array, carry: tuple) -> tuple:
            replicas, rates, _ = carry
            level_key = jax.random.fold_in(move_key, index)
            after, rate, change = move(index, level_key, fresh[number], replicas)
            arrays = [array.at[index].set(new) for array, new in zip(replicas[:-1], after)]
            return Replicas(*arrays, replicas.parity), rates.at[index].set(rate), change

        start = replicas, jnp.full(MOST_LEVELS, jnp.nan), jnp.zeros(())
        replicas, rates, change = jax.lax.fori_loop(0, ladder.count, at_level, start)
        replicas = swap(swap_key, replicas)
        last = ladder.count - 1
        used = jnp.arange(MOST_LEVELS) < ladder.count
        row = {
            "position": replicas.positions[last],
            "lp": replicas.log_density[last],
            "log_ratio": jnp.where(used, replicas.log_ratio, jnp.nan),
            "accepted": rates,
            "diverging": change < _DIVERGED,
        }
        return replicas, {name: rows[name].at[number].set(row[name]) for name in row}

    dimension = replicas.positions.shape[1]
    shapes = {
        "position": (dimension,),
        "lp": (),
        "log_ratio": (MOST_LEVELS,),
        "accepted": (MOST_LEVELS,),
        "diverging": (),
    }
    rows = {
        name: jnp.zeros((BLOCK, *shape), bool if name == "diverging" else float)
        for name, shape in shapes.items()
    }
    return jax.lax.fori_loop(0, count, body, (replicas, rows))
