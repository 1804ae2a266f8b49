"""Base class of tasks: seeded data, the attention of a network on it, and default sizes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pathkernel_core.arrays.backend import Array, to_host
from pathkernel_core.contracts.options import Options
from pathkernel_core.contracts.options import option as option
from pathkernel_core.paths.contraction import Readout
from pathkernel_core.paths.layers import Layer
from pathkernel_core.system.text import format_value

KINDS = ("classes", "targets")
"""Kinds of labels: classes, scored by accuracy, or real targets, scored by squared error."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled token sequences.

    Attributes
    ----------
    inputs : array, shape (P, M, N_0)
        Token sequences.
    labels : array, shape (P,) or (P, C)
        Real targets; or ±1 for classes, with one output for two classes, else one for each class.
    layers : sequence of Layer, optional
        Attention on these examples, if it differs from the realisation's, as attention matrices do.
    """

    inputs: Array
    labels: Array
    layers: Sequence[Layer] | None = None

    def __post_init__(self):
        for name in ("inputs", "labels"):
            value = getattr(self, name)
            if not hasattr(value, "ndim"):
                raise TypeError(f"{name} must be an array, not {type(value).__name__}")


@dataclass(frozen=True, eq=False)
class Blocks:
    """Training examples too many for memory, drawn block by block.

    Attributes
    ----------
    examples : int
        Number of all examples.
    size : int
        Number of examples of a block; the last may have fewer.
    draw : callable
        Number of a block → its Examples, always the same: each block has its own random stream, or
        rows of a file.
    label_mean : array, shape () or (C,), optional
        Mean of all labels, for a realisation that is centred.
    """

    examples: int
    size: int
    draw: Callable[[int], Examples]
    label_mean: Array | None = None

    def __len__(self) -> int:
        """Number of blocks."""
        return -(-self.examples // self.size)


@dataclass(frozen=True, eq=False)
class Realisation:
    """One draw of a task's data and heads.

    Attributes
    ----------
    layers : sequence of Layer
        Attention of each layer, first layer first, with NumPy arrays.
    readout : "first", "last", "mean" or int
        Token at which the network is read out.
    train : Examples
        Training examples; a sample of them if the task has :meth:`Task.blocks`.
    test_sets : mapping of str to Examples
        Test sets by name, in the order of reports.
    sub_networks : mapping of str to sequences of heads
        Named sub-networks to report in the Gaussian process limit: head numbers of every layer,
        from 1.
    validation : Examples or None
        Examples of the training distribution outside the training and test sets, to choose a
        temperature with.
    notes : mapping of str to str
        Sentences for every result, by a short name: ``approximation`` states the difference of the
        network that the heads come from from the theory's.
    kind : "classes", "targets" or None
        Kind of the labels. None stands for classes if the training labels are ±1, or with several
        outputs a single 1 in every row of −1 or 0; else for targets. Labels 0 and 1 of one output
        need an explicit kind.
    centred : bool
        Whether to subtract the mean of the training targets, and to add it to predictions.
    output_names : sequence of str, optional
        Meaning of the outputs, such as the names of classes.
    """

    layers: Sequence[Layer]
    readout: Readout
    train: Examples
    test_sets: Mapping[str, Examples]
    sub_networks: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    validation: Examples | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None
    centred: bool = False
    output_names: Sequence[str] | None = None

    def __post_init__(self):
        if not self.test_sets:
            raise ValueError("test_sets must hold at least one test set")
        if self.kind is None:
            object.__setattr__(self, "kind", _kind(to_host(self.train.labels)))
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.kind == "classes":
            self._check_classes()
        if self.centred and self.kind != "targets":
            raise ValueError("classes are ±1 and not centred; leave centred out, or take targets")
        names = self.output_names
        if names is not None and len(names) != self.outputs:
            raise ValueError(
                f"output_names must name {self.outputs} outputs, but names {len(names)}"
            )
        if names is not None and len(set(names)) < self.outputs:
            raise ValueError(f"output_names must differ, but are {', '.join(names)}")

    def _check_classes(self) -> None:
        for name, examples in self.example_sets().items():
            if not _are_classes(to_host(examples.labels)):
                raise ValueError(
                    f"labels of {name} examples must be ±1 to be classes, or with several outputs "
                    "a single 1 in every row of −1 or 0; change them, or set kind='targets'"
                )

    def example_sets(self) -> dict[str, Examples]:
        """Training examples, test sets and validation examples by name."""
        validation = {} if self.validation is None else {"validation": self.validation}
        return {"training": self.train, **self.test_sets, **validation}

    @property
    def heads(self) -> tuple[int, ...]:
        """Number of heads of each layer."""
        return tuple(layer.n_heads for layer in self.layers)

    def layers_of(self, examples: Examples) -> Sequence[Layer]:
        """Attention of each layer on those examples."""
        return self.layers if examples.layers is None else examples.layers

    @property
    def outputs(self) -> int:
        """Number C of outputs."""
        return self.train.labels.shape[1] if self.train.labels.ndim == 2 else 1


def _kind(labels: np.ndarray) -> str:
    """Kind of labels by their values."""
    single = labels.ndim == 1 or labels.shape[1] == 1
    if single and np.isin(labels, (0, 1)).all() and not (labels == 1).all():
        raise ValueError(
            "labels are 0 and 1; take −1 and +1 for two classes, or set kind='targets'"
        )
    return "classes" if _are_classes(labels) else "targets"


def _are_classes(labels: np.ndarray) -> bool:
    """Whether labels are ±1, or have a single 1 in every row of −1 or 0."""
    if labels.ndim == 1 or labels.shape[1] == 1:
        return bool(np.isin(labels, (-1, 1)).all())
    coded = any(np.isin(labels, (low, 1)).all() for low in (-1, 0))
    return coded and bool(((labels == 1).sum(axis=1) == 1).all())


@dataclass(frozen=True)
class Task(Options, abc.ABC):
    """Base class of tasks: a frozen dataclass whose fields are the task's options.

    Subclasses set the class attributes, declare options with :func:`option`, which are checked
    when a task is made, and implement :meth:`realise`.
    :func:`pathkernel_core.contracts.testing.check_task` checks them.

    Attributes
    ----------
    name : str
        Lower-case words joined by hyphens, as typed on the command line.
    summary : str
        One line for listings and help that says what the command does: "Classify …".
    widths, temperatures : tuples of float
        Default grid.
    variances : float
        Prior variance of all weights.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import pathkernel as pk
    >>> @dataclass(frozen=True)
    ... class Parity(pk.plugins.Task):
    ...     name = "parity"
    ...     summary = "Learn the parity of a few bits"
    ...     examples: int = pk.plugins.option(100, "training examples")
    ...     def realise(self, seed): ...
    >>> Parity(examples=10).options()
    {'examples': 10}
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    widths: ClassVar[tuple[float, ...]] = (10, 30, 100, 300, 1000)
    temperatures: ClassVar[tuple[float, ...]] = (0.01,)
    variances: ClassVar[float] = 1.0

    @abc.abstractmethod
    def realise(self, seed: int) -> Realisation:
        """Draw data and heads; the same seed and options give the same arrays."""

    def blocks(self, seed: int) -> Blocks | None:
        """All training examples in blocks, if they are too many for memory; by default None.

        The study then sums their sufficient statistics. ``train`` of the realisation holds at most
        a few thousand of them, for analyses and leave-one-out errors.
        """
        return None

    def evaluation_sets(self, seed: int, examples: int) -> Mapping[str, Iterable[Examples]]:
        """Labelled examples on which to evaluate a trained network, in batches, by set.

        By default those of :meth:`realise`; a task with unlimited examples may override it.

        Parameters
        ----------
        seed : int
        examples : int
            Largest number of examples of each set.

        Returns
        -------
        mapping of str to iterable of Examples
            First the set for scoring heads, which is no test set: the validation examples, or the
            training examples if there are none. Then the test sets.
        """
        drawn = self.realise(seed)
        first = {"training": drawn.train}
        if drawn.validation is not None:
            first = {"validation": drawn.validation}
        return {
            name: [Examples(part.inputs[:examples], part.labels[:examples])]
            for name, part in (first | dict(drawn.test_sets)).items()
        }

    @property
    def label(self) -> str:
        """Name with the options that differ from their defaults, for titles."""
        changed = [
            f"{entry.name.replace('_', ' ')} {format_value(getattr(self, entry.name))}"
            for entry in dataclasses.fields(self)
            if getattr(self, entry.name) != entry.default
        ]
        return ", ".join([self.name, *changed])

    def options(self) -> dict[str, Any]:
        """Options by name, as values for JSON."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    def provenance(self) -> dict[str, str]:
        """Origin of the data beyond the options, such as checksums of files.

        Equal studies must agree in it. A key that is the name of an option marks a file's path,
        which then counts by the file's content.
        """
        return {}
