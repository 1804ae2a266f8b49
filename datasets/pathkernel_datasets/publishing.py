"""Publishing: pieces become one plain Zarr store, which is moved into place whole."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
import xarray as xr
import zarr
import zarr.errors
from zarr.codecs import Crc32cCodec, ZstdCodec

from pathkernel_datasets.atomic import replacing_folder
from pathkernel_datasets.checksums import array_checksum, group_checksum
from pathkernel_datasets.damage import INDEX, METADATA, is_inside, metadata_of
from pathkernel_datasets.labelling import storable
from pathkernel_datasets.pieces import Piece
from pathkernel_datasets.template import data_variables, fill, on_grid, seal

_CODECS = (ZstdCodec(level=0), Crc32cCodec())
_ONLY_GROUPS = {"attributes": {}, "zarr_format": 3, "node_type": "group"}  # metadata of such
_LARGEST_CHUNK = 2**23  # bytes
_SEED_CHUNKS = 16  # at most, along the seeds of a small study: what damage costs at worst
_LARGEST_REGION = 2**27  # bytes that are assembled in memory at once


def publish_study(
    path: Path,
    template: xr.Dataset,
    pieces: Sequence[Piece],
    read: Callable[[Piece], xr.Dataset],
) -> None:
    """Write the store of a study, region by region; results beside an older one are copied.

    If ``read`` raises, the older store stays as it is.
    """
    swept = pieces[0].swept
    seeds = 1 if template.nbytes > _LARGEST_REGION else -(-template.sizes["seed"] // _SEED_CHUNKS)
    with replacing_folder(path) as folder:
        write_dataset(template.drop_vars(list(template.data_vars)), folder)
        group = zarr.open_group(folder, mode="r+", use_consolidated=False)
        arrays = {
            name: group.create_array(
                name,
                shape=variable.shape,
                dtype=variable.dtype,
                chunks=_chunks(variable, {str(swept): 1, "seed": seeds}),
                fill_value=np.nan if variable.dtype.kind == "f" else 0,
                dimension_names=variable.dims,
                attributes=variable.attrs,
                compressors=_CODECS,
                config={"write_empty_chunks": True},
            )
            for name, variable in data_variables(template).items()
        }
        for region in _regions(pieces, template.nbytes):
            names = [
                name
                for name, variable in data_variables(template).items()
                if any(piece.includes(variable.dims) for piece in region)
            ]
            common = dict(set.intersection(*(set(piece.labels.items()) for piece in region)))
            labels = {dim: [label] for dim, label in common.items() if dim in template.dims}
            part = on_grid(template[names], labels).copy(deep=True)
            for piece in region:
                fill(part, piece, read(piece))
                seal(part, piece)
            start = {dim: template.get_index(dim).get_loc(labels[dim][0]) for dim in labels}
            for name, variable in data_variables(part).items():
                index = tuple(
                    slice(start[dim], start[dim] + 1) if dim in start else slice(None)
                    for dim in variable.dims
                )
                arrays[name][index] = variable.values
        if path.exists():
            _add_others(path, folder, {METADATA, *map(str, template.variables)})
        else:
            consolidate(folder)


def publish_groups(path: Path, groups: Iterable[tuple[str, xr.Dataset | xr.DataTree]]) -> None:
    """Write groups beside a study in its store; those of the same names are replaced."""
    with replacing_folder(path) as folder:
        names = set()
        for name, part in groups:
            names.add(name)
            tree = part if isinstance(part, xr.DataTree) else xr.DataTree(part)
            for node in tree.subtree:
                inside = f"{name}{node.path}".rstrip("/")
                write_dataset(node.to_dataset(inherit=False), folder, inside)
        _add_others(path, folder, names)


def _add_others(path: Path, folder: Path, replaced: set[str]) -> None:
    """Copy all of an older store but for some arrays or groups, and consolidate.

    Metadata that are copied stay as they are in their own files and in those of the store, damage
    included, but for groups of groups, whose metadata are always the same; a group whose metadata
    are lost in both is left out.
    """

    def ignored(inside: str, names: list[str]) -> set[str]:
        above = Path(inside).relative_to(path)
        return {name for name in names if (above / name).as_posix() in replaced}

    shutil.copytree(path, folder, ignore=ignored, copy_function=_link, dirs_exist_ok=True)
    others = {
        name: entry
        for name, entry in (metadata_of(path).get(INDEX) or {}).get("metadata", {}).items()
        if (folder / name).is_dir() and not any(is_inside(name, group) for group in replaced)
    }
    for name, entry in list(others.items()):
        indexed = {key: entry.get(key) for key in _ONLY_GROUPS}
        separate = metadata_of(folder / name)
        if indexed != separate and _ONLY_GROUPS in (indexed, separate):
            (folder / name / METADATA).write_text(json.dumps(_ONLY_GROUPS, indent=2))
            del others[name]
    for file in [*folder.rglob(f"*/{METADATA}"), *(folder / name / METADATA for name in others)]:
        if file.parent.exists() and not metadata_of(file.parent):  # consolidation would fail
            entry = others.get(file.parent.relative_to(folder).as_posix())
            if entry is None:
                shutil.rmtree(file.parent)
            else:
                file.write_text(json.dumps(entry, indent=2))
    consolidate(folder)
    root = json.loads((folder / METADATA).read_bytes())
    if any(root[INDEX]["metadata"][name] != entry for name, entry in others.items()):
        root[INDEX]["metadata"] |= others
        (folder / METADATA).write_text(json.dumps(root, indent=2))


def write_dataset(dataset: xr.Dataset, folder: Path, group: str | None = None) -> None:
    """Write a dataset as a group, every chunk of it and with checksums; metadata come last.

    Text becomes text of any length, as Zarr has it.
    """
    dataset = storable(dataset.drop_encoding())
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
    written = zarr.open_group(folder, path=group, mode="r+", use_consolidated=False)
    checksums = {str(key): array_checksum(array.values) for key, array in dataset.variables.items()}
    written.attrs["checksum"] = group_checksum(dict(written.attrs), checksums)


def consolidate(folder: Path) -> None:
    """Consolidate the metadata of a store, without which plain ``xr.open_zarr`` warns."""
    with warnings.catch_warnings():  # that not every library reads consolidated metadata
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
        zarr.consolidate_metadata(folder)


def _chunks(
    variable: xr.DataArray | xr.Variable, limits: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    """Shape of chunks of a few megabytes at most, and at most of some sizes."""
    sizes = {str(dim): max(1, size) for dim, size in zip(variable.dims, variable.shape)}
    sizes |= {dim: limit for dim, limit in (limits or {}).items() if dim in sizes}
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
    if Path(source).name != METADATA:  # which are written again
        with suppress(OSError):  # not on this file system
            os.link(source, target)
            return
    shutil.copy2(source, target)
