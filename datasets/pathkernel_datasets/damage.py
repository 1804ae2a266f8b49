"""Reading all of a store, to find what is damaged and to take what is not.

Every chunk is written and has a checksum, which Zarr compares when it reads. The metadata of an
array lie in its own file and, consolidated, in that of the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.storage import LocalStore, StorePath

from pathkernel_datasets.labelling import attributes_digest
from pathkernel_datasets.piece_files import Piece
from pathkernel_datasets.study import core_of, grid_of
from pathkernel_datasets.template import IDENTITY_COPY

Chunks = dict[tuple[int, ...], str]

METADATA = "zarr.json"
_INDEX = "consolidated_metadata"


@dataclass
class Scan:
    """What a store holds, and what of it is damaged.

    Attributes
    ----------
    attributes : mapping
        Of the study; of a damaged store its identity at most.
    arrays : mapping of str to zarr.Array
        Those that can be opened, by their paths inside the store.
    metadata : mapping of str to str
        Array or group, ``""`` for the store itself → what is wrong with its metadata.
    chunks : mapping of str to mapping of tuple to str
        Array → index of a chunk → what is wrong with it.
    results : set of str
        Groups of results.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, zarr.Array] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    chunks: dict[str, Chunks] = field(default_factory=dict)
    results: set[str] = field(default_factory=set)

    @cached_property
    def identity(self) -> dict[str, Any] | None:
        """Identity of the study; None if it is lost."""
        with suppress(KeyError, TypeError, ValueError):
            return json.loads(self.attributes["study"])
        return None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Result, ``"study"`` for the study itself, and what is damaged of it, in words."""
        for name, fault in self.metadata.items():
            yield self._owner(name), f"{name or METADATA}: {fault}"
        for name, chunks in self.chunks.items():
            for index, fault in chunks.items():
                place = "/".join(map(str, index)) or "0"
                yield self._owner(name), f"{name}, chunk {place} {fault}"

    def is_damaged(self, group: str) -> bool:
        """Whether anything of a result, or of a part of one, is damaged."""
        return any(_is_inside(name, group) for name in (*self.metadata, *self.chunks))

    def holds(self, piece: Piece, core: str) -> bool:
        """Whether the store has a piece whole, of a study with such a core."""
        place = self._place(piece, core)
        if place is None:
            return False
        for name in self._variables(piece):
            array = self.arrays.get(name)
            if array is None:
                return False
            for index in self.chunks.get(name, ()):
                chunks = zip(self._dims(name), index, array.chunks)
                if all(place.get(dim, i * size) // size == i for dim, i, size in chunks):
                    return False
        return True

    def read(self, piece: Piece, core: str) -> xr.Dataset:
        """Values of a piece that the store holds, at the temperatures of its grid."""
        place, found = self._place(piece, core) or {}, {}
        for name in self._variables(piece):
            dims = self._dims(name)
            values = self.arrays[name][tuple(place.get(dim, slice(None)) for dim in dims)]
            found[name] = ([dim for dim in dims if dim not in place], values)
        return xr.Dataset(found, {"temperature": self.temperatures})

    @property
    def temperatures(self) -> list[float]:
        """Temperatures of the grid."""
        return [] if self.identity is None else self.identity["temperatures"]

    def _place(self, piece: Piece, core: str) -> dict[str, int] | None:
        """Index of a piece along the grid; None if the grid lacks it or the study is another."""
        if self.identity is None:
            return None
        grid = grid_of(self.identity)
        single = piece.swept is not None and piece.swept not in grid
        if single and self.identity["options"].get(piece.swept) != piece.value:
            return None
        place = {dim: label for dim, label in piece.labels.items() if dim in grid}
        if any(label not in grid[dim] for dim, label in place.items()):
            return None
        if core_of(self.identity, piece.swept, piece.value) != core:
            return None
        return {dim: grid[dim].index(label) for dim, label in place.items()}

    def _variables(self, piece: Piece) -> list[str]:
        """Variables that a piece has values of."""
        try:
            names = json.loads(self.attributes["variable_names"])
        except (KeyError, TypeError, ValueError):
            names = [name for name in self.arrays if "/" not in name]
        return [name for name in names if self._belongs(name, piece)]

    def _belongs(self, name: str, piece: Piece) -> bool:
        if name not in self.arrays:  # its dimensions are lost
            return True
        dims = self._dims(name)
        of_grid = "seed" in dims and name not in dims
        return of_grid and ("width" in dims) == (piece.width is not None)

    def _dims(self, name: str) -> tuple[str, ...]:
        return tuple(map(str, self.arrays[name].metadata.dimension_names or ()))

    def _owner(self, name: str) -> str:
        top = name.split("/")[0]
        return top if top in self.results else "study"


def scan(path: Path, *, within: str | None = "") -> Scan:
    """Read everything that a store holds.

    Parameters
    ----------
    path : Path
    within : str, optional
        Read chunks of this group alone; of nothing if it is None.
    """
    found = Scan()
    if not path.exists():
        return found
    root = _parsed(path / METADATA) or {}
    try:
        index = dict(root[_INDEX]["metadata"])
        found.attributes = dict(root["attributes"])
    except (KeyError, TypeError, ValueError):
        index = {}
    files = {file.parent.relative_to(path).as_posix(): file for file in path.rglob(METADATA)}
    files.pop(".", None)
    for name in sorted(index.keys() | files.keys()):
        copies = [_entry(index.get(name)), _entry(_parsed(files[name]) if name in files else None)]
        if None in copies:
            found.metadata[name] = "a copy of its metadata is lost"
        elif copies[0] != copies[1]:
            found.metadata[name] = "its metadata differ between their two copies"
        kinds = [copy.get("node_type") for copy in copies if copy is not None]
        if "/" not in name and "group" in kinds:
            found.results.add(name)
        opened = [_opened(path, name, copy) for copy in copies[: 1 + (name in found.metadata)]]
        readable = [
            (damaged_chunks(array) if _is_inside(name, within) else {}, array)
            for array in opened
            if array is not None
        ]
        if readable:
            faults, found.arrays[name] = min(readable, key=lambda pair: len(pair[0]))
            if faults:
                found.chunks[name] = faults
        elif "array" in kinds or not kinds:
            found.metadata[name] = "its metadata cannot be read"
    checksum = found.attributes.pop("checksum", None)
    if checksum != attributes_digest(found.attributes):
        found.metadata[""] = "its attributes are not as they were written"
        copied = found.arrays.get(IDENTITY_COPY)
        study = None if copied is None else copied.attrs.get("study")
        found.attributes = {} if study is None else {"study": study}
    return found


def _is_inside(name: str, group: str | None) -> bool:
    return group is not None and (not group or f"{name}/".startswith(f"{group}/"))


def damaged_chunks(array: zarr.Array) -> Chunks:
    """Indices of chunks that are missing or cannot be read, and which of the two."""
    found: Chunks = {}
    folder = Path(array.store.root) / array.path  # type: ignore[attr-defined]
    for index in np.ndindex(*array.cdata_shape):
        if not (folder / array.metadata.encode_chunk_key(index)).exists():
            found[index] = "is missing"
            continue
        try:
            _ = array.blocks[index] if index else array[()]
        except Exception as error:  # whatever the decoder of a damaged file raises
            found[index] = f"cannot be read ({error})"
    return found


def _parsed(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _entry(metadata: Any) -> dict[str, Any] | None:
    """Metadata of an array or group without those that are consolidated in it."""
    if not isinstance(metadata, Mapping):
        return None
    return {key: value for key, value in metadata.items() if key != _INDEX}


def _opened(path: Path, name: str, metadata: dict[str, Any] | None) -> zarr.Array | None:
    if metadata is None or metadata.get("node_type") != "array":
        return None
    try:
        return zarr.Array.from_dict(StorePath(LocalStore(path, read_only=True), name), metadata)
    except Exception:  # whatever the parser of damaged metadata raises
        return None
