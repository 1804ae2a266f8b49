"""Size that the chunks of a Zarr array tell, compared with its metadata before they unpack."""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import numpy as np

from pathkernel_tasks.array_guards import memory_bound

_WRITERS = ("bytes", "vlen-utf8")
_COMPRESSORS = ("zstd", "blosc", "gzip")
_ZSTD = b"\x28\xb5\x2f\xfd"  # how a frame begins
_ABSENT = 2**64 - 1  # place of a chunk that a shard lacks


def check_chunks(folder: Path, array, files: Set[Path]) -> None:  # noqa: ANN001 - a zarr.Array
    """Check that an array's chunks are there and unpack to what its metadata say.

    Nothing is unpacked for it, but gzip, block by block.

    Parameters
    ----------
    folder : Path
        Folder of the array.
    array : zarr.Array
        Of format 3.
    files : set of Path
        All files in the folder, or more.

    Raises
    ------
    ValueError
        If a chunk is missing, the codecs are not plain, a chunk unpacks to another size than the
        metadata say, or text to more than :func:`~pathkernel_tasks.array_guards.memory_bound`.
        The message does not name the array.
    """
    text, compressor, index = _codecs(array.metadata.to_dict()["codecs"])
    shape, encode = array.shards or array.chunks, array.metadata.chunk_key_encoding.encode_chunk_key
    size = math.prod(array.chunks) * array.dtype.itemsize
    room = memory_bound()  # for text, whose size the metadata do not say
    grid = [math.ceil(length / step) for length, step in zip(array.shape, shape)]
    for number in range(math.prod(grid)):
        key = encode(tuple(np.unravel_index(number, grid)))
        if folder / key not in files:  # it would read as the fill value, whether meant or lost
            raise ValueError(
                f"the chunk {key!r} is missing. It was never written, or holds the fill value "
                "alone, which cannot be told apart; write all chunks, with dataset.to_zarr(path, "
                "zarr_format=3, write_empty_chunks=True) or create_array(…, "
                "config={'write_empty_chunks': True})"
            )
        content = (folder / key).read_bytes()
        count = math.prod(shape) // math.prod(array.chunks)
        for chunk in [content] if index is None else _in_shard(content, count, index):
            held = _unpacked(chunk, compressor, room if text else size)
            room -= held if text else 0
            if room < 0:
                raise ValueError("its text unpacks to more than half of the machine's memory")
            if not text and held != size:
                raise ValueError(
                    f"the chunk {key!r} unpacks to {held} bytes or more, but its shape and type "
                    f"take {size}"
                )


def _codecs(codecs: Sequence[dict]) -> tuple[bool, str | None, str | None]:
    """Whether an array holds text; its compressor; where its shards have their index, if any.

    Plain codecs may transpose the array, then write it as bytes or text, then compress it once.
    """
    names, index = [codec["name"] for codec in codecs], None
    if names == ["sharding_indexed"]:
        shard = codecs[0]["configuration"]
        names, index = [codec["name"] for codec in shard["codecs"]], shard["index_location"]
        coded = [
            (c["name"], c.get("configuration", {}).get("endian")) for c in shard["index_codecs"]
        ]
        if coded != [("bytes", "little"), ("crc32c", None)]:
            raise ValueError("the index of its shards is coded in a way that zarr never does")
    written, *compressors = [name for name in names if name != "transpose"]
    if written not in _WRITERS or compressors not in ([], *([name] for name in _COMPRESSORS)):
        raise ValueError(
            f"it is coded by {', '.join(names)}; write plain numbers or text, compressed at most "
            f"once, by one of {', '.join(_COMPRESSORS)}"
        )
    return written == "vlen-utf8", (compressors or [None])[0], index


def _in_shard(content: bytes, count: int, index: str) -> Iterator[bytes]:
    """Chunks that a shard holds, by its index of places and lengths, which a checksum ends."""
    length = 16 * count + 4
    start = 0 if index == "start" else max(0, len(content) - length)
    if len(content) < length:
        raise ValueError(f"a shard of {len(content)} bytes has no place for its index of {length}")
    places = np.frombuffer(content, "<u8", 2 * count, start).reshape(count, 2).tolist()
    return (content[at : at + size] for at, size in places if at != _ABSENT)


def _unpacked(chunk: bytes, compressor: str | None, limit: int) -> int:
    """Bytes to which a chunk unpacks; for gzip any number above the limit if it is more."""
    if compressor == "blosc":
        return int.from_bytes(chunk[4:8], "little")
    if compressor == "zstd":
        return _zstd_size(chunk)
    if compressor is None:
        return len(chunk)
    size = 0  # gzip does not say it, so it is counted, block by block
    with gzip.open(io.BytesIO(chunk)) as stream:
        while size <= limit and (block := stream.read(2**20)):
            size += len(block)
    return size


def _zstd_size(chunk: bytes) -> int:
    """Size that the header of a frame of zstd tells (RFC 8878, section 3.1.1).

    Decoders unpack frames that follow, and those that do not tell their size, without bound; both
    are refused. They are found by the lengths of the frame's blocks.
    """
    flags = chunk[4] if chunk.startswith(_ZSTD) and len(chunk) > 4 else 0
    single = flags >> 5 & 1
    width = (single, 2, 4, 8)[flags >> 6]
    start = 6 - single + (0, 1, 2, 4)[flags & 3]
    place, last = start + width, False
    while not last and place < len(chunk):
        block = int.from_bytes(chunk[place : place + 3], "little")
        last = bool(block & 1)
        place += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)  # type 1 repeats one byte
    place += flags & 4  # a checksum of four bytes
    if not width or place != len(chunk):
        raise ValueError("a chunk is not one whole frame of zstd that tells its size")
    return int.from_bytes(chunk[start : start + width], "little") + (256 if width == 2 else 0)
