"""What is gained, or only seems to be, by the way in which the temperature is chosen."""

from __future__ import annotations

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from pathkernel_datasets.selection import count_test_examples
from pathkernel_views.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    STYLE,
    heading,
    legend_below,
    panel_grid,
    spread_over_seeds,
    width_axis,
)
from pathkernel_views.figure_files import NothingToPlot

_CURVES = {  # choice: (label, colour, marker, shift along the axis of widths)
    "evidence": ("T of largest log evidence", BLUE, "o", -1),
    "validation": ("T of largest validation accuracy", GREEN, "s", 0),
    "test": ("T best on this very test set (optimistic)", ORANGE, "^", 1),
}
_SHIFT = 0.02  # of the axis, so that error bars stand beside one another
_DASH = 3.0  # dashes of one line fall into the gaps of the others, should they coincide


def temperature_choice(dataset: xr.Dataset) -> Figure:
    """Accuracy against width by each choice of the temperature, and the temperatures chosen.

    One column per test set. Points are medians over the seeds with their range, or, where a single
    seed is computed, its values, the accuracy with the binomial standard error of the test set.
    Dashed lines across are Gaussian process limits at temperatures that are chosen likewise.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If the store has one temperature only, or no seed has all of its grid points yet.
    """
    if "choice" not in dataset.dims:
        raise NothingToPlot("the store holds no choice between temperatures")
    done = dataset["choice_done"].load() != 0
    if not done.any():
        raise NothingToPlot("the grid of no seed is complete, so no temperature is chosen yet")
    seeds = int(done.sum())
    names = [str(name) for name in dataset["test_set"].values]
    columns = len(names)
    size = (max(3.1 * columns + 0.6, 5.0), 5.2)
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(
            2 * columns, columns, size, sharey="row", sharex=True, height_ratios=(3, 2)
        )
        for t, (above, below) in enumerate(zip(axes[:columns], axes[columns:])):
            examples = count_test_examples(dataset, t) if seeds == 1 else None
            above.set_title(names[t])
            rows = ((above, "chosen_accuracy", examples), (below, "chosen_temperature", None))
            for axis, name, count in rows:
                for choice in map(str, dataset["choice"].values):
                    at = {"choice": choice, "test_set": names[t]}
                    values, limit = (
                        dataset[entry].where(done).sel(at).transpose("seed", ...)
                        for entry in (name, f"{name}_gp")
                    )
                    _curve(axis, values, count, choice)
                    _limit(axis, limit.values, count, choice)
                width_axis(axis, dataset["width"].values, size[0] / columns)
            above.set_xlabel("")
            above.tick_params(labelbottom=False)
            _temperature_axis(below, dataset["temperature"].values)
        dashes = (0, (_DASH, 2 * _DASH))
        axes[0].errorbar([], [], color=GREY, linestyle=dashes, label="GP limit, T chosen likewise")
        axes[0].set_ylabel("accuracy (fraction correct)")
        axes[columns].set_ylabel("temperature T chosen")
        heading(figure, dataset, _words(dataset, done.values))
        legend_below(figure, axes[0], 2)
    return figure


def _curve(axis: Axes, values: xr.DataArray, examples: int | None, choice: str) -> None:
    """One choice against the width, points and error bars moved aside a little."""
    label, colour, marker, place = _CURVES[choice]
    values = values.sortby("width")
    low, middle, high = spread_over_seeds(values.values, examples)
    widths = values["width"].values
    decades = np.log10(widths.max() / widths.min()) or 1.0
    axis.errorbar(
        widths * 10 ** (_SHIFT * place * decades),
        middle,
        np.stack([middle - low, high - middle]),
        color=colour,
        marker=marker,
        markersize=3.5,
        linewidth=1.5 - 0.5 * place,  # what lies below shows where lines coincide
        elinewidth=0.8,
        label=label,
    )


def _limit(axis: Axes, values: np.ndarray, examples: int | None, choice: str) -> None:
    """The Gaussian process limit by one choice, across the panel; a band where it is spread."""
    _, colour, _, place = _CURVES[choice]
    (low,), (middle,), (high,) = spread_over_seeds(values[:, None], examples)
    if np.isnan(middle):
        return
    dashes = (_DASH * (1 + place), (_DASH, 2 * _DASH))
    axis.axhline(middle, color=colour, linestyle=dashes, linewidth=1.3, zorder=1)
    if high > low:
        axis.axhspan(low, high, color=colour, alpha=0.08, linewidth=0)


def _temperature_axis(axis: Axes, temperatures: np.ndarray) -> None:
    """Log axis over all temperatures of the store, labelled where there is room."""
    axis.set_yscale("log")
    low, high = temperatures.min(), temperatures.max()
    margin = (high / low) ** 0.06
    axis.set_ylim(low / margin, high * margin)
    labelled: list[float] = []
    for value in sorted(temperatures, key=lambda value: (np.log10(value) % 1 > 1e-9, value)):
        apart = (abs(np.log(value / other)) / np.log(high / low) for other in labelled)
        if all(distance > 0.12 for distance in apart):
            labelled.append(value)
    axis.set_yticks(sorted(labelled), [f"{value:g}" for value in sorted(labelled)])
    axis.set_yticks(sorted(set(temperatures) - set(labelled)), minor=True)
    axis.yaxis.set_minor_formatter(NullFormatter())


def _words(dataset: xr.Dataset, done: np.ndarray) -> str:
    seeds = dataset["seed"].values[done]
    if len(seeds) == 1:
        return f"choices of the temperature, seed {seeds[0]}, accuracy ± binomial standard error"
    return f"choices of the temperature, median and range of {len(seeds)} seeds"
