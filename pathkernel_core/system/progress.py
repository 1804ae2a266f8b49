"""Progress of long computations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """Progress of a long computation.

    Attributes
    ----------
    done : int
        Steps finished.
    total : int or None
        Steps in all, or None if unknown.
    doing : str
        Present activity.
    numbers : mapping of str to float
        Numbers to watch, such as a loss; NaN while unknown.
    """

    done: int
    total: int | None
    doing: str
    numbers: Mapping[str, float] = field(default_factory=dict)


Report = Callable[[Progress], None]
"""Receiver of a computation's progress."""


def silent(progress: Progress) -> None:
    """Report nothing."""
