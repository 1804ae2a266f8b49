"""How well test examples are predicted against the values of an option of the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.selection import Selection, count_test_examples, few, number
from pathkernel_datasets.swept import by_value, described, swept_option
from pathkernel_views.drawing import (
    LIMIT,
    THEORY,
    aside,
    curve,
    even_rows,
    log_axis,
    sheet,
    spread_over_seeds,
)
from pathkernel_views.figure_files import NothingToPlot

_MOST_WIDTHS = 4  # error bars of more would hide each other
_LOG_FROM = 8  # largest value over the smallest, from which on the axis is logarithmic


def swept(dataset: xr.Dataset, name: str, temperature: float | str | None = None) -> Figure:
    """Accuracy, or another measure, against the values of an option, by test set.

    Points are medians over the seeds with their range, or, of a single seed, its values, an
    accuracy with the binomial standard error of the test set. Curves are those of a few widths, and
    of the Gaussian process (GP) limit.

    Parameters
    ----------
    dataset : xarray.Dataset
        With several values of an option, complete or not.
    name : str
        Measure that the store has.
    temperature : float or str, optional
        Of the store, or how it is chosen at each value and width and for the limits.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If there is one value only, or nothing is computed yet.
    ValueError
        If the store does not have that temperature, or what the choice goes by.
    """
    option = swept_option(dataset)
    if option is None:
        raise NothingToPlot("the store holds one value of every option")
    parts = by_value(dataset)
    selections = [Selection(part, temperature) for part in parts.values()]
    measure = next(found for found in measures_of(dataset) if found.name == name)
    theory = [selection.point(name) for selection in selections]
    limit = [selection.reference(f"{name}_gp") for selection in selections]
    if not any(found.notnull().any() for found in (*theory, *limit)):
        raise NothingToPlot(f"{measure.heading} is not computed yet")
    seeds = max(int(found.notnull().any("test_set").sum()) for found in limit)
    binomial = seeds == 1 and name == "accuracy"
    spread = f"median and range of {seeds} seeds" if seeds > 1 else "one seed"
    spread += " ± binomial standard error" * binomial
    widths = dataset["width"].values
    order = np.argsort(widths)
    shown = [int(order[place]) for place in few(len(order), _MOST_WIDTHS)]
    rows = even_rows(dataset.sizes["test_set"], 3)
    panel = (5.0 if rows == [1] else 3.1, 3.1)
    chosen = selections[0].describe(values=not selections[0].chosen)
    named = isinstance(next(iter(parts)), str)
    words = f"{measure.heading} against {described(option)}, {spread}, {chosen}"
    with sheet(dataset, words, rows, panel, sharey=True) as (figure, axes):
        for t, axis in enumerate(axes):
            axis.set_title(str(dataset["test_set"].values[t]))
            places, moved = _option_axis(axis, list(parts))
            axis.set_xlabel(described(option))
            examples = [count_test_examples(part, t) for part in parts.values()]
            series = [
                ([found.isel(width=w) for found in theory], f"N = {number(widths[w])}", look)
                for w, look in zip(shown, THEORY.at_widths(len(shown)))
            ]
            series.append((limit, "GP limit", LIMIT))
            for step, (found, label, look) in enumerate(series):
                values = [each.isel(test_set=t).values[:, None] for each in found]
                counts = examples if binomial else [None] * len(values)
                drawn = [spread_over_seeds(*each) for each in zip(values, counts)]
                middle, reach = (np.concatenate(held, axis=-1) for held in zip(*drawn))
                where = moved(places, step - (len(series) - 1) / 2)
                if named:
                    look = replace(look, line="")
                curve(axis, where, middle, look, label, reach)
        for first in np.cumsum([0, *rows[:-1]]):
            axes[first].set_ylabel(measure.axis)
    return figure


def _option_axis(axis: Axes, values: list) -> tuple[np.ndarray, Callable[..., np.ndarray]]:
    """Axis along the values; returns their places, and how to move them aside by steps.

    Numbers lie where they are, on a logarithmic axis if they span much, and words side by side.
    """
    if isinstance(values[0], str):
        places = np.arange(len(values))
        axis.set_xticks(places, values)
        axis.set_xlim(-0.5, len(values) - 0.5)
        return places, lambda at, steps: at + 0.05 * steps
    places = np.array(values, dtype=float)
    if places.min() > 0 and places.max() >= _LOG_FROM * places.min():
        log_axis(axis, "x", places, [number(value) for value in values])
        return places, lambda at, steps: aside(at, places, steps / 3)
    span = np.ptp(places)
    axis.set_xlim(places.min() - 0.05 * span, places.max() + 0.05 * span)
    if len(values) < 10:
        axis.set_xticks(places, [number(value) for value in values])
    return places, lambda at, steps: at + 0.006 * span * steps
