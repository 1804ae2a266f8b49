"""The terminal: tables on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pathkernel_core.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment


def stdout_console() -> Console:
    """Console for tables, in which no name of a file or array can command the terminal."""
    from rich.console import Console

    # without a terminal there is no width to fit into, and a cut table helps nobody
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.push_render_hook(_Guard())
    return console


class _Guard:
    """What rich calls with all that is to be shown."""

    def process_renderables(self, views: list[Any]) -> list[Any]:
        return [_Printable(view) for view in views]


@dataclass(frozen=True)
class _Printable:
    view: Any

    def __rich_console__(self, console: Console, options: Any) -> Iterator[Segment]:
        for segment in console.render(self.view, options):
            text = segment.text if segment.control else printable(segment.text, keep="\n\xa0")
            yield segment._replace(text=text)
