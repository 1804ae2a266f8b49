"""Exchanges of heads, and of rows of queries and keys, that leave the posterior as it is.

Heads of a layer that are learned may change places. So may the G rows of queries and keys of a
head, and each may change its sign, in both at once. The posterior therefore has many copies of each
mode. A sampler of modes draws from one of them: from the domain where

* heads of a layer have descending numbers t_h along a direction u: t = v·u of key vectors, W·u of
  products, and |Bu|² of the stacked queries and keys B = (Q/σ_Q, K/σ_K), shape (G, 2N_0);
* the rows of each B have descending numbers Bu, none of them negative.

The number of copies is the order of the group, H! (2^G G!)^H in each layer. Directions along which
heads differ most keep modes off the boundary; any direction is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.action.coordinates import lower_trapezoid
from pathkernel_core.learned.posterior import AttentionPosterior
from pathkernel_sampling.attention.models import JointModel
from pathkernel_sampling.models.likelihood import pytree
from pathkernel_sampling.models.models import OrderParameterModel


@pytree(("model", "directions"))
class DomainTarget:
    """Posterior of order parameters and attention, on one of the domains that exchanges map.

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

    def log_density(self, x: jax.Array) -> jax.Array:
        """Log of prior times likelihood at x (dimension,)."""
        return self.model.log_density(x)

    def contains(self, x: jax.Array) -> jax.Array:
        """Whether x (dimension,) is in the domain."""
        attention, inside = self.model.attention(x), jnp.asarray(True)
        for (_, heads), u in zip(_learned_layers(self.model.posterior), self.directions):
            along = attention[heads] @ u
            if along.ndim == 2:  # rows of queries and keys
                inside &= (along[:, -1] >= 0).all() & (along[:, 1:] <= along[:, :-1]).all()
                along = jnp.sum(along**2, axis=1)
            inside &= (along[1:] <= along[:-1]).all()
        return inside

    @property
    def log_copies(self) -> float:
        """Log of the number of domains, each with the same integral."""
        total = 0.0
        for _, heads in _learned_layers(self.model.posterior):
            count, rows = len(heads), heads.shape[1] if heads.ndim == 3 else 0
            total += math.lgamma(count + 1) + count * (rows * math.log(2) + math.lgamma(rows + 1))
        return total

    def reduce(self, x: np.ndarray) -> np.ndarray:
        """Copy of x (dimension,) in the domain: its heads and rows in order."""
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
        weights = exchange_heads(model.beside, x[:beside], orders)
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


def exchange_heads(
    model: OrderParameterModel, x: np.ndarray, orders: Sequence[np.ndarray]
) -> np.ndarray:
    """Coordinates of U with the heads of each layer in another order.

    With F_ℓ = σ_ℓ (1 ⊗ F_{ℓ+1}) A_ℓ / √N_ℓ, blocks of rows of A_ℓ change places, and the rotation
    that makes the result lower trapezoidal again is undone in the blocks of A_{ℓ−1}.

    Parameters
    ----------
    model : OrderParameterModel
    x : array, shape (dimension,)
    orders : sequence of arrays
        Heads of each layer, numbered from 0, in their new order.
    """
    degrees, rates = np.asarray(model.degrees), np.asarray(model.rates)
    on_diagonal = degrees > 0
    entries = np.where(on_diagonal, np.sqrt(degrees) * np.exp(rates * x), x)
    exchanged, rotation = np.array(entries), None
    # the readout, which has no heads, is the last level
    for level, order, repeat in zip(
        model.levels[-2::-1], reversed(orders), np.asarray(model.repeats)[-2::-1]
    ):
        matrix = np.array(lower_trapezoid(entries[level.part], level, repeat))
        blocks = matrix.reshape(level.steps, -1, level.columns)
        if rotation is not None:
            blocks = rotation @ blocks
        skip = bool(level.shared)
        blocks = np.concatenate([blocks[:skip], blocks[skip:][order]])
        matrix, shared = blocks.reshape(matrix.shape), level.shared
        turn = np.eye(level.columns)
        if shared and rotation is not None:
            turn[:shared, :shared] = rotation
        turn[shared:, shared:] = _triangular_turn(matrix[shared:, shared:])
        lower = matrix @ turn.T
        exchanged[level.part] = lower[level.free]
        rotation = turn
    result = exchanged.copy()
    k = degrees[on_diagonal]
    result[on_diagonal] = np.log(exchanged[on_diagonal] / np.sqrt(k)) / rates[on_diagonal]
    return result


def _triangular_turn(matrix: np.ndarray) -> np.ndarray:
    """Rotation R with M Rᵀ lower trapezoidal, its diagonal positive."""
    q, upper = np.linalg.qr(matrix.T)
    return (q * np.where(np.diagonal(upper) < 0, -1.0, 1.0)).T


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
