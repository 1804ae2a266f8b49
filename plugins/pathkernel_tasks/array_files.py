"""Named arrays in files that users bring: npz, safetensors and Zarr. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_DAMAGE = (  # what the decoders of a damaged npz file raise
    *(ValueError, OSError, EOFError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


def check_suffix(path: str | Path, kind: str, suffixes: Sequence[str]) -> None:
    """Raise a ValueError unless the path ends in one of the suffixes.

    Parameters
    ----------
    path : str or Path
    kind : str
        What the file is, for the message, such as ``"heads file"``.
    suffixes : sequence of str
        Such as ``".npz"``, in lower case.
    """
    if Path(path).suffix.lower() not in suffixes:
        raise ValueError(f"{kind} {str(path)!r} must end in {' or '.join(suffixes)}")


def content_digest(path: str | Path, kind: str) -> str:
    """SHA-256 of a file's content, or of the names and contents of all files in a folder.

    Raises
    ------
    FileNotFoundError
        If there is neither.
    """
    if not Path(path).is_dir():
        return hashlib.sha256(_content(path, kind)).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(Path(path).rglob("*")):
        if file.is_file():
            name, content = str(file.relative_to(path).as_posix()), file.read_bytes()
            digest.update(f"{len(name)} {name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def read_arrays(path: str | Path, kind: str) -> dict[str, np.ndarray]:
    """All arrays of a file, by name.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` or ``.npz`` file, or a ``.zarr`` folder in format 3.
    kind : str
        What the file is, for messages, such as ``"heads file"``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, holds pickled objects, or a name in it points out of it.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".zarr":
        arrays = _zarr(path, kind)
    elif suffix == ".safetensors":
        arrays = _safetensors(path, kind)
    else:
        arrays = _npz(path, kind)
    return arrays


def check_names(path: str | Path, kind: str, names: Iterable[str]) -> None:
    """Raise a ValueError if a name, taken as a path, leads out of the file that it is in."""
    for name in names:
        if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
            raise ValueError(
                f"{kind} {str(path)!r} holds the name {name!r}, a path that leads out of the file; "
                "do not use files of this origin"
            )


def _content(path: str | Path, kind: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no {kind} {str(path)!r}") from error


def _safetensors(path: str | Path, kind: str) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(_content(path, kind))
    except SafetensorError as error:
        raise ValueError(_damaged(path, kind, error)) from error
    except (KeyError, TypeError, AttributeError) as error:  # bfloat16 and other types that
        raise ValueError(  # NumPy lacks
            f"{kind} {str(path)!r} holds arrays of a type that NumPy lacks ({error}); "
            "write float32 or float64"
        ) from error
    check_names(path, kind, arrays)
    return arrays


def _npz(path: str | Path, kind: str) -> dict[str, np.ndarray]:
    content = _content(path, kind)
    if not content.startswith(b"PK"):  # np.load would take anything else for a pickle
        raise ValueError(_damaged(path, kind, "it is no archive of arrays"))
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            names = archive.files
            arrays = {name: archive[name] for name in names}
    except _DAMAGE as error:
        if "allow_pickle" in str(error):
            raise ValueError(_pickled(path, kind)) from error
        raise ValueError(_damaged(path, kind, error)) from error
    check_names(path, kind, names)
    # members that are no arrays come as bytes
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _zarr(path: str | Path, kind: str) -> dict[str, np.ndarray]:
    folder = Path(path)
    if not folder.exists():
        raise FileNotFoundError(f"there is no {kind} {str(path)!r}")
    if not (folder / "zarr.json").is_file():  # format 2 can hold pickled objects
        raise ValueError(
            f"{kind} {str(path)!r} is no Zarr folder of format 3; write it with "
            "dataset.to_zarr(path, zarr_format=3)"
        )
    for member in folder.rglob("*"):
        if member.is_symlink():
            raise ValueError(
                f"{kind} {str(path)!r} holds the link {member.name!r}, which may lead out of the "
                "folder; copy the file itself"
            )
    import xarray as xr

    try:
        with xr.open_zarr(folder, chunks=None, consolidated=False, zarr_format=3) as dataset:
            arrays = {str(name): variable.values for name, variable in dataset.variables.items()}
    except Exception as error:  # whatever the decoders of a damaged folder raise
        raise ValueError(_damaged(path, kind, error)) from error
    for name, array in arrays.items():
        if array.dtype.kind in "OT":  # text of any length
            if not all(isinstance(value, str) for value in array.flat):
                raise ValueError(_pickled(path, kind))
            arrays[name] = np.array(array.tolist(), dtype=str)
    return arrays


def _damaged(path: str | Path, kind: str, reason: object) -> str:
    return f"{kind} {str(path)!r} is damaged or of another format: {reason}"


def _pickled(path: str | Path, kind: str) -> str:
    return (
        f"{kind} {str(path)!r} holds Python objects, which are never loaded because they can run "
        "code; write plain float arrays"
    )
