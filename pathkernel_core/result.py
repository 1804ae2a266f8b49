"""What a result is: labelled data computed from a whole study, kept beside it, with its views."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pathkernel_core.progress import Report


class StoredStudy(Protocol):
    """A study in its store, as results see it: :class:`pathkernel_datasets.stored.StoredStudy`.

    Attributes
    ----------
    path : Path
        The store.
    dataset : xarray.Dataset
        The study itself, lazily.
    """

    path: Path

    @property
    def dataset(self) -> Any:
        """The study itself, lazily."""

    def result(self, name: str) -> Any:
        """Labelled data of a result, as an ``xarray.DataTree``; raises if the store has none."""


@dataclass(frozen=True)
class Result(abc.ABC):
    """Base class of results: a frozen dataclass whose fields are its options.

    Subclasses set the class attributes, declare their options with
    :func:`pathkernel_core.options.option` and implement :meth:`compute`, and :meth:`views` as far
    as there is something to see. The command line makes a command of each, and ``show``, ``plot``
    and ``report`` show those that a store holds, with the options at their defaults but for
    ``view_options`` that the user gives.
    ``pathkernel_datasets.testing.check_result`` checks them.

    Attributes
    ----------
    name : str
        Lower-case words joined by hyphens: the group of the store that holds it.
    command : str
        What it is called on the command line; by default its name.
    summary : str
        One line for listings.
    of_all_values : bool
        Whether it is computed once from all values of an option that a study sweeps, rather than
        for each of them.
    view_options : tuple of str
        Which of the options ``temperature`` and ``seed`` say what is shown, rather than what is
        computed, so that ``show`` and ``plot`` may set them.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    of_all_values: ClassVar[bool] = False
    view_options: ClassVar[tuple[str, ...]] = ()
    command: ClassVar[str] = ""

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        if "command" not in vars(cls) and "name" in vars(cls):
            cls.command = cls.name

    @abc.abstractmethod
    def compute(self, study: StoredStudy, report: Report) -> Any:
        """Compute what the store lacks; no other process writes into the store meanwhile.

        Parameters
        ----------
        study : StoredStudy
        report : callable
            To be called with a :class:`pathkernel_core.progress.Progress` as work goes on; not
            called if nothing is left to do.

        Returns
        -------
        xarray.Dataset, or iterable of (str, xarray.Dataset)
            The whole result; or its parts, each with its place below the result's own group, such
            as a point of the study. A generator's parts are written as they come, so that an
            interruption costs the last one only.
        """

    def views(self, study: StoredStudy) -> Iterable[Any]:
        """Tables, charts and sentences about the result, in the order in which they are read.

        Parameters
        ----------
        study : StoredStudy
            Of one value of every option.

        Returns
        -------
        iterable of pathkernel_views.table.Table, pathkernel_views.chart.Chart or str
            ``show`` prints the tables and sentences, ``plot`` saves the charts, and ``report`` puts
            all into one page.
        """
        return ()
