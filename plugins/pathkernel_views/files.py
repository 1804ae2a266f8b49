"""Files in the way: only what the same command wrote is replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pathkernel_core.errors import PathkernelError


class FileInTheWayError(PathkernelError, FileExistsError):
    """Another file, or a folder, has the name of one to be written."""


def check_replaceable(file: Path, kind: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raise FileInTheWayError unless a file is missing, empty or, by its content, of that kind."""
    if file.is_dir():
        raise FileInTheWayError(f"{file} is a folder; choose another name for the {kind}")
    content = file.read_bytes() if file.exists() else b""
    if content and not is_ours(content):
        raise FileInTheWayError(
            f"{file} is there already and is no {kind}; delete it, or choose another place"
        )
