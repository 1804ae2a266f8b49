"""A comparison of orders as figures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pathkernel_datasets.selection import number
from pathkernel_trained.heads import removable_heads
from pathkernel_trained.orders import RANDOM, scores_of
from pathkernel_trained.pruning_tables import (
    OF_THEORY,
    kind_of_order,
    orders_of,
    reference_agreement,
    scored_orders,
)
from pathkernel_views import drawing
from pathkernel_views.drawing import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Look,
    across,
    curve,
    even_rows,
    label_points,
    sheet,
)
from pathkernel_views.figure_files import NothingToPlot
from pathkernel_views.panels import Bars, HeatMap, Ticks, head_bars, heatmaps

_LOOKS = {
    "theory": drawing.THEORY,
    "sampled": drawing.SAMPLED,
    "trained": drawing.TRAINED,
    "gradient": Look(PURPLE, "^", "--"),
    "raw-gradient": Look(PURPLE, "<", ":"),
    "magnitude": Look(SKY, "v", ":"),
    "ablation": Look(BLACK, "D", "-."),
    "silenced": Look(SKY, "v", "--"),
    "restricted": Look(PURPLE, "^", "--"),
    "re-equilibrated": Look(BLACK, "D", ":"),
    "shapley": Look(BLUE, "h", "--"),
    "greedy": Look(ORANGE, "s", "-"),
    "best-of": Look(ORANGE, "X", ":"),
}


def accuracy(result: xr.Dataset) -> Figure:
    """Accuracy against the number of heads removed: above the theory's orders, below the others.

    One column of panels for each test set. Error bars are one binomial standard error. The band is
    one standard deviation over random orders.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    names = [str(name) for name in result["test_set"].values]
    removed = result["removed"].values
    looks = _looks(orders_of(result))
    of_theory = {name: look for name, look in looks.items() if kind_of_order(name) in OF_THEORY}
    groups = of_theory, {name: look for name, look in looks.items() if name not in of_theory}
    words = f"accuracy as heads are removed, {result.sizes['episode']} episodes of each set"
    size = (3.2, 2.6)
    with sheet(result, words, [len(names)] * 2, size, sharex=True) as (figure, axes):
        panels = [(test_set, group) for group in groups for test_set in names]
        for axis, (test_set, group) in zip(axes, panels):
            here = result.sel(test_set=test_set)
            percent = 100 * here[["accuracy", "accuracy_error"]]
            mean, deviation = percent["accuracy"].sel(order=RANDOM), 100 * here["random_deviation"]
            label = "random order ± sd"
            curve(axis, removed, mean.values, drawing.RANDOM, label, deviation.values, band=True)
            for place, (name, look) in enumerate(group.items()):
                shift = 0.05 * (place - (len(group) - 1) / 2)  # so that bars do not hide each other
                mean, error = (values.values for values in percent.sel(order=name).values())
                curve(axis, removed + shift, mean, look, name, error)
            best = Look(GREY, "", (0, (4, 1)))
            curve(axis, removed, 100 * here["best_accuracy"].values, best, "best set of heads")
            across(axis, 50, Look(GREY, line=":"), linewidth=0.7)
            axis.set_xticks(removed[:: 1 if len(removed) <= 10 else 2])
        for axis, name in zip(axes, names):
            axis.set_title(name)
        for axis in axes[len(names) :]:
            axis.set_xlabel("heads removed")
        for axis, of in zip(axes[:: len(names)], ("theory's orders", "the others")):
            axis.set_ylabel(f"accuracy (%), {of}")
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
    looks = _looks(scored_orders(result))
    rows = even_rows(len(looks), 4)
    numbers = removable_heads(result.attrs["heads_per_layer"])
    loss, error = (
        100 * np.array([here[variable].sel(layer=layer, head=head) for layer, head in numbers])
        for variable in ("ablation_drop", "ablation_drop_error")
    )
    side = 2.5 if len(numbers) <= 8 else 3.2
    words = f"single heads (layer-head) removed, {test_set} test episodes"
    with sheet(result, words, rows, (side, side - 0.2), legend=0, sharey=True) as (figure, axes):
        for axis, (name, look) in zip(axes, looks.items()):
            score = here["score"].sel(order=name)
            values = np.array([score.sel(layer=layer, head=head) for layer, head in numbers])
            values = values / np.abs(values).max()
            curve(axis, values, loss, replace(look, line=""), error=error)
            label_points(axis, ["{}-{}".format(*head) for head in numbers], values, loss)
            spearman = float(here["rank_correlation"].sel(order=name, coefficient="spearman"))
            axis.set_title(f"{name}, ρ = " + f"{spearman:.2f}".replace("-", "−"))
            across(axis, 0, Look(GREY, line=":"), linewidth=0.7)
            axis.margins(x=0.12)
            axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        figure.supxlabel("score / largest")
        figure.supylabel("accuracy lost (points)")
    return figure


def scores(result: xr.Dataset) -> Figure:
    """Score of every head in the theory, in samples and in the trained network's weights.

    Scores are those of the order parameter, the largest 1. Error bars are the Monte-Carlo error of
    the samples.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    series = []
    for name, look in _looks(scored_orders(result)).items():
        if kind_of_order(name) in ("theory", "sampled", "trained"):
            values, table = scores_of(result, name), result["score_error"].sel(order=name)
            errors = [row[: len(layer)] for row, layer in zip(table.values, values)]
            known = None if table.isnull().all() else errors
            series.append(Bars(_with_temperature(result, name), look.colour, values, known))
    return head_bars(result, "head scores from U", series)


def theory_grid(result: xr.Dataset) -> Figure:
    """What the theory's scores are worth at every temperature T and width N of the study.

    Spearman's rank correlation of scores with the accuracy that is lost with single heads, on the
    first test set, and with the scores that the first order goes by.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.

    Raises
    ------
    NothingToPlot
        If the study has a single point.
    """
    widths, temperatures = (result[name].values for name in ("width", "temperature"))
    if len(widths) * len(temperatures) < 2:
        raise NothingToPlot("the study has a single point")
    test_set = str(result["test_set"].values[0])
    agreement, reference = reference_agreement(result)
    found = {
        f"with the accuracy lost, {test_set}": result["theory_correlation"].sel(test_set=test_set),
        f"with scores at {reference}": agreement,
    }
    maps = [
        HeatMap(title, values.transpose("temperature", "width").values, "ρ", (-1, 1))
        for title, values in found.items()
    ]
    x = Ticks("width N", range(len(widths)), [number(width) for width in widths])
    y = Ticks("temperature T", range(len(temperatures)), [f"{value:g}" for value in temperatures])
    return heatmaps(result, "rank correlation ρ of the theory's head scores", maps, x, y)


def pruning_figures(result: xr.Dataset) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a comparison, by name."""
    drawn = {"scores": scores, "accuracy": accuracy, "heads": heads, "theory_grid": theory_grid}
    return {name: functools.partial(draw, result) for name, draw in drawn.items()}


def _with_temperature(result: xr.Dataset, name: str) -> str:
    temperature = float(result["order_temperature"].sel(order=name))
    return name if np.isnan(temperature) else f"{name}, T={temperature:g}"


def _looks(orders: Sequence[str]) -> dict[str, Look]:
    """How orders are drawn, those of one kind in shades of a colour."""
    kinds: dict[str, list[str]] = {}
    for name in orders:
        kinds.setdefault(kind_of_order(name), []).append(name)
    looks = {}
    for kind, names in kinds.items():
        looks |= zip(names, _LOOKS[kind].at_widths(len(names)))
    return looks
