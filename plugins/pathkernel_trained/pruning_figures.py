"""A comparison of orders as figures."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from pathkernel_datasets.selection import number
from pathkernel_trained.heads import Head, every_head, removable_heads
from pathkernel_trained.orders import RANDOM
from pathkernel_views.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    colour_bar,
    heading,
    legend_below,
    panel_grid,
    thin_frame,
)
from pathkernel_views.figure_files import NothingToPlot, write_figures

# colour, marker and line of the orders that are no theory's; the theory's are blue
_LOOKS = {
    "trained": (GREEN, "s", "-"),
    "gradient": (PURPLE, "^", "--"),
    "raw-gradient": ("#882255", "<", ":"),
    "magnitude": ("#E69F00", "v", ":"),
    "ablation": ("black", "D", "-."),
}
_THEORY = ((BLUE, "o", "-"), (SKY, "o", "--"), ("#332288", "o", ":"))
_LABELLED_HEADS = 16  # labels of more of them would hide each other
_SAMPLED = ((ORANGE, "P", "-"), ("#AA4499", "P", "--"), ("#CC6677", "P", ":"))


def accuracy(result: xr.Dataset) -> Figure:
    """Accuracy against the number of heads removed, for every order, one panel per test set.

    Error bars are one binomial standard error. The band is one standard deviation over random
    orders.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    names = [str(name) for name in result["test_set"].values]
    removed = result["removed"].values
    looks = _looks(result)
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(len(names), len(names), (3.2 * len(names) + 0.4, 3.7))
        for axis, test_set in zip(axes, names):
            here = result.sel(test_set=test_set)
            mean = 100 * here["accuracy"].sel(order=RANDOM).values
            deviation = 100 * here["random_deviation"].values
            axis.fill_between(
                removed,
                mean - deviation,
                mean + deviation,
                color=GREY,
                alpha=0.18,
                linewidth=0,
                label="random order ± sd",
            )
            axis.plot(removed, mean, color=GREY, linewidth=1)
            for place, (name, (colour, marker, line)) in enumerate(looks.items()):
                shift = 0.05 * (place - (len(looks) - 1) / 2)  # so that bars do not hide each other
                axis.errorbar(
                    removed + shift,
                    100 * here["accuracy"].sel(order=name).values,
                    100 * here["accuracy_error"].sel(order=name).values,
                    color=colour,
                    marker=marker,
                    linestyle=line,
                    markersize=4,
                    linewidth=1.1,
                    elinewidth=0.9,
                    label=name,
                )
            if here["best_accuracy"].notnull().any():
                axis.plot(
                    removed,
                    100 * here["best_accuracy"].values,
                    color=GREY,
                    linewidth=1,
                    linestyle=(0, (4, 1)),
                    label="best set of heads",
                )
            axis.axhline(50, color=GREY, linewidth=0.6, linestyle=":")
            axis.set_xticks(removed[:: 1 if len(removed) <= 10 else 2])
            axis.set_title(test_set)
            axis.set_xlabel("heads removed")
        axes[0].set_ylabel("accuracy (%)")
        heading(figure, result, f"{result.sizes['episode']} episodes of each set")
        legend_below(figure, axes[0], -(-(len(looks) + 2) // 2))
    return figure


def heads(result: xr.Dataset) -> Figure:
    """Accuracy that is lost with every single head against its score, one panel per order.

    Episodes are those of the first test set; error bars are one standard error. Scores are divided
    by their largest. Heads that are the only one of their layer are left out.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    test_set = str(result["test_set"].values[0])
    here = result.sel(test_set=test_set)
    looks = _looks(result)
    rows = -(-len(looks) // 4)
    columns = -(-len(looks) // rows)
    numbers = removable_heads(result.attrs["heads_per_layer"])
    loss, error = (
        100 * np.array([here[variable].sel(layer=layer, head=head) for layer, head in numbers])
        for variable in ("ablation_drop", "ablation_drop_error")
    )
    with matplotlib.rc_context(STYLE):
        side = 2.5 if len(numbers) <= 8 else 3.2
        shape = (side * columns + 0.5, (side - 0.2) * rows + 0.6)
        figure, axes = panel_grid(len(looks), columns, shape, sharey=True)
        for axis, (name, (colour, marker, _)) in zip(axes, looks.items()):
            score = here["score"].sel(order=name)
            values = np.array([score.sel(layer=layer, head=head) for layer, head in numbers])
            values = values / np.abs(values).max()
            axis.errorbar(
                values, loss, error, fmt=marker, color=colour, markersize=4, elinewidth=0.9
            )
            if len(numbers) <= _LABELLED_HEADS:
                _label(axis, numbers, values, loss)
            spearman = float(here["rank_correlation"].sel(order=name, coefficient="spearman"))
            axis.set_title(f"{name}, ρ = " + f"{spearman:.2f}".replace("-", "−"))
            axis.axhline(0, color=GREY, linewidth=0.6, linestyle=":")
            axis.margins(x=0.12)
            axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        for axis in axes[-columns:]:  # the lowest of every column
            axis.set_xlabel("score / largest")
        for axis in axes[::columns]:
            axis.set_ylabel("accuracy lost (points)")
        heading(figure, result, f"single heads (layer-head) removed, {test_set} test episodes")
    return figure


def _label(axis: Axes, numbers: Sequence[Head], x: np.ndarray, y: np.ndarray) -> None:
    """Names of heads beside their points, each on the side that is farthest from other marks."""
    places = np.stack([(x - x.min()) / (np.ptp(x) or 1.0), (y - y.min()) / (np.ptp(y) or 1.0)], 1)
    taken = list(places)
    for (layer, head), place, point in zip(numbers, places, zip(x, y)):
        others = [mark for mark in taken if mark is not place]
        sides = [(1, 1), (-1, 1), (1, -1), (-1, -1)]
        middles = [place + 0.07 * np.array(side) for side in sides]
        room = [min((np.linalg.norm(at - mark) for mark in others), default=1) for at in middles]
        best = int(np.argmax(np.minimum(room, 0.12)))  # the first with enough room
        taken.append(middles[best])
        right, up = sides[best]
        axis.annotate(
            f"{layer}-{head}",
            point,
            (4 * right, 3 if up > 0 else -9),
            textcoords="offset points",
            fontsize=7,
            ha="left" if right > 0 else "right",
            path_effects=[withStroke(linewidth=1.5, foreground="white")],  # over error bars
        )


def scores(result: xr.Dataset) -> Figure:
    """Score of every head in the theory, in samples and in the trained network's weights.

    Scores are those of the order parameter, the largest 1. Error bars are the Monte-Carlo error of
    the samples.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    numbers = every_head(result.attrs["heads_per_layer"])
    shown = {
        name: look
        for name, look in _looks(result).items()
        if name.partition(" ")[0] in ("theory", "sampled", "trained")
    }
    places = np.arange(len(numbers)) + np.array([layer for layer, _ in numbers])
    step = 0.7 / len(shown)
    with matplotlib.rc_context(STYLE):
        width = max(5.4, (0.2 + 0.13 * len(shown)) * len(numbers) + 1.0)
        figure, (axis,) = panel_grid(1, 1, (width, 3.5))
        for place in places[::2]:
            axis.axvspan(place - 0.5, place + 0.5, color=GREY, alpha=0.07, linewidth=0)
        for series, (name, (colour, marker, _)) in enumerate(shown.items()):
            here = result.sel(order=name)
            values, errors = (
                [here[of].sel(layer=layer, head=head).item() for layer, head in numbers]
                for of in ("score", "score_error")
            )
            axis.errorbar(
                places + step * (series - (len(shown) - 1) / 2),
                values,
                None if np.isnan(errors).all() else errors,
                fmt=marker,
                color=colour,
                markersize=4.5,
                elinewidth=1,
                capsize=2,
                label=_with_temperature(result, name),
            )
        axis.set_xticks(places, ["{}-{}".format(*head) for head in numbers])
        axis.set_xlim(places[0] - 0.7, places[-1] + 0.7)
        axis.set_ylim(0, 1.06)
        axis.tick_params(axis="x", length=0)
        axis.set_xlabel("head (layer-head)")
        axis.set_ylabel("head score (largest 1)")
        heading(figure, result, "head scores from U")
        legend_below(figure, axis, int(width / 1.8))
    return figure


def theory_grid(result: xr.Dataset) -> Figure:
    """Spearman's rank correlation of the theory's scores between all points of the grid.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    widths, temperatures = (result[name].values for name in ("width", "temperature"))
    size = len(widths) * len(temperatures)
    if size < 2:
        raise NothingToPlot("the study has a single point")
    matrix = result["theory_agreement"].transpose(
        "width", "temperature", "width_dual", "temperature_dual"
    )
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = panel_grid(2, 2, (8.6, 4.4))
        image = left.imshow(matrix.values.reshape(size, size), cmap="RdBu_r", vmin=-1, vmax=1)
        places = np.arange(len(widths)) * len(temperatures) + (len(temperatures) - 1) / 2
        labels = [number(width) for width in widths]
        left.set_xticks(places, labels, rotation=90)
        left.set_yticks(places, labels)
        for edge in np.arange(1, len(widths)) * len(temperatures) - 0.5:
            left.axhline(edge, color="white", linewidth=0.5)
            left.axvline(edge, color="white", linewidth=0.5)
        left.set_xlabel("width N, in each block T increasing")
        left.set_ylabel("width N")
        left.set_title("ρ between scores at two points")
        first = str(result["test_set"].values[0])
        truth = result["theory_correlation"].sel(test_set=first).transpose("temperature", "width")
        other = right.imshow(truth.values, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        right.set_xticks(range(len(widths)), labels, rotation=90)
        right.set_yticks(range(len(temperatures)), [f"{value:g}" for value in temperatures])
        right.set_xlabel("width N")
        right.set_ylabel("temperature T")
        right.set_title(f"ρ of scores with accuracy lost, {first}")
        for axis, picture in ((left, image), (right, other)):
            thin_frame(axis)
            colour_bar(figure, picture, axis)
        heading(figure, result, "how far the theory's head scores depend on N and T")
    return figure


def save_pruning_figures(
    result: xr.Dataset,
    folder: str | os.PathLike,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the figures of a comparison, as PNG and SVG.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    folder : path
        Folder to write into; made if it does not exist. Files of the same names are replaced.
    report : callable
        Called with a line of text for every figure that is skipped, and why.

    Returns
    -------
    list of pathlib.Path
        Files written: ``scores.png``, ``scores.svg``, …

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    return write_figures(pruning_figures(result), folder, report)


def pruning_figures(result: xr.Dataset) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a comparison, by name."""
    drawn = {"scores": scores, "accuracy": accuracy, "heads": heads, "theory_grid": theory_grid}
    return {name: functools.partial(draw, result) for name, draw in drawn.items()}


def _with_temperature(result: xr.Dataset, name: str) -> str:
    temperature = float(result["order_temperature"].sel(order=name))
    return name if np.isnan(temperature) else f"{name}, T={temperature:g}"


def _looks(result: xr.Dataset) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line of every order but the random ones."""
    found, seen = {}, {"theory": 0, "sampled": 0}
    for name in map(str, result["order"].values):
        kind = name.partition(" ")[0]
        if kind in seen:
            styles = _THEORY if kind == "theory" else _SAMPLED
            found[name] = styles[seen[kind] % len(styles)]
            seen[kind] += 1
        elif name != RANDOM:
            found[name] = _LOOKS[name]
    return found
