"""How much memory there is, and whether what is asked for fits into it, before it is made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pathkernel_datasets.errors import TooLargeError

_FALLBACK = 8 * 2**30  # bytes, where the system does not tell its memory
_UNLIMITED = 2**60  # control groups write a number as large where there is no limit
_PROCESS, _CONTROL_GROUPS = Path("/proc/self"), Path("/sys/fs/cgroup")


def memory_bound() -> int:
    """Bytes that data may take: half of the machine's or container's memory.

    8 GiB where the system does not tell its memory.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = 0
    known = [size for size in (memory, *_container_limits()) if 0 < size < _UNLIMITED]
    return min(known) // 2 if known else _FALLBACK


def check_memory(what: str, size: float, remedy: str) -> None:
    """Check that something fits into memory.

    Raises
    ------
    TooLargeError
        If its bytes are more than :func:`memory_bound`.
    """
    if size > (bound := memory_bound()):
        raise TooLargeError(
            f"{what} would take {bytes_in_words(size)} of memory, more than the half of what there "
            f"is, {bytes_in_words(bound)}; {remedy}"
        )


def bytes_in_words(size: float) -> str:
    """A number of bytes as a reader would write it, such as ``"7.5 MB"``."""
    unit = next(unit for unit in (1e12, 1e9, 1e6, 1e3, 1.0) if size >= unit or unit == 1.0)
    name = {1e12: "TB", 1e9: "GB", 1e6: "MB", 1e3: "kB", 1.0: "bytes"}[unit]
    return f"{size / unit:.0f} {name}" if size >= 100 * unit else f"{size / unit:.2g} {name}"


def _container_limits() -> Iterator[int]:
    """Limits of memory of the control groups that the process is in, of version 1 or 2."""
    try:
        lines = (_PROCESS / "cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        base, name = {
            "": (_CONTROL_GROUPS, "memory.max"),
            "memory": (_CONTROL_GROUPS / "memory", "memory.limit_in_bytes"),
        }.get(controllers, (None, ""))
        if base is None:
            continue
        group = base / place.lstrip("/")
        # within a container the group may be mounted as the root, whatever it is called outside
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # not there, or no limit: "max"
                yield int((folder / name).read_text())
            if folder == base:
                break
