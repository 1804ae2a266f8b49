"""Learning curves as charts: at fixed width, and at a fixed ratio of examples to width."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.measures import measures_of
from pathkernel_phases.learning import lacking_seeds, stored_learning_curves
from pathkernel_views.chart import Chart
from pathkernel_views.paths import path_diagonal
from pathkernel_views.table import Table, labelled_frame

if TYPE_CHECKING:
    import altair as alt

FEWEST = 3  # points of a curve at a fixed ratio
MOST = 4  # curves at fixed widths; the table has all
_LABELS = {
    "examples": "training examples P",
    "value": "value",
    "low": "lowest of the seeds",
    "high": "highest of the seeds",
}


def learning_views(study: StoredStudy) -> Iterator[Table | Chart | str]:
    """Accuracy, squared error, trace of U and evidence against the number of examples."""
    dataset, curves = study.dataset, stored_learning_curves(study).load()
    if lacking_seeds(study):
        yield (
            "The study has grown since its learning curves were computed; run again: pathkernel "
            f"learning-curves {study.path}"
        )
    dataset = dataset.sel(seed=curves["seed"]).load()
    measure = measures_of(dataset)[0]
    temperature = float(dataset["temperature"][0])
    at_point = {"temperature": temperature, "test_set": dataset["test_set"][0]}
    trace = path_diagonal(dataset["order_parameter"]).sum("path")
    quantities = {
        "accuracy": (measure.axis, dataset[measure.name], dataset[f"{measure.name}_gp"]),
        "error": ("mean squared error", curves["error"], curves["error_gp"]),
        "trace": ("trace of U", trace, None),
        "evidence": (
            "log evidence per example, nats",
            dataset["log_evidence"] / dataset["examples"],
            dataset["log_evidence_gp"] / dataset["examples"],
        ),
    }
    yield errors_table(curves, temperature)
    for name, (title, values, limit) in quantities.items():
        values, limit = (
            v if v is None else v.sel({d: at_point[d] for d in at_point if d in v.dims})
            for v in (values, limit)
        )
        frame = _at_fixed_width(values, limit)
        if name == "error":
            averages = curves["average_case_error"].sel(temperature=temperature)
            average_gp = curves["average_case_error_gp"].sel(temperature=temperature)
            average = _at_fixed_width(averages, average_gp)
            frame = pd.concat([frame.assign(kind="measured"), average.assign(kind="average case")])
        caption = (
            f"{title[0].upper()}{title[1:]} against the number P of training examples at T = "
            f"{number(temperature)}."
            + " Medians and ranges over the seeds."
            * (curves.sizes["seed"] > 1)
        )
        yield Chart(
            f"learning_{name}",
            f"{title[0].upper()}{title[1:]}, fixed width",
            caption + " Average case: from the spectrum of the kernel." * (name == "error"),
            partial(_draw, frame, title),
        )
        frame = _at_fixed_ratio(values)
        if not frame.empty:
            yield Chart(
                f"learning_{name}_fixed_ratio",
                f"{title[0].upper()}{title[1:]}, fixed P/N",
                f"{caption} Along a curve the width N grows with P.",
                partial(_draw, frame, title),
            )


def errors_table(curves: xr.Dataset, temperature: float) -> Table:
    """Measured and average-case errors, a row per number of examples and width."""
    names = ["error", "average_case_error"]
    medians = curves[names].sel(temperature=temperature).median("seed")
    limits = curves[[f"{name}_gp" for name in names]].sel(temperature=temperature).median("seed")
    limits = limits.rename({f"{name}_gp": name for name in names})
    frame = medians.to_dataframe().reset_index()
    frame = pd.concat([frame, limits.to_dataframe().reset_index().assign(width=np.inf)])
    frame = frame.sort_values(["width", "examples"])[["width", "examples", *names]]
    frame["network"] = [
        "GP limit" if np.isinf(width) else f"N = {number(width)}" for width in frame["width"]
    ]
    labels = {"error": "mean squared error", "average_case_error": "the same, average case"}
    return Table(
        "learning_curves",
        f"Learning curves at T = {number(temperature)}",
        labelled_frame(frame, _LABELS | labels, {}),
        {
            "network": "{network}",
            "P": "{examples}",
            "squared error": "{error:.3f}",
            "average case": "{average_case_error:.3f}",
        },
        "Medians over the seeds. " * (curves.sizes["seed"] > 1)
        + "Average case: expected error over draws of the training examples at the same U.",
        lines="network",
    )


def _rows(values: xr.DataArray, curve: str) -> pd.DataFrame:
    """Median and range over the seeds, along the number of examples."""
    statistics = xr.Dataset(
        {"value": values.median("seed"), "low": values.min("seed"), "high": values.max("seed")}
    )
    frame = statistics.drop_vars(set(statistics.coords) - {"examples"}).to_dataframe()
    return frame.reset_index().assign(curve=curve)


def _at_fixed_width(values: xr.DataArray, limit: xr.DataArray | None) -> pd.DataFrame:
    widths = values["width"].values
    widths = widths[np.unique(np.linspace(0, len(widths) - 1, MOST).round().astype(int))]
    frames = [_rows(values.sel(width=width), f"N = {number(width)}") for width in widths]
    if limit is not None:
        frames.append(_rows(limit, "GP limit"))
    return pd.concat(frames).dropna(subset=["value"])


def _at_fixed_ratio(values: xr.DataArray) -> pd.DataFrame:
    """Curves along which P/N has one value, of those ratios that enough points share."""
    pairs: dict[float, list[tuple[int, float]]] = {}  # equal ratios may differ by rounding
    for examples in values["examples"].values:
        for width in values["width"].values:
            pairs.setdefault(round(float(examples / width), 9), []).append((examples, width))
    frames = [
        pd.concat(
            [
                _rows(values.sel(examples=[examples], width=width), f"P/N = {number(ratio)}")
                for examples, width in points
            ]
        )
        for ratio, points in sorted(pairs.items())
        if len(points) >= FEWEST
    ]
    return pd.concat(frames).dropna(subset=["value"]) if frames else pd.DataFrame()


def _draw(frame: pd.DataFrame, title: str) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import lines

    by_kind = {"series": "kind", "panel": "curve"} if "kind" in frame else {"series": "curve"}
    return lines(
        frame,
        "examples",
        "value",
        **by_kind,
        log=True,
        low="low",
        high="high",
        titles=_LABELS | {"value": f"{title}, median"},
    )
