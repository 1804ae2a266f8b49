"""Charts of draws from the exact posterior against the theory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import xarray as xr
from arviz_stats.base import array_stats

from pathkernel_datasets.selection.selection import Selections
from pathkernel_datasets.variables.measures import Measure, label_kind, measures_of
from pathkernel_sampling.chains.diagnostics import distinct_entries, sampled_log_evidence
from pathkernel_sampling.draws.sampled import Run
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.paths import (
    NUMBERS,
    ROWS,
    matrix_frame,
    of_paths,
    path_diagonal,
    row_names,
    strongest,
)
from pathkernel_views.study_tables import curves_frame
from pathkernel_views.table import frame_of

if TYPE_CHECKING:
    import altair as alt

_POINTS = 4000  # of a chart of predictors
_TRACED = 4  # entries of U that traces show
_TRACE_ROWS = 10_000
_BINS = 20  # of ranks
_ROUNDING = 1e-12  # a smaller relative spread is none
_ENTRIES = 3  # of U against the width
_LINES = {"saddle": "theory, saddle point", "next_order": "next order in 1/N", "mean": "sampled"}


def sample_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield the charts of some runs of a study."""
    dataset = runs[0].study.dataset
    for measure in measures_of(dataset):
        heading = measure.axis.partition(" (")[0].capitalize()
        yield Chart(
            measure.name,
            f"{heading}, theory and samples",
            f"{heading} on test examples against the width N, of one seed. Samples of the exact "
            "posterior have two Monte-Carlo errors: theory and samples are tested on the same "
            "examples. Dashed lines are Gaussian process (GP) limits."
            + " The band is one standard error over test examples."
            * measure.is_fraction,
            partial(_chart_measure, runs, measure),
        )
    paths = dataset.sizes["path"]
    left_out = of_paths(len(_strongest(runs, np.zeros(paths))), paths)
    yield Chart(
        "order_parameters",
        "Order parameter U, theory and samples",
        "U at the minimum of the action, and its mean over draws from the exact posterior."
        + left_out,
        partial(_order_parameters, runs, "U"),
    )
    yield Chart(
        "differences",
        "Order parameter U, samples less theory",
        "Posterior mean of U less U at the saddle point, in posterior standard deviations."
        + left_out,
        partial(_order_parameters, runs, "difference"),
    )
    step = _step(runs)
    yield Chart(
        "predictors",
        "Predictor, theory and samples",
        "Output of the network for test examples, its mean over the posterior by the theory and "
        "over the draws; ranges are two Monte-Carlo errors."
        + f" One example in {step} is shown."
        * (step > 1),
        partial(_predictors, runs),
    )
    if series := _series(runs):
        of_series = [run for group in series.values() for run in group]
        has_next = any(run.entries["next_order"].notna().any() for run in of_series)
        yield Chart(
            "finite_width",
            "Theory and next order against samples" if has_next else "Theory against samples",
            "Largest entries of U against the width N, those of samples with two Monte-Carlo "
            "errors; gain of the samples over the theory; and distances of U (Frobenius norm, "
            "relative) and of ln p(Y) from the samples, whose line is their Monte-Carlo error.",
            partial(_finite_width, series),
        )
    for run in runs:
        yield Chart(
            f"{run.name.partition('/')[2]}/traces",
            f"Traces and ranks, {run.title}",
            "Draws of the entries of U with the smallest bulk effective sample sizes (ESS), "
            "thinned where there are many, and frequencies of a chain's ranks among all draws, "
            "relative to the expected ones. Chains that agree have flat ranks, near 1.",
            partial(_traces, run),
            detail=True,
        )


def _chart_measure(runs: Sequence[Run], measure: Measure) -> alt.TopLevelMixin:
    """A measure against the width: theory, limits, and runs of the same seed and temperature."""
    from pathkernel_views.primitives import lines

    name, dataset, frames = measure.name, runs[0].study.dataset, []
    y, low, high = (f"{name}_{key}" for key in ("median", "lowest", "highest"))
    runs = sorted(runs, key=_temperature_and_seed)
    for (temperature, seed), group in groupby(runs, _temperature_and_seed):
        curves = [curves_frame(Selections(dataset.sel(seed=[seed])), measure, temperature)]
        for run in group:
            value, error = run.scores[name], 2 * run.scores[f"{name}_mcse"].fillna(0)
            sampled = frame_of(xr.Dataset({y: value, low: value - error, high: value + error}))
            curve = f"sampled, {run.settings['sampler']}"
            width = run.settings["width"]
            curves.append(sampled.assign(curve=curve, width=width, unconverged=False))
        frames.append(pd.concat(curves).assign(point=f"T = {temperature:g}, seed {seed}"))
    frame = pd.concat(frames, ignore_index=True)
    return lines(
        frame[["point", "test_set", "curve", "width", y, low, high, "unconverged"]],
        "width",
        y,
        low=low,
        high=high,
        series="curve",
        panel="test_set",
        switches=["point"],
        bands=[curve for curve in frame["curve"].unique() if not curve.startswith("sampled")],
        hollow="unconverged",
        titles={
            "width": "width N",
            "test_set": "test set",
            "unconverged": "did not converge",
            y: measure.axis,
        },
        log=True,
    )


def _temperature_and_seed(run: Run) -> tuple[float, int]:
    return run.settings["temperature"], run.settings["seed"]


def _with_range(frame: pd.DataFrame) -> pd.DataFrame:
    value, error = frame["value"], frame["error"]
    return frame.assign(low=value - error, high=value + error).drop(columns="error")


def _strongest(runs: Sequence[Run], diagonals: np.ndarray) -> np.ndarray:
    """Indices of the strongest paths, as many as a chart of U has room for."""
    rows = min(ROWS, int((NUMBERS / (2 * len(runs))) ** 0.5))
    return strongest(diagonals, runs[0].study.dataset.sizes.get("output", 1), rows)


def _order_parameters(
    runs: Sequence[Run], quantity: Literal["U", "difference"]
) -> alt.TopLevelMixin:
    """U of theory and samples side by side, or their difference."""
    from pathkernel_views.primitives import heatmaps

    moments = []
    for run in runs:
        theory, draws = run.theory["order_parameter"], run.draws["posterior"]["order_parameter"]
        moments.append((theory, draws.load().mean(("chain", "draw")), draws.std(("chain", "draw"))))
    if all(np.isnan(theory).all() for theory, _, _ in moments):
        raise NothingToPlot("the theory is not computed at these points")
    # the same paths in all panels, strong by theory or by samples
    means = [matrix for theory, mean, _ in moments for matrix in (theory, mean)]
    diagonals = [path_diagonal(matrix).values for matrix in means]
    paths, frames = _strongest(runs, np.stack(diagonals)), []
    for run, (theory, mean, sd) in zip(runs, moments):
        matrices = {"theory, saddle point": theory, "sampled, mean over draws": mean}
        if quantity == "difference":
            matrices = {"": (mean - theory) / sd.where(sd > _ROUNDING * np.abs(mean), np.inf)}
        for panel, matrix in matrices.items():
            matrix = matrix.isel(path=paths, path_dual=paths)
            frame = matrix_frame(matrix, row_names(matrix)).assign(part=panel, run=run.title)
            frames.append(frame.rename(columns={"U": quantity}))
    frame, titles = (
        pd.concat(frames),
        {"path_dual": "path′", "difference": "difference in standard deviations"},
    )
    reach = max(1.0, float(frame[quantity].abs().max()))
    return heatmaps(
        frame,
        "path_dual",
        "path",
        quantity,
        panel="part",
        switches=["run"],
        titles=titles,
        domain=(-reach, reach) if quantity == "difference" else None,
    )


def _step(runs: Sequence[Run]) -> int:
    """Step along the test examples at which a chart has room for them."""
    sizes = runs[0].study.dataset.sizes
    count = len(runs) * sizes["test_set"] * sizes.get("output", 1) * sizes["example"]
    return -(-count // _POINTS)


def _predictors(runs: Sequence[Run]) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import points

    frames, is_class = [], label_kind(runs[0].study.dataset) == "classes"
    for run in runs:
        data = xr.Dataset(
            {
                "theory": run.theory["predictor_mean"],
                "value": run.outputs["mean"],
                "error": 2 * run.outputs["mcse"].fillna(0),
                "label": run.theory["test_label"],
            }
        )
        data = data.isel(example=slice(None, None, _step(runs))).reset_coords(drop=True)
        frames.append(data.to_dataframe().reset_index().dropna().assign(run=run.title))
    frame = _with_range(pd.concat(frames))
    if frame.empty:
        raise NothingToPlot("the theory is not computed at these points")
    sides = np.where(frame["label"] > 0, "label > 0", "label ≤ 0")
    frame["side"] = sides if is_class else "test example"
    frame = frame.sort_values("side", kind="stable")
    order = {name: n for n, name in enumerate(runs[0].study.dataset["test_set"].values)}
    frame = frame.iloc[np.argsort(frame["test_set"].map(order), kind="stable")]
    return points(
        frame[["run", "test_set", "side", "theory", "value", "low", "high"]],
        "theory",
        "value",
        low="low",
        high="high",
        series="side",
        panel="test_set",
        switches=["run"],
        titles={
            "theory": "output, posterior mean of the theory",
            "value": "output, mean over the draws",
        },
    )


def _series(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by sampler and point, where there are several widths, in their order."""
    series: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.settings["width"]):
        series.setdefault(run.series, []).append(run)
    return {name: group for name, group in series.items() if len(group) > 1}


def finite_width_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Frame of theory, next order and samples against the width, of runs of one series.

    Returns
    -------
    pandas.DataFrame
        ``network``, ``width``, ``quantity``, ``value`` and ``error``. Quantities are the entries of
        U that are largest at the first width; "gain", of the samples over the theory, averaged
        over the test sets; and "distance of U", relative, and "distance of ln p(Y)", in nats, from
        the samples, where those of the samples are their Monte-Carlo errors.
    """
    name = measures_of(runs[0].study.dataset)[0].name
    largest = runs[0].entries["mean"].abs().nlargest(_ENTRIES).index
    frames = []
    for run in runs:
        entries, theory = run.entries, run.theory
        values = entries[list(_LINES)]
        # the samples' distance from themselves is zero: their line is the error below which no
        # other distance means anything
        distances = values.sub(values["mean"], axis=0).assign(mean=entries["mcse"])
        bridge, error = sampled_log_evidence(run.draws)
        nats = [float(theory[f"log_evidence{end}"]) - bridge for end in ("", "_next")]
        gain = float((run.scores[name] - theory[name]).mean())
        rows = {f"U [{entries['entry'][n]}]": values.loc[n].values for n in largest}
        rows["gain"] = [np.nan, np.nan, gain]
        rows["distance of U"] = np.linalg.norm(distances, axis=0) / np.linalg.norm(values["mean"])
        rows["distance of ln p(Y)"] = np.abs([*nats, error])
        frame = pd.DataFrame(rows, index=list(_LINES.values())).rename_axis("network")
        frame = frame.reset_index().melt("network", var_name="quantity")
        errors = [*entries["mcse"][largest], float(run.scores["mean_mcse"]), 0.0, 0.0]
        is_sampled = frame["network"] == _LINES["mean"]
        error = frame["quantity"].map(dict(zip(rows, errors))).where(is_sampled, 0.0)
        frames.append(frame.assign(width=run.settings["width"], error=error))
    return pd.concat(frames)


def _finite_width(series: dict[str, list[Run]]) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import chart_grid, lines

    frames = [finite_width_frame(runs).assign(runs=name) for name, runs in series.items()]
    measure = measures_of(next(iter(series.values()))[0].study.dataset)[0]
    panels = {
        "gain": f"{measure.heading}, sampled − theory{' (points)' * measure.is_fraction}",
        "distance of U": "U, relative distance",
        "distance of ln p(Y)": "ln p(Y), distance (nats)",
    }
    frame = pd.concat(frames).dropna(subset=["value"])
    if (frame["network"] == _LINES["mean"]).all():
        raise NothingToPlot("the theory is not computed at these points")
    order = list(_LINES.values())  # the same in both charts, for their legend
    frame = frame.sort_values("network", key=lambda names: names.map(order.index), kind="stable")
    if measure.is_fraction:
        frame.loc[frame["quantity"] == "gain", ["value", "error"]] *= 100
    frame = _with_range(frame.assign(error=2 * frame["error"].fillna(0)))
    frame["quantity"] = frame["quantity"].replace(panels)
    distances = frame["quantity"].str.contains("distance")
    settings = {
        "series": "network",
        "panel": "quantity",
        "switches": ["runs"],
        "titles": {"width": "width N", "value": " "},
        "log": True,
        "same_y": False,
        "columns": 2,
    }
    ranges = {"low": "low", "high": "high", "bands": [_LINES["saddle"], _LINES["next_order"]]}
    return chart_grid(
        lines(frame[~distances], "width", "value", **ranges, **settings),
        lines(frame[distances & (frame["value"] > 0)], "width", "value", log_y=True, **settings),
    )


def _traces(run: Run) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import chart_grid, lines

    values = distinct_entries(run.draws["posterior"]["order_parameter"])
    chains, draws = values.sizes["chain"], values.sizes["draw"]
    if draws < _BINS:
        raise NothingToPlot(f"ranks need at least {_BINS} draws of each chain")
    ess = run.entries["ess_bulk"].fillna(np.inf).nsmallest(_TRACED)
    step = -(-draws * chains * len(ess) // _TRACE_ROWS)
    traces, ranks = [], []
    for entry, size in ess.items():
        series = values.isel(entry=entry).transpose("chain", "draw").values
        order = array_stats.compute_ranks(series, axis=None).reshape(series.shape)
        edges = np.linspace(0.5, series.size + 0.5, _BINS + 1)
        panel = f"U [{run.entries['entry'][entry]}], bulk ESS {size:.0f}"
        for chain in range(chains):
            labels = {"panel": panel, "chain": f"chain {chain + 1}"}
            drawn = {"draw": np.arange(0, draws, step), "U": series[chain, ::step]}
            traces.append(pd.DataFrame(labels | drawn))
            counts = np.histogram(order[chain], edges)[0] * _BINS / draws
            middle = (edges[1:] + edges[:-1]) / 2
            ranks.append(pd.DataFrame(labels | {"rank": middle, "frequency": counts}))
    settings = {"series": "chain", "panel": "panel", "markers": False, "columns": 1}
    return chart_grid(
        lines(pd.concat(traces), "draw", "U", same_y=False, **settings),
        lines(pd.concat(ranks), "rank", "frequency", steps=True, **settings),
        columns=2,
    )
