"""Five theories by one engine, beside the formulas or the code of their papers.

    python -m benchmarks.engine                        # the table, minutes
    python -m benchmarks.engine --figures docs/images  # also writes the figures

Convolution compares with deepbays, the authors' code, where it is installed; ``benchmarks.sources``
has the rest. Both sides get the same arrays. Times are CPU seconds on one thread, from data to
order parameters, on warm code. The digits 4 and 9 of MNIST come from the folder PATHKERNEL_DATA;
without it, images made at random stand in, and the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

import pathkernel as pk
from benchmarks import sources
from benchmarks.measuring import one_thread, timed

CHANNELS = (5, 20, 100)
DEPTHS = (1, 2, 3, 5)
GATES = (2, 5, 10)
WIDTHS = (3, 5, 10, 20, 50, 100, 200, 500, 1000)
NARROW = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
VARIANCES = (0.25, 4.0)
STRENGTHS = (0.25, 0.5, 1.0, 2.0)  # of the branches of the teacher


@dataclass(frozen=True)
class Comparison:
    """A quantity by the engine and by its source, with the CPU seconds of both."""

    theory: str
    quantity: str
    ours: np.ndarray = field(repr=False)
    source: np.ndarray = field(repr=False)
    seconds: float
    source_seconds: float

    @property
    def difference(self) -> float:
        return float(np.abs(np.asarray(self.ours) - self.source).max())

    def cells(self) -> list[str]:
        index = np.argmax(np.abs(self.ours))  # the largest entry stands for all
        values = (f"{np.ravel(values)[index]:.6g}" for values in (self.ours, self.source))
        seconds = f"{self.seconds:.2g}", f"{self.source_seconds:.2g}"
        return [self.theory, self.quantity, *values, f"{self.difference:.0e}", *seconds]


def compare(
    theory: str, quantity: str, ours: Callable[[], np.ndarray], source: Callable[[], np.ndarray]
) -> Comparison:
    """Call both sides by the clock, ours after a call that warms it up."""
    ours()
    seconds, values = timed(ours, time.process_time)
    source_seconds, source_values = timed(source, time.process_time)
    return Comparison(theory, quantity, values, source_values, seconds, source_seconds)


@dataclass(frozen=True)
class Images:
    """Square images (P, side, side), labels ±1 (P,), new images, and where they are from."""

    train: np.ndarray
    labels: np.ndarray
    new: np.ndarray
    origin: str


def images(examples: int, new: int = 200) -> Images:
    """Digits 4 and 9 of MNIST, or images made at random; standardised, one or the other class."""
    if os.environ.get("PATHKERNEL_DATA"):
        from pathkernel_one_shot.idx import MNIST, read_idx_set

        drawn, classes = read_idx_set(MNIST)
        chosen = np.flatnonzero(np.isin(classes, (4, 9)))[: examples + new]
        pixels, labels = drawn[chosen].astype(float), np.where(classes[chosen] == 4, 1.0, -1.0)
        origin = "digits 4 and 9 of MNIST"
    else:
        generator = np.random.default_rng(0)
        pixels = generator.standard_normal((examples + new, 28, 28)).cumsum(1).cumsum(2)
        labels = np.sign(pixels[:, 7:14, 14:21].mean((1, 2)))
        origin = "images made at random"
    pixels = (pixels - pixels[:examples].mean()) / pixels[:examples].std()
    return Images(pixels[:examples], labels[:examples], pixels[examples:], origin)


def patches(pixels: np.ndarray, side: int) -> np.ndarray:
    """Square patches of images as tokens (P, n, side²), rows of the image first."""
    count = pixels.shape[1] // side
    blocks = pixels.reshape(len(pixels), count, side, count, side).swapaxes(2, 3)
    return blocks.reshape(len(pixels), count**2, side**2)


def patch_layers(tokens: np.ndarray) -> list[pk.Attention]:
    """A layer with one head for each patch, which attends to it alone."""
    examples, count, _ = tokens.shape
    alone = np.eye(count)[..., None]  # head h, key s, any query
    return [pk.Attention(np.broadcast_to(alone, (examples, count, count, count)))]


def convolution() -> Iterator[Comparison]:
    """Order parameters and predictions of a convolutional layer of error functions."""
    temperature, code = 0.1, sources.deepbays_convolution()
    if code is None:
        print(sources.INSTALL)
    for examples, side, widths in ((200, 14, CHANNELS), (100, 7, (20,))):
        drawn = images(examples)
        tokens, new = patches(drawn.train, side), patches(drawn.new, side)
        n = tokens.shape[1]
        print(f"convolution: {drawn.origin}, {n} patches, P = {examples}, T = {temperature}")

        def solution(channels: float) -> pk.Solution:
            kernels = pk.path_kernels(tokens, patch_layers(tokens), "erf")
            problem = pk.PathKernels.from_kernels(kernels, drawn.labels)
            return pk.minimise_action(problem, pk.Network((n,), (channels, math.inf)), temperature)

        for channels in widths:
            name = f"{n} patches, N_c = {channels}"
            yield compare(
                "convolution",
                f"U of {name}, PyTorch",
                lambda: solution(channels).order_parameter,
                lambda: sources.direct_minimum(
                    sources.erf_kernels(tokens), drawn.labels, channels, temperature
                ),
            )
            if code is not None:
                theory = code(channels, temperature, side, side, act="erf")
                yield compare(
                    "convolution",
                    f"U of {name}, deepbays",
                    lambda: solution(channels).order_parameter,
                    lambda: of_deepbays(theory, drawn),
                )
        if code is not None and n == 4:
            yield from predictions(theory, drawn, solution(channels), tokens, new)


def of_deepbays(theory: object, drawn: Images) -> np.ndarray:
    """Order parameter by deepbays, from the identity."""
    import torch

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theory.preprocess(drawn.train.reshape(len(drawn.train), -1), torch.asarray(drawn.labels))
        theory.optimize()
    return theory.optQ


def predictions(
    theory: object, drawn: Images, solution: pk.Solution, tokens: np.ndarray, new: np.ndarray
) -> Iterator[Comparison]:
    """Mean and variance of the predictor on new images."""

    def ours() -> pk.Prediction:
        layers = patch_layers(tokens), patch_layers(new)
        cross, own = pk.path_kernels(tokens, layers[0], "erf", new=new, new_layers=layers[1])
        return solution.predict(cross, own)

    def source() -> tuple[np.ndarray, np.ndarray]:
        mean = np.asarray(theory.predict(drawn.new.reshape(len(drawn.new), -1)))
        explained = np.einsum("pq,pq->p", theory.K0_invK, theory.rK0X)
        return mean, theory.rK0 - explained

    seconds, predicted = timed(ours, time.process_time)
    source_seconds, moments = timed(source, time.process_time)
    for name, values in zip(("mean", "variance"), moments):
        quantity = f"predictor's {name}, {len(new)} images, deepbays"
        own = getattr(predicted, name)
        yield Comparison("convolution", quantity, own, values, seconds, source_seconds)


@dataclass(frozen=True)
class GatedData:
    """Inputs (P, N_0), labels (P,), both of new examples, and the hyperplanes of gates."""

    inputs: np.ndarray
    labels: np.ndarray
    new: np.ndarray
    new_labels: np.ndarray
    hyperplanes: np.ndarray
    temperature: float = 0.05

    @classmethod
    def drawn(cls, gates: int, examples: int = 100, width: int = 20) -> GatedData:
        """Labels by two regions of the inputs, each with a linear rule of its own."""
        generator = np.random.default_rng(1)
        inputs = generator.standard_normal((examples + 500, width))
        rules = generator.standard_normal((2, width))
        labels = np.where(inputs[:, 0] > 0, inputs @ rules[0], inputs @ rules[1])
        labels /= math.sqrt(width)
        hyperplanes = generator.standard_normal((gates, width))
        hyperplanes[:2] = 0
        hyperplanes[:2, 0] = 1, -1  # two of the gates are the right ones
        split = slice(examples), slice(examples, None)
        return cls(*(values[part] for part in split for values in (inputs, labels)), hyperplanes)

    def solution(self, layers: int, width: float) -> pk.Solution:
        network = pk.Network((len(self.hyperplanes),) * layers, (width,) * layers + (math.inf,))
        problem = pk.PathKernels(self.xi(self.inputs, layers), self.labels)
        return pk.minimise_action(problem, network, self.temperature)

    def xi(self, inputs: np.ndarray, layers: int) -> np.ndarray:
        gated = [pk.Gated(None, self.hyperplanes)] * layers
        return pk.attentioned_inputs(inputs[:, None, :], gated)

    def kernels(self, first: np.ndarray, second: np.ndarray, layers: int) -> np.ndarray:
        """Kernels of pairs of paths through gates, (n, n, P, P'), with explicit products."""
        gates = [np.ones((len(inputs), 1)) for inputs in (first, second)]
        for _ in range(layers):
            gates = [
                np.einsum("pa,pb->pab", old, inputs @ self.hyperplanes.T > 0).reshape(len(old), -1)
                for old, inputs in zip(gates, (first, second))
            ]
        return np.einsum("pa,qb,pq->abpq", *gates, first @ second.T / first.shape[1])

    def source_error(self, width: float) -> float:
        """Mean squared error on new examples, bias and variance, one layer, by the source."""
        kernels = [self.kernels(*pair, 1) for pair in self.pairs()]
        arguments = self.labels, 1, width, self.temperature
        u = sources.gated_order_parameters(kernels[0], *arguments) / len(self.hyperplanes)
        noisy, across, own = (np.tensordot(u, kernel, 2) for kernel in kernels)
        solved = np.linalg.solve(noisy + self.temperature * np.eye(len(noisy)), across.T)
        variance = np.diag(own) - np.einsum("qp,pq->q", across, solved)
        return float(np.mean((self.labels @ solved - self.new_labels) ** 2 + variance))

    def pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self.inputs, self.inputs), (self.new, self.inputs), (self.new, self.new)]

    def error(self, width: float) -> float:
        predicted = self.solution(1, width).predict(self.xi(self.new, 1))
        return float(np.mean((predicted.mean - self.new_labels) ** 2 + predicted.variance))


def gated() -> Iterator[Comparison]:
    """Order parameters of gated deep linear networks of one and two layers."""
    for layers, gates in ((1, 10), (2, 3)):
        data = GatedData.drawn(gates)

        def source(width: float) -> np.ndarray:
            kernels = data.kernels(data.inputs, data.inputs, layers)
            arguments = data.labels, layers, width, data.temperature
            return sources.gated_order_parameters(kernels, *arguments)

        for width in (5, 50):
            yield compare(
                "gated linear network",
                f"U, L = {layers}, {gates} gates, N = {width}",
                lambda: data.solution(layers, width).order_parameter,
                lambda: source(width),
            )


@dataclass(frozen=True)
class LinearData:
    """Inputs (P, N_0) and labels (P,) of a noisy linear rule, fewer examples than inputs."""

    inputs: np.ndarray
    labels: np.ndarray
    temperature: float = 1e-10  # the closed form is that of T → 0

    @classmethod
    def drawn(cls, examples: int = 60, width: int = 100) -> LinearData:
        generator = np.random.default_rng(0)
        inputs = generator.standard_normal((examples, width))
        rule, noise = generator.standard_normal(width), generator.standard_normal(examples)
        return cls(inputs, inputs @ rule / math.sqrt(width) + 0.5 * noise)

    def renormalisation(self, depth: int, width: float) -> float:
        """u₀ of networks of so many hidden layers: all levels have the same ratio u_ℓ/u_ℓ₊₁."""
        problem = pk.PathKernels(self.inputs[:, None, :], self.labels)
        network = pk.Network((1,) * depth, (width,) * depth + (math.inf,))
        u = pk.minimise_action(problem, network, self.temperature).order_parameter
        return float(u[0, 0]) ** (1 / depth)

    def source(self, depth: int, width: float) -> float:
        kernel = self.inputs @ self.inputs.T / self.inputs.shape[1]
        return sources.scalar_renormalisation(kernel, self.labels, depth, width)


def deep_linear() -> Iterator[Comparison]:
    """Scalar renormalisation at several depths and widths."""
    data = LinearData.drawn()
    for depth in DEPTHS:
        yield compare(
            "deep linear network",
            f"u, L = {depth}, {len(WIDTHS)} widths",
            lambda: np.array([data.renormalisation(depth, width) for width in WIDTHS]),
            lambda: np.array([data.source(depth, width) for width in WIDTHS]),
        )


@dataclass(frozen=True)
class BranchData:
    """Inputs of branches (P, B, N_0), labels (P,) of a teacher, and its mean squares u_l."""

    xi: np.ndarray
    labels: np.ndarray
    teacher: np.ndarray
    temperature: float = 0.05

    @classmethod
    def drawn(cls, examples: int = 400, width: int = 20) -> BranchData:
        """A teacher of the same branches, whose readouts have different strengths."""
        generator, count = np.random.default_rng(0), len(STRENGTHS)
        xi = generator.standard_normal((examples, count, width))
        rules = np.array(STRENGTHS)[:, None] * generator.standard_normal((count, width))
        labels = np.einsum("pbi,bi->p", xi, rules) / math.sqrt(count * width)
        noise = generator.standard_normal(examples)
        return cls(xi, labels + math.sqrt(cls.temperature) * noise, (rules**2).mean(1))

    @property
    def kernels(self) -> np.ndarray:
        return np.einsum("pbi,qbi->bpq", self.xi, self.xi) / self.xi.shape[2]

    def order_parameters(self, variance: float, widths: tuple[float, ...]) -> np.ndarray:
        """u (widths, B) at the prior variance σ² = σ²_V."""
        problem = pk.PathKernels(self.xi, self.labels)
        networks = [
            pk.Network((len(STRENGTHS),), width, (variance, 1.0), shared=False) for width in widths
        ]
        solutions = [pk.minimise_action(problem, one, self.temperature) for one in networks]
        return np.array([solution.order_parameter for solution in solutions])

    def source(self, variance: float, widths: tuple[float, ...]) -> np.ndarray:
        arguments = widths, variance, self.temperature
        return sources.branch_order_parameters(self.kernels, self.labels, *arguments)


def branches() -> Iterator[Comparison]:
    """Order parameters of independent branches, equipartition and the teacher's strengths."""
    data = BranchData.drawn()
    for variance in VARIANCES:
        yield compare(
            "branches",
            f"u, σ² = {variance:g}, {len(NARROW)} widths",
            lambda: data.order_parameters(variance, NARROW),
            lambda: data.source(variance, NARROW),
        )
    narrow = np.concatenate([data.order_parameters(each, NARROW[:1]) for each in VARIANCES])
    for u, variance in zip(narrow, VARIANCES):
        slopes = sources.gradient_of_energy(data.kernels, data.labels, u, data.temperature)
        excess, expected = u * slopes, -NARROW[0] * (u / variance - 1)
        name = f"Tr − r at N = {NARROW[0]}, σ² = {variance:g}"
        yield Comparison("branches", name, excess, expected, math.nan, math.nan)
    yield Comparison(
        "branches", "u at N = 0.01, teacher", narrow[0], data.teacher, math.nan, math.nan
    )


def attention_paths() -> Iterator[Comparison]:
    """Action of the hidden Markov task, and that of Adam through automatic differentiation."""
    from benchmarks import problems, todays_practice

    task = problems.markov()
    for width in (10, 100):

        def today() -> float:
            return todays_practice.minimise(
                *(task.xi, task.labels, task.heads, width, task.temperature),
                learning_rate=task.learning_rate,
                tolerance=1e-5,
                max_steps=task.max_steps,
            ).action

        def ours() -> float:
            problem = pk.PathKernels(task.xi, task.labels)
            return pk.minimise_action(
                problem, pk.Network(task.heads, width), task.temperature
            ).action

        yield compare("attention paths", f"S/N, hidden Markov, N = {width}", ours, today)


THEORIES = (attention_paths, convolution, gated, deep_linear, branches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", metavar="DIR", help="folder to which figures are written")
    options = parser.parse_args()
    with one_thread():
        print("theory | quantity | ours | source | largest difference | seconds | source, seconds")
        for theory in THEORIES:
            for comparison in theory():
                print(f"| {' | '.join(comparison.cells())} |", flush=True)
        if options.figures:
            from benchmarks.engine_figures import save_figures

            save_figures(options.figures)


if __name__ == "__main__":
    main()
