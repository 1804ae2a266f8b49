"""Files of chunks: one each, or those of several points in one, as Zarr's sharding codec has them.

A file of several holds them one after another, then its index: for each its first byte and its
length, two numbers of 8 bytes that are all ones where there is none, and a checksum.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from pathlib import Path

import google_crc32c
import numpy as np
import zarr

from pathkernel_datasets.atomic import PARTIAL
from pathkernel_datasets.errors import ChecksumError

Place = tuple[int, ...]
"""Of a chunk among the chunks of an array."""

Opened = dict[Path, dict[int, bytes]]
"""The file of several chunks that was read last, and what it holds."""

_CHECKSUM = 4  # bytes
_NONE = 2**64 - 1


def chunks_of_file(array: zarr.Array) -> Place | None:
    """Number of chunks in a file along each dimension; None if each has its own."""
    if array.shards is None:
        return None
    return tuple(whole // part for whole, part in zip(array.shards, array.chunks))


def chunk_file(array: zarr.Array, chunk: Place) -> Path:
    """File that holds a chunk."""
    several = chunks_of_file(array)
    if several is not None:
        chunk = tuple(i // n for i, n in zip(chunk, several))
    return Path(array.store_path.store.root, array.path, array.metadata.encode_chunk_key(chunk))


def places_of(array: zarr.Array) -> list[Place]:
    """Places of an array's chunks, those of one file next to one another."""
    places = list(np.ndindex(*(-(-size // step) for size, step in zip(array.shape, array.chunks))))
    return by_file(array, places)


def by_file(array: zarr.Array, places: list[Place]) -> list[Place]:
    """Places in such an order that those of one file are next to one another."""
    several = chunks_of_file(array)
    if several is None:
        return places
    return sorted(places, key=lambda place: [i // n for i, n in zip(place, several)])


def stored_chunk(array: zarr.Array, chunk: Place, opened: Opened) -> bytes:
    """What is stored of a chunk, still encoded.

    Parameters
    ----------
    array : zarr.Array
    chunk : tuple of int
    opened : dict
        Empty at first; chunks of one file in a row read it once.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ChecksumError
        If the index of its file is damaged.
    """
    file, several = chunk_file(array, chunk), chunks_of_file(array)
    if several is None:
        return file.read_bytes()
    if file not in opened:
        opened.clear()
        opened[file] = _split(file.read_bytes(), math.prod(several))
    try:
        return opened[file][_number(chunk, several)]
    except KeyError:
        raise FileNotFoundError(f"{file} lacks the chunk {chunk}") from None


def store_chunks(array: zarr.Array, chunks: Mapping[Place, bytes]) -> None:
    """Write encoded chunks of one file, whole or not at all, beside the others that it holds."""
    file, several = chunk_file(array, next(iter(chunks))), chunks_of_file(array)
    if several is None:
        (data,) = chunks.values()
    else:
        try:
            held = _split(file.read_bytes(), math.prod(several))
        except (FileNotFoundError, ChecksumError):  # none, or all are lost
            held = {}
        held |= {_number(chunk, several): data for chunk, data in chunks.items()}
        data = _joined(held, math.prod(several))
    write_file(file, data)


def write_file(file: Path, data: bytes) -> None:
    """Write the file of a chunk, whole or not at all."""
    os.makedirs(file.parent, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}{PARTIAL}")  # a worker may be at it, too
    partial.write_bytes(data)
    os.replace(partial, file)  # the file that was there may be another store's too, by a link


def with_checksum(content: bytes) -> bytes:
    """What is stored, and its checksum behind it."""
    return content + google_crc32c.value(content).to_bytes(_CHECKSUM, "little")


def compared(data: bytes) -> bytes:
    """What stands before a checksum, if it is its own.

    Raises
    ------
    ChecksumError
        If it is not.
    """
    content = data[:-_CHECKSUM]
    if not content or with_checksum(content) != data:
        raise ChecksumError("its checksum is another")
    return content


def _number(chunk: Place, several: Place) -> int:
    """Number of a chunk in its file."""
    return int(np.ravel_multi_index([i % n for i, n in zip(chunk, several)], several))


def _split(data: bytes, count: int) -> dict[int, bytes]:
    index = np.frombuffer(compared(data[-16 * count - _CHECKSUM :]), "<u8")
    if index.size != 2 * count:
        raise ChecksumError("its index is cut")
    pairs = enumerate(index.reshape(count, 2).tolist())
    return {i: data[first : first + size] for i, (first, size) in pairs if first != _NONE}


def _joined(chunks: Mapping[int, bytes], count: int) -> bytes:
    index = np.full((count, 2), _NONE, "<u8")
    held = [chunks[i] for i in sorted(chunks)]
    sizes = list(map(len, held))
    index[sorted(chunks), 0] = list(itertools.accumulate(sizes[:-1], initial=0))
    index[sorted(chunks), 1] = sizes
    return b"".join((*held, with_checksum(index.tobytes())))
