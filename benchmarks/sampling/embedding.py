"""Attention above a nonlinear embedding: the theory of its kernels against samples.

``python -m benchmarks.sampling.embedding``  infinitely many ReLU units below one layer of two heads

The kernels are exact. Given them, the saddle point and its next order in 1/N are compared with the
posterior mean ⟨U⟩ by the sampler of order parameters, which sees the kernels alone, and by that of
all weights, which sees 2,000 random ReLU units in their place.
"""

import numpy as np

import pathkernel_core as pk
from benchmarks.sampling.chains import mean_and_error, sample
from pathkernel_sampling.corrections.next_order import next_order
from pathkernel_sampling.models.models import build_model

WIDTHS, TEMPERATURE, UNITS = (5, 10, 20), 0.1, 2000


def examples(generator):
    """Ten sequences of four tokens, labels, and a layer of two heads."""
    tokens, labels = generator.standard_normal((10, 4, 6)), np.resize([1.0, -1.0], 10)
    tokens[..., 0] += labels[:, None]
    return tokens, labels, pk.QueryKey(*generator.standard_normal((2, 2, 3, 6)), 1.0)


def random_units(tokens, layer, generator):
    """Attentioned inputs of random ReLU units, with the attention of the bare tokens."""
    units = np.maximum(0, tokens @ generator.standard_normal((tokens.shape[2], UNITS)))
    units /= np.sqrt(tokens.shape[2])
    attention = pk.Attention(layer.attention(tokens))
    return pk.attentioned_inputs(units, [attention], "mean")


def main():
    """Print ⟨U⟩ of both samplers beside the saddle and the next order."""
    generator = np.random.default_rng(2)
    tokens, labels, layer = examples(generator)
    kernels = pk.path_kernels(tokens, [layer], "relu", readout="mean")
    xi = random_units(tokens, layer, generator)
    given = np.einsum("api,bqi->pqab", xi, xi) / UNITS
    print(f"T = {TEMPERATURE:g}; {UNITS} random units differ from the kernels by at most", end=" ")
    print(f"{abs(given - kernels).max() / abs(kernels).max():.3f} of the largest\n")
    print("| N | entry of U | saddle | next order | order-parameter, kernels | weights, units |")
    print("| --- | --- | --- | --- | --- | --- |")
    for width in WIDTHS:
        network = pk.Network((2,), width)
        problem = pk.Problem.from_kernels(kernels, labels)
        solution = pk.minimise_action(problem, network, TEMPERATURE)
        correction = next_order(solution)
        sampled = []
        for name, inputs, draws in (("order-parameter", kernels, 8000), ("weights", xi, 3000)):
            model = build_model(name, inputs, labels, network, TEMPERATURE)
            sampled.append(mean_and_error(sample(model, 2, 600, draws)["order_parameter"]))
        for entry in ((0, 0), (0, 1), (1, 1)):
            moments = (f"{mean[entry]:.3f} ± {error[entry]:.3f}" for mean, error in sampled)
            orders = correction.order_parameter[entry], correction.mean_order_parameter[entry]
            cells = [f"{width}", f"{entry[0] + 1}, {entry[1] + 1}", *(f"{x:.3f}" for x in orders)]
            print(f"| {' | '.join([*cells, *moments])} |", flush=True)


if __name__ == "__main__":
    main()
