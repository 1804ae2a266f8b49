"""Sentences about points whose action has several minima, and about kernels out of proportion."""

from __future__ import annotations

import xarray as xr

from pathkernel_core.minima import SMALLEST_SHARE
from pathkernel_core.solution import CLOSE
from pathkernel_datasets.selection import number

_NAMED = 5  # points that a sentence names


def minima_sentences(dataset: xr.Dataset) -> list[str]:
    """Where minimisations found several minima, where they are close, and where kernels are small.

    Parameters
    ----------
    dataset : xarray.Dataset
        A study of one value of every option.
    """
    several = dataset["minima"] > 1
    close = 0.5 * dataset["width"] * dataset["action_gap"] < CLOSE
    share = dataset["explained_share_gp"].min("seed")
    small = dataset["temperature"].values[(share < SMALLEST_SHARE).values]
    sentences = []
    if several.any():
        sentences.append(
            f"Several minima of the action at {_points(several)}: the lowest found is shown."
        )
    if close.any():
        sentences.append(
            f"Within {CLOSE:g} nats of each other at {_points(close)}: there the posterior may "
            "hold both, and results change abruptly with width and temperature."
        )
    if small.size:
        sentences.append(
            f"At T = {', '.join(map(number, small))} the kernel of the Gaussian process limit "
            f"explains less than {100 * SMALLEST_SHARE:g} % of the squared labels that its "
            "features span: inputs are small against the temperature. Scale them up, raise the "
            "variances or lower T."
        )
    return sentences


def _points(condition: xr.DataArray) -> str:
    """Points at which a condition holds, the first of them by name."""
    points = condition.stack(point=("width", "temperature", "seed"))
    names = [
        f"N = {number(width)}, T = {temperature:g}, seed {seed}"
        for width, temperature, seed in points["point"].values[points.values]
    ]
    rest = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + f" and {rest} more points" * (rest > 0)
