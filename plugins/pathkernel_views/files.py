"""Protection of existing files: only files of the same kind are replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pathkernel_core.system.errors import PathkernelError


class FileInTheWayError(PathkernelError, FileExistsError):
    """A folder, or a file of another kind, has the name of a file to be written."""


def check_replaceable(file: Path, kind: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raise FileInTheWayError unless a file is missing, empty or, by its content, replaceable."""
    if file.is_dir():
        raise FileInTheWayError(f"{file} is a folder; choose another name for the {kind}")
    if file.exists() and not file.is_file():
        raise FileInTheWayError(f"{file} is a pipe or a device; choose another name for the {kind}")
    content = file.read_bytes() if file.exists() else b""
    if content and not is_ours(content):
        raise FileInTheWayError(
            f"{file} already exists and is not a {kind}; delete it or choose another name"
        )
