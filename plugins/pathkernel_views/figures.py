"""A result store as figures, after figures 2, 3, 5 and 7 of the paper."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import Selection, count_test_examples
from pathkernel_views.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    heading,
    legend_below,
    line_across,
    panel_grid,
    spread_over_seeds,
    width_axis,
)
from pathkernel_views.figure_files import NothingToPlot, write_figures
from pathkernel_views.figure_parts import (
    at_seed,
    point_words,
    require,
    seed_index,
    seed_words,
    smallest_width,
)
from pathkernel_views.path_figures import head_scores, order_parameters, same_path_kernels
from pathkernel_views.temperature_figure import temperature_choice


def accuracy(dataset: xr.Dataset, temperature: float | str = "evidence") -> Figure:
    """Accuracy against width, one panel per test set.

    Points are medians over the seeds with their range, or, where a single seed is computed, its
    accuracy with the binomial standard error of the test set. Lines across are Gaussian process
    (GP) limits of the network and of its sub-networks.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        Temperature of the store; or the one with the largest log evidence, or validation accuracy,
        over the seeds, chosen for each width and for the GP limit.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If no accuracy is computed yet.
    ValueError
        If the store does not have that temperature, or no validation accuracy to choose it by.
    """
    selection = Selection(dataset, temperature)
    theory, limit = selection.point("accuracy"), selection.reference("accuracy_gp")
    if not theory.notnull().any() and not limit.notnull().any():
        raise NothingToPlot("no accuracy is computed yet")
    parts = []
    for index in range(dataset.sizes.get("sub_network", 0)):
        part = selection.reference("accuracy_sub_network").isel(sub_network=index)
        name = dataset["sub_network"].values[index]
        parts.append(part.assign_attrs(label=f"{name} (GP limit)"))
    counts = theory.notnull().all("test_set").sum("seed").values
    seeds = int(max(counts.max(), limit.notnull().any("test_set").sum()))
    stopped = selection.status.isin([STATUS_CODES["max_evaluations"], STATUS_CODES["stalled"]])
    stopped = stopped.any("seed").values
    widths = dataset["width"].values
    order = np.argsort(widths)
    names = [str(name) for name in dataset["test_set"].values]
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    size = (5.6 if columns == 1 else 3.1 * columns + 0.6, 3.1 * rows + 0.9)
    some = "" if (counts == seeds).all() else "up to "
    label = f"theory, median and range of {some}{seeds} seeds"
    if seeds == 1:
        label = "theory ± binomial standard error"
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(len(names), columns, size, sharey=True)
        for t, (axis, name) in enumerate(zip(axes, names)):
            examples = count_test_examples(dataset, t) if seeds == 1 else None
            axis.set_title(name)
            low, middle, high = spread_over_seeds(theory.isel(test_set=t).values, examples)
            known = order[~np.isnan(middle[order])]
            at = widths[known]
            axis.fill_between(at, low[known], high[known], color=BLUE, alpha=0.2, linewidth=0)
            axis.plot(at, middle[known], "o-", color=BLUE, markersize=4, label=label)
            if stopped[known].any():
                known = known[stopped[known]]
                axis.plot(
                    widths[known],
                    middle[known],
                    "o",
                    color=BLUE,
                    markerfacecolor="white",
                    markersize=4,
                    label="not converged" if seeds == 1 else "not converged in some seed",
                )
            low, middle, high = spread_over_seeds(limit.isel(test_set=t).values[:, None], examples)
            line_across(axis, middle[0], "GP limit", ORANGE, "--")
            if not np.isnan(middle[0]):
                axis.axhspan(low[0], high[0], color=ORANGE, alpha=0.13, linewidth=0)
            for index, part in enumerate(parts):
                _, middle, _ = spread_over_seeds(part.isel(test_set=t).values[:, None])
                colour = (GREEN, PURPLE, SKY, GREY)[index % 4]
                style = (0, (1, 1 + index // 4))
                line_across(axis, middle[0], part.attrs["label"], colour, style)
            width_axis(axis, widths, size[0] / columns)
        for axis in axes[::columns]:
            axis.set_ylabel("accuracy (fraction correct)")
        words = selection.describe()
        if seeds == 1:
            index = int(limit.notnull().any("test_set").values.argmax())
            words = f"{seed_words(dataset, index)}, {words}"
        heading(figure, dataset, words)
        legend_below(figure, axes[0], 3 if columns > 1 else 2)
    return figure


def alignment(
    dataset: xr.Dataset,
    temperature: float | str = "evidence",
    seed: int | None = None,
    components: int | None = None,
) -> Figure:
    """Overlap of the kernel's principal components with the labels, smallest width against GP.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        As for :func:`accuracy`.
    seed : int, optional
        Seed of the store; by default the first that is computed.
    components : int, optional
        How many components to show; by default 30 per 100 training examples, and at most the 50
        that a store holds.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If the store holds no alignment, or none is computed yet.
    ValueError
        If the store does not have that temperature or seed.
    """
    require(dataset, "alignment", "alignment_gp")
    if "output" in dataset.dims:
        raise NothingToPlot("the alignment is computed for networks with one output only")
    selection = Selection(dataset, temperature)
    finite, limit = selection.point("alignment"), selection.reference("alignment_gp")
    index = seed_index(dataset, finite, seed)
    finite, limit = finite.isel(seed=index), limit.isel(seed=index)
    w = smallest_width(dataset, finite.notnull().any("component").values)
    if components is None:
        components = max(10, 3 * int(dataset.attrs.get("training_examples", 100)) // 10)
    numbers = dataset["component"].values[:components]
    series = [
        (point_words(dataset, selection, w), finite.isel(width=w).values, BLUE, "o"),
        ("GP limit", limit.values, ORANGE, "s"),
    ]
    if selection.chosen:
        series[1] = (f"GP limit, T = {selection.temperature_gp:g}", *series[1][1:])
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = panel_grid(1, 1, (5.6, 3.6))
        for offset, (label, values, colour, marker) in zip((-0.12, 0.12), series):
            if np.isnan(values).all():
                continue
            values = values[: len(numbers)]
            axis.vlines(numbers + offset, 0, values, color=colour, linewidth=1.2)
            axis.plot(numbers + offset, values, marker, color=colour, markersize=3.5, label=label)
        axis.set_xlim(0, len(numbers) + 1)
        axis.set_ylim(0, None)
        axis.set_xticks([1, *range(5, len(numbers) + 1, 5)])
        axis.set_xlabel("principal component i of the kernel, largest eigenvalue first")
        axis.set_ylabel("overlap with the labels, |vᵢ·Y| / ‖Y‖")
        heading(figure, dataset, at_seed(dataset, selection, index))
        legend_below(figure, axis, 2)
    return figure


def save_figures(
    dataset: xr.Dataset,
    folder: str | os.PathLike,
    *,
    temperature: float | str = "evidence",
    seed: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write every figure that the store has data for, as PNG and SVG.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    folder : path
        Folder to write into; made if it does not exist. Files of the same names are replaced.
    temperature, seed
        As for the single figures.
    report : callable
        Called with a line of text for every figure that is skipped, and why.

    Returns
    -------
    list of pathlib.Path
        Files written: ``accuracy.png``, ``accuracy.svg``, …

    Raises
    ------
    ValueError
        If the store does not have that temperature or seed.
    OSError
        If the folder cannot be made or written.
    """
    return write_figures(study_figures(dataset, temperature, seed), folder, report)


def study_figures(
    dataset: xr.Dataset, temperature: float | str = "evidence", seed: int | None = None
) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a study, by name; parameters as for the single ones."""
    figures: dict[str, Callable[[], Figure]] = {
        "accuracy": lambda: accuracy(dataset, temperature),
        "order_parameters": lambda: order_parameters(dataset, temperature, seed),
        "alignment": lambda: alignment(dataset, temperature, seed),
        "same_path_kernels": lambda: same_path_kernels(dataset, seed),
        "head_scores": lambda: head_scores(dataset, temperature),
    }
    if "choice" in dataset.dims:  # with one temperature there is nothing to miss
        figures["temperature_choice"] = lambda: temperature_choice(dataset)
    return figures
