"""Tables and charts of a comparison of head scores.

>>> from pathkernel_views.chart import Chart, save
>>> from pathkernel_views.console import stdout_console
>>> from pathkernel_views.table import Table
>>> views = list(head_views(result))                                       # doctest: +SKIP
>>> for view in views:                                                     # doctest: +SKIP
...     if isinstance(view, Table) and not view.detail:
...         stdout_console().print(view, crop=False)
>>> save([view for view in views if isinstance(view, Chart)], "figures")   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_trained.pruning_views import (
    RANDOM_SERIES,
    losses_of_heads,
    removal_curves,
    with_bounds,
)
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table, frame_of

if TYPE_CHECKING:
    import altair as alt

_SCORES = 6  # orders whose scores stand beside each other in a table
_DRAWN = 2  # orders at either end that are drawn by default, beside the random ones
_QUANTILES = {"random, 2.5 %": 0.025, "random, median": 0.5, "random, 97.5 %": 0.975}


def head_views(result: xr.Dataset, orders: Sequence[str] | None = None) -> Iterator[Table | Chart]:
    """Scores against the rise of the loss without single heads, then orders as heads are off.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_capture.compare_heads`.
    orders : sequence of str, optional
        Orders that the charts show; by default the first two and the last two. Tables hold all.
    """
    names = [str(name) for name in result["order"].values]
    scored = [name for name in names if result["score"].sel(order=name).notnull().any()]
    drawn = list(orders or dict.fromkeys([*names[:_DRAWN], *names[-_DRAWN:]]))
    label, draws = result.attrs["label"], result.sizes["draw"]
    examples = f"{result.attrs['test_examples']} test examples"
    examples += f" (mean over {draws} draws)" * (draws > 1)
    mean = result.mean("draw", keep_attrs=True)
    yield Chart(
        "scores",
        f"{label}: scores of single heads",
        "Rise of the loss when one head alone is off against its score, a panel for each order; "
        f"over {examples}, of few heads with standard errors.",
        partial(_draw_scores, mean, [name for name in drawn if name in scored]),
    )
    yield _correlation_table(result.sel(order=scored), examples)
    if result.sizes["layer"] > 1:
        first, *_, last = result["layer"].values
        yield Table(
            "layer_correlations",
            f"{label}: the same within every layer",
            frame_of(mean["layer_correlation"].sel(order=scored)),
            {"score": "{order}"},
            f"Spearman's ρ over the heads of layers {first} to {last}.",
            across=("layer", "{layer_correlation:+.2f}"),
        )
    yield Chart(
        "heads_off",
        f"{label}: heads off",
        f"Means over {examples} as heads are off, those of lowest score first. Grey: median and "
        f"central 95 % of {result.sizes['random_order']} random orders; straight lines: all heads "
        f"on. {len(drawn)} of {len(names)} orders; the tables have all.",
        partial(_draw_removal, mean, drawn),
    )
    for quantity in result["quantity"].values:
        yield _removal_table(mean.sel(quantity=[quantity]), examples)
        yield _difference_table(mean.sel(quantity=[quantity]), examples)
    for start in range(0, len(scored), _SCORES):
        yield Table(
            "scores",
            f"{label}: rise of the loss when one head alone is off, and scores",
            _heads(mean, scored[start : start + _SCORES]),
            {"head": "{layer}-{head}", "rise": "{rise:+.4f}", "error": "{rise_error:.4f}"},
            f"Heads as layer-head. error: standard error of the rise, over {examples}.",
            across=("order", "{score:.3g}"),
            detail=start > 0,
        )


def _correlation_table(result: xr.Dataset, examples: str) -> Table:
    correlation = result["rank_correlation"]
    names = ["rank_correlation", "correlation_difference"]
    data = result[[*names, *(f"{name}_interval" for name in names)]].mean("draw", keep_attrs=True)
    data["rank_correlation_lowest"] = correlation.min("draw")
    data["rank_correlation_highest"] = correlation.max("draw")
    cells = {"score": "{order}", "ρ": "{rank_correlation:+.2f}"}
    if result.sizes["draw"] > 1:
        cells["draws"] = "{rank_correlation_lowest:+.2f} to {rank_correlation_highest:+.2f}"
    chance = 1.96 / np.sqrt(result.attrs["heads"] - 1)
    return Table(
        "correlations",
        f"{result.attrs['label']}: rank correlation ρ of scores with the rise of the loss when a "
        "head alone is off",
        frame_of(with_bounds(data)),
        cells,
        f"Spearman's, over {result.attrs['heads']} heads, of which chance gives ±{chance:.2f} in "
        f"95 of 100 cases; on {examples}. Brackets: central 95 % of bootstrap resamples of the "
        "examples, or of the heads.",
        across=("resampled", "[{rank_correlation_lower:+.2f}, {rank_correlation_upper:+.2f}]"),
    )


def _removal_table(mean: xr.Dataset, examples: str) -> Table:
    """Values of one quantity in every order, and quantiles of the random orders."""
    of_orders = frame_of(mean[["measured", "measured_error", "random_as_good"]])
    of_random = frame_of(_of_random(mean).rename("measured").rename(quantile="order"))
    frame = pd.concat([of_orders.assign(is_random=False), of_random.assign(is_random=True)])
    frame.attrs = of_orders.attrs
    return Table(
        "heads_off",
        f"{mean.attrs['label']}: {mean['quantity'].item()} with heads off, those of lowest score "
        "first",
        frame,
        {"heads off": "{order}"},
        f"Of {mean['whole'].item():.3f} with all heads, on {examples}; standard errors up to "
        f"{float(mean['measured_error'].max()):.3f}. In brackets the share of "
        f"{mean.sizes['random_order']} random orders that are at least as good.",
        across=("removed", "{measured:.3f} ({random_as_good:.0%})"),
        lines="is_random",
    )


def _difference_table(mean: xr.Dataset, examples: str) -> Table:
    first, *others = mean["order"].values
    data = with_bounds(mean[["difference", "difference_interval"]].sel(order=others))
    interval = "[{difference_lower:+.3f}, {difference_upper:+.3f}]"
    return Table(
        "differences",
        f"{mean.attrs['label']}: {mean['quantity'].item()} in the order {first} less that in the "
        "others",
        frame_of(data.round(12)),  # without rounding errors of equal values
        {"heads off": "{order}"},
        f"Brackets: central 95 % of bootstrap resamples of the same {examples}.",
        across=("removed", "{difference:+.3f}\n" + interval),
    )


def _draw_scores(mean: xr.Dataset, orders: Sequence[str]) -> alt.TopLevelMixin:
    return losses_of_heads(_heads(mean, orders), "rise", "rise_error", "rise of the loss")


def _draw_removal(mean: xr.Dataset, orders: Sequence[str]) -> alt.TopLevelMixin:
    """Curves of some orders, and straight lines where all heads are on."""
    random = _of_random(mean)
    names = zip(("lower", "measured", "upper"), _QUANTILES)
    band = xr.Dataset({name: random.sel(quantile=end, drop=True) for name, end in names})
    frames = [
        frame_of(band).assign(order=RANDOM_SERIES),
        frame_of(mean["measured"].sel(order=list(orders))),
        frame_of(mean["whole"].rename("measured")).assign(order="all heads"),
    ]
    return removal_curves(pd.concat(frames), "measured", "quantity", "mean")


def _heads(mean: xr.Dataset, orders: Sequence[str]) -> pd.DataFrame:
    """Rise and scores of every head that the model has."""
    frame = frame_of(mean[["rise", "rise_error", "score"]].sel(order=list(orders)))
    return frame[frame["rise"].notna()]


def _of_random(mean: xr.Dataset) -> xr.DataArray:
    values = mean["random_measured"].quantile(list(_QUANTILES.values()), "random_order")
    return values.assign_coords(quantile=list(_QUANTILES))
