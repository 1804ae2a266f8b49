"""Data of ``benchmarks.engine``: each with its theory by this engine and by the source.

The digits 4 and 9 of MNIST come from the folder PATHKERNEL_DATA; without it, images made at random
stand in.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import pathkernel as pk
from benchmarks.engine import sources

DEPTHS = (1, 2, 3, 5)  # hidden layers
WIDTHS = (3, 5, 10, 20, 50, 100, 200, 500, 1000)
NARROW = (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 10_000)
VARIANCES = (0.25, 4.0)
STRENGTHS = (0.25, 0.5, 1.0, 2.0)  # of the branches of the teacher


@dataclass(frozen=True)
class Convolution:
    """A layer of error functions over the patches of images, all with the same filters.

    Images (P, side, side), labels ±1 (P,), new images, where they are from, and pixels along a
    patch.
    """

    images: np.ndarray
    labels: np.ndarray
    new: np.ndarray
    origin: str
    side: int
    temperature: float = 0.1

    @classmethod
    def drawn(cls, examples: int, side: int, new: int = 200) -> Convolution:
        """Two classes of standardised images of 28 × 28 pixels."""
        if os.environ.get("PATHKERNEL_DATA"):
            from pathkernel_one_shot.idx import MNIST, read_idx_set

            digits, classes = read_idx_set(MNIST)
            chosen = np.flatnonzero(np.isin(classes, (4, 9)))[: examples + new]
            pixels, labels = digits[chosen].astype(float), np.where(classes[chosen] == 4, 1.0, -1.0)
            origin = "digits"
        else:
            generator = np.random.default_rng(0)
            pixels = generator.standard_normal((examples + new, 28, 28)).cumsum(1).cumsum(2)
            labels = np.sign(pixels[:, 7:14, 14:21].mean((1, 2)))
            origin = "random images (PATHKERNEL_DATA is not set)"
        pixels = (pixels - pixels[:examples].mean()) / pixels[:examples].std()
        return cls(pixels[:examples], labels[:examples], pixels[examples:], origin, side)

    @property
    def tokens(self) -> np.ndarray:
        return patches(self.images, self.side)

    @property
    def n_patches(self) -> int:
        return (self.images.shape[1] // self.side) ** 2

    def solutions(self, channels: Sequence[float]) -> list[pk.Solution]:
        kernels = pk.path_kernels(self.tokens, patch_layers(self.tokens), "erf")
        problem = pk.Problem.from_kernels(kernels, self.labels)
        networks = [pk.Network((self.n_patches,), (count, math.inf)) for count in channels]
        return [pk.minimise_action(problem, network, self.temperature) for network in networks]

    def order_parameters(self, channels: Sequence[float]) -> np.ndarray:
        return np.array([solution.order_parameter for solution in self.solutions(channels)])

    def moments(self, solution: pk.Solution) -> np.ndarray:
        """Mean and variance of the predictor on new images, (2, P_new)."""
        new = patches(self.new, self.side)
        layers = patch_layers(self.tokens), patch_layers(new)
        cross, own = pk.path_kernels(self.tokens, layers[0], "erf", new=new, new_layers=layers[1])
        predicted = solution.predict(cross, own)
        return np.stack([predicted.mean, predicted.variance])

    def direct(self, channels: Sequence[float]) -> np.ndarray:
        """Order parameters by direct minimisation in PyTorch."""
        arguments = sources.erf_kernels(self.tokens), self.labels, (self.n_patches,)
        found = [sources.direct_minimum(*arguments, one, self.temperature) for one in channels]
        return np.array(found)

    def deepbays(self, channels: float) -> object:
        """Theory of deepbays, minimised from the identity."""
        theory = sources.deepbays_convolution()(
            channels, self.temperature, self.side, self.side, act="erf"
        )
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = self.images.reshape(len(self.images), -1)
            theory.preprocess(rows, torch.asarray(self.labels))
            theory.optimize()
        return theory

    def deepbays_moments(self, theory: object) -> np.ndarray:
        mean = np.asarray(theory.predict(self.new.reshape(len(self.new), -1)))
        return np.stack([mean, theory.rK0[0] - np.sum(theory.K0_invK * theory.rK0X, axis=1)])


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


@dataclass(frozen=True)
class Gated:
    """Inputs (P, N_0), labels (P,), both of new examples, the hyperplanes of gates, and layers."""

    inputs: np.ndarray
    labels: np.ndarray
    new: np.ndarray
    new_labels: np.ndarray
    hyperplanes: np.ndarray
    layers: int
    temperature: float = 0.05

    @classmethod
    def drawn(cls, gates: int, layers: int = 1, examples: int = 100, width: int = 20) -> Gated:
        """Labels by a linear rule in each half of the input space; two gates tell the halves."""
        generator = np.random.default_rng(1)
        inputs = generator.standard_normal((examples + 500, width))
        rules = generator.standard_normal((2, width)) / math.sqrt(width)
        labels = np.where(inputs[:, 0] > 0, inputs @ rules[0], inputs @ rules[1])
        hyperplanes = generator.standard_normal((gates, width))
        hyperplanes[:2] = 0
        hyperplanes[:2, 0] = 1, -1
        train, new = slice(examples), slice(examples, None)
        return cls(inputs[train], labels[train], inputs[new], labels[new], hyperplanes, layers)

    def xi(self, inputs: np.ndarray) -> np.ndarray:
        gated = [pk.Gated(None, self.hyperplanes)] * self.layers
        return pk.attentioned_inputs(inputs[:, None, :], gated)

    def solutions(self, widths: Sequence[float]) -> list[pk.Solution]:
        problem, heads = pk.Problem(self.xi(self.inputs), self.labels), len(self.hyperplanes)
        networks = [
            pk.Network((heads,) * self.layers, (width,) * self.layers + (math.inf,))
            for width in widths
        ]
        return [pk.minimise_action(problem, network, self.temperature) for network in networks]

    def order_parameters(self, widths: Sequence[float]) -> np.ndarray:
        return np.array([solution.order_parameter for solution in self.solutions(widths)])

    def errors(self, widths: Sequence[float]) -> list[float]:
        """Mean squared errors on new examples, squared bias and variance."""
        predictions = [solution.predict(self.xi(self.new)) for solution in self.solutions(widths)]
        return [self._error(predicted.mean, predicted.variance) for predicted in predictions]

    def kernels(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Kernels of pairs of paths through gates, (n, n, P, P'), from explicit products."""
        gates = [np.ones((len(inputs), 1)) for inputs in (first, second)]
        for _ in range(self.layers):
            gates = [
                np.einsum("pa,pb->pab", old, inputs @ self.hyperplanes.T > 0).reshape(len(old), -1)
                for old, inputs in zip(gates, (first, second))
            ]
        return np.einsum("pa,qb,pq->abpq", *gates, first @ second.T / first.shape[1])

    def source(self, widths: Sequence[float]) -> np.ndarray:
        """Order parameters by direct minimisation."""
        heads = (len(self.hyperplanes),) * self.layers
        arguments = self.kernels(self.inputs, self.inputs), self.labels, heads
        found = [sources.direct_minimum(*arguments, width, self.temperature) for width in widths]
        return np.array(found)

    def source_errors(self, widths: Sequence[float]) -> list[float]:
        """Errors by the order parameters of the source and an explicit inverse."""
        pairs = (self.inputs, self.inputs), (self.new, self.inputs), (self.new, self.new)
        kernels, errors = [self.kernels(*pair) for pair in pairs], []
        for u in self.source(widths):
            noisy, across, own = (np.tensordot(u, kernel, 2) / len(u) for kernel in kernels)
            solved = np.linalg.solve(noisy + self.temperature * np.eye(len(noisy)), across.T)
            variance = np.diag(own) - np.sum(across.T * solved, axis=0)
            errors.append(self._error(self.labels @ solved, variance))
        return errors

    def _error(self, mean: np.ndarray, variance: np.ndarray) -> float:
        return float(np.mean((mean - self.new_labels) ** 2 + variance))


@dataclass(frozen=True)
class DeepLinear:
    """Inputs (P, N_0) and labels (P,) of a noisy linear rule, fewer examples than inputs."""

    inputs: np.ndarray
    labels: np.ndarray
    temperature: float = 1e-10  # the closed form is that of T → 0

    @classmethod
    def drawn(cls, examples: int = 60, width: int = 100) -> DeepLinear:
        generator = np.random.default_rng(0)
        inputs = generator.standard_normal((examples, width))
        rule, noise = generator.standard_normal(width), generator.standard_normal(examples)
        return cls(inputs, inputs @ rule / math.sqrt(width) + 0.5 * noise)

    def scalars(self, depth: int, widths: Sequence[float]) -> np.ndarray:
        """u of every layer, (widths,): the ratio of the order parameters of two levels."""
        problem = pk.Problem(self.inputs[:, None, :], self.labels)
        networks = [pk.Network((1,) * depth, (width,) * depth + (math.inf,)) for width in widths]
        solutions = [pk.minimise_action(problem, one, self.temperature) for one in networks]
        return np.array([s.order_parameter[0, 0] for s in solutions]) ** (1 / depth)

    def source(self, depth: int, widths: Sequence[float]) -> np.ndarray:
        kernel = self.inputs @ self.inputs.T / self.inputs.shape[1]
        arguments = kernel, self.labels, depth
        return np.array([sources.scalar_renormalisation(*arguments, width) for width in widths])


@dataclass(frozen=True)
class Branches:
    """Inputs of branches (P, B, N_0), labels (P,) of a teacher, and its mean squares u_l (B,)."""

    xi: np.ndarray
    labels: np.ndarray
    teacher: np.ndarray
    temperature: float = 0.01

    @classmethod
    def drawn(cls, examples: int = 400, width: int = 20) -> Branches:
        """A teacher of the same branches, whose readouts have different strengths."""
        generator, count = np.random.default_rng(0), len(STRENGTHS)
        xi = generator.standard_normal((examples, count, width))
        rules = np.array(STRENGTHS)[:, None] * generator.standard_normal((count, width))
        labels = np.einsum("pbi,bi->p", xi, rules) / math.sqrt(count * width)
        noise = generator.standard_normal(examples)
        return cls(xi, labels + math.sqrt(cls.temperature) * noise, (rules**2).mean(1))

    def order_parameters(self, variance: float, widths: Sequence[float]) -> np.ndarray:
        """u (widths, B) at the prior variance σ² = σ²_V."""
        problem, count = pk.Problem(self.xi, self.labels), len(self.teacher)
        networks = [pk.Network((count,), one, (variance, 1.0), shared=False) for one in widths]
        solutions = [pk.minimise_action(problem, one, self.temperature) for one in networks]
        return np.array([solution.order_parameter for solution in solutions])

    @property
    def kernels(self) -> np.ndarray:
        return np.einsum("pbi,qbi->bpq", self.xi, self.xi) / self.xi.shape[2]

    def source(self, variance: float, widths: Sequence[float]) -> np.ndarray:
        arguments = widths, variance, self.temperature
        return sources.branch_order_parameters(self.kernels, self.labels, *arguments)

    def readouts(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tr_l and r_l of the order parameters u (B,), which equipartition compares."""
        arguments = self.kernels, self.labels
        traces = u * sources.gradient_of_energy(self.kernels, 0 * self.labels, u, self.temperature)
        return traces, traces - u * sources.gradient_of_energy(*arguments, u, self.temperature)
