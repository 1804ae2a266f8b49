"""Networks with skip connections: two samplers against each other, the saddle against samples.

python -m benchmarks.skips
"""

import os

os.environ.setdefault("JAX_ENABLE_X64", "1")  # before JAX is imported

import math

import jax
import numpy as np
from arviz_stats.base import array_stats

import pathkernel_core as pk
from pathkernel_sampling.chains import draw, warm_up
from pathkernel_sampling.corrections import next_order
from pathkernel_sampling.models import build_model

SKIPS = ((0.7, 0.7), (0.5, 1.2))
TEMPERATURE, BASE = 0.1, 10  # width at which there is one copy of the examples


def examples(skips, width):
    """Eight sequences and their labels, repeated in width/10 orthogonal subspaces.

    The action per width is then that of width 10, and all errors are those of the width.
    """
    generator = np.random.default_rng(4)
    tokens, labels = generator.standard_normal((8, 4, 4)), np.resize([1.0, -1.0], 8)
    tokens[..., 0] += labels[:, None]
    layers = [pk.QueryKey(*generator.standard_normal((2, 2, 3, 4)), 1.0) for _ in range(2)]
    xi = pk.attentioned_inputs(tokens, layers, "mean", skips=skips)
    copies = width // BASE
    repeated = np.einsum("cd,pni->cpndi", math.sqrt(copies) * np.eye(copies), xi)
    return repeated.reshape(8 * copies, xi.shape[1], -1), np.tile(labels, copies)


def sampled(name, xi, labels, network, draws, chains=2):
    """⟨U⟩ and its Monte-Carlo error, (n, n) each."""
    model = build_model(name, xi, labels, network, TEMPERATURE)
    drawn = []
    for chain in range(chains):
        key = jax.random.fold_in(jax.random.key(7), chain)
        state = warm_up(model, jax.random.fold_in(key, 0), 600)
        drawn.append(draw(model, state, jax.random.fold_in(key, 1), draws)[1]["order_parameter"])
    u = np.stack(drawn)
    flat = u.reshape(chains, draws, -1)
    sizes = [array_stats.ess(flat[..., i], method="mean") for i in range(flat.shape[-1])]
    error = flat.std((0, 1)) / np.sqrt(sizes)
    return u.mean((0, 1)), error.reshape(u.shape[2:])


def against_samples(skips, draws):
    """Relative distances of ⟨U⟩ from the saddle and from its next order, over the width."""
    print("N | saddle | next order | Monte-Carlo error")
    for width in (10, 40, 160):
        xi, labels = examples(skips, width)
        network = pk.Network((2, 2), width, skips=skips)
        solution = pk.minimise_action(pk.PathKernels(xi, labels), network, TEMPERATURE)
        correction = next_order(solution)
        mean, error = sampled("order-parameter", xi, labels, network, draws)
        size = np.linalg.norm(mean)
        gaps = [
            np.linalg.norm(mean - given) / size
            for given in (correction.order_parameter, correction.mean_order_parameter)
        ]
        print(f"{width} | {gaps[0]:.4f} | {gaps[1]:.4f} | {np.linalg.norm(error) / size:.4f}")
        if width == BASE:
            other, other_error = sampled("weights", xi, labels, network, draws)
            combined = np.abs(mean - other) / np.hypot(error, other_error)
            print(
                f"  weights sampler: entries of U differ by at most {combined.max():.2f} combined "
                f"errors (root mean square {np.sqrt(np.mean(combined**2)):.2f}); its error is "
                f"{np.linalg.norm(other_error) / size:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    for strengths in SKIPS:
        print(f"L = 2, H = 2, s = {strengths}, T = {TEMPERATURE:g}, P = 0.8 N", flush=True)
        against_samples(strengths, 8000)
