"""Tables and figure of ``benchmarks.heads``: losses, paired differences and costs of orders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from benchmarks.heads.orders import REFERENCE

RESULTS = Path(__file__).parents[1] / "results"
"""Folder of results that are committed."""

SIZES = ("large", "small")
"""Sizes of a draw of examples."""

TREATMENTS = ("plain", "refitted", "fine-tuned")
"""What is measured without heads: gains of 1, refitted gains, and these after an epoch."""

WHOLE = "whole"
"""Name of the measurement of the whole model."""

_SEARCHES = "choose_heads", "no exchanges"
"""The order of the two that exchanges heads at the end, and the other."""

_HIGHLIGHTED = {  # orders of the figure, and their colours
    "choose_heads": "#d95f02",
    "no exchanges": "#e7298a",
    REFERENCE: "#1b9e77",
    "Torch-Pruning Taylor": "#7570b3",
    "Torch-Pruning magnitude": "#e6ab02",
    "gradient by layer": "#66a61e",
    "random": "#222222",
}
_OTHERS = "other orders"


def write_results(
    folder: Path, models: Sequence[str], orders: Sequence[str], results: Path
) -> Iterator[Path]:
    """Write ``heads.csv``, ``heads.md`` and ``heads.png``, and yield their paths."""
    frame = read_measurements(folder, models, orders)
    results.mkdir(parents=True, exist_ok=True)
    frame.to_csv(results / "heads.csv", index=False, float_format="%.5g")
    yield results / "heads.csv"
    lines = [*_markdown(frame), *_exchanges(folder, models)]
    (results / "heads.md").write_text("\n".join(lines), encoding="utf-8")
    yield results / "heads.md"
    figure(frame).save(results / "heads.png", scale_factor=1.5)
    yield results / "heads.png"


def read_measurements(folder: Path, models: Sequence[str], orders: Sequence[str]) -> pd.DataFrame:
    """Read the measurements of a folder, a row for model, size, order, treatment and quarter."""
    frame = pd.concat([_of_model(folder / name, orders) for name in models], ignore_index=True)
    if frame.empty:
        raise ValueError(f"{folder} holds no measurements")
    return frame


def _of_model(folder: Path, orders: Sequence[str], reference: str = REFERENCE) -> pd.DataFrame:
    """Rows of a model: size, order, treatment and quarter, with means over draws and examples."""
    rows = []
    for size in SIZES:
        draws = [_read(draw) for draw in sorted(folder.glob(f"{size}-draw*"))]
        for order in orders:
            names = {WHOLE, order, reference}
            shared = [draw for draw in draws if names <= draw.keys()]  # differences are paired
            if shared:
                whole, values, compared = (
                    {key: np.array([draw[name][key] for draw in shared]) for key in shared[0][name]}
                    for name in (WHOLE, order, reference)
                )
                rows += _rows(folder.name, size, order, whole, values, compared)
    return pd.DataFrame(rows)


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    """Arrays of a draw by order, of all orders that are measured and defined."""
    by_order = {}
    for file in folder.glob("*.npz"):
        with np.load(file) as arrays:
            about = json.loads(str(arrays["about"]))
            values = {name: arrays[name] for name in arrays.files if name != "about"}
        about.pop("removed", None)  # of different lengths
        if values:
            by_order[about["order"]] = values | about
    return by_order


def _rows(
    name: str, size: str, order: str, whole: dict, values: dict, reference: dict
) -> Iterator[dict[str, Any]]:
    """Rows of an order, from arrays with the draws first."""
    measured = min(values["loss"].shape[1], reference["loss"].shape[1])
    for number, treatment in enumerate(TREATMENTS[:measured]):
        # whoever removes heads by trial can refit them, too
        like = max(number, 1)
        for index, count in enumerate(values["counts"][0]):
            difference, error = paired(
                values["loss"][:, number, index] - reference["loss"][:, like, index]
            )
            passes, seconds = values["cost"][:, number, index].mean(axis=0)
            yield {
                "model": name,
                "kind": whole["kind"][0],
                "size": size,
                "examples": int(whole["examples"][0]),
                "draws": len(whole["loss"]),
                "order": order,
                "treatment": treatment,
                "quarters": index + 1,
                "removed": int(count),
                "heads": int(whole["heads"][0]),
                "whole_loss": whole["loss"].mean(),
                "loss": values["loss"][:, number, index].mean(),
                "difference": difference,
                "error": error,
                "whole_accuracy": whole["accuracy"].mean(),
                "accuracy": values["accuracy"][:, number, index].mean(),
                "passes": passes,
                "cpu_seconds": seconds,
            }


def paired(differences: np.ndarray) -> tuple[float, float]:
    """Mean of differences (draws, examples), and its standard error over draws and examples."""
    draws, examples = differences.shape
    variance = differences.mean(axis=0).var(ddof=1) / examples
    if draws > 1:
        variance += differences.mean(axis=1).var(ddof=1) / draws
    return float(differences.mean()), float(np.sqrt(variance))


def _markdown(frame: pd.DataFrame) -> Iterator[str]:
    yield "# Orders of heads"
    yield ""
    yield (
        "Loss on test examples with a quarter, half and three quarters of the heads off: plain, "
        "with refitted gains, and after an epoch of fine-tuning with these; its difference from "
        "greedy by trial, one at a time, with refit, and of both fine-tuned (standard error over "
        "draws and examples), at half; accuracy with refit, passes and CPU seconds of the choice "
        "and the refit, at half."
    )
    for size in SIZES:
        part = frame[(frame["size"] == size)]
        if len(part):
            yield from _summary(part, size)
            for _, of_model in part.groupby("model", sort=False):
                yield from _table(of_model)


def _exchanges(folder: Path, models: Sequence[str]) -> Iterator[str]:
    """What exchanges of heads change in the loss with refitted gains, if both were measured."""
    order, without = _SEARCHES
    frame = pd.concat([_of_model(folder / name, [order], without) for name in models])
    if frame.empty:
        return
    yield from ("", "## Exchanges of heads", "")
    yield "Loss of `choose_heads` less that without exchanges, with refitted gains."
    yield from ("", "| model | draws | number | a quarter off | half | three quarters |")
    yield "| --- | --- | --- | --- | --- | --- |"
    refitted = frame[frame["treatment"] == TREATMENTS[1]]
    for (model, size), rows in refitted.groupby(["model", "size"], sort=False):
        cells = [f"{row.difference:+.4f} ± {row.error:.4f}" for row in rows.itertuples()]
        yield f"| {model} | {size} | {rows['draws'].iloc[0]} | {' | '.join(cells)} |"


def _summary(frame: pd.DataFrame, size: str) -> Iterator[str]:
    """For every order, on how many models it is worse and better than the reference, at half."""
    yield from ("", f"## All models, {size} draws", "")
    yield "| order | gains | worse | alike | better | rise / that of the reference | passes |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    half = frame[frame["quarters"] == 2].copy()
    half["ratio"] = _rise_ratios(half)
    for (order, treatment), rows in half.groupby(["order", "treatment"], sort=False):
        worse = int((rows["difference"] > 2 * rows["error"]).sum())
        better = int((rows["difference"] < -2 * rows["error"]).sum())
        yield (
            f"| {order} | {treatment} | {worse} | {len(rows) - worse - better} | "
            f"{better} | {rows['ratio'].median():.2f} | {rows['passes'].median():.0f} |"
        )


def _table(frame: pd.DataFrame) -> Iterator[str]:
    first = frame.iloc[0]
    quarters = sorted(frame["quarters"].unique())
    counts = [int(frame[frame["quarters"] == quarter]["removed"].iloc[0]) for quarter in quarters]
    yield ""
    yield f"## {first['model']} ({first['kind']}), draws of {first['examples']}"
    yield ""
    yield (
        f"{first['heads']} heads; the whole model has loss {first['whole_loss']:.3f}, accuracy "
        f"{first['whole_accuracy']:.3f}."
    )
    yield ""
    heading = ["order", "draws", *(f"{count} off" for count in counts), "… refitted"]
    heading += ["accuracy", "difference", "passes", "CPU s", "… fine-tuned", "difference"]
    yield f"| {' | '.join(heading)} |"
    yield f"|{' --- |' * len(heading)}"
    for order, rows in frame.groupby("order", sort=False):
        plain, refitted, tuned = (rows[rows["treatment"] == name] for name in TREATMENTS)
        half = refitted[refitted["quarters"] == 2].iloc[0]
        cells = [str(half["draws"]), *(f"{loss:.3f}" for loss in plain["loss"]), _losses(refitted)]
        cells += [f"{half['accuracy']:.3f}", _difference(refitted)]
        cells += [f"{half['passes']:.0f}", f"{half['cpu_seconds']:.1f}"]
        cells += [_losses(tuned), _difference(tuned)]
        yield f"| {order} | {' | '.join(cells)} |"


def _losses(rows: pd.DataFrame) -> str:
    return ", ".join(f"{loss:.3f}" for loss in rows["loss"]) or "–"


def _difference(rows: pd.DataFrame) -> str:
    """Difference from the reference at half, with its error."""
    half = rows[rows["quarters"] == 2]
    return "".join(f"{row.difference:+.3f} ± {row.error:.3f}" for row in half.itertuples()) or "–"


def figure(frame: pd.DataFrame) -> alt.TopLevelMixin:
    """Rise of the loss over that of the reference, at half off, against passes; large draws.

    A panel for each model. Orders that are not among the highlighted are grey.
    """
    is_large = frame["size"] == frame["size"].iloc[0]
    part = frame[is_large & (frame["quarters"] == 2) & (frame["treatment"] != "fine-tuned")].copy()
    part["ratio"] = _rise_ratios(part)
    part["gains"] = part["treatment"]
    part["passes"] = part["passes"].clip(lower=0.5)  # random orders, on a logarithmic axis
    part["heads off by"] = part["order"].where(part["order"].isin(_HIGHLIGHTED), _OTHERS)
    # the highlighted are drawn last, over the others
    part = part.sort_values("heads off by", key=lambda names: names != _OTHERS, kind="stable")
    colours = alt.Scale(domain=[*_HIGHLIGHTED, _OTHERS], range=[*_HIGHLIGHTED.values(), "#c8c8c8"])
    ratio = alt.Y("ratio:Q", title="rise of the loss, half off / by greedy")
    points = alt.Chart(part).mark_point(filled=True, size=70, opacity=1, clip=True)
    return (
        points.encode(
            x=alt.X("passes:Q", title="passes of the examples")
            .scale(type="log", domain=[0.4, 3000])
            .axis(values=[1, 10, 100, 1000]),
            y=ratio.scale(type="log", domain=[0.4, 10]).axis(values=[0.5, 1, 2, 5, 10]),
            color=alt.Color("heads off by:N", scale=colours),
            shape=alt.Shape("gains:N", title="gains"),
        )
        .properties(width=240, height=200)
        .facet(alt.Facet("model:N", sort=list(frame["model"].unique()), title=None), columns=3)
    )


def _rise_ratios(half: pd.DataFrame) -> pd.Series:
    """Rise of the loss over that of the reference with refitted gains, of rows of one quarter.

    Those of fine-tuned models are over that of the reference fine-tuned, and NaN where that falls.
    """
    rises = half["loss"] - half["whole_loss"]
    tuned = half["treatment"] == "fine-tuned"
    ratios = pd.Series(np.nan, half.index)
    for rows, like in ((~tuned, "refitted"), (tuned, "fine-tuned")):
        is_like = (half["order"] == REFERENCE) & (half["treatment"] == like)
        of_reference = rises[is_like].groupby(half["model"]).first()
        ratios[rows] = (rises / half["model"].map(of_reference.where(of_reference > 0)))[rows]
    return ratios
