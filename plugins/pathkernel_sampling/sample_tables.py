"""A run as tables: U against the theory's saddle, and accuracies against theory and GP limit."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from rich import box
from rich.table import Table
from rich.text import Text

from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import NOT_COMPUTED, number
from pathkernel_sampling.correct import open_correction
from pathkernel_sampling.diagnostics import (
    Diagnostics,
    distinct_entries,
    predictor,
    sampled_accuracy,
    sampled_log_evidence,
)
from pathkernel_sampling.point import GridPoint

_ROWS = 15  # entries of U that a table shows


@dataclass(frozen=True)
class Theory:
    """What a study holds at the point that a run samples, NaN where it is not computed.

    Attributes
    ----------
    order_parameter : DataArray, dims (path, [output,] path_dual, [output_dual])
        U at the saddle point.
    accuracy, accuracy_gp : DataArray, dims (test_set,)
    predictor_mean, predictor_variance : DataArray, dims (test_set, example, [output])
    log_evidence : float
        ln p(Y) at leading order, in nats.
    labels : DataArray of the same dims
    converged : bool
        Whether the minimisation of the action converged.
    """

    order_parameter: xr.DataArray
    accuracy: xr.DataArray
    accuracy_gp: xr.DataArray
    predictor_mean: xr.DataArray
    predictor_variance: xr.DataArray
    log_evidence: float
    labels: xr.DataArray
    converged: bool

    @classmethod
    def of(cls, dataset: xr.Dataset, run: xr.DataTree) -> Theory:
        """The study's values at the run's seed, temperature and width."""
        settings = run_settings(run)
        point = {name: settings[name] for name in ("seed", "temperature", "width")}
        reference = {name: settings[name] for name in ("seed", "temperature")}
        status = int(dataset["status"].sel(point))
        reference_done = bool(dataset["reference_done"].sel(reference) != 0)
        names = ("order_parameter", "accuracy", "predictor_mean", "predictor_variance")
        at = {name: dataset[name].sel(point).load() for name in names}
        if status == NOT_COMPUTED:
            at = {name: values * np.nan for name, values in at.items()}
        gp = dataset["accuracy_gp"].sel(reference).load()
        return cls(
            **at,
            log_evidence=float(dataset["log_evidence"].sel(point)),
            accuracy_gp=gp if reference_done else gp * np.nan,
            labels=dataset["test_label"].sel(seed=settings["seed"]).load(),
            converged=status == STATUS_CODES["converged"],
        )


def run_settings(run: xr.DataTree) -> dict:
    """Settings of a run: sampler, seed, temperature, width, chains, warm_up, thin."""
    return json.loads(run.attrs["settings"])


def describe_run(run: xr.DataTree) -> str:
    """A run in one line."""
    settings = run_settings(run)
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
    size = diagnostics.chains * diagnostics.draws
    seconds = float(run["adaptation"]["seconds"].max())
    table = Table(
        title=Text(f"Order parameter U: {describe_run(run)}"),
        caption=Text(
            f"{diagnostics.chains} chains of {diagnostics.draws} draws, {size} together; "
            f"{seconds:.0f} s, warm-up and compilation included.\n± is the Monte-Carlo error of "
            f"the mean, sd the spread of the posterior.{left_out}"
            + ("" if theory.converged else "\nThe theory's minimisation did not converge here."),
            justify="left",
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("entry", no_wrap=True)
    for heading in ("saddle", "mean", "±", "sd", "R-hat", "bulk ESS", "tail ESS"):
        table.add_column(heading, justify="right", no_wrap=True)
    for place in chosen:
        row = entries.isel(entry=place)
        table.add_row(
            Text(str(row["entry"].values)),
            _show(saddle[place], ".4g"),
            _show(row["mean"], ".4g"),
            _show(row["mcse"], ".2g"),
            _show(row["sd"], ".3g"),
            _show(row["r_hat"], ".3f"),
            _show(row["ess_bulk"], ".0f"),
            _show(row["ess_tail"], ".0f"),
        )
    return table


def accuracy_table(run: xr.DataTree, theory: Theory) -> Table:
    """Accuracy of the posterior-mean predictor against theory and Gaussian process limit."""
    sampled = sampled_accuracy(run, theory.labels)
    moments = predictor(run)
    table = Table(
        title=Text("Predictor on the test sets"),
        caption=Text(
            "Accuracy of the mean predictor, ± its Monte-Carlo error; GP: Gaussian process limit.\n"
            "sd: root mean square over the examples of the output's standard deviation, without "
            "observation noise.\nf theory - f sampled: root mean square difference of the mean "
            "outputs, ± their Monte-Carlo error.",
            justify="left",
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("test set")
    for heading in ("sampled", "±", "theory", "GP", "sd", "sd theory", "f theory - f sampled", "±"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, name in enumerate(sampled["test_set"].values):
        at = {"test_set": index}
        difference = theory.predictor_mean.isel(at).values - moments["mean"].isel(at).values
        table.add_row(
            Text(str(name)),
            _show(sampled["accuracy"][index], ".3f"),
            _show(sampled["mcse"][index], ".3f"),
            _show(theory.accuracy[index], ".3f"),
            _show(theory.accuracy_gp[index], ".3f"),
            _show(_root_mean(moments["variance"].isel(at).values), ".3g"),
            _show(_root_mean(theory.predictor_variance.isel(at).values), ".3g"),
            _show(_root_mean(difference**2), ".2g"),
            _show(_root_mean(moments["mcse"].isel(at).values ** 2), ".2g"),
        )
    return table


def describe_evidence(run: xr.DataTree, theory: Theory) -> str:
    """The log evidence in one line."""
    value, error = sampled_log_evidence(run)
    line = f"Log evidence ln p(Y): theory {theory.log_evidence:.2f} nats"
    if np.isnan(value):
        return f"{line}; not estimated from these draws"
    return f"{line}, sampled {value:.2f} ± {error:.2g} nats (bridge sampling)"


def correction_table(store: str | os.PathLike, points: Sequence[GridPoint]) -> Table:
    """Next order in 1/N at points of a study."""
    table = Table(
        title=Text("Next order in 1/N"),
        caption=Text(
            "ln p(Y) in nats; of its correction, two loops is the part from cubic and quartic "
            "terms, which should be\nwell below one. change of U: Frobenius norm of the "
            "correction, relative to that of U at the saddle.",
            justify="left",
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in ("N", "T", "seed", "ln p(Y)", "correction", "two loops", "change of U"):
        table.add_column(heading, justify="right", no_wrap=True)
    for at in points:
        found = open_correction(store, at)
        sizes = [
            float(np.sqrt((found[name] ** 2).sum()))
            for name in ("order_parameter_correction", "order_parameter")
        ]
        table.add_row(
            number(at.width),
            f"{at.temperature:g}",
            str(at.seed),
            _show(found["log_evidence"], ".3f"),
            _show(found["log_evidence_correction"], "+.3f"),
            _show(found["log_evidence_two_loops"], "+.3f"),
            format(sizes[0] / sizes[1], ".1%"),
        )
    return table


def _root_mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.sqrt(known.mean())) if known.size else float("nan")


def _show(value: float, form: str) -> str:
    value = float(value)
    return "-" if np.isnan(value) else format(value, form)
