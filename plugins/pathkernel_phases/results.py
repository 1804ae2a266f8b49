"""Phases and learning curves as results: their options, and when they are computed and shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pathkernel_core.contracts.options import option
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.progress import Report

if TYPE_CHECKING:
    import xarray as xr

    from pathkernel_datasets.results.stored_study import StoredStudy

AXES = ("variance", "input_scale", "temperature", "width")


@dataclass(frozen=True)
class Phases(Result):
    """Map where a network uses its paths, where it falls silent, and where it may do either.

    At every point of the study: the lowest minimum, its softest eigenvalue, and the trace of U
    relative to the Gaussian process limit. Between them, as curves over the axis and the one of
    most values among the others: crossings, at which the lowest minimum changes, and spinodals, at
    which a minimum ends. NAME is the folder of a study; the result goes into NAME/phases.zarr.
    """

    name = "phases"
    summary = "Map where a network uses its paths, and where it falls silent"
    of_all_values = True

    axis: str | None = option(
        None,
        "First axis of the map.  [default: the swept option, or else the temperature]",
        choices=AXES,
        type=str,
    )

    def compute(self, study: StoredStudy, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
        """Map of every seed that the study lacks."""
        from pathkernel_phases.phase_map import PhaseMap

        yield from PhaseMap(study, self.axis).missing_seeds(report)

    def views(self, study: StoredStudy) -> Iterable[Any]:
        """Maps over two axes, and tables of the crossings and spinodals."""
        from pathkernel_phases.phase_views import phase_views

        yield from phase_views(study)


@dataclass(frozen=True)
class LearningCurves(Result):
    """Compare errors against the number of training examples with the average-case theory.

    NAME is the folder of a study that sweeps ``examples``; the result goes into
    NAME/learning-curves.zarr. The average case follows from the spectrum of the kernel,
    renormalised by U, on the test examples.
    """

    name = "learning-curves"
    of_several_outputs = False
    summary = "Compare errors against the number of examples with the average case"
    of_all_values = True

    def compute(self, study: StoredStudy, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
        """Errors of every seed that the study lacks."""
        from pathkernel_phases.learning import missing_seeds

        yield from missing_seeds(study, report)

    def views(self, study: StoredStudy) -> Iterable[Any]:
        """Accuracy, error, U and evidence against the number of examples."""
        from pathkernel_phases.learning_views import learning_views

        yield from learning_views(study)
