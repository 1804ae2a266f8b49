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

from pathkernel_datasets.checksums import array_checksum, group_checksum, piece_checksum
from pathkernel_datasets.identity import core_of, grid_of
from pathkernel_datasets.pieces import Piece, pieces_of
from pathkernel_datasets.template import ATTRIBUTES_COPY

METADATA = "zarr.json"
INDEX = "consolidated_metadata"
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
        self.path = path

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the study on which two of their three copies agree; empty if none do."""
        root = metadata_of(self.path).get("attributes", {})
        copies = [{key: root[key] for key in root if key not in ("checksum", "coordinates")}]
        for arrays in self._views():
            with suppress(KeyError, TypeError, ValueError):
                copies.append(json.loads(arrays[ATTRIBUTES_COPY].attributes["study_attributes"]))
        agreed = [copy for copy in copies if copies.count(copy) > 1] or copies
        return next((copy for copy in agreed if _is_json(copy.get("study"))), {})

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
                    name: _part(arrays[name], position)
                    for name in self._names
                    if "seed" in arrays[name].dims and name != "seed"
                    if piece.includes(arrays[name].dims)
                }
                name, checksum = piece_checksum({key: part[1] for key, part in variables.items()})
                if variables.pop(name)[1] == checksum:
                    return xr.Dataset(variables, {"temperature": self._grid["temperature"]})
        return None

    def core(self, piece: Piece) -> str:
        """All that determines a piece besides its key."""
        return core_of(self.identity or {}, piece.swept, piece.value)

    @cached_property
    def _names(self) -> list[str]:
        return json.loads(self.attributes["variable_names"])

    @cached_property
    def _grid(self) -> dict[str, list]:
        return grid_of(self.identity) if self.identity else {}

    def _position(self, piece: Piece, core: str) -> dict[str, int] | None:
        """Index of a piece along the grid; None if the grid lacks it or the study is another."""
        if self.identity is None or core_of(self.identity, piece.swept, piece.value) != core:
            return None
        grid = self._grid
        if piece.swept is not None and piece.swept not in grid:  # the store has one value of it
            grid = grid | {piece.swept: [self.identity["options"].get(piece.swept)]}
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
            group = zarr.open_group(self.path, mode="r")
            return {name: StoredArray.of(array) for name, array in group.arrays()}
        return {}

    @cached_property
    def _separate(self) -> dict[str, StoredArray]:
        arrays = {}
        for file in self.path.glob(f"*/{METADATA}"):
            with suppress(Exception):
                arrays[file.parent.name] = StoredArray.of(zarr.open_array(file.parent, mode="r"))
        return arrays


def _part(array: StoredArray, position: Mapping[str, int]) -> tuple[list[str], np.ndarray]:
    index = tuple(position.get(dim, slice(None)) for dim in array.dims)
    return [dim for dim in array.dims if dim not in position], np.asarray(array.values[index])


def faults(published: Published, within: str | None = None) -> Iterator[tuple[str, str, str]]:
    """Read a store, and name what is damaged.

    Parameters
    ----------
    published : Published
    within : str, optional
        Read the values of the study (``"study"``), or of a result or a part of one, alone, besides
        all metadata; by default everything.

    Yields
    ------
    tuple of str
        ``"study"``, or the result that is damaged; the array, group or piece; and the fault.
    """
    path = published.path
    index = (metadata_of(path).get(INDEX) or {}).get("metadata", {})
    files = {file.parent.relative_to(path).as_posix() for file in path.rglob(METADATA)}
    if not index and not files:  # nothing is published
        return
    attributes = {"": metadata_of(path).get("attributes", {})}
    checksums: dict[str, dict[str, str]] = defaultdict(dict)  # of the arrays of groups
    damaged = set()
    if not index:
        damaged |= {"", "study"}
        yield "study", METADATA, "it cannot be read"
    own_arrays = attributes[""].get("variable_names", "[]")
    for name in sorted({*index, *files} - {"."}):
        owner, parent = _owner(path, name, index), name.rpartition("/")[0]
        separate, consolidated = metadata_of(path / name), index.get(name, {})
        lines = []
        if separate.get("node_type") not in ("array", "group") or (index and not consolidated):
            lines = ["a copy of its metadata is lost"]
        elif index and _without_index(separate) != _without_index(consolidated):
            lines = ["its metadata differ between their two copies"]
        elif separate["node_type"] == "group":
            attributes[name] = separate.get("attributes", {})
        elif _is_read(owner, name, within) and (parent or f'"{name}"' in own_arrays):
            array = zarr.open_array(path / name, mode="r")
            of_pieces = not parent and "seed" in array.metadata.dimension_names and name != "seed"
            lines, checksum = _read(array, checked=not of_pieces)
            if checksum:
                checksums[parent][name.rpartition("/")[2]] = checksum
        damaged |= {parent, owner} if lines else set()
        yield from ((owner, name, line) for line in lines)
    for name, entries in attributes.items():
        owner, expected = _owner(path, name, index), entries.get("checksum", "" if name else "lost")
        is_checked = expected and _is_read(owner, name, within) and name not in damaged
        if is_checked and group_checksum(entries, checksums[name]) != expected:
            damaged.add(owner)
            yield owner, name or METADATA, "it is not as it was written"
    if within in (None, "study") and "study" not in damaged:
        for piece in pieces_of(grid_of(published.identity or {})):
            if published.read(piece, published.core(piece)) is None:
                yield "study", str(piece), "its values are not as they were written"


def _is_read(owner: str, name: str, within: str | None) -> bool:
    return within in (None, owner) or is_inside(name, within)


def _read(array: zarr.Array, checked: bool) -> tuple[list[str], str]:
    """Faults of the chunks of an array; or a checksum of its values, if it is to be checked."""
    with suppress(Exception):  # whatever the decoder of a damaged file raises
        if array.nchunks_initialized == array.nchunks and (
            checked or array.nbytes <= _LARGEST_IN_MEMORY
        ):
            values = array[...]
            return [], array_checksum(values) if checked else ""
    lines = []
    folder = Path(array.store.root) / array.path  # type: ignore[attr-defined]
    for index in np.ndindex(*array.cdata_shape):
        chunk = f"chunk {'/'.join(map(str, index)) or 0}"
        if not (folder / array.metadata.encode_chunk_key(index)).exists():
            lines.append(f"{chunk} is missing")
            continue
        try:
            _ = array.blocks[index] if index else array[()]
        except Exception as error:
            lines.append(f"{chunk} cannot be read ({error})")
    return lines, ""


def is_inside(name: str, group: str) -> bool:
    """Whether an array or group is a group or inside of it."""
    return f"{name}/".startswith(f"{group}/")


def _owner(path: Path, name: str, index: Mapping[str, Any]) -> str:
    group = name.partition("/")[0]
    listed = index.get(group, {}).get("node_type") == "group"
    return group if group and (listed or any((path / group).glob(f"*/{METADATA}"))) else "study"


def metadata_of(folder: Path) -> dict[str, Any]:
    """Metadata of an array or group by its own file; empty if that is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads((folder / METADATA).read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


def _without_index(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry for key, entry in metadata.items() if key != INDEX}


def _is_json(text: Any) -> bool:
    with suppress(TypeError, ValueError):
        return isinstance(json.loads(text), dict)
    return False
