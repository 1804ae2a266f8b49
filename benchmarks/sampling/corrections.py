"""The tables of docs/corrections.md: the next order in 1/N against quadrature and exact samples.

python -m benchmarks.sampling.corrections
"""

import math

import numpy as np
from scipy.special import gammaln

import pathkernel_core as pk
from benchmarks.sampling.chains import mean_and_error, sample
from pathkernel_sampling.corrections.next_order import next_order, predict_next_order
from pathkernel_sampling.models.models import build_model
from pathkernel_tasks.hidden_markov import HiddenMarkov


def quadrature(kernel, labels, temperature, width):
    """ln p(Y) of one path and one layer; U on a grid over ln χ of both factors, its weights."""
    log = math.log(width) / 2 + np.linspace(-20, 14, 1201) / math.sqrt(2 * width)
    density = math.log(2) + width * log - np.exp(2 * log) / 2 + math.log(log[1] - log[0])
    density -= width / 2 * math.log(2) + gammaln(width / 2)
    u = np.exp(2 * (log[:, None] + log)) / width**2
    log_weights = density[:, None] + density - len(labels) / 2 * math.log(2 * math.pi)
    values, vectors = np.linalg.eigh(kernel)
    for value, label in zip(np.maximum(values, 0), vectors.T @ labels):
        variance = value * u + temperature
        log_weights -= (np.log(variance) + label**2 / variance) / 2
    weights = np.exp(log_weights - log_weights.max())
    return log_weights.max() + math.log(weights.sum()), u, weights / weights.sum()


def one_path(proportional):
    """Errors of leading and next order over N, at P = 8 or P = 0.8 N."""
    generator = np.random.default_rng(3)
    base, labels = generator.standard_normal((8, 10)), 2 * generator.standard_normal(8)
    base, labels = (base[:4], labels[:4]) if proportional else (base, labels)
    for width in (5, 10, 20, 40, 80, 160, 320):
        copies = width // 5 if proportional else 1
        xi = math.sqrt(copies) * np.kron(np.eye(copies), base)
        repeated = np.tile(labels, copies)
        problem = pk.Problem(xi[:, None], repeated)
        solution = pk.minimise_action(problem, pk.Network((1,), width), 0.1)
        correction = next_order(solution)
        evidence, u, weights = quadrature(xi @ xi.T / xi.shape[1], repeated, 0.1, width)
        mean = (weights * u).sum()
        saddle, corrected = correction.order_parameter, correction.mean_order_parameter
        errors = (
            evidence - correction.log_evidence,
            evidence - correction.next_log_evidence,
            mean - saddle[0, 0],
            mean - corrected[0, 0],
        )
        print(f"| {width} | " + " | ".join(f"{error:.1e}" for error in errors) + " |", flush=True)


def predictor():
    """Errors of mean and variance, the largest of three new examples, over N, at P = 0.8 N."""
    generator = np.random.default_rng(3)
    base, labels = generator.standard_normal((4, 10)), 2 * generator.standard_normal(4)
    first = base[:3] + generator.standard_normal((3, 10))
    for width in (5, 10, 20, 40, 80):
        subspaces = math.sqrt(width // 5) * np.eye(width // 5)
        xi, new = np.kron(subspaces, base), np.kron(subspaces[:1], first)
        repeated = np.tile(labels, width // 5)
        solution = pk.minimise_action(
            pk.Problem(xi[:, None], repeated), pk.Network((1,), width), 0.1
        )
        kernel, across = xi @ xi.T / xi.shape[1], xi @ new.T / xi.shape[1]
        _, u, weights = quadrature(kernel, repeated, 0.1, width)
        values, vectors = np.linalg.eigh(kernel)
        f, v = 0, (new**2).sum(1)[:, None, None] / xi.shape[1] * u
        for value, label, overlap in zip(values, vectors.T @ repeated, vectors.T @ across):
            gain = overlap[:, None, None] * u / (value * u + 0.1)
            f, v = f + gain * label, v - gain * overlap[:, None, None] * u
        mean = (weights * f).sum((1, 2))
        exact = mean, (weights * (v + f**2)).sum((1, 2)) - mean**2
        leading = solution.predict(new[:, None])
        following = predict_next_order(solution, new[:, None])
        errors = [
            abs(exact[moment] - getattr(prediction, name)).max()
            for moment, name in enumerate(("mean", "variance"))
            for prediction in (leading, following)
        ]
        print(f"| {width} | " + " | ".join(f"{error:.1e}" for error in errors) + " |", flush=True)


def hidden_markov(draws=6000):
    """⟨U⟩ of the hidden Markov task by the saddle, to next order, and of exact samples."""
    realised = HiddenMarkov().realise(0)
    xi = pk.attentioned_inputs(realised.train.inputs, realised.layers, realised.readout)
    problem = pk.Problem(xi, realised.train.labels)
    for width in (4, 6, 10, 30, 100, 1000):
        network = pk.Network((2, 2), width)
        correction = next_order(pk.minimise_action(problem, network, 0.01))
        model = build_model("order-parameter", xi, realised.train.labels, network, 0.01)
        mean, errors = mean_and_error(sample(model, 2, 300, draws)["order_parameter"])
        error = np.linalg.norm(errors)
        before = np.linalg.norm(mean - correction.order_parameter)
        after = np.linalg.norm(mean - correction.mean_order_parameter)
        diagonals = (correction.order_parameter, correction.mean_order_parameter, mean)
        columns = [", ".join(f"{entry:.3f}" for entry in np.diag(matrix)) for matrix in diagonals]
        closed = f"{100 * (1 - after / before):.0f} ± {100 * error / before:.0f} %"
        loops = f"{correction.log_evidence_two_loops:.2f}"
        print(f"| {width} | " + " | ".join((*columns, closed, loops)) + " |", flush=True)


if __name__ == "__main__":
    for proportional, title in ((False, "P = 8"), (True, "P = 0.8 N")):
        print(f"{title}: N, ln p(Y) leading, ln p(Y) next, U leading, U next")
        one_path(proportional)
    print("P = 0.8 N: N, mean leading, mean next, variance leading, variance next")
    predictor()
    print("hidden Markov: N, saddle, next order, exact, gap closed, two loops")
    hidden_markov()
