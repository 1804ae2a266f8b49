"""Draws of the order parameter that a study's store holds, wherever it holds any."""

from __future__ import annotations

import json
import os

import xarray as xr
import zarr

from pathkernel_sampling.point import GridPoint
from pathkernel_sampling.sample_store import runs

_SAMPLERS = ("order-parameter", "collapsed", "weights")  # by how well they mix


def order_parameter_draws(store: str | os.PathLike) -> dict[GridPoint, xr.DataArray]:
    """Draws of U at every point that has any, opened lazily; also while a run goes on.

    Of several samplers at a point, the one with most draws is taken; of those with equally many,
    the one that mixes best.

    Parameters
    ----------
    store : path
        Result store.

    Returns
    -------
    dict of GridPoint to xarray.DataArray, dims (chain, draw, path, path_dual)
        In order of seeds, temperatures and widths. Paths are labelled as the study's are.
    """
    found: dict[GridPoint, xr.DataArray] = {}
    for group in sorted(runs(store), key=_rank):
        settings = json.loads(zarr.open_group(store, path=group, mode="r").attrs["settings"])
        at = GridPoint(*(settings[name] for name in ("width", "temperature", "seed")))
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
