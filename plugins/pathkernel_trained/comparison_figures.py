"""A trained network's order parameter as figures, beside the theory's and the sampled one."""

from __future__ import annotations

import functools
from collections.abc import Callable

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
    GREY,
    ORANGE,
    THEORY,
    TRAINED,
    Look,
    curve,
    label_points,
    sheet,
)
from pathkernel_views.figure_files import NothingToPlot
from pathkernel_views.panels import Bars, HeatMap, head_bars, heatmaps, path_ticks

_SCATTERED = ("correlation", "correlation_off_diagonal")


def order_parameters(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Figure:
    """U of theory, samples and trained network, each in parts of its largest entry.

    Their scales differ, as the trained network's is set by its initial weights; signs and patterns
    can be compared. If several widths are shown, the theory has a row of its own where there are
    samples.

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
    points = known_points(study, shown)
    draws = comparison["order_parameter_sampled"]
    theory = [(f"theory, {shown.title(place)}", matrix) for place, matrix in points]
    others = [
        (f"sampled, {shown.title(place)}", shown.at(draws, place).values) for place, _ in points
    ]
    others.append((trained_words(comparison), comparison["order_parameter_trained"].values))
    others = [(title, matrix) for title, matrix in others if not np.isnan(matrix).any()]
    rows = [len(theory), len(others)] if len(theory) > 1 and len(others) > 1 else None
    maps = [
        HeatMap(title, matrix / np.abs(matrix).max(), "U / its largest |entry|")
        for title, matrix in [*theory, *others]
    ]
    words = f"order parameter U, each divided by its largest entry, {shown.words}"
    return heatmaps(study, words, maps, path_ticks(study["path"].values), rows=rows)


def entries(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Figure:
    """Entries of U, theory against trained, in parts of the largest; one panel for each width.

    Parameters and errors as for :func:`order_parameters`.
    """
    trained = comparison["order_parameter_trained"].values
    trained = trained / np.abs(trained).max()
    agreement = comparison["agreement"].sel(source="theory")
    points = known_points(study, shown)
    upper, diagonal = np.triu_indices(len(trained), k=1), np.diag_indices(len(trained))
    paths = study["path"].values
    words = f"entries of U, largest 1, paths named on the diagonal, {shown.words}"
    with sheet(study, words, [len(points)], (3.1, 2.9), sharey=True) as (figure, axes):
        for axis, (place, theory) in zip(axes, points):
            theory = theory / np.abs(theory).max()
            for line in (axis.axhline, axis.axvline):
                line(0, color=GREY, linewidth=0.5, zorder=1)
            style = {"markersize": 3.5, "markeredgewidth": 0, "alpha": 0.7}
            for chosen, look, label in (
                (upper, Look(BLUE, line=""), "off the diagonal"),
                (diagonal, Look(ORANGE, "s", ""), "on the diagonal"),
            ):
                curve(axis, theory[chosen], trained[chosen], look, label, **style)
            label_points(axis, paths, theory[diagonal], trained[diagonal])
            found = [float(shown.at(agreement, place).sel(statistic=name)) for name in _SCATTERED]
            title = "{}\ncorrelation {:.2f}, off the diagonal {:.2f}"
            axis.set_title(title.format(shown.title(place), *found))
            axis.set_xlabel("U, theory")
            axis.xaxis.set_major_locator(MaxNLocator(5))
        axes[0].set_ylabel("U, trained")
    return figure


def head_scores(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Figure:
    """Score of every head in the theory and in the trained network, one panel per layer.

    Parameters and errors as for :func:`order_parameters`.
    """
    network = Network(study_heads(study), widths=1)
    points = known_points(study, shown)
    bars = [
        Bars(f"theory, {shown.title(place)}", look.colour, scores_of(network, matrix))
        for (place, matrix), look in zip(points, THEORY.at_widths(len(points)))
    ]
    trained = scores_of(network, comparison["order_parameter_trained"].values)
    bars.append(Bars(trained_words(comparison), TRAINED.colour, trained))
    return head_bars(study, f"head scores, {shown.words}", bars)


def comparison_figures(
    study: xr.Dataset, comparison: xr.Dataset, shown: Shown
) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a comparison, by name; parameters as above.

    Of more than three widths, the smallest, a middle one and the largest are shown.
    """
    drawn = {"order_parameters": order_parameters, "entries": entries, "head_scores": head_scores}
    return {
        name: functools.partial(draw, study, comparison, shown.few())
        for name, draw in drawn.items()
    }


def trained_words(comparison: xr.Dataset) -> str:
    """The trained network, as legends name it."""
    return f"trained, N = {comparison.attrs['trained_width']}"


def known_points(study: xr.Dataset, shown: Shown) -> list[tuple[int, np.ndarray]]:
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
