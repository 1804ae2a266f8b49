"""Sentences about points with several minima of the action, and about small kernels."""

from __future__ import annotations

from functools import partial

import xarray as xr

from pathkernel_core.action.minima import SMALLEST_SHARE
from pathkernel_core.action.solution import CLOSE
from pathkernel_core.system.text import number
from pathkernel_datasets.variables.measures import has_temperature

_NAMED = 5  # points that a sentence lists


def minima_sentences(dataset: xr.Dataset) -> list[str]:
    """Return sentences about several minima, about close minima and about small kernels.

    Parameters
    ----------
    dataset : xarray.Dataset
        A study of one value of every option.
    """
    several = dataset["minima"] > 1
    close = 0.5 * dataset["width"] * dataset["action_gap"] < CLOSE
    temperatures = dataset["temperature"].values[:0]
    if "explained_share_gp" in dataset:  # of the squared loss
        share = dataset["explained_share_gp"].min("seed")
        temperatures = dataset["temperature"].values[(share < SMALLEST_SHARE).values]
    points = partial(_points, has_temperature=has_temperature(dataset))
    sentences = []
    if several.any():
        sentences.append(
            f"Several minima of the action at {points(several)}: the lowest found is shown."
        )
    if close.any():
        sentences.append(
            f"Within {CLOSE:g} nats of each other at {points(close)}: there the posterior may "
            "hold both, and results change abruptly with width and temperature."
        )
    if temperatures.size:
        sentences.append(
            f"At T = {', '.join(map(number, temperatures))} the kernel of the Gaussian process "
            f"limit explains less than {100 * SMALLEST_SHARE:g} % of the squared labels that its "
            "features span: inputs are small against the temperature. Scale them up, raise the "
            "prior variances or lower T."
        )
    return sentences


def _points(condition: xr.DataArray, *, has_temperature: bool) -> str:
    """List the points at which a condition holds, and count those beyond the first few."""
    points = condition.stack(point=("width", "temperature", "seed"))
    names = [
        f"N = {number(width)}, {f'T = {temperature:g}, ' * has_temperature}seed {seed}"
        for width, temperature, seed in points["point"].values[points.values]
    ]
    remaining = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + f" and {remaining} more points" * (remaining > 0)
