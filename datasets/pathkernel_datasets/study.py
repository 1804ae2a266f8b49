"""What a study is: a task with its options, a grid, and how it is computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pathkernel_core.network import positive
from pathkernel_core.task import Task

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Study:
    """A task on a grid of widths, temperatures and seeds.

    Parameters
    ----------
    task : Task
        Task with its options.
    widths, temperatures : sequence of float, optional
        Grid; by default the task's own.
    seeds : sequence of int
        Seeds of the task's data and heads.
    backend, dtype : str
        Array library and precision to compute in.

    Raises
    ------
    ValueError
        If a number is out of range or appears twice.
    """

    task: Task
    widths: tuple[float, ...]
    temperatures: tuple[float, ...]
    seeds: tuple[int, ...]
    backend: str
    dtype: str

    def __init__(
        self,
        task: Task,
        widths: Sequence[float] | None = None,
        temperatures: Sequence[float] | None = None,
        seeds: Sequence[int] = (0,),
        backend: str = "numpy",
        dtype: str = "float64",
    ):
        widths = tuple(task.widths if widths is None else widths)
        temperatures = tuple(task.temperatures if temperatures is None else temperatures)
        for name, values in (("widths", widths), ("temperatures", temperatures), ("seeds", seeds)):
            if not values:
                raise ValueError(f"{name} must hold at least one value")
            if len(set(values)) != len(values):
                raise ValueError(f"{name} holds a value twice: {', '.join(map(str, values))}")
        for seed in seeds:
            if not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise ValueError(f"seeds must be whole numbers from 0 to 2^63 − 1, not {seed!r}")
        set_ = object.__setattr__
        set_(self, "task", task)
        set_(self, "widths", tuple(positive("widths", value) for value in widths))
        set_(self, "temperatures", tuple(positive("temperatures", value) for value in temperatures))
        set_(self, "seeds", tuple(seeds))
        set_(self, "backend", backend)
        set_(self, "dtype", dtype)

    def identity(self) -> dict[str, Any]:
        """All that determines the results, as plain values; two studies are the same if equal."""
        return json.loads(
            json.dumps(
                {
                    "schema": SCHEMA_VERSION,
                    "task": self.task.name,
                    "options": self.task.options(),
                    "provenance": self.task.provenance(),
                    "variances": self.task.variances,
                    "widths": self.widths,
                    "temperatures": self.temperatures,
                    "seeds": self.seeds,
                    "backend": self.backend,
                    "dtype": self.dtype,
                    "versions": versions(("pathkernel",)),
                }
            )
        )


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of installed distributions."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
