"""A table whose words are not squeezed into its width, nor its columns into a narrow terminal."""

from __future__ import annotations

import copy

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_LINE = 100  # characters of a line that is still easy to read
_WIDE = 10_000


class CaptionedTable(Table):
    """Title and caption take the terminal's width, and the table at least that of its words.

    Where the terminal is narrower, lines are longer than it: printed with ``crop=False`` they go on
    below, and nothing is lost.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bare = copy.copy(self)
        bare.title = bare.caption = None
        needed = Measurement.get(console, options.update_width(_WIDE), bare).minimum
        words = options.update(width=min(options.max_width, _LINE))
        if self.title:
            yield from console.render(_styled(self.title, "table.title"), words)
        wide = options.update_width(max(options.max_width, needed))
        yield from Table.__rich_console__(bare, console, wide)
        if self.caption:
            yield from console.render(_styled(self.caption, "table.caption"), words)


def _styled(text: str | Text, style: str) -> Text:
    styled = text.copy() if isinstance(text, Text) else Text(text)
    styled.style = styled.style or style
    return styled
