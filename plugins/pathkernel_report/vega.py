"""Charts in Vega-Lite: what each mark looks like, and the library that draws it in the page.

Specifications hold no data: the page gives rows with the fields x, y, low, high, series and value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pathkernel_core.extras import import_extra
from pathkernel_views.chart import Chart

COLOURS, SHADES = 10, 5
"""Of series; the style sheet has them as ``--series-0``, ``--shade-0`` and so on, for light and
dark."""

_DRAWN = 8  # paths; as many as the page draws
_LABELLED = 30  # labels along a side of a heatmap, of more every so-manyth
_TEXT, _FAINT, _LINE = "var(--text)", "var(--faint)", "var(--line)"
_CONFIG = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "aria": False,  # the page says in its own words what is shown
    "axis": {
        "labelColor": _FAINT,
        "titleColor": _TEXT,
        "domainColor": _FAINT,
        "tickColor": _FAINT,
        "gridColor": _LINE,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "legend": {
        "labelColor": _FAINT,
        "titleColor": _TEXT,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
    },
    "view": {"stroke": None},
}


def javascript() -> str:
    """Vega-Embed, with Vega and Vega-Lite, as one script, which sets ``window.vegaEmbed``.

    Raises
    ------
    MissingExtraError
        If the extra ``report`` is not installed.
    """
    converter = import_extra("vl_convert", "report", "report", ("vl_convert",))
    return str(converter.javascript_bundle("window.vegaEmbed = vegaEmbed"))


def specification(chart: Chart) -> dict[str, Any]:
    """Vega-Lite of a panel of a chart."""
    drawn = {"lines": _lines, "points": _points, "bars": _bars, "heatmap": _heatmap}
    own = drawn.get(chart.mark, _paths)(chart)
    whole = {
        "data": {"name": "rows"},
        "width": 400,
        "height": 300,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": {"left": 4, "top": 8, "right": 12, "bottom": 4},
        "config": _CONFIG,
    }
    return whole | own


def series_of(chart: Chart) -> list[dict[str, Any]]:
    """What colours tell apart: names, colours, and whether it is a limit, which is dashed."""
    names = [str(name) for name in chart.data[chart.series].values] if chart.series else [""]
    finite = [name for name in names if not _is_limit(name)]
    found = []
    for place, name in enumerate(names):
        colour = f"series-{place % COLOURS}"
        if chart.ordered:
            step = (
                finite.index(name) * (SHADES - 1) / max(1, len(finite) - 1) if name in finite else 0
            )
            colour = f"shade-{round(step)}" if name in finite else "series-1"
        found.append({"name": name, "colour": f"var(--{colour})", "dashed": _is_limit(name)})
    return found


def _is_limit(name: str) -> bool:
    return name.startswith("GP limit") or name.endswith("(GP limit)")


def _colour(chart: Chart) -> dict[str, Any]:
    series = series_of(chart)
    scale = {
        key: [each[own] for each in series]
        for key, own in (("domain", "name"), ("range", "colour"))
    }
    return {
        "field": "series",
        "type": "nominal",
        "scale": scale,
        "legend": None,
    }


def _title(chart: Chart, name: str) -> str:
    return str(chart.data[name].attrs["long_name"])


def _amount(title: str) -> dict[str, Any]:
    """Encoding of the height, between ends that the page shares among panels."""
    ends = [{"expr": "lowest"}, {"expr": "highest"}]
    scale = {"domain": ends, "nice": True, "zero": False}
    return {"field": "y", "type": "quantitative", "scale": scale, "axis": {"title": title}}


def _ends() -> list[dict[str, Any]]:
    return [{"name": "lowest", "value": 0}, {"name": "highest", "value": 1}]


def _along(chart: Chart) -> dict[str, Any]:
    """Encoding of ``x`` as far as it is numbers."""
    values, axis = chart.data[chart.x].values, {"title": _title(chart, chart.x), "grid": False}
    if chart.x not in chart.data.dims:
        return {"field": "x", "type": "quantitative", "scale": {"zero": False}, "axis": axis}
    if values.dtype.kind not in "iuf":
        return {"field": "x", "type": "ordinal", "sort": None, "axis": axis | {"labelAngle": 0}}
    low, high = float(values.min()), float(values.max())
    if chart.log:
        margin = (high / low) ** 0.04 if high > low else 2
        scale = {"type": "log", "domain": [low / margin, high * margin], "nice": False}
    else:
        margin = 0.03 * (high - low) or 1
        scale = {"domain": [low - margin, high + margin], "nice": False, "zero": False}
    if len(values) <= 20:
        axis |= {
            "values": sorted(values.tolist()),
            "labelOverlap": "greedy",
            "labelSeparation": 8,
            "format": "~g",
        }
        axis |= {"labelExpr": "format(datum.value, datum.value < 1e6 ? '~r' : '~e')"}
    return {"field": "x", "type": "quantitative", "scale": scale, "axis": axis}


def _lines(chart: Chart) -> dict[str, Any]:
    series = series_of(chart)
    lines = [[6, 4] if each["dashed"] else [1, 0] for each in series]
    dashes = {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": [each["name"] for each in series], "range": lines},
        "legend": None,
    }
    line = {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"strokeDash": dashes}}
    # what is alike at every x is a line without points
    points = {
        "transform": [{"filter": "!datum.dashed"}],
        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 36},
    }
    mark = {"type": "area", "opacity": 0.16} if chart.band else {"type": "rule", "opacity": 0.6}
    return _layered(chart, [*_ranges(chart, mark), line, points], _along(chart))


def _ranges(chart: Chart, mark: dict[str, Any], **encoding: Any) -> list[Any]:
    """Layer of the ranges; rows without one have none drawn."""
    if not chart.low or not np.isfinite(chart.data[chart.low]).any():
        return []
    ends = {"y": _amount("") | {"field": "low"}, "y2": {"field": "high"}}
    return [{"mark": mark, "encoding": ends | encoding}]


def _layered(chart: Chart, layers: list[Any], x: dict[str, Any]) -> dict[str, Any]:
    y = _amount(_title(chart, chart.y))
    for layer in layers:  # titles of layers are otherwise put together
        layer.setdefault("encoding", {}).setdefault("y", y)
        layer["encoding"]["y"]["axis"] = y["axis"]
    return {
        "params": _ends(),
        "encoding": {"x": x, "color": _colour(chart)},
        "layer": layers,
    }


def _points(chart: Chart) -> dict[str, Any]:
    points = {"mark": {"type": "point", "filled": True, "opacity": 0.8, "size": 40}}
    ranges = _ranges(chart, {"type": "rule", "opacity": 0.5})
    return _layered(chart, [*ranges, points], _along(chart))


def _bars(chart: Chart) -> dict[str, Any]:
    names = [each["name"] for each in series_of(chart)]
    axis = {"title": _title(chart, chart.x), "labelAngle": 0, "grid": False}
    x = {"field": "x", "type": "ordinal", "sort": None, "axis": axis}
    offset = {"field": "series", "type": "nominal", "sort": None, "scale": {"domain": names}}
    bars = {"mark": "bar", "encoding": {"y2": {"datum": 0}}}
    ranges = _ranges(chart, {"type": "rule", "color": _TEXT}, color={"value": _TEXT})
    drawn = _layered(chart, [bars, *ranges], x)
    drawn["encoding"]["xOffset"] = offset
    return drawn


def _heatmap(chart: Chart) -> dict[str, Any]:
    quantity = str(chart.data[next(iter(chart.data.data_vars))].attrs["long_name"])
    ends = [{"expr": "lowest"}, {"expr": "highest"}]
    colours: dict[str, Any] = {"domain": ends, "scheme": "viridis", "nice": False}
    params = _ends()
    if chart.diverging:
        stops = ["below", "low", "zero", "high", "above"]  # of the theme, which the page knows
        params += [{"name": f"{stop}Colour", "value": "#888888"} for stop in stops]
        range_ = [{"expr": f"{stop}Colour"} for stop in stops]
        middle = [{"expr": f"lowest + (highest - lowest) * {part}"} for part in (0.25, 0.5, 0.75)]
        colours = {"domain": [ends[0], *middle, ends[1]], "range": range_, "nice": False}
        colours["interpolate"] = "rgb"
    legend = {"title": quantity, "gradientLength": {"expr": "height * 0.8"}}

    def side(dim: str, angle: int) -> dict[str, Any]:
        labels = chart.data[dim].values
        step = -(-len(labels) // _LABELLED)
        own = {"title": _title(chart, dim), "labelAngle": angle, "ticks": False, "domain": False}
        if step > 1:
            own["values"] = [str(label) for label in labels[::step]]
        return own

    turned = -90 if max(map(len, map(str, chart.data[chart.x].values))) > 1 else 0
    return {
        "params": params,
        "mark": {"type": "rect", "strokeWidth": 0},
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "sort": None, "axis": side(chart.x, turned)},
            "y": {"field": "y", "type": "ordinal", "sort": None, "axis": side(chart.y, 0)},
            "color": {
                "field": "value",
                "type": "quantitative",
                "scale": colours,
                "legend": legend,
            },
        },
    }


def _paths(chart: Chart) -> dict[str, Any]:
    """Rows of this one are corners of paths, with their strengths, and nodes with labels."""
    nothing = {"title": None, "ticks": False, "domain": False, "grid": False}
    layers = _layer_names(chart)
    names = {"expr": f"{layers}[datum.value]"}
    side = nothing | {"labelExpr": names["expr"], "values": list(range(len(layers)))}
    widths = {"type": "sqrt", "domain": [0, {"expr": "highest"}], "range": [0.5, 14]}
    paths = {
        "transform": [{"filter": "datum.path"}],
        "mark": {
            "type": "line",
            "interpolate": "monotone",
            "strokeCap": "round",
            "orient": "vertical",
        },
        "encoding": {
            "opacity": {
                "condition": {"test": "picked && datum.path != picked", "value": 0.15},
                "value": 0.8,
            },
            "detail": {"field": "path"},
            "order": {"field": "y"},
            "strokeWidth": {
                "field": "value",
                "type": "quantitative",
                "scale": widths,
                "legend": None,
            },
            "color": {
                "field": "rank",
                "type": "ordinal",
                "scale": {
                    "domain": list(range(_DRAWN)),
                    "range": [f"var(--series-{n})" for n in range(_DRAWN)],
                },
                "legend": None,
            },
        },
    }
    nodes = {
        "transform": [{"filter": "datum.node"}],
        "layer": [
            {
                "mark": {
                    "type": "circle",
                    "size": 620,
                    "opacity": 1,
                    "color": "var(--card)",
                    "stroke": _FAINT,
                    "strokeWidth": 1.5,
                }
            },
            {
                "mark": {"type": "text", "color": _TEXT, "fontSize": 12},
                "encoding": {"text": {"field": "node"}},
            },
        ],
    }
    room = {"domain": [-0.3, len(layers) - 0.7], "nice": False, "zero": False}
    return {
        "params": [*_ends(), {"name": "picked", "value": ""}],
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "axis": None,
                "scale": {"domain": [-0.6, 0.6]},
            },
            "y": {"field": "y", "type": "quantitative", "axis": side, "scale": room},
        },
        "layer": [paths, nodes],
    }


def _layer_names(chart: Chart) -> list[str]:
    depth = len(str(chart.data[chart.x].values[0]).split("-"))
    return ["input", *(f"layer {layer + 1}" for layer in range(depth)), "output"]
