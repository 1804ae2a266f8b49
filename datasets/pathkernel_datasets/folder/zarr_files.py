"""Plain Zarr: labelled data written whole, and told from what is damaged.

Chunks have the checksums of Zarr's codecs. Two more are attributes of the root: one of which chunks
there are, and one of its consolidated metadata, which repeat those of all groups inside.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xarray as xr
import zarr
import zarr.errors
from zarr.codecs import Crc32cCodec, ZstdCodec

from pathkernel_core.system.atomic import replacing_folder
from pathkernel_core.system.local_files import is_damage, read_json
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.zarr_bounds import (
    ArrayLayout,
    Claim,
    MissingChunksError,
    check_total,
    chunk_sizes,
    claim_of,
)
from pathkernel_datasets.variables.labelling import CHECKSUM, checksum, storable

METADATA = "zarr.json"
CHUNKS = "chunks_crc32"
"""Attribute of a root: CRC-32 of the chunks of every array."""

_INDEX = "consolidated_metadata"
_CODECS = (ZstdCodec(level=0), Crc32cCodec())
_LARGEST_CHUNK = 2**23  # bytes
_READ_AT_ONCE = 2**26  # bytes


@contextmanager
def replacing_zarr(path: Path) -> Iterator[Path]:
    """Give a folder to write arrays and groups into, which replaces a Zarr at the end."""
    with replacing_folder(path) as folder:
        yield folder
        _seal(folder)


def write_tree(path: Path, data: xr.Dataset | xr.DataTree) -> None:
    """Write a labelled dataset, or a tree of them, as one plain Zarr that replaces ``path``."""
    with replacing_zarr(path) as folder:
        write_groups(folder, data)


def write_groups(folder: Path, data: xr.Dataset | xr.DataTree) -> None:
    """Write a dataset or a tree into a folder, without checksums of its own."""
    tree = data if isinstance(data, xr.DataTree) else xr.DataTree(data)
    for node in tree.subtree:
        write_dataset(node.to_dataset(inherit=False), folder, node.path.strip("/") or None)


def write_dataset(
    dataset: xr.Dataset,
    folder: Path,
    group: str | None = None,
    limits: Mapping[str, int] | None = None,
) -> None:
    """Write a dataset as a group; chunks of its variables have at most the sizes in ``limits``.

    Text becomes text of any length, as Zarr has it.
    """
    # no fill value: xarray writes one for floating-point numbers, by which a file that another
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


def append_dataset(dataset: xr.Dataset, folder: Path, dim: str) -> None:
    """Append a dataset along a dimension of the one at the root of a Zarr."""
    _write(dataset, folder, append_dim=dim)


def _write(dataset: xr.Dataset, folder: Path, **settings: Any) -> None:
    # empty chunks too: a chunk that is not there is then a lost one, and not one of zeros
    storable(dataset.drop_encoding()).to_zarr(
        folder, mode="a", zarr_format=3, consolidated=False, write_empty_chunks=True, **settings
    )


def _chunks(variable: xr.Variable, limits: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of chunks of a few megabytes at most, and at most of some sizes."""
    sizes = {str(dim): max(1, size) for dim, size in zip(variable.dims, variable.shape)}
    sizes |= {dim: limit for dim, limit in limits.items() if dim in sizes}
    for dim in ("seed", "width", "temperature", "draw"):
        size = variable.dtype.itemsize * math.prod(sizes.values())
        if dim in sizes and size > _LARGEST_CHUNK:
            sizes[dim] = max(1, sizes[dim] * _LARGEST_CHUNK // size)
    return tuple(sizes.values())


def link_tree(source: Path, target: Path) -> None:
    """Copy all files of a folder into another one, or share them where the file system can.

    Files never change once they are written.
    """
    try:
        shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)
    except shutil.Error as error:  # a list of all files that could not be copied
        file, _, reason = error.args[0][0]
        raise OSError(f"{file} cannot be copied: {reason}") from None


def _link(source: str, target: str) -> None:
    with suppress(OSError):  # not on this file system, or of another user
        os.link(source, target)
        return
    shutil.copy(source, target)


def _seal(folder: Path) -> None:
    """Consolidate the metadata of a Zarr, and add checksums of its chunks and of the metadata.

    Without consolidated metadata plain ``xr.open_zarr`` warns.
    """
    with warnings.catch_warnings():  # that not every library reads consolidated metadata
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
        zarr.consolidate_metadata(folder)
    content = json.loads((folder / METADATA).read_text())
    chunks = {name: _checksum_of_chunks(folder / name) for name in members(folder)}
    content["attributes"][CHUNKS] = json.dumps(chunks)
    content["attributes"][CHECKSUM] = checksum(content)
    (folder / METADATA).write_text(json.dumps(content, indent=2))


def is_rewritten(path: Path) -> bool:
    """Whether another program has written a Zarr, by what xarray writes unless it is told not to.

    It may have the checksums of the one that was read.
    """
    arrays = map(metadata_of, (file.parent for file in path.glob(f"*/{METADATA}")))
    return any("_FillValue" in (content.get("attributes") or ()) for content in arrays)


def _checksum_of_chunks(array: Path) -> str:
    """CRC-32 of the names of an array's chunks, and of their checksums, with which they end.

    By the checksums alone, chunks that have been exchanged would be whole.
    """
    crc = 0
    for name in sorted(chunk_sizes(array)):
        with open(array / name, "rb") as stream:
            stream.seek(-min(4, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            crc = zlib.crc32(name.encode() + stream.read(), crc)
    return f"{crc:08x}"


def metadata_of(folder: Path) -> dict[str, Any]:
    """Metadata of an array or group by its own file; empty if that is missing or damaged."""
    return read_json(folder / METADATA)


def attributes_of(path: Path) -> dict[str, Any]:
    """Attributes of the root of a Zarr; empty if its metadata are missing or damaged."""
    content = metadata_of(path)
    return {} if _metadata_fault(content) else dict(content["attributes"])


def _metadata_fault(content: Mapping[str, Any]) -> str:
    """Fault of the metadata of a root; empty if there is none."""
    try:
        attributes, index = content["attributes"], content[_INDEX]["metadata"]
        is_plain = isinstance(attributes, dict) and all(
            isinstance(entry, dict) and all(map(_is_name, name.split("/")))
            for name, entry in index.items()
        )
        is_plain &= all(isinstance(crc, str) for crc in _written_chunks(attributes).values())
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        is_plain = False
    if not is_plain:
        return "is damaged: its metadata are unreadable"
    if attributes.get(CHECKSUM) != checksum(content):
        return "is damaged: its metadata are not as they were written"
    return ""


def _is_name(part: str) -> bool:
    """Whether a part of an array's name is that of a folder inside another."""
    return part not in ("", ".", "..") and not {"/", "\\", "\0"} & {*part}


def _written_chunks(attributes: Mapping[str, Any]) -> dict[str, str]:
    """CRC-32 of the chunks of every array, by the attributes of a root."""
    return json.loads(attributes.get(CHUNKS, "{}"))


def faults(path: Path) -> Iterator[tuple[str, str]]:
    """Read all of a Zarr, and yield what cannot be read, with the reason.

    Yields
    ------
    name : str
        Name of an array or a group; empty for the root.
    fault : str
    """
    damaged = metadata_faults(path)
    yield from damaged.items()
    exchanged = exchanged_chunks(path)
    for name in members(path):
        if name in exchanged:
            yield name, "is damaged: its chunks are others than were written"
        elif name not in damaged and (fault := _array_fault(path / name)):
            yield name, fault


def metadata_faults(path: Path, group: str = "") -> dict[str, str]:
    """Arrays and groups of a Zarr with damaged metadata, with the reasons; the root is empty.

    Of a group these are its own, and those of the groups above it.
    """
    content = metadata_of(path)
    fault = _metadata_fault(content)
    index = _index_of(path, content, fault)
    if fault and is_rewritten(path):
        fault = "was written by another program than pathkernel, perhaps in part or changed"
    damaged = {"": fault} if fault else {}
    names = {name for name in index if is_inside(name, group) or is_inside(group, name)}
    for name in sorted({*names, *members(path, group)}):
        own = metadata_of(path / name)
        own.pop(_INDEX, None)
        if not own or own != index.get(name, own):
            damaged[name] = "is damaged: its metadata are not as they were written"
    return damaged


def exchanged_chunks(path: Path) -> set[str]:
    """Arrays of a Zarr of which all chunks can be read, but which are not those that were written.

    Where the metadata of the root are damaged that cannot be told.
    """
    return {
        name
        for name, crc in _written_chunks(attributes_of(path)).items()
        if crc != _checksum_of_chunks(path / name) and not _array_fault(path / name)
    }


def metadata_index(path: Path) -> dict[str, dict[str, Any]]:
    """Metadata of all arrays and groups in a Zarr by its root, or by their own if it is damaged."""
    content = metadata_of(path)
    return _index_of(path, content, _metadata_fault(content))


def _index_of(path: Path, content: Mapping[str, Any], fault: str) -> dict[str, dict[str, Any]]:
    """The same, from the metadata of the root and their fault."""
    if fault:
        index = {name: metadata_of(path / name) for name in members(path)}
    else:
        index = content[_INDEX]["metadata"]
    return {name: {k: v for k, v in e.items() if k != _INDEX} for name, e in index.items()}


def members(path: Path, group: str = "") -> list[str]:
    """Names of all in a Zarr, or in a group in it, that have metadata of their own, outer first.

    Hidden ones are being written, or were when a process was killed.
    """
    # not by a glob: another process may remove a folder meanwhile; as text, since a study has many
    # more folders of chunks than arrays
    above = len(os.path.join(path, ""))
    names = (
        folder[above:].replace(os.sep, "/")
        for folder, folders, files in os.walk(os.path.join(path, group))
        if METADATA in files or METADATA in folders
    )
    return sorted(name for name in names if name and "/." not in f"/{name}")


def is_inside(name: str, group: str) -> bool:
    """Whether an array or group is a group or inside of it."""
    return not group or f"{name}/".startswith(f"{group}/")


def _array_fault(path: Path) -> str:
    """Fault of the values of an array, which are read; empty if there is none, or no array."""
    if (metadata := metadata_of(path)).get("node_type") != "array":
        return ""
    try:
        claim_of(path, ArrayLayout.from_metadata(metadata))
        array = zarr.open_array(path, mode="r", zarr_format=3)
        if not array.ndim:
            array[...]
            return ""
        # some chunks along the first dimension at once: an array may be larger than the memory
        rows = max(array.chunks[0], _READ_AT_ONCE * array.shape[0] // max(1, array.nbytes))
        for first in range(0, array.shape[0], rows):
            array[first : first + rows]
    except MissingChunksError as error:
        return f"is damaged: {error}"
    except Exception as error:  # whatever a decoder raises
        if not is_damage(error):
            raise
        return f"is damaged ({error})"
    return ""


def check_claims(path: Path, group: str = "") -> None:
    """Compare what arrays of a Zarr, or of a group in it, claim with their files.

    Both the metadata of the arrays themselves and those of the root are taken, since either may be
    read.

    Raises
    ------
    MissingChunksError
        If chunks are missing, with the names of their arrays.
    ValueError
        If an array claims something else than its files hold.
    """
    lost, claims = [], dict[str, Claim]()
    for name, metadata in _layouts(path, group):
        try:
            claim = claim_of(path / name, ArrayLayout.from_metadata(metadata))
        except MissingChunksError:
            lost.append(name)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        else:
            claims[name] = max(claim, claims.get(name, claim), key=lambda one: one.memory)
    if lost:
        names = ", ".join(dict.fromkeys(lost))
        raise MissingChunksError(f"chunks of {names} are missing")
    check_total(claims)


def _layouts(path: Path, group: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the metadata of arrays with their names, twice where root and array differ."""
    index = metadata_index(path)
    names = {name for name in index if is_inside(name, group)}
    for name in sorted({*names, *members(path, group)}):
        own = metadata_of(path / name)
        for metadata in (own, *([index[name]] if index.get(name, own) != own else [])):
            if metadata.get("node_type") == "array":
                yield name, metadata


@contextmanager
def naming_damage(path: Path, remedy: str) -> Iterator[None]:
    """Name damage of a Zarr that is met while it is opened.

    Raises
    ------
    StudyError
        If it is damaged, with the remedy.
    """
    try:
        yield
    except MissingChunksError as error:
        raise StudyError(f"{path} is damaged: {error}; {remedy}") from None
    except Exception as error:  # whatever the parser of a damaged file raises
        if isinstance(error, StudyError) or not is_damage(error):
            raise
        raise StudyError(f"{path} is damaged ({error}); {remedy}") from None


def open_dataset(path: Path) -> xr.Dataset:
    """Open the dataset at the root of a Zarr lazily.

    Raises what :func:`check_claims` or Zarr does if it is damaged.
    """
    check_claims(path)
    dataset = xr.open_zarr(path, chunks=None, zarr_format=3, consolidated=True)
    dataset.attrs = _without_checksums(dataset.attrs)
    return dataset


def open_tree(path: Path, group: str = "") -> xr.DataTree:
    """Open a Zarr, or a group in it, lazily; raises as :func:`open_dataset` does.

    Raises a ValueError, too, if metadata of the group are not those of the root.
    """
    check_claims(path, group)
    for name, fault in metadata_faults(path, group).items():
        if name:
            raise ValueError(f"{name} {fault}")
    tree = xr.open_datatree(path, group=group or None, engine="zarr", chunks=None)
    tree.attrs = _without_checksums(tree.attrs)
    return tree


def _without_checksums(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: v for key, v in attributes.items() if key not in (CHECKSUM, CHUNKS)}
