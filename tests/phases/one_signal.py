"""A task whose network is silent at small prior variances: one head of two has the signal."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import pathkernel_core as pk
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study


@dataclass(frozen=True)
class OneSignal(Task):
    """Two Gaussian tokens, each read by one head; the label is the sign of the first."""

    name: ClassVar[str] = "one-signal"
    summary: ClassVar[str] = "Sign of one token out of two"

    examples: int = option(20, "training examples")
    scale: float = option(0.1, "standard deviation of the tokens")
    readout: str = option("last", "token read out", choices=("first", "last"))
    tests: int = option(100, "test examples")
    mean: float = option(0.0, "mean of targets, which replace the classes; 0 for classes")

    def realise(self, seed):
        generator = np.random.default_rng(seed)
        heads = np.zeros((1, 2, 2, 2))
        heads[0, [0, 1], [0, 1]] = 1.0  # key of every query

        def draw(count):
            inputs = self.scale * generator.normal(size=(count, 2, 4))
            layer = pk.Attention(np.repeat(heads, count, axis=0))
            return Examples(inputs, np.sign(inputs[:, 0, 0]) + self.mean, [layer])

        train = draw(self.examples)
        labels = {"kind": "targets", "centred": True} if self.mean else {}
        tests = {"test": draw(self.tests)}
        return Realisation(train.layers, self.readout, train, tests, **labels)


def study_of(path, task=None, **settings):
    """Study in a folder, its seeds, widths and temperatures one each unless they are given."""
    grid = {"widths": (20,), "temperatures": (0.01,), "seeds": (3,)} | settings
    run_study(Study(task or OneSignal(), **grid), path, analyses=(), report=lambda progress: None)
    return StoredStudy(path, plugins())


def plugins():
    return Plugins(tasks={"one-signal": OneSignal})


def computed(result, path):
    """Study with a result, and the number of steps that computed it."""
    steps = []
    return run_result(result, path, plugins=plugins(), report=steps.append), len(steps)
