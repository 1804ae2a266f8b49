"""Log loss and accuracy of softmax and squared loss, both with their scales by the evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

import pathkernel_core as pk
from benchmarks.classes.data import fashion, gaussian, markov, print_row

VARIANCES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
TEMPERATURES = (0.03, 0.1, 0.3, 1.0, 3.0)
LOSSES = (
    *("task", "C", "P", "N", "log loss: classes", "squared", "EP"),
    *("accuracy: classes", "squared", "σ² of classes", "σ², T of squared"),
)
"""Columns of the table."""


@dataclass(frozen=True)
class Labelled:
    """Training and test examples of some heads: ``labels`` are classes 0 … C − 1."""

    name: str
    heads: tuple[int, ...]
    xi: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    width: float

    @property
    def classes(self) -> int:
        """Number C of classes."""
        return int(self.labels.max()) + 1


def cases() -> Iterator[Labelled]:
    """Eight cases of two, three, five and ten classes."""
    for seed in range(3):
        yield Labelled(f"hidden Markov, seed {seed}", (2, 2), *markov(seed), width=50)
    for seed in range(2):
        yield Labelled(f"two heads, seed {seed}", (2,), *gaussian(3, 60, seed), width=50)
    yield Labelled("Fashion-MNIST, 3 classes", (4,), *fashion(3, 90, heads=(4,)), width=100)
    yield Labelled("Fashion-MNIST, 5 classes", (2,), *fashion(5, 100, heads=(2,)), width=100)
    yield Labelled("Fashion-MNIST, 10 classes", (2,), *fashion(10, 150, heads=(2,)), width=100)


def losses() -> None:
    """Print both losses of every case."""
    print("On test examples, with scales by the log evidence:", ", ".join(LOSSES))
    for case in cases():
        (softmax, variance), (squared, chosen) = by_softmax(case), by_squared_loss(case)
        scores = [_scores(values, case.test_labels) for values in (softmax, squared)]
        (loss, accuracy), (other_loss, other_accuracy) = scores
        print_row(
            case.name, str(case.classes), str(len(case.xi)), f"{case.width:g}",
            f"{loss:.3f}", f"{other_loss:.3f}", _by_ep(case), f"{accuracy:.3f}",
            f"{other_accuracy:.3f}", f"{variance:g}", f"{chosen[0]:g}, {chosen[1]:g}",
        )  # fmt: skip


def by_softmax(case: Labelled) -> tuple[np.ndarray, float]:
    """Probabilities (P_test, C), by the logistic likelihood for two classes, and σ²."""
    two = case.classes == 2
    labels = 2 * case.labels - 1 if two else case.labels
    likelihood = "logistic" if two else "softmax"
    problem = pk.Problem(case.xi, labels, likelihood=likelihood)
    network = pk.Network(case.heads, case.width, outputs=problem.outputs)
    choice = pk.choose_variance(problem, network, variances=VARIANCES)
    return choice.solution.predict(case.test).probabilities, choice.variance


def _by_ep(case: Labelled) -> str:
    """Log loss by expectation propagation, whose evidence chooses σ²; empty for more classes."""
    if case.classes > 2:
        return ""
    problem = pk.Problem(case.xi, 2 * case.labels - 1, likelihood="logistic").by_ep()
    choice = pk.choose_variance(problem, pk.Network(case.heads, case.width), variances=VARIANCES)
    loss, _ = _scores(choice.solution.predict(case.test).probabilities, case.test_labels)
    return f"{loss:.3f} (σ² = {choice.variance:g})"


def by_squared_loss(case: Labelled) -> tuple[np.ndarray, tuple[float, float]]:
    """Probabilities (P_test, C) that an output with its noise is the largest, and σ² and T."""
    two = case.classes == 2
    labels = 2.0 * case.labels - 1 if two else 2 * np.eye(case.classes)[case.labels] - 1
    offset = labels.mean(axis=0)
    problem = pk.Problem(case.xi, labels - offset)
    network = pk.Network(case.heads, case.width, outputs=problem.outputs)
    best = (-math.inf, None, 0.0)
    for temperature in TEMPERATURES:
        choice = pk.choose_variance(problem, network, temperature, variances=VARIANCES)
        evidence = np.nanmax(choice.log_evidence)
        if evidence > best[0]:
            best = evidence, choice, temperature
    _, choice, temperature = best
    prediction = choice.solution.predict(case.test)
    mean, deviation = prediction.mean + offset, np.sqrt(prediction.variance + temperature)
    if two:
        positive = scipy.stats.norm.cdf(mean / deviation)
        return np.stack([1 - positive, positive], axis=1), (choice.variance, temperature)
    draws = np.random.default_rng(0).standard_normal((4000, 1, case.classes))
    largest = (mean + deviation * draws).argmax(axis=2)
    counts = np.stack([(largest == c).mean(axis=0) for c in range(case.classes)], axis=1)
    return np.clip(counts, 1 / 4000, None), (choice.variance, temperature)


def _scores(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Log loss and accuracy."""
    own = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(own).mean()), float((probabilities.argmax(axis=1) == labels).mean())
