"""A step of gradient descent on episodes, and the accuracy of a network on them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pathkernel_one_shot.episodes import episode_coordinates
from pathkernel_one_shot.path_form import TokenSpace, network_output
from pathkernel_one_shot.tokens import Episodes
from pathkernel_trained.network import Weights

_AT_ONCE = 128  # episodes evaluated together


class TrainingState(NamedTuple):
    """What a step of gradient descent changes.

    Attributes
    ----------
    weights : mapping of str to array
        Weights of the network.
    optimiser : pytree of arrays
        State of the optimiser.
    """

    weights: Weights
    optimiser: Any


@functools.lru_cache  # so that equal settings find the step that is compiled already
def make_optimiser(learning_rate: float, weight_decay: float) -> optax.GradientTransformation:
    """Adam with L2 regularisation: the decay is added to the gradient, not to the update.

    Parameters
    ----------
    learning_rate : float
        Constant step size.
    weight_decay : float
        Its product with the weights is added to the gradient, before Adam normalises it.
    """
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate))


def single_precision(array: np.ndarray) -> jax.Array:
    """Array in float32, which training and its tests compute in."""
    return jnp.asarray(np.asarray(array, dtype=np.float32))


def initial_state(weights: Weights, optimiser: optax.GradientTransformation) -> TrainingState:
    """State before the first step."""
    weights = {name: jnp.asarray(array) for name, array in weights.items()}
    return TrainingState(weights, optimiser.init(weights))


@functools.partial(jax.jit, static_argnames="optimiser", donate_argnames="state")
def take_step(
    state: TrainingState,
    space: TokenSpace,
    table: jax.Array,
    images: jax.Array,
    first_labels: jax.Array,
    labels: jax.Array,
    *,
    optimiser: optax.GradientTransformation,
) -> tuple[TrainingState, jax.Array]:
    """One step down the mean squared error of a batch.

    Parameters
    ----------
    state : TrainingState
        Its arrays are reused and cannot be read afterwards.
    space : TokenSpace
    table : array, shape (n, 16, 64)
        Coordinates of the drawings.
    images, first_labels, labels : array, shape (P, 3), (P,) and (P,)
        The episodes, see :class:`pathkernel_one_shot.tokens.Episodes`.
    optimiser : optax.GradientTransformation
        From :func:`make_optimiser`.

    Returns
    -------
    (TrainingState, array)
        The next state, and the loss before the step.
    """

    def loss_of(weights: Weights) -> jax.Array:
        coordinates = episode_coordinates(table, images, first_labels)
        return jnp.mean((network_output(weights, space, coordinates) - labels) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state.weights)
    updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.weights)
    weights = optax.apply_updates(state.weights, updates)
    return TrainingState(weights, optimiser_state), loss


def evaluate(
    weights: Weights, space: TokenSpace, table: jax.Array, episodes: Episodes
) -> tuple[float, float]:
    """Accuracy and mean squared error of a network on episodes.

    Parameters
    ----------
    weights : mapping of str to array
    space : TokenSpace
    table : array, shape (n, 16, 64)
        Coordinates of the drawings.
    episodes : Episodes

    Returns
    -------
    accuracy : float
        Fraction of the episodes, 0 to 1, in which output and label have the same sign.
    loss : float
        Mean of (f − y)².
    """
    outputs = [
        _outputs(weights, space, table, episodes.images[part], episodes.first_labels[part])
        for part in _parts(len(episodes.labels))
    ]
    found = np.concatenate([np.asarray(part, dtype=np.float64) for part in outputs])
    accuracy = np.mean(np.sign(found) == episodes.labels)
    return float(accuracy), float(np.mean((found - episodes.labels) ** 2))


def _parts(count: int) -> list[slice]:
    return [slice(start, start + _AT_ONCE) for start in range(0, count, _AT_ONCE)]


@jax.jit
def _outputs(
    weights: Weights,
    space: TokenSpace,
    table: jax.Array,
    images: jax.Array,
    first_labels: jax.Array,
) -> jax.Array:
    return network_output(weights, space, episode_coordinates(table, images, first_labels))
