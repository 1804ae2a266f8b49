"""Claims of a Zarr array's metadata, compared with the files of its chunks before one is unpacked.

An array is read by the layout that pathkernel writes alone: regular chunks, all of which are there,
of numbers or of text, each one frame of Zstandard that unpacks to exactly the size of a chunk.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

from pathkernel_core.system.local_files import file_sizes
from pathkernel_core.system.memory import bytes_in_words, claim_bound

_TEXT = "string"
_SIZES = {"bool": 1, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16} | {
    f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)
}
_OBJECT = 64  # bytes of a short text in memory
_CODECS = ("zstd", "crc32c")  # behind that of the values, in this order; each may be absent
_CHUNK_KEYS = {"name": "default", "configuration": {"separator": "/"}}

_MAGIC, _BLOCK = b"\x28\xb5\x2f\xfd", 3  # of a frame of Zstandard (RFC 8878), of a block's header


class MissingChunksError(ValueError):
    """Chunks of an array are not there; Zarr would read its fill value."""


@dataclass(frozen=True)
class ArrayLayout:
    """Shape, chunks and codecs of an array by its metadata.

    Attributes
    ----------
    shape, chunks : tuple of int
        Of the array, and of each of its chunks.
    itemsize : int
        Bytes of a number; 0 for text.
    codecs : tuple of str
        Names of those behind the first.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    itemsize: int
    codecs: tuple[str, ...]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ArrayLayout:
        """Read the layout of an array from the content of its ``zarr.json``.

        Raises
        ------
        ValueError
            If it is none that pathkernel writes.
        """
        try:
            shape, kind = metadata["shape"], metadata["data_type"]
            grid, fill = metadata["chunk_grid"], metadata["fill_value"]
            chunks = grid["configuration"]["chunk_shape"]
            names = metadata.get("dimension_names") or []
            first, *codecs = (codec["name"] for codec in metadata["codecs"])
            is_plain = (
                metadata["node_type"] == "array"
                and metadata["zarr_format"] == 3
                and isinstance(metadata["attributes"], dict)
                and not metadata.get("storage_transformers")
                and metadata["chunk_key_encoding"] == _CHUNK_KEYS
                and grid["name"] == "regular"
                and len(shape) == len(chunks) == len(names)
                and all(type(size) is int and size >= 0 for size in shape)
                and all(type(size) is int and size > 0 for size in chunks)
                and all(isinstance(name, str) for name in names)
                and (kind == _TEXT or kind in _SIZES)
                # of text it would be repeated wherever a chunk is filled up
                and (kind != _TEXT or fill == "")
                and first == ("vlen-utf8" if kind == _TEXT else "bytes")
                and codecs == [name for name in _CODECS if name in codecs]
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise ValueError("its metadata are of no array that pathkernel writes")
        itemsize = 0 if kind == _TEXT else _SIZES[kind]
        return cls(tuple(shape), tuple(chunks), itemsize, tuple(codecs))

    @property
    def counts(self) -> list[int]:
        """Number of chunks along each dimension."""
        return [-(-size // chunk) for size, chunk in zip(self.shape, self.chunks)]

    def check_chunk(self, file: Path) -> int:
        """Check what a chunk would unpack to; return the bytes that it takes in memory.

        Raises
        ------
        ValueError
            If that is no whole chunk. Its checksum, which Zarr compares, is not looked at.
        """
        items = math.prod(self.chunks)
        with open(file, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size - 4 * ("crc32c" in self.codecs)
            unpacked = _frame_content(stream, size) if "zstd" in self.codecs else size
            if self.itemsize:
                if unpacked != items * self.itemsize:
                    raise ValueError(
                        f"{file} would unpack to {bytes_in_words(unpacked)}, not to the "
                        f"{bytes_in_words(items * self.itemsize)} of a chunk"
                    )
                return unpacked
            if unpacked > claim_bound(size):
                raise ValueError(f"{file} claims {bytes_in_words(unpacked)} of text")
            stream.seek(0)
            content = stream.read(max(0, size))
        if "zstd" in self.codecs:
            unpack = numcodecs.get_codec({"id": "zstd"}).decode
            content = bytes(unpack(content, out=np.empty(unpacked, np.uint8)))
        # every text takes as much as the longest where xarray draws them
        return items * (_OBJECT + 4 * _longest_text(file, content, items))


def _frame_content(stream: Any, size: int) -> int:
    """Bytes that a file of one frame of Zstandard unpacks to; raise ValueError if it is another.

    Decoders take the frames that follow one another as one, and unpack those of unknown size
    without a bound.
    """
    header = stream.read(18)
    flags = header[4] if len(header) > 4 and header[:4] == _MAGIC else 0
    is_single_segment, dictionary, width = flags & 32, flags & 3, 1 << (flags >> 6)
    if (width == 1 and not is_single_segment) or dictionary or size < 9:
        raise ValueError(f"{stream.name} is no chunk that pathkernel writes")
    start = 5 + (not is_single_segment)
    content = int.from_bytes(header[start : start + width], "little") + 256 * (width == 2)
    place, is_last = start + width, False
    while not is_last:
        stream.seek(place)
        block = int.from_bytes(stream.read(_BLOCK), "little") if place + _BLOCK <= size else -1
        is_last, is_repeated = bool(block & 1), block >> 1 & 3 == 1
        place += _BLOCK + (1 if is_repeated else block >> 3)
        if block < 0 or place > size:
            raise ValueError(f"{stream.name} ends within its content")
    if place + (4 if flags & 4 else 0) != size:  # with a checksum of Zstandard's own
        raise ValueError(f"{stream.name} has more content than its chunk")
    return content


def _longest_text(file: Path, content: bytes, items: int) -> int:
    """Length in bytes of the longest text in an unpacked chunk of so many.

    Raises ValueError if there are more or fewer: a decoder makes room for as many as it claims.
    """
    place, longest = 4, 0
    if int.from_bytes(content[:4], "little") == items and 4 * items <= len(content):
        for _ in range(items):
            length = int.from_bytes(content[place : place + 4], "little")
            place, longest = place + 4 + length, max(length, longest)
            if place > len(content):
                break
    if place != len(content):
        raise ValueError(f"{file} holds another number of texts than a chunk, {items}")
    return longest


@dataclass(frozen=True)
class Claim:
    """Bytes that an array takes in memory, and those of its files."""

    memory: int
    stored: int


def claim_of(folder: Path, layout: ArrayLayout) -> Claim:
    """Compare the layout of an array with its files.

    Raises
    ------
    MissingChunksError
        If a chunk is not there.
    ValueError
        If one would unpack to another size than a chunk's.
    """
    files = chunk_sizes(folder)
    # before any list of the chunks is made: their number is another claim
    if math.prod(layout.counts) > len(files):
        raise MissingChunksError("chunks are missing")
    memory = stored = 0
    for place in itertools.product(*map(range, layout.counts)):
        name = "/".join(("c", *map(str, place)))
        if name not in files:
            raise MissingChunksError("chunks are missing")
        memory, stored = memory + layout.check_chunk(folder / name), stored + files[name]
    return Claim(memory, stored)


def check_total(claims: Mapping[str, Claim]) -> None:
    """Raise a ValueError if arrays would together take far more memory than their files.

    The bound is :func:`pathkernel_core.system.memory.claim_bound`.
    """
    memory, stored = (
        sum(getattr(claim, part) for claim in claims.values()) for part in ("memory", "stored")
    )
    if memory > claim_bound(stored):
        largest = max(claims, key=lambda name: claims[name].memory)
        raise ValueError(
            f"its arrays would take {bytes_in_words(memory)} of memory, "
            f"{bytes_in_words(claims[largest].memory)} of it {largest}, but its files hold "
            f"{bytes_in_words(stored)}"
        )


def chunk_sizes(folder: Path) -> dict[str, int]:
    """Sizes of the files of an array's chunks by their names, such as ``c/0/1``.

    Raises a PermissionError if a folder may not be read: Zarr would take it for empty.
    """
    sizes = file_sizes(folder / "c", onerror=_raise_permission)
    above = len(os.path.join(folder, ""))
    return {file[above:].replace(os.sep, "/"): size for file, size in sizes}


def _raise_permission(error: OSError) -> None:
    if isinstance(error, PermissionError):
        raise error
