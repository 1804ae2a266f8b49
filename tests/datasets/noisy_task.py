"""A task with real targets, for tests of several rooms."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import pathkernel_core as pk
from pathkernel_core.contracts.task import Examples, Realisation, Task, option

MEAN = np.array([40.0, -7.0])


@dataclass(frozen=True)
class Noisy(Task):
    """Noisy sums of tokens, far from 0, with two test sets and validation examples."""

    name: ClassVar[str] = "noisy"
    summary: ClassVar[str] = "Noisy sums of tokens"
    widths: ClassVar[tuple[float, ...]] = (5, 50)
    temperatures: ClassVar[tuple[float, ...]] = (0.1, 1.0)

    outputs: int = option(1, "network outputs")
    centred: bool = option(True, "centre the targets")
    kind: str = option(None, "kind of labels")

    def realise(self, seed):
        generator = np.random.default_rng(seed)
        teacher = generator.standard_normal((3, self.outputs))

        def draw(count):
            inputs = generator.standard_normal((count, 4, 3))
            labels = inputs.sum(axis=1) @ teacher + MEAN[: self.outputs]
            labels += generator.standard_normal(labels.shape)
            return Examples(inputs, labels[:, 0] if self.outputs == 1 else labels)

        layers = [pk.AttentionProduct(generator.standard_normal((2, 3, 3)))]
        return Realisation(
            layers,
            "mean",
            draw(20),
            {"long": draw(9), "short": draw(5)},
            {"first head": ((1,),)},
            draw(7),
            kind=self.kind,
            centred=self.centred,
            output_names=("near", "far") if self.outputs == 2 else None,
        )
