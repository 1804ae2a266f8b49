"""The next order in 1/N as tables: log evidence, entries of U, and the predictor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.measures import measures_of
from pathkernel_sampling.chains.diagnostics import distinct_entries
from pathkernel_sampling.corrections.correct import open_correction
from pathkernel_views.table import Table, frame_of, labelled_frame

ROWS = 15
"""Entries of U that a table shows."""

_LABELS = {
    "width": "width N",
    "temperature": "temperature T",
    "test_set": "test set",
    "entry": "entry of U, by its two paths",
    "saddle": "U at the saddle point",
    "next_order": "U to next order in 1/N",
    "log_evidence": "log evidence ln p(Y) at the saddle point",
    "log_evidence_correction": "next order of ln p(Y), to be added",
    "log_evidence_next": "log evidence ln p(Y) to next order in 1/N",
    "log_evidence_two_loops": "part of the correction from cubic and quartic terms",
    "change_of_u": "norm of the correction of U, relative to that of U",
    "shift": "next order of the mean outputs, root mean square over the examples",
    "largest_shift": "next order of the mean outputs, largest",
    "mean": "posterior mean of U",
    "mcse": "Monte-Carlo error of the mean",
    "sd": "standard deviation",
    "sd_next": "standard deviation, to next order in 1/N",
    "sd_theory": "standard deviation given U, of the theory",
    "r_hat": "R-hat, rank-normalised and split",
    "ess_bulk": "bulk effective sample size",
    "ess_tail": "tail effective sample size",
    "saddle_off": "saddle point less mean, in Monte-Carlo errors",
    "difference": "mean outputs, theory less sampled, root mean square",
    "difference_mcse": "Monte-Carlo error of the difference",
}
_NATS = ("log_evidence", "log_evidence_correction", "log_evidence_next", "log_evidence_two_loops")
_POINT = {"N": "{width}", "T": "{temperature}", "seed": "{seed}"}


def correction_views(study: StoredStudy, points: Sequence[Point]) -> Iterator[Table]:
    """Yield tables of the next order at some points."""
    if points:
        corrections = {point: open_correction(study, point).load() for point in points}
        yield next_order_table(corrections)
        yield entries_table(corrections)
        yield corrected_predictor_table(corrections)


def label_frame(frame: pd.DataFrame, settings: Mapping[str, object] | None = None) -> pd.DataFrame:
    """Return the frame with columns of settings in front, and with labels of all columns."""
    columns = dict(settings or {}) | {name: frame[name].values for name in frame}
    described = pd.DataFrame(columns, index=range(len(frame)))
    described.attrs = frame.attrs
    return labelled_frame(described, _LABELS, dict.fromkeys(_NATS, "nat"))


def to_next_order(correction: xr.Dataset, name: str) -> xr.DataArray:
    """Return a variable of a correction to next order: at the saddle point plus its correction."""
    return correction[name] + correction[f"{name}_correction"]


def root_mean(values: xr.DataArray) -> xr.DataArray:
    """Return the root of the mean in each test set, NaN where the mean is negative."""
    mean = values.mean([dim for dim in values.dims if dim != "test_set"])
    return np.sqrt(mean.where(mean >= 0))


def next_order_table(corrections: Mapping[Point, xr.Dataset]) -> Table:
    """Table of log evidence and change of U, a row per point."""
    records = []
    for point, correction in corrections.items():
        correction = correction.assign(log_evidence_next=to_next_order(correction, "log_evidence"))
        nats = {name: float(correction[name]) for name in _NATS}
        change, norm = (
            float(np.sqrt((correction[name] ** 2).sum()))
            for name in ("order_parameter_correction", "order_parameter")
        )
        records.append({**asdict(point), **nats, "change_of_u": change / norm})
    return Table(
        "next_order",
        "Next order in 1/N",
        label_frame(pd.DataFrame(records)),
        _POINT
        | {
            "ln p(Y)": "{log_evidence:.3f}",
            "correction": "{log_evidence_correction:+.3f}",
            "ln p(Y), next order": "{log_evidence_next:.3f}",
            "two loops": "{log_evidence_two_loops:+.3f}",
            "change of U": "{change_of_u:.1%}",
        },
        "ln p(Y) in nats; of its correction, two loops is the part from cubic and quartic terms, "
        "which should be well below one. change of U: Frobenius norm of the correction, relative "
        "to that of U at the saddle.",
    )


def entries_table(corrections: Mapping[Point, xr.Dataset]) -> Table:
    """Table of entries of U at the saddle and to next order, a printed column per point."""
    frames = []
    for point, correction in corrections.items():
        saddle = distinct_entries(correction["order_parameter"])
        following = distinct_entries(to_next_order(correction, "order_parameter"))
        columns = {"entry": saddle["entry"], "saddle": saddle, "next_order": following}
        frames.append(pd.DataFrame({**asdict(point), **columns}))
    frame = pd.concat(frames)
    sizes = frame["saddle"].abs().groupby(frame["entry"]).max()
    left_out = f" The {ROWS} largest of {len(sizes)} are shown." if len(sizes) > ROWS else ""
    return Table(
        "order_parameter",
        "Order parameter U, saddle → next order",
        label_frame(frame[frame["entry"].isin(sizes.nlargest(ROWS).index)]),
        {"seed": "{seed}", "entry": "{entry}"},
        f"Entries are named by their two paths.{left_out}",
        across=("N = {width}\nT = {temperature}", "{saddle:#.3g} → {next_order:#.3g}"),
    )


def corrected_predictor_table(corrections: Mapping[Point, xr.Dataset]) -> Table:
    """Table of the predictor at the saddle and to next order, a row per point and test set."""
    frames = []
    for point, correction in corrections.items():
        measure = measures_of(correction)[0]
        shift = np.abs(correction["predictor_mean_correction"])
        values = {
            measure.name: correction[measure.name],
            f"{measure.name}_next": to_next_order(correction, measure.name),
            "shift": root_mean(shift**2),
            "largest_shift": shift.max([dim for dim in shift.dims if dim != "test_set"]),
            "sd": root_mean(correction["predictor_variance"]),
            "sd_next": root_mean(to_next_order(correction, "predictor_variance")),
        }
        frames.append(label_frame(frame_of(xr.Dataset(values)), asdict(point)))
    return Table(
        "predictor",
        "Predictor on the test sets, saddle and next order",
        label_frame(pd.concat(frames)),
        _POINT
        | {
            "test set": "{test_set}",
            measure.heading: f"{{{measure.name}:{measure.form}}}",
            f"{measure.heading},\nnext order": f"{{{measure.name}_next:{measure.form}}}",
            "shift of f": "{shift:.2g}",
            "largest": "{largest_shift:.2g}",
            "sd": "{sd:.4g}",
            "sd,\nnext order": "{sd_next:.4g}",
        },
        "shift of f: what the next order adds to the mean outputs, root mean square over the "
        "examples, and largest. sd: root mean square of the output's standard deviation, without "
        "observation noise; at the saddle U does not fluctuate.",
    )
