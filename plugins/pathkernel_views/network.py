"""The chart of a network: its strongest paths through the heads of its layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from pathkernel_views.chart import GREY, PALETTE, unvalidated
from pathkernel_views.picture import HALF, Picture, computed, field

_STRONGEST = 8  # maximum number of paths in the chart


@unvalidated()
def network(
    frame: pd.DataFrame, path: str, strength: str, heads: Sequence[int], **settings: Any
) -> alt.TopLevelMixin:
    """Draw the strongest paths through the heads of the layers, input below and output above.

    Parameters
    ----------
    path : str
        Column of the paths' names: their head in every layer, such as "1-2" or "skip-1".
    strength : str
        Column of weights, at least 0, shown as the widths of lines.
    heads : sequence of int
        Heads of each layer.
    """
    frame = computed(frame, strength)
    switches = list(settings.get("switches", ()))
    strengths = frame.groupby(switches)[strength] if switches else frame[strength]
    group = frame.groupby(switches, sort=False).ngroup() if switches else 0
    frame = frame.assign(rank=strengths.rank(method="first", ascending=False), group=group)
    frame = frame[frame["rank"] <= _STRONGEST].sort_values(["group", "rank"])
    frame = frame.drop(columns="group")
    picture = Picture(frame, **settings)
    levels = ["input", *(f"layer {layer + 1}" for layer in range(len(heads))), "output"]
    top, half = len(heads) + 1, (max(heads) + 1) / 2
    axis = alt.Axis(
        labelExpr=f"{json.dumps(levels)}[datum.value]",
        values=list(range(top + 1)),
        domain=False,
        ticks=False,
    )
    number = {"type": "quantitative", "title": None}
    above = number | {"axis": axis, "scale": alt.Scale(domain=[-0.4, top + 0.4])}
    label, width = 4.2 * picture.frame[path].str.len().max() + 30, HALF * 1.05
    right = half * (width + label) / (width - label)  # of the labels
    across = number | {"axis": None, "scale": alt.Scale(domain=[-half, right])}
    ranks = alt.Scale(domain=list(range(1, _STRONGEST + 1)), range=list(PALETTE))
    colour = alt.Color(field="rank", type="ordinal", legend=None, scale=ranks)
    thick = alt.Scale(domain=[0, float(picture.frame[strength].max())], range=[0.3, 7])
    paths = (
        alt.Chart()
        .transform_calculate(
            head_=f"split('1-' + {field(path)} + '-1', '-')",
            level_=f"sequence({len(levels)})",
            count_=json.dumps([1, *heads, 1]),
        )
        .transform_flatten(["head_", "level_", "count_"])
        .transform_calculate(  # skips pass left of the first head, paths of one head side by side
            x_="(toNumber(datum.head_) || 0.3) - (datum.count_ + 1) / 2 + 0.03 * (datum.rank - 4.5)"
        )
        .mark_line(opacity=0.85, strokeCap="round")
        .encode(
            x=alt.X(field="x_", **across),
            y=alt.Y(field="level_", **above),
            order=alt.Order(field="level_"),
            detail=alt.Detail(field=path),
            color=colour,
            strokeWidth=alt.StrokeWidth(field=strength, legend=None, scale=thick, **number),
            tooltip=picture.tips(path, strength),
        )
    )
    nodes = [
        {"x": head - (count + 1) / 2, "y": layer, "head": str(head)}
        for layer, count in enumerate(heads, start=1)
        for head in range(1, count + 1)
    ]
    node = alt.Chart(alt.InlineData(values=nodes)).encode(
        x=alt.X(field="x", **across), y=alt.Y(field="y", **above)
    )
    size = 120 if max(heads) <= 8 else 60
    texts = (
        alt.Chart()
        .transform_calculate(
            text_=f"{field(path)} + ':  ' + format({field(strength)}, '.3~g')",
            y_=f"{top + 0.1} - (datum.rank - 1) * {(top + 0.6) / _STRONGEST}",
        )
        .mark_text(align="right", fontSize=8, dx=-2)
        .encode(
            x=alt.value("width"),
            y=alt.Y(field="y_", **above),
            text=alt.Text(field="text_", type="nominal"),
            color=colour,
        )
    )
    layers = [
        paths,
        node.mark_circle(size=size, opacity=1, color="white", stroke=GREY, strokeWidth=1),
        node.mark_text(fontSize=7).encode(text=alt.Text(field="head", type="nominal")),
        texts,
    ]
    return picture.chart(layers, width, 46 * len(levels))
