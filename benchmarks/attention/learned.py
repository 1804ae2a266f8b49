"""Learned attention: the marginal density against exact samples, and what samplers cost.

python -m benchmarks.attention.learned widths|samplers|location|noise|modes|jump [FOLDER]

``jump`` draws a picture, too, if it is given a folder.
"""

import sys
import time
from functools import partial

import jax
import numpy as np
import pandas as pd
from arviz_stats.base import array_stats

import pathkernel_core as pk
from benchmarks.sampling.chains import mean_and_error, sample
from pathkernel_sampling.attention.corrections import next_order_density
from pathkernel_sampling.attention.models import attention_model
from pathkernel_sampling.corrections.next_order import next_order, predict_next_order
from pathkernel_tasks.copying import Copying
from pathkernel_tasks.single_location import SingleLocation
from pathkernel_views.chart import Chart, save_charts
from pathkernel_views.primitives import lines

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
            xi = posterior.attend(layers, new)
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
        if width <= 10:
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


def tell_apart(examples, width, seed):
    """A single-location problem: the posterior of two key vectors, and the test examples."""
    drawn = SingleLocation(examples=examples, attention="ideal").realise(seed)
    layers = [pk.KeyVectors(np.zeros_like(drawn.layers[0].vectors))]
    posterior = pk.AttentionPosterior(
        drawn.train.inputs, drawn.train.labels, layers, pk.Network((2,), width), 0.1
    )
    return posterior, drawn.layers, drawn.test_sets["test"]


def accuracy(mean, labels):
    return np.mean(np.sign(mean).reshape(-1) == labels)


def of_solution(posterior, layers, test):
    solution = posterior.solve(posterior.position_of(layers))
    mean = solution.predict_mean(posterior.attend(layers, test.inputs))
    return accuracy(mean, test.labels)


def of_draws(posterior, test, chains=2, draws=600):
    model = attention_model("order-parameter", posterior)
    positions = sample(model, chains, 600, draws)["position"][:, ::20]
    predict = jax.jit(lambda x: model.predict(x, jax.numpy.asarray(test.inputs))[0])
    means = [np.asarray(predict(x)) for x in positions.reshape(-1, positions.shape[2])]
    return accuracy(np.mean(means, axis=0), test.labels)


@partial(jax.jit, static_argnames="steps")
def by_adam(model, x, steps, rate=0.01):
    """End of a descent from x by Adam on the negative log density of all weights."""

    def step(index, state):
        x, first, second = state
        slope = -jax.grad(model.log_density)(x)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        along = first / (1 - 0.9 ** (index + 1.0))
        size = jax.numpy.sqrt(second / (1 - 0.999 ** (index + 1.0))) + 1e-8
        return x - rate * along / size, first, second

    return jax.lax.fori_loop(0, steps, step, (x, 0 * x, 0 * x))[0]


def of_descent(posterior, test, seed):
    """Adam on all weights and key vectors: squared error with the weight decay of the prior."""
    model = attention_model("weights", posterior)
    x = by_adam(model, model.initial(jax.random.key(seed)), steps=3000)
    return accuracy(np.asarray(model.predict(x, jax.numpy.asarray(test.inputs))[0]), test.labels)


@partial(jax.jit, static_argnames="steps")
def by_noisy_descent(model, state, steps, rate=1e-4, friction=0.1):
    """Position, momentum and random key after steps of descent with noise of temperature T.

    With momentum and the weight decay of the prior it samples all weights.
    """
    noise = jax.numpy.sqrt(2 * friction * rate)

    def step(index, state):
        x, momentum, key = state
        key, part = jax.random.split(key)
        slope = jax.grad(model.log_density)(x)
        kick = rate * slope + noise * jax.random.normal(part, x.shape)
        momentum = (1 - friction) * momentum + kick
        return x + momentum, momentum, key

    return jax.lax.fori_loop(0, steps, step, state)


def of_noisy_descent(posterior, test, seed, steps=40_000, means=100):
    """Accuracy of predictions averaged over the second half of a descent with noise."""
    model = attention_model("weights", posterior)
    x = model.initial(jax.random.key(seed))
    state = x, 0 * x, jax.random.key(seed + 1)
    predict = jax.jit(lambda x: model.predict(x, jax.numpy.asarray(test.inputs))[0])
    outputs = []
    for number in range(2 * means):
        state = by_noisy_descent(model, state, steps // (2 * means))
        if number >= means:
            outputs.append(np.asarray(predict(state[0])))
    return accuracy(np.mean(outputs, axis=0), test.labels)


def noise(seeds=5):
    """Accuracy of descent with noise and weight decay, as in :func:`location`."""
    print("| N | P | noisy descent |\n| --- | --- | --- |")
    for width in (10, 100):
        for examples in (50, 100, 200, 400):
            accuracies = []
            for seed in range(seeds):
                posterior, _, test = tell_apart(examples, width, seed)
                accuracies.append(of_noisy_descent(posterior, test, seed))
            mean, error = np.mean(accuracies), np.std(accuracies, ddof=1) / np.sqrt(seeds)
            print(f"| {width} | {examples} | {mean:.3f} ± {error:.3f} |", flush=True)


def location(seeds=5):
    """Accuracy of ideal, random and learned heads, by the number of examples and the width."""
    columns = ("ideal", "random", "maximum", "sampled", "descent")
    print(f"| N | P | {' | '.join(columns)} |")
    print("| --- | --- |" + " --- |" * len(columns))
    for width in (10, 100):
        for examples in (50, 100, 200, 400):
            rows = []
            for seed in range(seeds):
                posterior, ideal, test = tell_apart(examples, width, seed)
                drawn = posterior.layers_at(posterior.initial(np.random.default_rng(seed)))
                best = pk.maximise_attention(posterior, starts=4, seed=seed)[0]
                rows.append(
                    [
                        of_solution(posterior, ideal, test),
                        of_solution(posterior, drawn, test),
                        of_solution(posterior, posterior.layers_at(best.position), test),
                        of_draws(posterior, test),
                        of_descent(posterior, test, seed),
                    ]
                )
            means, errors = np.mean(rows, 0), np.std(rows, 0, ddof=1) / np.sqrt(seeds)
            cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in zip(means, errors)]
            print(f"| {width} | {examples} | {' | '.join(cells)} |", flush=True)


def samplers(examples=100, width=10, draws=500):
    """CPU seconds, effective sample sizes and R-hat of the samplers of attention."""
    print(
        "| sampler | dimension | draws | CPU s | smallest ESS | CPU s per effective draw | R-hat |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    posterior, _, _ = tell_apart(examples, width, 0)
    for name, count in (
        ("order-parameter", 4 * draws),
        ("collapsed", draws),
        ("weights", draws // 5),
        ("marginal", draws // 5),
    ):
        model = attention_model(name, posterior)
        started = time.process_time()
        drawn = sample(model, 4, 300 if count < draws else 1000, count)
        seconds = time.process_time() - started
        u = drawn["order_parameter"]
        # symmetric in the heads
        values = [u[..., 0, 0] + u[..., 1, 1], np.abs(u[..., 0, 1]), drawn["lp"]]
        sizes = [array_stats.ess(v, chain_axis=0, draw_axis=1) for v in values]
        r_hat = max(array_stats.rhat(v, chain_axis=0, draw_axis=1) for v in values)
        cells = [name, model.dimension, 4 * count, f"{seconds:.0f}", f"{min(sizes):.0f}"]
        cells += [f"{seconds / min(sizes):.3f}", f"{r_hat:.3f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def copied(posterior, position, test, task):
    """Mean attention of the token read out to the first token, and to the one to copy."""
    (layer,) = posterior.layers_at(position)
    omega = layer.attention(test.inputs, query=task.tokens - 1)[:, 0, :, 0]
    tags = test.inputs[:, :, 1 : 1 + task.tag_width]
    places = np.abs(tags[:, :-1] - tags[:, -1:]).max(axis=2).argmin(axis=1)
    return omega[:, 0].mean(), omega[np.arange(len(omega)), places].mean()


AGREEMENTS = 0.0, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.8, 1.0
STARTS = {  # rows of queries and keys that are large at the start: content tags, or the first token
    "content": ((1, 2), (1, 2)),
    "position": ((-1,), (3,)),
}


def copying(agreement, temperature=1.0, variance=4.0):
    """Task, data and posterior of one head that copies."""
    task = Copying(agreement=agreement, heads=1, tag_width=2)
    drawn = task.realise(0)
    zeros = np.zeros((1, 2, drawn.train.inputs.shape[2]))
    posterior = pk.AttentionPosterior(
        drawn.train.inputs,
        drawn.train.labels,
        [pk.QueryKey(zeros, zeros, scale=0.5)],
        pk.Network((1,), 30),
        temperature,
        variance,
    )
    return task, drawn, posterior


def started(posterior, name):
    """Parameters of a head that attends to the tag, or to the first token, with noise."""
    width = posterior.inputs.shape[2]
    noise = 0.1 * np.random.default_rng(0).standard_normal((2, 1, 2, width))
    for row, (query, key) in enumerate(zip(*STARTS[name])):
        noise[0, 0, row, query] = noise[1, 0, row, key] = 3.0
    return posterior.position_of([pk.QueryKey(*noise)])


def modes(starts=10):
    """Highest maxima by content and by position, with and without volume, of many starts."""
    columns = ("agreement", "kind", "log density", "with volume", "maxima", "starts at the first")
    print(f"| {' | '.join(columns)} |")
    print("| --- | --- | --- | --- | --- | --- |")
    for agreement in (0.3, 0.36, 0.4, 0.44, 0.5, 0.55, 0.6):
        task, drawn, posterior = copying(agreement)
        content = started(posterior, "content")
        maxima = pk.maximise_attention(posterior, starts=starts, start=content, seed=1)
        kinds = {"content": [], "position": []}
        for end in maxima:
            first, other = copied(posterior, end.position, drawn.test_sets["apart"], task)
            kinds["position" if first > other else "content"].append(end)
        for name, ends in kinds.items():
            if ends:
                height = max(end.density.log_density for end in ends)
                volume = np.nanmax([end.log_evidence for end in ends])
                numbers = f"{height:.1f} | {volume:.1f} | {len(ends)} | {ends[0].starts}"
                print(f"| {agreement} | {name} | {numbers} |", flush=True)


def jump(folder=None, temperature=1.0, variance=4.0):
    """Maxima of the copy task's posterior that attend to content and to position, by agreement."""
    rows = []
    columns = ("agreement", "start", "log density", "with volume", "to the first", "to the copied")
    print(f"| {' | '.join(columns)} |")
    print("| --- | --- | --- | --- | --- | --- |")
    for agreement in AGREEMENTS:
        task, drawn, posterior = copying(agreement, temperature, variance)
        for name in STARTS:
            start = started(posterior, name)
            (end,) = pk.maximise_attention(posterior, starts=0, start=start)
            first, other = copied(posterior, end.position, drawn.test_sets["apart"], task)
            row = (agreement, name, end.density.log_density, end.log_evidence, first, other)
            rows.append(row)
            numbers = f"{row[2]:.1f} | {row[3]:.1f} | {first:.2f} | {other:.2f}"
            print(f"| {agreement} | {name} | {numbers} |", flush=True)
    if folder is not None:
        draw_jump(pd.DataFrame(rows, columns=columns), folder)


def draw_jump(maxima, folder):
    """Picture of the maxima: attention to the first token, and both log densities."""
    quantities = {
        "to the first": "attention to the first token",
        "log density": "log density, nats",
        "with volume": "log density with volume, nats",
    }
    long = maxima.melt(["agreement", "start"], list(quantities), "quantity", "value")
    long["quantity"] = long["quantity"].map(quantities)
    long["start"] = "from " + long["start"]
    chart = Chart(
        "attention-jump",
        "Maxima of the posterior of a head in the task copying",
        "From two starts, by the probability that the first token agrees with the copied one.",
        lambda: lines(
            long,
            "agreement",
            "value",
            series="start",
            panel="quantity",
            same_y=False,
            titles={"agreement": "probability of agreement", "value": " "},
        ),
    )
    save_charts([chart], folder, print, formats=("png",))


if __name__ == "__main__":
    parts = {
        "widths": widths,
        "samplers": samplers,
        "location": location,
        "noise": noise,
        "modes": modes,
        "jump": jump,
    }
    parts[sys.argv[1]](*sys.argv[2:])
