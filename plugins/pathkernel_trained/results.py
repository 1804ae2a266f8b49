"""Results of a study's trained network: agreement with the theory, and heads to remove."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pathkernel_core.options import option
from pathkernel_core.progress import Progress, Report
from pathkernel_core.result import Result
from pathkernel_datasets.measures import WORDS
from pathkernel_trained.scores import NEEDS

if TYPE_CHECKING:
    import xarray as xr

    from pathkernel_datasets.point import Point
    from pathkernel_datasets.stored import StoredStudy
    from pathkernel_views.chart import Chart
    from pathkernel_views.table import Table


@dataclass(frozen=True)
class Comparison(Result):
    """Compare a trained network's order parameter with the theory.

    FILE.zarr is a study of that network: pathkernel run one-shot-images --heads trained:NAME or
    network.safetensors, or pathkernel run custom. At every point of the study, U of the trained
    values and readout is compared with the theory's U, and with the sampled one where draws are
    there. The result is kept in the same Zarr store.
    """

    name = "comparison"
    command = "compare"
    summary = "Compare a trained network's order parameter with the theory"
    view_options = ("temperature", "seed")

    checkpoint: Path | None = option(
        None,
        "The trained network.  [default: the one that the study was run with]",
        type=Path,
    )
    widths: tuple[float, ...] | None = option(
        None,
        "Widths N to show, among the study's; at most three in charts.  [default: all]",
        type=tuple,
        flags=("--width", "--widths"),
    )
    temperature: float | str | None = option(
        None,
        "Temperature T to report; or how it is chosen at each width, as for pathkernel show.",
        choices=WORDS,
        type=float,
    )
    seed: int | None = option(None, "Seed to show; by default the study's first.", type=int)

    def compute(self, study: StoredStudy, report: Report) -> xr.Dataset:
        """Agreement at every point of the study."""
        from pathkernel_trained.comparison_store import compared

        self._points(study.dataset)  # a slip should show before the work
        report(Progress(0, None, "comparing"))
        return compared(study, self.checkpoint)

    def views(self, study: StoredStudy) -> Iterator[Table | Chart | str]:
        """Agreement at every width that is shown, U, its entries, and scores of heads."""
        from pathkernel_datasets.schema import POINT
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
class Pruning(Result):
    """Find which heads of a trained network matter, and remove those that do not.

    FILE.zarr is a study with the network's heads: pathkernel run one-shot-images --heads
    trained:NAME or network.safetensors, or pathkernel run custom. Heads are removed in increasing
    order of several scores, without training again, and the networks that are left are tested on
    the task's test sets; on one-shot images those are unseen characters and images of other kinds.
    The outcome is kept in the store's group "pruning".
    """

    name = "pruning"
    command = "prune"
    summary = "Find which heads of a trained network matter"

    checkpoint: Path | None = option(
        None, "The trained network.  [default: the one that the study was run with]", type=Path
    )
    order: str = option(
        "theory", "What --remove goes by; the tables show all.", choices=tuple(NEEDS)
    )
    remove: int | None = option(None, "Heads to remove for --out.", type=int, least=1)
    out: Path | None = option(
        None, "File of the pruned network to write (.safetensors).", type=Path
    )
    episodes: int = option(
        10_000,
        "Examples (episodes) of each set, an even number; at most those that the task has.",
        least=2,
    )
    widths: tuple[float, ...] | None = option(
        None,
        "Widths N, among the study's, whose order parameters score heads; --order goes by the "
        "first.  [default: that which the choice of temperature prefers, 10, and those with draws]",
        type=tuple,
        flags=("--width", "--widths"),
    )
    temperature: float | None = option(
        None,
        "Temperature T, one of the study's; by default at each width the one of pathkernel show.",
        type=float,
    )
    seed: int | None = option(None, "Seed, one of the study's; by default its first.", type=int)
    sets: int = option(
        200, "Random sets of so many heads of which best-of takes the best.", least=1
    )
    random: int = option(200, "Orders that are drawn at random, to compare with.", least=2)
    resamples: int = option(2000, "Resamples of the bootstrap.", least=1)

    def __post_init__(self):
        if (self.remove is None) != (self.out is None):
            raise ValueError(
                "--remove says how many heads to remove and --out where the pruned network goes: "
                "give both or none"
            )

    def compute(self, study: StoredStudy, report: Report) -> xr.Dataset:
        """Compare all orders; write the pruned network if there is to be one."""
        from pathkernel_trained import pruning

        if self.out is not None:  # before the work, not after it
            pruning.check_removal(study, self)
        compared = pruning.pruned(study, self, report)
        if self.out is not None:
            pruning.write_pruned(study, self, compared)
        return compared

    def views(self, study: StoredStudy) -> Iterator[Table | Chart | str]:
        """Accuracies, orders, single heads, scores, and the cost of what ``out`` lacks."""
        from pathkernel_trained.orders import orders_of
        from pathkernel_trained.pruning import order_named
        from pathkernel_trained.pruning_views import pruning_views, removal_lines

        result = study.result(self.name).to_dataset()
        yield from pruning_views(result)
        if self.out is not None:
            yield from removal_lines(
                result, order_named(orders_of(result), self.order), self.remove
            )
            yield f"Pruned network: {self.out.resolve()}"
