"""Arrays with checksums: how chunks are written so that damage shows, read, and found damaged.

Every chunk is written, also where it holds nothing but fill values, so that one that is lost is not
taken for one that was never written.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numcodecs import Zstd
from xarray.backends import BackendArray
from xarray.core import indexing
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.storage import MemoryStore

from pathkernel_datasets.chunk_files import (
    Opened,
    Place,
    by_file,
    chunk_file,
    compared,
    places_of,
    store_chunks,
    stored_chunk,
    with_checksum,
    write_file,
)
from pathkernel_datasets.labelling import storable

CHECKED = (ZstdCodec(level=0), Crc32cCodec())
"""Compression of an array, and the checksum of each chunk behind it."""

MISSING = "is missing"

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
        {i: (np.flatnonzero(along // n == i), along[along // n == i] % n) for i in set(along // n)}
        for along, n in zip(places, array.chunks)
    ]
    opened: Opened = {}
    for chunk in by_file(array, list(itertools.product(*parts))):
        try:
            values = _read_chunk(array, chunk, opened)
        except FileNotFoundError:
            continue
        here, inside = zip(*(part[i] for part, i in zip(parts, chunk))) if chunk else ((), ())
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


def write_content(file: Path, content: Any) -> None:
    """Write the file of a chunk, whole or not at all, compressed and with a checksum."""
    write_file(file, _encoded(content, True))


def read_content(file: Path) -> bytes:
    """Content of a file that :func:`write_content` wrote; errors as for :func:`read_array`."""
    return _decoded(file.read_bytes(), True)


def _encoded(content: Any, checked: bool) -> bytes:
    data = _ZSTD.encode(content)
    return with_checksum(data) if checked else data


def _decoded(data: bytes, checked: bool) -> bytes:
    return _ZSTD.decode(compared(data) if checked else data)


def codecs_of(array: zarr.Array) -> tuple[Any, ...]:
    """Codecs of an array's chunks, also of those that lie in files of several."""
    codecs = tuple(array.metadata.codecs)
    return tuple(codecs[0].codecs) if isinstance(codecs[0], ShardingCodec) else codecs


def _is_direct(array: zarr.Array) -> bool:
    """Whether chunks are written and read here; not those of another program, by Zarr."""
    return codecs_of(array) in _DIRECT and (
        array.shards is None or array.metadata.codecs[0] == sharded(array.chunks, codecs_of(array))
    )


def sharded(chunks: Place, codecs: Sequence[Any]) -> ShardingCodec:
    """Codec of files of several chunks of a shape."""
    return ShardingCodec(chunk_shape=chunks, codecs=codecs)


def _read_chunk(array: zarr.Array, chunk: Place, opened: Opened) -> np.ndarray:
    content = _decoded(stored_chunk(array, chunk, opened), is_checked(array))
    return np.frombuffer(content, array.dtype.newbyteorder("<")).reshape(array.chunks)


def _region(array: zarr.Array, chunk: Place) -> tuple[slice, ...]:
    return tuple(slice(i * n, i * n + n) for i, n in zip(chunk, array.chunks))


def is_checked(array: zarr.Array) -> bool:
    """Whether an array's chunks have checksums; those of older stores have none."""
    return any(isinstance(codec, Crc32cCodec) for codec in codecs_of(array))


def write_regions(array: zarr.Array, parts: Iterable[tuple[Any, Any]]) -> None:
    """Write into parts of an array, none of which share a chunk: each file once, and whole.

    The bytes of a chunk are those that Zarr writes, in a tenth of its time.

    Parameters
    ----------
    array : zarr.Array
        Opened by :func:`writing_every_chunk`.
    parts : iterable of (region, values)
        A region is an int, a slice without a step, or a tuple of them, along the first dimensions;
        values have its shape.
    """
    files: dict[Path, dict[Place, bytes]] = {}
    for region, values in parts:
        if not _is_direct(array):
            array[region] = values
            continue
        for chunk, data in _chunks_of_region(array, region, values):
            files.setdefault(chunk_file(array, chunk), {})[chunk] = data
    for chunks in files.values():
        store_chunks(array, chunks)


def write_region(array: zarr.Array, region: Any, values: Any) -> None:
    """Write into a part of an array, see :func:`write_regions`."""
    write_regions(array, [(region, values)])


def _chunks_of_region(array: zarr.Array, region: Any, values: Any) -> Iterator[tuple[Place, bytes]]:
    """Chunks that a region touches, encoded, with what else they hold."""
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
        covered = all(
            a == start and b >= min(start + n, size)
            for (start, a, b, _), n, size in zip(parts, sizes, array.shape)
        )
        if not covered:  # one that is replaced may be damaged
            with suppress(FileNotFoundError):
                whole[...] = _read_chunk(array, chunk, {})
        inside = tuple(slice(a - start, b - start) for start, a, b, _ in parts)
        whole[inside] = values[tuple(slice(a - first, b - first) for _, a, b, first in parts)]
        content = np.ascontiguousarray(whole, array.dtype.newbyteorder("<"))
        yield chunk, _encoded(content, is_checked(array))


def damaged_chunks(array: zarr.Array) -> dict[Place, str]:
    """Chunks that are lost or not as they were written, by their places, and what is wrong.

    Without checksums those are found that cannot be decoded; a chunk that is missing holds fill
    values then.
    """
    found = {}
    opened: Opened = {}
    checked = is_checked(array)
    for chunk in places_of(array):
        try:
            data = stored_chunk(array, chunk, opened)
            if checked:
                compared(data)
            else:
                array[_region(array, chunk)]
        except FileNotFoundError:
            found[chunk] = MISSING
        except Exception as error:  # whatever the file system or a decoder raises
            found[chunk] = f"cannot be read ({error})"
    return found
