"""A run as tables: U against the theory's saddle, and accuracies against theory and GP limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from rich.table import Table

from pathkernel_datasets.draws import open_run, point_of, settings_of
from pathkernel_datasets.measures import MEASURES, kind_of, measures_of
from pathkernel_datasets.point import Point
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import NOT_COMPUTED, number
from pathkernel_datasets.stored import StoredStudy
from pathkernel_sampling.correct import open_correction
from pathkernel_sampling.diagnostics import (
    Diagnostics,
    diagnose,
    distinct_entries,
    predictor,
    sampled_log_evidence,
    sampled_scores,
)
from pathkernel_views.table_data import Values
from pathkernel_views.value_table import Column, shown, value_table

_ROWS = 15  # entries of U that a table shows
_KEPT = ("point", "test_set")  # dimensions that have rows of their own


@dataclass(frozen=True)
class Theory:
    """What a study holds at the point that a run samples, NaN where it is not computed.

    Attributes
    ----------
    order_parameter : DataArray, dims (path, [output,] path_dual, [output_dual])
        U at the saddle point.
    scores, scores_gp : Dataset, dims (test_set,)
        How well the test examples are predicted, by the names of the study's measures.
    predictor_mean, predictor_variance : DataArray, dims (test_set, example, [output])
    log_evidence : float
        ln p(Y) at leading order, in nats.
    labels : DataArray of the same dims
    kind : "classes" or "targets"
        What they are.
    converged : bool
        Whether the minimisation of the action converged.
    next_order : DataArray or None
        U to next order in 1/N, if the store holds it.
    next_log_evidence : float
        ln p(Y) to next order, in nats; NaN if the store does not hold it.
    """

    order_parameter: xr.DataArray
    scores: xr.Dataset
    scores_gp: xr.Dataset
    predictor_mean: xr.DataArray
    predictor_variance: xr.DataArray
    log_evidence: float
    labels: xr.DataArray
    kind: str
    converged: bool
    next_order: xr.DataArray | None
    next_log_evidence: float

    @classmethod
    def of(
        cls, dataset: xr.Dataset, run: xr.DataTree, correction: xr.Dataset | None = None
    ) -> Theory:
        """The study's values at the run's seed, temperature and width.

        Parameters
        ----------
        dataset : Dataset
            The study.
        run : DataTree
        correction : Dataset, optional
            From :func:`pathkernel_sampling.correct.open_correction`.
        """
        settings = settings_of(run)
        point = {name: settings[name] for name in ("seed", "temperature", "width")}
        reference = {name: settings[name] for name in ("seed", "temperature")}
        status = int(dataset["status"].sel(point))
        reference_done = bool(dataset["reference_done"].sel(reference) != 0)
        measures = [measure.name for measure in measures_of(dataset)]
        names = ("order_parameter", "predictor_mean", "predictor_variance")
        at = {name: dataset[name].sel(point).load() for name in names}
        at["scores"] = dataset[measures].sel(point).load()
        if status == NOT_COMPUTED:
            at = {name: values * np.nan for name, values in at.items()}
        gp = dataset[[f"{name}_gp" for name in measures]].sel(reference).load()
        gp = gp.rename({f"{name}_gp": name for name in measures})
        further = {"next_order": None, "next_log_evidence": np.nan}
        if correction is not None:
            further = {
                "next_order": _to_next_order(correction, "order_parameter"),
                "next_log_evidence": float(_to_next_order(correction, "log_evidence")),
            }
        return cls(
            **at,
            log_evidence=float(dataset["log_evidence"].sel(point)),
            scores_gp=gp if reference_done else gp * np.nan,
            labels=dataset["test_label"].sel(seed=settings["seed"]).load(),
            kind=kind_of(dataset),
            converged=status == STATUS_CODES["converged"],
            **further,
        )


def _to_next_order(correction: xr.Dataset, name: str) -> xr.DataArray:
    return (correction[name] + correction[f"{name}_correction"]).load()


def run_tables(study: StoredStudy, group: str) -> Iterator[Table | str]:
    """Tables and lines of text about a run, from the group that holds it."""
    run = open_run(study, group)
    correction = open_correction(study, point_of(run))
    theory, diagnostics = Theory.of(study.dataset, run, correction), diagnose(run)
    yield order_parameter_table(run, theory, diagnostics)
    yield predictor_table(run, theory)
    yield describe_evidence(run, theory)
    for line in diagnostics.warnings():
        yield f"Warning: {line}."
    yield f"Group: {study.prefix}{group}"


def describe_run(run: xr.DataTree) -> str:
    """A run in one line."""
    settings = settings_of(run)
    return (
        f"{settings['sampler']}, N = {number(settings['width'])}, "
        f"T = {settings['temperature']:g}, seed {settings['seed']}"
    )


def order_parameter_table(
    run: xr.DataTree, theory: Theory, diagnostics: Diagnostics, rows: int = _ROWS
) -> Table:
    """Posterior mean of U's entries against the saddle, with their diagnostics.

    Where there are more entries than ``rows``, those of largest magnitude are shown; the entries
    of worst R-hat and effective sample size are always among them.
    """
    entries = diagnostics.entries
    saddle = distinct_entries(theory.order_parameter).values
    chosen = np.arange(entries.sizes["entry"])
    left_out = ""
    if len(chosen) > rows:
        worst = [
            int(np.argmax(np.nan_to_num(sign * entries[name].values, nan=-np.inf)))
            for name, sign in (("r_hat", 1), ("ess_bulk", -1), ("ess_tail", -1))
        ]
        largest = np.argsort(-np.abs(entries["mean"].values))
        kept = list(dict.fromkeys([*worst, *largest.tolist()]))[:rows]
        left_out = f" The {rows} largest and worst of {len(chosen)} entries are shown."
        chosen = np.sort(kept)
    names = [str(entries["entry"].values[place]) for place in chosen]
    columns = [Column("entry", names), Column("saddle", saddle[chosen], ".4g")]
    if theory.next_order is not None:
        cells = distinct_entries(theory.next_order).values[chosen]
        columns.append(Column("next", cells, ".4g", name="next order"))
    for heading, name, form in (
        ("mean", "mean", ".4g"),
        ("±", "mcse", ".2g"),
        ("sd", "sd", ".3g"),
        ("R-hat", "r_hat", ".3f"),
        ("bulk ESS", "ess_bulk", ".0f"),
        ("tail ESS", "ess_tail", ".0f"),
    ):
        columns.append(Column(heading, entries[name].values[chosen], form, name=name))
    off = (saddle - entries["mean"].values) / entries["mcse"].values
    columns.append(Column("saddle off", np.where(np.isfinite(off), off, np.nan)[chosen], "+.1f"))
    size = diagnostics.chains * diagnostics.draws
    many = "s" if diagnostics.chains > 1 else ""
    seconds = float(run["adaptation"]["seconds"])
    caption = (
        f"{diagnostics.chains} chain{many} of {diagnostics.draws} draws, {size} together; "
        f"{seconds:.0f} s, warm-up and compilation included.\n{diagnostics.divergences} "
        f"divergences, {diagnostics.saturated} trajectories cut off, smallest BFMI "
        f"{shown(np.min(diagnostics.bfmi), '.2f')}.\n± is the Monte-Carlo error of the mean, "
        "sd the spread of the posterior.\n"
        + ("" if theory.next_order is None else "next: U to next order in 1/N. ")
        + f"saddle off: its distance from the mean, in errors ±.{left_out}"
        + ("" if theory.converged else "\nThe theory's minimisation did not converge here.")
    )
    title, of = f"Order parameter U: {describe_run(run)}", _point_of(run)
    return value_table(title, columns, caption, name="order parameter", of=of)


def predictor_table(run: xr.DataTree, theory: Theory) -> Table:
    """How well the sampled predictor does, against theory and Gaussian process limit."""
    sampled, moments = sampled_scores(run, theory.labels, theory.kind), predictor(run)
    measures = MEASURES[theory.kind]

    def cells(values: xr.Dataset, suffix: str = "", form: str = "") -> list[str]:
        """Measures below one another, for every test set."""
        found = [
            [shown(x, form or each.form) for x in values[each.name + suffix]] for each in measures
        ]
        return ["\n".join(lines) for lines in zip(*found)]

    columns = [Column("test set", map(str, sampled["test_set"].values))]
    if len(measures) > 1:
        headings = "\n".join(measure.heading for measure in measures)
        columns.append(Column("", [headings] * sampled.sizes["test_set"]))
    difference = theory.predictor_mean - moments["mean"]
    deviations = {
        "sd": _root_mean(moments["variance"]),
        "sd_theory": _root_mean(theory.predictor_variance),
        "difference": _root_mean(difference**2),
        "difference_mcse": _root_mean(moments["mcse"] ** 2),
    }
    columns += [
        Column("sampled", cells(sampled)),
        Column("±", cells(sampled, "_mcse", ".3f" if theory.kind == "classes" else ".2g")),
        Column("theory", cells(theory.scores)),
        Column("GP", cells(theory.scores_gp)),
        Column("sd", deviations["sd"], ".3g"),
        Column("sd theory", deviations["sd_theory"], ".3g"),
        Column("f theory - f sampled", deviations["difference"], ".2g"),
        Column("±", deviations["difference_mcse"], ".2g"),
    ]
    of_theory = [
        held.rename({each.name: f"{each.name}_{name}" for each in measures})
        for name, held in (("theory", theory.scores), ("gp", theory.scores_gp))
    ]
    data = xr.merge([sampled, *of_theory, deviations], compat="override", join="override")
    what = {
        "classes": "Accuracy of the mean predictor",
        "targets": "R² and MSE of the mean predictor, mean log predictive density in nats (of the "
        "mixture of draws)",
    }[theory.kind]
    return value_table(
        "Predictor on the test sets",
        columns,
        f"{what}, ± its Monte-Carlo error; GP: Gaussian process limit.\n"
        "sd: root mean square over the examples of the output's standard deviation, without "
        "observation noise; that of the theory is given U, which varies in the posterior.\n"
        "f theory - f sampled: root mean square difference of the mean "
        "outputs, ± their Monte-Carlo error.",
        name="predictor",
        of=_point_of(run),
        data=data.reset_coords(drop=True),
    )


def describe_evidence(run: xr.DataTree, theory: Theory) -> str:
    """The log evidence in one line."""
    value, error = sampled_log_evidence(run)
    line = f"Log evidence ln p(Y): theory {theory.log_evidence:.2f} nats"
    if not np.isnan(theory.next_log_evidence):
        line += f", to next order {theory.next_log_evidence:.2f} nats"
    if np.isnan(value):
        return f"{line}; not estimated from these draws"
    return f"{line}, sampled {value:.2f} ± {error:.2g} nats (bridge sampling)"


def correction_table(study: StoredStudy, points: Sequence[Point]) -> Table:
    """Next order in 1/N at points of a study."""
    found = [open_correction(study, at) for at in points]
    change, whole = (
        [float(np.sqrt((entry[name] ** 2).sum())) for entry in found]
        for name in ("order_parameter_correction", "order_parameter")
    )
    sums = [_to_next_order(entry, "log_evidence") for entry in found]

    def nats(heading: str, name: str, form: str) -> Column:
        return Column(heading, [entry[name] for entry in found], form, name=name, units="nat")

    columns = [
        *_point_columns(points),
        nats("ln p(Y)", "log_evidence", ".3f"),
        nats("correction", "log_evidence_correction", "+.3f"),
        Column("sum", sums, ".3f", name="log_evidence_next", units="nat"),
        nats("two loops", "log_evidence_two_loops", "+.3f"),
        Column("change of U", np.divide(change, whole), ".1%", units="1"),
    ]
    return value_table(
        "Next order in 1/N",
        columns,
        "ln p(Y) in nats; of its correction, two loops is the part from cubic and quartic "
        "terms, which should be\nwell below one. change of U: Frobenius norm of the "
        "correction, relative to that of U at the saddle.",
        names=(),
        name="next order",
    )


def corrected_entries_table(
    study: StoredStudy, points: Sequence[Point], rows: int = _ROWS
) -> Table:
    """Entries of U at the saddle and to next order, one column per point."""
    found = [open_correction(study, at) for at in points]
    saddle = np.array([distinct_entries(entry["order_parameter"]).values for entry in found])
    entries = [distinct_entries(_to_next_order(entry, "order_parameter")) for entry in found]
    largest = np.sort(np.argsort(-np.abs(saddle).max(axis=0))[:rows])
    left_out = ""
    if rows < saddle.shape[1]:
        left_out = f" The {rows} largest of {saddle.shape[1]} entries are shown."
    columns = [Column("entry", map(str, entries[0]["entry"].values[largest]))]
    for at, before, after in zip(points, saddle, entries):
        pairs = zip(before[largest], after.values[largest])
        cells = [f"{shown(old, '.3g')} → {shown(new, '.3g')}" for old, new in pairs]
        columns.append(Column(f"N = {number(at.width)}", cells))
    caption = f"Entries are named by their two paths.{left_out}"
    where = [dataclasses.asdict(at) for at in points]
    names = [str(name) for name in entries[0]["entry"].values]
    data = [
        *(Values(key, np.repeat([at[key] for at in where], len(largest))) for key in where[0]),
        Values("entry", [names[place] for _ in points for place in largest]),
        Values("saddle", saddle[:, largest].ravel()),
        Values("next_order", np.ravel([entry.values[largest] for entry in entries])),
    ]
    title = "Order parameter U, saddle → next order"
    return value_table(title, columns, caption, name="order parameter", data=data)


def corrected_predictor_table(study: StoredStudy, points: Sequence[Point]) -> Table:
    """Predictor on the test sets at the saddle and to next order, a row per point and test set."""
    found = xr.concat([open_correction(study, at) for at in points], "point").load()
    names = list(map(str, found["test_set"].values))
    shift = np.abs(found["predictor_mean_correction"])
    beyond = [dim for dim in shift.dims if dim not in _KEPT]
    measure = measures_of(found)[0]
    own, next_order = measure.name, f"{measure.name}_next"
    variance = _to_next_order(found, "predictor_variance")
    values = [
        (measure.heading, own, found[own], measure.form),
        ("next", next_order, _to_next_order(found, own), measure.form),
        ("shift of f", "shift", _root_mean(shift**2), ".2g"),
        ("largest", "largest_shift", shift.max(beyond), ".2g"),
        ("sd", "sd", _root_mean(found["predictor_variance"]), ".4g"),
        ("next", "sd_next", _root_mean(variance), ".4g"),
    ]
    rows = [(at, name) for at in points for name in names]
    columns = [
        *_point_columns([at for at, _ in rows]),
        Column("test set", [name for _, name in rows]),
    ]
    for heading, name, array, form in values:
        cells = array.transpose("point", "test_set").values.ravel()
        columns.append(Column(heading, cells, form, name=name))
    return value_table(
        "Predictor on the test sets, saddle and next order",
        columns,
        "shift of f: what the next order adds to the mean outputs, root mean square over the "
        "examples, and largest.\nsd: root mean square of the output's standard deviation, without "
        "observation noise; at the saddle U does not fluctuate.",
        names=(),
        name="predictor",
    )


def _point_columns(points: Sequence[Point]) -> list[Column]:
    return [
        Column("N", [at.width for at in points], ".10g", name="width"),
        Column("T", [at.temperature for at in points], "g", name="temperature"),
        Column("seed", [at.seed for at in points], ".16g", name="seed"),
    ]


def _point_of(run: xr.DataTree) -> dict[str, Any]:
    """What a run is of, for files of tables."""
    settings = settings_of(run)
    return {name: settings[name] for name in ("sampler", "width", "temperature", "seed")}


def evidence_table(dataset: xr.Dataset) -> Table:
    """Log evidence to next order of every temperature, at the widths where it is known."""
    values = dataset["log_evidence_next"].mean("seed")
    columns = [Column("T", [f"{value:g}" for value in dataset["temperature"].values])]
    for width in dataset["width"].values[values.notnull().any("temperature").values]:
        columns.append(Column(f"N = {number(width)}", values.sel(width=width), ".2f"))
    caption = "In nats, means over the seeds; --temperature next-evidence goes by it."
    title = "Log evidence ln p(Y) to next order"
    return value_table(title, columns, caption, name="evidence", data=values.to_dataset())


def _root_mean(values: xr.DataArray) -> xr.DataArray:
    """Root of the mean over all but points and test sets, NaN left out; NaN if it is negative."""
    mean = values.mean([dim for dim in values.dims if dim not in _KEPT])
    return np.sqrt(mean.where(mean >= 0))
