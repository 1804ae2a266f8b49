"""The console on which tables are printed."""

from __future__ import annotations

import os
import sys

from rich.console import Console


def stdout_console() -> Console:
    """Return a console for tables, as wide as the terminal, or as the variable COLUMNS says."""
    # without either there is no width to fit, and tables must not be cut
    return Console(width=None if has_width() else 120)


def has_width() -> bool:
    """Whether a width is known, to which lines are wrapped."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ
