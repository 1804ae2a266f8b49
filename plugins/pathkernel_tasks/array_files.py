"""Named arrays in files that users bring: npz, safetensors and Zarr. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.system.local_files import is_damage, regular_files
from pathkernel_core.system.memory import check_memory, memory_bound
from pathkernel_core.system.text import printable
from pathkernel_tasks.array_guards import check_claimed_size, real_numbers

_METADATA = 2**26  # largest number of bytes of a metadata file
_PACKING = {"scale_factor", "add_offset", "missing_value", "_Unsigned"}  # would change the values
_NAN = "AAAAAAAA+H8="  # as xarray writes the attribute _FillValue

_TYPE = re.compile(r"BOOL|[FIUC]\d+")  # of safetensors, if NumPy has it
_CHUNK = re.compile(r"c|(c\.)?\d+(\.\d+)*")  # names of files of chunks
_PLAIN = ("transpose", "bytes", "vlen-utf8", "crc32c")  # codecs that do not compress
_COMPRESSORS = ("zstd", "blosc", "gzip")
_TASK = 2**13  # bytes of memory that zarr takes to read a chunk, stored or not
_TEXT = 2**7  # and for a short text
_AT_ONCE = 10  # chunks that zarr unpacks together
_SLACK, _RATIO = 2**24, 1000  # bytes allowed beyond a chunk's; of text, times its file's

Selection = Callable[[str], bool]
Stays = Callable[[str, tuple[int, ...]], bool]
Arrays = dict[str, Any]


@dataclass(frozen=True)
class StoredArray:
    """Array of a Zarr folder, whose rows are read on demand; messages name it by its title."""

    title: str
    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all rows together."""
        return self.array.shape

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        size = 8 * len(rows) * math.prod(self.shape[1:])
        check_memory(f"{len(rows)} rows of {self.title}", size, "take fewer at once")
        with _report_errors(self.title):
            values = np.asarray(self.array.oindex[rows])
        return real_numbers(self.title, values, whole=True)


def content_digest(path: str | Path, kind: str) -> str:
    """Compute the SHA-256 of a file's content, or of names and contents of a folder's files."""
    digest = hashlib.sha256()
    for file in regular_files(path, kind):
        if file != Path(path):  # in a folder
            name = file.relative_to(path).as_posix()
            prefix = f"{len(name)} {name} {file.stat().st_size} "
            digest.update(prefix.encode(errors="surrogateescape"))
        with file.open("rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def read_arrays(
    path: str | Path,
    kind: str,
    select: Selection = lambda name: True,
    stays: Stays = lambda name, shape: False,
) -> tuple[Arrays, str]:
    """Read arrays of a file, by name.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` or ``.npz`` file, or a ``.zarr`` folder in format 3 with all its groups.
    kind : str
        What the file is, for messages, such as ``"heads file"``.
    select : callable
        Name → whether to read that array; all by default. It may raise a ValueError.
    stays : callable
        Name and shape of an array in a Zarr folder → whether to return a :class:`StoredArray`.

    Returns
    -------
    arrays : dict of str to array
    note : str
        Arrays that were not read, and arrays of which Zarr does not store all chunks.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, holds pickled objects, or claims too much memory (see
        :func:`~pathkernel_tasks.array_guards.check_claimed_size`); if a Zarr array is packed,
        masked, in shards, or lacks chunks that would read as NaN.
    """
    files, path = regular_files(path, kind), Path(path)
    title, stored = f"{kind} {str(path)!r}", sum(file.stat().st_size for file in files)
    with _report_errors(title):
        if path.suffix.lower() == ".zarr":
            arrays, notes = _zarr(path, title, stored, select, stays)
        elif path.suffix.lower() == ".safetensors":
            arrays, notes = _safetensors(path, title, stored, select)
        else:
            arrays, notes = _npz(path, title, stored, select)
    return arrays, "; ".join(f"{path.name}: {note}" for note in notes)


@contextmanager
def _report_errors(title: str) -> Iterator[None]:
    """Turn any error of a decoder into a ValueError that names the file."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(
            f"{title} does not fit into the memory that is free; take fewer examples, tokens, "
            "heads or layers"
        ) from error
    except Exception as error:
        if str(error).startswith(title) or not is_damage(error):
            raise
        reason = printable(str(error) or type(error).__name__)[:300]
        raise ValueError(f"{title} is damaged or of another format: {reason}") from error


def _select_names(names: Iterable[str], select: Selection) -> tuple[list[str], list[str]]:
    """Names to read, sorted, and a note on the remaining ones."""
    chosen = [name for name in sorted(names) if select(name)]
    ignored = ", ".join(name or "''" for name in sorted(set(names) - set(chosen)))
    read = f" (read: {', '.join(chosen)})" if chosen else ""
    return chosen, [printable(f"{ignored} not read{read}")] if ignored else []


def _safetensors(
    path: Path, title: str, stored: int, select: Selection
) -> tuple[Arrays, list[str]]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:  # compares the shapes with the file's size
        chosen, notes = _select_names(file.keys(), select)
        slices = {name: file.get_slice(name) for name in chosen}
        check_claimed_size(
            title, {name: (part.get_shape(), 8) for name, part in slices.items()}, stored
        )
        arrays = {}
        for name, part in slices.items():
            if not _TYPE.fullmatch(part.get_dtype()):  # whether read or not is up to ml_dtypes
                raise ValueError(
                    f"{title}: {name!r} is of type {part.get_dtype()}, which NumPy lacks; save it "
                    "as float32"
                )
            arrays[name] = file.get_tensor(name)
    return arrays, notes


def _npz(path: Path, title: str, stored: int, select: Selection) -> tuple[Arrays, list[str]]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"it holds {sorted(repeated)} more than once")
        chosen, notes = _select_names(names, select)
        entries = {name: members[names.index(name)] for name in chosen}
        for member in entries.values():
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # others unpack a block of any size at once
                raise ValueError(
                    f"{member.filename!r} is compressed in a way that NumPy never does"
                )
        # zipfile unpacks no more of a member than the archive claims
        claims = {name: ((member.file_size // 8,), 8) for name, member in entries.items()}
        check_claimed_size(title, claims, stored)
        for name, member in entries.items():
            with _report_errors(f"{title}: {name!r}"), archive.open(member) as stream:
                try:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                except ValueError as error:
                    if "Object arrays" not in str(error):
                        raise
                    raise ValueError(
                        f"{title}: {name!r} holds Python objects, which are never loaded because "
                        "they can run code; write plain arrays of numbers or text"
                    ) from error
                if stream.read(1):
                    raise ValueError(f"it holds more than its shape {arrays[name].shape}")
    check_claimed_size(
        title, {name: (part.shape, part.itemsize) for name, part in arrays.items()}, stored
    )
    return arrays, notes


def _zarr(
    path: Path, title: str, stored: int, select: Selection, stays: Stays
) -> tuple[Arrays, list[str]]:
    import zarr

    for file in path.rglob("zarr.json"):
        if file.stat().st_size > _METADATA:
            raise ValueError(f"{str(file)!r} takes {file.stat().st_size} bytes")
    try:  # format 2 may hold pickled objects, and does not tell masked values from filled ones
        group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=False)
        members = dict(group.members(max_depth=None))
    except Exception as error:
        if not is_damage(error):
            raise
        raise ValueError(
            f"{title} is damaged, or no Zarr group of format 3 ({printable(str(error))[:300]}); "
            "write named arrays with dataset.drop_encoding().to_zarr(path, zarr_format=3), or as "
            "zarr.create_group(path)['labels'] = array"
        ) from error
    stored_arrays = {name: part for name, part in members.items() if isinstance(part, zarr.Array)}
    chosen, notes = _select_names(stored_arrays, select)
    loaded, claims, tasks = set(), {}, {}
    for name in chosen:
        array = stored_arrays[name]
        shape = tuple(map(max, array.shape, array.chunks))  # chunks are unpacked whole
        itemsize = array.dtype.itemsize
        if array.dtype.kind == "T":  # each missing one is filled in full
            itemsize = _TEXT + 4 * len(array.fill_value)
        tasks[name] = shape, max(itemsize, _TASK * array.nchunks // max(1, math.prod(shape)))
        if stays(name, array.shape):
            claims[name] = (min(_AT_ONCE, array.nchunks), *array.chunks), itemsize
        else:
            loaded.add(name)
            claims[name] = shape, itemsize
    check_claimed_size(title, claims, stored)
    check_claimed_size(title, tasks, stored, bound=math.inf)
    arrays: Arrays = {}
    for name in chosen:
        array = stored_arrays[name]
        array_title = f"{title}: {name!r} of shape {array.shape}"
        with _report_errors(array_title):
            _check_plain(array_title, array.attrs)
            _check_chunks(array_title, path / name, array)
            missing = array.nchunks - array.nchunks_initialized
            arrays[name] = (
                _load_array(array_title, array)
                if name in loaded
                else StoredArray(array_title, array)
            )
        if missing > 0:  # deliberate or lost: Zarr does not store chunks of the fill value
            fill = np.asarray(array.fill_value).item()
            lacking = f"lacks {missing} of its {array.nchunks} chunks"
            if fill != fill:  # NaN
                raise ValueError(
                    f"{array_title} {lacking}, which would read as NaN; write it again"
                )
            notes.append(f"{name} {lacking}, read as {fill!r}")
    return arrays, notes


def _load_array(title: str, array: Any) -> np.ndarray:
    """Read all of a Zarr array; text in NumPy's fixed-length type, padded to the longest."""
    values = np.asarray(array[...])
    if values.dtype.kind != "T":
        return values
    texts = values.ravel().tolist()
    longest = max(map(len, texts), default=0)
    check_claimed_size(title, {"text": (values.shape, 4 * longest)}, sum(map(len, texts)))
    return np.array(texts, dtype=str).reshape(values.shape)


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


def _check_chunks(title: str, folder: Path, array: Any) -> None:
    """Check that no chunk of a Zarr array takes or unpacks to more bytes than it may."""
    import numcodecs

    codecs = [codec.to_dict()["name"] for codec in array.metadata.codecs]
    packing = [name for name in codecs if name not in _PLAIN]
    if len(packing) > 1 or not set(packing) <= set(_COMPRESSORS):
        raise ValueError(
            f"{title} is stored by {', '.join(codecs)}; write it without shards, and uncompressed "
            f"or by one of {', '.join(_COMPRESSORS)}"
        )
    is_text, chunk_size = array.dtype.kind == "T", math.prod(array.chunks) * array.dtype.itemsize
    for file in regular_files(folder, "array"):
        if not _CHUNK.fullmatch(file.name):
            continue
        size = file.stat().st_size
        bound = _SLACK + (min(_RATIO * size, memory_bound() // 4) if is_text else chunk_size)
        with _report_errors(f"{title}: chunk {file.relative_to(folder).as_posix()!r}"):
            if size > bound:
                raise ValueError(f"it takes {size} bytes")
            for name in packing:
                content = file.read_bytes()
                content = content[:-4] if codecs[-1] == "crc32c" else content
                # blosc reads as many bytes as the header says, beyond the end of the content
                if name == "blosc" and int.from_bytes(content[12:16], "little") != len(content):
                    raise ValueError(f"blosc has packed another number of bytes than {size}")
                # zarr itself unpacks a chunk of any size; into a buffer of some size nothing can
                numcodecs.get_codec({"id": name}).decode(content, out=np.empty(bound, np.uint8))
