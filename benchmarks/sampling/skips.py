"""Networks with skip connections: two samplers against each other, the saddle against samples.

python -m benchmarks.sampling.skips
"""

import math

import numpy as np

import pathkernel_core as pk
from benchmarks.sampling.chains import mean_and_error, sample
from pathkernel_sampling.corrections.next_order import next_order
from pathkernel_sampling.models.models import build_model

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


def sampled(name, xi, labels, network, draws):
    """⟨U⟩ and its Monte-Carlo error, (n, n) each."""
    model = build_model(name, xi, labels, network, TEMPERATURE)
    return mean_and_error(sample(model, 2, 600, draws)["order_parameter"])


def against_samples(skips, draws=8000):
    """Relative distances of ⟨U⟩ from saddle and next order over the width, and of the samplers."""
    for width in (BASE, 4 * BASE, 16 * BASE):
        xi, labels = examples(skips, width)
        network = pk.Network((2, 2), width, skips=skips)
        solution = pk.minimise_action(pk.Problem(xi, labels), network, TEMPERATURE)
        correction = next_order(solution)
        mean, error = sampled("order-parameter", xi, labels, network, draws)
        size = np.linalg.norm(mean)
        lengths = [
            np.linalg.norm(difference) / size
            for difference in (
                mean - correction.order_parameter,
                mean - correction.mean_order_parameter,
                error,
            )
        ]
        cells = [network.skip_words, f"{width}", *(f"{length:.4f}" for length in lengths)]
        print(f"| {' | '.join(cells)} |", flush=True)
        if width == BASE:
            of_weights, other_error = sampled("weights", xi, labels, network, draws)
            between = np.abs(mean - of_weights) / np.hypot(error, other_error)
    return (
        f"s = {network.skip_words}, N = {BASE}: entries of ⟨U⟩ by the samplers order-parameter and "
        f"weights differ by at most {between.max():.1f} combined errors, "
        f"{np.sqrt(np.mean(between**2)):.1f} on average (root mean square)"
    )


if __name__ == "__main__":
    print(f"T = {TEMPERATURE:g}, P = 0.8 N: s, N, saddle, next order, Monte-Carlo error")
    print("\n".join([against_samples(skips) for skips in SKIPS]))
