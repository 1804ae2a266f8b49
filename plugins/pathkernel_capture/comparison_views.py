"""A comparison of head scores as tables and as a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from rich.table import Table

from pathkernel_views.drawing import GREY, PALETTE, RANDOM, Look, across, curve, sheet
from pathkernel_views.value_table import Column, shown, value_table

_MARKERS = "os^vDPX<>"
_HEADS = ("draw", "layer", "head")
_SCORES, _ASKED = 6, 4  # scores in a table; orders of a figure that ask the model
_COLOURS = [colour for colour in PALETTE if colour != GREY]  # which random orders have


def every_table(result: xr.Dataset) -> Iterator[Table]:
    """Single heads, rank correlations, then of every quantity what is left and how orders differ.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_capture.compare_heads`; so for the others.
    """
    yield head_table(result)
    yield correlation_table(result)
    for quantity in result["quantity"].values:
        yield removal_table(result, str(quantity))
        yield difference_table(result, str(quantity))


def head_table(result: xr.Dataset, orders: Sequence[str] | None = None) -> Table:
    """Every head: by how much the loss rises when it alone is off, and its scores.

    Parameters
    ----------
    result : xarray.Dataset
    orders : sequence of str, optional
        Whose scores are shown; by default the first six that score single heads.
    """
    scored = [str(name) for name in result["order"].values[result["score"].notnull().any(_HEADS)]]
    names = scored[:_SCORES] if orders is None else list(orders)
    heads = result.mean("draw").stack(place=("layer", "head"))
    heads = heads.isel(place=heads["rise"].notnull().values)
    columns = [
        Column("head", [f"{layer}-{head}" for layer, head in heads["place"].values]),
        Column("rise", heads["rise"].values, "+.4f"),
        Column("error", heads["rise_error"].values, ".4f"),
        *(Column(name, heads["score"].sel(order=name).values, ".3g") for name in names),
    ]
    left = len(scored) - len(names)
    return value_table(
        f"{result.attrs['label']}: heads, and the rise of the loss when one alone is off",
        columns,
        f"layer-head; rises on {result.attrs['test_examples']} test examples with their standard "
        f"errors{_over_draws(result)}, then scores."
        + f" {left} more scores are in the dataset."
        * (left > 0),
        name="heads",
    )


def correlation_table(result: xr.Dataset) -> Table:
    """Rank correlation of every score with the rise of the loss without single heads."""
    scored = result.sel(order=~result["rank_correlation"].isnull().all("draw"))
    found = scored["rank_correlation"]
    columns = [
        Column("score", map(str, scored["order"].values)),
        Column("ρ", found.mean("draw").values, "+.2f"),
    ]
    if found.sizes["draw"] > 1:
        ends = zip(found.min("draw").values, found.max("draw").values)
        columns.append(Column("draws", [f"{low:+.2f} to {high:+.2f}" for low, high in ends]))
    for name in scored["resampled"].values:
        ends = scored["rank_correlation_interval"].sel(resampled=name)
        columns.append(Column(str(name), map(_interval, ends), wraps=True))
    for layer in scored["layer"].values:
        within = scored["layer_correlation"].sel(layer=layer).mean("draw")
        columns.append(Column(f"layer {layer}", within.values, "+.2f"))
    return value_table(
        f"{result.attrs['label']}: rank correlation ρ of scores with the rise of the loss when a "
        "head alone is off",
        columns,
        f"Spearman's, over {result.attrs['heads']} heads, of which chance gives ±"
        f"{1.96 / np.sqrt(result.attrs['heads'] - 1):.2f} in 95 of 100 cases; on "
        f"{result.attrs['test_examples']} test examples{_over_draws(result)}. Brackets: central "
        "95 % of bootstrap resamples of the examples, or of the heads.",
    )


def removal_table(result: xr.Dataset, quantity: str) -> Table:
    """What is measured as heads are off in every order, and how many random orders do as well."""
    here = result.sel(quantity=quantity)
    orders = [str(name) for name in here["order"].values]
    quantiles = {"2.5 %": 0.025, "median": 0.5, "97.5 %": 0.975}
    columns = [Column("order", [*orders, *(f"random, {name}" for name in quantiles)])]
    for count in here["removed"].values:
        at = here.sel(removed=count)
        mean, share = at["measured"].mean("draw").values, at["random_as_good"].mean("draw").values
        cells = [f"{value:.3f} ({100 * part:.0f} %)" for value, part in zip(mean, share)]
        drawn = np.quantile(at["random_measured"].mean("draw"), list(quantiles.values()))
        columns.append(Column(f"{count} off", [*cells, *(f"{value:.3f}" for value in drawn)]))
    return value_table(
        f"{result.attrs['label']}: {quantity} with heads off, those of lowest score first",
        columns,
        f"Of {float(here['whole'].mean()):.3f} with all heads; standard errors up to "
        f"{float(here['measured_error'].max()):.3f}{_over_draws(result)}. In brackets the share of "
        f"{here.sizes['random_order']} random orders that are at least as good.",
        lines=(len(orders) - 1,),
    )


def difference_table(result: xr.Dataset, quantity: str) -> Table:
    """By how much the first order differs from every other, over the same examples."""
    first, *others = (str(name) for name in result["order"].values)
    here = result.sel(quantity=quantity, order=others)
    columns = [Column("order", others)]
    for count in here["removed"].values:
        at = here.sel(removed=count)
        cells = [
            f"{value:+.3f} {_interval(ends, '+.3f')}"
            for value, ends in zip(at["difference"].values, at["difference_interval"])
        ]
        columns.append(Column(f"{count} off", cells))
    return value_table(
        f"{result.attrs['label']}: {quantity} in the order {first} less that in the others",
        columns,
        "Brackets: central 95 % of bootstrap resamples of the same test examples"
        f"{_over_draws(result)}.",
    )


def comparison_figure(
    result: xr.Dataset, orders: Sequence[str] | None = None, quantity: str | None = None
) -> Figure:
    """Scores of the first order against the rise of the loss, and orders as heads go off.

    Parameters
    ----------
    result : xarray.Dataset
    orders : sequence of str, optional
        That are drawn; by default the first and the last, nine in all.
    quantity : str, optional
        What is drawn; by default the last that is measured.
    """
    names = [str(name) for name in result["order"].values] if orders is None else list(orders)
    if orders is None and len(names) > len(_MARKERS):  # the last ask the model itself
        names = [*names[: len(_MARKERS) - _ASKED], *names[-_ASKED:]]
    quantity = str(result["quantity"].values[-1]) if quantity is None else quantity
    words = f"scores of heads, and heads off, {result.attrs['test_examples']} test examples"
    with sheet(result, words, [2], (4.2, 3.4)) as (figure, (left, right)):
        here = result.sel(order=names[0]).mean("draw")
        for place, layer in enumerate(here["layer"].values):
            at = here.sel(layer=layer)
            known = at["score"].notnull().values
            look = Look(_COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)], "")
            curve(left, at["score"].values[known], at["rise"].values[known], look, f"layer {layer}")
        across(left, 0, Look(GREY, line=":"), linewidth=0.7)
        left.set(xlabel=f"score: {names[0]}", ylabel="rise of the loss without the head")
        here = result.sel(quantity=quantity)
        counts, whole = [0, *here["removed"].values], float(here["whole"].mean())
        low, middle, high = np.quantile(
            here["random_measured"].mean("draw"), (0.025, 0.5, 0.975), axis=0
        )
        band = np.array([[0, *(middle - low)], [0, *(high - middle)]])
        label = f"{here.sizes['random_order']} random orders: median and 95 %"
        curve(
            right,
            np.array(counts),
            np.array([whole, *middle]),
            RANDOM,
            label,
            band,
            band=True,
        )
        for place, name in enumerate(names):
            at = here.sel(order=name)
            values = np.array([whole, *at["measured"].mean("draw").values])
            look = Look(_COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)])
            curve(right, np.array(counts), values, look, name)
        right.set_xticks(counts)
        right.set(xlabel="heads off, lowest score first", ylabel=quantity)
    return figure


def _over_draws(result: xr.Dataset) -> str:
    draws = result.sizes["draw"]
    return f", mean over {draws} draws" if draws > 1 else ""


def _interval(ends: xr.DataArray, form: str = "+.2f") -> str:
    low, high = (shown(end, form) for end in ends.values)
    return f"[{low}, {high}]"
