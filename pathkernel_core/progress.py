"""How far long work has come: one description for all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """Where long work stands.

    Attributes
    ----------
    done : int
        Steps finished.
    total : int or None
        Steps in all; None while that is not known.
    doing : str
        What happens now.
    numbers : mapping of str to float
        Numbers to watch by their names, such as a loss; those that are NaN are not known yet.
    """

    done: int
    total: int | None
    doing: str
    numbers: Mapping[str, float] = field(default_factory=dict)


Report = Callable[[Progress], None]
"""What long work is given to tell its progress to."""


def silent(progress: Progress) -> None:
    """Report nothing."""
