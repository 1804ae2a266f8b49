"""Results of a study's trained network: agreement with the theory, and heads to remove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pathkernel_core.contracts.options import option
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.variables.measures import WORDS
from pathkernel_trained.pruning_options import PruningOptions

if TYPE_CHECKING:
    import xarray as xr

    from pathkernel_datasets.results.point import Point
    from pathkernel_datasets.results.stored_study import StoredStudy
    from pathkernel_views.chart import Chart
    from pathkernel_views.table import Table


@dataclass(frozen=True)
class Comparison(Result):
    """Compare a trained network's order parameter with the theory.

    NAME is the folder of a study of that network: pathkernel run one-shot-images --heads
    trained:2-4-512-128 or network.safetensors, or pathkernel run custom. At every point of the
    study, U of the trained values and readout is compared with the theory's U, and with the mean of
    its draws where the study has any. The result goes into NAME/comparison.zarr.
    """

    name = "comparison"
    of_several_outputs = False
    command = "compare"
    summary = "Compare a trained network's order parameter with the theory"
    view_options = ("temperature", "seed")

    checkpoint: Path | None = option(
        None,
        "Trained network.  [default: the one that the study was run with]",
        type=Path,
    )
    widths: tuple[float, ...] | None = option(
        None,
        "Widths N to show, among the study's; charts show at most three.  [default: all]",
        type=tuple,
        flags=("--width", "--widths"),
    )
    temperature: float | str | None = option(
        None,
        "Temperature T to show, or its choice at each width.  [default: as pathkernel show]",
        choices=WORDS,
        type=float,
        metavar="T",
    )
    seed: int | None = option(None, "Seed to show.  [default: the study's first]", type=int)

    def compute(self, study: StoredStudy, report: Report) -> xr.Dataset:
        """Agreement at every point of the study."""
        from pathkernel_trained.comparison_store import compare_with_trained

        self._points(study.dataset)  # an error is raised before the work
        report(Progress(0, None, "comparing"))
        return compare_with_trained(study, self.checkpoint)

    def views(self, study: StoredStudy) -> Iterator[Table | Chart | str]:
        """Views of the agreement, U, its entries, and head scores at the widths shown."""
        from pathkernel_datasets.study.study import POINT
        from pathkernel_trained.comparison_views import comparison_views

        comparison = study.result(self.name).to_dataset()
        compared = study.dataset.sel({dim: comparison[dim].values for dim in POINT})
        yield from comparison_views(compared, comparison, *self._points(compared))
        if compared.sizes != study.dataset.sizes:
            yield f"The study has grown since: {study.path} has points to compare."

    def _points(self, study: xr.Dataset) -> tuple[list[Point], str]:
        from pathkernel_trained.comparison_views import shown_points

        return shown_points(study, self.widths, self.temperature, self.seed)


@dataclass(frozen=True)
class Pruning(PruningOptions, Result):
    """Find which heads of a trained network matter, and remove those that do not.

    NAME is the folder of a study with the network's heads: pathkernel run one-shot-images --heads
    trained:2-4-512-128 or network.safetensors, or pathkernel run custom. Heads are removed in
    increasing order of several scores, without training again, and the pruned networks are tested
    on the task's test sets; on one-shot images those are unseen characters and images of other
    kinds. The result goes into NAME/pruning.zarr.
    """

    name = "pruning"
    of_several_outputs = False
    command = "prune"
    summary = "Find which heads of a trained network matter"

    def compute(self, study: StoredStudy, report: Report) -> xr.Dataset:
        """Compare all orders, and write the pruned network if ``out`` names its file."""
        from pathkernel_trained import pruning

        if self.out is not None:  # an error is raised before the work
            pruning.check_removal(study, self)
        compared = pruning.prune_study(study, self, report)
        if self.out is not None:
            pruning.write_pruned(study, self, compared)
        return compared

    def views(self, study: StoredStudy) -> Iterator[Table | Chart | str]:
        """Views of accuracies, orders, single heads and scores, and of the pruned network."""
        from pathkernel_pruning.heads.measuring import refitted_order
        from pathkernel_pruning.heads.orders import orders_of
        from pathkernel_trained.pruning import order_named
        from pathkernel_trained.pruning_views import pruning_views, removal_lines

        result = study.result(self.name).to_dataset()
        yield from pruning_views(result)
        if self.out is not None:
            order = order_named(orders_of(result), self.order)
            order = refitted_order(order) if self.refit else order
            yield from removal_lines(result, order, self.remove)
            yield f"Pruned network: {self.out.resolve()}"
