"""Progress of long computations: a bar on a terminal or in a notebook."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from pathkernel_core.system.progress import Progress, Report
from pathkernel_core.system.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


@contextmanager
def supervised(report: Report | None, threads: int | None = 1) -> Iterator[Report]:
    """Limit the threads of the linear algebra; yield the report, by default a progress bar.

    Small matrices gain nothing from threads, and on a busy machine threads wait for one another.
    With None their number stays as it is.
    """
    shown = showing_progress() if report is None else nullcontext(report)
    with threadpool_limits(limits=threads), shown as tell:
        yield tell


@contextmanager
def showing_progress() -> Iterator[ProgressBar]:
    """Show a bar on stderr until the work is done, if stderr is a terminal or a notebook."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    disable = not (console.is_terminal or console.is_jupyter)
    text = TextColumn("{task.description}", markup=False)
    with Bar(*columns, text, console=console, transient=True, disable=disable) as bar:
        yield ProgressBar(bar)


class ProgressBar:
    """Report that updates a bar; ``called`` tells whether there was anything to report."""

    def __init__(self, bar: Bar):
        self.called = False
        self._bar, self._line = bar, bar.add_task("starting", total=None)
        self._last = Progress(0, None, "")

    def __call__(self, progress: Progress) -> None:
        """Show progress."""
        last, self._last = self._last, progress
        steps: dict[str, Any] = {"total": progress.total, "completed": progress.done}
        if (last.total is None) != (progress.total is None) or progress.done < last.done:
            self._bar.reset(self._line, **steps)  # the time left starts afresh
        self._bar.update(self._line, **steps, description=printable(describe(progress)))
        self.called = True


def describe(progress: Progress) -> str:
    """Text of a progress: the current step and its numbers, without NaN."""
    numbers = (
        f"{name} {value:.3g}" for name, value in progress.numbers.items() if not math.isnan(value)
    )
    return ", ".join([progress.doing, *numbers])
