"""The pictures of the house: a long DataFrame and names of columns in, an Altair chart out.

>>> import pandas as pd
>>> frame = pd.DataFrame({"network": ["theory"] * 2 + ["GP limit"], "width": [10, 100, None],
...                       "mean": [0.9, 0.8, 0.7], "low": [0.85, 0.7, 0.65],
...                       "high": [0.95, 0.9, 0.75], "seed": [0, 0, 0]})
>>> chart = lines(frame, "width", "mean", low="low", high="high", series="network", log=True,
...               switches=("seed",), titles={"width": "width N", "mean": "accuracy"})

``series`` is a column that is told by colour, dash and marker, after its meaning
(:data:`pathkernel_views.chart.MEANINGS`); ``panel`` a column, each value of which has a panel;
``switches`` are columns of which one value at a time is shown: the first in the frame's order,
until a reader chooses another. Values stand in the order in which the frame has them. ``titles``
are words for columns, at axes and in tooltips; by default the labels of the frame. ``low`` and
``high`` are the ends of ranges, and ``columns`` the most panels in a row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import altair as alt
import numpy as np
import pandas as pd

from pathkernel_core.text import printable
from pathkernel_views.chart import BLACK, GREY, INK, PALETTE, NothingToPlot, looks
from pathkernel_views.table import csv_text

_DIGITS = 6  # of numbers within charts
_FULL, _HALF = 500, 220  # points: panels beside each other, one panel
_LABELLED = 27  # rows of a heat map that are named
_WITH_VALUES = 8  # columns of a heat map whose cells have room for their values
_NAMED_POINTS = 12
_FEW_POINTS = 200  # more are smaller
_ASIDE = 4  # points between the error bars of two series
_FEW_TICKS = 12  # values along an axis that all have ticks
_STRONGEST = 8  # paths that are drawn through a network


class Settings(TypedDict, total=False):
    """Settings of all pictures, see above."""

    series: str
    panel: str
    switches: Sequence[str]
    titles: Mapping[str, str]
    columns: int


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    low: str = "",
    high: str = "",
    log: bool = False,
    log_y: bool = False,
    bands: bool | Collection[str] = True,
    markers: bool = True,
    same_y: bool = True,
    steps: bool = False,
    **settings: Unpack[Settings],
) -> alt.TopLevelMixin:
    """Lines along x, with the range from ``low`` to ``high``.

    A row without x is a limit: a dashed line across the panel, with its range as a band. Text along
    x has no lines but points side by side.

    Parameters
    ----------
    bands : bool or collection of str
        Whether ranges of lines are bands and not bars; or the series of which they are bands.
    markers : bool
        Whether the points of lines have markers.
    same_y : bool
        Whether all panels have the same scale.
    steps : bool
        Whether lines are steps, as of histograms.
    """
    shown = _Shown(_computed(frame, y), **settings)
    frame, ends = shown.frame, [name for name in (low, high) if name]
    is_text = not pd.api.types.is_numeric_dtype(frame[x])
    values = _values(frame.dropna(subset=[x]), x)
    if is_text:
        along = alt.X(field=x, type="ordinal", sort=values, axis=alt.Axis(labelAngle=0))
    else:
        axis = alt.Axis(labelOverlap="greedy", format=".6~r")  # else rounded to the step
        if 0 < len(values) <= _FEW_TICKS:
            axis.values = sorted(values)
        scale = _scale(frame[[x]], log, nice=False)
        along = alt.X(field=x, type="quantitative", scale=scale, axis=axis)
    along.title = shown.title(x)
    scale = _scale(frame[[y, *ends] if same_y else []], log_y)
    vertical = shown.measured(y) | {"scale": scale}
    up = alt.Y(field=y, **vertical)
    if log_y:
        up.axis = alt.Axis(format="~g", tickCount=3)

    counts = frame.groupby(shown.series)[x].nunique()
    if isinstance(bands, bool):
        bands = shown.names if bands else []
    banded = [name for name in shown.names if name in bands and counts[name] > 1 and not is_text]
    apart = [name for name in shown.names if (ends or is_text) and name not in banded]
    number = f"indexof({json.dumps(apart)}, {_field(shown.series)})"
    middle = (len(apart) - 1) / 2
    offset = alt.ExprRef(f"{number} < 0 ? 0 : {_ASIDE} * ({number} - {middle})")
    tips = shown.tips(shown.series, x, y, *ends)
    limits = alt.Chart().transform_filter(f"!isValid({_field(x)})").encode(tooltip=tips)
    others = alt.Chart().transform_filter(f"isValid({_field(x)})").encode(x=along, tooltip=tips)
    stroke, fill, dash, shape = shown.told_apart()
    layers = []
    if ends:
        reach = {"y": alt.Y(field=low, **vertical), "y2": alt.Y2(high)}
        band, bar = (others.transform_filter(number + test) for test in (" < 0", " >= 0"))
        layers = [
            limits.mark_rect(opacity=0.13).encode(fill=fill, **reach),
            band.mark_area(opacity=0.2).encode(fill=fill, **reach),
            bar.mark_rule(xOffset=offset).encode(stroke=stroke, **reach),
        ]
    line = {"stroke": stroke, "strokeDash": dash}
    width = 1.4 if markers or steps else 0.5
    layers.append(limits.mark_rule(strokeWidth=width).encode(y=up, **line))
    others = others.encode(y=up)
    if not is_text:
        style = {"xOffset": offset, "interpolate": "step" if steps else "linear"}
        layers.append(others.mark_line(strokeWidth=width, **style).encode(**line))
    if markers:
        point = others.mark_point(opacity=1, xOffset=offset)
        layers.append(point.encode(shape=shape, fill=fill, stroke=stroke))
        layers.append(others.mark_circle(opacity=0, size=200, aria=False))  # to point at
    resolve = {} if same_y else {"y": "independent"}
    return shown.chart(layers, _HALF * 0.95, 140, **resolve)


def bars(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    low: str = "",
    high: str = "",
    **settings: Unpack[Settings],
) -> alt.TopLevelMixin:
    """Bars of heads, those of one head side by side; whiskers from ``low`` to ``high``."""
    shown = _Shown(_computed(frame, y), **{"columns": 6} | settings)
    ends = [name for name in (low, high) if name]
    scale = _scale(shown.frame[[y, *ends]].assign(zero=0.0))
    axis = alt.Axis(labelAngle=0, labelOverlap=True)
    heads = _values(shown.frame, x)
    base = alt.Chart().encode(
        x=alt.X(field=x, type="ordinal", sort=heads, title=shown.title(x), axis=axis),
        xOffset=alt.XOffset(field=shown.series, type="nominal", sort=shown.names),
        y=alt.Y(field=y, **shown.measured(y), scale=scale),
        tooltip=shown.tips(shown.panel, x, shown.series, y, *ends),
    )
    layers = [base.mark_bar().encode(color=shown.colour(shown.legend))]
    if ends:
        whisker = base.encode(y=alt.Y(field=low, **shown.measured(y)))
        layers.append(whisker.mark_rule(color=INK, strokeWidth=0.8).encode(y2=alt.Y2(high)))
    width = max(_HALF / shown.columns, len(heads) * (4 + 9 * len(shown.names)))
    return shown.chart(layers, width, 120, x="independent", xOffset="independent")


def points(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    low: str = "",
    high: str = "",
    name: str = "",
    reference: Literal["diagonal", "zero", ""] = "diagonal",
    same_x: bool = True,
    **settings: Unpack[Settings],
) -> alt.TopLevelMixin:
    """Points with the range from ``low`` to ``high``, against a reference line.

    Parameters
    ----------
    name : str
        Column of the points' names, which stand above them if there are few.
    reference : str
        The diagonal, of axes of one scale; the line y = 0; or none.
    same_x : bool
        Whether all panels have the same scale along x.
    """
    shown = _Shown(_computed(frame, x, y), **settings)
    frame, ends = shown.frame, [end for end in (low, high) if end]
    up, along = _scale(frame[[y, *ends]]), _scale(frame[[x] if same_x else []])
    line, layers = alt.Chart().mark_rule(color=GREY, strokeDash=[2, 2], strokeWidth=0.8), []
    if reference == "diagonal":
        up = along = _scale(frame[[x, y, *ends]], nice=False)
        start = alt.datum(up.domain[0], type="quantitative")
        end = alt.datum(up.domain[1])
        layers = [line.encode(x=start, y=start, x2=end, y2=end)]
    elif reference == "zero":
        layers = [line.encode(y=alt.datum(0, type="quantitative"))]
    base = alt.Chart().encode(
        x=alt.X(field=x, **shown.measured(x), scale=along),
        y=alt.Y(field=y, **shown.measured(y), scale=up),
        tooltip=shown.tips(name, shown.panel, shown.series, x, y, *ends),
    )
    stroke, fill, _, shape = shown.told_apart()
    if ends:
        whisker = base.encode(y=alt.Y(field=low, **shown.measured(y)))
        layers.append(whisker.mark_rule(strokeWidth=0.6).encode(y2=alt.Y2(high), stroke=stroke))
    point = base.mark_point(opacity=0.8, size=20 if len(frame) <= _FEW_POINTS else 6)
    layers.append(point.encode(shape=shape, fill=fill, stroke=stroke))
    if name and frame[name].nunique() <= _NAMED_POINTS:
        text = base.mark_text(fontSize=7, dy=-6, color=INK)
        layers.append(text.encode(text=alt.Text(field=name, type="nominal")))
    side = _HALF * 0.75
    resolve = {} if same_x else {"x": "independent"}
    return shown.chart(layers, side, side, **resolve)


def heatmaps(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    centred: bool = True,
    domain: tuple[float, float] | None = None,
    edges: Collection[Any] = (),
    labels: bool = True,
    **settings: Unpack[Settings],
) -> alt.TopLevelMixin:
    """Heat maps of one scale, with the values in the cells and names at the axes while they fit.

    Parameters
    ----------
    centred : bool
        Whether the colours diverge from zero.
    domain : tuple of float, optional
        Ends of the scale, by default from :func:`heat_domain`; what lies beyond has their colour.
    edges : collection
        Values along both sides before which lines divide the cells, such as classes.
    labels : bool
        Whether rows and columns may be named.
    """
    domain = domain or heat_domain(_computed(frame, value)[value])
    size = max(frame[x].nunique(), frame[y].nunique())
    labels = labels and size <= _LABELLED
    with_values = centred and size <= _WITH_VALUES
    step = 25.0 if with_values else min(25.0, max(9.0 if labels else 1.0, 150 / size))
    columns = max(1, int(_FULL / (step * frame[x].nunique() + 12)))
    shown = _Shown(frame, **{"columns": columns} | settings)
    across, down = _values(shown.frame, x), _values(shown.frame, y)
    index = [*shown.switches, *filter(None, [shown.panel]), y]
    # wide, as names of rows and columns would be most of the data
    wide = shown.frame.set_index([*index, x])[value].unstack(x, sort=False).reset_index()
    keys = [str(name) for name in across]
    wide.columns = [*index, *keys]
    shown.data = inline(wide, as_text=keys)

    cell = _field("cell_")
    axis = alt.Axis() if labels else alt.Axis(labels=False, ticks=False)
    horizontal, vertical = (
        {"type": "ordinal", "scale": alt.Scale(domain=values), "axis": axis, "title": title}
        for values, title in ((keys, shown.title(x)), (down, shown.title(y)))
    )
    base = (
        alt.Chart()
        .transform_fold(list(map(_escaped, keys)), as_=["column_", "cell_"])
        .transform_calculate(cell_=f"{cell} === '' ? null : toNumber({cell})")
        .encode(
            x=alt.X(field="column_", **horizontal),
            y=alt.Y(field=y, **vertical),
            tooltip=[
                *shown.tips(y),
                alt.Tooltip(field="column_", type="nominal", title=shown.title(x)),
                alt.Tooltip(field="cell_", **shown.measured(value), format=".4~g"),
            ],
        )
    )
    scheme = {"scheme": "redblue", "reverse": True} if centred else {"scheme": "cividis"}
    colour = alt.Color(
        field="cell_",
        **shown.measured(value),
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
        line = alt.Chart(starts).mark_rule(color=BLACK if centred else "white", strokeWidth=0.7)
        layers.append(line.encode(x=alt.X(field="column", bandPosition=0, **horizontal)))
        layers.append(line.encode(y=alt.Y(field="row", bandPosition=0, **vertical)))
    return shown.chart(layers, step * len(across), step * len(down), exact=True)


def heat_domain(values: pd.Series) -> tuple[float, float]:
    """Ends of a scale around zero, without the 1 in 100 largest of many values."""
    sizes = values.dropna().abs()
    high = float(sizes.quantile(0.99) if len(sizes) > 400 else sizes.max()) or 1.0
    return -high, high


def network(
    frame: pd.DataFrame,
    path: str,
    strength: str,
    heads: Sequence[int],
    **settings: Unpack[Settings],
) -> alt.TopLevelMixin:
    """The strongest paths through the heads of the layers, from the input below to the output.

    Parameters
    ----------
    path : str
        Column of the paths' names: their head in every layer, such as "1-2" or "skip-1".
    strength : str
        Column of weights, at least 0: lines are as thick.
    heads : sequence of int
        Heads of each layer.
    """
    frame = _computed(frame, strength)
    switches = list(settings.get("switches", ()))
    strengths = frame.groupby(switches)[strength] if switches else frame[strength]
    frame = frame.assign(rank=strengths.rank(method="first", ascending=False))
    frame = frame[frame["rank"] <= _STRONGEST].sort_values("rank", kind="stable")
    shown = _Shown(frame, **settings)
    levels = ["input", *(f"layer {layer + 1}" for layer in range(len(heads))), "output"]
    top, half = len(heads) + 1, (max(heads) + 1) / 2
    expression = f"{json.dumps(levels)}[datum.value]"
    ticks = {"values": list(range(top + 1)), "domain": False, "ticks": False}
    axis = alt.Axis(labelExpr=expression, **ticks)
    room = alt.Scale(domain=[-half, half + 2.2])
    number = {"type": "quantitative", "title": None}
    above = number | {"axis": axis, "scale": alt.Scale(domain=[-0.4, top + 0.4])}
    across = number | {"axis": None, "scale": room}
    ranks = alt.Scale(domain=list(range(1, _STRONGEST + 1)), range=list(PALETTE))
    colour = alt.Color(field="rank", type="ordinal", legend=None, scale=ranks)
    thick = alt.Scale(domain=[0, float(shown.frame[strength].max())], range=[0.3, 7])
    paths = (
        alt.Chart()
        .transform_calculate(
            head_=f"split('1-' + {_field(path)} + '-1', '-')",
            level_=f"sequence({len(levels)})",
            count_=json.dumps([1, *heads, 1]),
        )
        .transform_flatten(["head_", "level_", "count_"])
        .transform_calculate(  # skips run beside the first head, paths of one head side by side
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
            tooltip=shown.tips(path, strength),
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
            text_=f"{_field(path)} + ':  ' + format({_field(strength)}, '.3~g')",
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
    return shown.chart(layers, _HALF * 1.05, 46 * len(levels))


def beside(*charts: alt.TopLevelMixin, columns: int = 1) -> alt.TopLevelMixin:
    """Charts of the same series in one; switches of one name turn all."""
    joined = alt.concat(*charts, columns=columns)
    parameters = {}
    for chart in charts:
        if chart.params is not alt.Undefined:
            parameters |= {parameter.name: parameter for parameter in chart.params}
        joined.title, chart.title, chart.params = chart.title, alt.Undefined, alt.Undefined
    if parameters:
        joined.params = list(parameters.values())
    return joined


def inline(frame: pd.DataFrame, as_text: Collection[str] = ()) -> alt.InlineData:
    """Data of a chart as CSV text, small and without a limit of rows; some columns stay text."""
    numbers = {
        str(name): "number"
        for name, values in frame.items()
        if pd.api.types.is_numeric_dtype(values) and str(name) not in as_text
    }
    return alt.InlineData(
        values=csv_text(frame, _DIGITS), format=alt.CsvDataFormat(type="csv", parse=numbers)
    )


class _Shown:
    """Parts that all pictures share: data, series, panels, switches, titles of columns."""

    def __init__(
        self,
        frame: pd.DataFrame,
        series: str = "",
        panel: str = "",
        switches: Sequence[str] = (),
        titles: Mapping[str, str] | None = None,
        columns: int = 3,
    ):
        texts = {
            name: values.map(lambda text: printable(text) if isinstance(text, str) else text)
            for name, values in frame.items()
            if values.dtype.kind not in "biuf"
        }
        texts |= {name: frame[name].map(_text) for name in switches}
        if not series:
            texts["series"] = ""
        elif pd.api.types.is_numeric_dtype(frame[series]):
            texts[series] = [f"{series.replace('_', ' ')} {_text(v)}" for v in frame[series]]
        self.frame = frame.assign(**texts)
        self.data = inline(self.frame)
        self.series, self.panel = series or "series", panel
        self.names = _values(self.frame, self.series)
        self.panels = _values(self.frame, panel) if panel else [""]
        # without a gap in the last row, if possible
        count, rows = len(self.panels), range(min(columns, len(self.panels)), 1, -1)
        self.columns = next((n for n in rows if count % n == 0), min(columns, count))
        labels = frame.attrs.get("columns", {})
        self.titles = {name: labels[name].get("label") for name in labels} | dict(titles or {})
        numeric = {name: pd.api.types.is_numeric_dtype(frame[name]) for name in switches}
        self.switches = {name: f"{self.title(name)} " * numeric[name] for name in switches}

    def title(self, column: str) -> str:
        """Words for a column."""
        return printable(self.titles.get(column) or column.replace("_", " "))

    def measured(self, column: str) -> dict[str, str]:
        """Type and title of a channel that shows a column of numbers."""
        return {"type": "quantitative", "title": self.title(column)}

    def tips(self, *columns: str) -> list[alt.Tooltip]:
        """Values that a pointer shows."""
        tips = []
        for name in dict.fromkeys(filter(None, columns)):
            numeric = pd.api.types.is_numeric_dtype(self.frame[name])
            form = {"type": "quantitative", "format": ".5~g"} if numeric else {"type": "nominal"}
            if name != self.series or self.legend:
                tips.append(alt.Tooltip(field=name, title=self.title(name), **form))
        return tips

    @property
    def legend(self) -> alt.Legend | None:
        """Legend of the series in as many columns as there is room for."""
        room = (_HALF if len(self.panels) == 1 else 1.4 * _HALF) / (
            4.2 * max(map(len, self.names)) + 30
        )
        return (
            alt.Legend(columns=max(1, int(room)), symbolOpacity=1) if self.names != [""] else None
        )

    def told_apart(self) -> list[Any]:
        """Stroke, fill, dash and marker of series, which have one legend."""
        styles = looks(self.names).values()
        colours = [style.colour for style in styles]
        ranges = {
            alt.Stroke: colours,
            alt.Fill: colours,
            alt.StrokeDash: [list(style.dash) for style in styles],
            alt.Shape: [style.shape for style in styles],
        }
        return [self._channel(channel, values, self.legend) for channel, values in ranges.items()]

    def colour(self, legend: alt.Legend | None = None) -> alt.Color:
        """Colours of the series."""
        colours = [style.colour for style in looks(self.names).values()]
        return self._channel(alt.Color, colours, legend)

    def _channel(self, channel: type, values: list[Any], legend: alt.Legend | None) -> Any:
        scale = alt.Scale(domain=self.names, range=values)
        return channel(field=self.series, type="nominal", title=None, legend=legend, scale=scale)

    def chart(
        self,
        layers: Sequence[alt.Chart],
        width: float,
        height: float,
        exact: bool = False,
        **resolve: str,
    ) -> alt.TopLevelMixin:
        """The layers with their data, in panels, with switches."""
        if not exact:
            width = min(width, (_FULL - 40) / self.columns - 12)
        chart = alt.layer(*layers).properties(width=width, height=height)
        if len(self.panels) > 1:
            facet = alt.Facet(field=self.panel, type="nominal", title=None, sort=self.panels)
            chart = chart.facet(facet, columns=self.columns, data=self.data, spacing=10)
            chart = chart.resolve_scale(**resolve)
        else:
            chart.data = self.data
        settings, parameters = [], []
        for name, prefix in self.switches.items():
            values = _values(self.frame, name)
            if len(values) == 1:
                settings.append(json.dumps(prefix + values[0]))
                continue
            chosen = f"chosen_{name}"
            select = alt.binding_select(options=values, name=f"{self.title(name)} ")
            parameters.append(alt.VariableParameter(name=chosen, value=values[0], bind=select))
            chart = chart.transform_filter(f"{_field(name)} == {chosen}")
            settings.append(f"{json.dumps(prefix)} + {chosen}")
        if settings:
            chart.params = parameters or alt.Undefined
            chart.title = alt.TitleParams(text=alt.ExprRef(" + ', ' + ".join(settings)))
        return chart


def _computed(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows that have values in these columns."""
    rows = frame.dropna(subset=list(columns))
    if rows.empty:
        raise NothingToPlot(f"{' and '.join(columns).replace('_', ' ')} is not computed yet")
    return rows


def _scale(frame: pd.DataFrame, log: bool = False, nice: bool = True) -> alt.Scale:
    """Scale of all values of a frame, which stays where a switch turns; or, of none, of a panel."""
    values = frame.to_numpy(dtype=float)
    values = values[np.isfinite(values) & (values > 0 if log else True)]
    scale = alt.Scale(type="log", padding=6) if log else alt.Scale(zero=False, padding=6)
    if values.size:
        scale.domain = [float(values.min()), float(values.max())]
        if nice and not log:
            scale.nice, scale.padding = True, 0
    return scale


def _values(frame: pd.DataFrame, column: str) -> list[Any]:
    """Different values of a column, in their order."""
    return frame[column].drop_duplicates().tolist()


def _text(value: Any) -> str:
    return printable(f"{value:.10g}" if isinstance(value, float) else str(value))


def _field(name: str) -> str:
    return f"datum[{json.dumps(name)}]"


def _escaped(name: str) -> str:
    """Name of a column as Vega reads it, which takes dots and brackets for parts of a path."""
    return "".join(f"\\{sign}" if sign in ".[]\\\"'" else sign for sign in name)
