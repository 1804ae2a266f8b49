"""Draws of the order parameter that a study's store holds, wherever it holds any.

The group ``samples/<sampler>/<point>`` holds a run of draws; its attribute ``settings`` says
of what.
"""

from __future__ import annotations

import json
import os
from typing import Any

import xarray as xr
import zarr

from pathkernel_datasets.point import Point

SAMPLES = "samples"
"""Group of a store that holds all draws."""

_SAMPLERS = ("order-parameter", "collapsed", "weights")  # by how well they mix


def runs(path: str | os.PathLike) -> list[str]:
    """Groups of all runs of draws that a reader of the store can see, in alphabetic order."""
    samples = zarr.open_group(path, mode="r").get(SAMPLES)
    if samples is None:
        return []
    return sorted(
        f"{SAMPLES}/{sampler}/{name}"
        for sampler, group in samples.groups()
        for name in group.group_keys()
    )


def settings_of(run: Any) -> dict[str, Any]:
    """Settings of a run, of its group or tree: sampler, seed, temperature, width, chains, …."""
    return json.loads(run.attrs["settings"])


def point_of(run: Any) -> Point:
    """Point of the study that a run samples."""
    settings = settings_of(run)
    return Point(*(settings[name] for name in ("width", "temperature", "seed")))


def order_parameter_draws(store: str | os.PathLike) -> dict[Point, xr.DataArray]:
    """Draws of U at every point that has any, opened lazily; also while a run goes on.

    Of several samplers at a point, the one with most draws is taken; of those with equally many,
    the one that mixes best.

    Parameters
    ----------
    store : path
        Result store.

    Returns
    -------
    dict of Point to xarray.DataArray, dims (chain, draw, path, path_dual)
        In order of seeds, temperatures and widths. Paths are labelled as the study's are.
    """
    found: dict[Point, xr.DataArray] = {}
    for group in sorted(runs(store), key=_rank):
        at = point_of(zarr.open_group(store, path=group, mode="r"))
        draws = xr.open_zarr(store, group=f"{group}/posterior", chunks=None)["order_parameter"]
        if _count(draws) > (_count(found[at]) if at in found else 0):
            found[at] = draws
    order = sorted(found, key=lambda at: (at.seed, at.temperature, at.width))
    return {at: found[at] for at in order}


def _rank(group: str) -> int:
    sampler = group.split("/")[1]
    return _SAMPLERS.index(sampler) if sampler in _SAMPLERS else len(_SAMPLERS)


def _count(draws: xr.DataArray) -> int:
    return draws.sizes["chain"] * draws.sizes["draw"]
