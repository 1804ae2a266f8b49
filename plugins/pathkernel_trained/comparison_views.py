"""Tables and charts of a trained network's order parameter, the theory's and the sampled one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.paths.heads import every_head
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import head_scores as scores_of
from pathkernel_core.system.text import number
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.selection.selection import (
    NOT_COMPUTED,
    Selection,
    index_of,
    spread_indices,
)
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.paths import matrix_frame, of_paths, strongest
from pathkernel_views.table import Table, frame_of

if TYPE_CHECKING:
    import altair as alt

_CHARTED_WIDTHS = 3


def shown_points(
    study: xr.Dataset,
    widths: Sequence[float] | None = None,
    temperature: float | str | None = None,
    seed: int | None = None,
) -> tuple[list[Point], str]:
    """Points to show, by default all widths at the first seed, and a sentence on their choice."""
    selection = Selection(study, temperature)
    points = []
    for width in np.sort(study["width"].values) if widths is None else widths:
        chosen = float(selection.temperatures[index_of(study, "width", width)])
        points.append(Point.find(study, width, chosen, seed))
    return points, f"seed {points[0].seed}, {selection.describe(values=False)}."


def comparison_views(
    study: xr.Dataset, comparison: xr.Dataset, points: Sequence[Point], choice: str
) -> Iterator[Table | Chart]:
    """Views of the agreement with the trained network, of U, its entries, and head scores.

    Charts show at most three widths: the smallest, a middle one and the largest.
    """
    setting = choice[0].upper() + choice[1:]
    yield from _agreement_tables(comparison, points, setting)
    charted = sorted(points, key=lambda point: point.width)
    charted = [charted[index] for index in spread_indices(len(charted), _CHARTED_WIDTHS)]
    if len(charted) < len(points):
        setting += f" {len(charted)} of {len(points)} widths, the others by --widths."
    size = study.sizes["path"]
    paths = of_paths(len(strongest(np.zeros(size))), size)
    drawn = (study, comparison, charted)
    yield Chart(
        "order_parameters",
        "Order parameter U, theory and trained network",
        "U in parts of its largest |entry|, since the size of the trained network's weights is set "
        f"by their initial values: signs and patterns can be compared. {setting}{paths}",
        partial(_order_parameters, *drawn),
    )
    yield Chart(
        "entries",
        "Entries of U, theory against trained network",
        "Entries of U in parts of the largest |entry|, one for each pair of paths; where there is "
        f"room, those on the diagonal have the name of the path. {setting}{paths}",
        partial(_entries, *drawn),
    )
    yield Chart(
        "head_scores",
        "Scores of heads, theory and trained network",
        f"Weight of U on the paths through a head, where the largest is 1. {setting}",
        partial(_head_scores, *drawn),
    )


def _agreement_tables(
    comparison: xr.Dataset, points: Sequence[Point], setting: str
) -> Iterator[Table]:
    """Tables of all statistics of agreement, of the theory and of the samples."""
    is_exact = comparison.attrs["relabellings_are"] == "all"
    relabellings = ("all {}" if is_exact else "{} random").format(comparison.attrs["relabellings"])
    for source in ("theory", "sampled"):
        entries = comparison[["agreement", "p_value"]].sel(source=source).load()
        values = [part for part in _at(entries, points) if part["agreement"].notnull().any()]
        if values:
            yield Table(
                "agreement",
                f"Order parameter U: {source} against trained (N = "
                f"{comparison.attrs['trained_width']})",
                frame_of(xr.concat(values, "point", combine_attrs="override")),
                {"agreement with the trained U": "{meaning}"},
                "Each pair of paths, or of heads, counts once. In brackets the p-value: the "
                f"fraction of {relabellings} relabellings of heads that agree at least as well. "
                f"{setting}",
                across=("N = {width}\nT = {temperature}", "{agreement:.2f} ({p_value:.3f})"),
            )


def _at(grid: xr.Dataset | xr.DataArray, points: Sequence[Point]) -> list:
    return [grid.sel(vars(point)) for point in points]


def _matrices(
    study: xr.Dataset, comparison: xr.Dataset, points: Sequence[Point]
) -> dict[str, np.ndarray]:
    """U of the theory and of the samples where they exist, and of the trained network."""
    theory = study["order_parameter"].where(study["status"] != NOT_COMPUTED)
    sources = {
        "theory": theory.transpose("path", "path_dual", ...),
        "sampled": comparison["order_parameter_sampled"],
    }
    matrices = {
        f"{source}, N = {number(point.width)}, T = {point.temperature:g}": matrix.values
        for source, grid in sources.items()
        for point, matrix in zip(points, _at(grid, points))
        if matrix.notnull().all()
    }
    if not any(name.startswith("theory") for name in matrices):
        raise NothingToPlot("the theory is not computed at these widths")
    trained = comparison["order_parameter_trained"].values
    return matrices | {f"trained, N = {comparison.attrs['trained_width']}": trained}


def _frame(study: xr.Dataset, comparison: xr.Dataset, points: Sequence[Point]) -> pd.DataFrame:
    """Entries of every U in parts of its largest |entry|, between the strongest paths."""
    matrices = _matrices(study, comparison, points)
    shown = strongest(np.stack([np.diag(u) / np.diag(u).max() for u in matrices.values()]))
    names = [str(path) for path in study["path"].values[shown]]
    frames = [
        matrix_frame(u[np.ix_(shown, shown)] / np.abs(u).max(), names).assign(source=source)
        for source, u in matrices.items()
    ]
    return pd.concat(frames)


def _order_parameters(*drawn: Any) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import heatmaps

    titles = {"path": "path (head of each layer)", "path_dual": "path′", "U": "U / largest"}
    return heatmaps(
        _frame(*drawn), "path_dual", "path", "U", panel="source", domain=(-1, 1), titles=titles
    )


def _entries(*drawn: Any) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import points as scattered

    frame = _frame(*drawn)
    *theory, trained = (name for name in frame["source"].unique() if "sampled" not in name)
    pairs = frame.pivot(index=["path", "path_dual"], columns="source", values="U").reset_index()
    pairs = pairs[pairs["path"] <= pairs["path_dual"]]  # U is symmetric
    is_diagonal = pairs["path"] == pairs["path_dual"]
    pairs["kind"] = np.where(is_diagonal, "on the diagonal", "off the diagonal")
    pairs["path"] = pairs["path"].where(is_diagonal)
    frame = pairs.melt(["path", "kind", trained], theory, "point", "theory")
    return scattered(
        frame.rename(columns={trained: "trained"}).sort_values("kind", kind="stable"),
        "theory",
        "trained",
        series="kind",
        panel="point",
        name="path",
        titles={"theory": "U, theory", "trained": "U, trained"},
        reference="zero",
    )


def _head_scores(
    study: xr.Dataset, comparison: xr.Dataset, points: Sequence[Point]
) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import bars

    network = Network(study.attrs["heads_per_layer"], widths=1)
    rows = [
        {"network": name, "layer": f"layer {layer}", "head": str(number), "score": score}
        for name, matrix in _matrices(study, comparison, points).items()
        for (layer, number), score in zip(
            every_head(network.heads), scores_of(network, matrix), strict=True
        )
    ]
    titles = {"score": "head score (largest 1)"}
    return bars(pd.DataFrame(rows), "head", "score", series="network", panel="layer", titles=titles)
