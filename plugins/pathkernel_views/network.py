"""The chart of a network: its strongest paths through the heads of its layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from pathkernel_views.chart import INK, PALETTE, skip_validation
from pathkernel_views.chart_panels import text_width
from pathkernel_views.paths import STRONGEST
from pathkernel_views.picture import Picture, drop_missing, field

_ROW = 34  # points from one head to the next
_PITCH = 46  # points from one layer to the next, which a phone shows in letters that can be read
_BOX = 0.32  # half the width of a head's box, where layers are 1 apart
_STACK = 0.55  # of a row, the lines of all paths together
_THICKEST, _THINNEST, _GAP = 7.0, 0.5, 1.2  # points


@skip_validation()
def network(
    frame: pd.DataFrame, path: str, strength: str, heads: Sequence[int], **settings: Any
) -> alt.TopLevelMixin:
    """Draw the strongest paths through the heads of the layers, from the input to the output.

    Paths through one head run side by side behind its box, past a layer above its heads.

    Parameters
    ----------
    path : str
        Column of the paths' names: their head in every layer, such as "1-2" or "skip-1".
    strength : str
        Column of weights, at least 0, shown as the widths of lines.
    heads : sequence of int
        Heads of each layer.
    """
    frame = drop_missing(frame, strength)
    switches = list(settings.get("switches", ()))
    strengths = frame.groupby(switches)[strength] if switches else frame[strength]
    group = frame.groupby(switches, sort=False).ngroup() if switches else 0
    frame = frame.assign(rank=strengths.rank(method="first", ascending=False), group=group)
    frame = frame[frame["rank"] <= STRONGEST].sort_values(["group", "rank"])
    most = max(heads)
    # as thick as they are strong, and together as thick as a box has room for
    room = frame.groupby("group")[strength].transform("sum").max()
    thickest = min(_THICKEST, _STACK * _ROW * frame[strength].max() / max(room, 1e-300))
    thick = (thickest * frame[strength] / frame[strength].max()).clip(lower=_THINNEST)
    below = (thick + _GAP).groupby(frame["group"]).cumsum() - (thick + _GAP) / 2
    whole = (thick + _GAP).groupby(frame["group"]).transform("sum")
    frame = frame.assign(thick=thick, offset=(below - whole / 2) / _ROW).drop(columns="group")
    picture = Picture(frame, **settings)
    levels = ["input", *(f"layer {layer + 1}" for layer in range(len(heads))), "output"]
    skips = bool(picture.frame[path].astype(str).str.contains("skip").any())
    label = text_width("x" * int(picture.frame[path].astype(str).str.len().max()), 8) + 34
    # rows of heads downwards, levels from left to right, and the names of the paths at the right
    width = _PITCH * len(levels) + label
    end = (len(levels) - 0.5) + label / _PITCH
    number = {"type": "quantitative", "title": None, "axis": None}
    across = number | {"scale": alt.Scale(domain=[-0.5, end], nice=False)}
    top = -1.2 - 0.6 * skips
    down = number | {"scale": alt.Scale(domain=[top, most - 0.4], reverse=True, nice=False)}
    ranks = alt.Scale(domain=list(range(1, STRONGEST + 1)), range=list(PALETTE))
    colour = alt.Color(field="rank", type="ordinal", legend=None, scale=ranks)
    middle, past = (most - 1) / 2, -1.0
    counts = json.dumps([1, *heads, 1])
    paths = (
        alt.Chart()
        .transform_calculate(
            head_=f"split('1-' + {field(path)} + '-1', '-')",
            level_=f"sequence({len(levels)})",
            count_=counts,
            end_="[-1, 1]",
        )
        .transform_flatten(["head_", "level_", "count_"])
        .transform_flatten(["end_"])
        .transform_calculate(
            x_=f"datum.level_ + {_BOX} * datum.end_",
            y_=f"(toNumber(datum.head_) ? toNumber(datum.head_) - 1 + {middle} "
            f"- (datum.count_ - 1) / 2 : {past}) + datum.offset",
        )
        .mark_line(strokeCap="butt", strokeJoin="round")
        .encode(
            x=alt.X(field="x_", **across),
            y=alt.Y(field="y_", **down),
            order=alt.Order(field="x_"),
            detail=alt.Detail(field=path),
            color=colour,
            strokeWidth=alt.StrokeWidth(
                field="thick", type="quantitative", scale=None, legend=None
            ),
            tooltip=picture.tips(path, strength),
        )
    )
    boxes = [(0, middle, ""), (len(levels) - 1, middle, "")] + [
        (level, middle + n - (count - 1) / 2, f"head {n + 1}")
        for level, count in enumerate(heads, start=1)
        for n in range(count)
    ]
    nodes = [
        {"left": x - _BOX, "right": x + _BOX, "above": y - 0.36, "below": y + 0.36, "x": x, "y": y}
        | {"name": name or levels[x]}
        for x, y, name in boxes
    ]
    node = alt.Chart(alt.InlineData(values=nodes))
    box = node.mark_rect(fill="white", stroke=INK, strokeWidth=0.8, opacity=1, cornerRadius=3)
    box = box.encode(
        x=alt.X(field="left", **across),
        x2=alt.X2("right"),
        y=alt.Y(field="above", **down),
        y2=alt.Y2("below"),
    )
    name = node.mark_text(fontSize=8, aria=False).encode(
        x=alt.X(field="x", **across),
        y=alt.Y(field="y", **down),
        text=alt.Text(field="name", type="nominal"),
    )
    headings = [{"x": n, "y": top + 0.35, "name": levels[n]} for n in range(1, len(levels) - 1)]
    headings.append({"x": end, "y": top + 0.35, "name": picture.title(strength)})
    heading = alt.Chart(alt.InlineData(values=headings)).mark_text(
        fontSize=8, color=INK, align=alt.ExprRef(f"datum.x === {end} ? 'right' : 'center'")
    )
    heading = heading.encode(
        x=alt.X(field="x", **across),
        y=alt.Y(field="y", **down),
        text=alt.Text(field="name", type="nominal"),
    )
    named = alt.Chart().transform_calculate(
        text_=f"{field(path)} + ':  ' + format({field(strength)}, '.3~g')",
        y_=f"{top + 0.8} + (datum.rank - 1) * {(most - 1.4 - top) / STRONGEST}",
        x_=f"{end}",
    )
    x, y = alt.X(field="x_", **across), alt.Y(field="y_", **down)
    texts = named.mark_text(align="right", fontSize=8, dx=-10).encode(
        x=x, y=y, text=alt.Text(field="text_", type="nominal")
    )
    # letters in the colours of the lines would be too pale
    key = named.mark_point(shape="square", size=30, xOffset=-4, opacity=1, aria=False)
    key = key.encode(
        x=x, y=y, fill=alt.Fill(field="rank", type="ordinal", legend=None, scale=ranks)
    )
    height = max(_ROW * (most - 0.4 - top), 13 * (STRONGEST + 2))
    return picture.chart([paths, box, name, heading, texts, key], width, height, exact=True)
