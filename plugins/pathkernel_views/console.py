"""The terminal: tables on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.segment import Segment

from pathkernel_core.text import printable


class _PrintableConsole(Console):
    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, keep="\n\xa0")
            yield segment._replace(text=text)


def stdout_console() -> Console:
    """Console for tables, in which no name of a file or array can command the terminal."""
    # without a terminal there is no width to fit into, and a cut table helps nobody
    return _PrintableConsole(width=None if sys.stdout.isatty() else 120)
