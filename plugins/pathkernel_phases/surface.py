"""Values of a map between the points of its grid: smooth but for a jump at every crossing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

CELLS = 48  # of a surface, along each axis
_APART = 1e-4  # of both sides of a crossing, as a share of the axis
_SPACING = 0.005  # of points along a crossing, as a share of the axes


def surface(
    axes: Sequence[np.ndarray],
    values: np.ndarray,
    crossings: Sequence[pd.DataFrame],
    logarithmic: bool = False,
    places: np.ndarray | None = None,
) -> np.ndarray:
    """Values at the centres of 48 × 48 cells over the grid, equal on logarithmic axes.

    They are interpolated linearly between the points of the grid and those on both sides of every
    crossing, whose minima are known there. So nothing is smeared over a jump.

    Parameters
    ----------
    axes : two arrays
        Positive, increasing values of the grid, at least two each.
    values : array, shape (first axis, second axis)
        Values at the grid; NaN where there is none.
    crossings : sequence of DataFrame
        Points of each crossing in order: ``first`` and ``second`` on the axes, and the values
        ``left`` and ``right`` of somebody who goes along them.
    logarithmic : bool
        Whether values are interpolated by their logarithms.
    places : array, shape (point, 2), optional
        Points at which values are asked for instead, as shares of the logarithmic axes.
    """
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

    logs = [np.log(axis) for axis in axes]
    spans = [(axis - axis[0]) / (axis[-1] - axis[0]) for axis in logs]
    grid = np.stack(np.meshgrid(*spans, indexing="ij"), axis=-1).reshape(-1, 2)
    points, known = [grid], [values.reshape(-1)]
    for crossing in crossings:
        line = np.column_stack(
            [
                (np.log(crossing[name].to_numpy()) - axis[0]) / (axis[-1] - axis[0])
                for name, axis in zip(("first", "second"), logs)
            ]
        )
        sides = crossing[["left", "right"]].to_numpy()
        for (start, end), (before, after) in zip(pairwise(line), pairwise(sides)):
            step, length = end - start, float(np.linalg.norm(end - start))
            if not length:
                continue
            shares = np.linspace(0, 1, 2 + int(length / _SPACING))[:, None]
            left = _APART * np.array([-step[1], step[0]]) / length
            middles, between = start + shares * step, before + shares * (after - before)
            points += [middles + left, middles - left]
            known += [between[:, 0], between[:, 1]]
    all_points, all_values = np.concatenate(points), np.concatenate(known)
    is_known, shape = np.isfinite(all_values), (CELLS, CELLS)
    if places is not None:
        shape = (len(places),)
    if not is_known.any():
        return np.full(shape, np.nan)
    all_points, all_values = all_points[is_known], all_values[is_known]
    if logarithmic:
        all_values = np.log(all_values)
    centres = (np.arange(CELLS) + 0.5) / CELLS
    asked = np.stack(np.meshgrid(centres, centres, indexing="ij"), axis=-1).reshape(-1, 2)
    asked = asked if places is None else places
    result = LinearNDInterpolator(all_points, all_values)(asked)
    outside = np.isnan(result)  # beside points of the grid that did not converge
    if outside.any():
        result[outside] = NearestNDInterpolator(all_points, all_values)(asked[outside])
    return (np.exp(result) if logarithmic else result).reshape(shape)
