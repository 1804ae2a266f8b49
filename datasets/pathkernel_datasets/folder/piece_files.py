"""Files of arrays in NumPy's format npz, moved into place whole: each is there and whole, or not.

A zip file has the CRC-32 of everything in it. Texts in the file say what its arrays belong to, so
that one that was left by another study, or renamed, is not taken for another.
"""

from __future__ import annotations

import functools
import io
import math
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.local_files import is_damage, open_regular
from pathkernel_datasets.errors import StudyWarning

SUFFIX = ".npz"
_NAME, _STUDY, _MEMBERS = "file_name", "study", "members"
_MAGIC = 8  # bytes of the magic string and the version
# by version, bytes of the header's length after the magic string, and NumPy's reader of both
_HEADERS = {(1, 0): (2, "read_array_header_1_0"), (2, 0): (4, "read_array_header_2_0")}


def write_arrays(file: Path, arrays: Mapping[str, Any], study: str) -> None:
    """Write arrays of a study by name, text among them; an older file is replaced."""
    members = {**arrays, _NAME: file.name, _STUDY: study, _MEMBERS: sorted(arrays)}
    try:
        _replace(file, members)
    except FileNotFoundError:  # a run that has published its study removed the folder just now
        _replace(file, members)


def _replace(file: Path, arrays: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file, several_writers=True) as partial, open(partial, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_arrays(file: Path, study: str) -> dict[str, np.ndarray] | None:
    """Arrays of a study; None if the file is missing, of another study, or damaged.

    A warning says that it is damaged, or of another study.
    """
    if not os.path.lexists(file):
        return None
    arrays = _arrays(file)
    if fault := _fault(arrays, study):
        warn_of_piece(file, fault)
        return None
    del arrays[_STUDY]
    return arrays


def warn_of_piece(file: Path, fault: str) -> None:
    """Warn of the fault of a file that is as if it were not there."""
    warnings.warn(f"{file} {fault}; a run computes it again", StudyWarning, stacklevel=4)


def file_fault(file: Path, study: str | None) -> str:
    """Fault of a file of arrays of a study, or of any; empty if there is none."""
    return _fault(_arrays(file), study)


def _fault(arrays: Mapping[str, Any], study: str | None) -> str:
    if not arrays:
        return "is damaged"
    return "" if study in (None, str(arrays[_STUDY])) else "is of another study"


def _arrays(file: Path) -> dict[str, Any]:
    """Arrays of a file and its study; empty if it is damaged, renamed, or no plain file."""
    if (stream := open_regular(file)) is None:
        return {}
    with stream:
        content = io.BytesIO(stream.read())
    try:
        with zipfile.ZipFile(content) as archive:
            _check_members(archive, len(content.getbuffer()))
            # read once: of a small file most of the time goes into the headers of its members
            arrays = {
                member.filename.removesuffix(".npy"): _array_of(archive, member)
                for member in archive.infolist()
            }
        # the directory at the end of a zip file has no checksum: it may have lost members
        name, names = str(arrays.pop(_NAME)), arrays.pop(_MEMBERS).tolist()
    except Exception as error:  # whatever the reader of a damaged file raises
        if not is_damage(error):
            raise
        return {}
    return arrays if name == file.name and {*arrays} == {*names, _STUDY} else {}


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
    """Raise a ValueError if members of an archive are packed, or claim to be larger than it is."""
    members = archive.infolist()
    if sum(member.file_size for member in members) > size:
        raise ValueError("its arrays are larger than it is")
    for member in members:
        # packed ones could unpack to any size
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is packed")


def _array_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Array of a member; a ValueError if it has not as many bytes as its header claims."""
    # the checksum is compared before NumPy parses anything: a damaged header may ask for any memory
    content = archive.read(member)
    version = np.lib.format.read_magic(io.BytesIO(content))
    width, reader = _HEADERS[version]
    first = _MAGIC + width + int.from_bytes(content[_MAGIC : _MAGIC + width], "little")
    shape, is_fortran, dtype = _header(content[_MAGIC:first], reader)
    # of nothing there could be any number
    if dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize != len(content) - first:
        raise ValueError(f"{member.filename} is not as large as it claims")
    values = np.frombuffer(content, dtype, offset=first)  # refuses objects
    return values.reshape(shape, order="F" if is_fortran else "C").copy(order="K")


@functools.lru_cache(maxsize=256)  # thousands of pieces have the same few, each compiled as Python
def _header(header: bytes, reader: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether the order is Fortran's, and type of an array, from its header in npy."""
    return getattr(np.lib.format, reader)(io.BytesIO(header))
