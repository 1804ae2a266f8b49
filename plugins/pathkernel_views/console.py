"""The terminal: tables on stdout, progress on stderr."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pathkernel_core.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar


def stdout_console() -> Console:
    """Console for tables."""
    from rich.console import Console

    # without a terminal there is no width to fit into, and a cut table helps nobody
    return Console() if sys.stdout.isatty() else Console(width=120)


@contextmanager
def showing_progress() -> Iterator[ProgressBar]:
    """A bar on stderr, gone when it is done; silent where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        yield ProgressBar(bar)


class ProgressBar:
    """Shows on a bar what work reports.

    Attributes
    ----------
    called : bool
        Whether anything was reported, that is whether there was anything to do.
    """

    def __init__(self, bar: Bar):
        self._bar, self._line = bar, bar.add_task("starting", total=None)
        self._total: int | None = None
        self.called = False

    def __call__(self, progress: Progress) -> None:
        """Show where the work is."""
        known = {"total": progress.total, "completed": progress.done}
        if not self.called or (self._total is None and progress.total is not None):
            self._bar.reset(self._line, **known)  # the time left is not that of what came before
        self.called, self._total = True, progress.total
        self._bar.update(self._line, **known, description=describe(progress))


def describe(progress: Progress) -> str:
    """Progress in words: what happens now, and the numbers that are known."""
    known = {name: value for name, value in progress.numbers.items() if not math.isnan(value)}
    return ", ".join([progress.doing, *(f"{name} {value:.3g}" for name, value in known.items())])
