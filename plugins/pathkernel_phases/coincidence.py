"""Curves of a map that lie on each other, so that a picture shows one of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

_NEAR = 0.025  # of an axis: as wide as a line and its seam in a column of a paper
_SHARE = 0.5  # of the points of one curve that are near the other


def coincident_curves(
    curves: pd.DataFrame, names: Sequence[str], ranges: Sequence[tuple[float, float]]
) -> list[tuple[int, int]]:
    """Return pairs of numbers of curves of which half of one or more lies on the other.

    Parameters
    ----------
    curves : DataFrame
        Points of curves in order, of :func:`pathkernel_phases.phase_map.stored_phase_curves`.
    names : sequence of str
        Names of both axes, which are logarithmic.
    ranges : sequence of (float, float)
        Ends of both axes.
    """
    pairs = []
    for _, of_seed in curves.groupby("seed"):
        lines = {
            int(number): np.column_stack(
                [
                    np.log(curve[f"vertex_{name}"] / low) / np.log(high / low)
                    for name, (low, high) in zip(names, ranges, strict=True)
                ]
            )
            for number, curve in of_seed.groupby("curve")
            if len(curve) > 1
        }
        lines = {number: _evenly(line) for number, line in lines.items()}
        for one, other in itertools.combinations(lines, 2):
            distances = np.linalg.norm(lines[one][:, None] - lines[other], axis=2)
            near = [float((distances.min(axis=axis) < _NEAR).mean()) for axis in (0, 1)]
            if max(near) > _SHARE:
                pairs.append((one, other))
    return pairs


def _evenly(line: np.ndarray) -> np.ndarray:
    """Points along a line of vertices (vertex, 2), less than half of what is near apart."""
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    places = np.linspace(0.0, along[-1], 2 + int(2 * along[-1] / _NEAR))
    return np.column_stack([np.interp(places, along, part) for part in line.T])
