"""The map of a study as charts over two axes, and its crossings as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.selection import number
from pathkernel_datasets.stored_study import StoredStudy
from pathkernel_phases.phase_map import NAME, stored_maps
from pathkernel_views.chart import ORANGE, Chart
from pathkernel_views.table import Table, labelled_frame

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

MOST = 4  # maps of further values of a third axis are left to the dataset
_LABELS = {
    "crossing": "crossing of two branches",
    "lower_spinodal": "end of the branch above the crossing",
    "upper_spinodal": "end of the branch below the crossing",
}
_KINDS = {"crossing": "crossing", "lower_spinodal": "spinodal", "upper_spinodal": "spinodal"}
_TITLES = {
    "width": "width N",
    "temperature": "temperature T",
    "variance": "prior variance σ²",
    "input_scale": "scale of the inputs",
}


def phase_views(study: StoredStudy) -> Iterator[Table | Chart | str]:
    """Maps of a study over its two axes of most values, and a table of the crossings."""
    maps, seeds = stored_maps(study), study.dataset["seed"].values.tolist()
    for axis in study.result(NAME).children:
        shown = maps[axis]["seed"].values.tolist() if axis in maps else ()
        if missing := [f"{seed}" for seed in seeds if seed not in shown]:
            yield (
                f"The map along {_title(axis)} lacks {'seed' if len(missing) == 1 else 'seeds'} "
                f"{', '.join(missing)}, since the study has grown; run again: pathkernel phases "
                f"{study.path} --axis {axis}"
            )
    for axis, phases in maps.items():
        measure = measures_of(study.dataset)[0]
        accuracy = study.dataset[measure.name].isel(test_set=0, drop=True)
        phases = phases.assign({measure.name: accuracy.sel({d: phases[d] for d in accuracy.dims})})
        yield crossings_table(phases, axis)
        second, *rest = _other_axes(phases, axis)
        panels = {
            measure.name: measure.axis,
            "trace_ratio": "tr U / limit",
            "softest": "softest eigenvalue",
            "minima": "number of minima",
        }
        combinations = phases.stack(rest=rest)["rest"].values.tolist() if rest else [()]
        for values in combinations[:MOST]:
            settings = dict(zip(rest, values))
            labels = ", ".join(f"{_symbol(name)} = {number(v)}" for name, v in settings.items())
            names = "".join(f"_{name}_{number(v)}" for name, v in settings.items())
            yield Chart(
                f"phases_{axis}_{second}{names}",
                "Phases" + f", {labels}" * bool(labels),
                f"{panels[measure.name].capitalize()}, trace of U relative to the Gaussian process "
                "limit, smallest eigenvalue of the action's Hessian, and number of minima that a "
                f"search found, over {_title(axis)} and {_title(second)}"
                + f", at {labels}"
                * bool(labels)
                + ". Medians over the seeds. Solid line: crossing, where two branches of minima "
                "have the same action. Dashed lines: spinodals, where the branches end.",
                partial(_draw, phases.sel(settings), axis, second, panels),
            )
        if len(combinations) > MOST:
            yield f"Maps of {MOST} of {len(combinations)} values of {', '.join(rest)} are drawn."


def crossings_table(phases: xr.Dataset, axis: str) -> Table:
    """Crossings and spinodals, a row for every seed and point of the other axes."""
    lines = phases[list(_LABELS)].load()
    frame = lines.to_dataframe().reset_index().drop(columns="transition")
    frame = frame.dropna(subset=["crossing"])
    names = [name for name in frame if name not in _LABELS]
    cells = {_symbol(str(name)): f"{{{name}}}" for name in names}
    cells |= {
        "lower spinodal": "{lower_spinodal:.4g}",
        "crossing": "{crossing:.4g}",
        "upper spinodal": "{upper_spinodal:.4g}",
    }
    evaluations = phases.attrs.get("evaluations")
    return Table(
        f"crossings_{axis}",
        f"Crossings of branches of minima along {_title(axis)}",
        labelled_frame(frame, {**_LABELS, **_TITLES}, {}),
        cells,
        "Below the crossing one branch has the lowest action, above it the other. Each continues "
        'beyond it up to its spinodal; "-": it reaches the end of the range that was searched.'
        + (f" Evaluations of the energy: {evaluations}." if evaluations else ""),
    )


def _other_axes(phases: xr.Dataset, axis: str) -> list[str]:
    """Axes besides the first, the one of most values in front; of one value only if alone."""
    dims = [str(dim) for dim in phases["softest"].dims if dim not in (axis, "seed")]
    dims.sort(key=lambda dim: -phases.sizes[dim])
    return dims


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " "))


def _symbol(name: str) -> str:
    symbols = {"width": "N", "temperature": "T", "variance": "σ²", "input_scale": "input scale"}
    return symbols.get(name, name.replace("_", " "))


def _edges(values: Sequence[float]) -> np.ndarray:
    """Edges of cells around values on a logarithmic axis."""
    # Vega's bands are of equal width: cells between middles of neighbours keep uneven grids true
    logs = np.log(np.asarray(values, dtype=float))
    if len(logs) == 1:
        return np.exp([logs[0] - 0.3, logs[0] + 0.3])
    middles = (logs[1:] + logs[:-1]) / 2
    ends = [2 * logs[0] - middles[0], 2 * logs[-1] - middles[-1]]
    return np.exp(np.concatenate([ends[:1], middles, ends[1:]]))


def _draw(phases: xr.Dataset, axis: str, second: str, panels: dict[str, str]) -> alt.TopLevelMixin:
    import altair as alt

    frame = phases[list(panels)].median("seed").to_dataframe().reset_index()
    settings = {}
    for name in (axis, second):
        values = phases[name].values
        edges = _edges(values)
        index = np.searchsorted(values, frame[name])
        frame[f"{name}_low"], frame[f"{name}_high"] = edges[index], edges[index + 1]
        settings[name] = {
            "title": _title(name),
            "scale": alt.Scale(type="log", domain=[edges[0], edges[-1]], nice=False),
            "axis": alt.Axis(values=values.tolist(), format="~g", labelOverlap="greedy"),
        }
    curves = _curves(phases, axis, second, settings)
    charts = [
        alt.layer(_cells(frame, name, axis, second, settings), *curves).properties(
            width=150, height=130, title=title
        )
        for name, title in panels.items()
    ]
    return alt.concat(*charts, columns=2).resolve_scale(color="independent", strokeDash="shared")


def _cells(
    frame: pd.DataFrame, name: str, axis: str, second: str, settings: dict[str, Any]
) -> alt.Chart:
    """Coloured cells of a panel; a point without a value is left white."""
    import altair as alt

    from pathkernel_views.picture import inline

    frame, is_count = frame.dropna(subset=[name]), name == "minima"
    kind = "log" if name == "trace_ratio" else "linear"
    legend = alt.Legend(orient="right", gradientLength=110, format="~g")
    colour = alt.Color(
        field=name,
        type="ordinal" if is_count else "quantitative",
        title=None,
        scale=alt.Scale(scheme="greys") if is_count else alt.Scale(scheme="viridis", type=kind),
        legend=legend,
    )
    return (
        alt.Chart(inline(frame))
        .mark_rect()
        .encode(
            x=alt.X(field=f"{axis}_low", type="quantitative", **settings[axis]),
            x2=alt.X2(field=f"{axis}_high"),
            y=alt.Y(field=f"{second}_low", type="quantitative", **settings[second]),
            y2=alt.Y2(field=f"{second}_high"),
            color=colour,
            tooltip=[
                alt.Tooltip(field=field, type="quantitative", title=_symbol(field), format=".4~g")
                for field in (axis, second, name)
            ],
        )
    )


def _curves(
    phases: xr.Dataset, axis: str, second: str, settings: dict[str, Any]
) -> list[alt.Chart]:
    """Crossings and spinodals of every seed over a white seam; breaks where there are none."""
    import altair as alt

    from pathkernel_views.picture import inline

    frame = phases[list(_KINDS)].to_dataframe().reset_index()
    frame = frame.melt(["seed", second, "transition"], list(_KINDS), "branch", "value")
    frame["line"] = frame["branch"].map(_KINDS)
    # lines without any point would be in the legend; single missing points stay, and break a line
    curves = frame.groupby(["seed", "transition", "branch"])["value"]
    frame = frame[curves.transform("count") > 0]
    if frame.empty:
        return []
    base = alt.Chart(inline(frame)).encode(
        x=alt.X(field="value", type="quantitative", **settings[axis]),
        y=alt.Y(field=second, type="quantitative", **settings[second]),
        detail=["seed:N", "transition:N", "branch:N"],
        order=alt.Order(field=second, type="quantitative"),
    )
    dashes = alt.StrokeDash(
        "line:N",
        title=None,
        scale=alt.Scale(domain=["crossing", "spinodal"], range=[[1, 0], [4, 2]]),
        legend=alt.Legend(symbolStrokeColor=ORANGE, symbolType="M-2,0L2,0", symbolSize=60),
    )
    thin = 1.4 if phases.sizes["seed"] == 1 else 0.7
    return [
        base.mark_line(clip=True, color="white", strokeWidth=thin + 1.6),
        base.mark_line(clip=True, color=ORANGE, strokeWidth=thin).encode(strokeDash=dashes),
        base.mark_point(clip=True, color=ORANGE, size=12),
    ]
