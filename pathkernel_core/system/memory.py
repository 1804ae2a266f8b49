"""Memory of the machine, and a check that an array fits into it before it is made."""

from __future__ import annotations

import os

from pathkernel_core.system.errors import TooLargeError

CLAIM_RATIO = 1000
"""Bytes in memory that a byte of a file may claim."""

_SMALL_CLAIM = 2**28  # bytes that any file may claim
_FALLBACK = 8 * 2**30  # bytes, where the system does not tell its memory


def memory_bound() -> int:
    """Bytes that data may take: half of the machine's memory.

    8 GiB where the system does not tell its memory.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = 0
    return memory // 2 if memory > 0 else _FALLBACK


def claim_bound(stored: float) -> float:
    """Bytes that files may claim before they are read: 256 MiB, or a thousand times their own."""
    return max(_SMALL_CLAIM, CLAIM_RATIO * stored)


def check_memory(title: str, size: float, remedy: str) -> None:
    """Check that data of some bytes fit into memory.

    Raises
    ------
    TooLargeError
        If its bytes are more than :func:`memory_bound`.
    """
    if size > (bound := memory_bound()):
        raise TooLargeError(
            f"{title} would take {bytes_in_words(size)} of memory, more than half of "
            f"the machine's, {bytes_in_words(bound)}; {remedy}"
        )


def bytes_in_words(size: float) -> str:
    """A number of bytes as a reader would write it, such as ``"7.5 MB"``."""
    unit = next(unit for unit in (1e12, 1e9, 1e6, 1e3, 1.0) if size >= unit or unit == 1.0)
    name = {1e12: "TB", 1e9: "GB", 1e6: "MB", 1e3: "kB", 1.0: "bytes"}[unit]
    return f"{size / unit:.0f} {name}" if size >= 100 * unit else f"{size / unit:.2g} {name}"
