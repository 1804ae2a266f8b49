"""Steps of gradient descent, and accuracies."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="training needs the extra: pip install pathkernel[training]")
pytest.importorskip("optax", reason="training needs the extra: pip install pathkernel[training]")
import jax
import jax.numpy as jnp

from pathkernel_one_shot import layer_form
from pathkernel_one_shot.descent import (
    evaluate,
    initial_state,
    loss_and_gradient,
    make_optimiser,
    take_step,
)
from pathkernel_one_shot.episodes import (
    TrainingEpisodes,
    episode_coordinates,
    token_space,
    validation_episodes,
)
from pathkernel_one_shot.tokens import Episodes
from pathkernel_trained.network import NetworkShape, initial_weights

SHAPE = NetworkShape(2, 2, 12, 6)


def output(weights, data, episodes):
    space = token_space(data.label_vectors)
    coordinates = episode_coordinates(
        jnp.asarray(data.train), episodes.images, episodes.first_labels
    )
    return layer_form.output_by_layers(weights, coordinates @ space.basis + space.offsets)


def double(weights):
    return {name: np.asarray(array, dtype=float) for name, array in weights.items()}


def test_steps_are_those_of_adam_with_l2(data):
    """Against the textbook's Adam in NumPy, on the gradient of the layer-by-layer network."""
    rate, decay = 1e-2, 0.3  # a decay that shows
    optimiser = make_optimiser(rate, decay)
    start = double(initial_weights(SHAPE, 192, 0))
    state = initial_state(start, optimiser)
    space = token_space(data.label_vectors)
    expected = dict(start)
    mean = {name: np.zeros_like(array) for name, array in start.items()}
    square = {name: np.zeros_like(array) for name, array in start.items()}

    def loss(weights, *batch):
        episodes = Episodes(*batch)
        return jnp.mean((output(weights, data, episodes) - episodes.labels) ** 2)

    value_and_gradients = jax.jit(jax.value_and_grad(loss))
    for step in range(3):
        batch = TrainingEpisodes(12, 24, 0).batch_of(step)  # taken in three parts
        batch_arrays = (batch.images, batch.first_labels, batch.labels)
        value, gradients = value_and_gradients(expected, *batch_arrays)
        for name, gradient in gradients.items():
            gradient = np.asarray(gradient) + decay * expected[name]
            mean[name] = 0.9 * mean[name] + 0.1 * gradient
            square[name] = 0.999 * square[name] + 0.001 * gradient**2
            first = mean[name] / (1 - 0.9 ** (step + 1))
            second = square[name] / (1 - 0.999 ** (step + 1))
            expected[name] = expected[name] - rate * first / (np.sqrt(second) + 1e-8)
        state, actual = take_step(state, space, data.train, *batch_arrays, optimiser=optimiser)
        np.testing.assert_allclose(actual, value, rtol=1e-6)
        for name, array in expected.items():
            # an entry whose gradient is tiny moves by its sign, so that rounding can show
            np.testing.assert_allclose(state.weights[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_a_batch_in_parts_is_the_batch(data, monkeypatch):
    """On a CPU it is taken in parts, elsewhere whole."""
    weights = jax.tree.map(jnp.asarray, double(initial_weights(SHAPE, 192, 0)))
    space = jax.tree.map(jnp.asarray, token_space(data.label_vectors))
    episodes = TrainingEpisodes(12, 24, 0).batch_of(0)
    coordinates = episode_coordinates(
        jnp.asarray(data.train), episodes.images, episodes.first_labels
    )
    arguments = weights, space, coordinates, jnp.asarray(episodes.labels)
    in_parts = loss_and_gradient(*arguments)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    whole = loss_and_gradient(*arguments)
    for one, other in zip(jax.tree.leaves(in_parts), jax.tree.leaves(whole)):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def test_evaluation(data):
    weights = double(initial_weights(SHAPE, 192, 1))
    weights["readout"] = 20 * weights["readout"]
    episodes = validation_episodes(
        12, 300, seed=0, step=0
    )  # not a multiple of what is done at once
    space = token_space(data.label_vectors)
    expected = np.asarray(jax.jit(lambda weights: output(weights, data, episodes))(weights))
    accuracy, loss = evaluate(weights, space, data.train, episodes)
    assert accuracy == np.mean((expected > 0) == (episodes.labels > 0))
    assert 0.3 < accuracy < 0.7
    assert loss == pytest.approx(np.mean((expected - episodes.labels) ** 2), rel=1e-6)


def test_an_output_of_zero_is_wrong(data):
    weights = double(initial_weights(SHAPE, 192, 1))
    weights["readout"] = 0 * weights["readout"]
    episodes = validation_episodes(12, 20, seed=0, step=0)
    actual = evaluate(weights, token_space(data.label_vectors), data.train, episodes)
    assert actual == (0.0, 1.0)
