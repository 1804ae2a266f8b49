"""Named arrays in files that users bring: npz, safetensors and Zarr. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pathkernel_tasks.array_guards import check_names, check_size, too_large

_DAMAGE = (  # what the decoders of damaged archives raise
    *(ValueError, OSError, EOFError, RuntimeError, NotImplementedError, OverflowError),
    *(zipfile.BadZipFile, zlib.error),
)
_HEADER = 2**16  # bytes within which NumPy's header of an array must end
_TYPES = re.compile("BOOL|[IU](8|16|32|64)|F(16|32|64)|C64")  # those that NumPy has
_PACKING = {"scale_factor", "add_offset", "missing_value", "_Unsigned"}  # they change the values
_NAN = "AAAAAAAA+H8="  # as xarray writes the attribute _FillValue

Wanted = Callable[[str], bool]
_Read = tuple[dict[str, np.ndarray], list[str]]  # arrays and notes


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
    FileNotFoundError
        If there is neither.
    """
    digest = hashlib.sha256()
    if not Path(path).is_dir():
        _update(digest, _present(path, kind))
        return digest.hexdigest()
    walk = os.walk(path, followlinks=True)
    for file in sorted(Path(folder, name) for folder, _, names in walk for name in names):
        name = file.relative_to(path).as_posix()
        digest.update(f"{len(name)} {name} {file.stat().st_size} ".encode(errors="surrogateescape"))
        _update(digest, file)
    return digest.hexdigest()


def read_arrays(
    path: str | Path, kind: str, wanted: Wanted = lambda name: True
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
    reader = {".zarr": _zarr, ".safetensors": _safetensors}.get(Path(path).suffix.lower(), _npz)
    arrays, notes = reader(_present(path, kind), kind, wanted)
    return arrays, "; ".join(f"{Path(path).name}: {note}" for note in notes)


def _present(path: str | Path, kind: str) -> Path:
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no {kind} {str(path)!r}")
    return Path(path)


def _update(digest: hashlib._Hash, file: Path) -> None:
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)


@contextmanager
def _reported(path: Path, kind: str, damage: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what decoders raise into a ValueError that names the file."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(too_large(path, kind)) from error
    except damage as error:
        raise ValueError(_damaged(path, kind, error)) from error


def _select(
    path: Path, kind: str, names: Iterable[str], wanted: Wanted
) -> tuple[list[str], list[str]]:
    """Names to read, sorted, and notes, of which there is one if others are not read."""
    check_names(path, kind, names)
    chosen = [name for name in sorted(names) if wanted(name)]
    others = ", ".join(sorted(set(names) - set(chosen)))
    return chosen, [f"{others} not read (read: {', '.join(chosen) or 'nothing'})"] if others else []


def _safetensors(path: Path, kind: str, wanted: Wanted) -> _Read:
    from safetensors import SafetensorError, safe_open

    # opening it compares the shapes with the size of the file
    with _reported(path, kind, (SafetensorError, OSError)):
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
                    "float32 or float64"
                )
            with _reported(path, kind, (SafetensorError,)):
                arrays[name] = file.get_tensor(name)
    return arrays, notes


def _npz(path: Path, kind: str, wanted: Wanted) -> _Read:
    with _reported(path, kind, _DAMAGE):
        stream = path.open("rb")
    with stream:
        if stream.read(2) != b"PK":
            raise ValueError(_damaged(path, kind, "it is no archive of arrays"))
        with _reported(path, kind, _DAMAGE):
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
        with _reported(path, kind, _DAMAGE):
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


def _zarr(path: Path, kind: str, wanted: Wanted) -> _Read:
    import zarr

    try:  # format 2 may hold pickled objects, and does not tell masked values from filled ones
        group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=False)
        members = dict(group.members(max_depth=None))
    except Exception as error:
        raise ValueError(
            f"{kind} {str(path)!r} is damaged, or no Zarr group of format 3 ({error}); write named "
            "arrays with dataset.drop_encoding().to_zarr(path, zarr_format=3), or as "
            "zarr.create_group(path)['labels'] = array"
        ) from error
    found = {name: array for name, array in members.items() if isinstance(array, zarr.Array)}
    chosen, notes = _select(path, kind, found, wanted)
    sizes = {name: (found[name].shape, found[name].dtype.itemsize) for name in chosen}
    check_size(path, kind, sizes)
    arrays = {}
    for name in chosen:
        stored = found[name]
        title = f"{kind} {str(path)!r}: {name!r} of shape {stored.shape}"
        _check_plain(title, stored.attrs)
        with _reported(path, f"{name!r} of {kind}", (Exception,)):
            missing, array = _missing_chunks(stored), np.asarray(stored[...])
            if array.dtype.kind == "T":  # text of any length, instead of NumPy's own type
                array = np.array(array.tolist(), dtype=str).reshape(array.shape)
        if missing:  # meant or lost: Zarr leaves chunks of the fill value alone out
            fill = np.asarray(stored.fill_value).item()
            if fill != fill:  # NaN
                raise ValueError(f"{title} lacks {missing}, which would read as NaN; write it anew")
            notes.append(f"{name} lacks {missing}, read as {fill!r}")
        arrays[name] = array
    return arrays, notes


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
    return f"{kind} {str(path)!r} is damaged or of another format: {reason}"


def _pickled(path: Path, kind: str, names: Iterable[str]) -> str:
    return (
        f"{kind} {str(path)!r} holds Python objects, which are never loaded because they can run "
        f"code, in {', '.join(names)}; write plain arrays of numbers or text"
    )
