"""Runs as figures: theory and samples side by side, and traces and ranks of the chains."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from matplotlib.figure import Figure

from pathkernel_datasets.draws import runs, settings_of
from pathkernel_datasets.store import open_store
from pathkernel_sampling.diagnostics import diagnose, distinct_entries, predictor, sampled_accuracy
from pathkernel_sampling.finite_width import finite_width
from pathkernel_sampling.sample_store import open_samples
from pathkernel_sampling.sample_tables import Theory, describe_run
from pathkernel_views import figures as study_figures
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
    path_axes,
)
from pathkernel_views.figure_files import NothingToPlot, write_figures

_TRACED = 6  # entries of U that traces show
_BINS = 20  # of rank plots
# colours that the study's own figure leaves
_MARKERS = {
    "order-parameter": ("s", "black"),
    "collapsed": ("^", "#E69F00"),
    "weights": ("D", "#882255"),
}


def accuracy(dataset: xr.Dataset, sampled: list[xr.DataTree], run: xr.DataTree) -> Figure:
    """Accuracy against width: theory, Gaussian process limit, and every run of the same seed and T.

    Error bars of samples are two Monte-Carlo standard errors (MCSE). Samples and theory are tested
    on the same examples, so that the test set's binomial error, which the theory's band shows, is
    common to both.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study.
    sampled : list of DataTree
        Runs; those of another seed or temperature than ``run`` are left out.
    run : DataTree
        Run whose seed and temperature are shown.
    """
    settings = settings_of(run)
    seed, temperature = settings["seed"], settings["temperature"]
    figure = study_figures.accuracy(dataset.sel(seed=[seed]), temperature)
    shown = [
        tree
        for tree in sampled
        if all(settings_of(tree)[name] == settings[name] for name in ("seed", "temperature"))
        and tree["predictions"].sizes["draw"] > 1
    ]
    panels = figure.axes[: dataset.sizes["test_set"]]
    samplers = sorted({settings_of(tree)["sampler"] for tree in shown})
    with matplotlib.rc_context(STYLE):
        for place, sampler in enumerate(samplers):
            mine = [tree for tree in shown if settings_of(tree)["sampler"] == sampler]
            widths = np.array([settings_of(tree)["width"] for tree in mine])
            order = np.argsort(widths)
            results = [
                sampled_accuracy(tree, Theory.of(dataset, tree).labels)
                for tree in (mine[index] for index in order)
            ]
            # samplers beside one another where they share a width
            shift = 1.03 ** (place - (len(samplers) - 1) / 2)
            marker, colour = _MARKERS.get(sampler, ("o", GREY))
            for t, axis in enumerate(panels):
                axis.errorbar(
                    widths[order] * shift,
                    [float(result["accuracy"][t]) for result in results],
                    [2 * float(result["mcse"][t]) for result in results],
                    fmt=marker,
                    color=colour,
                    markersize=4.5,
                    markeredgecolor="white",
                    markeredgewidth=0.6,
                    linewidth=1.2,
                    capsize=2,
                    zorder=4,
                    label=f"sampled, {sampler} ± 2 MCSE",
                )
        for legend in figure.legends:
            legend.remove()
        legend_below(figure, panels[0], 2)
    return figure


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
    scale = max(np.abs(saddle).max(), np.abs(mean).max())
    difference = (mean - saddle) / np.where(spread > 0, spread, np.inf)
    panels = (
        ("theory (saddle)", saddle, scale),
        ("sampled (posterior mean)", mean, scale),
        ("(sampled − theory) / posterior sd", difference, max(1.0, np.abs(difference).max())),
    )
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(3, 3, (8.4, 3.1))
        for place, (axis, (title, matrix, limit)) in enumerate(zip(axes, panels)):
            colours = "RdBu_r" if place < 2 else "PuOr_r"
            image = axis.imshow(matrix, cmap=colours, vmin=-limit, vmax=limit)
            colour_bar(figure, image, axis)
            axis.set_title(title)
            path_axes(axis, draws["path"].values, outputs, bottom=True, left=place == 0)
        blocks = f", in blocks of {outputs} outputs" if outputs > 1 else ""
        figure.supxlabel(f"path (head of each layer){blocks}", fontsize=9)
        heading(figure, dataset, f"order parameter U, {describe_run(run)}")
    return figure


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
    names = [str(name) for name in dataset["test_set"].values]
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(len(names), columns, (3.4 * columns + 0.4, 3.4 * rows + 0.7))
        for t, (axis, name) in enumerate(zip(axes, names)):
            x = expected.isel(test_set=t).values.reshape(-1)
            dims = expected.isel(test_set=t).dims
            y, error = (
                moments[column].isel(test_set=t).transpose(*dims).values.reshape(-1)
                for column in ("mean", "mcse")
            )
            label = theory.labels.isel(test_set=t).transpose(*dims).values.reshape(-1)
            low, high = np.nanmin([x, y]), np.nanmax([x, y])
            margin = 0.05 * (high - low)
            ends = [low - margin, high + margin]
            axis.plot(ends, ends, "-", color=GREY, linewidth=0.8, zorder=1)
            signs = ((label > 0, BLUE, "label > 0"), (label <= 0, ORANGE, "label ≤ 0"))
            for chosen, colour, words in signs:
                axis.errorbar(
                    x[chosen],
                    y[chosen],
                    2 * error[chosen],
                    fmt="o",
                    color=colour,
                    markersize=3,
                    linewidth=0.6,
                    alpha=0.6,
                    markeredgewidth=0,
                    label=words,
                )
            axis.set_xlim(ends)
            axis.set_ylim(ends)
            axis.set_aspect("equal")
            axis.set_title(name)
            axis.set_xlabel("mean output, theory")
        for axis in axes[::columns]:
            axis.set_ylabel("mean output, sampled ± 2 errors")
        heading(figure, dataset, describe_run(run))
        legend_below(figure, axes[0], 2)
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
    colours = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
    with matplotlib.rc_context(STYLE):
        shape = (8.0, 1.35 * len(chosen) + 0.9)
        figure, axes = panel_grid(2 * len(chosen), 2, shape, width_ratios=[3, 2])
        for place, entry in enumerate(chosen):
            trace, rank = axes[2 * place], axes[2 * place + 1]
            series = values.isel(entry=entry).transpose("chain", "draw").values
            ranks = array_stats.compute_ranks(series, axis=None).reshape(series.shape)
            edges = np.linspace(ranks.min() - 0.5, ranks.max() + 0.5, _BINS + 1)
            for chain in range(chains):
                colour = colours[chain % len(colours)]
                trace.plot(series[chain], color=colour, linewidth=0.4, label=f"chain {chain}")
                counts, _ = np.histogram(ranks[chain], edges)
                rank.stairs(
                    counts * _BINS / draws, edges, color=colour, linewidth=1.1, baseline=None
                )
            rank.axhline(1, color="black", linewidth=0.6, linestyle=":")
            rank.set_ylim(0, None)
            trace.set_title(
                f"U [{values['entry'].values[entry]}], bulk ESS {ess[entry]:.0f}", loc="left"
            )
            if place < len(chosen) - 1:
                trace.set_xticklabels([])
                rank.set_xticklabels([])
        axes[1].set_title("ranks, in parts of their expectation", loc="left")
        axes[-2].set_xlabel("draw")
        axes[-1].set_xlabel("rank among all draws")
        heading(figure, dataset, f"entries of smallest effective sample size, {describe_run(run)}")
        legend_below(figure, axes[0], 6)
    return figure


def save_sample_figures(
    store: str | os.PathLike,
    group: str,
    folder: str | os.PathLike,
    *,
    trace: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the figures of a run, as PNG and SVG.

    Parameters
    ----------
    store : path
        Result store.
    group : str
        Group of the run, from :func:`pathkernel_sampling.run.sample_study`.
    folder : path
        Folder to write into; made if it does not exist. Files of the same names are replaced.
    trace : bool
        Also write trace and rank plots.
    report : callable
        Called with a line of text for every figure that is skipped, and why.

    Returns
    -------
    list of pathlib.Path
        Files written: ``accuracy.png``, ``accuracy.svg``, …

    Raises
    ------
    StoreError
        If the store holds no such run.
    OSError
        If the folder cannot be made or written.
    """
    return write_figures(sample_figures(store, group, trace=trace), folder, report)


def sample_figures(
    store: str | os.PathLike, group: str, *, trace: bool = False
) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of a run, by name; parameters and errors as above."""
    dataset, run = open_store(store), open_samples(store, group)
    every = [open_samples(store, name) for name in runs(store)]
    same = [tree for tree in every if _without_width(tree) == _without_width(run)]
    figures: dict[str, Callable[[], Figure]] = {
        "accuracy": lambda: accuracy(dataset, every, run),
        "order_parameters": lambda: order_parameters(dataset, run),
        "predictors": lambda: predictors(dataset, run),
    }
    if len(same) > 1:
        figures["finite_width"] = lambda: finite_width(store, dataset, same, _without_width(run))
    if trace:
        figures["traces"] = lambda: traces(dataset, run)
    return figures


def _without_width(run: xr.DataTree) -> str:
    settings = settings_of(run)
    return f"{settings['sampler']}, T = {settings['temperature']:g}, seed {settings['seed']}"
