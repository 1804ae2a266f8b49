"""Arrays with checksums: how chunks are written so that damage shows, read, and found damaged.

Every chunk is written, also where it holds nothing but fill values, so that one that is lost is not
taken for one that was never written.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import xarray as xr
import zarr
from numcodecs import Zstd
from xarray.backends import BackendArray
from xarray.core import indexing
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from pathkernel_datasets.atomic import PARTIAL
from pathkernel_datasets.errors import ChecksumError
from pathkernel_datasets.labelling import storable

CHECKED = (ZstdCodec(level=0), Crc32cCodec())
"""Compression of an array, and the checksum of each chunk behind it."""

MISSING = "is missing"

_CHECKSUM = 4  # bytes
_SETTING = threading.Lock()
_ZSTD = Zstd(level=0)
_DIRECT = [
    (BytesCodec(endian=endian), *codecs)
    for endian in ("little", None)  # none where an entry is one byte
    for codecs in (CHECKED, CHECKED[:1])
]  # chunks of one array each that are read and written here


@contextmanager
def writing_every_chunk() -> Iterator[None]:
    """Let arrays that are opened meanwhile write every chunk."""
    # the setting is the process's: threads that took turns would leave it to one another
    with _SETTING, zarr.config.set({"array.write_empty_chunks": True}):
        yield


def write_dataset(dataset: xr.Dataset, folder: str | os.PathLike) -> None:
    """Write a dataset as a Zarr group with checksums, without an index of metadata.

    The folder is empty or not there yet.
    """
    files: dict[str, Any] = {}  # to make them on the disk, Zarr takes twice the time
    storable(dataset).to_zarr(
        MemoryStore(files),
        mode="w",
        zarr_format=3,
        consolidated=False,
        encoding={name: {"compressors": CHECKED} for name in dataset.variables},
        write_empty_chunks=True,
    )
    for name, content in files.items():
        file = Path(folder, name)
        os.makedirs(file.parent, exist_ok=True)
        file.write_bytes(content.to_bytes())


def read_array(array: zarr.Array, key: Sequence[Any] = ()) -> np.ndarray:
    """Values of an array, as Zarr reads them, in a tenth of its time.

    Parameters
    ----------
    array : zarr.Array
    key : sequence of int, slice with a positive step, or array of int, optional
        What to read along each of the first dimensions, by itself; by default all.

    Raises
    ------
    ChecksumError
        If a chunk is damaged; without checksums, a RuntimeError if it cannot be decoded.
    """
    key = (*key, *[slice(None)] * (array.ndim - len(key)))
    if not _is_direct(array):
        return array.oindex[key]
    places = [np.atleast_1d(np.arange(size)[at]) for size, at in zip(array.shape, key)]
    found = np.full([along.size for along in places], array.fill_value, array.dtype)
    parts = [
        [(i, np.flatnonzero(along // n == i), along[along // n == i] % n) for i in set(along // n)]
        for along, n in zip(places, array.chunks)
    ]
    for part in itertools.product(*parts):
        chunk, here, inside = zip(*part) if part else ((), (), ())
        try:
            values = _read_chunk(array, chunk)
        except FileNotFoundError:
            continue
        found[np.ix_(*here)] = values[np.ix_(*inside)]
    kept = (along.size for along, at in zip(places, key) if not isinstance(at, (int, np.integer)))
    return found.reshape(tuple(kept))


class StoredArray(BackendArray):
    """An array that xarray reads by :func:`read_array` when it is used."""

    def __init__(self, array: zarr.Array):
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        read = functools.partial(read_array, self._array)
        outer = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, outer, read)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        """What xarray reads in ``load_async``."""
        return self[key]


def write_content(file: Path, content: Any, checked: bool = True) -> None:
    """Write the file of a chunk, whole or not at all, compressed and with or without checksum."""
    data = _ZSTD.encode(content)
    if checked:
        data += _checksum(data)
    os.makedirs(file.parent, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}{PARTIAL}")  # a worker may be at it, too
    partial.write_bytes(data)
    os.replace(partial, file)  # the file that was there may be another store's too, by a link


def read_content(file: Path, checked: bool = True) -> bytes:
    """Content of a file that :func:`write_content` wrote; errors as for :func:`read_array`."""
    data = file.read_bytes()
    return _ZSTD.decode(_compared(data) if checked else data)


def _is_direct(array: zarr.Array) -> bool:
    """Whether chunks are written and read here; not those of another program, by Zarr."""
    return tuple(array.metadata.codecs) in _DIRECT


def _read_chunk(array: zarr.Array, chunk: tuple[int, ...]) -> np.ndarray:
    content = read_content(chunk_file(array, chunk), is_checked(array))
    return np.frombuffer(content, array.dtype.newbyteorder("<")).reshape(array.chunks)


def _region(array: zarr.Array, chunk: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i * n, i * n + n) for i, n in zip(chunk, array.chunks))


def is_checked(array: zarr.Array) -> bool:
    """Whether an array's chunks have checksums; those of older stores have none."""
    return any(isinstance(codec, Crc32cCodec) for codec in array.metadata.codecs)


def write_region(array: zarr.Array, region: Any, values: Any) -> None:
    """Write into a part of an array, each of its chunks whole or not at all.

    The bytes are those that Zarr writes, in a tenth of its time.

    Parameters
    ----------
    array : zarr.Array
        Opened by :func:`writing_every_chunk`.
    region : int, slice without a step, or tuple of them
        Along the first dimensions.
    values : array
        Of the shape of the part.
    """
    if not _is_direct(array):
        array[region] = values
        return
    key = region if isinstance(region, tuple) else (region,)
    key = (*key, *[slice(None)] * (array.ndim - len(key)))
    ends = [
        at.indices(size)[:2] if isinstance(at, slice) else (at, at + 1)
        for at, size in zip(key, array.shape)
    ]
    values = np.reshape(values, [last - first for first, last in ends])
    sizes = array.chunks
    for chunk in itertools.product(*(range(a // n, -(-b // n)) for (a, b), n in zip(ends, sizes))):
        parts = [
            (i * n, max(first, i * n), min(last, i * n + n), first)
            for i, n, (first, last) in zip(chunk, sizes, ends)
        ]
        whole = np.full(sizes, array.fill_value, array.dtype)
        file = chunk_file(array, chunk)
        covered = all(
            a == start and b >= min(start + n, size)
            for (start, a, b, _), n, size in zip(parts, sizes, array.shape)
        )
        if not covered and file.exists():  # one that is replaced may be damaged
            whole[...] = _read_chunk(array, chunk)
        inside = tuple(slice(a - start, b - start) for start, a, b, _ in parts)
        whole[inside] = values[tuple(slice(a - first, b - first) for _, a, b, first in parts)]
        content = np.ascontiguousarray(whole, array.dtype.newbyteorder("<"))
        write_content(file, content, is_checked(array))


def chunk_file(array: zarr.Array, chunk: tuple[int, ...]) -> Path:
    """File of a chunk, by its place among the array's chunks."""
    return Path(array.store_path.store.root, array.path, array.metadata.encode_chunk_key(chunk))


def chunks_of(array: zarr.Array) -> Iterator[tuple[int, ...]]:
    """Places of an array's chunks."""
    return np.ndindex(*(-(-size // step) for size, step in zip(array.shape, array.chunks)))


def damaged_chunks(array: zarr.Array) -> dict[tuple[int, ...], str]:
    """Chunks that are lost or not as they were written, by their places, and what is wrong.

    Without checksums those are found that cannot be decoded; a chunk that is missing holds fill
    values then.
    """
    found = {}
    checked = is_checked(array)
    for chunk in chunks_of(array):
        try:
            if checked:
                _compared(chunk_file(array, chunk).read_bytes())
            else:
                array[_region(array, chunk)]
        except FileNotFoundError:
            found[chunk] = MISSING
        except Exception as error:  # whatever the file system or a decoder raises
            found[chunk] = f"cannot be read ({error})"
    return found


def _compared(data: bytes) -> bytes:
    """What stands before a chunk's checksum, if it is its own."""
    content, held = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if not content or _checksum(content) != held:
        raise ChecksumError("its checksum is another")
    return content


def _checksum(content: bytes) -> bytes:
    return google_crc32c.value(content).to_bytes(_CHECKSUM, "little")
