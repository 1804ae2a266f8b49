"""A published store: reading it piece by piece, and telling damage by the checksums of its files.

A store is plain files, and one more that lists the SHA-256 of every other. It lies in the folder of
an array, where Zarr looks for chunks by name alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pathkernel_core.local_files import is_damage, open_regular
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.identity import core_of, grid_of
from pathkernel_datasets.pieces import Piece

METADATA = "zarr.json"
CHECKSUMS = "status/checksums.json"
INDEX = "consolidated_metadata"
_DIGITS = 64  # of a SHA-256


def write_checksums(folder: Path, copied: Mapping[str, str]) -> None:
    """Write the checksums of all files of a store; those of copied files are the older store's."""
    names = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    files = dict(copied)
    files |= {name: sha256_of(folder / name) for name in names if name not in files}
    content = {"attributes": metadata_of(folder)["attributes"], "files": files}
    text = json.dumps(content, indent=0, sort_keys=True)
    (folder / CHECKSUMS).write_text(text + hashlib.sha256(text.encode()).hexdigest())


def metadata_of(folder: Path) -> dict[str, Any]:
    """Metadata of an array or group by its own file; empty if that is missing or damaged."""
    if (stream := open_regular(folder / METADATA)) is not None:
        with stream, suppress(ValueError, RecursionError):
            content = json.loads(stream.read())
            return content if isinstance(content, dict) else {}
    return {}


def is_inside(name: str, group: str) -> bool:
    """Whether a file, array or group is a group or inside of it."""
    return f"{name}/".startswith(f"{group}/")


def sha256_of(file: Path) -> str:
    """SHA-256 of a plain file; empty if there is none."""
    if (stream := open_regular(file)) is None:
        return ""
    with stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Published:
    """The study that a store holds, piece by piece, even if the store is damaged.

    Parameters
    ----------
    path : Path
        Store, which need not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        self._blocks: dict[str, tuple[tuple[int, ...], np.ndarray]] = {}

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        if (stream := open_regular(self.path / CHECKSUMS)) is None:
            return {}
        with stream, suppress(AttributeError, KeyError, TypeError, ValueError):
            text = stream.read().decode()
            content = json.loads(text[:-_DIGITS])
            is_intact = hashlib.sha256(text[:-_DIGITS].encode()).hexdigest() == text[-_DIGITS:]
            # names lead to files that are read and copied: none may lead out of the store
            names = map(PurePosixPath, content["files"].keys())
            if is_intact and not any(name.is_absolute() or ".." in name.parts for name in names):
                return content
        return {}

    @cached_property
    def is_rewritten(self) -> bool:
        """Whether another program than pathkernel wrote the store, such as xarray from a dataset.

        It then has no checksums, and xarray marks missing values, which pathkernel does not.
        """
        if os.path.lexists(self.path / CHECKSUMS):
            return False
        arrays = (metadata_of(file.parent) for file in self.path.glob(f"*/{METADATA}"))
        return any("_FillValue" in (array.get("attributes") or ()) for array in arrays)

    def check_writable(self) -> None:
        """Raise a StoreError if another program wrote the store."""
        if self.is_rewritten:
            raise StoreError(
                f"{self.path} was written by another program than pathkernel, perhaps in part or "
                "changed, and is left as it is: it can be shown, and nothing computed into it; "
                "choose another file"
            )

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of every file when the store was published, by name; empty if that is lost."""
        return self._manifest.get("files", {})

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the study; empty if they are lost."""
        attributes = self._manifest.get("attributes") or metadata_of(self.path).get("attributes")
        with suppress(KeyError, TypeError, ValueError):
            if isinstance(json.loads(attributes["study"]), dict):  # type: ignore[index]
                return attributes  # type: ignore[return-value]
        return {}

    @cached_property
    def identity(self) -> dict[str, Any] | None:
        """Identity of the study; None if it is lost."""
        return json.loads(self.attributes["study"]) if self.attributes else None

    @cached_property
    def index(self) -> dict[str, Any]:
        """Consolidated metadata by name; empty if they are damaged."""
        if METADATA in self.faults:
            return {}
        return (metadata_of(self.path).get(INDEX) or {}).get("metadata", {})

    @cached_property
    def groups(self) -> set[str]:
        """Names of the results beside the study."""
        files = (file.relative_to(self.path).as_posix() for file in self.path.rglob(METADATA))
        names = {*files, *self.checksums}
        nested = {name for name in names if name.count("/") > 1 and name.endswith(METADATA)}
        return {name.partition("/")[0] for name in nested}

    def owner(self, file: str) -> str:
        """``"study"``, or the result that a file belongs to."""
        return name if (name := file.partition("/")[0]) in self.groups else "study"

    @cached_property
    def faults(self) -> dict[str, str]:
        """Damaged files of the study, and damaged metadata of results, with their faults."""
        return dict(self.read_files("study"))

    @cached_property
    def study_damage(self) -> list[str]:
        """Lines about damage to the study."""
        faults = self.faults.items()
        return [f"{name} {fault}" for name, fault in faults if self.owner(name) == "study"]

    def read_files(self, within: str | None = None) -> Iterator[tuple[str, str]]:
        """Compare files with their checksums, and yield damaged ones with their faults.

        Parameters
        ----------
        within : str, optional
            Read metadata, and of other files those of the study (``"study"``) or of a result or a
            part of one alone; by default everything.
        """
        if self.is_rewritten:
            yield from self._unreadable(within)
        elif not self.checksums and (self.path / METADATA).exists():
            yield CHECKSUMS, "is missing or damaged"
        for name, checksum in self.checksums.items():
            is_metadata = name.endswith(METADATA)
            if is_metadata or within in (None, self.owner(name)) or is_inside(name, str(within)):
                current = sha256_of(self.path / name)
                if current and current != checksum:
                    yield name, "is not as it was written"
                elif not current:
                    lost = not os.path.lexists(self.path / name)
                    yield name, "is missing" if lost else "is no plain file"

    def _unreadable(self, within: str | None) -> Iterator[tuple[str, str]]:
        """Yield arrays of a store without checksums that cannot be decoded, with the reasons."""
        for name, array in zarr.open_group(self.path, mode="r").members(max_depth=None):
            if within not in (None, self.owner(name)) or not isinstance(array, zarr.Array):
                continue
            try:
                if array.ndim == 0:
                    array[...]
                for first in range(0, *array.shape[:1], *array.chunks[:1]) if array.ndim else ():
                    array[first : first + array.chunks[0]]
            except Exception as error:  # whatever a decoder raises
                if not is_damage(error):
                    raise
                yield name, f"is damaged ({error})"

    def core(self, piece: Piece) -> str:
        """All that determines a piece besides its key."""
        return core_of(self.identity or {}, piece.swept, piece.value)

    def read(self, piece: Piece, core: str) -> xr.Dataset | None:
        """A piece at the temperatures of the grid; None if it is damaged or of another study."""
        position = self._position(piece, core)
        if position is None:
            return None
        temperatures = grid_of(self.identity or {})["temperature"]
        try:
            variables = {
                name: self._values(name, array, position)
                for name, array in self._arrays.items()
                if piece.includes(array.metadata.dimension_names)
            }
        except Exception as error:  # whatever the decoder of a damaged file raises
            if is_damage(error):
                return None
            raise
        return xr.Dataset(variables, {"temperature": temperatures})

    def _position(self, piece: Piece, core: str) -> dict[str, int] | None:
        """Index of a piece along the grid; None if the grid lacks it or the study is another."""
        if self.identity is None or self.core(piece) != core:
            return None
        grid = grid_of(self.identity)
        if piece.swept is not None and piece.swept not in grid:  # the store has one value of it
            grid[piece.swept] = [self.identity["options"].get(piece.swept)]
        if any(label not in grid[dim] for dim, label in piece.labels.items()):
            return None
        return {dim: grid[dim].index(label) for dim, label in piece.labels.items()}

    @cached_property
    def _arrays(self) -> dict[str, zarr.Array]:
        """Variables that pieces consist of."""
        files = (file.parent.name for file in self.path.glob(f"*/{METADATA}"))
        listed = (name.partition("/")[0] for name in self.checksums if "/" in name)
        names = {*files, *listed, *self.index} - self.groups
        arrays = {name: self._array(name) for name in names if "/" not in name}
        is_of_pieces = {
            name: "seed" in array.metadata.dimension_names and name != "seed"
            for name, array in arrays.items()
        }
        return {name: arrays[name] for name in arrays if is_of_pieces[name]}

    def _array(self, name: str) -> zarr.Array:
        # by the consolidated metadata first, which serve where an array's own file is damaged
        if name in self.index:
            array = zarr.open_group(self.path, mode="r")[name]
        else:
            array = zarr.open_array(self.path / name, mode="r")
        # without checksums a lost chunk would pass for one of zeros
        if not self.checksums and array.nchunks_initialized < array.nchunks:
            raise FileNotFoundError(f"chunks of {name} are missing")
        return array

    def _values(
        self, name: str, array: zarr.Array, position: Mapping[str, int]
    ) -> tuple[list[str], np.ndarray]:
        """Dimensions and values of a variable of a piece, from the chunks of its seed.

        Raises
        ------
        ValueError
            If one of them is damaged.
        """
        dims = array.metadata.dimension_names
        grid = [dim for dim in dims if dim in position and dim != "width"]  # which come first
        # a chunk holds many pieces, read one after another: it is decoded once
        block = tuple(position[dim] // size for dim, size in zip(grid, array.chunks))
        if self._blocks.get(name, (None,))[0] != block:
            # damage in chunks of other seeds costs these values nothing
            chunks = "/".join([name, "c", *map(str, block)])
            if any(is_inside(file, chunks) for file in self.faults):
                raise ValueError(f"{chunks} is damaged")
            region = tuple(slice(b * size, (b + 1) * size) for b, size in zip(block, array.chunks))
            self._blocks[name] = block, np.asarray(array[region])
        inside = {
            dim: position[dim] % size if dim in grid else position[dim]
            for dim, size in zip(dims, array.chunks)
            if dim in position
        }
        index = tuple(inside.get(dim, slice(None)) for dim in dims)
        return [dim for dim in dims if dim not in position], self._blocks[name][1][index]
