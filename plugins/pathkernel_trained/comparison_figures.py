"""A trained network's order parameter as figures, beside the theory's and the sampled one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores as scores_of
from pathkernel_datasets.selection import NOT_COMPUTED
from pathkernel_trained.comparison_tables import Shown
from pathkernel_trained.study_checkpoint import study_heads
from pathkernel_views.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    STYLE,
    colour_bar,
    heading,
    legend_below,
    panel_grid,
    path_axes,
)
from pathkernel_views.figure_files import NothingToPlot, write_figures

_SCATTERED = ("correlation", "correlation_off_diagonal")


def order_parameters(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Figure:
    """U of theory, trained network and samples side by side, each with a scale of its own.

    Scales reach from minus to plus the largest magnitude of the entries. Samples have a row below
    the theory's if several widths are shown.

    Parameters
    ----------
    study : Dataset
        From :func:`pathkernel_datasets.store.open_store`.
    comparison : Dataset
        From :func:`pathkernel_trained.comparison_store.open_comparison`.
    shown : Shown
        Points to show.

    Raises
    ------
    NothingToPlot
        If the theory is computed at none of them.
    """
    points = _known(study, shown)
    draws = comparison["order_parameter_sampled"]
    sampled = [
        (f"sampled, {shown.title(place)}", shown.at(draws, place).values) for place, _ in points
    ]
    if np.isnan([matrix for _, matrix in sampled]).all():
        sampled = []
    theory = [(f"theory, {shown.title(place)}", matrix) for place, matrix in points]
    trained = (_trained(comparison), comparison["order_parameter_trained"].values)
    if len(points) == 1:
        panels = [*theory, *sampled, trained]
        columns = len(panels)
    else:
        panels = [*theory, trained, *sampled]
        columns = len(points) + 1
    with matplotlib.rc_context(STYLE):
        shape = (2.1 * columns + 0.4, 1.85 * -(-len(panels) // columns) + 0.9)
        figure, axes = panel_grid(len(panels), columns, shape)
        for place, (axis, (title, matrix)) in enumerate(zip(axes, panels)):
            if np.isnan(matrix).any():  # no draws at this width
                axis.remove()
                continue
            axis.set_title(title)
            scale = np.abs(matrix).max()
            image = axis.imshow(matrix, cmap="RdBu_r", vmin=-scale, vmax=scale)
            colour_bar(figure, image, axis)
            bottom, left = place + columns >= len(panels), place % columns == 0
            path_axes(axis, study["path"].values, 1, bottom, left)
        figure.supxlabel("path (head of each layer)", fontsize=9)
        figure.supylabel("path", fontsize=9)
        heading(figure, study, f"order parameter U, {shown.words}")
    return figure


def entries(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Figure:
    """Entries of U, theory against trained, in parts of the largest; one panel for each width.

    Parameters and errors as for :func:`order_parameters`.
    """
    trained = comparison["order_parameter_trained"].values
    agreement = comparison["agreement"].sel(source="theory")
    points = _known(study, shown)
    with matplotlib.rc_context(STYLE):
        columns = min(len(points), 3)
        rows = -(-len(points) // columns)
        shape = (max(2.9 * columns + 0.4, 3.8), 3.1 * rows + 0.7)
        figure, axes = panel_grid(len(points), columns, shape, sharey=True)
        for axis, (place, theory) in zip(axes, points):
            theirs, ours = (matrix / np.abs(matrix).max() for matrix in (theory, trained))
            upper = np.triu_indices(len(ours), k=1)
            for line in (axis.axhline, axis.axvline):
                line(0, color=GREY, linewidth=0.5, zorder=1)
            style = {"markersize": 3.5, "markeredgewidth": 0, "alpha": 0.7}
            axis.plot(
                theirs[upper], ours[upper], "o", color=BLUE, label="off the diagonal", **style
            )
            axis.plot(
                np.diag(theirs), np.diag(ours), "s", color=ORANGE, label="on the diagonal", **style
            )
            found = [float(shown.at(agreement, place).sel(statistic=name)) for name in _SCATTERED]
            title = "{}\ncorrelation {:.2f}, off the diagonal {:.2f}"
            axis.set_title(title.format(shown.title(place), *found))
            axis.set_xlabel("U, theory")
            axis.xaxis.set_major_locator(MaxNLocator(5))
        for axis in axes[::columns]:
            axis.set_ylabel("U, trained")
        heading(figure, study, f"entries of U, largest 1, {shown.words}")
        legend_below(figure, axes[0], 2)
    return figure


def head_scores(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Figure:
    """Score of every head in the theory and in the trained network, one panel per layer.

    Parameters and errors as for :func:`order_parameters`; at most three points.
    """
    heads = study_heads(study)
    network = Network(heads, widths=1)
    points = _known(study, shown)
    bars = [
        (f"theory, {shown.title(place)}", colour, scores_of(network, theory))
        for (place, theory), colour in zip(points, (BLUE, SKY, GREEN))
    ]
    trained = scores_of(network, comparison["order_parameter_trained"].values)
    bars.append((_trained(comparison), ORANGE, trained))
    with matplotlib.rc_context(STYLE):
        shape = (max(5.4, 0.62 * sum(heads) + 0.9 * len(heads) + 1.0), 3.3)
        figure, axes = panel_grid(
            len(heads), len(heads), shape, sharey=True, width_ratios=[count + 1 for count in heads]
        )
        for layer, (axis, count) in enumerate(zip(axes, heads)):
            places, bar_width = np.arange(1, count + 1), 0.8 / len(bars)
            for bar, (label, colour, scores) in enumerate(bars):
                where = places + (bar - (len(bars) - 1) / 2) * bar_width
                axis.bar(where, scores[layer], bar_width * 0.95, color=colour, label=label)
            axis.set_title(f"layer {layer + 1}")
            axis.set_xlabel("head")
            axis.set_xticks(places)
            axis.set_xlim(0.4, count + 0.6)
        axes[0].set_ylabel("head score (largest 1)")
        heading(figure, study, f"head scores, {shown.words}")
        legend_below(figure, axes[0], 2)
    return figure


def save_comparison_figures(
    study: xr.Dataset,
    comparison: xr.Dataset,
    shown: Shown,
    folder: str | os.PathLike,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the figures of a comparison, as PNG and SVG.

    Parameters
    ----------
    study, comparison, shown
        As for the single figures. Of more than three widths, the smallest, the middle and the
        largest are shown.
    folder : path
        Folder to write into; made if it does not exist. Files of the same names are replaced.
    report : callable
        Called with a line of text for every figure that is skipped, and why.

    Returns
    -------
    list of pathlib.Path
        Files written: ``order_parameters.png``, ``order_parameters.svg``, …

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    return write_figures(comparison_figures(study, comparison, shown), folder, report)


def comparison_figures(
    study: xr.Dataset, comparison: xr.Dataset, shown: Shown
) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a comparison, by name; parameters as above."""
    drawn = {"order_parameters": order_parameters, "entries": entries, "head_scores": head_scores}
    return {
        name: functools.partial(draw, study, comparison, shown.few())
        for name, draw in drawn.items()
    }


def _trained(comparison: xr.Dataset) -> str:
    return f"trained, N = {comparison.attrs['trained_width']}"


def _known(study: xr.Dataset, shown: Shown) -> list[tuple[int, np.ndarray]]:
    """Points at which the theory is computed, with its U."""
    found = []
    for place in range(len(shown.widths)):
        if int(shown.at(study["status"], place)) != NOT_COMPUTED:
            matrix = shown.at(study["order_parameter"], place).transpose("path", "path_dual").values
            if not np.isnan(matrix).any():
                found.append((place, matrix))
    if not found:
        raise NothingToPlot("the theory is not computed at these widths")
    return found
