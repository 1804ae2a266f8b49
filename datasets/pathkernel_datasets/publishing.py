"""Publishing: pieces become one plain Zarr store, which is moved into place whole."""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
import zarr.errors
from zarr.codecs import Crc32cCodec, ZstdCodec

from pathkernel_datasets.atomic import replacing_folder
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.labelling import storable
from pathkernel_datasets.memory import bytes_in_words
from pathkernel_datasets.piece_files import Piece

_CODECS = (ZstdCodec(level=0), Crc32cCodec())
_LARGEST_CHUNK = 2**23  # bytes
_LARGEST_REGION = 2**27  # bytes that are assembled in memory at once
_METADATA = "zarr.json"


def filled(template: xr.Dataset, pieces: Iterable[tuple[Piece, xr.Dataset]]) -> xr.Dataset:
    """Template, or a part of one, with the values of pieces; a piece may lack some of them."""
    dataset = template.copy(data={name: np.array(held) for name, held in template.items()})
    indices = {
        dim: {label: index for index, label in enumerate(labels.values.tolist())}
        for dim, labels in template.indexes.items()
    }
    for piece, values in pieces:
        index: dict[Any, Any] = {
            dim: indices[dim][label] for dim, label in piece.labels.items() if dim in template.dims
        }
        common = values["temperature"].isin(template["temperature"])
        values = values.isel(temperature=common.values)
        temperatures = [indices["temperature"][t] for t in values["temperature"].values.tolist()]
        for name in values.data_vars.keys() & dataset.data_vars.keys():
            target = dataset[name].variable
            inside = index | {dim: slice(size) for dim, size in values[name].sizes.items()}
            inside["temperature"] = temperatures
            target.values[tuple(inside[dim] for dim in target.dims)] = values[name].values
    return dataset


def publish_study(
    path: Path,
    template: xr.Dataset,
    pieces: Sequence[Piece],
    read: Callable[[Piece], xr.Dataset],
) -> None:
    """Write the store of a study; results beside an older one are taken over.

    Parameters
    ----------
    path : Path
    template : Dataset
        Of the study.
    pieces : sequence of Piece
        All of them, those of one seed next to one another.
    read : callable
        Gives the values of a piece; an error leaves the older store as it is.
    """
    check_space(path, template.nbytes)
    with replacing_folder(path) as folder:
        write_dataset(template.drop_vars(list(template.data_vars)), folder)
        group = zarr.open_group(folder, mode="r+", use_consolidated=False)
        arrays = {
            str(name): group.create_array(
                str(name),
                shape=held.shape,
                dtype=held.dtype,
                chunks=_chunks(held, swept=pieces[0].swept),
                fill_value=np.nan if held.dtype.kind == "f" else 0,
                dimension_names=held.dims,
                attributes=held.attrs,
                compressors=_CODECS,
                config={"write_empty_chunks": True},
            )
            for name, held in template.data_vars.items()
        }
        for region in _regions(pieces, template.nbytes):
            values = [(piece, read(piece)) for piece in region]
            names = sorted({str(name) for _, part in values for name in part.data_vars})
            place = _place(region, template)
            part = filled(template[names].isel(place, missing_dims="ignore"), values)
            for name in names:
                dims = map(str, template[name].dims)
                arrays[name][tuple(place.get(dim, slice(None)) for dim in dims)] = part[name].values
        if path.exists():
            _take_over(path, folder, {*map(str, template.variables), _METADATA})
        consolidate(folder)


def publish_groups(path: Path, groups: Mapping[str, xr.Dataset | xr.DataTree]) -> None:
    """Write groups beside a study in its store; those of the same names are replaced."""
    with replacing_folder(path) as folder:
        _take_over(path, folder, set(groups))
        for name, part in groups.items():
            tree = part if isinstance(part, xr.DataTree) else xr.DataTree(part)
            for node in tree.subtree:
                inside = node.path.strip("/")
                place = f"{name}/{inside}".rstrip("/")
                write_dataset(node.to_dataset(inherit=False), folder, place)
        consolidate(folder)


def write_dataset(dataset: xr.Dataset, folder: Path, group: str | None = None) -> None:
    """Write a dataset as a group with checksums, every chunk of it; metadata are consolidated last.

    Text becomes text of any length, as Zarr has it.
    """
    dataset = storable(dataset.drop_encoding())
    encoding: dict[Any, Any] = {
        name: {"compressors": _CODECS}
        | ({"chunks": _chunks(held)} if held.ndim and held.size else {})
        for name, held in dataset.variables.items()
    }
    dataset.to_zarr(
        folder,
        group=group,
        mode="a",
        zarr_format=3,
        consolidated=False,
        encoding=encoding,
        write_empty_chunks=True,
    )


def consolidate(folder: Path) -> None:
    """Consolidate the metadata of a store, without which plain ``xr.open_zarr`` warns."""
    with warnings.catch_warnings():  # that not every library reads consolidated metadata
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
        zarr.consolidate_metadata(folder)


def check_space(path: Path, size: int) -> None:
    """Check that a store of so many bytes, and its pieces, fit on the disk.

    Raises
    ------
    StoreError
        If they may not.
    """
    folder = path.resolve().parent
    free = shutil.disk_usage(folder).free
    if size > free:
        raise StoreError(
            f"the study needs up to {bytes_in_words(size)}, but {folder} has "
            f"{bytes_in_words(free)} free; choose another disk, fewer seeds or a smaller grid"
        )


def _chunks(variable: xr.DataArray | xr.Variable, swept: str | None = None) -> tuple[int, ...]:
    """Chunks of a seed, or of one width or point of it if that is more than a few megabytes."""
    sizes = {str(dim): size for dim, size in zip(variable.dims, variable.shape)}
    for dim in (swept, "seed", "width", "temperature", "draw"):
        small = variable.dtype.itemsize * math.prod(sizes.values()) <= _LARGEST_CHUNK
        if dim in sizes and (dim in (swept, "seed") or not small):
            sizes[dim] = 1 if dim != "draw" else max(1, _draws(variable, sizes))
    return tuple(max(1, size) for size in sizes.values())


def _draws(variable: xr.DataArray | xr.Variable, sizes: Mapping[str, int]) -> int:
    others = math.prod(size for dim, size in sizes.items() if dim != "draw")
    return _LARGEST_CHUNK // (variable.dtype.itemsize * others)


def _regions(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    """Pieces that are written at once: all, those of a seed, or every one by itself."""
    if size <= _LARGEST_REGION:
        return [list(pieces)]
    seeds = [list(group) for _, group in groupby(pieces, key=lambda piece: piece.data)]
    if size / len(seeds) <= _LARGEST_REGION:
        return seeds
    return [[piece] for piece in pieces]


def _place(region: Sequence[Piece], template: xr.Dataset) -> dict[str, slice]:
    """Where pieces lie along the dimensions on which they agree."""
    common = set.intersection(*(set(piece.labels.items()) for piece in region))
    found = {}
    for dim, label in common:
        index = template[dim].values.tolist().index(label)
        found[dim] = slice(index, index + 1)
    return found


def _take_over(path: Path, folder: Path, replaced: set[str], inside: str = "") -> None:
    """Link what lies in an older store into a new one, but for what is replaced there."""
    for entry in (path / inside).iterdir():
        name = f"{inside}/{entry.name}".lstrip("/")
        if name in replaced:
            continue
        if entry.is_dir():
            (folder / name).mkdir()
            _take_over(path, folder, replaced, name)
        elif entry.name == _METADATA or not _linked(entry, folder / name):
            shutil.copy2(entry, folder / name)  # metadata are written again


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # not on this file system
        return False
    return True
