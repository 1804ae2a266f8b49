"""Draws of the order parameter that a study's store holds.

The group ``samples/<sampler>/<point>`` holds a run of draws; its attribute ``settings`` names them.
While a run is in progress its last draws are pieces beside the store, in blocks one after another.
"""

from __future__ import annotations

import json
from typing import Any

import xarray as xr
import zarr

from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.pieces import PieceFiles
from pathkernel_datasets.point import Point
from pathkernel_datasets.stored_study import StoredStudy

SAMPLES = "samples"
"""Group of a store that holds all draws."""

_SAMPLERS = ("order-parameter", "collapsed", "weights")  # by how well they mix


def runs(study: StoredStudy) -> list[str]:
    """Groups of all runs of draws, in alphabetic order; also of those in progress."""
    if not study.path.exists():  # nothing is published yet
        return []
    groups = set(study.unpublished_groups())
    if (study.folder / SAMPLES).exists():
        for sampler, group in zarr.open_group(study.folder / SAMPLES, mode="r").groups():
            groups |= {f"{SAMPLES}/{sampler}/{name}" for name in group.group_keys()}
    return sorted(groups)


def open_run(study: StoredStudy, group: str) -> xr.DataTree:
    """Open one run as ArviZ takes it: lazily, or in memory if it is in progress.

    Raises
    ------
    StoreError
        If the store holds no such run.
    """
    groups = runs(study)
    if group not in groups:
        raise StoreError(
            f"{study.path} holds no draws in {group!r}; it has {', '.join(groups) or 'none'}. "
            "Draw some with: pathkernel sample"
        )
    published = study.result(group) if study.holds(group) else None
    blocks = [] if published is None else [published]
    blocks += unpublished_blocks(study, group, published)
    return joined(blocks) if blocks else study.result(group)  # published just now


def unpublished_blocks(
    study: StoredStudy, group: str, published: xr.DataTree | None
) -> list[xr.DataTree]:
    """Blocks of a run that follow one another after its published draws."""
    files, blocks = PieceFiles(study.path, "draws"), []
    count = 0 if published is None else published["posterior"].sizes["draw"]
    while (block := files.read(f"{study.prefix}{group}/{count}", study.core)) is not None:
        blocks.append(block)
        count += block["posterior"].sizes["draw"]
    return blocks


def joined(blocks: list[xr.DataTree]) -> xr.DataTree:
    """Run of several blocks, one after another; what does not grow is that of the last."""
    if len(blocks) == 1:
        return blocks[0]
    tree = blocks[-1].copy()
    tree.attrs = dict(blocks[0].attrs)
    options = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    for name in [name for name, last in blocks[-1].children.items() if "draw" in last.dims]:
        datasets = [block[name].to_dataset() for block in blocks]
        tree[name] = xr.DataTree(xr.concat(datasets, "draw", join="override", **options))
    return tree


def settings_of(run: Any) -> dict[str, Any]:
    """Settings of a run: sampler, seed, temperature, width, chains, …."""
    return json.loads(run.attrs["settings"])


def point_of(run: Any) -> Point:
    """Point of the study that a run samples."""
    settings = settings_of(run)
    return Point(*(settings[name] for name in ("width", "temperature", "seed")))


def order_parameter_draws(study: StoredStudy) -> dict[Point, xr.DataArray]:
    """Draws of U at every point that has any, opened lazily; also while a run is in progress.

    Of several samplers at a point, the one with most draws is taken; of those with equally many,
    the one that mixes best.

    Returns
    -------
    dict of Point to xarray.DataArray, dims (chain, draw, path, path_dual)
        In order of seeds, temperatures and widths. Paths are labelled as the study's are.
    """
    draws_of_points: dict[Point, list[xr.DataArray]] = {}
    samplers = [*_SAMPLERS, *(group.split("/")[1] for group in runs(study))]
    for group in sorted(runs(study), key=lambda group: samplers.index(group.split("/")[1])):
        run = open_run(study, group)
        draws = run["posterior"]["order_parameter"]
        if draws.size:
            draws_of_points.setdefault(point_of(run), []).append(draws)
    order = sorted(draws_of_points, key=lambda point: (point.seed, point.temperature, point.width))
    return {point: max(draws_of_points[point], key=lambda draws: draws.size) for point in order}
