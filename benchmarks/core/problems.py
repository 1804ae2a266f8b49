"""The problems that are measured: the paper's two tasks, and one with more examples than memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import pathkernel_core as pk
from benchmarks.measuring import to_library
from pathkernel_one_shot.task import OneShotImages
from pathkernel_tasks.hidden_markov import HiddenMarkov


@dataclass(frozen=True)
class BenchmarkProblem:
    """Attentioned inputs and labels as NumPy arrays, with the network's heads."""

    name: str
    xi: np.ndarray
    labels: np.ndarray
    heads: tuple[int, ...]
    temperature: float
    widths: tuple[float, ...]
    learning_rate: float  # of today's practice
    max_steps: int  # of today's practice, before it counts as not converging
    required_ratio: float  # median over the widths
    required_evaluations: float | None = None


def markov(seed: int = 0) -> BenchmarkProblem:
    """Hidden Markov task of the paper: P = 100, n = 4, N_0 = 231."""
    task = HiddenMarkov()
    xi, labels, heads = _attentioned(task, seed)
    return BenchmarkProblem(
        "hidden-markov",
        xi,
        labels,
        heads,
        temperature=task.temperatures[0],
        widths=task.widths,
        learning_rate=0.1,
        max_steps=5000,
        required_ratio=150,
    )


def images(seed: int = 0, temperature: float = 0.5, heads: str = "random") -> BenchmarkProblem:
    """One-shot images: P = 600, n = 16, N_0 = 192 of rank at most 115.

    Without the image archives (PATHKERNEL_DATA) a random problem of the same shape stands in.
    """
    if os.environ.get("PATHKERNEL_DATA"):
        name, drawn = "one-shot-images", _attentioned(OneShotImages(heads=heads), seed)
    else:
        name, drawn = "one-shot-images (random stand-in)", _image_stand_in(seed)
    return BenchmarkProblem(
        name,
        *drawn,
        temperature=temperature,
        widths=(10, 100, 500, 10000),
        learning_rate=0.008,
        max_steps=100_000,
        required_ratio=40,
        required_evaluations=75,
    )


@dataclass(frozen=True)
class Stream:
    """Examples that come in batches, labelled by a noisy linear readout of a few paths."""

    examples: int = 200_000
    batch: int = 1000
    heads: tuple[int, ...] = (4, 4)
    inputs: int = 64  # N_0, so that D = n N_0 = 1024
    temperature: float = 0.1
    width: float = 100
    seed: int = 0

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Attentioned inputs (batch, n, N_0) and labels (batch,)."""
        generator = np.random.default_rng(self.seed)
        paths = int(np.prod(self.heads))
        mixing = generator.standard_normal((paths, paths)) / np.sqrt(paths) + np.eye(paths)
        readout = generator.standard_normal((paths, self.inputs)) / np.sqrt(self.inputs)
        readout[3:] = 0
        for start in range(0, self.examples, self.batch):
            size = min(self.batch, self.examples - start)
            xi = mixing @ generator.standard_normal((size, paths, self.inputs))
            signal = np.tensordot(xi, readout, axes=2) + 0.5 * generator.standard_normal(size)
            yield xi, np.sign(signal)

    def statistics(self, backend: str = "numpy", device: str = "cpu") -> pk.SufficientStatistics:
        """Sums over all examples, of arrays of a library."""
        return pk.SufficientStatistics.of_batches(
            tuple(to_library(array, backend, device) for array in batch) for batch in self.batches()
        )


def _attentioned(task: pk.Task, seed: int) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    drawn = task.realise(seed)
    xi = pk.attentioned_inputs(drawn.train.inputs, drawn.layers, drawn.readout)
    return xi, drawn.train.labels, drawn.heads


def _image_stand_in(seed: int) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Random tokens in 115 dimensions, attended by random heads, labels from two paths."""
    generator = np.random.default_rng(seed)
    examples, tokens, rank, inputs = 600, 48, 115, 192
    scales = 1 / np.sqrt(1 + np.arange(rank))
    tokens_in_span = generator.standard_normal((examples, tokens, rank)) * scales
    basis = np.linalg.qr(generator.standard_normal((inputs, rank)))[0]
    tokens_in_span *= np.sqrt(inputs / (scales**2).sum())
    products = generator.standard_normal((2, 4, inputs, inputs)) / inputs * 3
    layers = [pk.AttentionProduct(product) for product in products]
    xi = pk.attentioned_inputs(tokens_in_span @ basis.T, layers, "mean")
    readout = generator.standard_normal((2, inputs))
    signal = np.tensordot(xi[:, [0, 5], :], readout, axes=2)
    return xi, np.where(signal > np.median(signal), 1.0, -1.0), (4, 4)
