"""Tables and charts of the removal of heads, the theory's losses and scores, and their grid."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import xarray as xr

from pathkernel_core.paths.heads import head_label, kept_heads
from pathkernel_core.system.text import number
from pathkernel_pruning.heads.correlation import spearman
from pathkernel_pruning.heads.order_views import order_views
from pathkernel_pruning.heads.orders import orders_of, removed_heads
from pathkernel_pruning.heads.score_table import score_name
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.table import Table, frame_of

if TYPE_CHECKING:
    import altair as alt


def pruning_views(result: xr.Dataset) -> Iterator[Table | Chart | str]:
    """Views of a comparison of orders, first the page that is shown by default.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    yield from order_views(result)
    single = result.isel(draw=0, quantity=0, drop=True)
    for test_set in result["test_set"].values:
        yield _theory_table(single.sel(test_set=test_set))
    yield Chart(
        "scores",
        "Scores of heads by U",
        f"Weight of U on the paths through a head, where the largest is 1: {_sources(single)}.",
        partial(_draw_scores, single),
    )
    point = _point(result)
    yield Chart(
        "theory_grid",
        "Rank correlations of the theory's scores of heads",
        "Spearman's rank correlation ρ of the theory's scores at every width and temperature: with "
        f"the accuracy lost on {result['test_set'].values[0]} with one head off, and with the "
        f"scores at {point}, by which heads are removed.",
        partial(_draw_grid, result),
    )


def removal_lines(result: xr.Dataset, name: str, remove: int) -> Iterator[str]:
    """Sentences on the heads that an order removes first, the loss in accuracy and the saving."""
    removed = removed_heads(result, name, remove)
    left = kept_heads(result.attrs["heads_per_layer"], removed)
    yield (
        f"Heads removed by {name}: {', '.join(map(head_label, removed))}; heads kept in each "
        f"layer: {', '.join(str(len(layer)) for layer in left)}"
    )
    of_order = result.sel(order=name).isel(draw=0, quantity=0)
    unpruned, pruned = (of_order.sel(removed=count) for count in (0, remove))
    losses = zip(
        result["test_set"].values,
        100 * (unpruned["measured"] - pruned["measured"]).values,
        100 * pruned["change_error"].values,
    )
    lost = ", ".join(f"{loss:.1f} ± {error:.1f} on {test}" for test, loss, error in losses)
    yield f"Accuracy lost, in points: {lost}"
    for quantity, variable in (("Parameters", "parameters"), ("Operations per example", "flops")):
        old, new = (int(part[variable]) for part in (unpruned, pruned))
        yield f"{quantity}: {old:,} before, {new:,} now ({1 - new / old:.1%} less)"


def _theory_table(part: xr.Dataset) -> Table:
    """Accuracy lost on a test set with one head off, by the network and by the theory."""
    names = ("lost", "lost_error", "theory_drop", "theory_drop_error")
    frame = frame_of(part[list(names)]).dropna(subset=["lost"])
    agreement = ", ".join(
        f"{prediction} {spearman(rows['lost'], rows['theory_drop']):.2f}"
        for prediction, rows in frame.groupby("prediction", sort=False)
    )
    accuracy = part["measured"].isel(order=0, removed=0).item()
    return Table(
        "theory_losses",
        f"Accuracy lost on {part['test_set'].item()} with one head off, network and theory",
        frame,
        {
            "head": "{head}",
            f"network,\nof {accuracy:.1%}": "{lost:.1p} ± {lost_error:.1p}",
            "theory,\n{prediction}": "",
        },
        f"In points ± standard error. The theory, at {_point(part)}, has "
        f"{part['theory_accuracy'].item():.1%} of the study's test examples right with all heads. "
        "silenced: U without the head's rows and columns, fitted again; restricted: the mean "
        "predictor without them; re-equilibrated: the action minimised again.\n"
        f"Spearman's ρ with the network's losses: {agreement}.",
        across=("theory,\n{prediction}", "{theory_drop:.1p} ± {theory_drop_error:.1p}"),
        detail=True,
    )


_SOURCES = {
    "theory": "of the theory",
    "sampled": "of samples with their Monte-Carlo errors",
    "trained": "of the trained weights",
}


def _charted(result: xr.Dataset) -> list[str]:
    """Orders whose scores are weights of U."""
    return [name for name in orders_of(result) if score_name(name) in _SOURCES]


def _sources(result: xr.Dataset) -> str:
    """What the scores in the chart are of."""
    *others, last = dict.fromkeys(_SOURCES[score_name(name)] for name in _charted(result))
    return " and ".join([", ".join(others)] * bool(others) + [last])


def _draw_scores(result: xr.Dataset) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import bars

    names = _charted(result)
    frame = frame_of(result[["score", "score_error"]].sel(order=names)).dropna(subset=["score"])
    temperature = frame["order_temperature"].map(", T = {:g}".format).replace(", T = nan", "")
    error = frame["score_error"].fillna(0.0)
    frame = frame.assign(
        order=frame["order"] + temperature,
        layer="layer " + frame["layer"].astype(str),
        number=frame["number"].astype(str),
        low=frame["score"] - error,
        high=frame["score"] + error,
    )
    ends = {"low": "low", "high": "high"} if error.any() else {}
    titles = {"score": "head score (largest 1)", "number": "head"}
    return bars(frame, "number", "score", series="order", panel="layer", titles=titles, **ends)


def _draw_grid(result: xr.Dataset) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import heatmaps

    if result.sizes["width"] * result.sizes["temperature"] < 2:
        raise NothingToPlot("the study has a single point")
    panels = {
        "with the accuracy lost": result["theory_correlation"].isel(test_set=0, drop=True),
        f"with the scores at {_point(result)}": result["theory_agreement"],
    }
    frames = [frame_of(values.rename("ρ")).assign(panel=title) for title, values in panels.items()]
    frame = pd.concat(frames)
    frame["width"] = frame["width"].map(number)
    frame["temperature"] = frame["temperature"].map("{:g}".format)
    titles = {"width": "width N", "temperature": "temperature T"}
    return heatmaps(
        frame, "width", "temperature", "ρ", panel="panel", domain=(-1, 1), titles=titles
    )


def _point(result: xr.Dataset) -> str:
    """Point of the theory that scores the first order."""
    first = result.isel(order=0)
    return f"N = {number(float(first['order_width']))}, T = {float(first['order_temperature']):g}"
