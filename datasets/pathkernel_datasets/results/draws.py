"""Draws of the order parameter at points of a study.

The part ``samples/<sampler>/<point>`` of the results holds a run of draws; its attribute
``settings`` names them. While a run is in progress its last draws are files among the pieces of the
study, in blocks one after another: arrays such as ``posterior/order_parameter``, by the names of a
published run's group and variable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_datasets.folder.piece_files import SUFFIX, read_arrays
from pathkernel_datasets.folder.study_folder import PIECES, remove_empty
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.labelling import coordinates_along, path_dims

SAMPLES = "samples"
"""Result that holds all draws."""

SETTINGS, ORDER_PARAMETER = "settings", "posterior/order_parameter"
"""Arrays of a block: the settings of its run as JSON, and U of shape (chain, draw, …)."""

_SAMPLERS = ("order-parameter", "collapsed", "weights")  # by how well they mix


def runs(study: StoredStudy, result: str = SAMPLES) -> list[str]:
    """Names of all runs of draws of a result, in alphabetic order; also of those in progress."""
    folder = study.path / PIECES
    files = folder.glob(f"{result}/*/*/*{SUFFIX}")
    in_progress = {file.parent.relative_to(folder).as_posix() for file in files}
    return sorted({*study.parts(result), *in_progress})


def block_file(study: StoredStudy, run: str, first: int) -> Path:
    """File of the block of a run that begins with a draw."""
    # readers look for the block that follows their last draw, and never take one that is published
    return study.path / PIECES / run / f"{first}{SUFFIX}"


def read_blocks(study: StoredStudy, run: str, first: int) -> list[dict[str, np.ndarray]]:
    """Blocks of a run that follow one another, from a draw on, and have the same settings."""
    blocks: list[dict[str, np.ndarray]] = []
    while (block := read_arrays(block_file(study, run, first), study.core)) is not None:
        if blocks and str(block[SETTINGS]) != str(blocks[0][SETTINGS]):  # renamed
            break
        blocks.append(block)
        first += block[ORDER_PARAMETER].shape[1]
    return blocks


def remove_blocks(study: StoredStudy, run: str) -> None:
    """Remove the blocks whose draws are published; another process may be adding others."""
    folder = block_file(study, run, 0).parent
    if folder.is_dir():
        groups = study.result(run).children
        draws = groups["posterior"].sizes["draw"] if "posterior" in groups else math.inf
        for file in folder.iterdir():  # a block that is being written is then written again
            if not file.stem.isdecimal() or int(file.stem) < draws:
                file.unlink(missing_ok=True)
        remove_empty(study.path / PIECES)


def point_of(settings: Mapping[str, Any]) -> Point:
    """Point of the study that a run with some settings samples."""
    return Point(*(settings[name] for name in ("width", "temperature", "seed")))


def order_parameter_draws(study: StoredStudy) -> dict[Point, xr.DataArray]:
    """Draws of U at every point that has any, also while a run is in progress.

    Where several samplers have drawn at a point, the one with most draws is taken; if they have
    equally many, the one that mixes best.

    Returns
    -------
    dict of Point to xarray.DataArray, dims (chain, draw, path, path_dual)
        In order of seeds, temperatures and widths. Paths are labelled as the study's are.
    """
    draws_of_points: dict[Point, list[xr.DataArray]] = {}
    names = runs(study)
    samplers = [*_SAMPLERS, *(run.split("/")[1] for run in names)]
    for run in sorted(names, key=lambda run: samplers.index(run.split("/")[1])):
        settings, draws = _draws(study, run)
        if draws is not None and draws.size:
            draws_of_points.setdefault(point_of(settings), []).append(draws)
    order = sorted(draws_of_points, key=lambda point: (point.seed, point.temperature, point.width))
    return {point: max(draws_of_points[point], key=lambda draws: draws.size) for point in order}


def _draws(study: StoredStudy, run: str) -> tuple[dict[str, Any], xr.DataArray | None]:
    """Settings of a run and its draws of U, lazily unless some are not published yet."""
    published, settings, count = None, "{}", 0
    if study.holds(run):
        tree = study.result(run)
        published, settings = tree["posterior"]["order_parameter"], tree.attrs[SETTINGS]
        count = published.sizes["draw"]
    blocks = read_blocks(study, run, count)
    if not blocks:
        return json.loads(settings), published
    outputs = study.dataset.sizes.get("output", 1)
    dims = ("chain", "draw", *path_dims(outputs))
    arrays = [block[ORDER_PARAMETER] for block in blocks]
    if published is not None:
        arrays.insert(0, published.transpose(*dims).values)
    draws = np.concatenate(arrays, axis=1)
    coordinates = coordinates_along(study.dataset, dims)
    return json.loads(str(blocks[0][SETTINGS])), xr.DataArray(draws, coordinates, dims)
