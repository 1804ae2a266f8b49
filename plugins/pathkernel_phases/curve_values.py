"""Curves of a plane as labelled arrays: their points in order, and the minima that meet there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.phases.coexistence import Crossing
from pathkernel_core.phases.crossing_curves import CrossingPoint
from pathkernel_core.phases.spinodals import Spinodal
from pathkernel_datasets.variables.labelling import coordinate, label_arrays
from pathkernel_phases.minimum_values import MinimumValues, Values
from pathkernel_phases.phase_plane import PhasePlane

SIDES = ("left", "right")

_DIGITS = 12  # of the values of axes, so that those of the grid are equal to it
_OF_VERTICES = {
    "curve": "number of the curve; the points of each are in order",
    "kind": "crossing, of two minima of the same action, or spinodal, at which one ends",
    "vertex_action": "action per width S/N",
}
_OF_SIDES = {
    "branch_softest": "softest eigenvalue of the minimum on this side; at its spinodal 0",
    "branch_trace_ratio": "trace of U of this minimum relative to its Gaussian process limit",
    "branch_state": "state of the minimum on this side, silent or in use; empty if there is none",
    "branch_path": "path of this minimum with the largest U(π, π)",
    "branch_measure": "first measure of the study, of this minimum on the first test set",
}
_TEXTS = ("kind", "branch_state", "branch_path")


def curve_values(
    plane: PhasePlane,
    names: Sequence[str],
    settings: Mapping[str, float],
    values_of: MinimumValues,
) -> xr.Dataset:
    """Points of all curves of a plane, dim ``vertex``, and their minima, dims (vertex, side).

    Left and right are those of somebody who goes along the points of a curve, with the first axis
    to the right and the second one up. With one axis, left is below. At a crossing the minimum of a
    side is the lowest there; at a spinodal it ends, and the other side has none.

    Parameters
    ----------
    plane : PhasePlane
    names : sequence of str
        Axes of the plane.
    settings : mapping
        Values of the other axes.
    values_of : callable
        Values of a minimum.
    """
    rows: list[dict[str, object]] = []
    for number, curve in enumerate(plane.curves):
        for point in curve.points:
            row: dict[str, object] = {
                f"vertex_{name}": float(f"{value:.{_DIGITS}g}")
                for name, value in zip(names, np.exp(point.point))
            }
            row |= {f"vertex_{name}": value for name, value in settings.items()}
            row |= {"curve": number, "kind": "crossing" if curve.is_crossing else "spinodal"}
            rows.append(row | _minima_of(plane, point, values_of))
    variables = [
        *(
            Variable(f"vertex_{name}", ("vertex",), f"value of {name} at a point of a curve")
            for name in (*names, *settings)
        ),
        *(Variable(name, ("vertex",), text) for name, text in _OF_VERTICES.items()),
        *(Variable(name, ("vertex", "side"), text) for name, text in _OF_SIDES.items()),
    ]
    arrays = {}
    for variable in variables:
        text = np.dtypes.StringDType() if variable.name in _TEXTS else None
        kind = text or (int if variable.name == "curve" else float)
        array = np.array([row[variable.name] for row in rows], dtype=kind)
        arrays[variable.name] = array.reshape(-1, *([2] if "side" in variable.dims else []))
    side = coordinate("side", SIDES, "side of a curve, for somebody who goes along its points")
    return label_arrays(arrays, variables, {"side": side})


def _minima_of(
    plane: PhasePlane, point: CrossingPoint | Crossing | Spinodal, values_of: MinimumValues
) -> dict[str, object]:
    """Action at a point of a curve, and values of the minima on its two sides."""
    if isinstance(point, Spinodal):
        solution = plane.family.stationary_solution(point.point, point.coordinates)
        values = values_of(solution)
        ended = Values(0.0, values.trace_ratio, values.state, values.strongest_path, values.measure)
        sides: list[Values | None] = [ended, None] if _is_left(point) else [None, ended]
        action = point.action
    else:
        sides = [values_of(minimum.solution) for minimum in point.minima]
        action = point.minima[0].solution.action
    nothing = Values(np.nan, np.nan, "", "", np.nan)
    filled = [nothing if side is None else side for side in sides]
    return {
        "vertex_action": action,
        "branch_softest": [side.softest for side in filled],
        "branch_trace_ratio": [side.trace_ratio for side in filled],
        "branch_state": [side.state for side in filled],
        "branch_path": [side.strongest_path for side in filled],
        "branch_measure": [side.measure for side in filled],
    }


def _is_left(spinodal: Spinodal) -> bool:
    """Whether the minimum that ends exists on the left of the curve; with one axis, below."""
    if len(spinodal.point) == 1:
        return bool(spinodal.inside[0] < 0)
    along = spinodal.tangent[1:]
    return bool(along[0] * spinodal.inside[1] - along[1] * spinodal.inside[0] > 0)
