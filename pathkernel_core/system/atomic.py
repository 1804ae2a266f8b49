"""Files and folders that are moved into place whole; links are followed."""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pathkernel_core.system.local_files import check_local

PARTIAL = ".partial"
"""Ending of the names of files and folders that are still being written."""

_OLD = ".old"  # of a folder that is being replaced
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


@contextmanager
def replace_file(path: str | os.PathLike, *, several_writers: bool = False) -> Iterator[Path]:
    """Give a file to write, which replaces ``path`` at the end, or nothing if an error is raised.

    Parameters
    ----------
    path : path
    several_writers : bool
        Other processes may write the same file at the same time. Otherwise the leftovers of a
        killed process are removed first.
    """
    check_local(path)
    path = Path(os.path.realpath(path))
    if os.path.lexists(path) and not path.is_file():
        raise FileExistsError(f"{path} is no plain file, and is left as it is; choose another name")
    if not several_writers:
        remove_leftovers(path)
    partial = _partial(path)
    partial.touch(exist_ok=False)  # with the permissions of the user's umask
    try:
        yield partial
        # or a crash of the machine could leave the new name with none of the new content
        with open(partial, "rb+") as stream:
            os.fsync(stream.fileno())
        if path.exists():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Give a folder to fill, which replaces ``path`` at the end, or nothing if an error is raised.

    On Linux the path always holds the old folder or the new one. Systems and file systems that
    cannot exchange two folders in one step need two renames; a process that is killed between them
    leaves the old folder aside, and :func:`remove_leftovers` puts it back.
    """
    check_local(path)
    path = Path(os.path.realpath(path))
    remove_leftovers(path)
    partial = _partial(path)
    partial.mkdir()  # with the permissions of the user's umask
    try:
        yield partial
        if path.exists():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        if hasattr(os, "sync"):  # not on Windows
            os.sync()
        if not path.exists():
            os.rename(partial, path)
        elif not _exchange(partial, path):
            old = partial.with_name(f"{partial.name}{_OLD}")
            os.rename(path, old)
            try:
                os.rename(partial, path)
            except BaseException:
                os.rename(old, path)
                raise
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder in one step for all who look for it, whatever becomes of its content."""
    aside = _partial(path)
    with suppress(FileNotFoundError):
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _partial(path: Path) -> Path:
    """New name, hidden beside a path."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{PARTIAL}")


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:  # a C library without it
        return False
    names = (os.fsencode(first), os.fsencode(second))
    return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


def remove_leftovers(path: str | os.PathLike) -> None:
    """Remove files and folders that a killed process was about to move to ``path``.

    A folder that it had moved away from there, with no other in its place yet, is put back.
    """
    path = Path(os.path.realpath(path))
    leftovers = [entry for entry in path.parent.glob(".*") if is_leftover(entry, path)]
    for entry in sorted(leftovers, reverse=True):  # old folders first: longer names
        if entry.name.endswith(_OLD) and not path.exists():
            os.rename(entry, path)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def is_leftover(entry: Path, path: Path | None = None) -> bool:
    """Whether a file or folder has the name of one that was to be moved to a path, or to any."""
    name = ".+" if path is None else re.escape(path.name)
    return bool(re.fullmatch(rf"\.{name}\.\w+{re.escape(PARTIAL)}({re.escape(_OLD)})?", entry.name))
