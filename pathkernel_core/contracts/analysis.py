"""Base class of analyses: labelled quantities computed from a solution or from a task's data."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:  # of the minimiser, which help of commands does not need
    from pathkernel_core.action.solution import Solution
    from pathkernel_core.arrays.backend import Array
    from pathkernel_core.contracts.task import Realisation
    from pathkernel_core.paths.network import Network


@dataclass(frozen=True)
class Variable:
    """Description of one labelled quantity.

    Attributes
    ----------
    name : str
        Name in the dataset.
    dims : tuple of str
        Dimensions besides those of the grid; no name twice.
    long_name : str
        Description in words.
    units : str
        "1" for pure numbers.
    equation : str
        Definition, such as "Eq. 10".
    """

    name: str
    dims: tuple[str, ...]
    long_name: str
    units: str = "1"
    equation: str = ""


@dataclass(frozen=True, eq=False)
class Situation:
    """Input of an analysis.

    Attributes
    ----------
    realisation : Realisation
        Data and heads, as NumPy arrays. Arrays of NumPy are read-only here, and in ``xi``,
        ``labels`` and ``solution``, but for those of ``solution.problem``, which all analyses
        share: copy what you change.
    xi : array, shape (P, n, N_0)
        Attentioned inputs of the training examples, in the study's array library.
    labels : array, shape (P,) or (P, C)
        Training labels in the same library.
    network : Network
        At the width of the solution; at the largest width for an analysis of the data alone.
    solution : Solution or None
        Minimum or Gaussian process limit; None for an analysis of the data alone.
    """

    realisation: Realisation
    xi: Array
    labels: Array
    network: Network
    solution: Solution | None = None


class Analysis(abc.ABC):
    """Base class of analyses; ``pathkernel_datasets.testing.check_analysis`` checks subclasses.

    Attributes
    ----------
    name, summary : str
        As in listings.
    variables : tuple of Variable
        Description of the values that :meth:`compute` returns.
    dimensions : mapping of str to str
        Meaning of the analysis's own dimensions, in words.
    scope : {"solution", "data"}
        "solution": computed at every grid point and, under names that end in ``_gp``, in the
        Gaussian process limit. "data": computed once per seed.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    variables: ClassVar[tuple[Variable, ...]]
    dimensions: ClassVar[Mapping[str, str]] = {}
    scope: ClassVar[Literal["solution", "data"]] = "solution"

    @abc.abstractmethod
    def coordinates(self, situation: Situation) -> Mapping[str, Sequence[Any]]:
        """Labels of each of the analysis's own dimensions, the same for every seed.

        Datasets label common ones, such as ``path`` and ``head``. The situation has no solution.
        """

    @abc.abstractmethod
    def compute(self, situation: Situation) -> Mapping[str, Any]:
        """Values of all variables, by name: NumPy arrays whose shapes follow the dimensions.

        NaN where a variable is not defined. A variable without value, a value that is not declared
        and another number of dimensions are errors.
        """
