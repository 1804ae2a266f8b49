"""Kinds of charts: a long DataFrame and names of columns in, an Altair chart out.

>>> import pandas as pd
>>> import pathkernel as pk
>>> frame = pd.DataFrame({"network": ["theory"] * 2 + ["GP limit"], "width": [10, 100, None],
...                       "mean": [0.9, 0.8, 0.7], "low": [0.85, 0.7, 0.65],
...                       "high": [0.95, 0.9, 0.75], "seed": [0, 0, 0]})
>>> chart = pk.lines(frame, "width", "mean", low="low", high="high", series="network", log=True,
...                  switches=("seed",), titles={"width": "width N", "mean": "accuracy"})

Settings of all of them:

- ``series``: column shown by colour, dash and marker, with colours by meaning
  (:data:`pathkernel_views.chart.MEANINGS`);
- ``panel``: column with a panel for each value;
- ``switches``: columns of which one value at a time is shown, at first the frame's first;
- ``titles``: titles of columns at axes and in tooltips, by default the labels of the frame;
- ``low``, ``high``: columns of the ends of ranges;
- ``columns``: maximum number of panels in a row.

Values are ordered as in the frame.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from pathkernel_views.chart import BLACK, GREY, INK, unvalidated
from pathkernel_views.picture import (
    FULL,
    HALF,
    Picture,
    computed,
    distinct,
    field,
    inline,
    scale_of,
)

_LABELLED = 27  # largest heat map with names at its rows
_WITH_VALUES = 8  # largest heat map with values in its cells
_NAMED_POINTS = 24
_FEW_POINTS = 200  # above this, markers are smaller
_ASIDE = 4  # points between the error bars of two series
_FEW_TICKS = 12  # up to this, every value along an axis has a tick


@unvalidated()
def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    log: bool = False,
    log_y: bool = False,
    bands: bool | Collection[str] = True,
    hollow: str = "",
    markers: bool = True,
    same_y: bool = True,
    steps: bool = False,
    **settings: Any,
) -> alt.TopLevelMixin:
    """Draw lines along x, with the range from ``low`` to ``high``.

    A row without x is a limit: a dashed line across the panel, with its range as a band. If x is
    text, points are drawn side by side instead of lines.

    Parameters
    ----------
    bands : bool or collection of str
        Whether ranges are drawn as bands instead of bars, or the series whose ranges are.
    hollow : str
        Column of booleans: rows with hollow markers, such as minimisations that failed.
    markers : bool
        Whether lines have markers at their points.
    same_y : bool
        Whether all panels have the same scale.
    steps : bool
        Whether lines are steps, as in histograms.
    """
    if hollow:
        frame = frame.astype({hollow: int})
    picture = Picture(computed(frame, y), **settings)
    frame, ends = picture.frame, picture.ends
    is_text = not pd.api.types.is_numeric_dtype(frame[x])
    values = distinct(frame.dropna(subset=[x]), x)
    if is_text:
        along = alt.X(field=x, type="ordinal", sort=values, axis=alt.Axis(labelAngle=0))
    else:
        axis = alt.Axis(
            labelOverlap="greedy", labelSeparation=4, format=".6~r"
        )  # else rounded to the step
        if 0 < len(values) <= _FEW_TICKS:
            axis.values = sorted(values)
        scale = scale_of(frame[[x]], log, nice=False)
        along = alt.X(field=x, type="quantitative", scale=scale, axis=axis)
    along.title = picture.title(x)
    scale = scale_of(frame[[y, *ends] if same_y else []], log_y)
    vertical = picture.measured(y) | {"scale": scale}
    up = alt.Y(field=y, **vertical)
    if log_y:
        up.axis = alt.Axis(format="~g", tickCount=3)

    # Error bars of several series at one x would hide each other: they stand side by side, shifted
    # by an expression in pixels, since Vega's xOffset needs an axis of names. Bands need no shift,
    # but a band over a single x has no width
    counts = frame.groupby(picture.series)[x].nunique()
    if isinstance(bands, bool):
        bands = picture.names if bands else []
    banded = [name for name in picture.names if name in bands and counts[name] > 1 and not is_text]
    apart = [name for name in picture.names if (ends or is_text) and name not in banded]
    number = f"indexof({json.dumps(apart)}, {field(picture.series)})"
    middle = (len(apart) - 1) / 2
    offset = alt.ExprRef(f"{number} < 0 ? 0 : {_ASIDE} * ({number} - {middle})")
    tips = picture.tips(picture.series, x, y, *ends)
    limits = alt.Chart().transform_filter(f"!isValid({field(x)})").encode(tooltip=tips)
    curves = alt.Chart().transform_filter(f"isValid({field(x)})").encode(x=along, tooltip=tips)
    stroke, fill, dash, shape = picture.series_channels()
    line = {"stroke": stroke, "strokeDash": dash}
    width = 1.4 if markers or steps else 0.5
    of_limits = [limits.mark_rule(strokeWidth=width).encode(y=up, **line)]
    layers = []
    if ends:
        reach = picture.range(**vertical)
        band, bar = (curves.transform_filter(number + test) for test in (" < 0", " >= 0"))
        of_limits.insert(0, limits.mark_rect(opacity=0.13).encode(fill=fill, **reach))
        layers = [
            band.mark_area(opacity=0.2).encode(fill=fill, **reach),
            bar.mark_rule(xOffset=offset).encode(stroke=stroke, **reach),
        ]
    layers += of_limits * bool(frame[x].isna().any())  # without data they have no scale
    curves = curves.encode(y=up)
    if not is_text:
        style = {"xOffset": offset, "interpolate": "step" if steps else "linear"}
        layers.append(curves.mark_line(strokeWidth=width, **style).encode(**line))
    if markers:
        inside = fill.copy()
        if hollow:  # white, not transparent, which would show the line through the marker
            inside.condition = {"test": f"{field(hollow)} > 0", "value": "white"}
        # the stroke of limits in the legend is that of the markers
        point = curves.mark_point(opacity=1, xOffset=offset, size=14, strokeWidth=1.2)
        layers.append(point.encode(shape=shape, fill=inside, stroke=stroke))
        layers.append(curves.mark_circle(opacity=0, size=200, aria=False))  # to point at
    resolve = {} if same_y else {"y": "independent"}
    return picture.chart(layers, HALF * 0.95, 140, **resolve)


@unvalidated()
def bars(frame: pd.DataFrame, x: str, y: str, **settings: Any) -> alt.TopLevelMixin:
    """Draw a group of bars for each head, with whiskers from ``low`` to ``high``."""
    picture = Picture(computed(frame, y), **{"columns": 6} | settings)
    scale = scale_of(picture.frame[[y, *picture.ends]].assign(zero=0.0))
    axis = alt.Axis(labelAngle=0, labelOverlap=True)
    heads = distinct(picture.frame, x)
    _, fill, *_ = picture.series_channels()
    base = alt.Chart().encode(
        x=alt.X(field=x, type="ordinal", sort=heads, title=picture.title(x), axis=axis),
        xOffset=alt.XOffset(field=picture.series, type="nominal", sort=picture.names),
        y=alt.Y(field=y, **picture.measured(y), scale=scale),
        tooltip=picture.tips(picture.panel, x, picture.series, y, *picture.ends),
    )
    layers = [base.mark_bar().encode(fill=fill)]
    if picture.ends:
        whisker = base.mark_rule(color=INK, strokeWidth=0.8)
        layers.append(whisker.encode(**picture.range(**picture.measured(y))))
    width = max(HALF / picture.columns, len(heads) * (4 + 9 * len(picture.names)))
    return picture.chart(layers, width, 120, x="independent", xOffset="independent")


@unvalidated()
def points(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    name: str = "",
    reference: Literal["diagonal", "zero", ""] = "diagonal",
    same_x: bool = True,
    **settings: Any,
) -> alt.TopLevelMixin:
    """Draw points with the range from ``low`` to ``high``, and a reference line.

    Parameters
    ----------
    name : str
        Column of names, printed next to the points while there is room.
    reference : str
        The diagonal, of axes of one scale; the line y = 0; or none.
    same_x : bool
        Whether all panels have the same scale along x.
    """
    frame, side = computed(frame, x, y), HALF * 0.75
    is_named = bool(name) and frame[name].nunique() <= _NAMED_POINTS
    if is_named:
        frame = frame.reset_index(drop=True).assign(dx_=0.0, dy_=0.0)
        low, high = (settings.get(end) or y for end in ("low", "high"))
        # names avoid those of the same panel and setting, which alone are shown together; Vega does
        # not place labels, so that positions in points are worked out here
        groups = [*filter(None, [settings.get("panel")]), *settings.get("switches", ())]
        for _, rows in frame.groupby(groups) if groups else [("", frame)]:
            across = 0.85 * side / max(np.ptp((frame if same_x else rows)[x]), 1e-300)
            down = side / max(frame[high].max() - frame[low].min(), 1e-300)
            positions = rows[[x, y, low, high]].to_numpy(dtype=float) * [across, *[-down] * 3]
            frame.loc[rows.index, ["dx_", "dy_"]] = _name_shifts(positions, rows[name])
    picture = Picture(frame, **settings)
    frame, ends = picture.frame, picture.ends
    up, along = scale_of(frame[[y, *ends]]), scale_of(frame[[x] if same_x else []])
    line = alt.Chart().mark_rule(color=GREY, strokeDash=[2, 2], strokeWidth=0.8, aria=False)
    layers = []
    if reference == "diagonal":
        up = along = scale_of(frame[[x, y, *ends]], nice=False)
        start = alt.datum(up.domain[0], type="quantitative")
        end = alt.datum(up.domain[1])
        layers = [line.encode(x=start, y=start, x2=end, y2=end)]
    elif reference == "zero":
        layers = [line.encode(y=alt.datum(0, type="quantitative"))]
    base = alt.Chart().encode(
        x=alt.X(field=x, **picture.measured(x), scale=along),
        y=alt.Y(field=y, **picture.measured(y), scale=up),
        tooltip=picture.tips(name, picture.panel, picture.series, x, y, *ends),
    )
    stroke, fill, _, shape = picture.series_channels()
    if ends:
        whisker = base.mark_rule(strokeWidth=0.6).encode(stroke=stroke)
        layers.append(whisker.encode(**picture.range(**picture.measured(y))))
    point = base.mark_point(opacity=0.8, size=20 if len(frame) <= _FEW_POINTS else 6)
    layers.append(point.encode(shape=shape, fill=fill, stroke=stroke))
    if is_named:
        shift = {key: alt.ExprRef(f"datum.{key}_") for key in ("dx", "dy")}
        text = base.transform_filter("isValid(datum.dx_)").mark_text(fontSize=7, color=INK, **shift)
        layers.append(text.encode(text=alt.Text(field=name, type="nominal")))
    resolve = {} if same_x else {"x": "independent"}
    return picture.chart(layers, side, side, **resolve)


def _name_shifts(positions: np.ndarray, names: pd.Series) -> list[tuple[float, float]]:
    """Shift names from their points so that they overlap fewest points, error bars and names.

    NaN where there is no name, or no room for it. ``positions`` (points, 4) are x, y and the ends
    of the error bar, downwards, in points.
    """
    # greedy, name by name in the order of the frame: each takes the first of ten places that covers
    # least, and is itself in the way of those that follow
    x, _, low, high = positions.T
    centres = list(np.stack([x, (low + high) / 2], axis=1))
    halves = [np.array([2.5, half + 2.5]) for half in np.abs(high - low) / 2]
    shifts = []
    for centre, text in zip(positions[:, :2], names):
        half = np.array([2.0 * len(str(text)), 3.5])
        aside = half[0] + 4
        options = [(0, -7), (0, 8)] + [(dx, dy) for dy in (0, -6, 7) for dx in (aside, -aside)]
        shift, overlap = (np.nan, np.nan), 2
        for option in options if isinstance(text, str) else ():
            is_hit = np.all(np.abs(np.array(centres) - centre - option) < halves + half, axis=1)
            covered = is_hit.sum() + is_hit[len(positions) :].sum()  # names count twice
            if covered < overlap:
                shift, overlap = option, covered
        shifts.append(shift)
        if overlap < 2:  # to touch one point is better than to leave the name out
            centres.append(centre + shift)
            halves.append(half)
    return shifts


@unvalidated()
def heatmaps(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    centred: bool = True,
    domain: tuple[float, float] | None = None,
    edges: Collection[Any] = (),
    **settings: Any,
) -> alt.TopLevelMixin:
    """Draw heat maps of one scale, with values in the cells and names at the axes if they fit.

    Parameters
    ----------
    centred : bool
        Whether the colours diverge from zero.
    domain : tuple of float, optional
        Ends of the scale, by default from :func:`heat_domain`; values beyond are clamped.
    edges : collection
        Values along both axes before which a line divides the cells, such as starts of classes.
    """
    domain = domain or heat_domain(computed(frame, value)[value])
    size = max(frame[x].nunique(), frame[y].nunique())
    labels = size <= _LABELLED and not pd.api.types.is_numeric_dtype(frame[x])
    with_values = centred and size <= _WITH_VALUES
    step = 25.0 if with_values else min(25.0, max(9.0 if labels else 1.0, 150 / size))
    columns = max(1, int(FULL / (step * frame[x].nunique() + 12)))
    picture = Picture(frame, **{"columns": columns} | settings)
    across, down = distinct(picture.frame, x), distinct(picture.frame, y)
    index = [*picture.switches, *filter(None, [picture.panel]), y]
    # one row of the matrix per line: in long form most of the data would be names
    matrix = picture.frame.set_index([*index, x])[value].unstack(x, sort=False).reset_index()
    keys = [str(name) for name in across]
    matrix.columns = [*index, *keys]
    picture.data = inline(matrix, as_text=keys)

    cell = field("cell_")
    axis = alt.Axis(labels=labels, ticks=labels, labelOverlap=True)
    horizontal, vertical = (
        {"type": "ordinal", "scale": alt.Scale(domain=values), "axis": axis, "title": title}
        for values, title in ((keys, picture.title(x)), (down, picture.title(y)))
    )
    base = (
        alt.Chart()
        .transform_fold(list(map(_escaped, keys)), as_=["column_", "cell_"])
        # cells are text, in which a missing value is empty: toNumber would make it 0
        .transform_calculate(cell_=f"{cell} === '' ? null : toNumber({cell})")
        .encode(
            x=alt.X(field="column_", **horizontal),
            y=alt.Y(field=y, **vertical),
            tooltip=[
                *picture.tips(y),
                alt.Tooltip(field="column_", type="nominal", title=picture.title(x)),
                alt.Tooltip(field="cell_", **picture.measured(value), format=".4~g"),
            ],
        )
    )
    scheme = {"scheme": "redblue", "reverse": True} if centred else {"scheme": "cividis"}
    colour = alt.Color(
        field="cell_",
        **picture.measured(value),
        scale=alt.Scale(domain=list(domain), clamp=True, **scheme),
        legend=alt.Legend(orient="right", gradientLength=max(50, min(120, step * len(down)))),
    )
    full = {"width": alt.RelativeBandSize(1.03), "height": alt.RelativeBandSize(1.03)}  # no seams
    layers = [base.mark_rect(aria=with_values, **full).encode(color=colour)]
    if with_values:
        is_dark = f"abs({cell}) > {0.6 * max(map(abs, domain)):.6g}"
        text = base.transform_filter(f"isValid({cell})").mark_text(fontSize=7, aria=False)
        layers.append(
            text.encode(
                text=alt.Text(field="cell_", type="quantitative", format=".2f"),
                color=alt.condition(is_dark, alt.value("white"), alt.value(INK)),
            )
        )
    if edges:
        starts = alt.InlineData(values=[{"column": str(edge), "row": edge} for edge in edges])
        colour = BLACK if centred else "white"
        line = alt.Chart(starts).mark_rule(color=colour, strokeWidth=0.7, aria=False)
        layers.append(line.encode(x=alt.X(field="column", bandPosition=0, **horizontal)))
        layers.append(line.encode(y=alt.Y(field="row", bandPosition=0, **vertical)))
    return picture.chart(layers, step * len(across), step * len(down), exact=True)


def heat_domain(values: pd.Series) -> tuple[float, float]:
    """Return the ends of a scale around zero; of over 400 values the largest 1 % is left out."""
    # few large entries of U would leave all others white
    sizes = values.dropna().abs()
    high = float(sizes.quantile(0.99) if len(sizes) > 400 else sizes.max()) or 1.0
    return -high, high


@unvalidated()
def chart_grid(*charts: alt.TopLevelMixin, columns: int = 1) -> alt.TopLevelMixin:
    """Join charts of the same series under one title, setting and legend."""
    # the heading is read from the outermost chart; all have one setting, so that one is enough
    grid = alt.concat(*charts, columns=columns)
    grid.title, grid.usermeta = charts[0].title, charts[0].usermeta
    for chart in grid.concat:
        chart.title = chart.usermeta = alt.Undefined
    return grid


def _escaped(name: str) -> str:
    """Escape a column name for Vega, which reads dots and brackets as parts of a path."""
    return "".join(f"\\{sign}" if sign in ".[]\\\"'" else sign for sign in name)
