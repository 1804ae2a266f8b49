"""A map drawn: coloured surfaces, crossings and spinodals, and names of regions."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_phases.phase_plane import cross
from pathkernel_phases.surface import CELLS, surface
from pathkernel_views.chart import GREY, INK, RUST
from pathkernel_views.chart_panels import text_width

if TYPE_CHECKING:
    import altair as alt

CROSSING = "crossing"
ENDS = {"silent": "end of a silent minimum", "in use": "end of a minimum in use"}
_DASHES = {CROSSING: [1, 0], ENDS["silent"]: [6, 2], ENDS["in use"]: [1.5, 2]}
_SHAPES = {CROSSING: "circle", ENDS["silent"]: "triangle-up", ENDS["in use"]: "triangle-down"}
_OVERLAP = 0.005  # of cells, as a share of the axis: without it seams would show between them
_PANEL = 190, 140
_COLUMNS = 2
_BAR = 75  # length of a key of colours: of a panel in a column of a paper
_LETTERS = 7  # font size of the names of regions
_NARROW = 105, 75  # points of a panel in a column of a paper, 3.4 inches
_CANDIDATES, _NODES = 24, 6  # places tried along each axis, and points of the grid near each
_PARTS = 5  # of a side of a cell that a crossing passes
_LINE = 1.4  # width of the curves of one seed


@dataclass(frozen=True)
class Panel:
    """One coloured panel of a map.

    Attributes
    ----------
    column : str
        Variable over the grid.
    of_states : str
        Variable of the minima on both sides of a crossing; empty where only the grid is coloured.
    title : str
    domain : (float, float)
        Range of colours, the same on all maps of a study.
    logarithmic : bool
    """

    column: str
    of_states: str
    title: str
    domain: tuple[float, float]
    logarithmic: bool = False


def draw_map(
    phases: xr.Dataset,
    curves: pd.DataFrame,
    axes: Mapping[str, str],
    panels: Sequence[Panel],
) -> alt.TopLevelMixin:
    """Draw panels over two axes, with the curves of every seed.

    Parameters
    ----------
    phases : xarray.Dataset
        Variables of the panels, and ``state`` and ``strongest_path``; dims (seed, both axes).
    curves : DataFrame
        Points of curves in order, from
        :func:`pathkernel_phases.phase_map.stored_phase_curves`.
    axes : mapping
        Names of the two axes, in the order of x and y, and their titles.
    panels : sequence of Panel
    """
    import altair as alt

    names = list(axes)
    values = [phases[name].values for name in names]
    edges = [_edges(axis) for axis in values]
    charts = []
    for number, panel in enumerate(panels):
        # neighbours share their axes: x those of a column, y those of a row
        is_outer = number >= len(panels) - _COLUMNS, number % _COLUMNS == 0
        channels = {
            name: {
                "title": title,
                "type": "quantitative",
                "scale": alt.Scale(type="log", domain=[edge[0], edge[-1]], nice=False),
                "axis": alt.Axis(
                    values=ticks(edge[0], edge[-1]),
                    format="~g",
                    labelOverlap=False,
                    **({} if outer else {"title": None, "labels": False}),
                ),
            }
            for (name, title), edge, outer in zip(axes.items(), edges, is_outer)
        }
        cells = _cells(_colour_cells(phases, curves, names, panel), panel, names, channels)
        layers = [cells, *_lines(curves, names, channels)]
        if not number:
            layers += _region_labels(phases, curves, names, channels)
        width, height = _PANEL
        charts.append(alt.layer(*layers).properties(width=width, height=height, title=panel.title))
    return alt.concat(*charts, columns=_COLUMNS, spacing=8).resolve_scale(
        color="independent", strokeDash="shared", shape="shared"
    )


def ticks(low: float, high: float) -> list[float]:
    """Decades of a logarithmic axis; 1, 2 and 5 in each where there are fewer than two."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)

    def inside(candidates: np.ndarray) -> list[float]:
        within = (candidates > low * (1 - 1e-9)) & (candidates < high * (1 + 1e-9))
        return [float(f"{value:.3g}") for value in candidates[within]]

    if len(inside(decades)) > 1:
        return inside(decades)
    return inside(np.sort(np.concatenate([decades, 2 * decades, 5 * decades])))


def _is_plane(phases: xr.Dataset, names: Sequence[str]) -> bool:
    return all(phases.sizes[name] > 1 for name in names)


def _edges(values: np.ndarray) -> np.ndarray:
    """Edges of cells around values on a logarithmic axis, from the first value to the last."""
    logs = np.log(np.asarray(values, dtype=float))
    if len(logs) == 1:
        return np.exp([logs[0] - 0.3, logs[0] + 0.3])
    return np.exp(np.concatenate([logs[:1], (logs[1:] + logs[:-1]) / 2, logs[-1:]]))


def _colour_cells(
    phases: xr.Dataset, curves: pd.DataFrame, names: Sequence[str], panel: Panel
) -> pd.DataFrame:
    """Cells of a panel with their values: medians over the seeds."""
    axes = [phases[name].values for name in names]
    if panel.of_states and _is_plane(phases, names) and _are_followed(curves):
        low, size = _fine_cells(curves, axes, names)
        of_seeds = [
            surface(
                axes,
                phases[panel.column].sel(seed=seed).transpose(*names).values,
                _two_sided(curves[curves["seed"] == seed], names, panel.of_states),
                panel.logarithmic,
                low + size / 2,
            )
            for seed in phases["seed"].values
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of cells without values
            values = np.nanmedian(of_seeds, axis=0)
        columns: dict[str, Any] = {"value": values}
        for name, axis, start, extent in zip(names, axes, low.T, size.T, strict=True):
            reach = np.minimum(start + extent + _OVERLAP, 1.0)
            for end, share in (("low", start), ("high", reach)):
                columns[f"{name}_{end}"] = axis[0] * (axis[-1] / axis[0]) ** share
        return pd.DataFrame(columns).dropna(subset=["value"])
    else:
        of_seeds = phases[panel.column].transpose("seed", *names).values
        # the lower of two in the middle: of numbers of minima there is none in between
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            values = np.nanpercentile(of_seeds, 50, axis=0, method="lower")
        edges = [_edges(axis) for axis in axes]
    columns = {"value": values.reshape(-1)}
    for parameter, (name, edge) in enumerate(zip(names, edges)):
        index = np.indices(values.shape)[parameter].reshape(-1)
        ratio = (edge[-1] / edge[0]) ** _OVERLAP
        columns[f"{name}_low"] = edge[index]
        columns[f"{name}_high"] = np.minimum(edge[index + 1] * ratio, edge[-1])
    return pd.DataFrame(columns).dropna(subset=["value"])


def _fine_cells(
    curves: pd.DataFrame, axes: Sequence[np.ndarray], names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Lower corners and sizes of cells, (cell, 2), in parts of the axes; small along crossings.

    So small that the line of a crossing hides the stairs of cells on both its sides.
    """
    is_crossed = np.zeros((CELLS, CELLS), dtype=bool)
    for _, curve in curves[curves["kind"] == CROSSING].groupby(["seed", "curve"]):
        line = [
            np.log(curve[f"vertex_{name}"] / axis[0]) / np.log(axis[-1] / axis[0])
            for name, axis in zip(names, axes, strict=True)
        ]
        # no step is longer than a part of a cell
        ends = np.column_stack(line)
        steps = np.abs(np.diff(ends, axis=0)).max(axis=1, initial=0.0)
        count = 2 + int(4 * CELLS * steps.max(initial=0.0))
        shares = np.linspace(0, len(ends) - 1, (len(ends) - 1) * count + 1)
        dense = np.column_stack([np.interp(shares, np.arange(len(ends)), x) for x in ends.T])
        index = np.clip((dense * CELLS).astype(int), 0, CELLS - 1)
        is_crossed[index[:, 0], index[:, 1]] = True
    coarse, crossed = (np.argwhere(mask) / CELLS for mask in (~is_crossed, is_crossed))
    inside = np.stack(np.meshgrid(*[np.arange(_PARTS)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    fine = (crossed[:, None] + inside / (_PARTS * CELLS)).reshape(-1, 2)
    sizes = np.repeat([1 / CELLS, 1 / (_PARTS * CELLS)], [len(coarse), len(fine)])
    return np.concatenate([coarse, fine]), np.column_stack([sizes, sizes])


def _are_followed(curves: pd.DataFrame) -> bool:
    """Whether curves have several points, or there is none, so that the surface is smooth."""
    sizes = curves.groupby(["seed", "curve"]).size()
    return sizes.empty or bool((sizes > 1).any())


def _two_sided(curves: pd.DataFrame, names: Sequence[str], column: str) -> list[pd.DataFrame]:
    crossings = curves[curves["kind"] == "crossing"]
    first, second = (f"vertex_{name}" for name in names)
    columns = {
        first: "first",
        second: "second",
        f"{column}_left": "left",
        f"{column}_right": "right",
    }
    return [
        curve.rename(columns=columns)[list(columns.values())]
        for _, curve in crossings.groupby("curve")
    ]


def _cells(
    frame: pd.DataFrame, panel: Panel, names: Sequence[str], channels: Mapping[str, dict[str, Any]]
) -> alt.Chart:
    """Coloured cells of a panel; a point without a value is left white."""
    import altair as alt

    from pathkernel_views.picture import inline

    is_count = not panel.of_states
    low, high = panel.domain
    colour = alt.Color(
        field="value",
        type="ordinal" if is_count else "quantitative",
        title=None,
        scale=alt.Scale(scheme="greys", domain=list(range(int(low), int(high) + 1)))
        if is_count
        else alt.Scale(
            scheme="viridis", type="log" if panel.logarithmic else "linear", domain=[low, high]
        ),
        legend=alt.Legend(
            orient="top",
            gradientLength=_BAR,
            gradientThickness=7,
            format="~g",
            offset=2,
            **(_powers(_colour_ticks(low, high)) if panel.logarithmic else {}),
            **({"symbolStrokeColor": GREY, "symbolStrokeWidth": 0.5} if is_count else {}),
        ),
    )
    (x_name, x), (y_name, y) = ((name, channels[name]) for name in names)
    return (
        alt.Chart(inline(frame))
        .mark_rect()
        .encode(
            x=alt.X(field=f"{x_name}_low", **x),
            x2=alt.X2(field=f"{x_name}_high"),
            y=alt.Y(field=f"{y_name}_low", **y),
            y2=alt.Y2(field=f"{y_name}_high"),
            color=colour,
            tooltip=[
                alt.Tooltip(field=column, type="quantitative", title=title, format=".4~g")
                for column, title in (
                    (f"{x_name}_low", x["title"]),
                    (f"{y_name}_low", y["title"]),
                    ("value", panel.title),
                )
            ],
        )
    )


def _colour_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, at most three, for the key of a logarithmic scale of colours."""
    powers = np.arange(np.ceil(np.log10(low)), np.floor(np.log10(high)) + 1)
    step = max(1, int(np.ceil(len(powers) / 3)))
    return [float(f"1e{int(power)}") for power in powers[::step]]


def _powers(values: Sequence[float]) -> dict[str, Any]:
    """Powers of ten in the key of colours, written as 10, 10² and so on."""
    labels = {}
    for value in values:
        power = round(np.log10(value))
        exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        labels[power] = {0: "1", 1: "10"}.get(power, f"10{exponent}")
    return {
        "values": list(values),
        "labelExpr": f"({json.dumps(labels, ensure_ascii=False)})[round(log(datum.value) / LN10)]",
    }


def _lines(
    curves: pd.DataFrame, names: Sequence[str], channels: Mapping[str, dict[str, Any]]
) -> list[alt.Chart]:
    """Curves of every seed over a white seam; points where they could not be followed."""
    import altair as alt

    from pathkernel_views.picture import inline

    if curves.empty:
        return []
    states = curves["branch_state_left"].where(
        curves["branch_state_left"] != "", curves["branch_state_right"]
    )
    # a curve of ends is of one state, that of most of its points
    groups = [curves["seed"], curves["curve"]]
    common = states.groupby(groups).transform(lambda of_curve: of_curve.mode().iloc[0])
    line = np.where(curves["kind"] == "crossing", CROSSING, common.map(ENDS))
    columns = [f"vertex_{name}" for name in names]
    frame = curves[["seed", "curve", *columns]].assign(line=line)
    frame["order"] = frame.groupby(["seed", "curve"]).cumcount()
    sizes = frame.groupby(["seed", "curve"])["order"].transform("size")
    kinds = [kind for kind in _DASHES if (frame["line"] == kind).any()]
    x, y = (channels[name] for name in names)
    thin = _LINE if frame["seed"].nunique() == 1 else _LINE / 2
    layers = []
    followed, single = frame[sizes > 1], frame[sizes == 1]
    if not followed.empty:
        base = alt.Chart(inline(followed)).encode(
            x=alt.X(field=columns[0], **x),
            y=alt.Y(field=columns[1], **y),
            detail=["seed:N", "curve:N"],
            order=alt.Order(field="order", type="quantitative"),
        )
        dash = alt.StrokeDash(
            "line:N",
            title=None,
            scale=alt.Scale(domain=kinds, range=[_DASHES[kind] for kind in kinds]),
            legend=alt.Legend(
                symbolStrokeColor=RUST, symbolType="M-2,0L2,0", symbolSize=160, columns=1
            ),
        )
        layers += [
            base.mark_line(clip=True, color="white", strokeWidth=thin + 1.6),
            base.mark_line(clip=True, color=RUST, strokeWidth=thin).encode(strokeDash=dash),
        ]
    if not single.empty:
        shape = alt.Shape(
            "line:N",
            title=None,
            scale=alt.Scale(domain=kinds, range=[_SHAPES[kind] for kind in kinds]),
            legend=alt.Legend(symbolFillColor=RUST, columns=1),
        )
        layers.append(
            alt.Chart(inline(single))
            .mark_point(clip=True, fill=RUST, stroke="white", strokeWidth=0.8, size=36)
            .encode(x=alt.X(field=columns[0], **x), y=alt.Y(field=columns[1], **y), shape=shape)
        )
    return layers


def _region_labels(
    phases: xr.Dataset,
    curves: pd.DataFrame,
    names: Sequence[str],
    channels: Mapping[str, dict[str, Any]],
) -> list[alt.Chart]:
    """Names of the regions of the first seed, each where it is farthest from all curves."""
    import altair as alt

    from pathkernel_views.picture import inline

    if not _is_plane(phases, names):
        return []
    first = phases.isel(seed=0).transpose(*names, ...)
    of_seed = curves[curves["seed"] == first["seed"].item()]
    rows = []
    texts = {}
    for region in np.unique(first["region"].values[np.isfinite(first["region"].values)]):
        index = tuple(np.argwhere(first["region"].values == region)[0])
        state, path = (str(first[name].values[index]) for name in ("state", "strongest_path"))
        texts[int(region)] = state if state == "silent" else path
    half = {
        region: np.array([text_width(text, _LETTERS) / 2 + 2, _LETTERS / 2 + 1]) / _NARROW
        for region, text in texts.items()
    }
    for region, place in label_places(first, of_seed, names, half).items():
        rows.append({"text": texts[region], **dict(zip(names, place))})
    x, y = (channels[name] for name in names)
    base = alt.Chart(inline(pd.DataFrame(rows, columns=["text", *names]))).encode(
        x=alt.X(field=names[0], **x), y=alt.Y(field=names[1], **y), text="text:N"
    )
    return [
        base.mark_text(fontSize=_LETTERS, stroke="white", strokeWidth=3, strokeOpacity=0.85),
        base.mark_text(fontSize=_LETTERS, fill=INK),
    ]


def label_places(
    phases: xr.Dataset,
    curves: pd.DataFrame,
    names: Sequence[str],
    halves: Mapping[int, np.ndarray],
) -> dict[int, np.ndarray]:
    """Values of both axes at which the name of each region stands clear of curves.

    ``halves`` are half the width and height of each name, in parts of the panel: none crosses an
    axis.
    """
    regions = phases["region"].values
    axes = [np.log(phases[name].values) for name in names]
    spans = [(axis - axis[0]) / (axis[-1] - axis[0]) for axis in axes]
    nodes = np.stack(np.meshgrid(*spans, indexing="ij"), axis=-1)[np.isfinite(regions)]
    numbers = regions[np.isfinite(regions)].astype(int)
    lines = [
        np.column_stack(
            [
                (np.log(curve[f"vertex_{name}"]) - axis[0]) / (axis[-1] - axis[0])
                for name, axis in zip(names, axes)
            ]
        )
        for _, curve in curves.groupby("curve")
    ]
    kinds = curves.groupby("curve")["kind"].first()
    crossings = [line for line, kind in zip(lines, kinds) if kind == CROSSING]
    obstacles = np.concatenate([nodes[:0], *map(_densify, lines)])
    places: dict[int, tuple[float, np.ndarray]] = {}
    steps = (np.arange(_CANDIDATES) + 0.5) / _CANDIDATES
    for candidate in np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2):
        nearest = np.argsort(np.linalg.norm(nodes - candidate, axis=1))[:_NODES]
        # the nearest on the same side of all crossings tells the region
        seen = (n for n in nearest if not any(cross(c, candidate, nodes[n]) for c in crossings))
        node = next(seen, None)
        if node is None:
            continue
        region = int(numbers[node])
        half = halves[region]
        # a name at a border moves inwards, no further than it must
        place = np.clip(candidate, np.minimum(half, 0.5), np.maximum(1 - half, 0.5))
        clear = -float((np.abs(place - candidate) / half).max())
        if len(obstacles):
            clear += min(2.0, float((np.abs(obstacles - place) / half).max(axis=1).min()))
        if region not in places or clear > places[region][0] + 1e-9:
            places[region] = clear, place
    return {
        region: np.exp([axis[0] + share * (axis[-1] - axis[0]) for axis, share in zip(axes, place)])
        for region, (_, place) in sorted(places.items())
    }


def _densify(line: np.ndarray) -> np.ndarray:
    """Points along a line of vertices (vertex, 2), close to each other."""
    shares = np.arange(0, len(line) - 1 + 1e-9, 0.1)
    return np.column_stack([np.interp(shares, np.arange(len(line)), part) for part in line.T])
