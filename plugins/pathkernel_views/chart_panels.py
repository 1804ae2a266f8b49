"""Panels of a chart in rows, with the axes that they share, keys of the series, and a total width.

A specification of Vega-Lite comes in with a facet or a concatenation, and goes out as rows of
panels. Vega-Lite's own facets set headings at different heights, put no axis below a gap and scale
nothing to a column of a paper; its legends show neither lines with their points nor bands.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

TALLEST = 9 * 72
"""Points that a chart of a given width may be high."""

_OUTER = ("$schema", "config", "datasets", "params", "usermeta", "description", "title")
_SPACE = 12  # points between panels
_PADDING = 2.5  # points of the white edge of a chart that may be cut
_MARGINS = 45  # points of axes beside panels, roughly
_NARROWEST = 52  # points of a panel
_NARROWEST_TITLE = 160  # points
_LEGEND = 300  # points of a row of keys, which a phone shows large enough
_COLUMN = 5 * 72  # a narrower chart is one of a column of a paper
_ROUNDS = 6  # of measuring a chart
_LARGEST = 4 * 72  # points of a panel that keeps its proportions
_GROWTH, _LEAST = 1.3, 0.55  # of heights of panels that need not keep their proportions
_NAMED = 0.5  # of their size, below which points have no names
_NAMED_FULL = 0.85  # of their size, below which names stand where small panels have room
_LETTERS = 9  # font size of headings
_KEY, _LINE = 20, 12  # width of a key, height of a row of keys
_NARROW, _WIDE = " ijltfrI.,:;'|!()[]/-", "mwMW@%—GOQ"


@dataclass(frozen=True)
class _Block:
    """Panels that follow one another, and the axes that they share."""

    panels: list[Spec]
    columns: int
    shared: tuple[str, ...] = ()
    together: int = 1  # panels that stay side by side


def text_width(text: str, size: float = _LETTERS) -> float:
    """Return the width of a text in points, roughly: only a browser knows it."""
    widths = (0.3 if sign in _NARROW else 0.85 if sign in _WIDE else 0.56 for sign in text)
    return size * sum(widths)


def wrap_text(text: str, points: float, size: float = _LETTERS) -> list[str]:
    """Return the lines of a text that is at most as wide as it may be, where words allow.

    The lines are about equally long, and none begins with a number, a unit or a symbol.
    """
    text = re.sub(r" ?([=±]) ", "\xa0\\1\xa0", text)  # no line ends at a sign, nor within 1-2
    text = re.sub(r"(?<=\d)-|-(?=\d)", "\u2011", text)
    text = re.sub(r" (?=[\d%]|[A-Z](?:[,)]|$))", "\xa0", text)
    letters = max(1, int(points / max(text_width(text, size) / max(len(text), 1), 1e-9)))

    def lines_of(letters: int) -> list[str]:
        return textwrap.wrap(text, letters, break_long_words=False)

    lines = lines_of(letters)
    if len(lines) > 1:
        fewest = (n for n in range(1, letters + 1) if len(lines_of(n)) <= len(lines))
        lines = lines_of(next(fewest))
    return [line.replace("\xa0", " ").replace("\u2011", "-") for line in lines] or [""]


def arrange_panels(spec: Spec) -> Spec:
    """Return a specification with its panels in rows and keys of its series below."""
    blocks = _blocks(spec)
    if isinstance(spec.get("title"), str):  # which must not widen the chart
        widths = [_row_width(block, block.columns) for block in blocks if _is_sized(block)]
        points = max(_NARROWEST_TITLE, *widths) if widths else _COLUMN
        spec = spec | {"title": {"text": wrap_text(spec["title"], points)}}
    return _compose_rows(spec, blocks, [block.columns for block in blocks])


def resize_chart(spec: Spec, points: float, measure: Callable[[Spec], tuple[float, float]]) -> Spec:
    """Return a specification of at most a total width, and of :data:`TALLEST` height.

    Letters keep their size. Panels that would become too small stand in fewer columns, those of a
    chart that would become too high in more. Headings, titles of axes and keys are wrapped.

    Parameters
    ----------
    spec : dict
        Not arranged yet.
    points : float
    measure : callable
        Width and height of a specification as drawn, in points.
    """
    spec = _with_low_legends(spec) if points < _COLUMN else dict(spec)
    blocks = _blocks(spec)
    if isinstance(spec.get("title"), str):
        spec["title"] = {"text": wrap_text(spec["title"], points - 10)}
    if not all(map(_is_sized, blocks)):
        return _compose_rows(spec, blocks, [block.columns for block in blocks], points)
    best = None
    for columns in _choices(blocks, points):
        width = max(map(_row_width, blocks, columns))
        factor, low, before = (points - _MARGINS) / width, 1.0, None
        for _ in range(_ROUNDS):  # axes and keys keep their size, which only a drawing tells
            drawn = _compose_rows(spec, blocks, columns, points, factor, low)
            across, down = measure(drawn)
            if -_PADDING < points - across < 2.5 and down <= TALLEST:
                return drawn
            factor = max(0.1, factor + (points - across - 0.5) / width)
            excess = max(0, across - points - _PADDING) + max(0, down - TALLEST)
            if best is None or (excess, abs(points - across)) < best[0]:
                best = (excess, abs(points - across)), drawn
            if down > 1.2 * TALLEST and _has_more(blocks, columns, points):
                break
            if drawn == before and down <= TALLEST:  # as large as it gets
                return drawn
            before = drawn
            if down > TALLEST and not _has_more(blocks, columns, points):
                low *= max(0.3, 1 - 1.05 * (down - TALLEST) / _panels_height(drawn))
    return best[1]


def _with_low_legends(spec: Spec) -> Spec:
    """Put the scale of colours of all panels, which is at the right, below them."""
    if spec.get("resolve", {}).get("scale", {}).get("color") == "independent":
        return dict(spec)

    def lower_legends(part: Any) -> Any:
        if isinstance(part, list):
            return [lower_legends(child) for child in part]
        if not isinstance(part, dict):
            return part
        part = {k: v if k in ("data", "datasets") else lower_legends(v) for k, v in part.items()}
        if part.get("orient") == "right" and "gradientLength" in part:
            part |= {"orient": "bottom", "direction": "horizontal", "gradientLength": 110}
        return part

    return lower_legends(spec)


def stacked_legend(spec: Spec) -> Spec | None:
    """Return the keys of a specification for panels below each other, no wider than one of them.

    None if its panels are not side by side, or there are no keys.
    """
    panels = spec["vconcat"][0].get("concat", []) if "vconcat" in spec else []
    widths = [panel["width"] for panel in panels if _is_number(panel.get("width"))]
    keys = spec["usermeta"]["keys"]
    return _legend(keys, max(widths) + _SPACE) if keys and widths else None


def with_width(svg: str, points: float) -> str:
    """Return a drawing whose canvas has exactly a width, in points."""
    size = r'(<svg[^>]*?)width="[\d.]+"([^>]*?)viewBox="0 0 [\d.]+ '
    found = re.search(r'<svg[^>]*?width="([\d.]+)"', svg)
    left = min(0.0, (float(found.group(1)) - points) / 2)  # a narrower drawing is in the middle
    box = rf'\g<1>width="{points:g}"\g<2>viewBox="{left:g} 0 {points:g} '
    svg = re.sub(size, box, svg, count=1)
    return re.sub(r'<rect width="[\d.]+"', f'<rect x="{left:g}" width="{points:g}"', svg, count=1)


def _blocks(spec: Spec) -> list[_Block]:
    """Return the panels of a chart, or of the charts of a grid, in rows."""
    body = {name: value for name, value in spec.items() if name not in _OUTER}
    if "concat" not in body:
        return [_block(body)]
    blocks = [_block(chart) for chart in body["concat"]]
    columns, above = body.get("columns", len(blocks)), {"data", "transform"} & set(body)
    for block in blocks:
        for panel in block.panels:
            panel.update({name: body[name] for name in above if name not in panel})
    if all(len(block.panels) == 1 for block in blocks):
        return [_Block([panel for block in blocks for panel in block.panels], columns)]
    if columns == len(blocks) > 1:  # columns of panels side by side
        shared = tuple(axis for axis in blocks[0].shared if axis == "x")
        rows = zip(*(block.panels for block in blocks), strict=True)
        return [_Block([panel for row in rows for panel in row], columns, shared, columns)]
    return blocks


def _block(chart: Spec) -> _Block:
    """Return the panels of a facet, or a chart as the only one."""
    if not isinstance(chart.get("facet"), Mapping) or "field" not in chart["facet"]:
        return _Block([dict(chart)], 1)
    facet, scales = chart["facet"], chart.get("resolve", {}).get("scale", {})
    panels = []
    for value in facet["sort"]:
        own = {"filter": f"datum[{json.dumps(facet['field'])}] == {json.dumps(value)}"}
        transform = [*chart.get("transform", []), own]
        panel = {"heading": str(value), "transform": transform, "data": chart["data"]}
        panels.append(chart["spec"] | panel)
    shared = tuple(axis for axis in "xy" if scales.get(axis) != "independent")
    return _Block(panels, chart.get("columns", len(panels)), shared)


def _choices(blocks: Sequence[_Block], points: float) -> list[list[int]]:
    """Numbers of columns of the blocks to try: theirs or fewer, as panels fit, then more."""
    room = points - _MARGINS

    def fits(columns: int) -> bool:
        # a heat map with values in its cells needs room for them, one without names needs little
        widths = [_smallest(panel) for block in blocks for panel in block.panels]
        return columns * (max(widths) + _SPACE) <= room

    most = max(block.columns for block in blocks)
    count = max(len(block.panels) for block in blocks)
    together = blocks[0].together
    wanted = [n for n in range(most, 0, -together) if fits(n)][:1] or [together]
    more = range(wanted[0] + together, min(count, max(most, _most(points))) + 1, together)
    wanted += [n for n in more if fits(n)]
    return [[min(n, len(block.panels)) for block in blocks] for n in wanted]


def _most(points: float) -> int:
    """Columns of panels that a chart has at most, unless it has more of its own."""
    return 3 if points < _COLUMN else 5


def _has_more(blocks: Sequence[_Block], columns: Sequence[int], points: float) -> bool:
    """Whether a grid may have a further column, which costs less than flat panels."""
    return any(
        n + block.together <= min(_most(points), len(block.panels))
        for block, n in zip(blocks, columns, strict=True)
    )


def _panels_height(drawn: Spec) -> float:
    """Sum of the heights of the rows of panels, without what stands between them."""
    grid = drawn.get("vconcat", [drawn])[0]
    heights = [panel.get("height", 0) for panel in grid.get("concat", [grid])]
    columns = grid.get("columns", 1)
    return sum(max(heights[n : n + columns]) for n in range(0, len(heights), columns)) or 1.0


def _smallest(panel: Spec) -> float:
    text = json.dumps(panel)
    if '"text_"' in text:  # values in cells
        return 0.75 * panel["width"]
    if '"cell_"' in text and not _names(panel):
        return 0.4 * panel["width"]
    return max(_NARROWEST, 5.0 * len(_names(panel))) if _names(panel) else _NARROWEST


def _names(panel: Spec) -> list[str]:
    """Names of the columns of a heat map, where they are printed."""
    for layer in panel.get("layer", []):
        along = layer.get("encoding", {}).get("x", {})
        if along.get("type") == "ordinal" and (along.get("axis") or {}).get("values") != []:
            return (along.get("scale") or {}).get("domain") or []
    return []


def _row_width(block: _Block, columns: int) -> float:
    return max(
        sum(panel["width"] for panel in block.panels[start : start + columns])
        for start in range(0, len(block.panels), columns)
    )


def _compose_rows(
    spec: Spec,
    blocks: Sequence[_Block],
    columns: Sequence[int],
    points: float | None = None,
    factor: float = 1.0,
    low: float = 1.0,
) -> Spec:
    """Join rows of panels of some sizes, and the keys below them."""
    outer = {name: spec[name] for name in _OUTER if name in spec}
    rows = []
    for block, count in zip(blocks, columns, strict=True):
        sized = [_size_panel(panel, factor, low, points is not None) for panel in block.panels]
        for start in range(0, len(sized), count):
            row = sized[start : start + count]
            for n, panel in enumerate(row):
                hidden = {"y"} if n > 0 else set()
                hidden |= {"x"} if start + n + count < len(sized) else set()
                row[n] = _with_heading(_without_axes(panel, hidden & set(block.shared)))
            rows.append(row)
    keys = spec.get("usermeta", {}).get("keys", [])
    if len(rows) == len(rows[0]) == 1:
        body = rows[0][0]
        body = body if not keys else {"vconcat": [body]}
    else:
        most = max(map(len, rows))
        empty = {"data": {"values": []}, "mark": "point", "width": 1, "height": 1}
        for row in rows[:-1]:
            row += [empty] * (most - len(row))
        grid = {"concat": [panel for row in rows for panel in row], "columns": most}
        body = grid | {"align": "each", "spacing": _SPACE}
        if "resolve" in spec and "concat" in spec:
            body["resolve"] = spec["resolve"]
        body = body if not keys else {"vconcat": [body]}
    if keys:
        width = max(sum(panel.get("width", 0) + _SPACE for panel in row) for row in rows)
        body["vconcat"].append(_legend(keys, min(width, _LEGEND)))
        body["spacing"] = 8
    return outer | body


def _size_panel(panel: Spec, factor: float, low: float, is_final: bool) -> Spec:
    """Scale a panel, heat maps and squares in proportion, and wrap its titles."""
    if not (_is_number(panel.get("width")) and _is_number(panel.get("height"))):
        return panel
    width, height = float(panel["width"]), float(panel["height"])
    is_map = width == height or '"cell_"' in json.dumps(panel)
    if is_map:  # a larger one shows no more
        factor = max(min(factor, _LARGEST / max(width, height)), min(1.0, factor))
    stretch = factor if is_map else min(_GROWTH, max(_LEAST, factor))
    sizes = {"width": round(factor * width, 2), "height": round(low * stretch * height, 2)}
    if is_map and low < 1:
        sizes["width"] = round(low * sizes["width"], 2)
    panel = panel | sizes
    if factor < _NAMED_FULL and "layer" in panel:
        panel["layer"] = _with_small_names(panel["layer"], factor)
    if "heading" in panel:
        panel["heading"] = wrap_text(
            panel["heading"], sizes["width"] if is_final else sizes["width"] + _SPACE
        )
    if isinstance(panel.get("title"), str) and is_final:  # which would widen the panel
        panel["title"] = wrap_text(panel["title"], sizes["width"] + 2 * _SPACE)
    room = {"x": sizes["width"] + 0.5 * _SPACE, "y": sizes["height"] + _LETTERS}

    def with_short_title(axis: str, channel: Spec) -> Spec:
        title = channel.get("title")
        if not isinstance(title, str) or text_width(title) <= room[axis]:
            return channel
        return channel | {"title": wrap_text(title, room[axis])}

    return _of_axes(panel, with_short_title) if is_final else panel


def _with_small_names(layers: Sequence[Spec], factor: float) -> list[Spec]:
    """Put names of points where a small panel has room for them, or leave them out."""
    changed = []
    for layer in layers:
        text = json.dumps(layer)
        if '"datum.dx_"' not in text:
            changed.append(layer)
        elif factor >= _NAMED:
            changed.append(json.loads(re.sub(r"datum\.(d[xy])_", r"datum.\1_small_", text)))
    return changed


def _without_axes(panel: Spec, hidden: set[str]) -> Spec:
    """Leave names and titles of axes to other panels; their ticks stay."""

    def bare(axis: str, channel: Spec) -> Spec:
        if axis not in hidden or channel.get("axis", {}) is None:
            return channel
        return channel | {"axis": channel.get("axis", {}) | {"labels": False, "title": None}}

    return _of_axes(panel, bare)


def _of_axes(panel: Spec, change: Callable[[str, Spec], Spec]) -> Spec:
    """Change the channels of both axes in all layers of a panel."""
    panel = dict(panel)
    if "layer" in panel:
        panel["layer"] = [_of_axes(layer, change) for layer in panel["layer"]]
    if "encoding" in panel:
        channels = panel["encoding"]
        drawn = {k: v for k, v in channels.items() if k in ("x", "y") and isinstance(v, Mapping)}
        is_axis = {axis: "field" in v or "datum" in v for axis, v in drawn.items()}
        changed = {axis: change(axis, v) for axis, v in drawn.items() if is_axis[axis]}
        panel["encoding"] = channels | changed
    return panel


def _with_heading(panel: Spec) -> Spec:
    """Print the heading of a panel above it, at one height in all panels of a row."""
    heading = panel.pop("heading", None)
    if heading is None:
        return panel
    # a title of Vega's stands above the names of the axis, which only the first panel has
    lines = heading if isinstance(heading, list) else [heading]
    texts = [
        _mark("text", {"x": 0, "y": -5 - 11 * n}, text=line, align="left", fontSize=_LETTERS)
        for n, line in enumerate(reversed(lines))
    ]
    return panel | {"layer": [*panel["layer"], *texts]}


def _mark(kind: str, position: Spec, **properties: Any) -> Spec:
    """A mark at a position in points."""
    encoding = {channel: {"value": value} for channel, value in position.items()}
    mark = {"type": kind, "aria": False, "tooltip": None} | properties
    return {"data": {"values": [{}]}, "mark": mark, "encoding": encoding}


def _legend(keys: Sequence[Spec], width: float) -> Spec:
    """Keys of series that look as in the panels: line, point, bar, band or patch.

    Sentences, which belong to no mark, stand below them and may be as wide as the chart.
    """
    sentences = [key["name"] for key in keys if "colour" not in key]
    keys = [key for key in keys if "colour" in key]
    # a name that is wider than the chart has several lines
    names = [wrap_text(key["name"], max(width, _NARROWEST_TITLE) - _KEY - 8, 8) for key in keys]
    widths = [_KEY + 8 + max(text_width(line, 8) for line in lines) for lines in names]
    for columns in range(len(keys), 0, -1):
        across = [max(widths[n::columns]) + 8 for n in range(columns)]
        if sum(across) <= max(width, across[0]) or columns == 1:
            break
    layers, top = [], 0.0
    for start in range(0, len(keys), columns):
        for n, (key, lines) in enumerate(zip(keys[start:], names[start : start + columns])):
            left, middle = sum(across[:n]), top + _LINE / 2
            layers += _key(key, left, middle)
            for number, line in enumerate(lines):
                place = {"x": left + _KEY + 5, "y": middle + _LINE * number}
                name = {"text": line, "align": "left", "baseline": "middle", "fontSize": 8}
                layers.append(_mark("text", place, **name))
        top += _LINE * max(map(len, names[start : start + columns]))
    room = max(width, _NARROWEST_TITLE)
    lines = [line for sentence in sentences for line in wrap_text(sentence, room, 8)]
    for number, line in enumerate(lines):
        name = {"text": line, "align": "left", "baseline": "middle", "fontSize": 8}
        place = {"x": 0.0, "y": top + _LINE * (number + 0.5)}
        layers.append(_mark("text", place, **name))
    size = max(10.0, sum(across), *(text_width(line, 8) for line in lines))
    return {"layer": layers, "width": size, "height": top + _LINE * len(lines)}


def _key(key: Spec, left: float, middle: float) -> list[Spec]:
    right, centre, colour = left + _KEY, left + _KEY / 2, key.get("colour")
    marks = []
    if key.get("patch"):
        place = {"x": centre - 5, "x2": centre + 5, "y": middle - 4, "y2": middle + 4}
        marks.append(_mark("rect", place, fill=colour, opacity=1))
    if key.get("band"):
        place = {"x": left, "x2": right, "y": middle - 4, "y2": middle + 4}
        marks.append(_mark("rect", place, fill=colour, opacity=key["band"]))
    if key.get("width"):
        look = {"stroke": colour, "strokeDash": key["dash"], "strokeWidth": key["width"]}
        marks.append(_mark("rule", {"x": left, "x2": right, "y": middle}, **look))
    if key.get("bar"):
        place = {"x": centre, "y": middle - 5, "y2": middle + 5}
        marks.append(_mark("rule", place, stroke=colour, strokeWidth=key["bar"]))
    if key.get("shape"):
        look = {"shape": key["shape"], "size": key["size"], "stroke": colour, "opacity": 1}
        look |= {"fill": key.get("fill", colour), "strokeWidth": key.get("edge", 1.2)}
        marks.append(_mark("point", {"x": centre, "y": middle}, filled=None, **look))
    return [
        mark | {"mark": {k: v for k, v in mark["mark"].items() if v is not None}} for mark in marks
    ]


def _is_sized(block: _Block) -> bool:
    return all(_is_number(panel.get("width")) for panel in block.panels)


def _is_number(size: Any) -> bool:
    return isinstance(size, int | float)  # or a step, or a container
