"""Learned attention: the marginal density against exact samples, and what samplers cost.

python -m benchmarks.learned_attention widths|samplers|location
"""

import jax
import numpy as np

import pathkernel_core as pk
from benchmarks.chains import mean_and_error, sample
from pathkernel_sampling.attention_corrections import next_order_density
from pathkernel_sampling.attention_models import attention_model
from pathkernel_sampling.corrections import next_order, predict_next_order

TEMPERATURE = 0.3


def numbers(examples, seed=0):
    """Sequences of five numbers, labelled by the sign of the largest in size, less noise."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((examples, 5, 1))
    largest = np.take_along_axis(inputs, np.abs(inputs).argmax(1)[:, None], 1)[:, 0, 0]
    return inputs, np.sign(largest + 0.3 * generator.standard_normal(examples))


def two_numbers(width, examples=8):
    """Posterior of two key vectors of one entry: an integral over it is a sum over a grid."""
    inputs, labels = numbers(examples)
    layers = [pk.KeyVectors(np.zeros((2, 1)))]
    return pk.AttentionPosterior(inputs, labels, layers, pk.Network((2,), width), TEMPERATURE)


def attention(posterior, position, inputs):
    """Largest attention that heads pay, the mean over heads and examples."""
    (layer,) = posterior.layers_at(position)
    return layer.attention(inputs, query=0)[..., 0].max(axis=2).mean()


def by_grid(width, order):
    """⟨tr U⟩/2, ⟨attention⟩ and ⟨f⟩ on new sequences by the density at leading or next order."""
    posterior, new = two_numbers(width), numbers(50, seed=1)[0]
    axis = np.linspace(-4.5, 4.5, 41)
    logs, values = [], []
    for one in axis:
        for other in axis[axis <= one]:  # heads may be exchanged
            x = np.array([one, other])
            density = (posterior.evaluate if order == 0 else next_order_density)(
                *((x,) if order == 0 else (posterior, x))
            )
            solution, layers = density.solution, posterior.layers_at(x)
            xi = posterior.attentioned(layers, new)
            if order == 0:
                u, mean = solution.order_parameter, solution.predict(xi).mean
            else:
                correction = next_order(solution)
                u = correction.mean_order_parameter
                mean = predict_next_order(solution, xi, correction=correction).mean
            logs.append(density.log_density - np.log(2) * (one == other))
            values.append([np.trace(u) / 2, attention(posterior, x, new), *mean])
    weights = np.exp(np.array(logs) - max(logs))
    return weights @ np.array(values) / weights.sum()


def by_draws(name, width, draws, chains=4):
    """The same by exact draws, with Monte-Carlo errors of the first two and of ⟨f⟩ together."""
    posterior, new = two_numbers(width), numbers(50, seed=1)[0]
    model = attention_model(name, posterior)
    drawn = sample(model, chains, 1000, draws)
    traces = np.trace(drawn["order_parameter"], axis1=-2, axis2=-1) / 2
    thinned = drawn["position"][:, ::10]
    predict = jax.jit(jax.vmap(jax.vmap(lambda x: model.predict(x, jax.numpy.asarray(new))[0])))
    outputs = np.asarray(predict(thinned))[..., 0]
    paid = np.array(
        [
            [attention(posterior, np.asarray(model.attention(x)), new) for x in chain]
            for chain in thinned
        ]
    )
    u, u_error = mean_and_error(traces)
    a, a_error = mean_and_error(paid)
    f, f_error = mean_and_error(outputs)
    return np.array([u, a, *f]), (u_error, a_error, np.sqrt(np.mean(f_error**2)))


def widths():
    print("| N | by | tr U/2 | attention | f, root mean square of the difference |")
    print("| --- | --- | --- | --- | --- |")
    for width in (4, 6, 10, 20):
        exact, errors = by_draws("order-parameter", width, 20_000)
        cells = [f"{exact[k]:.4f} ± {errors[k]:.1g}" for k in range(2)]
        print(f"| {width} | exact draws | {cells[0]} | {cells[1]} | ± {errors[2]:.1g} |")
        if width < 10:
            other, others = by_draws("weights", width, 5000)
            cells = [f"{other[k] - exact[k]:+.4f} ± {others[k]:.1g}" for k in range(2)]
            off = np.sqrt(np.mean((other - exact)[2:] ** 2))
            print(
                f"| {width} | all weights | {cells[0]} | {cells[1]} | {off:.2g} ± {others[2]:.1g} |"
            )
        for order, name in enumerate(("leading order", "next order")):
            values = by_grid(width, order) - exact
            off = np.sqrt(np.mean(values[2:] ** 2))
            print(
                f"| {width} | {name} | {values[0]:+.4f} | {values[1]:+.4f} | {off:.2g} |",
                flush=True,
            )


if __name__ == "__main__":
    widths()
