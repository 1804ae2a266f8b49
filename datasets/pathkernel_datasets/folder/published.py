"""The published dataset of a study: written some seeds at a time, and read piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pathkernel_core.system.local_files import is_damage
from pathkernel_datasets.folder.zarr_bounds import ArrayLayout
from pathkernel_datasets.folder.zarr_files import (
    append_dataset,
    attributes_of,
    exchanged_chunks,
    metadata_index,
    replacing_zarr,
    write_dataset,
)
from pathkernel_datasets.study.identity import core_of
from pathkernel_datasets.study.study import POINT
from pathkernel_datasets.variables.template import on_grid

Values = dict[str, np.ndarray]
"""Values of a piece by name: those along the temperatures begin with that dimension."""

_SEED_CHUNKS = 16  # at most, along the seeds of a small study: what damage costs at worst
_LARGEST_BLOCK = 2**27  # bytes that are assembled in memory at once


def publish(
    path: Path,
    template: xr.Dataset,
    fill: Callable[[xr.Dataset], None],
    limits: Mapping[str, int] | None = None,
) -> None:
    """Write the dataset of a template, some seeds at a time, as one Zarr that replaces ``path``.

    ``fill`` puts the values of some seeds into a part of the dataset. If it raises, an older Zarr
    stays. Chunks have at most the sizes in ``limits``.
    """
    # blocks are whole chunks, which appending would otherwise read and write again
    seeds = template["seed"].values.tolist()
    chunk = 1 if template.nbytes > _LARGEST_BLOCK else -(-len(seeds) // _SEED_CHUNKS)
    block = min(len(seeds), chunk * max(1, _LARGEST_BLOCK * len(seeds) // template.nbytes // chunk))
    with replacing_zarr(path) as folder:
        for first in range(0, len(seeds), block):
            dataset = on_grid(template, {"seed": seeds[first : first + block]}).copy(deep=True)
            fill(dataset)
            if first:
                append_dataset(dataset, folder, "seed")
            else:
                write_dataset(dataset, folder, limits={"seed": chunk, **(limits or {})})


class PublishedStudy:
    """The study of a Zarr, piece by piece; what is damaged in it is as if it were not there.

    Parameters
    ----------
    path : Path
        Zarr, which need not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        self._blocks: dict[str, tuple[int, np.ndarray | None]] = {}

    @cached_property
    def identity(self) -> str:
        """Identity of the study as JSON; empty if it is lost."""
        return str(attributes_of(self.path).get("study", ""))

    def temperatures(self, seed: int, width: float | None, core: str) -> list[float]:
        """Temperatures of a piece of a study, which may be damaged; none if it is not there."""
        grid = self._grid
        is_there = seed in grid["seed"] and width in (None, *grid["width"])
        return grid["temperature"] if is_there and self._core in ("", core) else []

    def read(self, seed: int, width: float | None, core: str) -> Values:
        """Values of a piece of a study; empty if it is not there, damaged or of another study."""
        if not (temperatures := self.temperatures(seed, width, core)):
            return {}
        grid = self._grid
        index = grid["seed"].index(seed)
        values = {"temperature": np.array(temperatures)}
        for name, (dims, block, inside) in self._block(index).items():
            if ("width" in dims) == (width is not None):
                if block is None:
                    return {}
                position: list[Any] = [slice(None)] * block.ndim
                position[0] = inside
                if width is not None:
                    position[dims.index("width")] = grid["width"].index(width)
                values[name] = block[tuple(position)]
        return values

    @cached_property
    def _exchanged_names(self) -> set[str]:
        return exchanged_chunks(self.path)

    @cached_property
    def _core(self) -> str:
        """All that determines the pieces; empty if it is lost."""
        return core_of(json.loads(self.identity)) if self.identity else ""

    @cached_property
    def _arrays(self) -> dict[str, zarr.Array]:
        """All arrays; none if one of them is lost.

        They are opened by the consolidated metadata, which serve where an array's own are damaged,
        or by their own if the consolidated ones are.
        """
        try:
            if self.identity:
                return dict(zarr.open_group(self.path, mode="r").arrays())
            folders = [folder for folder in self.path.iterdir() if folder.is_dir()]
            return {folder.name: zarr.open_array(folder, mode="r") for folder in folders}
        except Exception as error:  # whatever the reader of damaged metadata raises
            if not is_damage(error):
                raise
            return {}

    @cached_property
    def _layouts(self) -> dict[str, ArrayLayout]:
        """Layouts of all arrays, by the metadata by which they are opened."""
        layouts = {}
        for name, metadata in metadata_index(self.path).items():
            with suppress(ValueError):
                layouts[name] = ArrayLayout.from_metadata(metadata)
        return layouts

    @cached_property
    def _grid(self) -> dict[str, list[Any]]:
        """Values along the grid; none if they are lost."""
        grid: dict[str, list[Any]] = {name: [] for name in POINT}
        for name, values in grid.items():
            array = self._arrays.get(name)
            chunks = (
                [None]
                if array is None or name not in self._layouts
                else map(partial(self._read_chunks, name, array), range(array.nchunks))
            )
            for chunk in chunks:
                if chunk is None:
                    return {name: [] for name in POINT}
                values += chunk.tolist()
        return grid

    def _block(self, index: int) -> dict[str, tuple[tuple[str, ...], np.ndarray | None, int]]:
        """Variables of some seeds: dimensions, values (None if damaged), and index of the seed."""
        block = {}
        for name, array in self._arrays.items():
            dims = tuple(map(str, array.metadata.dimension_names or ()))
            if "seed" in dims and name != "seed":
                number, inside = divmod(index, array.chunks[0])
                # a chunk holds many pieces, read one after another: it is decoded once
                if self._blocks.get(name, (-1,))[0] != number:
                    self._blocks[name] = number, self._read_chunks(name, array, number)
                is_on_grid = all(
                    size == len(self._grid.get(dim, range(size)))
                    for dim, size in zip(dims, array.shape)
                )
                block[name] = dims, self._blocks[name][1] if is_on_grid else None, inside
        return block

    def _read_chunks(self, name: str, array: zarr.Array, number: int) -> np.ndarray | None:
        """Chunks of an array with a number along its first dimension; None if any is damaged."""
        layout = self._layouts.get(name)
        if layout is None or name in self._exchanged_names:
            return None
        try:
            # lazily: a claim of chunks without end stops at the first that is not there
            for place in np.ndindex(*layout.counts[1:]):
                key = array.metadata.encode_chunk_key((number, *place))
                # of a chunk that is not there, or a folder, Zarr makes one of fill values
                if not (self.path / name / key).is_file():
                    return None
                layout.check_chunk(self.path / name / key)
            size = array.chunks[0]
            return np.asarray(array[number * size : (number + 1) * size])
        except Exception as error:  # whatever the decoder of a damaged file raises
            if not is_damage(error):
                raise
            return None
