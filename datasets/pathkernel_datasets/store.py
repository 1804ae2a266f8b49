"""Reading the dataset of a study: from its store, or from its pieces while it is computed."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr
import zarr

from pathkernel_core.atomic import remove_leftovers
from pathkernel_core.local_files import (
    IRREGULAR,
    check_local,
    irregular_entries,
    is_damage,
)
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.identity import core_of, grid_of
from pathkernel_datasets.labelling import drawable
from pathkernel_datasets.lock import lock_of, locked
from pathkernel_datasets.pieces import Piece, PieceFiles, pieces_folder, pieces_of
from pathkernel_datasets.published import INDEX, METADATA, Published, metadata_of
from pathkernel_datasets.study import POINT
from pathkernel_datasets.template import SCHEMA_VERSION, fill, on_grid

TEMPLATE = "template"
"""Piece that holds the labels and attributes of the study that the others are of."""

_REMEDY = "run the command again that computed it, which mends what it can"


def open_store(path: str | os.PathLike) -> xr.Dataset:
    """Open a result store as a lazy dataset, its text of fixed length so that xarray draws it.

    While a run is in progress, or after it was interrupted, the dataset holds all that is computed;
    the status of other points is 0, "not computed".

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.

    Notes
    -----
    Variables are read when they are used: call ``dataset[names].load()`` before many small
    selections. Points that are not computed, or whose kernel could not be factorised, are NaN (0
    for whole numbers); those that did not converge have numbers, too: look at ``dataset.status``,
    where 1 is converged. Plain ``xarray.open_zarr`` reads a complete store as well.

    Examples
    --------
    >>> import pathkernel as pk
    >>> study = pk.Study(pk.HiddenMarkov(examples=20, test_examples=20), widths=(10, 100))
    >>> computed = pk.run_study(study, "small.zarr")
    >>> pk.open_store("small.zarr").sizes["width"]
    2
    """
    check_local(path)
    path = Path(path)
    check_store(path)
    template = unfinished(path)
    if template is not None:
        computed = drawable(_computed(path, template))
        if unfinished(path) is not None:  # not published meanwhile
            return computed
    try:
        check_chunks(path)
        consolidated = INDEX in metadata_of(path)  # otherwise xarray looks for it, and warns
        opened = xr.open_zarr(path, chunks=None, zarr_format=3, consolidated=consolidated)
        dataset = drawable(opened)
    except Exception as error:  # whatever the parser of a damaged file raises
        if isinstance(error, StoreError) or not is_damage(error):
            raise
        raise StoreError(f"{path} is damaged ({error}); {_REMEDY}") from None
    for dim in POINT:
        if dim not in dataset.dims:
            raise StoreError(
                f"{path} has no dimension {dim}, as after a selection of a single value by another "
                f"program; select it by a list, such as dataset.sel({dim}=[...]), and write that"
            )
    return dataset


def check_chunks(path: Path, group: str = "") -> None:
    """Check that no chunk of a group is missing, which Zarr would read as NaN.

    A store that another program wrote may leave out chunks of fill values.

    Raises
    ------
    StoreError
        If one is.
    """
    members = zarr.open_group(path / group, mode="r").members(max_depth=None if group else 0)
    lost = [
        name
        for name, array in members
        if isinstance(array, zarr.Array) and array.nchunks_initialized < array.nchunks
    ]
    if lost and not Published(path).is_rewritten:
        raise StoreError(f"{path} is damaged: chunks of {', '.join(lost)} are missing; {_REMEDY}")


def check_store(path: Path) -> dict[str, Any]:
    """Identity of the study that a store holds, or that is being computed into it.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    check_local(path)
    check_regular(pieces_folder(path))
    template = unfinished(path)
    if template is not None:
        return _identity(template.attrs["study"])
    check_regular(path)
    if not path.exists() and lock_of(path).exists():  # perhaps it is replaced just now
        with locked(path, wait=True):
            remove_leftovers(path)
    if not path.exists():
        if TEMPLATE in PieceFiles(path, "study"):
            raise StoreError(f"{path} is not complete, and its pieces are damaged; {_REMEDY}")
        similar = path.with_name(f"{path.name}.zarr")
        hint = f"did you mean {similar}?" if similar.exists() else "make one: pathkernel run TASK"
        raise StoreError(f"there is no store at {path}; {hint}")
    attributes = metadata_of(path).get("attributes", {})
    if "schema_version" not in attributes or "study" not in attributes:
        if Published(path).identity is None:
            raise StoreError(
                f"{path} is no store of pathkernel, which is a folder such as NAME.zarr; choose "
                "another"
            )
        raise StoreError(f"{path} is damaged: its metadata are unreadable; {_REMEDY}")
    if attributes["schema_version"] != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {attributes['schema_version']}, this pathkernel reads "
            f"version {SCHEMA_VERSION}; install the version of pathkernel that wrote it"
        )
    try:
        return _identity(attributes["study"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged: its study is unreadable ({error}); {_REMEDY}"
        ) from None


def check_regular(path: Path) -> None:
    """Raise a StoreError if a store, or the folder of its pieces, holds pipes, devices or links."""
    for entry in irregular_entries(path):
        remedy = "choose another" if entry == path else "remove it"
        raise StoreError(f"{entry} is {IRREGULAR}; {remedy}")


def _identity(text: str) -> dict[str, Any]:
    """Identity of a study from JSON; names and values that it sweeps become names of folders."""
    identity = json.loads(text)
    for name in identity.get("sweep", {}):
        values = map(str, identity["options"][name])
        if not name.isidentifier() or not all(re.fullmatch(r"[\w.+ -]+", v) for v in values):
            raise ValueError(f"the option {name!r} or one of its values is no plain word")
    return identity


def unfinished(path: Path) -> xr.Dataset | None:
    """Template of the study that is being computed into a store; None if none is."""
    tree = PieceFiles(path, "study").read(TEMPLATE, "")
    if tree is None:
        return None
    template = tree.to_dataset()
    return on_grid(template, grid_of(json.loads(template.attrs["study"])))


@dataclass(frozen=True)
class Checked:
    """Outcome of reading all of a store.

    Attributes
    ----------
    study, results : tuple of str
        Lines about damage: of the study, and of the results beside it.
    points, computed : int
        Points of the grid, and those of them that are computed; 0 if the study is damaged.
    arrays : int
        Arrays that were read.
    """

    study: tuple[str, ...]
    results: tuple[str, ...] = ()
    points: int = 0
    computed: int = 0
    arrays: int = 0


def check(path: str | os.PathLike) -> Checked:
    """Read all that a store holds, and the pieces beside it.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel.
    """
    check_local(path)
    path = Path(path)
    published = Published(path)
    if published.identity is None:
        check_store(path)  # says what it is, unless its pieces are there
    faults = dict(published.read_files())
    irregular = [entry.relative_to(path).as_posix() for entry in irregular_entries(path)]
    faults |= {name: f"is {IRREGULAR}; remove it" for name in irregular}
    damage = [(published.owner(name), f"{name} {fault}") for name, fault in faults.items()]
    for file in PieceFiles(path, "").damaged():
        of_study = Path(file).parts[1] in ("study", "sums")
        damage.append(("study" if of_study else "results", f"{file} is damaged"))
    study = tuple(line for owner, line in damage if owner == "study")
    results = tuple(line for owner, line in damage if owner != "study")
    nodes = (metadata_of(file.parent).get("node_type") for file in path.rglob(METADATA))
    arrays = sum(node == "array" for node in nodes)
    if study or irregular:
        return Checked(study, results, arrays=arrays)
    status = open_store(path)["status"].values
    return Checked((), results, status.size, int((status != 0).sum()), arrays)


def read_piece(
    piece: Piece, core: str, files: PieceFiles, published: Published
) -> xr.Dataset | None:
    """Read a piece from its file, or else from the published store; None if both lack it."""
    tree = files.read(piece.name, core)
    return published.read(piece, core) if tree is None else tree.to_dataset()


def _computed(path: Path, template: xr.Dataset) -> xr.Dataset:
    """Template with all values that are computed."""
    identity = json.loads(template.attrs["study"])
    files, published = PieceFiles(path, "study"), Published(path)
    dataset = template.copy(deep=True)
    for piece in pieces_of(grid_of(identity)):
        values = read_piece(piece, core_of(identity, piece.swept, piece.value), files, published)
        if values is not None:
            fill(dataset, piece, values)
    return dataset
