"""The console on which tables are printed."""

from __future__ import annotations

import sys

from rich.console import Console


def stdout_console() -> Console:
    """Return a console for tables, as wide as the terminal."""
    # without a terminal there is no width to fit, and tables must not be cut
    return Console(width=None if sys.stdout.isatty() else 120)
