"""Runs as figures: theory and samples side by side, and traces and ranks of the chains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathkernel_datasets.draws import open_run, runs, settings_of
from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.stored import StoredStudy
from pathkernel_sampling.diagnostics import diagnose, distinct_entries, predictor, sampled_scores
from pathkernel_sampling.finite_width import finite_width
from pathkernel_sampling.sample_tables import Theory, describe_run
from pathkernel_views import figures as study_figures
from pathkernel_views.drawing import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALETTE,
    SAMPLED,
    SKY,
    Look,
    across,
    aside,
    curve,
    even_rows,
    sheet,
)
from pathkernel_views.figure_files import NothingToPlot
from pathkernel_views.panels import HeatMap, heatmaps, path_ticks

_TRACED = 6  # entries of U that traces show
_BINS = 20  # of rank plots
# beside those of the study's own figure
_LOOKS = {
    "order-parameter": Look(SAMPLED.colour, SAMPLED.marker, ""),
    "collapsed": Look(BLACK, "^", ""),
    "weights": Look(SKY, "D", ""),
}


def measured(
    dataset: xr.Dataset, name: str, sampled: list[xr.DataTree], run: xr.DataTree
) -> Figure:
    """A measure of the predictor against width: theory, limit, every run of the same seed and T.

    Error bars of samples are two Monte-Carlo standard errors (MCSE). Samples and theory are tested
    on the same examples, so that the test set's binomial error, which the theory's band shows, is
    common to both.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study.
    name : str
        Measure that the study has, see :func:`pathkernel_datasets.measures.measures_of`.
    sampled : list of DataTree
        Runs; those of another seed or temperature than ``run`` are left out.
    run : DataTree
        Run whose seed and temperature are shown.
    """
    settings = settings_of(run)
    found: dict[str, list[tuple[float, xr.Dataset]]] = {}
    for tree in sampled:
        theirs = settings_of(tree)
        if (
            all(theirs[name] == settings[name] for name in ("seed", "temperature"))
            and tree["predictions"].sizes["draw"] > 1
        ):
            theory = Theory.of(dataset, tree)
            scores = sampled_scores(tree, theory.labels, theory.kind)
            found.setdefault(theirs["sampler"], []).append((theirs["width"], scores))

    def add(axis: Axes, test_set: int) -> None:
        for place, sampler in enumerate(sorted(found)):
            widths = np.array([width for width, _ in found[sampler]])
            mean, error = (
                np.array([float(scores[each][test_set]) for _, scores in found[sampler]])
                for each in (name, f"{name}_mcse")
            )
            # samplers beside one another where they share a width
            moved = aside(widths, dataset["width"].values, place - (len(found) - 1) / 2)
            style = {"markersize": 6, "capsize": 2, "zorder": 4}
            look = _LOOKS.get(sampler, Look(GREY, line=""))
            label = f"sampled, {sampler} ± 2 MCSE"
            curve(axis, moved, mean, look, label, 2 * error, **style)

    of_seed = dataset.sel(seed=[settings["seed"]])
    return study_figures.measured(of_seed, name, settings["temperature"], add)


def order_parameters(dataset: xr.Dataset, run: xr.DataTree) -> Figure:
    """U at the saddle, its posterior mean, and their difference in posterior standard deviations.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study.
    run : DataTree
    """
    theory = Theory.of(dataset, run).order_parameter
    draws = run["posterior"]["order_parameter"].load()
    outputs = draws.sizes.get("output", 1)
    size = draws.sizes["path"] * outputs
    saddle = theory.transpose(*draws.dims[2:]).values.reshape(size, size)
    mean = draws.mean(("chain", "draw")).values.reshape(size, size)
    spread = draws.std(("chain", "draw")).values.reshape(size, size)
    if np.isnan(saddle).all():
        raise NothingToPlot("the theory is not computed at this point")
    difference = (mean - saddle) / np.where(spread > 0, spread, np.inf)
    reach = max(1.0, np.abs(difference).max())
    maps = [
        HeatMap("theory (saddle)", saddle, "U"),
        HeatMap("sampled (posterior mean)", mean, "U"),
        HeatMap("sampled − theory", difference, "posterior sd", (-reach, reach), "PuOr_r"),
    ]
    words = f"order parameter U, {describe_run(run)}"
    return heatmaps(dataset, words, maps, path_ticks(draws["path"].values, outputs))


def predictors(dataset: xr.Dataset, run: xr.DataTree) -> Figure:
    """Mean output of every test example, theory against samples, one panel per test set.

    Error bars, of two Monte-Carlo errors, are drawn for samples only.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study.
    run : DataTree
    """
    theory, moments = Theory.of(dataset, run), predictor(run)
    expected = theory.predictor_mean
    if expected.isnull().all():
        raise NothingToPlot("the theory is not computed at this point")
    dims = ("test_set", *(dim for dim in expected.dims if dim != "test_set"))
    examples = [
        values.transpose(*dims).values.reshape(expected.sizes["test_set"], -1)
        for values in (expected, moments["mean"], 2 * moments["mcse"], theory.labels)
    ]
    rows = even_rows(len(examples[0]), 3)
    words = f"predictor on the test sets, {describe_run(run)}"
    style = {"markersize": 3, "elinewidth": 0.6, "alpha": 0.6, "markeredgewidth": 0}
    with sheet(dataset, words, rows, (3.3, 3.2)) as (figure, axes):
        for t, (axis, x, y, error, label) in enumerate(zip(axes, *examples)):
            low, high = np.nanmin([x, y]), np.nanmax([x, y])
            margin = 0.05 * (high - low)
            ends = low - margin, high + margin
            axis.plot(ends, ends, "-", color=GREY, linewidth=0.8, zorder=1)
            groups = [(label > 0, BLUE, "label > 0"), (label <= 0, ORANGE, "label ≤ 0")]
            if theory.kind == "targets":
                groups = [(~np.isnan(label), BLUE, "test example")]
            for chosen, colour, words in groups:
                look = Look(colour, line="")
                curve(axis, x[chosen], y[chosen], look, words, error[chosen], **style)
            axis.set(xlim=ends, ylim=ends, aspect="equal")
            axis.set_title(str(dataset["test_set"].values[t]))
            axis.set_xlabel("mean output, theory")
        for first in np.cumsum([0, *rows[:-1]]):
            axes[first].set_ylabel("mean output, sampled ± 2 errors")
    return figure


def traces(dataset: xr.Dataset, run: xr.DataTree) -> Figure:
    """Trace and rank plots of the entries of U with the smallest bulk effective sample sizes.

    Ranks are among the draws of all chains together. Chains that agree have flat ranks.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study.
    run : DataTree
    """
    values = distinct_entries(run["posterior"]["order_parameter"])
    chains, draws = values.sizes["chain"], values.sizes["draw"]
    if draws < _BINS:
        raise NothingToPlot(f"ranks need at least {_BINS} draws of each chain")
    ess = diagnose(run).entries["ess_bulk"].values
    chosen = np.argsort(np.nan_to_num(ess, nan=np.inf))[:_TRACED]
    words = f"entries of smallest effective sample size, {describe_run(run)}"
    rows = [2] * len(chosen)
    with sheet(dataset, words, rows, (3.8, 1.35), legend=6, width_ratios=[3, 2]) as (figure, axes):
        for entry, trace, rank in zip(chosen, axes[::2], axes[1::2]):
            series = values.isel(entry=entry).transpose("chain", "draw").values
            ranks = array_stats.compute_ranks(series, axis=None).reshape(series.shape)
            edges = np.linspace(ranks.min() - 0.5, ranks.max() + 0.5, _BINS + 1)
            for chain in range(chains):
                colour = PALETTE[chain % len(PALETTE)]
                trace.plot(series[chain], color=colour, linewidth=0.4, label=f"chain {chain}")
                counts, _ = np.histogram(ranks[chain], edges)
                rank.stairs(
                    counts * _BINS / draws, edges, color=colour, linewidth=1.1, baseline=None
                )
            across(rank, 1, Look(GREY, line=":"), linewidth=0.7)
            rank.set_ylim(0, None)
            name = values["entry"].values[entry]
            trace.set_title(f"U [{name}], bulk ESS {ess[entry]:.0f}", loc="left")
            if entry != chosen[-1]:
                trace.set_xticklabels([])
                rank.set_xticklabels([])
        axes[1].set_title("ranks, in parts of their expectation", loc="left")
        axes[-2].set_xlabel("draw")
        axes[-1].set_xlabel("rank among all draws")
    return figure


def sample_figures(
    study: StoredStudy, group: str, *, trace: bool = False
) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a run, by name.

    Parameters
    ----------
    study : StoredStudy
    group : str
        Group of the run, from :func:`pathkernel_datasets.draws.runs`.
    trace : bool
        Also trace and rank plots.

    Raises
    ------
    StoreError
        If the store holds no such run.
    """
    dataset, run = study.dataset, open_run(study, group)
    all_runs = [open_run(study, name) for name in runs(study)]
    same_point = [other for other in all_runs if without_width(other) == without_width(run)]
    figures: dict[str, Callable[[], Figure]] = {
        measure.name: partial(measured, dataset, measure.name, all_runs, run)
        for measure in measures_of(dataset)
    }
    figures |= {
        "order_parameters": lambda: order_parameters(dataset, run),
        "predictors": lambda: predictors(dataset, run),
    }
    if len(same_point) > 1:
        figures["finite_width"] = lambda: finite_width(study, same_point, without_width(run))
    if trace:
        figures["traces"] = lambda: traces(dataset, run)
    return figures


def without_width(run: xr.DataTree) -> str:
    """Sampler, temperature and seed of a run."""
    settings = settings_of(run)
    return f"{settings['sampler']}, T = {settings['temperature']:g}, seed {settings['seed']}"
