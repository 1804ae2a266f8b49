"""Reading the dataset of a study: from its store, or from its pieces while it is computed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
import zarr

from pathkernel_datasets.atomic import has_leftovers, remove_leftovers
from pathkernel_datasets.damage import METADATA, scan
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.labelling import coordinate_values, drawable
from pathkernel_datasets.lock import lock_of, locked
from pathkernel_datasets.piece_files import PieceFiles, pieces_of
from pathkernel_datasets.publishing import filled
from pathkernel_datasets.study import core_of, grid_of
from pathkernel_datasets.template import SCHEMA_VERSION, empty

TEMPLATE = "template"
"""Piece that holds the labels and attributes of the study that the others are of."""

_REMEDY = "run the command again that computed it, which mends what it can"


def open_store(path: str | os.PathLike) -> xr.Dataset:
    """Open a result store as a lazy dataset, its text of fixed length so that xarray draws it.

    While a run goes on, or after it was interrupted, the dataset holds all that is computed so
    far; the status of other points is 0, "not computed".

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    path = Path(path)
    check_store(path)
    template = unfinished(path)
    if template is not None:
        so_far = drawable(_so_far(path, template))
        if unfinished(path) is not None:  # not published meanwhile
            return so_far
    try:
        dataset = drawable(xr.open_zarr(path, chunks=None, zarr_format=3))
        arrays = zarr.open_group(path, mode="r", zarr_format=3).arrays()
        lost = [name for name, held in arrays if held.nchunks_initialized < held.nchunks]
    except Exception as error:  # whatever the parser of a damaged file raises
        raise StoreError(f"{path} is damaged ({error}); {_REMEDY}") from None
    if lost:
        raise StoreError(f"{path} is damaged: chunks of {', '.join(lost)} are missing; {_REMEDY}")
    return dataset


def check_store(path: Path) -> dict[str, Any]:
    """Identity of the study that a store holds, or that is being computed into it.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    template = unfinished(path)
    if template is not None:
        return json.loads(template.attrs["study"])
    if not path.exists() and has_leftovers(path):  # or another process replaces it just now
        with locked(path, lock_of(path.resolve()), waiting=lambda: None):
            remove_leftovers(path)
    if not path.exists():
        raise StoreError(f"there is no store at {path}; make one with: pathkernel run TASK")
    try:
        attributes = json.loads((path / METADATA).read_bytes())["attributes"]
    except Exception as error:  # whatever the parser and the file system raise
        if not path.is_dir() or scan(path, within=None).identity is None:
            raise StoreError(f"{path} is {_something_else(path)}") from None
        raise StoreError(
            f"{path} is damaged: its metadata are unreadable ({error}); {_REMEDY}"
        ) from None
    if "schema_version" not in attributes or "study" not in attributes:
        raise StoreError(f"{path} is a Zarr store, but not one of pathkernel; choose another file")
    if attributes["schema_version"] != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {attributes['schema_version']}, this pathkernel reads "
            f"version {SCHEMA_VERSION}; install the version of pathkernel that wrote it"
        )
    try:
        return json.loads(attributes["study"])
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged: its study is unreadable ({error}); {_REMEDY}"
        ) from None


def unfinished(path: Path) -> xr.Dataset | None:
    """Template of the study that is being computed into a store; None if none is."""
    small = PieceFiles(path, "study").read(TEMPLATE, "")
    return None if small is None else on_grid(small, grid_of(json.loads(small.attrs["study"])))


def without_values(template: xr.Dataset) -> xr.Dataset:
    """Template as it is kept in a file: of no seed, so that nothing of it takes space."""
    return template.isel(seed=slice(0)).copy(deep=True)


def on_grid(template: xr.Dataset, grid: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """A template that was kept in a file, on the grid of its study."""
    sizes = {**template.sizes, **{dim: len(values) for dim, values in grid.items()}}
    variables = {
        name: empty(list(map(str, held.dims)), held.dtype, held.attrs, sizes)
        for name, held in template.data_vars.items()
    }
    labels = {
        dim: xr.Variable(dim, coordinate_values(values), template[dim].attrs)
        for dim, values in grid.items()
    }
    coords = {str(name): held.variable for name, held in template.coords.items()}
    return xr.Dataset(variables, coords | labels, template.attrs)


def _so_far(path: Path, template: xr.Dataset) -> xr.Dataset:
    """Template with all values that are computed."""
    identity = json.loads(template.attrs["study"])
    files, published = PieceFiles(path, "study"), scan(path, within=None)
    found = []
    for piece in pieces_of(grid_of(identity)):
        core = core_of(identity, piece.swept, piece.value)
        values = files.read(piece.name, core)
        if values is not None:
            found.append((piece, values))
        elif published.holds(piece, core):
            found.append((piece, published.read(piece, core)))
    return filled(template, found)


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
