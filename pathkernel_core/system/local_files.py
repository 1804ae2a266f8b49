"""Paths and files that users name: local, and neither pipes nor devices, which would never end."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from pathkernel_core.system.errors import NotLocalError

_URL = re.compile(r"[A-Za-z][\w+.-]+:[:/].*")  # a drive of Windows has one letter
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_DAMAGE = (None, errno.EIO, errno.EISDIR, *_NO_FILE)  # of errors without a number: by decoders

IRREGULAR = "no plain file but a pipe, a device, a broken link or a link to a folder"
"""Description of what :func:`irregular_entries` yields."""


def check_local(path: str | os.PathLike) -> None:
    """Raise a NotLocalError if a path is a URL."""
    if _URL.fullmatch(os.fsdecode(path)) and not os.path.lexists(path):
        raise NotLocalError(
            f"{os.fsdecode(path)!r} is a URL, and only local paths are read and written; copy the "
            "file or folder to this machine, and give its path"
        )


def irregular_entries(path: str | os.PathLike) -> Iterator[Path]:
    """Yield all that is no plain file in a folder, or the path itself if it is none and no folder.

    A link to a plain file stands for it. Raises an OSError if a folder cannot be read.
    """
    if not os.path.isdir(path):
        if os.path.lexists(path) and not os.path.isfile(path):
            yield Path(path)
        return
    for folder, folders, names in os.walk(os.fspath(path), onerror=_raise):
        for name in (*folders, *names):
            entry = os.path.join(folder, name)
            if not is_regular(entry):
                yield Path(entry)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # another process removes the folder
        raise error


def is_regular(path: str | os.PathLike) -> bool:
    """Whether a path is a plain file, a link to one, or a folder; raises if it may not be read."""
    try:
        mode = os.stat(path).st_mode
    except PermissionError:
        raise
    except OSError:
        return False
    return stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not os.path.islink(path))


def file_sizes(
    path: str | os.PathLike, onerror: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, int]]:
    """Yield the paths of all plain files of a folder, or its own if it is one, with their bytes.

    What another process removes meanwhile is left out; so are folders that cannot be listed, unless
    ``onerror`` raises the error that it is called with.
    """
    path = os.fspath(path)
    is_folder = os.path.isdir(path)
    for folder, _, names in os.walk(path, onerror=onerror) if is_folder else [("", [], [path])]:
        for name in names:
            file = os.path.join(folder, name)
            try:
                status = os.stat(file)
            except OSError as error:
                if error.errno in _NO_FILE:
                    continue
                raise
            if stat.S_ISREG(status.st_mode):
                yield file, status.st_size


def regular_files(path: str | os.PathLike, kind: str) -> list[Path]:
    """List the file, or all files of a folder, sorted. A link to a file stands for that file.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    ValueError
        If it is a URL, or a pipe, a device, a broken link or a link to another folder is among the
        files.
    """
    check_local(path)
    path = Path(path)
    for entry in irregular_entries(path):
        raise ValueError(
            f"{kind} {str(path)!r} cannot be read: {str(entry)!r} is {IRREGULAR}; copy its content "
            "there"
        )
    if not path.exists():
        raise FileNotFoundError(f"there is no {kind} {str(path)!r}")
    if not path.is_dir():
        return [path]
    return sorted(Path(folder, name) for folder, _, names in os.walk(path) for name in names)


def open_regular(path: str | os.PathLike) -> BufferedReader | None:
    """Open a plain file to read; None if there is none, but a pipe or a device, for example.

    Raises an OSError if there is one that cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        return open(path, "rb")
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """JSON object of a plain file; empty if there is none, or it is damaged."""
    if (stream := open_regular(path)) is not None:
        with stream, suppress(ValueError, RecursionError):
            content = json.loads(stream.read())
            return content if isinstance(content, dict) else {}
    return {}


def is_damage(error: Exception) -> bool:
    """Whether an error in reading a file is a fault of its content.

    Others are a missing permission or package, or a lack of memory or of open files.
    """
    if isinstance(error, OSError):
        return error.errno in _DAMAGE
    return not isinstance(error, (ImportError, MemoryError))
