"""A study: a task with its options on a grid, and how it is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pathkernel_core.contracts.failures import named_failures
from pathkernel_core.contracts.options import (
    Options,
    check_value,
    declared_options,
    option,
    several_values,
)
from pathkernel_core.contracts.task import Blocks, Examples, Realisation, Task
from pathkernel_core.energy.likelihoods import LIKELIHOODS, likelihood_of
from pathkernel_core.energy.token_kernels import TOKEN_KERNELS
from pathkernel_core.paths.network import Skips, skips_of_layers
from pathkernel_core.system.text import format_value
from pathkernel_datasets.errors import TaskError

POINT = ("seed", "temperature", "width")
"""Dimensions of the grid of a study, in the order of its stored variables."""

SETTINGS = ("variance", "input_scale", "token_kernel")
"""Options of a study that may have several values, as those of its task may."""

_NAMES = {"variance": "prior variance σ²"}  # of options that have another in the text

OF_TASK = ("widths", "temperatures", "variances")
"""Options of a study whose default is the task's."""

CLASS_TEMPERATURE = 1.0
"""The one temperature of a study of classes, of whose cross entropy the likelihood is the Gibbs
weight; the prior variance is the scale."""


@dataclass(frozen=True)
class Study(Options):
    """A task on a grid of widths, temperatures and seeds.

    Parameters
    ----------
    task : Task
        Task with its options.
    widths, temperatures : sequence of float, optional
        Grid; by default the task's own. Widths are finite: every study computes the Gaussian
        process limit, too.
    seeds : sequence of int
        Seeds of the task's data and heads.
    backend, dtype : str
        Array library and precision to compute in.
    variances : float or sequence of float, optional
        Prior variances σ²_0, σ²_1 … σ²_L, σ²_a of the weights, or one number for all; by default
        the task's own.
    variance : float, optional
        Prior variance σ² of all weights, in place of ``variances``.
    input_scale : float, optional
        Factor of all attentioned inputs; by default 1.
    token_kernel : str, optional
        Kernel of tokens, as for :func:`path_kernels`: that of a token-wise layer of infinite width
        below the attention, or, by default, of none.
    sweep : mapping of str to sequence, optional
        Several values of ``variance``, ``input_scale``, ``token_kernel`` or an option of the task,
        a number or one of some words, by its name. They are the first dimension of all that is
        computed.
    skips : float or None, or sequence of them, optional
        Strengths of skip connections that the theory's network has, whatever the task, for all
        layers or for each; None, the default, for none.
    likelihood : {"squared", "logistic", "softmax"}
        What labels are, as for :class:`pathkernel_core.Problem`: of tasks whose labels are classes
        "logistic" for two and "softmax" for more, which have probabilities, and no temperature but
        1. The prior variance is their scale.

    Raises
    ------
    ValueError
        If a number is out of range or appears twice, or an option of the task does not take several
        values.
    TypeError
        If the task is none, a value has another type than its option, or a single number is given
        where several may be.
    """

    task: Task
    widths: Sequence[float] | Any = option(
        None,
        "Network widths N.",
        type=tuple,
        above=0,
        flags=("--width", "--widths"),
        metavar="N,N,…",
    )
    temperatures: Sequence[float] | Any = option(
        None,
        "Gibbs temperatures T.",
        type=tuple,
        above=0,
        flags=("--temperature", "--temperatures"),
        metavar="T,T,…",
    )
    seeds: Sequence[int] = option(
        (0,),
        "Seeds of data and random heads, such as 0,1 or 0-4.",
        type=tuple[int, ...],
        minimum=0,
        below=2**63,
        flags=("--seed", "--seeds"),
        metavar="S,S,…",
    )
    backend: str = option("numpy", "Array library.", metavar="[numpy|jax|cupy|torch]")
    dtype: str = option("float64", "Precision.", metavar="[float64|float32]")
    variances: float | Sequence[float] | Any = option(
        None,
        "Prior variances of all weights: one number, or those of the projection, of each layer's "
        "values and of the readout.",
        type=float | tuple[float, ...],
        above=0,
        metavar="V,V,…",
    )
    variance: float | None = option(
        None,
        "Prior variance σ² of all weights; several values are an axis of the study.",
        type=float,
        above=0,
    )
    input_scale: float | None = option(
        None,
        "Factor of the attentioned inputs; several values are an axis of the study.  [default: 1]",
        type=float,
        above=0,
    )
    token_kernel: str | None = option(
        None,
        "Kernel of tokens: that of a token-wise ReLU or erf layer of infinite width below the "
        "attention, or linear, of none; several values are an axis of the study.  "
        "[default: linear]",
        choices=tuple(TOKEN_KERNELS),
        type=str,
    )
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict, hash=False)
    skips: Skips = option(
        None,
        "Strengths of skip connections in the theory: one number, or one for each layer, such as "
        "0.7,none.",
        type=float | tuple[float | None, ...],
        minimum=0,
        metavar="S,S,…",
    )
    likelihood: str = option(
        "squared",
        "Likelihood of the labels: the squared loss, or, with probabilities, logistic for two "
        "classes and softmax for more.",
        metavar=f"[{'|'.join(LIKELIHOODS)}]",
    )

    def __post_init__(self):
        task, sweep = self.task, {}
        if not isinstance(task, Task):
            raise TypeError(f"task must be a task with its options, as Custom(…), not {task!r}")
        for name, several in (self.sweep or {}).items():
            of_study = name in SETTINGS
            values = several_values(self if of_study else task, name, _sequence(name, several))
            if of_study:
                object.__setattr__(self, name, values[0])
            else:
                task = dataclasses.replace(task, **{name: values[0]})
            if len(values) > 1:
                sweep[name] = values
        if len(sweep) > 1:
            raise ValueError(
                f"one option may have several values, not {' and '.join(sweep)}; run a study for "
                "each value of the others, into a folder of its own"
            )
        if self.variance is not None and self.variances is not None:
            raise ValueError("variance is that of all weights: give variance or variances")
        if self.has_probabilities:
            if self.temperatures not in (None, (CLASS_TEMPERATURE,)):
                raise ValueError(
                    f"temperatures must be left out: the {self.likelihood} likelihood has none. "
                    "The prior variance is its scale; give several values of variance (--variance)"
                )
            object.__setattr__(self, "temperatures", (CLASS_TEMPERATURE,))
        declared = declared_options(self)
        for name in OF_TASK:
            replaced = name == "variances" and self.variance is not None
            if getattr(self, name) is None and not replaced:
                object.__setattr__(self, name, check_value(declared[name], getattr(task, name)))
        if isinstance(self.variances, tuple) and len(self.variances) == 1:
            object.__setattr__(self, "variances", self.variances[0])
        for name in ("widths", "temperatures", "seeds"):
            _check_distinct(name, getattr(self, name))
        for name, value in (("task", task), ("sweep", sweep), ("skips", _skips(self.skips))):
            object.__setattr__(self, name, value)

    @property
    def has_probabilities(self) -> bool:
        """Whether labels are classes with probabilities, without a temperature."""
        return not likelihood_of(self.likelihood).is_gaussian

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Values along every dimension of the grid: of the option that is swept, and of points."""
        return {**self.sweep, **dict(zip(POINT, (self.seeds, self.temperatures, self.widths)))}

    def on_grid(self, grid: Mapping[str, Sequence[Any]]) -> Study:
        """The same study on another grid, some dimensions of which may be left out."""
        values = self.grid | dict(grid)
        points: dict[str, Any] = {f"{name}s": values.pop(name) for name in POINT}
        return dataclasses.replace(self, **points, sweep=values)

    @property
    def singles(self) -> list[Study]:
        """The studies of single values of the option that is swept; itself if none is."""
        singles = [self.on_grid({name: [v]}) for name, values in self.sweep.items() for v in values]
        return singles or [self]

    def join_grid(self, stored: Study) -> Study:
        """Study on the union of two grids, in the order of the one that contains the other.

        If neither does, new values follow the stored ones.
        """
        names = {**stored.grid, **self.grid}
        return self.on_grid({name: _union(self.along(name), stored.along(name)) for name in names})

    def along(self, name: str) -> tuple[Any, ...]:
        """Values along a dimension of a grid, or the only one of an option."""
        return tuple(self.grid[name]) if name in self.grid else (self.value(name),)

    def label(self, naming: Iterable[str] = ()) -> str:
        """The study in words, which name some options even where they have their default."""
        parts = self.task.label.split(", ")
        settings = [name for name in SETTINGS if self.value(name) is not None]
        options = [
            describe_option(name, self.value(name)) for name in dict.fromkeys((*naming, *settings))
        ]
        return ", ".join([*parts, *(option for option in options if option not in parts)])

    def value(self, name: str) -> Any:
        """Value of an option of the study or of its task."""
        return getattr(self if name in SETTINGS else self.task, name)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the task, and those of the study that may have several values, by name."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        return self.task.options() | {
            name: value for name, value in settings.items() if value is not None
        }


def describe_option(name: str, value: Any = "") -> str:
    """An option and its value as a reader would write them."""
    return f"{_NAMES.get(name, name.replace('_', ' '))} {format_value(value)}".rstrip()


def _union(values: tuple, stored: tuple) -> tuple:
    if set(stored) < set(values):
        return values
    return (*stored, *(value for value in values if value not in stored))


def _sequence(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence, such as ({values},), but is {values!r}")
    return tuple(values)


def _check_distinct(name: str, values: Sequence[Any]) -> None:
    """Raise ValueError if a value along a dimension of the grid is repeated."""
    if len(set(values)) != len(values):
        raise ValueError(f"{name} holds a value twice: {', '.join(map(str, values))}")


def _skips(skips: Any) -> Skips:
    strengths = skips_of_layers(skips, np.size(skips) or 1)
    return strengths[0] if len(strengths) == 1 or set(strengths) == {None} else strengths


def make_task(task: type[Task], options: Mapping[str, Any]) -> Task:
    """Task with its options.

    Raises
    ------
    ValueError
        If it refuses an option.
    TaskError
        If a task of another distribution fails otherwise.
    """
    with named_failures(f"the task {task.name!r} cannot be made", task, TaskError, may_refuse=True):
        return task(**options)


def draw_realisation(task: Task, seed: int) -> Realisation:
    """A task's data and heads.

    Raises
    ------
    TaskError
        If a task of another distribution fails in its own way; those of pathkernel have errors of
        their own.
    """
    with task_failures(task, f"cannot draw seed {seed}"):
        return task.realise(seed)


def draw_blocks(task: Task, seed: int) -> Blocks | None:
    """A task's training examples in blocks, if they are too many to hold.

    Errors are those of :func:`draw_realisation`.
    """
    with task_failures(task, f"cannot draw seed {seed}"):
        blocks = task.blocks(seed)
    if blocks is None:
        return None
    return dataclasses.replace(blocks, draw=partial(_draw_block, task, seed, blocks.draw))


def _draw_block(task: Task, seed: int, draw: Callable[[int], Examples], number: int) -> Examples:
    with task_failures(task, f"cannot draw block {number} of seed {seed}"):
        return draw(number)


def task_failures(task: Task, doing: str) -> AbstractContextManager[None]:
    """Context in which a task's own code runs: its errors become TaskErrors that name the task."""
    options = ", ".join(f"{name}={value!r}" for name, value in task.options().items())
    what = f"the task {task.name!r} with {options or 'no options'} {doing}"
    return named_failures(what, type(task), TaskError)
