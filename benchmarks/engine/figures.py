"""Figures of ``benchmarks.engine``: this engine as lines, the sources as circles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from benchmarks.engine.data import (
    DEPTHS,
    NARROW,
    STRENGTHS,
    VARIANCES,
    WIDTHS,
    Branches,
    Convolution,
    DeepLinear,
    Gated,
)
from pathkernel_views.chart import PALETTE, Chart, save_charts
from pathkernel_views.picture import HALF, inline
from pathkernel_views.primitives import heatmaps

OURS, SOURCE = "engine", "source"
CHANNELS = (2, 3, 5, 7, 10, 14, 20, 30, 50, 100, 200, 500, 1000)
GATES = (2, 5, 10)
FINE = tuple(np.unique(np.round(np.geomspace(3, 1000, 25))).tolist())
PATCHES = ("top left", "top right", "bottom left", "bottom right")
TICKS = {  # of widths, by whether they span many decades
    False: (3, 10, 30, 100, 300, 1000),
    True: (0.001, 0.01, 0.1, 1, 10, 100, 1000, 10_000),
}
Curves = Callable[[Sequence[float]], Iterable[Sequence[float]]]


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
            "Gated linear network: test error (lines: this engine, circles: PyTorch)",
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


def curves(by: dict[str, tuple[Curves, Sequence[float]]], names: Sequence[str]) -> pd.DataFrame:
    """Long table of both sides; a function gives a value for each name at each of its widths."""
    rows = [
        (side, name, width, value)
        for side, (function, widths) in by.items()
        for width, values in zip(widths, function(widths), strict=True)
        for name, value in zip(names, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=["by", "name", "x", "value"])


def drawn(
    frame: pd.DataFrame,
    titles: tuple[str, str, str],
    *,
    log_y: bool = False,
    levels: Sequence[float] = (),
    width: int = HALF,
) -> alt.LayerChart:
    """Lines of the engine and circles of the source, a colour for each name.

    Titles are those of x, of y and of the legend; levels are dashed lines of the same names.
    """
    names = list(frame["name"].unique())
    colour = alt.Color(
        "name:N",
        scale=alt.Scale(domain=names, range=list(PALETTE[: len(names)])),
        legend=alt.Legend(title=titles[2], titleLimit=0),
    )
    ends = frame["x"].min(), frame["x"].max()
    values = [*frame["value"], *levels]
    scale = alt.Scale(type="linear", zero=False)
    if log_y:
        scale = alt.Scale(type="log", domain=[0.9 * min(values), 1.1 * max(values)])
    ticks = TICKS[ends[1] > 1e4 * ends[0]]
    ticks = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
    axis = alt.Axis(format="~g", values=ticks, labelFlush=False)
    across = alt.X("x:Q", title=titles[0], axis=axis)
    across.scale = alt.Scale(type="log", domain=list(ends), nice=False)
    up = alt.Y("value:Q", title=titles[1], scale=scale, axis=alt.Axis(format="~g", tickCount=5))
    base = alt.Chart(inline(frame)).encode(x=across, y=up, color=colour)
    layers = [
        base.transform_filter(alt.datum.by == OURS).mark_line(strokeWidth=1.5),
        base.transform_filter(alt.datum.by == SOURCE).mark_point(
            size=45, filled=False, opacity=1, strokeWidth=1.5
        ),
    ]
    if levels:
        rules = alt.Chart(inline(pd.DataFrame({"name": names, "value": levels})))
        layers.append(rules.mark_rule(strokeDash=[3, 3]).encode(y=up, color=colour))
    return alt.layer(*layers).properties(width=width, height=160)


def convolution() -> alt.HConcatChart:
    """U of four patches against the channels, and of sixteen on the image."""
    data = Convolution.drawn(200, side=14)
    by = {
        OURS: (_of(data.order_parameters, np.diag), CHANNELS),
        SOURCE: (_of(data.direct, np.diag), CHANNELS[::2]),
    }
    titles = "channels N_c", "U of a patch with itself", "patch of 14 × 14 pixels"
    lines = drawn(curves(by, PATCHES), titles)
    (u,) = Convolution.drawn(100, side=7).order_parameters((20,))
    rows, columns = np.indices((4, 4)).reshape(2, -1) + 1
    cells = {"row": rows.astype(str), "column": columns.astype(str), "U": np.diag(u)}
    heat = heatmaps(pd.DataFrame(cells), "column", "row", "U")
    heat = heat.properties(title="U of 16 patches of 7 × 7 pixels, N_c = 20")
    return alt.hconcat(lines, heat, spacing=30).resolve_scale(color="independent")


def gates() -> alt.HConcatChart:
    """Test error of networks whose first two gates are the right ones."""
    data = [Gated.drawn(count) for count in GATES]
    by = {
        OURS: (lambda widths: zip(*(one.errors(widths) for one in data)), FINE),
        SOURCE: (lambda widths: zip(*(one.source_errors(widths) for one in data)), WIDTHS),
    }
    titles = "width N", "squared error on new examples", "gates, of which two are the right ones"
    return alt.hconcat(drawn(curves(by, list(map(str, GATES))), titles, width=320))


def depth() -> alt.HConcatChart:
    """Scalar renormalisation of a layer."""
    data = DeepLinear.drawn()
    by = {
        OURS: (lambda widths: zip(*(data.scalars(layers, widths) for layers in DEPTHS)), FINE),
        SOURCE: (lambda widths: zip(*(data.source(layers, widths) for layers in DEPTHS)), WIDTHS),
    }
    titles = "width N", "u of a layer", "hidden layers L"
    return alt.hconcat(drawn(curves(by, list(map(str, DEPTHS))), titles, width=320))


def branches() -> alt.HConcatChart:
    """Order parameters of branches, and those of their teacher."""
    data = Branches.drawn()
    names = [f"{strength:g}" for strength in STRENGTHS]
    titles = "width N", "u of a branch", "strength of the branch in the teacher; dashed: its u"
    panels = []
    for variance in VARIANCES:
        by = {
            OURS: (partial(data.order_parameters, variance), NARROW),
            SOURCE: (partial(data.source, variance), NARROW),
        }
        panel = drawn(curves(by, names), titles, log_y=True, levels=data.teacher.tolist())
        panels.append(panel.properties(title=f"prior variance σ² = {variance:g}"))
    return alt.hconcat(*panels, spacing=30).resolve_scale(y="shared")


def _of(function: Curves, part: Callable[[np.ndarray], np.ndarray]) -> Curves:
    """Part of each of the arrays that a function returns."""
    return lambda widths: map(part, function(widths))
