"""A result store as figures, after figures 2, 3, 5 and 7 of the paper."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import Selection, count_test_examples
from pathkernel_datasets.swept import by_value, described, swept_option
from pathkernel_views.drawing import (
    BLUE,
    GREY,
    LIMIT,
    PURPLE,
    SKY,
    THEORY,
    Look,
    across,
    curve,
    even_rows,
    sheet,
    spread_over_seeds,
    width_axis,
)
from pathkernel_views.figure_files import NothingToPlot, write_figures
from pathkernel_views.figure_parts import (
    at_seed,
    known_widths,
    point_words,
    require,
    seed_index,
)
from pathkernel_views.path_figures import head_scores, kernels, order_parameters
from pathkernel_views.swept_figure import swept
from pathkernel_views.temperature_figure import temperature_choice

_PARTS = (PURPLE, GREY, SKY)  # of sub-networks


def measured(
    dataset: xr.Dataset,
    name: str,
    temperature: float | str | None = None,
    add: Callable[[Axes, int], None] = lambda axis, test_set: None,
) -> Figure:
    """Accuracy, or a measure of how well targets are predicted, against width, by test set.

    Points are medians over the seeds with their range, or, where a single seed is computed, its
    value, an accuracy with the binomial standard error of the test set. Lines across are Gaussian
    process (GP) limits of the network and of its sub-networks.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    name : str
        Measure that the store has, see :func:`pathkernel_datasets.measures.measures_of`.
    temperature : float or str, optional
        Temperature of the store, or how it is chosen at each width and for the limits, as for
        :class:`pathkernel_datasets.selection.Selection`.
    add : callable
        Draws more into the panel of a test set, given by its index.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If it is not computed anywhere yet.
    ValueError
        If the store does not have that temperature, or what the choice goes by.
    """
    selection = Selection(dataset, temperature)
    measure = next(found for found in measures_of(dataset) if found.name == name)
    heading = measure.axis.partition(" (")[0]
    theory, limit = selection.point(name), selection.reference(f"{name}_gp")
    if not theory.notnull().any() and not limit.notnull().any():
        raise NothingToPlot(
            f"there is no {heading}: it is not computed yet, or not defined for these examples"
        )
    counts = theory.notnull().any("test_set").sum("seed").values
    seeds = int(max(counts.max(), limit.notnull().any("test_set").sum()))
    some = "" if (counts == seeds).all() else "up to "
    label = f"theory, median and range of {some}{seeds} seeds"
    words = f"{heading}, {selection.describe()}"
    binomial = seeds == 1 and name == "accuracy"
    if seeds == 1:
        label = "theory ± binomial standard error" if binomial else "theory"
        index = int(limit.notnull().any("test_set").values.argmax())
        words = f"{heading}, {at_seed(dataset, selection, index, values=True)}"
    stopped = selection.status.isin([STATUS_CODES["max_evaluations"], STATUS_CODES["stalled"]])
    stopped = stopped.any("seed").values
    widths = dataset["width"].values
    rows = even_rows(dataset.sizes["test_set"], 3)
    panel = (5.0 if rows == [1] else 3.1, 3.1)
    with sheet(dataset, words, rows, panel, legend=3, sharey=True) as (figure, axes):
        for t, axis in enumerate(axes):
            examples = count_test_examples(dataset, t) if binomial else None
            axis.set_title(str(dataset["test_set"].values[t]))
            middle, reach = spread_over_seeds(theory.isel(test_set=t).values, examples)
            curve(axis, widths, middle, THEORY, label, reach, band=True)
            hollow = "not converged" if seeds == 1 else "not converged in some seed"
            missed = np.where(stopped, middle, np.nan)
            look = Look(BLUE, line="")
            curve(axis, widths, missed, look, hollow, markerfacecolor="white")
            middle, reach = spread_over_seeds(limit.isel(test_set=t).values[:, None], examples)
            across(axis, middle[0], LIMIT, "GP limit", reach[:, 0])
            for index in range(dataset.sizes.get("sub_network", 0)):
                part = selection.sub_networks(f"{name}_sub_network").isel(sub_network=index)
                middle, _ = spread_over_seeds(part.isel(test_set=t).values[:, None])
                look = Look(_PARTS[index % 3], line=(0, (1, 1 + index // 3)))
                across(axis, middle[0], look, f"{part['sub_network'].item()} (GP limit)")
            add(axis, t)
            width_axis(axis, widths)
        for first in np.cumsum([0, *rows[:-1]]):
            axes[first].set_ylabel(measure.axis)
    return figure


def alignment(
    dataset: xr.Dataset,
    temperature: float | str | None = None,
    seed: int | None = None,
    components: int | None = None,
) -> Figure:
    """Overlap of the kernel's principal components with the labels, smallest width against GP.

    Parameters and errors as for :func:`measured`, and ``seed``: by default the first that is
    computed; ``components``: how many to show, by default 30 per 100 training examples, and at
    most the 50 that a store holds.
    """
    require(dataset, "alignment", "alignment_gp")
    if "output" in dataset.dims:
        raise NothingToPlot("the alignment is computed for networks with one output only")
    selection = Selection(dataset, temperature)
    finite, limit = selection.point("alignment"), selection.reference("alignment_gp")
    index = seed_index(dataset, finite, seed)
    finite, limit = finite.isel(seed=index), limit.isel(seed=index)
    w = known_widths(finite)[0]
    if components is None:
        components = max(10, 3 * int(dataset.attrs.get("training_examples", 100)) // 10)
    numbers = dataset["component"].values[:components]
    at = f", T = {selection.temperature_gp:g}" if selection.chosen else ""
    series = (
        (point_words(dataset, selection, w), finite.isel(width=w), THEORY, -0.12),
        (f"GP limit{at}", limit, LIMIT, 0.12),
    )
    words = f"kernel-task alignment, {at_seed(dataset, selection, index)}"
    with sheet(dataset, words, [1], (5.0, 3.0)) as (figure, (axis,)):
        for label, values, look, aside in series:
            values = values.values[: len(numbers)]
            if not np.isnan(values).all():
                axis.vlines(numbers + aside, 0, values, color=look.colour, linewidth=1.2)
                points = Look(look.colour, look.marker, "")
                curve(axis, numbers + aside, values, points, label, markersize=3.5)
        axis.set(xlim=(0, len(numbers) + 1), ylim=(0, None))
        axis.set_xticks([1, *range(5, len(numbers) + 1, 5)])
        axis.set_xlabel("principal component i of the kernel, largest eigenvalue first")
        axis.set_ylabel("overlap with the labels, |vᵢ·Y| / ‖Y‖")
    return figure


def save_figures(
    dataset: xr.Dataset,
    folder: str | os.PathLike,
    *,
    temperature: float | str | None = None,
    seed: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write every figure that the store has data for, as PNG and SVG.

    Parameters
    ----------
    dataset, temperature, seed
        As for the single figures.
    folder, report
        As for :func:`pathkernel_views.figure_files.write_figures`.

    Returns
    -------
    list of pathlib.Path
        Files written: ``order_parameters.png``, ``order_parameters.svg``, …

    Raises
    ------
    ValueError
        If the store does not have that temperature or seed.
    OSError
        If the folder cannot be made or written.
    """
    return write_figures(study_figures(dataset, temperature, seed), folder, report)


def study_figures(
    dataset: xr.Dataset, temperature: float | str | None = None, seed: int | None = None
) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a study, by name; parameters as for the single ones.

    Of several values of an option, what is against it, and the figures of each in a folder.
    """
    figures: dict[str, Callable[[], Figure]]
    option = swept_option(dataset)
    if option is not None:
        figures = {
            f"{measure.name}_against_{option}": partial(swept, dataset, measure.name, temperature)
            for measure in measures_of(dataset)
        }
        for value, part in by_value(dataset).items():
            folder = described(option, value).replace(" ", "-").replace("/", "-")
            of_value = study_figures(part, temperature, seed)
            figures |= {f"{folder}/{name}": draw for name, draw in of_value.items()}
        return figures
    figures = {
        measure.name: partial(measured, dataset, measure.name, temperature)
        for measure in measures_of(dataset)
    }
    figures |= {
        "order_parameters": partial(order_parameters, dataset, temperature, seed),
        "alignment": partial(alignment, dataset, temperature, seed),
        "kernels": partial(kernels, dataset, temperature, seed),
        "head_scores": partial(head_scores, dataset, temperature),
    }
    if dataset.sizes["temperature"] > 1:  # with one temperature there is nothing to miss
        figures["temperature_choice"] = partial(temperature_choice, dataset)
    return figures
