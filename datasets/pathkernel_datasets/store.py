"""The Zarr store of a study: made whole, filled point by point, checked when opened."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from xarray.core import indexing
from zarr.codecs import BytesCodec

from pathkernel_core.analysis import Variable
from pathkernel_datasets.atomic import link_or_copy, replacing_folder, sync
from pathkernel_datasets.checksums import (
    CHECKED,
    MISSING,
    StoredArray,
    codecs_of,
    damaged_chunks,
    read_array,
    sharded,
    write_dataset,
    write_region,
    write_regions,
    writing_every_chunk,
)
from pathkernel_datasets.chunk_files import (
    Opened,
    Place,
    chunk_file,
    places_of,
    store_chunks,
    stored_chunk,
)
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.labelling import (
    drawable,
    json_attribute,
    variable_attributes,
    variable_names,
)
from pathkernel_datasets.memory import bytes_in_words
from pathkernel_datasets.metadata import consolidate, copy_metadata, has_copy
from pathkernel_datasets.schema import MARKER_NAMES, MARKERS, POINT, STATUS_CODES
from pathkernel_datasets.study import OTHER_DATA, SCHEMA_VERSION, differences, grid_of

_REFERENCE = "Tiberi, Mignacco, Irie, Sompolinsky, NeurIPS 2024, arXiv:2405.15926"
_LARGEST_FILE = 2**24  # bytes of several points together, which each point writes anew
_TOGETHER = 0.2  # seconds of work that a kill may cost besides the point that is under way
_INTEGERS = {"evaluations": "int32", "minima": "int32", **dict.fromkeys(MARKER_NAMES, "int8")}


class Store:
    """Result store of one study, open for filling.

    Every grid point is written with its marker last. Whatever is killed, a point is either marked
    and whole or it is computed again.
    """

    def __init__(self, path: Path):
        self.path = path
        with writing_every_chunk():
            self._group = zarr.open_group(path, mode="r+", zarr_format=3)
            self._arrays = dict(self._group.arrays())
        self._variables = frozenset(variable_names(self._group.attrs))
        self._study = json.loads(self._group.attrs["study"])
        self._grid = grid_of(self._study)
        self._marked: dict[str, np.ndarray] = {}
        self._held: list[tuple[tuple[int, ...], Mapping[str, Any], str, int]] = []
        self._flushed = time.monotonic()

    @classmethod
    def create(
        cls,
        path: Path,
        variables: Iterable[Variable],
        coordinates: Mapping[str, xr.Variable],
        attributes: Mapping[str, Any],
        study: Mapping[str, Any],
        held: Store | None = None,
    ) -> Store:
        """Make a store beside ``path`` and move it into place, whole or not at all.

        It is empty, or takes over all that a smaller grid of the same study holds, and its results.

        Raises
        ------
        StoreError
            If there is not enough disk space, or two variables have one name.
        """
        grid = grid_of(study)
        swept = tuple(dim for dim in grid if dim not in POINT)
        variables = [
            replace(variable, dims=(*swept, *variable.dims)) for variable in (*variables, *MARKERS)
        ]
        names = [*coordinates, *(variable.name for variable in variables)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StoreError(
                f"the study has two variables named {', '.join(twice)}; an analysis must give its "
                "own another name"
            )
        sizes = {
            name: len(values) for name, values in coordinates.items() if values.dims == (name,)
        }
        _check_space(path, variables, sizes)
        dataset = xr.Dataset(
            coords=coordinates,
            attrs={
                **attributes,
                "schema_version": SCHEMA_VERSION,
                "references": _REFERENCE,
                # "variables" is a name of NetCDF's own
                "variable_names": [variable.name for variable in variables],
                "study": json.dumps(study, sort_keys=True),
            },
        )
        try:
            with replacing_folder(path, overwrite=held is not None) as partial:
                write_dataset(dataset, partial)
                codecs = CHECKED if held is None else codecs_of(held._arrays["status"])[1:]
                for variable in variables:
                    _create_array(partial, variable, sizes, grid, codecs)
                if held is not None:
                    cls(partial)._take_over(held)
                consolidate(partial)
                copy_metadata(partial)
                sync()
                if path.is_dir() and not any(path.iterdir()):
                    path.resolve().rmdir()
        except FileExistsError:
            raise StoreError(f"another run has just made {path}; start again") from None
        return cls(path)

    @classmethod
    def resume(
        cls, path: Path, held: Mapping[str, Any], study: Mapping[str, Any], compare: bool = True
    ) -> Store:
        """Open a store to go on with the same study; what is damaged is to be computed again.

        Parameters
        ----------
        path : Path
        held, study : mapping
            Identities of the study in the store, from :func:`check_store`, and of the one wanted.
        compare : bool
            Look for damage; not where others write.

        Raises
        ------
        StoreError
            If they are different studies.
        """
        different = differences(held, study, "this run")
        if different:
            raise StoreError(
                f"{path} holds another study and is left as it is ({'; '.join(different)}). Choose "
                "another file (--out on the command line)"
                + (
                    ""
                    if different[-1].startswith(OTHER_DATA)
                    else ", or run with the store's own settings to go on with it"
                )
            )
        store = cls(path)
        if compare:
            store._unmark_damaged()
        return store

    def _take_over(self, held: Store) -> None:
        """Let chunks and results of a store of a smaller grid be here too, at their points."""
        group = zarr.open_group(held.path, mode="r", use_consolidated=False)
        results = sorted(group.group_keys())
        if results and len(self._grid) > len(held._grid):
            raise StoreError(
                f"{held.path} holds results of a single value of {next(iter(self._grid))} "
                f"({', '.join(results)}), which do not go with several; choose another file"
            )
        single = held._study["options"]  # of the option that has several values only here
        places = {
            dim: [values.index(value) for value in held._grid.get(dim) or [single[dim]]]
            for dim, values in self._grid.items()
        }
        for name in filter(held.is_variable, held._arrays):
            old, new = held._arrays[name], self._arrays[name]
            dims = [dim for dim in new.metadata.dimension_names if dim in places]
            inner = new.shape[len(dims) :]
            same = old.shape[old.ndim - len(inner) :] == inner
            temperatures = held._grid["temperature"] == self._grid["temperature"]
            alike = (old.shards is None) == (new.shards is None) and (
                new.shards is None or temperatures
            )
            moved: dict[Path, dict[Place, bytes]] = {}
            opened: Opened = {}
            for chunk in places_of(old):
                at = dict(zip(old.metadata.dimension_names, chunk))
                if same and alike and new.shards is not None and at["temperature"]:
                    continue  # it comes along with the first of its file
                index = tuple(places[dim][at.get(dim, 0)] for dim in dims)
                place = (*index, *(0 for _ in inner))
                here, there = chunk_file(new, place), chunk_file(old, chunk)
                if same and alike:
                    if there.exists() and not here.exists():
                        here.parent.mkdir(parents=True, exist_ok=True)
                        link_or_copy(there, here)
                    continue
                with suppress(Exception):  # it is damaged, and computed again, or there is none
                    data = stored_chunk(old, chunk, opened)
                    if same:
                        moved.setdefault(here, {})[place] = data
                    else:
                        values = read_array(old, chunk[: old.ndim - len(inner)])
                        write_region(new, index, _padded(new, index, values))
            for chunks in moved.values():
                store_chunks(new, chunks)
        for name in results:
            shutil.copytree(held.path / name, self.path / name, copy_function=link_or_copy)

    def _unmark_damaged(self) -> None:
        """Let all be computed again that is damaged."""
        for marker in self.markers:
            damaged = self.damaged(marker)
            for index in damaged:
                self._mark(marker, index, 0)
            if damaged:
                names = sorted({name for names in damaged.values() for name in names})
                warnings.warn(
                    f"{self.path} was damaged: {', '.join(names)} at {len(damaged)} "
                    f"place{'s' * (len(damaged) > 1)}; computed again",
                    StoreWarning,
                    stacklevel=4,
                )

    @property
    def identity(self) -> str:
        """All that determines the results, as JSON."""
        return str(self._group.attrs["study"])

    @property
    def analyses(self) -> list[str]:
        """Names of the analyses whose variables the store holds."""
        return list(json_attribute(self._group.attrs, "analyses"))

    @property
    def markers(self) -> list[str]:
        """Names of the markers that the store has."""
        return sorted(MARKER_NAMES & set(self._arrays))

    def marker(self, name: str) -> np.ndarray:
        """Values of a marker over its grid, as :meth:`read` gives them; others write elsewhere."""
        if name not in self._marked:
            self._marked[name] = self.read(name)
        return self._marked[name]

    def forget_markers(self) -> None:
        """Read markers anew: workers have written some."""
        self._marked.clear()

    def holds(self, name: str) -> bool:
        """Whether the store has a variable."""
        return name in self._arrays

    def is_variable(self, name: str) -> bool:
        """Whether a marker vouches for a variable, or it is a marker."""
        return name in self._variables

    def read(self, name: str) -> np.ndarray:
        """All values of a variable.

        Raises
        ------
        StoreError
            If the file that holds them is damaged.
        """
        try:
            return read_array(self._arrays[name])
        except Exception as error:  # whatever the decoder of a damaged file raises
            raise StoreError(
                f"{self.path} is damaged: its variable {name!r} cannot be read ({error}); run the "
                "study into it again, not in parts, to compute what is damaged"
            ) from None

    def write(
        self, index: tuple[int, ...], values: Mapping[str, Any], marker: str, code: int
    ) -> None:
        """Write variables at a grid index, then the marker that vouches for them.

        A value may be shorter than its variable in a dimension (a test set with fewer examples);
        the rest is NaN, as are variables without a value. What comes within moments is written
        together; :meth:`flush` writes the last of it.
        """
        self._held.append((index, values, marker, code))
        if marker in self._marked:
            self._marked[marker][index] = code
        if time.monotonic() - self._flushed >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write what is held back, then its markers."""
        held = list(self._held)  # kept until all is written: an interrupted flush is done again
        parts: dict[str, list[tuple[Any, Any]]] = {}
        for index, values, marker, _ in held:
            for name in {*self._vouched(marker), *values}:
                whole = _padded(self._arrays[name], index, values.get(name))
                parts.setdefault(name, []).append((index, whole))
        for name, regions in parts.items():
            write_regions(self._arrays[name], regions)
        if held:
            sync()  # a marker must not outlast a power failure that they do not
        for name in {marker for _, _, marker, _ in held}:
            marked = [(index, code) for index, _, marker, code in held if marker == name]
            write_regions(self._arrays[name], marked)
        del self._held[: len(held)]
        self._flushed = time.monotonic()

    def _mark(self, marker: str, index: tuple[int, ...], code: int) -> None:
        write_region(self._arrays[marker], index, code)
        if marker in self._marked:
            self._marked[marker][index] = code

    def damaged(self, marker: str) -> dict[tuple[int, ...], dict[str, str]]:
        """Grid indices at which a marker vouches for what is damaged, or is damaged itself.

        Returns
        -------
        mapping of index to mapping of str to str
            Names of the damaged variables, and what is wrong with them.
        """
        array = self._arrays[marker]
        found = {
            index: {marker: fault}
            for index, fault in damaged_chunks(array).items()
            if fault != MISSING  # not computed
        }
        if found:
            readable = (index for index in np.ndindex(array.shape) if index not in found)
            marked = {index for index in readable if array[index]}
        else:
            marked = set(map(tuple, np.argwhere(read_array(array)).tolist()))
        for name in self._vouched(marker):
            for chunk, fault in damaged_chunks(self._arrays[name]).items():
                index = chunk[: array.ndim]
                if index in marked:
                    found.setdefault(index, {})[name] = fault
        return found

    def _vouched(self, marker: str) -> list[str]:
        """Variables that a marker vouches for: with its dimensions and no more of the grid."""
        dims = self._arrays[marker].metadata.dimension_names
        return [
            name
            for name, array in self._arrays.items()
            if name not in MARKER_NAMES | set(self._grid)
            and tuple(dim for dim in array.metadata.dimension_names or () if dim in self._grid)
            == dims
        ]


def _padded(array: zarr.Array, index: tuple[int, ...], value: Any) -> np.ndarray:
    """A value at a grid index, and NaN where it ends, or everywhere if it is None."""
    whole = np.full(array.shape[len(index) :], array.fill_value, array.dtype)
    if value is not None:
        value = np.asarray(value)
        whole[tuple(map(slice, value.shape))] = value
    return whole


def check_store(path: Path) -> dict[str, Any]:
    """Identity of the study that a store holds, after checking that the store is whole.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    remedy = (
        "run the command again that computed it, which mends what it can, or choose another file"
    )
    if not path.exists():
        raise StoreError(f"there is no store at {path}; make one with: pathkernel run TASK")
    try:
        attributes = _metadata(path)["attributes"]
        inside = (entry for entry in path.iterdir() if (entry / "zarr.json").exists())
        present = {entry.name for entry in inside if _metadata(entry)["node_type"] == "array"}
    except Exception as error:  # whatever the parser and the file system raise
        if not has_copy(path):
            raise StoreError(f"{path} is {_something_else(path)}") from None
        raise StoreError(
            f"{path} is damaged: its metadata are unreadable ({error}); {remedy}"
        ) from None
    if "schema_version" not in attributes or "study" not in attributes:
        raise StoreError(f"{path} is a Zarr store, but not one of pathkernel; choose another file")
    if attributes["schema_version"] != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {attributes['schema_version']}, this pathkernel reads "
            f"version {SCHEMA_VERSION}; install the version of pathkernel that wrote it"
        )
    try:
        study = json.loads(attributes["study"])
        missing = set(variable_names(attributes)) - present
    except (TypeError, json.JSONDecodeError) as error:
        raise StoreError(
            f"{path} is damaged: its study is unreadable ({error}); {remedy}"
        ) from None
    if missing:
        raise StoreError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}; {remedy}")
    for name, labels in grid_of(study).items():
        try:
            array = zarr.open_array(path / name, mode="r", zarr_format=3)
            intact = np.array_equal(read_array(array), labels)
        except Exception:  # whatever the decoder of a damaged file raises
            intact = False
        if not intact:
            raise StoreError(f"{path} is damaged: its coordinate {name!r} is lost; {remedy}")
    return study


def _something_else(path: Path) -> str:
    if path.is_dir():
        return "a folder, but no store of pathkernel; choose another"
    with path.open("rb") as file:
        if not file.read(4).startswith((b"CDF", b"\x89HDF")):
            return "a file; a store of pathkernel is a folder, such as NAME.zarr"
    return (
        "a NetCDF file, which xarray.open_dataset opens; give the store that it was made from, a "
        "folder such as NAME.zarr"
    )


def _metadata(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "zarr.json").read_bytes())


def open_store(path: str | os.PathLike) -> xr.Dataset:
    """Open a result store as a lazy dataset, its text of fixed length so that xarray draws it.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    path = Path(path)
    check_store(path)
    try:
        dataset = drawable(xr.open_zarr(path, chunks=None, zarr_format=3))
        arrays = dict(zarr.open_group(path, mode="r", zarr_format=3).arrays())
        return dataset.copy(data={name: _lazily(arrays[name]) for name in dataset})
    except Exception as error:
        raise StoreError(f"{path} is damaged ({error}); run the study again elsewhere") from None


def _lazily(array: zarr.Array) -> Any:
    """As xarray opens an array: read once, when it is used, and edited in memory alone."""
    lazy = indexing.LazilyIndexedArray(StoredArray(array))
    return indexing.MemoryCachedArray(indexing.CopyOnWriteArray(lazy))


def _create_array(
    folder: Path,
    variable: Variable,
    sizes: Mapping[str, int],
    grid: Container[str],
    codecs: Sequence[Any],
) -> None:
    """Array filled with NaN, one chunk per grid point so that points are written alone.

    Chunks of all temperatures lie in one file, which one worker writes. The metadata are what Zarr
    writes, which takes fifty times as long.
    """
    dtype = _INTEGERS.get(variable.name, "float64")
    attributes: dict[str, Any] = variable_attributes(variable)
    if variable.name == "status":
        attributes["flag_values"] = list(STATUS_CODES.values())
        attributes["flag_meanings"] = " ".join(name.replace(" ", "_") for name in STATUS_CODES)
    chunk = [1 if dim in grid else max(1, sizes[dim]) for dim in variable.dims]
    in_bytes = BytesCodec(endian=None if dtype == "int8" else "little")
    codecs, files = (in_bytes, *codecs), chunk
    row = [sizes[dim] if dim == "temperature" else n for dim, n in zip(variable.dims, chunk)]
    if row != chunk and 8 * math.prod(row) <= _LARGEST_FILE:
        codecs, files = (sharded(tuple(chunk), codecs),), row
    metadata = {
        "shape": [sizes[dim] for dim in variable.dims],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": files}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0 if dtype != "float64" else "NaN",
        "codecs": [codec.to_dict() for codec in codecs],
        "attributes": attributes,
        "dimension_names": variable.dims,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    array = folder / variable.name
    array.mkdir()
    (array / "zarr.json").write_text(json.dumps(metadata, indent=2))


def _check_space(path: Path, variables: Iterable[Variable], sizes: Mapping[str, int]) -> None:
    folder = path.resolve().parent
    need = sum(8 * math.prod(sizes[dim] for dim in variable.dims) for variable in variables)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise StoreError(
            f"the study needs up to {bytes_in_words(need)}, but {folder} has "
            f"{bytes_in_words(free)} free; choose another disk, fewer seeds or a smaller grid"
        )
