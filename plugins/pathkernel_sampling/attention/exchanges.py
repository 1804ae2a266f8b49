"""Exchanges of heads, and of rows of queries and keys, that leave the posterior as it is.

Heads of a layer that are learned may change places. So may the G rows of queries and keys of a
head, and each may change its sign, in both at once. The posterior therefore has many copies of each
mode, as many as the group has elements: H! (2^G G!)^H in each layer. A sampler of modes needs one.

A mixture g fitted to one copy of each mode is averaged over C exchanges,
q(x) = Σ_P g(Px) π(x)/π(Px) / C, with the prior π, whose ratio is the volume that an exchange
changes: heads mix Bartlett's coordinates of U. Exchanges of heads are averaged over where they are
few, and those of rows, too, if all together are few. A domain has one copy of the others:

* heads of a layer have descending numbers t_h along a direction u: t = v·u of key vectors, W·u of
  products, and |Bu|² of the stacked queries and keys B = (Q/σ_Q, K/σ_K), shape (G, 2N_0);
* the rows of each B have descending numbers Bu, none of them negative.

A wall of the domain may cut through a mode, which an average does not. Directions along which heads
differ most keep modes off the walls; any direction is right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.action.coordinates import lower_trapezoid
from pathkernel_core.learned.posterior import AttentionPosterior
from pathkernel_sampling.attention.models import JointModel
from pathkernel_sampling.models.likelihood import pytree
from pathkernel_sampling.models.models import OrderParameterModel

MOST_COPIES = 24
"""Number of exchanges up to which a mixture is averaged over them.

Those of four heads, or of two heads of rank 1 with their signs: they take two to four times as long
as the density alone.
"""


class Exchanges(NamedTuple):
    """Exchanges over which a mixture is averaged; the first changes nothing.

    Attributes
    ----------
    orders : list of tuples
        Heads of each layer, numbered from 0, in their new order, for each different order.
    of_copy : array, shape (C,)
        Index in ``orders`` of each exchange.
    entries, signs : arrays, shape (C, n)
        The parameters of attention that an exchange takes, and their signs.
    averages_heads, averages_rows : bool
        Whether heads change places, and rows places and signs: the domain orders all others.
    """

    orders: list[tuple[tuple[int, ...], ...]]
    of_copy: np.ndarray
    entries: np.ndarray
    signs: np.ndarray
    averages_heads: bool
    averages_rows: bool


@pytree(("model", "directions"))
class ExchangeTarget:
    """Posterior of order parameters and attention, and the exchanges that leave it as it is.

    Parameters
    ----------
    model : JointModel
        Of order parameters.
    directions : sequence of arrays
        Direction u of each layer that is learned.
    """

    def __init__(self, model: JointModel, directions: Sequence[np.ndarray]):
        self.model, self.directions = model, [jnp.asarray(u) for u in directions]

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return self.model.dimension

    @property
    def exchanges(self) -> Exchanges:
        """Exchanges over which a mixture is averaged."""
        posterior = self.model.posterior
        layers = [
            (number, tuple(map(tuple, heads.reshape(len(heads), -1))), heads.shape[1:-1])
            for number, heads in _learned_layers(posterior)
        ]
        return _exchanges(
            tuple(layers), tuple(layer.n_heads for layer in posterior.layers), posterior.dimension
        )

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,)."""
        return self.model.log_density(x)

    def copies(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the copies (C, dimension) of x, itself first, and the logs (C,) of their volumes.

        A volume is that of the image of a small region around x, over that of the region.
        """
        beside, exchanges = self.model.beside, self.exchanges
        weights, attention = x[: beside.dimension], self.model.attention(x)
        exchanged = [
            weights if number == 0 else exchange_heads(beside, weights, order)
            for number, order in enumerate(exchanges.orders)
        ]
        log_priors = jnp.stack([beside.log_prior(y) for y in exchanged])
        of_attention = exchanges.signs * attention[exchanges.entries]
        of_weights = jnp.stack(exchanged)[exchanges.of_copy]
        log_volumes = (log_priors[0] - log_priors)[exchanges.of_copy]
        return jnp.concatenate([of_weights, of_attention], axis=1), log_volumes

    def contains(self, x: jax.Array) -> jax.Array:
        """Whether x (dimension,) is in the domain: all, if a mixture is averaged over all."""
        exchanges = self.exchanges
        attention, inside = self.model.attention(x), jnp.asarray(True)
        for (_, heads), u in zip(_learned_layers(self.model.posterior), self.directions):
            along = attention[heads] @ u
            if along.ndim == 2:  # rows of queries and keys
                in_order = (along[:, -1] >= 0).all() & (along[:, 1:] <= along[:, :-1]).all()
                inside &= exchanges.averages_rows | in_order
                along = jnp.sum(along**2, axis=1)
            inside &= exchanges.averages_heads | (along[1:] <= along[:-1]).all()
        return inside

    @property
    def log_copies(self) -> float:
        """Log of the number of domains, each with the same integral."""
        exchanges = self.exchanges
        shapes = [heads.shape[:-1] for _, heads in _learned_layers(self.model.posterior)]
        of_heads = sum(math.lgamma(shape[0] + 1) for shape in shapes)
        of_rows = sum(
            shape[0] * (shape[1] * math.log(2) + math.lgamma(shape[1] + 1))
            for shape in shapes
            if len(shape) == 2
        )
        walls = (not exchanges.averages_heads) * of_heads + (not exchanges.averages_rows) * of_rows
        return float(walls)

    def reduce(self, x: np.ndarray) -> np.ndarray:
        """Copy of x (dimension,) with heads and rows in order along the directions."""
        model = self.model
        posterior, beside = model.posterior, model.dimension - model.posterior.dimension
        attention = np.array(x[beside:])
        orders = [np.arange(layer.n_heads) for layer in posterior.layers]
        for (number, heads), u in zip(_learned_layers(posterior), self.directions):
            entries = attention[heads]
            along = entries @ np.asarray(u)
            if along.ndim == 2:
                entries = np.where(along < 0, -1.0, 1.0)[..., None] * entries
                rows = np.argsort(-np.abs(along), axis=1)
                entries = np.take_along_axis(entries, rows[..., None], axis=1)
                along = np.sum(along**2, axis=1)
            orders[number] = np.argsort(-along)
            attention[heads] = entries[orders[number]]
        weights = np.asarray(_exchange_heads(model.beside, x[:beside], orders))
        return np.concatenate([weights, attention])


def find_directions(posterior: AttentionPosterior, draws: np.ndarray) -> list[np.ndarray]:
    """Find the direction along which heads differ most, for each layer that is learned.

    Parameters
    ----------
    posterior : AttentionPosterior
    draws : array, shape (n, dimension)
        Parameters of attention.
    """
    directions = []
    for _, heads in _learned_layers(posterior):
        entries = draws[:, heads].reshape(-1, heads.shape[-1])
        if heads.ndim == 2:  # rows of queries and keys have any sign: their mean is zero
            entries = entries - entries.mean(0)
        # the leading right singular vector, from the smaller of the two Gram matrices
        directions.append(np.linalg.eigh(entries.T @ entries)[1][:, -1])
    return directions


@lru_cache(maxsize=64)
def _exchanges(
    layers: tuple[tuple[int, tuple[tuple[int, ...], ...], tuple[int, ...]], ...],
    heads: tuple[int, ...],
    dimension: int,
) -> Exchanges:
    """List the exchanges over which a mixture is averaged.

    Parameters
    ----------
    layers : tuple
        Of each layer that is learned its number, the entries of each head among the parameters of
        attention, and the shape (G,) of its rows, () without any.
    heads : tuple of int
        Heads of all layers.
    dimension : int
        Parameters of attention.
    """
    of_heads = [list(itertools.permutations(range(len(entries)))) for _, entries, _ in layers]
    of_rows = [
        [
            (rows, signs)
            for rows in itertools.permutations(range(shape[0]))
            for signs in itertools.product((1.0, -1.0), repeat=shape[0])
        ]
        for _, entries, shape in layers
        if shape
        for _ in entries
    ]
    head_count, row_count = (math.prod(map(len, choices)) for choices in (of_heads, of_rows))
    averages_heads = head_count <= MOST_COPIES
    averages_rows = averages_heads and head_count * row_count <= MOST_COPIES
    orders, of_copy, taken, all_signs = [], [], [], []
    for number, order in enumerate(itertools.product(*(of_heads if averages_heads else []))):
        of_layers = [tuple(range(count)) for count in heads]
        for (layer, _, _), of_layer in zip(layers, order):
            of_layers[layer] = of_layer
        orders.append(tuple(of_layers))
        for rows in itertools.product(*(of_rows if averages_rows else [])):
            entries, signs, turns = np.arange(dimension), np.ones(dimension), iter(rows)
            for layer, of_layer, shape in layers:
                arrays = np.array(of_layer)
                moved, turned = arrays[list(of_layers[layer])], np.ones(arrays.shape)
                if shape and averages_rows:
                    for head in range(len(arrays)):
                        places, flips = next(turns)
                        blocks = moved[head].reshape(shape[0], -1)
                        moved[head] = blocks[list(places)].reshape(-1)
                        turned[head] = np.repeat(flips, blocks.shape[1])
                entries[arrays], signs[arrays] = moved, turned
            of_copy.append(number)
            taken.append(entries)
            all_signs.append(signs)
    return Exchanges(
        orders,
        np.array(of_copy),
        np.array(taken),
        np.array(all_signs),
        averages_heads,
        averages_rows,
    )


def exchange_heads(
    model: OrderParameterModel, x: jax.Array, orders: Sequence[Sequence[int] | np.ndarray]
) -> jax.Array:
    """Coordinates of U with the heads of each layer in another order.

    With F_ℓ = σ_ℓ (1 ⊗ F_{ℓ+1}) A_ℓ / √N_ℓ, blocks of rows of A_ℓ change places, and the rotation
    that makes the result lower trapezoidal again is undone in the blocks of A_{ℓ−1}.

    Parameters
    ----------
    model : OrderParameterModel
    x : array, shape (dimension,)
    orders : sequence of sequences
        Heads of each layer, numbered from 0, in their new order.
    """
    entries = model.bartlett_entries(x)
    # the readout, which has no heads, is the last level
    exchanged, rotation = [entries[model.levels[-1].part]], None
    for level, order, repeat in zip(model.levels[-2::-1], reversed(orders), model.repeats[-2::-1]):
        matrix = lower_trapezoid(entries[level.part], level, repeat)
        blocks = matrix.reshape(level.steps, -1, level.columns)
        if rotation is not None:
            blocks = rotation @ blocks
        skip = bool(level.shared)
        blocks = jnp.concatenate([blocks[:skip], blocks[skip:][jnp.asarray(order)]])
        matrix, shared = blocks.reshape(matrix.shape), level.shared
        turn = jnp.eye(level.columns)
        if shared and rotation is not None:
            turn = turn.at[:shared, :shared].set(rotation)
        turn = turn.at[shared:, shared:].set(_triangular_turn(matrix[shared:, shared:]))
        exchanged.append((matrix @ turn.T)[level.free])
        rotation = turn
    in_order, on_diagonal = jnp.concatenate(exchanged), model.degrees > 0
    # ones elsewhere, so that no derivative is NaN
    degrees, rates, diagonal = (
        jnp.where(on_diagonal, array, 1.0) for array in (model.degrees, model.rates, in_order)
    )
    return jnp.where(on_diagonal, jnp.log(diagonal / jnp.sqrt(degrees)) / rates, in_order)


_exchange_heads = jax.jit(exchange_heads)


def _triangular_turn(matrix: jax.Array) -> jax.Array:
    """Rotation R with M Rᵀ lower trapezoidal, its diagonal positive."""
    q, upper = jnp.linalg.qr(matrix.T)
    return (q * jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)).T


def _learned_layers(posterior: AttentionPosterior) -> Iterator[tuple[int, np.ndarray]]:
    """Number from 0 and entries of attention of each layer that is learned.

    Entries have the shape (H, entries), or (H, G, 2N_0) of queries and keys.
    """
    entries = np.arange(posterior.dimension)
    arrays: dict[int, list[np.ndarray]] = {}
    for number, _, part, shape, _ in posterior.parts:
        arrays.setdefault(number, []).append(entries[part].reshape(shape))
    for number, of_layer in arrays.items():
        if len(of_layer) == 2:
            yield number, np.concatenate(of_layer, axis=2)
        else:
            yield number, of_layer[0].reshape(len(of_layer[0]), -1)
