"""The map of a study as charts over two axes, and its crossings as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.selection import number
from pathkernel_datasets.stored import StoredStudy
from pathkernel_phases.phase_map import stored_maps
from pathkernel_views.chart import ORANGE, Chart
from pathkernel_views.table import Table, labelled_frame

if TYPE_CHECKING:
    import altair as alt

MOST = 4  # maps of further values of a third axis are left to the dataset
_LABELS = {
    "crossing": "crossing of two branches",
    "lower_spinodal": "end of the branch above the crossing",
    "upper_spinodal": "end of the branch below the crossing",
}
_TITLES = {"width": "width N", "temperature": "temperature T"}


def phase_views(study: StoredStudy) -> Iterator[Table | Chart | str]:
    """Maps of a study over its two axes of most values, and a table of the crossings."""
    for axis, phases in stored_maps(study).items():
        measure = measures_of(study.dataset)[0]
        accuracy = study.dataset[measure.name].isel(test_set=0)
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
            words = ", ".join(f"{_symbol(name)} = {number(v)}" for name, v in settings.items())
            names = "".join(f"_{name}_{number(v)}" for name, v in settings.items())
            yield Chart(
                f"phases_{axis}_{second}{names}",
                "Phases" + f", {words}" * bool(words),
                f"{panels[measure.name].capitalize()}, trace of U relative to the Gaussian process "
                "limit, smallest eigenvalue of the action's Hessian, and number of minima that a "
                f"search found, over {_title(axis)} and {_title(second)}"
                + f", at {words}"
                * bool(words)
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
        f"lower spinodal\nof {_title(axis)}": "{lower_spinodal:.4g}",
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
    return {"width": "N", "temperature": "T"}.get(name, name.replace("_", " "))


def _edges(values: Sequence[float]) -> np.ndarray:
    """Edges of cells around values on a logarithmic axis."""
    logs = np.log(np.asarray(values, dtype=float))
    if len(logs) == 1:
        return np.exp([logs[0] - 0.3, logs[0] + 0.3])
    middles = (logs[1:] + logs[:-1]) / 2
    ends = [2 * logs[0] - middles[0], 2 * logs[-1] - middles[-1]]
    return np.exp(np.concatenate([ends[:1], middles, ends[1:]]))


def _draw(phases: xr.Dataset, axis: str, second: str, panels: dict[str, str]) -> alt.TopLevelMixin:
    import altair as alt

    from pathkernel_views.picture import inline

    x, y = (_edges(phases[name].values) for name in (axis, second))
    frame = phases[list(panels)].median("seed").to_dataframe().reset_index()
    for name, edges in ((axis, x), (second, y)):
        index = phases.get_index(name).get_indexer(frame[name])
        frame[f"{name}_low"], frame[f"{name}_high"] = edges[index], edges[index + 1]
    lines = phases[list(_LABELS)].median("seed").to_dataframe().reset_index()
    lines = lines.melt([second, "transition"], list(_LABELS), "line", "value")
    lines = lines[lines["value"].between(x[0], x[-1])]
    scales = {
        name: alt.Scale(type="log", domain=[edges[0], edges[-1]], nice=False)
        for name, edges in ((axis, x), (second, y))
    }
    axes = {
        name: alt.Axis(values=_ticks(phases[name].values), format="~g", labelOverlap=True)
        for name in (axis, second)
    }
    across = alt.X(f"{axis}_low:Q", scale=scales[axis], axis=axes[axis], title=_title(axis))
    up = alt.Y(f"{second}_low:Q", scale=scales[second], axis=axes[second], title=_title(second))
    kinds = {"crossing": [1, 0], "lower_spinodal": [4, 2], "upper_spinodal": [2, 2]}
    curve = alt.Chart(inline(lines)).encode(
        x=alt.X("value:Q", scale=scales[axis]),
        y=alt.Y(f"{second}:Q", scale=scales[second]),
        detail=["line:N", "transition:N"],
        order=alt.Order(f"{second}:Q"),
        strokeDash=alt.StrokeDash(
            "line:N", scale=alt.Scale(domain=list(kinds), range=list(kinds.values())), legend=None
        ),
    )
    charts = []
    for name, title in panels.items():
        values = frame[name]
        log = name == "trace_ratio" and values.min() > 0
        scale = alt.Scale(scheme="viridis", type="log" if log else "linear")
        if name == "softest" and values.min() < 0 < values.max():
            scale = alt.Scale(scheme="blueorange", domainMid=0)
        colour = alt.Color(
            f"{name}:Q",
            title=None,
            scale=scale,
            legend=alt.Legend(orient="right", gradientLength=110, format="~g"),
        )
        if name == "minima":
            colour = alt.Color(
                "minima:O",
                title=None,
                scale=alt.Scale(scheme="greys"),
                legend=alt.Legend(orient="right"),
            )
        cells = (
            alt.Chart(inline(frame))
            .mark_rect()
            .encode(
                x=across,
                x2=alt.X2(f"{axis}_high"),
                y=up,
                y2=alt.Y2(f"{second}_high"),
                color=colour,
                tooltip=[alt.Tooltip(f"{n}:Q", format=".4~g") for n in (axis, second, name)],
            )
        )
        layers = [cells]
        if not lines.empty:
            layers += [
                curve.mark_line(color="white", strokeWidth=3),
                curve.mark_line(color=ORANGE, strokeWidth=1.4, point={"size": 12}),
            ]
        charts.append(alt.layer(*layers).properties(width=150, height=130, title=title))
    return alt.concat(*charts, columns=2).resolve_scale(color="independent", strokeDash="shared")


def _ticks(values: np.ndarray) -> list[float]:
    return [float(value) for value in values]
