"""Figures of ``benchmarks.engine``: this engine as lines, the sources as circles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

import pathkernel as pk
from benchmarks import engine, sources
from pathkernel_views.chart import GREY, PALETTE, Chart, save_charts
from pathkernel_views.picture import HALF, inline
from pathkernel_views.primitives import heatmaps

OURS, SOURCE = "engine", "source"
CHANNELS = (2, 3, 5, 7, 10, 14, 20, 30, 50, 100, 200, 500, 1000)
FINE = tuple(np.unique(np.round(np.geomspace(3, 1000, 25))).tolist())
NAMES = ("top left", "top right", "bottom left", "bottom right")
Curve = Callable[[float], Sequence[float]]


def save_figures(folder: str) -> None:
    """Write the four figures as PNG files."""
    charts = [
        Chart(
            "engine-convolution",
            "Convolution: renormalisation of patches (lines: this engine, circles: PyTorch)",
            "Diagonal of U over the patches of digits, and against the number of channels.",
            convolution,
        ),
        Chart(
            "engine-gates",
            "Gated linear network: test error (lines: this engine, circles: saddle point by SciPy)",
            "Mean squared error against width for three numbers of gates.",
            gates,
        ),
        Chart(
            "engine-depth",
            "Deep linear network: u of each layer (lines: this engine, circles: closed form)",
            "Scalar renormalisation against width at four depths.",
            depth,
        ),
        Chart(
            "engine-branches",
            "Branches: u of each branch (lines: this engine, circles: saddle point by SciPy)",
            "Order parameters of four branches against width, for two prior variances.",
            branches,
        ),
    ]
    save_charts(charts, folder, print, formats=("png",), dpi=180)


def curves(by: dict[str, tuple[Curve, Iterable[float]]], names: Sequence[str]) -> pd.DataFrame:
    """Long table of the values, one for each name, by both sides at their widths."""
    rows = [
        (side, name, x, value)
        for side, (curve, widths) in by.items()
        for x in widths
        for name, value in zip(names, curve(x), strict=True)
    ]
    return pd.DataFrame(rows, columns=["by", "name", "x", "value"])


def drawn(
    frame: pd.DataFrame, x: str, y: str, legend: str, log_y: bool = False, width: int = HALF
) -> alt.LayerChart:
    """Lines of the engine and circles of the source, a colour for each name."""
    colour = alt.Color(
        "name:N",
        scale=alt.Scale(domain=list(frame["name"].unique()), range=list(PALETTE)),
        legend=alt.Legend(title=legend),
    )
    values = frame["value"]
    low, high = (values.min(), values.max()) if log_y else (values.min(), values.max())
    up = alt.Scale(type="log" if log_y else "linear", domain=[low, high], nice=not log_y)
    base = alt.Chart(inline(frame)).encode(
        x=alt.X("x:Q", title=x, scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")),
        y=alt.Y("value:Q", title=y, scale=up, axis=alt.Axis(format="~g")),
        color=colour,
    )
    line = base.transform_filter(alt.datum.by == OURS).mark_line()
    circles = base.transform_filter(alt.datum.by == SOURCE).mark_point(size=40, opacity=1)
    return alt.layer(line, circles).properties(width=width, height=160)


def convolution() -> alt.HConcatChart:
    temperature = 0.1

    def diagonal(side: int, examples: int, direct: bool, channels: float) -> np.ndarray:
        data = engine.images(examples)
        tokens = engine.patches(data.train, side)
        if direct:
            kernels = sources.erf_kernels(tokens)
            return np.diag(sources.direct_minimum(kernels, data.labels, channels, temperature))
        kernels = pk.path_kernels(tokens, engine.patch_layers(tokens), "erf")
        problem = pk.PathKernels.from_kernels(kernels, data.labels)
        network = pk.Network((tokens.shape[1],), (channels, math.inf))
        return np.diag(pk.minimise_action(problem, network, temperature).order_parameter)

    by = {
        OURS: (partial(diagonal, 14, 200, False), CHANNELS),
        SOURCE: (partial(diagonal, 14, 200, True), CHANNELS[::2]),
    }
    lines = drawn(curves(by, NAMES), "channels N_c", "U of a patch with itself", "patch of 14 × 14")
    grid = diagonal(7, 100, False, 20).reshape(4, 4)
    rows, columns = np.indices(grid.shape).reshape(2, -1) + 1
    cells = {"row": rows.astype(str), "column": columns.astype(str), "value": grid.ravel()}
    titles = {"row": "row of the patch", "column": "column of the patch", "value": "U"}
    heat = heatmaps(pd.DataFrame(cells), "column", "row", "value", titles=titles)
    heat = heat.properties(title="16 patches of 7 × 7, N_c = 20")
    return alt.hconcat(lines, heat, spacing=30).resolve_scale(color="independent")


def gates() -> alt.HConcatChart:
    data = [engine.GatedData.drawn(count) for count in engine.GATES]
    by = {
        OURS: (lambda width: [one.error(width) for one in data], FINE),
        SOURCE: (lambda width: [one.source_error(width) for one in data], engine.WIDTHS[::2]),
    }
    names = [str(count) for count in engine.GATES]
    chart = drawn(curves(by, names), "width N", "mean squared error", "gates", width=320)
    return alt.hconcat(chart)


def depth() -> alt.HConcatChart:
    data = engine.LinearData.drawn()
    by = {
        side: (lambda width, curve=curve: [curve(layers, width) for layers in engine.DEPTHS], at)
        for side, curve, at in (
            (OURS, data.renormalisation, FINE),
            (SOURCE, data.source, engine.WIDTHS),
        )
    }
    names = [str(layers) for layers in engine.DEPTHS]
    chart = drawn(curves(by, names), "width N", "u of a layer", "hidden layers L", width=320)
    return alt.hconcat(chart)


def branches() -> alt.HConcatChart:
    data = engine.BranchData.drawn()
    names = [f"{strength:g}" for strength in engine.STRENGTHS]
    panels = []
    for variance in engine.VARIANCES:
        ours, source = (
            dict(zip(engine.NARROW, side(variance, engine.NARROW)))
            for side in (data.order_parameters, data.source)
        )
        by = {OURS: (ours.get, engine.NARROW), SOURCE: (source.get, engine.NARROW[::2])}
        legend = "strength of the branch in the teacher (dashed: its u)"
        panel = drawn(curves(by, names), "width N", "u of a branch", legend, log_y=True)
        teacher = pd.DataFrame({"name": names, "value": data.teacher})
        rules = alt.Chart(inline(teacher)).mark_rule(strokeDash=[3, 3], color=GREY)
        panel = alt.layer(rules.encode(y="value:Q"), panel)
        panels.append(panel.properties(title=f"prior variance σ² = {variance:g}", height=180))
    return alt.hconcat(*panels).resolve_scale(y="shared")
