"""A small task with everything that stored studies label, and a count of minimisations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import pathkernel_core as pk
from pathkernel_core.action import continuation
from pathkernel_core.contracts.task import Examples, Realisation, Task, option


@dataclass(frozen=True)
class Small(Task):
    """Linear labels on random tokens; layers of 2 and 3 heads, two test sets of unequal size."""

    name: ClassVar[str] = "small"
    summary: ClassVar[str] = "Small synthetic task"
    widths: ClassVar[tuple[float, ...]] = (5, 50)
    temperatures: ClassVar[tuple[float, ...]] = (0.1, 1.0)
    variances: ClassVar[float] = 1.3

    outputs: int = option(1, "network outputs")
    examples: int = option(12, "training examples")

    def realise(self, seed):
        generator = np.random.default_rng(seed)

        def examples(count):
            inputs = generator.standard_normal((count, 4, 3))
            scores = inputs.sum(axis=1) @ teacher
            if self.outputs == 1:
                return Examples(inputs, np.sign(scores[:, 0]))
            largest = scores == scores.max(axis=1, keepdims=True)
            return Examples(inputs, np.where(largest, 1.0, -1.0))

        teacher = generator.standard_normal((3, self.outputs))
        layers = [
            pk.QueryKey(
                generator.standard_normal((heads, 2, 3)), generator.standard_normal((heads, 2, 3))
            )
            for heads in (2, 3)
        ]
        return Realisation(
            layers,
            "mean",
            examples(self.examples),
            {"long": examples(9), "short": examples(5)},
            {"first heads": ((1,), (1, 2))},
        )


def count_minimisations(monkeypatch):
    """List that gets the width of every minimisation of this process from now on."""
    solver_from, widths = continuation.solver_from, []

    def counting(problem, network, *given, **settings):
        widths.append(network.width)
        return solver_from(problem, network, *given, **settings)

    monkeypatch.setattr(continuation, "solver_from", counting)
    return widths
