"""Kinds of charts: a long DataFrame and names of columns in, an Altair chart out.

>>> import pandas as pd
>>> import pathkernel as pk
>>> frame = pd.DataFrame({"network": ["theory"] * 2 + ["GP limit"], "width": [10, 100, None],
...                       "mean": [0.9, 0.8, 0.7], "low": [0.85, 0.7, 0.65],
...                       "high": [0.95, 0.9, 0.75], "seed": [0, 0, 0]})
>>> chart = pk.views.lines(frame, "width", "mean", low="low", high="high", series="network",
...                        log=True, switches=("seed",),
...                        titles={"width": "width N", "mean": "accuracy"})

Settings of all of them:

- ``series``: column shown by colour, dash and marker, with colours by meaning
  (:data:`pathkernel_views.looks.MEANINGS`);
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

from pathkernel_views.chart import BLACK, BLUE, GREY, INK, skip_validation
from pathkernel_views.looks import Look
from pathkernel_views.picture import FULL, HALF, Picture, distinct, drop_missing, field, inline

_LABELLED = 27  # largest heat map with names at its rows
_WITH_VALUES = 8  # largest heat map with values in its cells
# where numbers in cells change their colour, above and below zero, in parts of the scale's end
_NUMBERS_FROM = {"white": (0.735, 0.788), "black": (0.565, 0.635)}
_NAMED_POINTS = 24
_EDGE = 6  # points from the first point to the axis
_NAME_SIZES = {"": 1.0, "small_": 0.55}  # of panels for which names are placed
_FEW_POINTS = 200  # above this, markers are smaller
_ASIDE = 0.018  # largest shift of points side by side, as a fraction of the panel
_MARKER = 22  # square points, large enough to tell shapes apart
_SERIES = 8  # up to this, lines of one panel can be told apart
_PALE = "#949494"  # of lines behind others, as light as a mark may be on white
_DOMINANT = 8.0  # of the largest value to the ninth decile, above which the axis is bent
_COUNTS = ("", "one", "two", "three", "four", "five")
_FEW_TICKS = 12  # up to this, every value along an axis has a tick


@skip_validation()
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
    text, points are drawn side by side instead of lines, less than 2 % of the panel off their
    place. More series than can be told apart have a panel each, over all others in grey.

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
    frame, series = drop_missing(frame, y), settings.get("series", "")
    panel, switches = settings.get("panel", ""), list(settings.get("switches", ()))
    is_crowded = bool(series) and frame[series].nunique() > _SERIES
    is_crowded = is_crowded and not (panel and frame[panel].nunique() > 1)
    if is_crowded:
        settings["panel"] = series
    picture = Picture(frame, **settings)
    if is_crowded:
        picture.looks = dict.fromkeys(picture.names, Look(BLUE, (1, 0), "circle"))
    frame, ends = picture.frame, picture.ends
    is_text = not pd.api.types.is_numeric_dtype(frame[x])
    values = distinct(frame.dropna(subset=[x]), x)
    is_limit = {name: rows[x].isna().all() for name, rows in frame.groupby(picture.series)}
    # bands hide nothing, but a band over a single x has no width
    counts = frame.groupby(picture.series)[x].nunique()
    if isinstance(bands, bool):
        bands = picture.names if bands else []
    banded = [name for name in picture.names if name in bands and counts[name] > 1 and not is_text]
    place, axis = x, alt.Axis(labelOverlap="greedy", labelSeparation=4, format=".6~r")
    if is_text:
        # points of several series at one place would hide each other: they stand side by side
        apart = {name: n for n, name in enumerate(picture.names)}
        shift = frame[picture.series].map(apart) / max(1, len(apart) - 1) - 0.5
        shift *= 2 * _ASIDE * len(values) * (len(apart) > 1)
        numbers = frame[x].map({value: n for n, value in enumerate(values)})
        place, picture.frame = "place_", frame.assign(place_=numbers + shift)
        frame = picture.frame
        axis = alt.Axis(values=list(range(len(values))), labelAngle=0, labelOverlap="greedy")
        axis.labelExpr = f"{json.dumps([str(value) for value in values])}[datum.value]"
        scale = alt.Scale(domain=[-0.5, len(values) - 0.5], nice=False)
    else:
        scale = picture.scale(x, log=log)
        if 0 < len(values) <= _FEW_TICKS:
            axis.values = sorted(values)
    along = alt.X(field=place, type="quantitative", scale=scale, axis=axis, title=picture.title(x))
    if is_text:  # the description of a point for screen readers has the text, by its title
        along.title, axis.title = "position", picture.title(x)
    scale = picture.scale(*([y, *ends] if same_y else []), log=log_y)
    vertical = picture.number_channel(y) | {"scale": scale}
    up = alt.Y(field=y, **vertical)
    if log_y:
        up.axis = alt.Axis(format="~g", tickCount=3)

    tips = picture.tips(picture.series, x, y, *ends)
    limits = alt.Chart().transform_filter(f"!isValid({field(x)})").encode(tooltip=tips)
    curves = alt.Chart().transform_filter(f"isValid({field(x)})").encode(x=along, tooltip=tips)
    stroke, fill, dash, shape = picture.series_channels()
    line = {"stroke": stroke, "strokeDash": dash}
    width = 1.4 if markers or steps else 0.5
    of_limits = [limits.mark_rule(strokeWidth=width).encode(y=up, **line)]
    layers = []
    if is_crowded:
        behind = curves.copy(deep=False)
        behind.data = picture.data  # its own, and so that of all panels
        for name in switches if len(picture.switches) else ():
            if frame[name].nunique() > 1:
                behind = behind.transform_filter(f"{field(name)} == chosen_{name}")
        behind = behind.mark_line(strokeWidth=0.7, color=_PALE, aria=False)
        layers.append(behind.encode(y=up, detail=alt.Detail(field=picture.series)))
    if ends:
        reach, tests = picture.range(**vertical), f"indexof({json.dumps(banded)}, "
        number = f"{tests}{field(picture.series)})"
        band, bar = (curves.transform_filter(number + test) for test in (" >= 0", " < 0"))
        of_limits.insert(0, limits.mark_rect(opacity=0.13).encode(fill=fill, **reach))
        layers += [
            band.mark_area(opacity=0.2).encode(fill=fill, **reach),
            bar.mark_rule(strokeWidth=0.8).encode(stroke=stroke, **reach),
        ]
    layers += of_limits * bool(frame[x].isna().any())  # without data they have no scale
    curves = curves.encode(y=up)
    if not is_text:
        style = {"interpolate": "step" if steps else "linear"}
        layers.append(curves.mark_line(strokeWidth=width, **style).encode(**line))
    if markers:
        inside = fill.copy()
        if hollow:  # white, not transparent, which would show the line through the marker
            inside.condition = {"test": f"{field(hollow)} > 0", "value": "white"}
        point = curves.mark_point(opacity=1, size=_MARKER, strokeWidth=1.2)
        marked = [name for name, look in picture.looks.items() if look.shape or is_text]
        point = point.transform_filter(
            f"indexof({json.dumps(marked)}, {field(picture.series)}) >= 0"
        )
        layers.append(point.encode(shape=shape, fill=inside, stroke=stroke))
        layers.append(curves.mark_circle(opacity=0, size=200, aria=False))  # to point at
    for name, look in picture.looks.items() if not is_crowded else ():
        key: dict[str, Any] = {"dash": list(look.dash)}
        if is_limit[name] or not is_text:
            key["width"] = width
        # a range without extent, as of a single seed, is not drawn
        low_high = frame.loc[frame[picture.series] == name, ends]
        ranges = bool(ends) and bool((low_high.nunique(axis=1) > 1).any())
        if ranges and (is_limit[name] or name in banded):
            key["band"] = 0.13 if is_limit[name] else 0.2
        elif ranges:
            key["bar"] = 0.8
        if markers and name in marked and not is_limit[name]:
            key |= {"shape": look.shape or "circle", "size": _MARKER}
        picture.add_key(name, **key)
    picture.keys += [{"name": text} for text in _agreements(frame, picture, place, y)]
    if is_crowded:
        name = f"the other {picture.title(series)}s"
        picture.keys.append({"name": name, "colour": _PALE, "dash": [1, 0], "width": 0.7})
    if hollow and markers and frame[hollow].any():
        key = {"shape": "circle", "size": _MARKER, "colour": INK, "fill": "white"}
        picture.keys.append({"name": picture.title(hollow)} | key)
    resolve = {} if same_y else {"y": "independent"}
    return picture.chart(layers, HALF * 0.95, 140, **resolve)


def _agreements(frame: pd.DataFrame, picture: Picture, x: str, y: str) -> list[str]:
    """Sentences on series that have the same values everywhere, of which only the last is seen."""
    places = [*filter(None, [picture.panel]), *picture.switches, x]
    rows = frame.sort_values(places)
    shapes: dict[tuple[Any, ...], list[str]] = {}
    for name in picture.names:
        own = rows[rows[picture.series] == name]
        where = [tuple(map(str, row)) for row in own[places].itertuples(index=False)]
        shapes.setdefault((*where, *own[y].round(12)), []).append(name)
    what, sentences = picture.title(picture.series), []
    for same in shapes.values():
        if len(same) > 1:
            count = _COUNTS[len(same)] if len(same) < len(_COUNTS) else str(len(same))
            listed = f"{', '.join(same[:-1])} and {same[-1]}"
            sentences.append(f"{count} {what}s agree: {listed}")
    return sentences


@skip_validation()
def bars(frame: pd.DataFrame, x: str, y: str, **settings: Any) -> alt.TopLevelMixin:
    """Draw a group of bars for each head, with whiskers from ``low`` to ``high``."""
    picture = Picture(drop_missing(frame, y), **{"columns": 6} | settings)
    ends = picture.ends_of(picture.frame[[y, *picture.ends]].assign(zero=0.0))
    scale = alt.Scale(domain=ends, nice=True) if ends else alt.Scale()
    axis = alt.Axis(labelAngle=0, labelOverlap=True)
    heads = distinct(picture.frame, x)
    _, fill, *_ = picture.series_channels()
    base = alt.Chart().encode(
        x=alt.X(field=x, type="ordinal", sort=heads, title=picture.title(x), axis=axis),
        xOffset=alt.XOffset(field=picture.series, type="nominal", sort=picture.names),
        y=alt.Y(field=y, **picture.number_channel(y), scale=scale),
        tooltip=picture.tips(picture.panel, x, picture.series, y, *picture.ends),
    )
    layers = [base.mark_bar().encode(fill=fill)]
    if picture.ends:
        whisker = base.mark_rule(color=INK, strokeWidth=0.8)
        layers.append(whisker.encode(**picture.range(**picture.number_channel(y))))
    for name in picture.names:
        picture.add_key(name, patch=True)
    width = max(HALF / picture.columns, len(heads) * (4 + 9 * len(picture.names)))
    return picture.chart(layers, width, 120, x="independent", xOffset="independent")


@skip_validation()
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
    frame, side = drop_missing(frame, x, y), HALF * 0.75
    is_named = bool(name) and frame[name].nunique() <= _NAMED_POINTS
    if is_named:
        frame = frame.reset_index(drop=True)
        low, high = (settings.get(end) or y for end in ("low", "high"))
        # names avoid those of the same panel and setting, which alone are shown together; Vega does
        # not place labels, so that positions in points are worked out here, for two sizes of panels
        groups = [*filter(None, [settings.get("panel")]), *settings.get("switches", ())]
        for size, share in _NAME_SIZES.items():
            columns = [f"dx_{size}", f"dy_{size}"]
            frame[columns] = 0.0
            for _, rows in frame.groupby(groups) if groups else [("", frame)]:
                across = 0.85 * side / max(np.ptp((frame if same_x else rows)[x]), 1e-300)
                down = side / max(frame[high].max() - frame[low].min(), 1e-300)
                positions = rows[[x, y, low, high]].to_numpy(float) * [across, *[-down] * 3]
                frame.loc[rows.index, columns] = _name_shifts(share * positions, rows[name])
    picture = Picture(frame, **settings)
    frame, ends = picture.frame, picture.ends
    bent = [reference != "diagonal" and _has_dominant(frame, settings, name) for name in (y, x)]
    up = picture.scale(y, *ends, kind="root" * bent[0])
    along = picture.scale(*([x] if same_x else []), kind="root" * bent[1])
    titles = [
        picture.number_channel(name)
        | {"title": picture.title(name) + ", cube-root scale" * is_bent}
        for name, is_bent in zip((y, x), bent, strict=True)
    ]
    line = alt.Chart().mark_rule(color=GREY, strokeDash=[2, 2], strokeWidth=0.8, aria=False)
    layers = []
    if reference == "diagonal":
        up = along = picture.scale(x, y, *ends)
        start = alt.datum(up.domain[0], type="quantitative")
        end = alt.datum(up.domain[1])
        layers = [line.encode(x=start, y=start, x2=end, y2=end)]
    elif reference == "zero":
        layers = [line.encode(y=alt.datum(0, type="quantitative"))]
    base = alt.Chart().encode(
        x=alt.X(field=x, **titles[1], scale=along, axis=alt.Axis(labelOverlap="greedy")),
        y=alt.Y(field=y, **titles[0], scale=up),
        tooltip=picture.tips(name, picture.panel, picture.series, x, y, *ends),
    )
    stroke, fill, _, shape = picture.series_channels()
    if ends:
        whisker = base.mark_rule(strokeWidth=0.6).encode(stroke=stroke)
        layers.append(whisker.encode(**picture.range(**titles[0], scale=up)))
    size = 20 if len(frame) <= _FEW_POINTS else 6
    point = base.mark_point(opacity=0.9, size=size)
    for series, look in picture.looks.items():
        bar = {"bar": 0.6} if ends else {}
        picture.add_key(series, shape=look.shape, size=size, edge=0.5, **bar)
    layers.append(point.encode(shape=shape, fill=fill, stroke=stroke))
    if is_named:
        shift = {key: alt.ExprRef(f"datum.{key}_") for key in ("dx", "dy")}
        text = base.transform_filter("isValid(datum.dx_)").mark_text(fontSize=7, color=INK, **shift)
        layers.append(text.encode(text=alt.Text(field=name, type="nominal")))
    resolve = {} if same_x else {"x": "independent"}
    return picture.chart(layers, side, side, **resolve)


def _has_dominant(frame: pd.DataFrame, settings: dict[str, Any], column: str) -> bool:
    """Whether in a panel few values dwarf all others, which a linear axis would draw as one."""
    panel = settings.get("panel")
    for _, rows in frame.groupby(panel) if panel else [("", frame)]:
        sizes = rows[column].abs()
        if sizes.max() > _DOMINANT * sizes.quantile(0.9) > 0:
            return True
    return False


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
            covered += 2 * (centre[0] + option[0] - half[0] < x.min() - _EDGE)
            if covered < overlap:
                shift, overlap = option, covered
        shifts.append(shift)
        if overlap < 2:  # to touch one point is better than to leave the name out
            centres.append(centre + shift)
            halves.append(half)
    return shifts


@skip_validation()
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
        Ends of the scale, by default from :func:`heat_domain` for what one setting shows. Where
        values lie beyond, the names of the ends say "≤" and "≥".
    edges : collection
        Values along both axes before which a line divides the cells, such as starts of classes.
    """
    drop_missing(frame, value)
    size = max(frame[x].nunique(), frame[y].nunique())
    labels = size <= _LABELLED and not pd.api.types.is_numeric_dtype(frame[x])
    with_values = centred and size <= _WITH_VALUES
    step = (
        max(25.0, 80 / size) if with_values else min(25.0, max(9.0 if labels else 1.0, 150 / size))
    )
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
    axis = alt.Axis(labelOverlap=True) if labels else alt.Axis(values=[])
    has_sizes = False
    if picture.turned:  # of matrices of several sizes, each fills its panel
        sizes = frame.dropna(subset=value).groupby(picture.turned)[x].nunique()
        has_sizes = sizes.nunique() > 1
    horizontal, vertical = (
        {"type": "ordinal", "axis": axis, "title": title}
        | ({"sort": None} if has_sizes else {"scale": alt.Scale(domain=values)})
        for values, title in ((keys, picture.title(x)), (down, picture.title(y)))
    )
    base = (
        alt.Chart()
        .transform_fold(list(map(_escape_column, keys)), as_=["column_", "cell_"])
        # cells are text, in which a missing value is empty: toNumber would make it 0
        .transform_calculate(cell_=f"{cell} === '' ? null : toNumber({cell})")
        .encode(
            x=alt.X(field="column_", **horizontal),
            y=alt.Y(field=y, **vertical),
            tooltip=[
                *picture.tips(y),
                alt.Tooltip(field="column_", type="nominal", title=picture.title(x)),
                alt.Tooltip(field="cell_", **picture.number_channel(value), format=".4~g"),
            ],
        )
    )
    if has_sizes:
        base = base.transform_filter(f"isValid({cell})")
    scheme = {"scheme": "redblue", "reverse": True} if centred else {"scheme": "cividis"}
    low, high, says = _heat_ends(picture, value, domain)
    length = max(50, min(120, step * len(down)))
    colour = alt.Color(
        field="cell_",
        **picture.number_channel(value),
        scale=alt.Scale(domain=[low, high], clamp=True, **scheme),
        legend=alt.Legend(orient="right", gradientLength=length, **says),
    )
    full = {"width": alt.RelativeBandSize(1.03), "height": alt.RelativeBandSize(1.03)}  # no seams
    layers = [base.mark_rect(aria=with_values, **full).encode(color=colour)]
    if with_values:
        limit = high.expr if isinstance(high, alt.ExprRef) else f"{high:.6g}"
        share = f"{cell} / ({limit})"
        # two digits, or a power of ten where all values are tiny, of those that a colour shows
        tiny = f"abs({share}) < 0.005 ? '0' : format({cell}, '.0e')"
        written = f"({limit}) < 0.005 ? ({tiny}) : format({cell}, '.2f')"
        text = base.transform_filter(f"isValid({cell})").transform_calculate(text_=written)
        text = text.mark_text(fontSize=7, aria=False)
        layers.append(
            text.encode(
                text=alt.Text(field="text_", type="nominal"),
                color=_number_colours(share),
            )
        )
    if edges:
        starts = alt.InlineData(values=[{"column": str(edge), "row": edge} for edge in edges])
        # black within white, which shows on any colour
        for colour, width in ((BLACK, 0.7),) if centred else (("white", 1.8), (BLACK, 0.6)):
            line = alt.Chart(starts).mark_rule(color=colour, strokeWidth=width, aria=False)
            layers.append(line.encode(x=alt.X(field="column", bandPosition=0, **horizontal)))
            layers.append(line.encode(y=alt.Y(field="row", bandPosition=0, **vertical)))
    return picture.chart(layers, step * len(across), step * len(down), exact=True)


def _number_colours(share: str) -> dict[str, Any]:
    """Colours of numbers in cells, by an expression of the value in parts of the end of the scale.

    Each has a contrast of 4.5 with its cell, also with one that a dark page turns over: there white
    becomes black and "#000000" white, while "black" stays.
    """
    tests = {
        colour: f"{share} > {above} || {share} < -{below}"
        for colour, (above, below) in _NUMBERS_FROM.items()
    }
    conditions = [{"test": test, "value": colour} for colour, test in tests.items()]
    return {"condition": conditions, "value": BLACK}


def heat_domain(values: pd.Series) -> tuple[float, float]:
    """Return the ends of a scale around zero, for all values unless a few of many dwarf the rest.

    That is if the largest is more than twice the ninety-ninth percentile, which then is the end.
    """
    # few large entries of U would leave all others white
    sizes = values.dropna().abs()
    high, most = float(sizes.quantile(0.99)), float(sizes.max())
    high = (high if len(sizes) > 400 and 0 < 2 * high < most else most) or 1.0
    return -high, high


def _heat_ends(
    picture: Picture, value: str, domain: tuple[float, float] | None
) -> tuple[Any, Any, dict[str, Any]]:
    """Ends of the colours for what one setting shows, and labels that say where they are cut."""
    frame, numbers = picture.frame.reset_index(drop=True), picture.frame[value].to_numpy(float)
    turned = picture.turned
    groups = frame.groupby(turned, sort=False)[value] if turned else [("", frame[value])]
    lows, highs = np.zeros(len(frame)), np.zeros(len(frame))
    for _, rows in groups:
        lows[rows.index], highs[rows.index] = domain or heat_domain(rows)
    low = (picture.ends_of(pd.DataFrame({"end": lows})) or [0.0])[0]
    high = (picture.ends_of(pd.DataFrame({"end": highs})) or [1.0])[-1]
    tests = {"≤": numbers < lows * (1 + 1e-9), "≥": numbers > highs * (1 + 1e-9)}
    is_cut = {sign: bool(np.any(test)) for sign, test in tests.items()}
    if not any(is_cut.values()):
        return low, high, {}
    ends = [end.expr if isinstance(end, alt.ExprRef) else f"{end!r}" for end in (low, high)]
    # the ends alone are printed: only there is a label that can say what lies beyond
    signs = [f"'{sign} ' + " * is_cut[sign] for sign in tests]
    texts = [f"{sign}format({end}, '.3~g')" for sign, end in zip(signs, ends, strict=True)]
    label = f"abs(datum.value - ({ends[0]})) < 1e-9 * abs({ends[1]}) ? {texts[0]} : "
    label += f"abs(datum.value - ({ends[1]})) < 1e-9 * abs({ends[1]}) ? {texts[1]} : "
    values = alt.ExprRef(f"[{ends[0]}, (({ends[0]}) + ({ends[1]})) / 2, {ends[1]}]")
    return low, high, {"values": values, "labelExpr": label + "format(datum.value, '.3~g')"}


@skip_validation()
def chart_grid(*charts: alt.TopLevelMixin, columns: int = 1) -> alt.TopLevelMixin:
    """Join charts of the same series under one title, setting and legend."""
    # the heading is read from the outermost chart; all have one setting, so that one is enough
    grid = alt.concat(*charts, columns=columns)
    keys = {key["name"]: key for chart in charts for key in chart.usermeta["keys"]}
    grid.title = charts[0].title
    grid.usermeta = charts[0].usermeta | {"keys": list(keys.values())}
    for chart in grid.concat:
        chart.title = chart.usermeta = alt.Undefined
    return grid


def _escape_column(name: str) -> str:
    """Escape a column name for Vega, which reads dots and brackets as parts of a path."""
    return "".join(f"\\{sign}" if sign in ".[]\\\"'" else sign for sign in name)
