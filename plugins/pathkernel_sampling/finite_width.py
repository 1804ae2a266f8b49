"""Exact means against the saddle point and its next order, over the width."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathkernel_datasets.draws import point_of, settings_of
from pathkernel_sampling.correct import open_correction
from pathkernel_sampling.diagnostics import (
    diagnose,
    distinct_entries,
    sampled_accuracy,
    sampled_log_evidence,
)
from pathkernel_sampling.sample_tables import Theory
from pathkernel_views.drawing import (
    BLUE,
    GREEN,
    GREY,
    STYLE,
    heading,
    legend_below,
    panel_grid,
    width_axis,
)
from pathkernel_views.figure_files import NothingToPlot

_ENTRIES = 3  # of U that are shown
_BLACK = "black"


@dataclass(frozen=True)
class WidthComparison:
    """What theory, next order and samples give at each width; NaN where something is missing.

    Attributes
    ----------
    widths : array, shape (w,)
    entries : list of str
        Names of U's entries on and below the diagonal.
    saddle, next_order, sampled, error : array, shape (w, entries)
        Entries of U, the last with its Monte-Carlo error.
    evidence : array, shape (w, 4)
        Log evidence of the saddle, to next order, sampled, and its standard error.
    accuracy : array, shape (w, 2)
        Sampled accuracy minus that of the theory, averaged over the test sets, and its Monte-Carlo
        error.
    """

    widths: np.ndarray
    entries: list[str]
    saddle: np.ndarray
    next_order: np.ndarray
    sampled: np.ndarray
    error: np.ndarray
    evidence: np.ndarray
    accuracy: np.ndarray

    @classmethod
    def collect(
        cls, store: str | os.PathLike, dataset: xr.Dataset, runs: Sequence[xr.DataTree]
    ) -> WidthComparison:
        """Gather runs of one sampler, seed and temperature at several widths."""
        ordered = sorted(runs, key=lambda run: settings_of(run)["width"])
        rows = [_row(store, dataset, run) for run in ordered]
        names, columns = rows[0]["entries"], {}
        for key in ("saddle", "next_order", "sampled", "error", "evidence", "accuracy"):
            columns[key] = np.array([row[key] for row in rows])
        widths = np.array([settings_of(run)["width"] for run in ordered])
        return cls(widths, names, **columns)


def _row(store: str | os.PathLike, dataset: xr.Dataset, run: xr.DataTree) -> dict:
    at = point_of(run)
    theory, diagnostics = Theory.of(dataset, run), diagnose(run).entries
    saddle = distinct_entries(theory.order_parameter)
    expansion = open_correction(store, at)
    corrected, evidence = saddle.values * np.nan, np.nan
    if expansion is not None:
        total = expansion["order_parameter"] + expansion["order_parameter_correction"]
        corrected = distinct_entries(total).values
        evidence = float(expansion["log_evidence"] + expansion["log_evidence_correction"])
    scores = sampled_accuracy(run, theory.labels)
    gain = scores["accuracy"].values - theory.accuracy.values
    error = float(scores["mean_mcse"])
    leading = float(dataset["log_evidence"].sel(dataclasses.asdict(at)))
    return {
        "entries": [str(name) for name in saddle["entry"].values],
        "saddle": saddle.values,
        "next_order": corrected,
        "sampled": diagnostics["mean"].values,
        "error": diagnostics["mcse"].values,
        "evidence": (leading, evidence, *sampled_log_evidence(run)),
        "accuracy": (gain.mean(), error),
    }


def finite_width(
    store: str | os.PathLike, dataset: xr.Dataset, runs: Sequence[xr.DataTree], words: str
) -> Figure:
    """Exact U, log evidence and accuracy against the saddle point's, over the width.

    Parameters
    ----------
    store : path
        Result store, for next orders that it holds.
    dataset : xarray.Dataset
        The study.
    runs : sequence of DataTree
        Runs of one sampler, seed and temperature at different widths.
    words : str
        What is shown, for the title.

    Raises
    ------
    NothingToPlot
        If the theory is not computed at these widths.
    """
    found = WidthComparison.collect(store, dataset, runs)
    if np.isnan(found.saddle).all():
        raise NothingToPlot("the theory is not computed at these points")
    largest = np.argsort(-np.abs(found.sampled[0]))[:_ENTRIES]
    count = len(largest) + 3
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(count, 3, (9.0, 5.8))
        for axis, entry in zip(axes, largest):
            axis.set_title(f"U [{found.entries[entry]}]")
            _points(axis, found, found.saddle[:, entry], "theory (saddle)", BLUE, "o-")
            _points(axis, found, found.next_order[:, entry], "next order in 1/N", GREEN, "x--")
            _errors(axis, found, found.sampled[:, entry], found.error[:, entry])
        _order_parameter(axes[-3], found)
        _evidence(axes[-2], found)
        axes[-1].set_title("accuracy, sampled − theory")
        axes[-1].axhline(0, color=GREY, linewidth=0.8)
        _errors(axes[-1], found, *found.accuracy.T)
        for axis in axes:
            width_axis(axis, found.widths, 3.0)
        heading(figure, dataset, words)
        legend_below(figure, axes[0], 4)
    return figure


def _order_parameter(axis: Axes, found: WidthComparison) -> None:
    size = np.linalg.norm(found.sampled, axis=1)
    axis.set_title("U, relative distance from the samples")
    for values, colour, style in ((found.saddle, BLUE, "o-"), (found.next_order, GREEN, "x--")):
        distance = np.linalg.norm(values - found.sampled, axis=1) / size
        _points(axis, found, distance, None, colour, style)
    noise = np.linalg.norm(found.error, axis=1) / size
    axis.fill_between(found.widths, noise, 0, color=GREY, alpha=0.2, linewidth=0)
    axis.plot(found.widths, noise, ":", color=GREY, linewidth=0.8)
    axis.set_yscale("log")


def _evidence(axis: Axes, found: WidthComparison) -> None:
    saddle, corrected, sampled, error = found.evidence.T
    axis.set_title("ln p(Y) minus the sampled one (nats)")
    axis.axhline(0, color=GREY, linewidth=0.8)
    for values, colour, style in ((saddle, BLUE, "o-"), (corrected, GREEN, "x--")):
        known = ~np.isnan(values - sampled)
        axis.errorbar(
            found.widths[known],
            (values - sampled)[known],
            2 * error[known],
            fmt=style,
            color=colour,
            markersize=4,
            linewidth=1.0,
        )
    axis.set_yscale("symlog", linthresh=0.1)


def _points(
    axis: Axes,
    found: WidthComparison,
    values: np.ndarray,
    label: str | None,
    colour: str,
    style: str,
) -> None:
    known = ~np.isnan(values)
    if known.any():
        axis.plot(
            found.widths[known], values[known], style, color=colour, markersize=4, label=label
        )


def _errors(axis: Axes, found: WidthComparison, values: np.ndarray, error: np.ndarray) -> None:
    axis.errorbar(
        found.widths,
        values,
        2 * error,
        fmt="s",
        color=_BLACK,
        markersize=4,
        linewidth=1.2,
        capsize=2,
        zorder=4,
        label="sampled ± 2 MCSE",
    )
