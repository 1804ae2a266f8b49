"""The terminal: tables on stdout."""

from __future__ import annotations

import sys

from rich.console import Console


def stdout_console() -> Console:
    """Console for tables: as wide as the terminal."""
    # without a terminal there is no width to fit into, and a cut table helps nobody
    return Console(width=None if sys.stdout.isatty() else 120)
