"""Base class of results: labelled data computed from a whole study, stored with it, and views."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pathkernel_core.contracts.options import Options
from pathkernel_core.system.progress import Report


class StoredStudy(Protocol):
    """A study in its folder, as :class:`pathkernel_datasets.results.stored_study.StoredStudy`."""

    path: Path

    @property
    def dataset(self) -> Any:
        """The study itself, an ``xarray.Dataset`` that is read lazily."""

    def result(self, name: str) -> Any:
        """Labelled data of a result, an ``xarray.DataTree``; raises if the folder has none."""


@dataclass(frozen=True)
class Result(Options, abc.ABC):
    """Base class of results: a frozen dataclass whose fields are its options.

    Subclasses set the class attributes, declare options with
    :func:`pathkernel_core.contracts.options.option` and implement :meth:`compute`, and
    :meth:`views` if there is something to show. Each becomes a command; ``show``, ``plot`` and
    ``report`` show those in a folder with default options, except for ``view_options`` that the
    user sets. ``pathkernel_datasets.testing.check_result`` checks them.

    Attributes
    ----------
    name : str
        Lower-case words joined by hyphens: the stem of the file in the study's folder.
    command : str
        Name on the command line; by default the name.
    summary : str
        One line for listings and help that says what the command does: "Classify …".
    of_all_values : bool
        Whether it is computed once from all values of an option that a study sweeps, rather than
        for each of them.
    of_probabilities : bool
        Whether it takes studies of the logistic and the softmax likelihood, too, which have
        probabilities and no temperature. If not, as by default, it is refused for them.
    of_several_outputs : bool
        Whether it takes studies of several outputs, as of more than two classes, which is the
        default. If not, it is refused for them.
    view_options : tuple of str
        Those of the options ``temperature`` and ``seed`` that only select the view, so that
        ``show`` and ``plot`` may set them.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    of_all_values: ClassVar[bool] = False
    of_probabilities: ClassVar[bool] = False
    of_several_outputs: ClassVar[bool] = True
    view_options: ClassVar[tuple[str, ...]] = ()
    command: ClassVar[str] = ""

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        if "command" not in vars(cls) and "name" in vars(cls):
            cls.command = cls.name

    @abc.abstractmethod
    def compute(self, study: StoredStudy, report: Report) -> Any:
        """Compute the parts that the folder lacks, while no other process writes into it.

        Parameters
        ----------
        study : StoredStudy
        report : callable
            Called with a :class:`pathkernel_core.system.progress.Progress`, unless nothing is
            missing.

        Returns
        -------
        xarray.Dataset, or iterable of (str, xarray.Dataset)
            The complete result; or its parts with the paths of their groups in the file. Parts of a
            generator are written one by one, so that an interruption loses only the last.
        """

    def views(self, study: StoredStudy) -> Iterable[Any]:
        """Tables, charts and sentences about the result, in reading order.

        ``show`` prints tables and sentences, ``plot`` saves charts, ``report`` puts all on a page.

        Parameters
        ----------
        study : StoredStudy
            With a single value of every option.

        Returns
        -------
        iterable of pathkernel_views.table.Table, pathkernel_views.chart.Chart or str
        """
        return ()

    def joint_views(self, study: StoredStudy) -> Iterable[Any]:
        """Views of all values of a swept option together, shown after those of every value.

        Parameters
        ----------
        study : StoredStudy
            With all values of the option, or with the only one.

        Returns
        -------
        iterable of pathkernel_views.table.Table, pathkernel_views.chart.Chart or str
        """
        return ()
