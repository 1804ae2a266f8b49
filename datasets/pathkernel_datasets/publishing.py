"""Publishing: pieces become one plain Zarr store, which is moved into place whole."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
import xarray as xr
import zarr
import zarr.errors
from zarr.codecs import Crc32cCodec, ZstdCodec

from pathkernel_datasets.atomic import replacing_folder
from pathkernel_datasets.checksums import group_checksum
from pathkernel_datasets.labelling import storable
from pathkernel_datasets.pieces import Piece
from pathkernel_datasets.template import fill, on_grid, seal

_CODECS = (ZstdCodec(level=0), Crc32cCodec())
_LARGEST_CHUNK = 2**23  # bytes
_LARGEST_REGION = 2**27  # bytes that are assembled in memory at once
_METADATA, _INDEX = "zarr.json", "consolidated_metadata"


def publish_study(
    path: Path,
    template: xr.Dataset,
    pieces: Sequence[Piece],
    read: Callable[[Piece], xr.Dataset],
) -> None:
    """Write the store of a study, region by region; results beside an older one are copied.

    If a piece cannot be read, the older store stays as it is.
    """
    swept = pieces[0].swept
    with replacing_folder(path) as folder:
        write_dataset(template.drop_vars(list(template.data_vars)), folder)
        group = zarr.open_group(folder, mode="r+", use_consolidated=False)
        arrays = {
            name: group.create_array(
                str(name),
                shape=variable.shape,
                dtype=variable.dtype,
                chunks=_chunks(variable, (swept, "seed")),
                fill_value=np.nan if variable.dtype.kind == "f" else 0,
                dimension_names=variable.dims,
                attributes=variable.attrs,
                compressors=_CODECS,
                config={"write_empty_chunks": True},
            )
            for name, variable in template.data_vars.items()
        }
        for region in _regions(pieces, template.nbytes):
            of_width = {piece.width is not None for piece in region}
            names = [n for n, v in template.data_vars.items() if ("width" in v.dims) in of_width]
            common = dict(set.intersection(*(set(piece.labels.items()) for piece in region)))
            labels = {dim: [label] for dim, label in common.items() if dim in template.dims}
            part = on_grid(template[names], labels).copy(deep=True)
            for piece in region:
                fill(part, piece, read(piece))
                seal(part, piece)
            start = {dim: template.get_index(dim).get_loc(labels[dim][0]) for dim in labels}
            for name, variable in part.data_vars.items():
                index = tuple(
                    slice(start[dim], start[dim] + 1) if dim in start else slice(None)
                    for dim in variable.dims
                )
                arrays[name][index] = variable.values
        if path.exists():
            _add_others(path, folder, {_METADATA, *map(str, template.variables)})
        else:
            consolidate(folder)


def publish_groups(path: Path, groups: Mapping[str, xr.Dataset | xr.DataTree]) -> None:
    """Write groups beside a study in its store; those of the same names are replaced."""
    with replacing_folder(path) as folder:
        for name, part in groups.items():
            tree = part if isinstance(part, xr.DataTree) else xr.DataTree(part)
            for node in tree.subtree:
                inside = f"{name}{node.path}".rstrip("/")
                write_dataset(node.to_dataset(inherit=False), folder, inside)
        _add_others(path, folder, set(groups))


def _add_others(path: Path, folder: Path, replaced: set[str]) -> None:
    """Copy all of an older store but for some arrays or groups, and consolidate.

    Metadata that are copied stay as they are in their own files and in those of the store, damage
    included.
    """

    def ignored(inside: str, names: list[str]) -> set[str]:
        above = Path(inside).relative_to(path)
        return {name for name in names if (above / name).as_posix() in replaced}

    shutil.copytree(path, folder, ignore=ignored, copy_function=_link, dirs_exist_ok=True)
    others = {}
    with suppress(OSError, ValueError, LookupError):
        index = json.loads((path / _METADATA).read_bytes())[_INDEX]["metadata"]
        inside = [f"{name}/" for name in replaced]
        others = {key: index[key] for key in index if not f"{key}/".startswith(tuple(inside))}
    for name, entry in others.items():
        try:
            json.loads((folder / name / _METADATA).read_bytes())
        except (OSError, ValueError):  # of which consolidation would fail
            (folder / name / _METADATA).write_text(json.dumps(entry, indent=2))
    consolidate(folder)
    root = json.loads((folder / _METADATA).read_bytes())
    if any(root[_INDEX]["metadata"][name] != entry for name, entry in others.items()):
        root[_INDEX]["metadata"] |= others
        (folder / _METADATA).write_text(json.dumps(root, indent=2))


def write_dataset(dataset: xr.Dataset, folder: Path, group: str | None = None) -> None:
    """Write a dataset as a group, every chunk of it and with checksums; metadata come last.

    Text becomes text of any length, as Zarr has it.
    """
    dataset = storable(dataset.drop_encoding())
    values = {str(name): variable.values for name, variable in dataset.variables.items()}
    dataset.attrs["checksum"] = group_checksum(dataset.attrs, values)
    encoding = {
        name: {"compressors": _CODECS, "chunks": _chunks(variable) or None}
        for name, variable in dataset.variables.items()
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


def _chunks(
    variable: xr.DataArray | xr.Variable, split: Sequence[str | None] = ()
) -> tuple[int, ...]:
    """Shape of chunks: of one seed, or of one width or point of it, up to a few megabytes."""
    sizes = {str(dim): max(1, size) for dim, size in zip(variable.dims, variable.shape)}
    sizes |= {dim: 1 for dim in split if dim in sizes}
    for dim in ("seed", "width", "temperature", "draw"):
        size = variable.dtype.itemsize * math.prod(sizes.values())
        if dim in sizes and size > _LARGEST_CHUNK:
            sizes[dim] = max(1, sizes[dim] * _LARGEST_CHUNK // size)
    return tuple(sizes.values())


def _regions(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    """Pieces that are written at once: all, those of a seed, or every one by itself."""
    if size <= _LARGEST_REGION:
        return [list(pieces)]
    seeds = [list(group) for _, group in groupby(pieces, key=lambda piece: piece.data)]
    if size / len(seeds) <= _LARGEST_REGION:
        return seeds
    return [[piece] for piece in pieces]


def _link(source: str, target: str) -> None:
    if Path(source).name != _METADATA:  # which are written again
        with suppress(OSError):  # not on this file system
            os.link(source, target)
            return
    shutil.copy2(source, target)
