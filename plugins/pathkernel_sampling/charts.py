"""Draws beside the theory as charts of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_datasets.draws import open_run, settings_of
from pathkernel_datasets.measures import Measure, measures_of
from pathkernel_datasets.selection import Selection
from pathkernel_datasets.stored import StoredStudy
from pathkernel_sampling.diagnostics import predictor, sampled_scores
from pathkernel_sampling.figures import without_width
from pathkernel_sampling.finite_width import finite_width
from pathkernel_sampling.sample_tables import Theory, describe_run
from pathkernel_views.chart import ROWS, Chart, chart_data, of_rows, strongest
from pathkernel_views.study_charts import matrix_rows, path_diagonal


def sample_charts(study: StoredStudy, groups: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """Functions that give the charts of some runs, by the names of the figures.

    Parameters
    ----------
    study : StoredStudy
    groups : sequence of str
        Runs, from :func:`pathkernel_datasets.draws.runs`.
    """
    if not groups:
        return {}
    runs = [open_run(study, group) for group in groups]
    dataset = study.dataset
    charts: dict[str, Callable[[], Any]] = {
        measure.name: partial(measured, dataset, runs, measure) for measure in measures_of(dataset)
    }
    charts |= {
        "order_parameters": partial(order_parameters, dataset, runs),
        "differences": partial(differences, dataset, runs),
        "predictors": partial(predictors, dataset, runs),
    }
    alike: dict[str, list[xr.DataTree]] = {}
    for run in runs:
        alike.setdefault(without_width(run), []).append(run)
    several = {words: same for words, same in alike.items() if len(same) > 1}
    for place, (words, same) in enumerate(several.items()):  # one figure for all their widths
        name = f"finite_width{f'_{place + 1}' * bool(place)}"
        charts[name] = partial(finite_width, study, same, words)
    return charts


def measured(dataset: xr.Dataset, runs: Sequence[xr.DataTree], measure: Measure) -> Chart:
    """A measure against the width: theory, limit, and every run, at one seed and temperature."""
    settings = [settings_of(run) for run in runs]
    points = sorted({(held["seed"], held["temperature"]) for held in settings})
    samplers = sorted({held["sampler"] for held in settings})
    widths = dataset["width"].values
    series = ["theory", "GP limit", *(f"sampled, {name}" for name in samplers)]
    tests = dataset["test_set"].values.tolist()
    values = np.full((3, len(points), len(tests), len(series), len(widths)), np.nan)
    for p, (seed, temperature) in enumerate(points):
        selection = Selection(dataset.sel(seed=[seed]), temperature)
        finite = selection.point(measure.name).isel(seed=0).transpose("test_set", "width")
        values[:, p, :, 0] = finite.values
        values[:, p, :, 1] = selection.reference(f"{measure.name}_gp").isel(seed=0).values[:, None]
    for run, held in zip(runs, settings):
        if run["predictions"].sizes["draw"] > 1:
            theory = Theory.of(dataset, run)
            scores = sampled_scores(run, theory.labels, theory.kind)
            middle, error = (scores[f"{measure.name}{end}"].values for end in ("", "_mcse"))
            place = points.index((held["seed"], held["temperature"]))
            at = (place, slice(None), 2 + samplers.index(held["sampler"]))
            w = int(np.flatnonzero(widths == held["width"])[0])
            values[(slice(None), *at, w)] = middle, middle - 2 * error, middle + 2 * error
    labels = {
        "point": [f"seed {seed}, T = {temperature:g}" for seed, temperature in points],
        "test_set": tests,
        "series": series,
        "width": widths,
    }
    words = {"value": measure.axis, "test_set": "test set", "width": "width N"}
    heading = measure.axis.partition(" (")[0]
    return Chart(
        f"{heading.capitalize()}, theory and samples",
        f"{heading.capitalize()} on test examples against the width N. Samples of the exact "
        "posterior have two Monte-Carlo standard errors; theory and samples are tested on the "
        "same examples.",
        chart_data(dict(zip(("value", "low", "high"), values)), labels, **words),
        "lines",
        x="width",
        y="value",
        low="low",
        high="high",
        series="series",
        panel="test_set",
        switches=("point",),
        log=True,
    )


def _matrices(
    dataset: xr.Dataset, runs: Sequence[xr.DataTree]
) -> tuple[np.ndarray, list[str], str]:
    """U at the saddle, its posterior mean and standard deviation, of every run, (run, 3, n, n).

    Of many paths the strongest; with the names of the rows, and what is said of the others.
    """
    found = []
    for run in runs:
        theory = Theory.of(dataset, run).order_parameter
        draws = run["posterior"]["order_parameter"].load()
        parts = [theory, draws.mean(("chain", "draw")), draws.std(("chain", "draw"))]
        found.append(xr.concat(parts, "part", coords="minimal", compat="override"))
    means = [path_diagonal(each.isel(part=slice(2))).transpose("part", "path") for each in found]
    some = strongest(np.stack(means), max(1, ROWS // found[0].sizes.get("output", 1)))
    rows = [matrix_rows(each.isel(path=some, path_dual=some), ("part",)) for each in found]
    return np.stack([each for each, _ in rows]), rows[0][1], of_rows(some, found[0]["path"])


def order_parameters(dataset: xr.Dataset, runs: Sequence[xr.DataTree]) -> Chart:
    """U at the saddle point beside its posterior mean."""
    matrices, names, left = _matrices(dataset, runs)
    parts = ["theory (saddle)", "sampled (posterior mean)"]
    labels = {"run": list(map(describe_run, runs)), "part": parts, "path": names}
    return Chart(
        "Order parameter U, theory and samples",
        "U at the minimum of the action, and its mean over draws from the exact posterior." + left,
        chart_data({"U": matrices[:, :2]}, labels | {"path_dual": names}, U="U", path_dual="path′"),
        "heatmap",
        x="path_dual",
        y="path",
        panel="part",
        switches=("run",),
    )


def differences(dataset: xr.Dataset, runs: Sequence[xr.DataTree]) -> Chart:
    """What samples differ by from the saddle point, in posterior standard deviations."""
    matrices, names, left = _matrices(dataset, runs)
    saddle, mean, sd = np.moveaxis(matrices, 1, 0)
    off = (mean - saddle) / np.where(sd > 0, sd, np.inf)
    labels = {"run": list(map(describe_run, runs)), "path": names, "path_dual": names}
    return Chart(
        "Samples less theory",
        f"Posterior mean of U less U at the saddle point, in posterior standard deviations.{left}",
        chart_data({"off": off}, labels, off="difference (sd)", path_dual="path′"),
        "heatmap",
        x="path_dual",
        y="path",
        switches=("run",),
    )


def predictors(dataset: xr.Dataset, runs: Sequence[xr.DataTree]) -> Chart:
    """Mean output of every test example, theory against samples."""
    found, sides = [], ["label > 0", "label ≤ 0"]
    for run in runs:
        theory, moments = Theory.of(dataset, run), predictor(run)
        mean, sampled, error, label = (
            values.transpose("test_set", ...).values.reshape(theory.labels.sizes["test_set"], -1)
            for values in (theory.predictor_mean, moments["mean"], moments["mcse"], theory.labels)
        )
        of_side = [label > 0, label <= 0]
        if theory.kind == "targets":
            sides, of_side = ["test example"], [~np.isnan(label)]
        values = np.stack([mean, sampled, sampled - 2 * error, sampled + 2 * error])
        found.append(np.stack([np.where(side, values, np.nan) for side in of_side], 2))
    every = np.stack(found, 1)  # (4, run, test_set, side, example)
    labels = {
        "run": list(map(describe_run, runs)),
        "test_set": dataset["test_set"].values.tolist(),
        "side": sides,
        "example": np.arange(every.shape[-1]),
    }
    words = {"theory": "mean output, theory", "sampled": "mean output, sampled"}
    return Chart(
        "Predictor, theory and samples",
        "Mean output of the network for every test example; ranges are two Monte-Carlo standard "
        "errors of the samples.",
        chart_data(
            dict(zip(("sampled", "theory", "low", "high"), every[[1, 0, 2, 3]])), labels, **words
        ),
        "points",
        x="theory",
        y="sampled",
        low="low",
        high="high",
        series="side",
        panel="test_set",
        switches=("run",),
    )
