"""Time of a training step over paths and layer by layer: ``python -m benchmarks.studies.training``.

One step is loss, gradient and Adam on a batch of 128 episodes in float32, on one core. Images are
noise: what they show does not change the time.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pathkernel_one_shot import layer_form
from pathkernel_one_shot.descent import initial_state, loss_and_gradient, make_optimiser
from pathkernel_one_shot.episodes import token_space
from pathkernel_one_shot.settings import PRESETS
from pathkernel_one_shot.tokens import label_vectors
from pathkernel_trained.network import initial_weights

BATCH, TOKENS, DIMENSIONS = 128, 48, 64


def seconds(form: str, name: str, repetitions: int) -> list[float]:
    """Seconds of each step after the first, which is compiled."""
    generator = np.random.default_rng(0)
    space = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), token_space(label_vectors()))
    coordinates = jnp.asarray(generator.normal(size=(BATCH, TOKENS, DIMENSIONS)), jnp.float32)
    labels = jnp.asarray(generator.choice([-1.0, 1.0], size=BATCH), jnp.float32)
    optimiser = make_optimiser(3e-4, 5e-5)
    state = initial_state(initial_weights(PRESETS[name].shape, 192, 0), optimiser)

    @jax.jit
    def step(state, coordinates, labels):
        def loss(weights):
            tokens = coordinates @ space.basis + space.offsets
            return jnp.mean((layer_form.output_by_layers(weights, tokens) - labels) ** 2)

        if form == "paths":
            _, gradient = loss_and_gradient(state.weights, space, coordinates, labels)
        else:
            gradient = jax.grad(loss)(state.weights)
        updates, inner = optimiser.update(gradient, state.optimiser, state.weights)
        return type(state)(optax.apply_updates(state.weights, updates), inner)

    times = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        state = jax.block_until_ready(step(state, coordinates, labels))
        times.append(time.perf_counter() - start)
    return times[1:]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--repetitions", type=int, default=10)
    options = parser.parse_args()
    print(f"{'network':<14}{'form':<8}{'median s':>10}{'least s':>10}")
    for name in options.presets.split(","):
        for form in ("paths", "layers"):
            times = seconds(form, name, options.repetitions)
            print(f"{name:<14}{form:<8}{np.median(times):>10.4f}{min(times):>10.4f}", flush=True)


if __name__ == "__main__":
    main()
