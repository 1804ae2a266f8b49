"""Arrays with checksums: how chunks are written so that damage shows, and which are damaged.

Every chunk is written, also where it holds nothing but fill values, so that one that is lost is not
taken for one that was never written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import google_crc32c
import numpy as np
import xarray as xr
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from pathkernel_datasets.labelling import storable

CHECKED = (ZstdCodec(level=0), Crc32cCodec())
"""Compression of an array, and the checksum of each chunk behind it."""

MISSING = "is missing"

_CHECKSUM = 4  # bytes


def writing_every_chunk() -> AbstractContextManager:
    """Let arrays that are opened meanwhile write every chunk."""
    return zarr.config.set({"array.write_empty_chunks": True})


def write_dataset(dataset: xr.Dataset, folder: str | os.PathLike, group: str | None = None) -> None:
    """Write a dataset as a Zarr group with checksums, without an index of metadata."""
    storable(dataset).to_zarr(
        folder,
        group=group,
        mode="w",
        zarr_format=3,
        consolidated=False,
        encoding={name: {"compressors": CHECKED} for name in dataset.variables},
        write_empty_chunks=True,
    )


def is_checked(array: zarr.Array) -> bool:
    """Whether an array's chunks have checksums; those of older stores have none."""
    return any(isinstance(codec, Crc32cCodec) for codec in array.metadata.codecs)


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
                _compare(chunk_file(array, chunk).read_bytes())
            else:
                array[tuple(slice(i * n, i * n + n) for i, n in zip(chunk, array.chunks))]
        except FileNotFoundError:
            found[chunk] = MISSING
        except Exception as error:  # whatever the file system or a decoder raises
            found[chunk] = f"cannot be read ({error})"
    return found


def _compare(data: bytes) -> None:
    content, held = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if not content or google_crc32c.value(content).to_bytes(_CHECKSUM, "little") != held:
        raise ValueError("its checksum is another")
