"""A step of gradient descent on episodes, and the accuracy of a network on them."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pathkernel_one_shot.episodes import episode_coordinates
from pathkernel_one_shot.path_form import (
    ExampleForms,
    TokenSpace,
    example_forms,
    forms_output,
    output_along_paths,
)
from pathkernel_one_shot.tokens import Episodes
from pathkernel_trained.network import Weights

_EVALUATED = 128  # episodes evaluated together
_IN_CACHE = 16  # episodes whose attention and its gradient fit into a core's cache


class TrainingState(NamedTuple):
    """Weights of the network, and the optimiser's state, a pytree of arrays."""

    weights: Weights
    optimiser: Any


@functools.lru_cache  # so that equal settings share the compiled step
def make_optimiser(learning_rate: float, weight_decay: float) -> optax.GradientTransformation:
    """Adam with L2 regularisation: the decay is added to the gradient, not to the update."""
    # not AdamW: decay of the update is no term of a loss, while the theory's prior is one
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate))


def single_precision(array: np.ndarray) -> jax.Array:
    """Convert an array to float32, the precision of training and its tests."""
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
    """Take one step down the mean squared error of a batch.

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
    coordinates = episode_coordinates(table, images, first_labels)
    loss, gradient = loss_and_gradient(state.weights, space, coordinates, labels)
    updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.weights)
    weights = optax.apply_updates(state.weights, updates)
    return TrainingState(weights, optimiser_state), loss


def loss_and_gradient(
    weights: Weights, space: TokenSpace, coordinates: jax.Array, labels: jax.Array
) -> tuple[jax.Array, Weights]:
    """Mean squared error of a batch, and its gradient with respect to the weights.

    ``coordinates`` are those of the tokens, (P, M, D). On a CPU the batch is taken in parts, which
    is twice as fast: the attention of one part does not leave the cache. The weights are
    differentiated once, for the sum over all parts.
    """
    episodes = len(labels)
    # in two steps: the forms, which have neither N nor G, are differentiated for every part, the
    # weights, which have both, once for the sum of the forms' gradients
    forms, to_weights = jax.vjp(lambda weights: example_forms(weights, space), weights)

    def squared_errors(forms: ExampleForms, coordinates: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.sum((forms_output(forms, coordinates) - labels) ** 2) / episodes

    batch = (coordinates, labels)
    if jax.default_backend() != "cpu":
        loss, gradient = jax.value_and_grad(squared_errors)(forms, *batch)
        return loss, to_weights(gradient)[0]

    def add(sums: Any, episodes: list[jax.Array]) -> tuple[Any, None]:
        of_episodes = jax.value_and_grad(squared_errors)(forms, *episodes)
        return jax.tree.map(jnp.add, sums, of_episodes), None

    size = math.gcd(episodes, _IN_CACHE)  # equal parts, as a scan needs them
    in_cache = [array.reshape(-1, size, *array.shape[1:]) for array in batch]
    zero = jnp.zeros((), forms.offsets.dtype), jax.tree.map(jnp.zeros_like, forms)
    (loss, gradient), _ = jax.lax.scan(add, zero, in_cache)
    return loss, to_weights(gradient)[0]


def evaluate(
    weights: Weights, space: TokenSpace, table: jax.Array, episodes: Episodes
) -> tuple[float, float]:
    """Accuracy of a network on episodes, 0 to 1, and its mean squared error.

    An episode is classified correctly if output and label have the same sign. ``table`` are the
    coordinates of the drawings, (n, 16, 64).
    """
    outputs = [
        _outputs(weights, space, table, batch.images, batch.first_labels)
        for batch in episodes.batches(_EVALUATED)
    ]
    output = np.concatenate(outputs).astype(np.float64)
    accuracy = np.mean(np.sign(output) == episodes.labels)
    return float(accuracy), float(np.mean((output - episodes.labels) ** 2))


@jax.jit
def _outputs(
    weights: Weights,
    space: TokenSpace,
    table: jax.Array,
    images: jax.Array,
    first_labels: jax.Array,
) -> jax.Array:
    return output_along_paths(weights, space, episode_coordinates(table, images, first_labels))
