"""Two figures that are drawn of many things: heat maps over paths, and scores of heads as bars."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pathkernel_views.drawing import BLACK, even_rows, sheet

_LABELLED = 27  # more labels than that along an axis cannot be read
_LAYERS = 6  # beside each other in a figure of head scores,
_WIDEST = 14.0  # and inches of all of them


@dataclass(frozen=True)
class HeatMap:
    """One panel of a figure of heat maps.

    Attributes
    ----------
    title : str
    matrix : array, shape (rows, columns)
    quantity : str
        What the colours mean, for panels that share a scale and a colour bar; by default each panel
        has its own.
    limits : tuple of float, optional
        Ends of the scale; by default it reaches from minus to plus the largest magnitude.
    colours : str
        Colour map.
    """

    title: str
    matrix: np.ndarray
    quantity: str = ""
    limits: tuple[float, float] | None = None
    colours: str = "RdBu_r"


@dataclass(frozen=True)
class Ticks:
    """What lies along a side of a heat map.

    Attributes
    ----------
    name : str
        Of the axis.
    places : sequence of float
        Of the labels, counted in cells.
    labels : sequence of str
    edges : sequence of float
        Where lines divide the cells.
    """

    name: str
    places: Sequence[float]
    labels: Sequence[str]
    edges: Sequence[float] = ()


def heatmaps(
    dataset: xr.Dataset,
    words: str,
    maps: Sequence[HeatMap],
    x: Ticks,
    y: Ticks | None = None,
    rows: Sequence[int] | None = None,
) -> Figure:
    """Heat maps of equal axes, labelled along the outer panels.

    Parameters
    ----------
    dataset, words
        As for :func:`pathkernel_views.drawing.sheet`.
    maps : sequence of HeatMap
    x, y : Ticks
        Along the columns and the rows of the matrices; ``y`` is by default as ``x``.
    rows : sequence of int, optional
        Panels in each row; by default as equal as can be.

    Returns
    -------
    matplotlib.figure.Figure
    """
    y = x if y is None else y
    groups: dict[object, list[int]] = {}
    for place, shown in enumerate(maps):
        groups.setdefault(shown.quantity or place, []).append(place)
    width, height = (float(np.clip(0.115 * len(side.labels), 1.4, 3.0)) for side in (x, y))
    titles = [line for shown in maps for line in shown.title.splitlines()]
    wide = width + (0.35 if maps[0].quantity else 0.75)
    panel = max(wide, 0.075 * max(map(len, titles))), height + 0.35
    if rows is None:
        rows = even_rows(len(maps), 8 if len(maps) > 16 else min(5, int(11 / panel[0])))
    with sheet(dataset, words, rows, panel) as (figure, axes):
        for quantity, places in groups.items():
            shown = [maps[place] for place in places]
            scale = max(float(np.abs(each.matrix).max()) for each in shown) or 1.0
            low, high = shown[0].limits or (-scale, scale)
            for place, each in zip(places, shown):
                image = axes[place].imshow(each.matrix, cmap=each.colours, vmin=low, vmax=high)
            label = quantity if isinstance(quantity, str) else None
            beside = [axes[place] for place in places]
            tall = len(rows) if len(places) > 1 else 1
            size = {"fraction": 0.05 * tall / len(places), "aspect": 20 * tall, "pad": 0.03}
            bar = figure.colorbar(image, ax=beside, label=label, **size)
            bar.ax.yaxis.set_major_locator(MaxNLocator(4, symmetric=low == -high))
            bar.ax.tick_params(labelsize=7, length=2)
            bar.outline.set_visible(False)
        turned = max(map(len, x.labels), default=0) * len(x.labels) > 14 * width
        for place, (axis, shown) in enumerate(zip(axes, maps)):
            axis.set_title(shown.title)
            axis.spines[:].set(visible=True, linewidth=0.6)
            axis.tick_params(length=2, width=0.6, labelsize=7)
            outer = place >= len(maps) - rows[-1], place in np.cumsum([0, *rows])
            axis.set_xticks(x.places, x.labels if outer[0] else [], rotation=90 * turned)
            axis.set_yticks(y.places, y.labels if outer[1] else [])
            for draw, side in ((axis.axhline, y), (axis.axvline, x)):
                for edge in side.edges:
                    draw(edge, color=BLACK, linewidth=0.6)
        figure.supxlabel(x.name)
        figure.supylabel(textwrap.fill(y.name, int(figure.get_figheight() / 0.09)))
    return figure


def path_ticks(paths: np.ndarray, outputs: int = 1) -> Ticks:
    """Labels at the middle of each path's block of outputs, where there is room for them."""
    step = -(-len(paths) // _LABELLED)
    while len(paths) % step:
        step += 1
    words = ["head of each layer"]
    edges = np.arange(1, len(paths)) * outputs - 0.5 if outputs > 1 else ()
    words += [f"in blocks of {outputs} outputs"] if outputs > 1 else []
    words += [f"every {step}th is labelled"] if step > 1 else []
    places = np.arange(0, len(paths), step) * outputs + (outputs - 1) / 2
    return Ticks(f"path ({', '.join(words)})", places, [str(p) for p in paths[::step]], edges)


@dataclass(frozen=True)
class Bars:
    """Scores of all heads by one source.

    Attributes
    ----------
    label : str
    colour : str
    scores : sequence of array, shape (heads,)
        One for each layer.
    errors : sequence of array, shape (heads,) or (2, heads), optional
        How far whiskers reach below and above.
    """

    label: str
    colour: str
    scores: Sequence[np.ndarray]
    errors: Sequence[np.ndarray] | None = None


def head_bars(dataset: xr.Dataset, words: str, series: Sequence[Bars]) -> Figure:
    """Score of every head, one panel per layer, one bar for each source.

    Parameters
    ----------
    dataset, words
        As for :func:`pathkernel_views.drawing.sheet`.
    series : sequence of Bars

    Returns
    -------
    matplotlib.figure.Figure
    """
    heads = [len(scores) for scores in series[0].scores]
    rows = even_rows(len(heads), _LAYERS)
    ratios = {"width_ratios": [count + 1 for count in heads]} if len(rows) == 1 else {}
    width = (0.2 + 0.13 * len(series)) * sum(heads) / len(rows) + 0.5 * rows[0]
    width = min(max(4.6, width), _WIDEST) / rows[0]
    with sheet(dataset, words, rows, (width, 2.5), sharey=True, **ratios) as (figure, axes):
        for layer, (axis, count) in enumerate(zip(axes, heads)):
            places, step = np.arange(1, count + 1), 0.8 / len(series)
            for bar, shown in enumerate(series):
                where = places + (bar - (len(series) - 1) / 2) * step
                middle = shown.scores[layer]
                axis.bar(where, middle, 0.95 * step, color=shown.colour, label=shown.label)
                if shown.errors is not None:
                    whiskers = {"ecolor": BLACK, "elinewidth": 0.9, "capsize": 2}
                    axis.errorbar(where, middle, shown.errors[layer], fmt="none", **whiskers)
            room = max(2, int(6 * width * count / np.mean(heads)))
            axis.set(title=f"layer {layer + 1}", xlabel="head")
            axis.set_xticks(places[:: -(-count // room)])
            axis.set_xlim(0.4, count + 0.6)
        for first in np.cumsum([0, *rows[:-1]]):
            axes[first].set_ylabel("head score (largest 1)")
    return figure
