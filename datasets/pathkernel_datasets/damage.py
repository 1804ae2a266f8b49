"""Damage to a store: naming it, and reading around it.

Every chunk is written, and Zarr compares its checksum when it reads. The metadata of an array are
in its own file and, consolidated, in that of the store.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pathkernel_datasets.checksums import group_checksum, piece_checksum
from pathkernel_datasets.identity import core_of, grid_of
from pathkernel_datasets.pieces import Piece, pieces_of
from pathkernel_datasets.template import IDENTITY_COPY

METADATA = "zarr.json"
_INDEX = "consolidated_metadata"
_LARGEST_IN_MEMORY = 2**27  # bytes of an array


@dataclass(frozen=True)
class StoredArray:
    """An array of a store with its dimensions and attributes; a small one is in memory."""

    dims: tuple[str, ...]
    values: Any
    attributes: dict[str, Any]

    @classmethod
    def of(cls, array: zarr.Array) -> StoredArray:
        """Read an array, as far as it can be."""
        values: Any = array
        if array.nbytes <= _LARGEST_IN_MEMORY:
            with suppress(Exception):  # whatever the decoder of a damaged file raises
                values = np.asarray(array[...])
        return cls(tuple(array.metadata.dimension_names or ()), values, dict(array.attrs))


class Published:
    """The study that a store holds, piece by piece, whatever of it is damaged.

    Parameters
    ----------
    path : Path
        Store, which need not exist.
    """

    def __init__(self, path: Path):
        self._path = path

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the study; of a damaged store its identity at most."""
        attributes = _metadata(self._path).get("attributes", {})
        for array in (arrays.get(IDENTITY_COPY) for arrays in self._views()):
            if _is_json(attributes.get("study")):
                break
            attributes = {} if array is None else {"study": array.attributes.get("study")}
        return attributes if _is_json(attributes.get("study")) else {}

    @cached_property
    def identity(self) -> dict[str, Any] | None:
        """Identity of the study; None if it is lost."""
        return json.loads(self.attributes["study"]) if self.attributes else None

    def read(self, piece: Piece, core: str) -> xr.Dataset | None:
        """A piece at the temperatures of the grid; None if it is damaged or of another study."""
        position = self._position(piece, core)
        if position is None:
            return None
        for arrays in self._views():
            with suppress(Exception):  # whatever the decoder of a damaged file raises
                variables = {
                    name: _part(array, position)
                    for name, array in arrays.items()
                    if "seed" in array.dims and name not in array.dims
                    if ("width" in array.dims) == (piece.width is not None)
                }
                name, checksum = piece_checksum({key: part[1] for key, part in variables.items()})
                if variables.pop(name)[1] == checksum:
                    return xr.Dataset(variables, {"temperature": self._grid["temperature"]})
        return None

    def core(self, piece: Piece) -> str:
        """All that determines a piece besides its key."""
        return core_of(self.identity or {}, piece.swept, piece.value)

    @property
    def _grid(self) -> dict[str, list]:
        return grid_of(self.identity or {})

    def _position(self, piece: Piece, core: str) -> dict[str, int] | None:
        """Index of a piece along the grid; None if the grid lacks it or the study is another."""
        if self.identity is None or core_of(self.identity, piece.swept, piece.value) != core:
            return None
        grid = self._grid
        if piece.swept is not None and piece.swept not in grid:  # the store has one value of it
            grid[piece.swept] = [self.identity["options"].get(piece.swept)]
        if any(label not in grid[dim] for dim, label in piece.labels.items()):
            return None
        return {dim: grid[dim].index(label) for dim, label in piece.labels.items()}

    def _views(self) -> Iterator[dict[str, StoredArray]]:
        """Arrays by the consolidated metadata, and by those of every array."""
        yield self._consolidated
        yield self._separate

    @cached_property
    def _consolidated(self) -> dict[str, StoredArray]:
        with suppress(Exception):  # whatever the parser of damaged metadata raises
            group = zarr.open_group(self._path, mode="r")
            return {name: StoredArray.of(array) for name, array in group.arrays()}
        return {}

    @cached_property
    def _separate(self) -> dict[str, StoredArray]:
        arrays = {}
        for file in self._path.glob(f"*/{METADATA}"):
            with suppress(Exception):
                arrays[file.parent.name] = StoredArray.of(zarr.open_array(file.parent, mode="r"))
        return arrays


def _part(array: StoredArray, position: Mapping[str, int]) -> tuple[list[str], np.ndarray]:
    index = tuple(position.get(dim, slice(None)) for dim in array.dims)
    return [dim for dim in array.dims if dim not in position], np.asarray(array.values[index])


def faults(path: Path, within: str | None = None) -> Iterator[tuple[str, str]]:
    """Read everything that a store holds, and name what is damaged.

    Parameters
    ----------
    path : Path
    within : str, optional
        Read the values of this result, or part of one, alone, besides all metadata.

    Yields
    ------
    tuple of str
        ``"study"``, or the result that is damaged; and a line about the damage.
    """
    index = _metadata(path).get(_INDEX, {}).get("metadata", {})
    files = {file.parent.relative_to(path).as_posix() for file in path.rglob(METADATA)}
    if not index and not files:  # nothing is published
        return
    values: dict[str, dict[str, Any]] = defaultdict(dict)  # of groups
    attributes = {"": _metadata(path).get("attributes", {})}
    damaged = set()
    for name in sorted({*index, *files} - {"."}):
        parent, lines = name.rpartition("/")[0], []
        separate, consolidated = _metadata(path / name), index.get(name, {})
        if not separate or not consolidated:
            lines = [f"{name}: a copy of its metadata is lost"]
        elif _without_index(separate) != _without_index(consolidated):
            lines = [f"{name}: its metadata differ between their two copies"]
        elif separate["node_type"] == "group":
            attributes[name] = separate["attributes"]
        elif within is None or is_inside(name, within):
            array = zarr.open_array(path / name, mode="r")
            lines = [f"{name}, {line}" for line in _chunk_faults(array)]
            of_pieces = not parent and "seed" in array.metadata.dimension_names and name != "seed"
            if not lines and not of_pieces:
                values[parent][name] = array[...]
        damaged |= {parent, _owner(path, name)} if lines else set()
        yield from ((_owner(path, name), line) for line in lines)
    for name, entries in attributes.items():
        if "checksum" not in entries and name:  # written by no one: a group of others
            continue
        of_group = {key.rpartition("/")[2]: array for key, array in values[name].items()}
        complete = name not in damaged and (within is None or is_inside(name, within))
        others = {key: entry for key, entry in entries.items() if key != "checksum"}
        if complete and group_checksum(others, of_group) != entries.get("checksum"):
            damaged.add(_owner(path, name))
            yield _owner(path, name), f"{name or METADATA}: it is not as it was written"
    if within is None and "study" not in damaged:
        published = Published(path)
        for piece in pieces_of(grid_of(published.identity or {})):
            if published.read(piece, published.core(piece)) is None:
                yield "study", f"{piece}: its values are not as they were written"


def _chunk_faults(array: zarr.Array) -> Iterator[str]:
    with suppress(Exception):  # whatever the decoder of a damaged file raises
        if array.nbytes <= _LARGEST_IN_MEMORY and array.nchunks_initialized == array.nchunks:
            _ = array[...]
            return
    folder = Path(array.store.root) / array.path  # type: ignore[attr-defined]
    for index in np.ndindex(*array.cdata_shape):
        chunk = f"chunk {'/'.join(map(str, index)) or 0}"
        if not (folder / array.metadata.encode_chunk_key(index)).exists():
            yield f"{chunk} is missing"
            continue
        try:
            _ = array.blocks[index] if index else array[()]
        except Exception as error:
            yield f"{chunk} cannot be read ({error})"


def is_inside(name: str, group: str) -> bool:
    """Whether an array or group is a group or inside of it."""
    return f"{name}/".startswith(f"{group}/")


def _owner(path: Path, name: str) -> str:
    group = name.partition("/")[0]
    return group if any((path / group).glob(f"*/{METADATA}")) and group else "study"


def _metadata(folder: Path) -> dict[str, Any]:
    """Metadata of an array or group by its own file; empty if that is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads((folder / METADATA).read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


def _without_index(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry for key, entry in metadata.items() if key != _INDEX}


def _is_json(text: Any) -> bool:
    with suppress(TypeError, ValueError):
        return isinstance(json.loads(text), dict)
    return False
