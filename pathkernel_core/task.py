"""What a task is: seeded data, the attention of a network on it, and the sizes worth running."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pathkernel_core.attention import Layer, Readout
from pathkernel_core.backend import Array, to_host
from pathkernel_core.options import option as option

KINDS = ("classes", "targets")
"""What labels are: classes, scored by accuracy, or real targets, scored by squared error."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled token sequences.

    Attributes
    ----------
    inputs : array, shape (P, M, N_0)
        Token sequences.
    labels : array, shape (P,) or (P, C)
        Of classes ±1: one output for two of them, else one for each, +1 for the example's class.
        Real targets as they are.
    layers : sequence of Layer, optional
        Attention on these examples, if it is another than the realisation's: attention matrices
        belong to the examples that they were taken from.
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
    """Training examples that are too many to hold, drawn block by block.

    Attributes
    ----------
    examples : int
        Number of all examples.
    size : int
        Number of examples of a block; the last may have fewer.
    draw : callable
        Number of a block → its Examples, the same ones whenever, wherever and in whatever order
        blocks are asked for: each has a random stream of its own, or rows of a file.
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
        Attention of each layer, the first layer first, with NumPy arrays.
    readout : "first", "last", "mean" or int
        Token at which the network is read out.
    train : Examples
        Training examples; where the task gives :meth:`Task.blocks`, some of them.
    test_sets : mapping of str to Examples
        Test sets by name, in the order in which they are reported.
    sub_networks : mapping of str to sequences of heads
        Named sub-networks to report in the Gaussian process limit: the head numbers, from 1, that
        each keeps in every layer.
    validation : Examples or None
        Examples that neither the training set nor any test set contains, of the kind that the
        network is trained on: a temperature chosen by them has not seen what it is tested on.
    notes : mapping of str to str
        Sentences that belong to every result, by a short name: ``approximation`` says in what the
        network that the heads come from departs from the theory's.
    kind : "classes", "targets" or None
        What the labels are. None stands for classes where the training labels are ±1, or with
        several outputs a single 1 in every row beside −1 or 0; else for targets. It is refused
        where one output has 0 and 1, which may be meant as either.
    centred : bool
        Whether the mean of the training targets is taken off before anything is computed, and added
        to predictions again.
    output_names : sequence of str, optional
        What the outputs stand for, such as the names of classes.
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
        if self.output_names is not None and len(self.output_names) != self.outputs:
            raise ValueError(
                f"output_names must name {self.outputs} outputs, but names {len(self.output_names)}"
            )
        if self.output_names is not None and len(set(self.output_names)) < self.outputs:
            raise ValueError(f"output_names must differ, but are {', '.join(self.output_names)}")

    def _check_classes(self) -> None:
        examples = {"training": self.train, **self.test_sets}
        if self.validation is not None:
            examples["validation"] = self.validation
        for name, held in examples.items():
            if not _are_classes(to_host(held.labels)):
                raise ValueError(
                    f"labels of {name} examples must be ±1 to be classes, or with several outputs "
                    "a single 1 in every row beside −1 or 0; draw such, or say kind='targets'"
                )

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
    """What labels are by their values."""
    single = labels.ndim == 1 or labels.shape[1] == 1
    if single and np.isin(labels, (0, 1)).all() and not (labels == 1).all():
        raise ValueError(
            "labels are 0 and 1: draw −1 and +1 for two classes, or say kind='targets'"
        )
    return "classes" if _are_classes(labels) else "targets"


def _are_classes(labels: np.ndarray) -> bool:
    """Whether labels are ±1, or a single 1 in every row beside −1 or 0."""
    if labels.ndim == 1 or labels.shape[1] == 1:
        return bool(np.isin(labels, (-1, 1)).all())
    coded = any(np.isin(labels, (other, 1)).all() for other in (-1, 0))
    return coded and bool(((labels == 1).sum(axis=1) == 1).all())


@dataclass(frozen=True)
class Task(abc.ABC):
    """Base class of tasks: a frozen dataclass whose fields are the task's options.

    Subclasses set the class attributes, declare their options with :func:`option` and implement
    :meth:`realise`. ``pathkernel_core.testing.check_task`` checks them.

    Attributes
    ----------
    name : str
        Lower-case words joined by hyphens, as typed on the command line.
    summary : str
        One line for listings.
    widths, temperatures : tuples of float
        Grid that is run unless the user asks for another.
    variances : float
        Prior variance of all weights.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Parity(Task):
    ...     name = "parity"
    ...     summary = "Parity of a few bits"
    ...     examples: int = option(100, "training examples")
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
        """Draw the data and heads. The same seed and options must give the same arrays."""

    def blocks(self, seed: int) -> Blocks | None:
        """All training examples in blocks, where they are too many to hold; by default None.

        The study then sums what the theory needs of them. ``train`` of the realisation holds some
        of them, a few thousand at most, that analyses and leave-one-out errors are of.
        """
        return None

    def evaluation_sets(self, seed: int, examples: int) -> Mapping[str, Iterable[Examples]]:
        """Labelled examples to judge a trained network on, in batches, by the names of their sets.

        By default those of :meth:`realise`. A task that can draw any number of examples may
        override it.

        Parameters
        ----------
        seed : int
        examples : int
            Largest number of examples of each set.

        Returns
        -------
        mapping of str to iterable of Examples
            First the set that heads may be scored on, which is no test set: the validation
            examples, or the training examples if there are none. Then the test sets.
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
        """Name with the options that are not at their default, for titles."""
        changed = [
            f"{entry.name} {getattr(self, entry.name)}".replace("_", " ")
            for entry in dataclasses.fields(self)
            if getattr(self, entry.name) != entry.default
        ]
        return ", ".join([self.name, *changed])

    def options(self) -> dict[str, Any]:
        """Options by name, as plain values that JSON can hold."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    def provenance(self) -> dict[str, str]:
        """Where the data come from beyond the options, such as checksums of files read.

        Two studies are the same only if this agrees too. A key that is the name of an option says
        that the option is the path of a file: then its content counts, and not where it lies.
        """
        return {}
