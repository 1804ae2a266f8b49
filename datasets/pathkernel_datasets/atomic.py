"""Files and folders that come into their places whole or not at all.

A place may be a symbolic link: what it points to is written, which need not be there yet.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""How names of files and folders end that are not in their places yet."""

_OLD = ".old"  # and of what they replace


@contextmanager
def replacing(
    path: str | os.PathLike, *, beside: str | os.PathLike | None = None
) -> Iterator[Path]:
    """Give a file to write, which takes the place of ``path`` at the end.

    It is on the disk before it is moved. If anything is raised, an older file is left as it was.
    What a killed process left of the same is removed: no two may write one file at a time.

    Parameters
    ----------
    path : path
    beside : path, optional
        What the file lies beside until then, on the same disk; by default ``path`` itself.
    """
    path = _real(path)
    near = path if beside is None else _real(beside)
    remove_left_over(near)
    handle, name = tempfile.mkstemp(prefix=f".{near.name}.", suffix=PARTIAL, dir=near.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with open(partial, "rb+") as stream:
            os.fsync(stream.fileno())
        partial.chmod(0o644)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: str | os.PathLike, *, overwrite: bool = True) -> Iterator[Path]:
    """Give a folder to fill beside ``path``, which takes its place at the end.

    Raises
    ------
    FileExistsError
        If it is not to overwrite, and there is one by then.
    """
    path = _real(path)
    remove_left_over(path)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent))
    try:
        yield partial
        partial.chmod(0o755)
        if path.exists():
            if not overwrite:
                raise FileExistsError(f"{path} is there already")
            old = partial.with_name(f"{partial.name}{_OLD}")
            os.rename(path, old)
            try:
                os.rename(partial, path)
            except BaseException:
                os.rename(old, path)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_left_over(path: str | os.PathLike) -> None:
    """Remove what a process that was killed was about to move into the place of ``path``.

    A folder that it had moved out of that place, with nothing there yet, is put back.
    """
    path = _real(path)
    shape = re.compile(rf"\.{re.escape(path.name)}\.\w+{re.escape(PARTIAL)}({re.escape(_OLD)})?")
    for left in sorted(path.parent.glob(".*"), reverse=True):  # what was moved out comes first
        found = shape.fullmatch(left.name)
        if found and found[1] and not path.exists():
            os.rename(left, path)
        elif found and left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif found:
            left.unlink(missing_ok=True)


def link_or_copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Let a file be at another place too, without copying it where the file system knows links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _real(path: str | os.PathLike) -> Path:
    """Where a path leads, through links, those too that lead nowhere yet."""
    return Path(os.path.realpath(path))


def sync() -> None:
    """Wait until all that was written is on the disk: what is written next comes after it."""
    if hasattr(os, "sync"):  # not on Windows
        os.sync()
