"""A figure as labelled data and what is shown of them, for readers who point and choose."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.labelling import labelled
from pathkernel_datasets.swept import described

Mark = Literal["lines", "points", "bars", "heatmap", "paths"]

NUMBERS = 400_000
"""Numbers of one variable that a chart may hold, about 2 MB of a page."""

ROWS = 96
"""Rows of a matrix that are shown; more are too small to point at."""


@dataclass(frozen=True)
class Chart:
    """What `pathkernel report` draws, lists as a table, and writes as CSV.

    Attributes
    ----------
    title, about : str
        What is shown, in a few words, and in sentences that also serve who does not see it.
    data : xarray.Dataset
        Every dimension has a coordinate; coordinates and variables have a ``long_name``. What is
        NaN is left out.
    mark : str
        ``"lines"`` along ``x``, ``"points"``, ``"bars"``, a ``"heatmap"`` of the first variable, or
        ``"paths"``: the strongest of the dimension ``path``, whose labels name their heads, drawn
        through the layers of the network as thick as the first variable.
    x : str
        Dimension, or of points also a variable, from left to right.
    y : str
        Variable from below upwards; of a heatmap the dimension from above downwards.
    low, high : str
        Variables: ends of the range in which ``y`` lies.
    band : bool
        Whether ranges of lines are bands instead of bars.
    series : str
        Dimension that is told by colour. Names of limits begin with "GP limit", or end with
        "(GP limit)"; their lines are dashed.
    ordered : bool
        Whether the series follow one another, and are told by shades of one colour.
    panel : str
        Dimension of which every label has a panel of its own.
    switches : tuple of str
        Dimensions of which one label at a time is shown, by the reader's choice; charts that have
        a switch in common turn together.
    log : bool
        Whether ``x`` is logarithmic.
    diverging : bool
        Whether the colours of a heatmap are centred at zero.
    """

    title: str
    about: str
    data: xr.Dataset
    mark: Mark
    x: str = ""
    y: str = ""
    low: str = ""
    high: str = ""
    band: bool = False
    series: str = ""
    ordered: bool = False
    panel: str = ""
    switches: tuple[str, ...] = ()
    log: bool = False
    diverging: bool = True


def chart_data(
    values: dict[str, np.ndarray | xr.DataArray], labels: dict[str, object], **names: str
) -> xr.Dataset:
    """Labelled data of a chart.

    Parameters
    ----------
    values : dict of str to array
        Variables, with an axis for each of the labels in their order, or DataArrays.
    labels : dict of str to sequence
        Dimensions and their labels.
    **names : str
        Name → what it means, for axes and headings.
    """
    dims = tuple(labels)
    variables = [
        Variable(name, getattr(held, "dims", dims), names.get(name, name.replace("_", " ")))
        for name, held in values.items()
    ]
    about = {dim: {"long_name": names.get(dim, dim.replace("_", " "))} for dim in labels}
    return labelled(
        {name: np.asarray(held, dtype=float) for name, held in values.items()},
        variables,
        {dim: xr.Variable(dim, list(held), about[dim]) for dim, held in labels.items()},
    )


def strongest(strengths: np.ndarray, most: int) -> np.ndarray:
    """Places of the largest strengths, in their order; of rows (…, n) by their known mean."""
    rows = np.reshape(strengths, (-1, np.shape(strengths)[-1]))
    mean = np.nan_to_num(rows).sum(axis=0) / np.maximum(1, (~np.isnan(rows)).sum(axis=0))
    return np.sort(np.argsort(-mean, kind="stable")[:most])


def of_rows(some: Sized, every: Sized) -> str:
    """What a chart of some rows says of the others, as its last sentence."""
    return f" The {len(some)} strongest of {len(every)} paths." * (len(some) < len(every))


def within(chart: Chart, most: int = NUMBERS) -> Chart:
    """The chart with at most so many numbers of a variable; it says what was left out.

    Labels of switches are left out first, of the last switch before the others, and then those of
    the longest dimension, and of both sides of a square heatmap alike. The first labels stay.
    """
    data, cut = chart.data, []
    while (largest := max(data.data_vars.values(), key=lambda held: held.size)).size > most:
        sizes = {str(dim): size for dim, size in largest.sizes.items() if size > 1}
        sides = [dim for dim in (chart.x, chart.y) if chart.mark == "heatmap"]
        longest = max(sizes, key=sizes.__getitem__)
        dims = next(([dim] for dim in reversed(chart.switches) if dim in sizes), [longest])
        if dims[0] in sides and len({sizes.get(dim) for dim in sides}) == 1:
            dims = sides
        share = (most / largest.size) ** (1 / len(dims))
        data = data.isel({dim: slice(max(1, int(sizes[dim] * share + 1e-9))) for dim in dims})
        cut += [dim for dim in dims if dim not in cut]
    if not cut:
        return chart
    left = (
        f"{data.sizes[dim]} of {chart.data.sizes[dim]} of {data[dim].attrs['long_name']}"
        for dim in cut
    )
    return replace(chart, data=data, about=f"{chart.about} In the page are {' and '.join(left)}.")


def of_each_value(charts: dict[object, Chart], option: str) -> Chart:
    """One chart of several values of an option, which becomes a switch."""
    first, *_ = charts.values()
    if len(charts) == 1:
        return first
    data = [chart.data for chart in charts.values()]
    labels = {  # in their order, which a join of different ones does not keep
        dim: list(dict.fromkeys(chain(*(held[dim].values.tolist() for held in data))))
        for dim in data[0].dims
    }
    every = xr.concat([held.reindex(labels) for held in data], option)
    every = every.assign_coords({option: (option, [str(value) for value in charts])})
    for dim in every.dims:
        named = data[0][dim].attrs if dim in labels else {"long_name": described(option)}
        every[dim].attrs.update(named)
    return replace(first, data=every, switches=(option, *first.switches))
