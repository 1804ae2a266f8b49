"""Exact means against the saddle point and its next order, over the width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from pathkernel_datasets.draws import point_of, settings_of
from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.stored import StoredStudy
from pathkernel_sampling.correct import open_correction
from pathkernel_sampling.diagnostics import (
    diagnose,
    distinct_entries,
    sampled_log_evidence,
    sampled_scores,
)
from pathkernel_sampling.sample_tables import Theory
from pathkernel_views.drawing import (
    NEXT_ORDER,
    RANDOM,
    SAMPLED,
    THEORY,
    Look,
    across,
    curve,
    even_rows,
    sheet,
    width_axis,
)
from pathkernel_views.figure_files import NothingToPlot

_ENTRIES = 3  # of U that are shown


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
    gain : array, shape (w, 2)
        Sampled accuracy, or R² of targets, minus that of the theory, averaged over the test sets,
        and its Monte-Carlo error.
    """

    widths: np.ndarray
    entries: list[str]
    saddle: np.ndarray
    next_order: np.ndarray
    sampled: np.ndarray
    error: np.ndarray
    evidence: np.ndarray
    gain: np.ndarray

    @classmethod
    def collect(cls, study: StoredStudy, runs: Sequence[xr.DataTree]) -> WidthComparison:
        """Gather runs of one sampler, seed and temperature at several widths."""
        ordered = sorted(runs, key=lambda run: settings_of(run)["width"])
        names, *columns = zip(*(_row(study, run) for run in ordered))
        widths = np.array([settings_of(run)["width"] for run in ordered])
        return cls(widths, names[0], *map(np.array, columns))


def _row(study: StoredStudy, run: xr.DataTree) -> tuple:
    """Names of entries, then the fields of a comparison that have a row for each width."""
    theory = Theory.of(study.dataset, run, open_correction(study, point_of(run)))
    diagnostics = diagnose(run).entries
    saddle = distinct_entries(theory.order_parameter)
    corrected = saddle * np.nan
    if theory.next_order is not None:
        corrected = distinct_entries(theory.next_order)
    name = measures_of(study.dataset)[0].name
    scores = sampled_scores(run, theory.labels, theory.kind)
    gain = scores[name].values - theory.scores[name].values
    return (
        [str(name) for name in saddle["entry"].values],
        *(saddle.values, corrected.values, diagnostics["mean"].values, diagnostics["mcse"].values),
        (theory.log_evidence, theory.next_log_evidence, *sampled_log_evidence(run)),
        (gain.mean(), float(scores["mean_mcse"])),
    )


def finite_width(study: StoredStudy, runs: Sequence[xr.DataTree], words: str) -> Figure:
    """Exact U, log evidence and accuracy, or R², against the saddle point's, over the width.

    Parameters
    ----------
    study : StoredStudy
    runs : sequence of DataTree
        Runs of one sampler, seed and temperature at different widths.
    words : str
        What is shown, for the title.

    Raises
    ------
    NothingToPlot
        If the theory is not computed at these widths.
    """
    found, dataset = WidthComparison.collect(study, runs), study.dataset
    if np.isnan(found.saddle).all():
        raise NothingToPlot("the theory is not computed at these points")
    widths, sampled = found.widths, Look(SAMPLED.colour, SAMPLED.marker, "")
    largest = np.argsort(-np.abs(found.sampled[0]))[:_ENTRIES]
    rows = even_rows(len(largest) + 3, 3)
    theories = {
        "theory (saddle)": (THEORY, found.saddle, found.evidence[:, 0]),
        "next order in 1/N": (NEXT_ORDER, found.next_order, found.evidence[:, 1]),
    }
    errors = {"label": "sampled ± 2 MCSE", "capsize": 2, "zorder": 4}
    with sheet(dataset, f"samples against the theory, {words}", rows, (3.0, 2.5)) as (figure, axes):
        distance, evidence, score = axes[-3:]
        for axis, entry in zip(axes, largest):
            axis.set_title(f"U [{found.entries[entry]}]")
            for label, (look, values, _) in theories.items():
                curve(axis, widths, values[:, entry], look, label)
            error = 2 * found.error[:, entry]
            curve(axis, widths, found.sampled[:, entry], sampled, error=error, **errors)
        distance.set_title("U, relative distance from the samples")
        size = np.linalg.norm(found.sampled, axis=1)
        noise = np.linalg.norm(found.error, axis=1) / size
        reach = np.stack([noise, 0 * noise])  # down to 0
        curve(distance, widths, noise, RANDOM, "Monte-Carlo error", reach, band=True)
        distance.set_yscale("log")
        evidence.set_title("ln p(Y) minus the sampled one (nats)")
        across(evidence, 0, RANDOM, linewidth=0.7)
        evidence.set_yscale("symlog", linthresh=0.1)
        bridge, error = found.evidence[:, 2:].T
        for look, values, log_evidence in theories.values():
            curve(distance, widths, np.linalg.norm(values - found.sampled, axis=1) / size, look)
            curve(evidence, widths, log_evidence - bridge, look, error=2 * error)
        score.set_title(f"{measures_of(dataset)[0].heading}, sampled − theory")
        across(score, 0, RANDOM, linewidth=0.7)
        gain, error = found.gain.T
        curve(score, widths, gain, sampled, error=2 * error, **errors)
        for axis in (distance, evidence):
            axis.yaxis.set_major_formatter("{x:g}")
        distance.yaxis.set_minor_formatter(LogFormatter())
        for axis in axes:
            width_axis(axis, widths)
    return figure
