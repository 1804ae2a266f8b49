"""Named arrays in files that users bring: npz, safetensors and Zarr. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.text import printable
from pathkernel_datasets.memory import check_memory
from pathkernel_tasks.array_guards import (
    check_names,
    check_size,
    real_numbers,
    regular_files,
    too_large,
)

_HEADER = 2**16  # bytes within which NumPy's header of an array must end
_TYPES = re.compile("BOOL|[IU](8|16|32|64)|B?F16|F(32|64)|C64")  # NumPy's, and bfloat16
_REASON = 300  # characters of a decoder's message
_METADATA = 2**26  # bytes of a file of metadata
_CHUNK, _NUMBER = 2**16, 40  # bytes that a chunk may take, and each number of it, with an index
_SPARSE, _RATIO = (
    2**28,
    1000,
)  # bytes from which an array must be stored in a thousandth of its size
_PACKING = {"scale_factor", "add_offset", "missing_value", "_Unsigned"}  # they change the values
_NAN = "AAAAAAAA+H8="  # as xarray writes the attribute _FillValue

Wanted = Callable[[str], bool]
_Read = tuple[dict[str, Any], list[str]]  # arrays and notes


@dataclass(frozen=True)
class StoredArray:
    """Array of a Zarr folder of which rows are read when they are asked for.

    Attributes
    ----------
    title : str
        For messages.
    array : zarr.Array
    """

    title: str
    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return self.array.shape

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        check_memory(
            f"{len(rows)} rows of {self.title}",
            8 * len(rows) * math.prod(self.shape[1:]),
            "take fewer at once",
        )
        try:
            read = np.asarray(self.array.oindex[rows])
        except Exception as error:  # decoders raise anything
            raise ValueError(f"{self.title} is damaged: {printable(str(error))}") from error
        return real_numbers(self.title, read, whole=True)


def content_digest(path: str | Path, kind: str) -> str:
    """SHA-256 of a file's content, or of the names and contents of all files in a folder.

    Parameters
    ----------
    path : str or Path
        A link, to it or in it, stands for what it leads to.
    kind : str
        What the file is, for messages.

    Raises
    ------
    FileNotFoundError, ValueError
        As :func:`~pathkernel_tasks.array_guards.regular_files`.
    """
    digest = hashlib.sha256()
    for file in regular_files(path, kind):
        if file != Path(path):  # in a folder
            name = file.relative_to(path).as_posix()
            about = f"{len(name)} {name} {file.stat().st_size} "
            digest.update(about.encode(errors="surrogateescape"))
        with file.open("rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def read_arrays(
    path: str | Path,
    kind: str,
    wanted: Wanted = lambda name: True,
    stays: Callable[[str, tuple[int, ...]], bool] = lambda name, shape: False,
) -> tuple[dict[str, np.ndarray], str]:
    """Arrays of a file, by name.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` or ``.npz`` file, or a ``.zarr`` folder in format 3, of which all
        groups are read.
    kind : str
        What the file is, for messages, such as ``"heads file"``.
    wanted : callable
        Name → whether to read that array; all by default. It may raise a ValueError.
    stays : callable
        Name and shape of an array in a Zarr folder → whether to give a :class:`StoredArray`.

    Returns
    -------
    arrays : dict of str to array
    note : str
        Which arrays were not read, and of which Zarr does not store all chunks; empty if neither.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, holds pickled objects, a name in it points out of it, the arrays to read
        do not fit into memory (see :func:`~pathkernel_tasks.array_guards.check_size`), or a Zarr
        array is packed, masked or lacks chunks that would read as NaN.
    """
    regular_files(path, kind)
    if Path(path).suffix.lower() == ".zarr":
        arrays, notes = _zarr(Path(path), kind, wanted, stays)
    else:
        reader = _safetensors if Path(path).suffix.lower() == ".safetensors" else _npz
        arrays, notes = reader(Path(path), kind, wanted)
    return arrays, "; ".join(f"{Path(path).name}: {note}" for note in notes)


@contextmanager
def _reported(path: Path, kind: str) -> Iterator[None]:
    """Turn what decoders raise, which is anything, into a ValueError that names the file."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(too_large(path, kind)) from error
    except Exception as error:
        raise ValueError(_damaged(path, kind, error)) from error


def _select(
    path: Path, kind: str, names: Iterable[str], wanted: Wanted
) -> tuple[list[str], list[str]]:
    """Names to read, sorted, and notes, of which there is one if others are not read."""
    check_names(path, kind, names)
    chosen = [name for name in sorted(names) if wanted(name)]
    others = ", ".join(sorted(set(names) - set(chosen)))
    but = f" (read: {', '.join(chosen)})" if chosen else ""
    return chosen, [f"{others} not read{but}"] if others else []


def _safetensors(path: Path, kind: str, wanted: Wanted) -> _Read:
    from safetensors import safe_open

    # opening it compares the shapes with the size of the file
    with _reported(path, kind):
        file = safe_open(path, framework="numpy")
    with file:
        chosen, notes = _select(path, kind, file.keys(), wanted)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in chosen}
        check_size(path, kind, {name: (shape, 8) for name, shape in shapes.items()})
        arrays = {}
        for name in chosen:
            if not _TYPES.fullmatch(held := file.get_slice(name).get_dtype()):
                raise ValueError(
                    f"{kind} {str(path)!r}: {name!r} holds {held}, a type that NumPy lacks; write "
                    "bfloat16, float32 or float64"
                )
            with _reported(path, kind):
                read = brain_float(path, name) if held == "BF16" else file.get_tensor(name)
                arrays[name] = read
    return arrays, notes


def brain_float(path: str | Path, name: str) -> np.ndarray:
    """Array of bfloat16 in a safetensors file, in float32, of which it is the upper halves."""
    with Path(path).open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entry = json.loads(stream.read(length))[name]
        first, last = entry["data_offsets"]
        stream.seek(8 + length + first)
        halves = np.frombuffer(stream.read(last - first), dtype="<u2")
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])


def _npz(path: Path, kind: str, wanted: Wanted) -> _Read:
    with _reported(path, kind):
        stream = path.open("rb")
    with stream:
        if stream.read(2) != b"PK":
            raise ValueError(_damaged(path, kind, "it is no archive of arrays"))
        with _reported(path, kind):
            archive = zipfile.ZipFile(stream)
            members = _members(archive)
            headers = {name: _header(archive, member) for name, member in members.items()}
        objects = [name for name, (_, dtype) in headers.items() if dtype.hasobject]
        if objects:  # even where they are not asked for: such a file is not to be trusted
            raise ValueError(_pickled(path, kind, objects))
        chosen, notes = _select(path, kind, members, wanted)
        stored = {name: headers[name] for name in chosen}
        check_size(path, kind, {name: (shape, d.itemsize) for name, (shape, d) in stored.items()})
        arrays = {}
        with _reported(path, kind):
            for name in chosen:
                with archive.open(members[name]) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays, notes


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members that are arrays, by the array's name."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if not member.filename.endswith(".npy"):
            continue
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # others unpack a block of any size at once
            raise ValueError(f"{member.filename!r} is compressed in a way that NumPy never does")
        name = member.filename.removesuffix(".npy")
        if name in found:
            raise ValueError(f"it holds {member.filename!r} twice")
        found[name] = member
    return found


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of an array in an archive; they must agree with its size there."""
    with archive.open(member) as stream:
        start = io.BytesIO(stream.read(_HEADER))
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(start)
    if version not in readers:
        raise ValueError(f"{member.filename!r} is of version {version}, which plain arrays lack")
    shape, _, dtype = readers[version](start)
    claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - start.tell()
    if min(shape, default=0) < 0 or not (claimed == held or dtype.hasobject):
        raise ValueError(
            f"{member.filename!r} claims the shape {shape} of {dtype}, {claimed} bytes, but "
            f"unpacks to {held} bytes"
        )
    return shape, dtype


def _zarr(
    path: Path, kind: str, wanted: Wanted, stays: Callable[[str, tuple[int, ...]], bool]
) -> _Read:
    import zarr

    for file in regular_files(path, kind):
        if file.name == "zarr.json" and file.stat().st_size > _METADATA:
            raise ValueError(_damaged(path, kind, f"{file} takes {file.stat().st_size} bytes"))
    try:  # format 2 may hold pickled objects, and does not tell masked values from filled ones
        group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=False)
        members = dict(group.members(max_depth=None))
    except Exception as error:
        raise ValueError(
            f"{kind} {str(path)!r} is damaged, or no Zarr group of format 3 "
            f"({printable(str(error))[:_REASON]}); write named "
            "arrays with dataset.drop_encoding().to_zarr(path, zarr_format=3), or as "
            "zarr.create_group(path)['labels'] = array"
        ) from error
    found = {name: array for name, array in members.items() if isinstance(array, zarr.Array)}
    chosen, notes = _select(path, kind, found, wanted)
    left = {name for name in chosen if stays(name, found[name].shape)}
    check_size(path, kind, {name: _unpacked(found[name]) for name in chosen if name not in left})
    arrays: dict[str, Any] = {}
    for name in chosen:
        stored = found[name]
        title = f"{kind} {str(path)!r}: {name!r} of shape {stored.shape}"
        _check_plain(title, stored.attrs)
        with _reported(path, f"{name!r} of {kind}"):
            _check_stored(path / name, stored)
            missing = _missing_chunks(stored)
            array = StoredArray(title, stored) if name in left else np.asarray(stored[...])
            if (
                name not in left and array.dtype.kind == "T"
            ):  # text of any length, instead of NumPy's own type
                array = np.array(array.tolist(), dtype=str).reshape(array.shape)
        if missing:  # meant or lost: Zarr leaves chunks of the fill value alone out
            fill = np.asarray(stored.fill_value).item()
            if fill != fill:  # NaN
                raise ValueError(f"{title} lacks {missing}, which would read as NaN; write it anew")
            notes.append(f"{name} lacks {missing}, read as {fill!r}")
        arrays[name] = array
    return arrays, notes


def _unpacked(array) -> tuple[tuple[int, ...], int]:  # noqa: ANN001 - a zarr.Array
    """Shape and bytes of an element of what is unpacked, of whole chunks, to read an array."""
    chunk = array.shards or array.chunks
    return tuple(map(max, array.shape, chunk)), array.dtype.itemsize


def _check_stored(folder: Path, array) -> None:  # noqa: ANN001 - a zarr.Array
    """Compare the size of an array's files with that of what they are to hold."""
    sizes = [file.stat().st_size for file in regular_files(folder, "array")]
    numbers = math.prod(array.shards or array.chunks)
    if array.dtype.kind in "biufc" and max(sizes) > _CHUNK + _NUMBER * numbers:
        raise ValueError(f"a chunk of {numbers} numbers takes {max(sizes)} bytes")
    total = math.prod(array.shape) * array.dtype.itemsize
    if total > max(_SPARSE, _RATIO * sum(sizes)):
        raise ValueError(
            f"it would take {total} bytes, but {sum(sizes)} are stored; leave out what is empty"
        )


def _missing_chunks(array) -> str:  # noqa: ANN001 - a zarr.Array
    """How many chunks are not stored, of how many; empty if all are. A shard counts as one."""
    shape = array.shards or array.chunks
    total = math.prod(-(-length // step) for length, step in zip(array.shape, shape))
    stored = array.nchunks_initialized * math.prod(array.chunks) // math.prod(shape)
    return f"{total - stored} of its {total} chunks" if stored < total else ""


def _check_plain(title: str, attributes: Mapping[str, object]) -> None:
    """Raise a ValueError if xarray would change or mask an array's values by its attributes."""
    packing = sorted(_PACKING & attributes.keys())
    if attributes.get("_FillValue", _NAN) != _NAN:
        packing.insert(0, "_FillValue")
    if packing:
        raise ValueError(
            f"{title} is packed or masked by its attributes ({', '.join(packing)}); write plain "
            "numbers, with xr.open_zarr(path).drop_encoding().to_zarr(other_path, zarr_format=3)"
        )


def _damaged(path: Path, kind: str, reason: object) -> str:
    reason = printable(str(reason))[:_REASON]
    return f"{kind} {str(path)!r} is damaged or of another format: {reason}"


def _pickled(path: Path, kind: str, names: Iterable[str]) -> str:
    return (
        f"{kind} {str(path)!r} holds Python objects, which are never loaded because they can run "
        f"code, in {', '.join(names)}; write plain arrays of numbers or text"
    )
