"""What a command prints, kept for scripts: see :mod:`pathkernel.tables_command`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathkernel_views.table import Table

_KEY = "pathkernel.kept"  # in what click's contexts of one run share


@dataclass
class Kept:
    """Tables and lines of a command.

    Attributes
    ----------
    silent : bool
        Whether they are kept only, and not printed as well.
    tables : list of (str, Table)
        Each with the part of the store that it is of, or the command.
    lines : list of str
    """

    silent: bool
    tables: list[tuple[str, Table]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def begin(silent: bool) -> Kept:
    """Keep what the command that runs prints from now on."""
    found = click.get_current_context().meta[_KEY] = Kept(silent)
    return found


def kept() -> Kept | None:
    """Where the command that runs keeps what it prints; None if it only prints."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_KEY)
