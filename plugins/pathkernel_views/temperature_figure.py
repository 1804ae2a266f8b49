"""What is gained, or only seems to be, by the way in which the temperature is chosen."""

from __future__ import annotations

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathkernel_datasets.choice import choose, complete_seeds
from pathkernel_datasets.measures import choices_of, measures_of
from pathkernel_datasets.selection import count_test_examples
from pathkernel_views.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Look,
    across,
    aside,
    curve,
    log_axis,
    sheet,
    spread_over_seeds,
    width_axis,
)
from pathkernel_views.figure_files import NothingToPlot

_CURVES = {  # choice: (label, colour, marker, shift along the axis of widths)
    "validation": ("T by validation", PURPLE, "s", -1.5),
    "leave-one-out": ("T of smallest leave-one-out error", GREEN, "D", -0.5),
    "evidence": ("T of largest log evidence, where defined", BLUE, "o", 0.5),
    "next-evidence": ("T of largest log evidence to next order", SKY, "v", 1.0),
    "test": ("T best on this very test set (optimistic)", ORANGE, "^", 1.5),
}
_DASH = 3.0  # dashes of one line fall into the gaps of the others, should they coincide


def temperature_choice(dataset: xr.Dataset) -> Figure:
    """Accuracy or R² against width by each choice of the temperature, and the temperatures chosen.

    Each choice is made over all seeds together. One column per test set. Points are medians over
    the seeds with their range, or, where a single seed is computed, its values, the accuracy with
    the binomial standard error of the test set. Dashed lines across are Gaussian process limits at
    temperatures that are chosen likewise.

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
    dataset, curves, chosen = chosen_by_each(dataset)
    seeds = dataset["seed"].values
    measure = measures_of(dataset)[0]
    fraction = measure.name == "accuracy"
    spread = f"median and range of {len(seeds)} seeds"
    if len(seeds) == 1:
        spread = f"seed {seeds[0]}{', accuracy ± binomial standard error' * fraction}"
    names = [str(name) for name in dataset["test_set"].values]
    columns = len(names)
    panel = (max(3.1, 5.0 / columns), 2.4)
    words = f"choices of the temperature, {spread}"
    grid = {"sharex": True, "height_ratios": (3, 2)}
    with sheet(dataset, words, [columns] * 2, panel, legend=2, **grid) as (figure, axes):
        for t, (above, below) in enumerate(zip(axes[:columns], axes[columns:])):
            above.set_title(names[t])
            examples = count_test_examples(dataset, t) if fraction and len(seeds) == 1 else None
            rows = ((above, "score", examples), (below, "temperature", None))
            for axis, name, count in rows:
                if t:
                    axis.sharey(axes[0] if axis is above else axes[columns])
                    axis.tick_params(labelleft=False)
                for choice, values in chosen.items():
                    drawn = values.sel(test_set=names[t])
                    _draw_choice(axis, drawn, name, count, curves[choice])
                width_axis(axis, dataset["width"].values)
            above.set_xlabel("")
        temperatures = dataset["temperature"].values
        log_axis(axes[columns], "y", temperatures, [f"{value:g}" for value in temperatures])
        dashes = (0, (_DASH, 3 * _DASH))
        axes[0].errorbar([], [], color=GREY, linestyle=dashes, label="GP limit, T chosen likewise")
        axes[0].set_ylabel(measure.axis)
        axes[columns].set_ylabel("temperature T chosen")
    return figure


def chosen_by_each(
    dataset: xr.Dataset,
) -> tuple[xr.Dataset, dict[str, tuple], dict[str, xr.Dataset]]:
    """The seeds that are complete, looks of choices by name, and what each choice takes.

    Raises
    ------
    NothingToPlot
        If the store has one temperature only, or no seed has all of its grid points yet.
    """
    if dataset.sizes["temperature"] == 1:
        raise NothingToPlot("the store holds no choice between temperatures")
    seeds = complete_seeds(dataset)
    if not seeds.size:
        raise NothingToPlot("the grid of no seed is complete, so no temperature is chosen yet")
    dataset = dataset.sel(seed=seeds)
    measure, choices = measures_of(dataset)[0], choices_of(dataset)
    curves = dict(_CURVES)
    curves["validation"] = f"T of {choices['validation'].words}", *_CURVES["validation"][1:]
    chosen = {
        name: _at_chosen(dataset, name, measure.name)
        for name in curves
        if choices[name].score in dataset
    }
    return dataset, curves, chosen


def _at_chosen(dataset: xr.Dataset, choice: str, measure: str) -> xr.Dataset:
    """Temperature chosen and score there, at every width and, with _gp, in the limit."""
    found, values = choose(dataset, choice), {}
    for suffix in ("", "_gp"):
        index = found[f"index{suffix}"]
        score = dataset[f"{measure}{suffix}"].load().isel(temperature=index)
        score = score.where(index >= 0)
        values[f"temperature{suffix}"] = score["temperature"].where(index >= 0)
        values[f"score{suffix}"] = score.drop_vars("temperature")
    values = {
        name: array.drop_vars("temperature", errors="ignore") for name, array in values.items()
    }
    return xr.Dataset(values)


def _draw_choice(
    axis: Axes,
    chosen: xr.Dataset,
    name: str,
    examples: int | None,
    drawn: tuple[str, str, str, float],
) -> None:
    """One choice against the width, moved aside a little, and its limit across the panel."""
    label, colour, marker, place = drawn
    seeds = chosen["score"]["seed"]
    chosen = chosen.broadcast_like(seeds)
    values = chosen[name].transpose("seed", "width")
    middle, reach = spread_over_seeds(values.values, examples)
    widths = values["width"].values
    style = {"markersize": 3.5, "linewidth": 1.5 - 0.3 * place}  # what lies below still shows
    curve(axis, aside(widths, widths, place), middle, Look(colour, marker), label, reach, **style)
    middle, reach = spread_over_seeds(chosen[f"{name}_gp"].values[:, None], examples)
    dashes = (_DASH * (1.5 + place), (_DASH, 3 * _DASH))
    across(axis, middle[0], Look(colour, line=dashes), error=reach[:, 0])
