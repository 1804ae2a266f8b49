"""Named arrays in files that users bring: npz, safetensors and Zarr. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pathkernel_tasks.array_guards import check_names, check_size, plain_files, too_large
from pathkernel_tasks.zarr_chunks import check_chunks

_DAMAGE = (  # what the decoders of damaged archives and chunks raise
    *(ValueError, OSError, EOFError, RuntimeError, NotImplementedError, OverflowError),
    *(zipfile.BadZipFile, zlib.error),
)
_HEADER = 2**16  # bytes within which NumPy's header of an array must end
_TYPES = re.compile("BOOL|[IU](8|16|32|64)|F(16|32|64)|C64")  # those that NumPy has
_PACKING = {"scale_factor", "add_offset", "missing_value", "_Unsigned"}  # they change the values
_NAN = "AAAAAAAA+H8="  # as xarray writes the attribute _FillValue

Wanted = Callable[[str], bool]


def content_digest(path: str | Path, kind: str) -> str:
    """SHA-256 of a file's content, or of the names and contents of all files in a folder.

    Parameters
    ----------
    path : str or Path
        A link to a file or folder stands for what it leads to.
    kind : str
        What the file is, for messages.

    Raises
    ------
    FileNotFoundError
        If there is neither.
    ValueError
        If there is a symbolic link in the folder; nothing outside it is read.
    """
    digest = hashlib.sha256()
    if not Path(path).is_dir():
        _update(digest, _present(path, kind))
        return digest.hexdigest()
    for file in plain_files(path, kind):
        name = file.relative_to(path).as_posix()
        digest.update(f"{len(name)} {name} {file.stat().st_size} ".encode(errors="surrogateescape"))
        _update(digest, file)
    return digest.hexdigest()


def read_arrays(
    path: str | Path, kind: str, wanted: Wanted = lambda name: True
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
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
    others : tuple of str
        Names of the arrays that were not read, sorted.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, holds pickled objects, a name or a link in it points out of it, a Zarr
        array lacks chunks, is packed or coded otherwise than plainly (see
        :func:`~pathkernel_tasks.zarr_chunks.check_chunks`), or the arrays to read do not fit into
        memory (see :func:`~pathkernel_tasks.array_guards.check_size`).
    """
    reader = {".zarr": _zarr, ".safetensors": _safetensors}.get(Path(path).suffix.lower(), _npz)
    return reader(_present(path, kind), kind, wanted)


def others_note(path: str | Path, read: Iterable[str], others: Iterable[str]) -> str:
    """Sentence on the arrays of a file that were not read; empty if there are none."""
    if not (left := sorted(others)):
        return ""
    return f"of {Path(path).name} {', '.join(left)} (read: {', '.join(sorted(read)) or 'nothing'})"


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


def _select(path: Path, kind: str, names: Iterable[str], wanted: Wanted) -> tuple[list[str], tuple]:
    """Names to read and the others, each sorted."""
    check_names(path, kind, names)
    chosen = [name for name in sorted(names) if wanted(name)]
    return chosen, tuple(sorted(set(names) - set(chosen)))


def _safetensors(path: Path, kind: str, wanted: Wanted) -> tuple[dict[str, np.ndarray], tuple]:
    from safetensors import SafetensorError, safe_open

    # opening it compares the shapes with the size of the file
    with _reported(path, kind, (SafetensorError, OSError)):
        file = safe_open(path, framework="numpy")
    with file:
        chosen, others = _select(path, kind, file.keys(), wanted)
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
    return arrays, others


def _npz(path: Path, kind: str, wanted: Wanted) -> tuple[dict[str, np.ndarray], tuple]:
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
        chosen, others = _select(path, kind, members, wanted)
        stored = {name: headers[name] for name in chosen}
        check_size(path, kind, {name: (shape, d.itemsize) for name, (shape, d) in stored.items()})
        arrays = {}
        with _reported(path, kind, _DAMAGE):
            for name in chosen:
                with archive.open(members[name]) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays, others


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


def _zarr(path: Path, kind: str, wanted: Wanted) -> tuple[dict[str, np.ndarray], tuple]:
    if not (path / "zarr.json").is_file():  # format 2 can hold pickled objects
        raise ValueError(
            f"{kind} {str(path)!r} is no Zarr folder of format 3; write it with "
            "dataset.to_zarr(path, zarr_format=3), or with zarr.create_group(path)"
        )
    files = set(plain_files(path, kind))
    import zarr
    from zarr.errors import ContainsArrayError

    try:
        with _reported(path, kind, (Exception,)):
            group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=False)
            members = dict(group.members(max_depth=None))
    except ValueError as error:
        if isinstance(error.__cause__, ContainsArrayError):
            raise ValueError(
                f"{kind} {str(path)!r} is a single array, which has no name; write it into a "
                "group, as zarr.create_group(path)['labels'] = array"
            ) from error
        raise
    found = {name: array for name, array in members.items() if isinstance(array, zarr.Array)}
    chosen, others = _select(path, kind, found, wanted)
    stored = {}
    with _reported(path, kind, (Exception,)):
        for name in chosen:
            array = found[name]  # a chunk may be larger than its array, and is unpacked as a whole
            shape = max(array.shape, array.shards or array.chunks, key=math.prod)
            stored[name] = (shape, array.dtype.itemsize)
    check_size(path, kind, stored)
    for name in chosen:
        _check_plain(path, kind, name, found[name], files)
    arrays = {}
    for name in chosen:
        with _reported(path, kind, (Exception,)):
            array = np.asarray(found[name][...])
        if array.dtype.kind in "OT":  # text, which NumPy's own type keeps at the longest's length
            longest = max(map(len, array.flat), default=1) or 1
            stored[name] = (array.shape, 4 * longest)
            check_size(path, kind, stored)
            with _reported(path, kind, (Exception,)):
                array = array.astype(f"U{longest}")
        arrays[name] = array
    return arrays, others


def _check_plain(path: Path, kind: str, name: str, array, files: set[Path]) -> None:  # noqa: ANN001
    """Raise a ValueError if an array's values are not what its chunks hold."""
    with _reported(path, kind, (Exception,)):
        attributes = dict(array.attrs)
    try:
        with _reported(path, kind, ()):
            check_chunks(path / name, array, files)
    except _DAMAGE as error:
        raise ValueError(f"{kind} {str(path)!r}: {name!r}: {error}") from error
    packing = _PACKING & attributes.keys()
    if attributes.get("_FillValue", _NAN) != _NAN:
        packing |= {"_FillValue"}
    if packing:
        raise ValueError(
            f"{kind} {str(path)!r}: {name!r} is packed or masked by its attributes "
            f"({', '.join(sorted(packing))}); write plain numbers"
        )


def _damaged(path: Path, kind: str, reason: object) -> str:
    return f"{kind} {str(path)!r} is damaged or of another format: {reason}"


def _pickled(path: Path, kind: str, names: Iterable[str]) -> str:
    return (
        f"{kind} {str(path)!r} holds Python objects, which are never loaded because they can run "
        f"code, in {', '.join(names)}; write plain arrays of numbers or text"
    )
