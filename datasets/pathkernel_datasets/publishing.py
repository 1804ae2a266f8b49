"""Publishing: pieces become one plain Zarr store, which is moved into place whole."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import xarray as xr
import zarr
import zarr.errors
from zarr.codecs import Crc32cCodec, ZstdCodec

from pathkernel_core.atomic import replacing_folder
from pathkernel_core.local_files import is_regular
from pathkernel_datasets.labelling import storable
from pathkernel_datasets.pieces import Piece
from pathkernel_datasets.published import (
    CHECKSUMS,
    INDEX,
    METADATA,
    Published,
    is_inside,
    sha256_of,
    write_checksums,
)
from pathkernel_datasets.template import fill, on_grid

_CODECS = (ZstdCodec(level=0), Crc32cCodec())
_LARGEST_CHUNK = 2**23  # bytes
_SEED_CHUNKS = 16  # at most, along the seeds of a small study: what damage costs at worst
_LARGEST_BLOCK = 2**27  # bytes that are assembled in memory at once


def publish_study(
    path: Path,
    template: xr.Dataset,
    pieces: Sequence[Piece],
    read: Callable[[Piece], xr.Dataset],
) -> None:
    """Write the store of a study, some seeds at a time; results beside an older one are copied.

    If ``read`` raises, the older store stays as it is.
    """
    # some seeds at a time, so that a study larger than the memory can be published. Blocks are
    # whole chunks, which appending would otherwise read and write again
    seeds = template["seed"].values.tolist()
    chunk = 1 if template.nbytes > _LARGEST_BLOCK else -(-len(seeds) // _SEED_CHUNKS)
    block = min(len(seeds), chunk * max(1, _LARGEST_BLOCK * len(seeds) // template.nbytes // chunk))
    with replacing_folder(path) as folder:
        for first in range(0, len(seeds), block):
            block_seeds = seeds[first : first + block]
            dataset = on_grid(template, {"seed": block_seeds}).copy(deep=True)
            for piece in pieces:
                if piece.seed in block_seeds:
                    fill(dataset, piece, read(piece))
            if first:
                _write(dataset, folder, append_dim="seed")
            else:
                write_dataset(dataset, folder, limits={str(pieces[0].swept): 1, "seed": chunk})
        _copy_others(path, folder, set(map(str, template.variables)))


def publish_groups(path: Path, groups: Iterable[tuple[str, xr.Dataset | xr.DataTree]]) -> None:
    """Write groups beside a study in its store; those of the same names are replaced."""
    with replacing_folder(path) as folder:
        names = set()
        for name, data in groups:
            names.add(name)
            tree = data if isinstance(data, xr.DataTree) else xr.DataTree(data)
            for node in tree.subtree:
                inside = f"{name}{node.path}".rstrip("/")
                write_dataset(node.to_dataset(inherit=False), folder, inside)
        shutil.copy2(path / METADATA, folder)
        _copy_others(path, folder, names)


def _copy_others(path: Path, folder: Path, replaced: set[str]) -> None:
    """Copy all of an older store but for some arrays or groups; consolidate, and add checksums.

    Copies have the checksums of the older store, so that damage stays noticed. Damaged metadata are
    restored from their consolidated copy, and left out if that is damaged, too.
    """

    def ignored(inside: str, names: list[str]) -> set[str]:
        parent = Path(inside).relative_to(path)
        left_out = {METADATA, CHECKSUMS, *replaced}
        return {
            name
            for name in names
            if (parent / name).as_posix() in left_out or not is_regular(Path(inside, name))
        }

    copied, restored = dict[str, str](), set[str]()
    if path.exists():
        published = Published(path)
        shutil.copytree(path, folder, ignore=ignored, copy_function=_link, dirs_exist_ok=True)
        copied = {
            name: checksum
            for name, checksum in published.checksums.items()
            if name != METADATA and not any(is_inside(name, group) for group in replaced)
        }
        for name, checksum in copied.items():
            file = folder / name
            if file.name == METADATA and file.parent.exists() and sha256_of(file) != checksum:
                file.unlink(missing_ok=True)
                entry = dict(published.index.get(name.removesuffix(f"/{METADATA}"), {}))
                entry.pop(INDEX, None)  # of groups
                if entry:
                    file.write_text(json.dumps(entry, indent=2))
                    restored.add(name)  # in the form of the installed version of Zarr
    consolidate(folder)
    checksums = {name: copied[name] for name in copied.keys() - restored}
    write_checksums(folder, checksums)


def write_dataset(
    dataset: xr.Dataset,
    folder: Path,
    group: str | None = None,
    limits: Mapping[str, int] | None = None,
) -> None:
    """Write a dataset as a group, every chunk of it and with checksums.

    Text becomes text of any length, as Zarr has it. Chunks have at most the sizes in ``limits``.
    """
    # no fill value: xarray writes one for floating-point numbers, by which a store that another
    # program has written from the dataset is told
    encoding = {
        name: {
            "compressors": _CODECS,
            "chunks": _chunks(variable, (name in dataset.data_vars and limits) or {}) or None,
            "_FillValue": None,
        }
        for name, variable in dataset.variables.items()
    }
    _write(dataset, folder, group=group, encoding=encoding)


def _write(dataset: xr.Dataset, folder: Path, **settings: Any) -> None:
    # empty chunks too: a chunk that is not there is then a lost one, and not one of zeros
    storable(dataset.drop_encoding()).to_zarr(
        folder, mode="a", zarr_format=3, consolidated=False, write_empty_chunks=True, **settings
    )


def consolidate(folder: Path) -> None:
    """Consolidate the metadata of a store, without which plain ``xr.open_zarr`` warns."""
    with warnings.catch_warnings():  # that not every library reads consolidated metadata
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
        zarr.consolidate_metadata(folder)


def _chunks(variable: xr.Variable, limits: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of chunks of a few megabytes at most, and at most of some sizes."""
    sizes = {str(dim): max(1, size) for dim, size in zip(variable.dims, variable.shape)}
    sizes |= {dim: limit for dim, limit in limits.items() if dim in sizes}
    for dim in ("seed", "width", "temperature", "draw"):
        size = variable.dtype.itemsize * math.prod(sizes.values())
        if dim in sizes and size > _LARGEST_CHUNK:
            sizes[dim] = max(1, sizes[dim] * _LARGEST_CHUNK // size)
    return tuple(sizes.values())


def _link(source: str, target: str) -> None:
    # chunks never change once they are written, so that old and new store can share them: adding a
    # result to a large study copies next to nothing
    if Path(source).name != METADATA:  # which are written again
        with suppress(OSError):  # not on this file system
            os.link(source, target)
            return
    shutil.copy2(source, target)
