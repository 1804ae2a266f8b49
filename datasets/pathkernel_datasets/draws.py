"""Draws of the order parameter that a study's store holds.

The group ``samples/<sampler>/<point>`` holds a run of draws; its attribute ``settings`` names them.
While a run goes on its last draws are pieces beside the store, in blocks one after another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xarray as xr
import zarr

from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.piece_files import PieceFiles
from pathkernel_datasets.point import Point
from pathkernel_datasets.store import check_store
from pathkernel_datasets.study import core_of

SAMPLES = "samples"
"""Group of a store that holds all draws."""

_SAMPLERS = ("order-parameter", "collapsed", "weights")  # by how well they mix


def draw_files(path: str | os.PathLike) -> PieceFiles:
    """Blocks of draws that are not published, each named by its group and its first draw."""
    return PieceFiles(Path(path), "draws")


def runs(path: str | os.PathLike) -> list[str]:
    """Groups of all runs of draws, in alphabetic order; also of those that go on."""
    if not Path(path).exists():  # nothing is published yet
        return []
    found = {name.rpartition("/")[0] for name in draw_files(path).names()}
    samples = zarr.open_group(path, mode="r").get(SAMPLES)
    for sampler, group in () if samples is None else samples.groups():
        found |= {f"{SAMPLES}/{sampler}/{name}" for name in group.group_keys()}
    return sorted(found)


def open_run(path: str | os.PathLike, group: str) -> xr.DataTree:
    """Open one run as ArviZ takes it: lazily, or in memory if it goes on.

    Raises
    ------
    StoreError
        If the store holds no such run.
    """
    if group not in (every := runs(path)):
        raise StoreError(
            f"{path} holds no draws in {group!r}; it has {', '.join(every) or 'none'}. "
            "Draw some with: pathkernel sample"
        )
    published = None
    if (Path(path) / group).exists():
        published = xr.open_datatree(path, group=group, engine="zarr", chunks=None)
    parts = [] if published is None else [published]
    if draw_files(path).folder.exists():
        parts += unpublished_blocks(path, group, published, core_of(check_store(Path(path))))
    return joined(parts)


def unpublished_blocks(
    path: str | os.PathLike, group: str, published: xr.DataTree | None, core: str
) -> list[xr.DataTree]:
    """Blocks of a run that follow one another after its published draws."""
    files, found = draw_files(path), []
    done = 0 if published is None else published["posterior"].sizes["draw"]
    while (block := files.read_tree(f"{group}/{done}", core)) is not None:
        found.append(block)
        done += block["posterior"].sizes["draw"]
    return found


def joined(parts: list[xr.DataTree]) -> xr.DataTree:
    """Run of several parts, one after another; what does not grow is that of the last."""
    if len(parts) == 1:
        return parts[0]
    nodes = {}
    for name, last in parts[-1].children.items():
        datasets = [part[name].to_dataset() for part in parts]
        grows = "draw" in last.dims
        options = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
        nodes[name] = (
            xr.concat(datasets, "draw", join="override", **options) if grows else datasets[-1]
        )
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs = dict(parts[0].attrs)
    return tree


def settings_of(run: Any) -> dict[str, Any]:
    """Settings of a run: sampler, seed, temperature, width, chains, …."""
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
    for group in _by_sampler(runs(store)):
        run = open_run(store, group)
        point, draws = point_of(run), run["posterior"]["order_parameter"]
        if _count(draws) > (_count(found[point]) if point in found else 0):
            found[point] = draws
    order = sorted(found, key=lambda point: (point.seed, point.temperature, point.width))
    return {point: found[point] for point in order}


def _by_sampler(groups: Iterable[str]) -> list[str]:
    rank = {sampler: number for number, sampler in enumerate(_SAMPLERS)}
    return sorted(groups, key=lambda group: rank.get(group.split("/")[1], len(rank)))


def _count(draws: xr.DataArray) -> int:
    return draws.sizes["chain"] * draws.sizes["draw"]
