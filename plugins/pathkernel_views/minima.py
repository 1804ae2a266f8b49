"""Sentences about points whose action has several minima, and about kernels out of proportion."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pathkernel_core.minima import SMALLEST_SHARE
from pathkernel_core.solution import CLOSE
from pathkernel_datasets.selection import number

_NAMED = 5  # points that a sentence names


def minima_sentences(dataset: xr.Dataset) -> list[str]:
    """Where a study's minimisations found several minima, and where they are close.

    Parameters
    ----------
    dataset : xarray.Dataset
        A study of one value of every option.
    """
    several = dataset["minima"] > 1
    close = 0.5 * dataset["width"] * dataset["action_gap"] < CLOSE
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
    share = dataset["explained_share_gp"].min("seed")
    small = share.where(share < SMALLEST_SHARE).dropna("temperature")
    if small.size:
        temperatures = ", ".join(f"{value:g}" for value in small["temperature"].values)
        sentences.append(
            f"At T = {temperatures} the kernel of the Gaussian process limit explains less than "
            f"{100 * SMALLEST_SHARE:g} % of the squared labels that its features span: inputs "
            "are small against the temperature. Scale them up, raise the variances or lower T."
        )
    return sentences


def _points(where: xr.DataArray) -> str:
    """Points at which a condition holds, the first of them by name."""
    indices = np.argwhere(where.transpose("width", "temperature", "seed").values)
    several = {name: where.sizes[name] > 1 for name in ("temperature", "seed")}
    names = []
    for width, temperature, seed in indices[:_NAMED]:
        name = f"N = {number(where['width'].values[width])}"
        if several["temperature"]:
            name += f", T = {where['temperature'].values[temperature]:g}"
        if several["seed"]:
            name += f", seed {where['seed'].values[seed]}"
        names.append(name)
    rest = len(indices) - len(names)
    return "; ".join(names) + (f" and {rest} more points" if rest else "")
