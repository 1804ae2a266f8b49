"""How every figure looks: palette, style, the sheet that holds its panels, curves and axes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullFormatter

from pathkernel_datasets.selection import Spread, number

# Okabe and Ito's colours, which the colour-blind can tell apart
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, BLACK, GREY = "#56B4E9", "#E69F00", "black", "#555555"
PALETTE = (BLUE, ORANGE, SKY, PURPLE, AMBER, BLACK, GREY, GREEN)

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "figure.titlesize": 9,
    "figure.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
    # black on white wherever a figure is shown, whatever the user's own style
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.transparent": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), "black"),
    **dict.fromkeys(("xtick.color", "ytick.color"), "black"),
    "text.parse_math": False,  # a $ in a user's name is a $
    "svg.fonttype": "path",  # looks the same where the font is missing
    "svg.hashsalt": "pathkernel",  # the same store gives the same file
}

_LABELLED_POINTS = 16  # labels of more of them would hide each other
_FILE = re.compile(r"[/\\]|\.[a-z]\w*$", re.IGNORECASE)


@dataclass(frozen=True)
class Look:
    """Colour, marker and line by which one thing is known in every figure."""

    colour: str
    marker: str = "o"
    line: Any = "-"

    def at_widths(self, widths: int) -> list[Look]:
        """The same thing at several widths: paler towards the last."""
        return [replace(self, colour=tint) for tint in tints(self.colour, widths)]


THEORY, LIMIT, NEXT_ORDER = Look(BLUE), Look(ORANGE, "s", "--"), Look(GREEN, "x", "--")
SAMPLED, TRAINED, RANDOM = Look(AMBER, "P"), Look(GREEN, "s"), Look(GREY, "", "-")


def tints(colour: str, shades: int) -> list[str]:
    """Shades of a colour, from the colour itself to a pale one."""
    pure = np.array(to_rgb(colour))
    return [to_hex(pure + (1 - pure) * mix) for mix in np.linspace(0, 0.65, shades)]


@contextmanager
def sheet(
    dataset: xr.Dataset,
    words: str,
    rows: Sequence[int],
    panel: tuple[float, float],
    legend: int = 4,
    **grid: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure in the common style: title above, rows of panels, one legend below.

    Parameters
    ----------
    dataset : Dataset
        Names its task in the attribute ``label``.
    words : str
        What is shown, for the title.
    rows : sequence of int
        Panels in each row; shorter rows stand in the middle.
    panel : tuple of float
        Width and height of a panel, in inches.
    legend : int
        Most columns of the legend, which names what any panel labels, once.
    **grid
        For :meth:`matplotlib.figure.Figure.subplot_mosaic`.

    Yields
    ------
    figure, panels : Figure, list of Axes
        Row by row.
    """
    words = words.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    with matplotlib.rc_context(STYLE):
        size = max(panel[0] * max(rows) + 0.6, 3.6), panel[1] * len(rows) + 0.8
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplot_mosaic(_places(rows), empty_sentinel=None, **grid)
        axes = [panels[place] for place in range(sum(rows))]
        yield figure, axes
        characters = int(figure.get_figwidth() / 0.078)
        figure.suptitle(textwrap.fill(f"{task_words(dataset)}: {words}", characters))
        named = {}
        for axis in axes:
            for handle, label in zip(*axis.get_legend_handles_labels()):
                named.setdefault(label, handle)
        if named:
            room = max(1, int(figure.get_figwidth() / (0.058 * max(map(len, named)) + 0.45)))
            columns = min(legend, room, len(named))
            columns = -(-len(named) // -(-len(named) // columns))  # rows of equal length
            figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns)


def even_rows(panels: int, most: int) -> list[int]:
    """Panels in each row, at most so many: equally many, or nearly so, and none stands alone."""
    for columns in range(most, most // 2, -1):
        if panels % columns == 0:
            return [columns] * (panels // columns)
    rows = -(-panels // most)
    return [panels // rows + (row < panels % rows) for row in range(rows)]


def _places(rows: Sequence[int]) -> list[list[int | None]]:
    """Numbers of the panels on a grid, fine enough to put shorter rows into the middle."""
    numbers = count()
    cells = 1 if len(set(rows)) == 1 else 2
    layout = []
    for panels in rows:
        margin = [None] * ((max(rows) - panels) * cells // 2)
        row = [place for place in (next(numbers) for _ in range(panels)) for _ in range(cells)]
        layout.append([*margin, *row, *margin])
    return layout


def task_words(dataset: xr.Dataset) -> str:
    """The task and its options, without the names of files that it was given."""
    name, *options = dataset.attrs["label"].split(", ")
    return ", ".join([name, *(words for words in options if not _FILE.search(words))])


def spread_over_seeds(
    values: np.ndarray, examples: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Median over seeds (first axis), and how far the lowest and the highest lie from it.

    If ``examples`` is given, for a single seed, one binomial standard error below and above. NaN
    where no seed is known.
    """
    spreads = [Spread.of(column) for column in values.T]
    middle = np.array([spread.median for spread in spreads])
    if examples:
        return middle, np.tile(np.sqrt(middle * (1 - middle) / examples), (2, 1))
    low, high = np.array([(spread.lowest, spread.highest) for spread in spreads]).T
    return middle, np.stack([middle - low, high - middle])


def curve(
    axis: Axes,
    x: np.ndarray,
    y: np.ndarray,
    look: Look,
    label: str | None = None,
    error: np.ndarray | None = None,
    band: bool = False,
    **style: Any,
) -> None:
    """Points joined by a line, in increasing x, with error bars or a band; NaN is left out.

    Parameters
    ----------
    axis : Axes
    x, y : array, shape (n,)
    look : Look
    label : str, optional
        For the legend.
    error : array, shape (n,) or (2, n), optional
        How far bars or band reach below and above.
    band : bool
        Whether to draw a band instead of bars.
    **style
        For :meth:`matplotlib.axes.Axes.errorbar`.
    """
    known = np.argsort(x)
    known = known[~np.isnan(y[known])]
    if not known.size:
        return
    x, y = x[known], y[known]
    if error is not None:
        error = np.broadcast_to(error, (2, len(error.T)))[:, known]
    if band:
        axis.fill_between(x, y - error[0], y + error[1], color=look.colour, alpha=0.2, linewidth=0)
    drawn = {"color": look.colour, "marker": look.marker, "linestyle": look.line}
    drawn |= {"markersize": 4, "linewidth": 1.3} | style
    if error is None or band:
        axis.plot(x, y, label=label, **drawn)
    else:
        axis.errorbar(x, y, error, label=label, **({"elinewidth": 0.9} | drawn))


def across(
    axis: Axes,
    value: float,
    look: Look,
    label: str | None = None,
    error: Any = (0.0, 0.0),
    linewidth: float = 1.3,
) -> None:
    """A line across the panel, and a band where it is uncertain; nothing where it is NaN."""
    if np.isnan(value):
        return
    axis.axhline(value, color=look.colour, linestyle=look.line, linewidth=linewidth, label=label)
    if error[1] + error[0] > 0:
        low, high = value - error[0], value + error[1]
        axis.axhspan(low, high, color=look.colour, alpha=0.12, linewidth=0)


def aside(at: np.ndarray, widths: np.ndarray, steps: float) -> np.ndarray:
    """Widths moved along the axis a little, so that error bars stand beside one another."""
    return at * (widths.max() / widths.min()) ** (0.02 * steps)


def width_axis(axis: Axes, widths: np.ndarray) -> None:
    """Log axis with ticks at the widths, labelled where there is room."""
    log_axis(axis, "x", widths, [number(width) for width in widths])
    axis.set_xlabel("width N")


def log_axis(axis: Axes, along: str, values: np.ndarray, names: Sequence[str]) -> None:
    """Log axis along ``"x"`` or ``"y"`` with ticks at the values, named where there is room."""
    low, high = values.min(), values.max()
    margin = (high / low) ** 0.05 if high > low else 2.0
    axis.set(**{f"{along}scale": "log", f"{along}lim": (low / margin, high * margin)})
    place = axis.get_position()  # about where it will be
    size = axis.figure.get_size_inches() * (place.width, place.height)
    inches = size["xy".index(along)] / np.log(high / low * margin**2)
    room = {"x": lambda name: 0.085 * len(name), "y": lambda name: 0.17}[along]
    named: dict[float, str] = {}
    # powers of ten first, then whatever fits between them
    for _, value, name in sorted(zip(np.log10(values) % 1 > 1e-9, values, names)):
        if all(
            abs(np.log(value / other)) * inches > (room(name) + room(theirs)) / 2
            for other, theirs in named.items()
        ):
            named[value] = name
    side = getattr(axis, f"{along}axis")
    side.set_ticks(list(named), list(named.values()))
    side.set_ticks(sorted(set(values) - set(named)), minor=True)
    side.set_minor_formatter(NullFormatter())


def label_points(axis: Axes, names: Sequence[str], x: np.ndarray, y: np.ndarray) -> None:
    """Names beside points, each on the side farthest from other marks; none if there are many."""
    if len(names) > _LABELLED_POINTS:
        return
    axis.autoscale_view()
    places = axis.transLimits.transform(np.stack([x, y], 1))
    taken = list(places)
    for name, place, point in zip(names, places, zip(x, y)):
        others = [mark for mark in taken if mark is not place]
        sides = [(1, 1), (-1, 1), (1, -1), (-1, -1)]
        middles = [place + 0.07 * np.array(side) for side in sides]
        room = [min((np.linalg.norm(at - mark) for mark in others), default=1) for at in middles]
        best = int(np.argmax(np.minimum(room, 0.12)))  # the first with enough room
        taken.append(middles[best])
        right, up = sides[best]
        axis.annotate(
            name,
            point,
            (4 * right, 3 if up > 0 else -9),
            textcoords="offset points",
            fontsize=7,
            ha="left" if right > 0 else "right",
            path_effects=[withStroke(linewidth=1.5, foreground="white")],  # over error bars
        )
