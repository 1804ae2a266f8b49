"""Parts that figures share: style, axes of widths, paths and labels, legends, colour bars."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from pathkernel_datasets.selection import Spread, number

# Okabe and Ito's colours, which the colour-blind can tell apart
BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"),
    "#555555",
)

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "pathkernel",  # the same store gives the same file
}

_LABELLED_PATHS = 8  # more labels than that along an axis cannot be read


def spread_over_seeds(
    values: np.ndarray, examples: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lowest, median and highest over seeds (first axis), NaN where no seed is known.

    If ``examples`` is given, for a single seed, one binomial standard error below and above.
    """
    spreads = [Spread.of(column) for column in values.T]
    middle = np.array([spread.median for spread in spreads])
    if examples:
        error = np.sqrt(middle * (1 - middle) / examples)
        return middle - error, middle, middle + error
    low, high = np.array([(spread.lowest, spread.highest) for spread in spreads]).T
    return low, middle, high


def line_across(axis: Axes, value: float, label: str, colour: str, style: Any) -> None:
    """Draw a horizontal line across the panel, unless the value is unknown."""
    if not np.isnan(value):
        axis.axhline(value, color=colour, linestyle=style, linewidth=1.4, label=label, zorder=3)


def panel_grid(
    count: int, columns: int, size: tuple[float, float], sharey: bool = False, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """Figure with ``count`` panels in rows of ``columns``; ``size`` is in inches."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(-(-count // columns), columns, squeeze=False, sharey=sharey, **grid)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def width_axis(axis: Axes, widths: np.ndarray, inches: float) -> None:
    """Log axis with ticks at the widths, labelled where there is room."""
    axis.set_xscale("log")
    low, high = widths.min(), widths.max()
    margin = (high / low) ** 0.05 if high > low else 2.0
    axis.set_xlim(low / margin, high * margin)
    decades = np.log10(high / low * margin**2)
    labelled: list[float] = []
    # powers of ten first, then whatever fits between them
    for width in sorted(widths, key=lambda value: (np.log10(value) % 1 > 1e-9, value)):
        room = [0.085 * (len(number(width)) + len(number(other))) / 2 for other in labelled]
        apart = [abs(np.log10(width / other)) / decades * inches * 0.8 for other in labelled]
        if all(distance > need for distance, need in zip(apart, room)):
            labelled.append(width)
    axis.set_xticks(sorted(labelled), [number(width) for width in sorted(labelled)])
    axis.set_xticks(sorted(set(widths) - set(labelled)), minor=True)
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("width N")


def path_axes(axis: Axes, paths: np.ndarray, outputs: int, bottom: bool, left: bool) -> None:
    """Path labels along the outer panels, at the middle of each path's block."""
    thin_frame(axis)
    step = -(-len(paths) // _LABELLED_PATHS)
    while len(paths) % step:
        step += 1
    places = np.arange(0, len(paths), step) * outputs + (outputs - 1) / 2
    labels = [str(path) for path in paths[::step]]
    rotation = 0 if len(labels) <= 4 else 90
    axis.set_xticks(places, labels if bottom else [], fontsize=7, rotation=rotation)
    axis.set_yticks(places, labels if left else [], fontsize=7)
    if outputs > 1:
        for edge in np.arange(1, len(paths)) * outputs - 0.5:
            axis.axhline(edge, color=GREY, linewidth=0.4)
            axis.axvline(edge, color=GREY, linewidth=0.4)


def label_axes(axis: Axes, labels: np.ndarray, bottom: bool, left: bool) -> None:
    """Lines where the label changes, and the labels at the middle of their examples."""
    values = np.unique(labels)[::-1]
    if len(values) > 10:  # not classes
        axis.xaxis.set_major_locator(NullLocator())
        axis.yaxis.set_major_locator(NullLocator())
        return
    counts = np.array([np.count_nonzero(labels == value) for value in values])
    edges = np.cumsum(counts)
    places = edges - counts / 2 - 0.5
    for edge in edges[:-1] - 0.5:
        axis.axhline(edge, color="black", linewidth=0.8)
        axis.axvline(edge, color="black", linewidth=0.8)
    names = [f"{value:+g}" if values.min() < 0 else f"{value:g}" for value in values]
    names = [name.replace("-", "−") for name in names]
    axis.set_xticks(places, names if bottom else [])
    axis.set_yticks(places, names if left else [])
    axis.tick_params(length=0)


def thin_frame(axis: Axes) -> None:
    """Close the frame around a panel, thinly."""
    axis.spines[:].set_visible(True)
    axis.spines[:].set_linewidth(0.6)
    axis.tick_params(length=2, width=0.6)


def colour_bar(figure: Figure, image: AxesImage, axis: Axes, symmetric: bool = True) -> None:
    """Add a small colour bar beside one panel."""
    bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.04)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4, symmetric=symmetric))
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)


def legend_below(figure: Figure, axis: Axes, columns: int) -> None:
    """Put the legend of a panel below the whole figure."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        columns = min(columns, len(handles))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def heading(figure: Figure, dataset: xr.Dataset, words: str) -> None:
    """Put the task and what is shown above the figure, in lines that fit it."""
    words = words.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    characters = int(figure.get_figwidth() / 0.078)
    figure.suptitle(textwrap.fill(f"{dataset.attrs['label']}: {words}", characters), fontsize=9)
