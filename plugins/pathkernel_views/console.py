"""The terminal: tables on stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def stdout_console() -> Console:
    """Console for tables."""
    from rich.console import Console

    # without a terminal there is no width to fit into, and a cut table helps nobody
    return Console() if sys.stdout.isatty() else Console(width=120)
