"""The map of a study as charts over two axes, and the points of its curves as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.measures import measures_of
from pathkernel_phases.coincidence import coincident_curves
from pathkernel_phases.map_chart import Panel, draw_map
from pathkernel_phases.phase_map import NAME, PhaseMap, stored_maps, stored_phase_curves
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table, labelled_frame
from pathkernel_views.titles import axis_title

MOST = 4  # maps of further values of a third axis are left to the dataset
_SYMBOLS = {"width": "N", "temperature": "T", "variance": "σ²", "input_scale": "input scale"}


def phase_views(study: StoredStudy) -> Iterator[Table | Chart | str]:
    """Maps of a study, and tables of the points of its crossings and spinodals."""
    maps, seeds = stored_maps(study), study.dataset["seed"].values.tolist()
    for axis in study.result(NAME).children:
        shown = maps[axis]["seed"].values.tolist() if axis in maps else ()
        if missing := [f"{seed}" for seed in seeds if seed not in shown]:
            yield (
                f"The map along {axis_title(axis)} lacks "
                f"{'seed' if len(missing) == 1 else 'seeds'} {', '.join(missing)}, since the study "
                f"has grown; run again: pathkernel phases {study.path} --axis {axis}"
            )
    for axis, phases in maps.items():
        measure = measures_of(study.dataset)[0]
        of_study = study.dataset[measure.name].isel(test_set=0, drop=True)
        phases = phases.assign(measure=of_study.sel({d: phases[d] for d in of_study.dims})).load()
        curves = stored_phase_curves(study, axis)
        phases = phases.assign(log_softest=_log_of(phases["softest"]))
        for side in ("left", "right"):
            curves[f"branch_log_softest_{side}"] = _log_of(curves[f"branch_softest_{side}"])
        plane = PhaseMap(study, axis).plane
        others = sorted(
            set(phases["softest"].dims) - {"seed", *plane}, key=lambda d: -phases.sizes[d]
        )
        if curves.empty:
            yield (
                f"No crossing along {axis_title(axis)}: neighbouring points of the grid have the "
                "same minimum. Refine or widen the grid if you expect one."
            )
        else:
            yield rows_table(curves, phases, axis, [*plane[1:], *others])
            yield points_table(curves, axis, [*plane, *others])
        # an option that changes the problem is the second axis where no other has several values
        second, rest = [*plane[1:], *others][0], [*plane[1:], *others][1:]
        panels = _panels(phases, curves, measure.axis)
        combinations = phases.stack(rest=rest)["rest"].values.tolist() if rest else [()]
        for values in combinations[:MOST]:
            settings = dict(zip(rest, values))
            of_settings = curves
            for name, value in settings.items():
                of_settings = of_settings[of_settings[f"vertex_{name}"] == value]
            labels = ", ".join(f"{_symbol(name)} = {number(v)}" for name, v in settings.items())
            names = "".join(f"_{name}_{number(v)}" for name, v in settings.items())
            yield Chart(
                f"phases_{axis}_{second}{names}",
                "Phases" + f", {labels}" * bool(labels),
                _caption(measure.axis, axis, second, labels, _setting(study.dataset, phases))
                + _coincident(phases, of_settings, (axis, second)),
                partial(
                    draw_map,
                    phases.sel(settings),
                    of_settings,
                    {name: axis_title(name) for name in (axis, second)},
                    panels,
                ),
            )
        if len(combinations) > MOST:
            yield f"Maps of {MOST} of {len(combinations)} values of {', '.join(rest)} are drawn."


def _panels(phases: xr.Dataset, curves: pd.DataFrame, title: str) -> list[Panel]:
    """Panels of a map, with ranges of colours that hold for all maps of the study."""

    def domain(column: str, of_states: str = "") -> tuple[float, float]:
        values = [phases[column].values.reshape(-1)]
        if of_states:
            crossings = curves[curves["kind"] == "crossing"]
            values += [crossings[f"{of_states}_{side}"] for side in ("left", "right")]
        every = np.concatenate(values).astype(float)
        every = every[np.isfinite(every)]
        return (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)

    def panel(column: str, of_states: str, title: str, logarithmic: bool = False) -> Panel:
        return Panel(column, of_states, title, domain(column, of_states), logarithmic)

    return [
        panel("measure", "branch_measure", title),
        panel("trace_ratio", "branch_trace_ratio", "tr U / limit", True),
        panel("log_softest", "branch_log_softest", "log₁₀ of the eigenvalue"),
        panel("minima", "", "minima at grid points"),
    ]


def _log_of(values: Any) -> Any:
    """Log₁₀ of eigenvalues, missing where there is none: at the end of a minimum."""
    return np.log10(values.where(values > 0))


def _setting(dataset: xr.Dataset, phases: xr.Dataset) -> str:
    """Seeds of a map, and the prior variances unless they are an axis."""
    seeds = ", ".join(str(seed) for seed in phases["seed"].values)
    setting = f"seed{'s' * (phases.sizes['seed'] > 1)} {seeds}"
    variances = np.atleast_1d(dataset.attrs.get("variances", []))
    if "variance" not in phases.dims and variances.size:
        values = ", ".join(number(float(value)) for value in dict.fromkeys(variances.tolist()))
        setting = f"prior variances σ² = {values}; {setting}"
    return setting


def _caption(measure: str, axis: str, second: str, labels: str, setting: str) -> str:
    return (
        f"{measure[0].upper()}{measure[1:]}, trace of U relative to the Gaussian process limit, "
        "log₁₀ of the smallest eigenvalue of the action's Hessian, and number of minima that a "
        f"search found at the points of the grid, over {axis_title(axis)} and {axis_title(second)}"
        + f", at {labels}"
        * bool(labels)
        + ". Solid: crossing, where two minima have the same action. Dashed and dotted: spinodals, "
        "where a silent minimum or one in use ends. Names of regions: silent, or the strongest "
        "path of a minimum in use. Colours are interpolated between the grid and the minima on "
        "both sides of a crossing"
        + "; medians over the seeds, and the curves of each" * setting.count("seeds ")
        + f". {setting[0].upper()}{setting[1:]}."
    )


def _coincident(phases: xr.Dataset, curves: pd.DataFrame, names: Sequence[str]) -> str:
    """A caption's sentence on curves that lie on each other, by their numbers in the table."""
    if curves.empty or any(phases.sizes[name] < 2 for name in names):
        return ""
    ranges = [(float(phases[name].min()), float(phases[name].max())) for name in names]
    pairs = coincident_curves(curves, names, ranges)
    listed = ", ".join(f"{one} and {other}" for one, other in pairs)
    return f" Curves that nearly coincide, by their numbers in the table of points: {listed}." * (
        listed != ""
    )


def rows_table(curves: pd.DataFrame, phases: xr.Dataset, axis: str, others: Sequence[str]) -> Table:
    """Crossings and spinodals along the axis, at the values of the study on all others."""
    frame = curves.assign(left_is_below=_left_is_below(curves, axis, others))
    for name in others:
        frame = frame[frame[f"vertex_{name}"].isin(phases[name].values)]
    frame = frame.assign(
        below=_side(frame, frame["left_is_below"]), above=_side(frame, ~frame["left_is_below"])
    )
    names = [*others, axis]
    frame = frame.rename(columns={f"vertex_{name}": name for name in names})
    frame = frame.sort_values(["seed", *names], kind="stable")
    frame = frame[["seed", *names, "kind", "below", "above"]].drop_duplicates()
    evaluations = phases.attrs.get("evaluations")
    cells = {} if phases.sizes["seed"] == 1 else {"seed": "{seed}"}
    cells |= {_symbol(name): f"{{{name}}}" for name in others}
    cells |= {_symbol(axis): f"{{{axis}:.4g}}", "kind": "{kind}"}
    return Table(
        f"crossings_{axis}",
        f"Crossings and spinodals along {axis_title(axis)}",
        labelled_frame(frame, _labels(names), {}),
        cells | {"below": "{below}", "above": "{above}"},
        "At a crossing the lowest minimum changes from that below to that above. At a spinodal the "
        "minimum of the named side ends, which need not be the lowest, and the other side has none "
        '("-"). Minima in use are named by their strongest path at that point.'
        + (f" Evaluations of the energy: {evaluations}." if evaluations else ""),
    )


def points_table(curves: pd.DataFrame, axis: str, names: Sequence[str]) -> Table:
    """All points of the curves, in order along each."""
    everything = pd.Series(True, index=curves.index)
    frame = curves.assign(left=_side(curves, everything), right=_side(curves, ~everything))
    frame = frame.rename(columns={f"vertex_{name}": name for name in names})
    columns = ["seed", "curve", "kind", *names, "left", "right"]
    return Table(
        f"curves_{axis}",
        "Points of the crossings and spinodals",
        labelled_frame(frame[columns], _labels(names), {}),
        {
            "seed": "{seed}",
            "curve": "{curve}",
            "kind": "{kind}",
            **{_symbol(name): f"{{{name}:.6g}}" for name in names},
            "left": "{left}",
            "right": "{right}",
        },
        "Points of each curve in order. Left and right are those of somebody who goes along them.",
        detail=True,
    )


_LABELS = {
    "kind": "crossing of two minima, or spinodal of one",
    "below": "minimum at smaller values of the axis",
    "above": "minimum at larger values of the axis",
    "left": "minimum on the left of the curve",
    "right": "minimum on the right of the curve",
    "curve": "number of the curve",
}


def _labels(names: Sequence[str]) -> dict[str, str]:
    return _LABELS | {name: axis_title(name) for name in names}


def _left_is_below(curves: pd.DataFrame, axis: str, others: Sequence[str]) -> pd.Series:
    """Whether the left side of a curve is that of smaller values of the axis."""
    second = f"vertex_{others[0]}" if others else ""
    groups = curves.groupby(["seed", "curve"])
    if not second:
        return pd.Series(True, index=curves.index)
    # towards larger values of the second axis, which goes up, smaller ones of the first are left
    rise = groups[second].shift(-1).fillna(curves[second]) - groups[second].shift(1).fillna(
        curves[second]
    )
    return rise >= 0


def _side(curves: pd.DataFrame, is_left: pd.Series) -> pd.Series:
    """Name of the minimum on one side of each point: its state and strongest path."""
    state, path = (
        curves[f"{name}_left"].where(is_left, curves[f"{name}_right"])
        for name in ("branch_state", "branch_path")
    )
    names = state.where(state != "in use", state + ", " + path)
    return names.where(names != "", "-")


def _symbol(name: str) -> str:
    return _SYMBOLS.get(name, name.replace("_", " "))
