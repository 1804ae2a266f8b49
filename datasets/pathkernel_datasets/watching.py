"""Long work for those who look on: a bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import html
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from pathkernel_core.progress import Progress, Report

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_LINE_EVERY = 60.0  # seconds between lines where there is no bar
_LONG = 120.0  # seconds from which on work says what it will take,
_JUDGED_AFTER = 5.0  # once so many have passed
_UPDATE_EVERY = 0.2  # seconds between updates of a notebook, which redraws for each


@contextmanager
def supervised(report: Report | None, threads: int | None = 1) -> Iterator[Report]:
    """Limit the threads of the linear algebra, and show progress unless there is a report.

    Small matrices gain nothing by threads, and on a busy machine threads wait for one another.

    Parameters
    ----------
    report : callable, optional
        By default a bar, see :func:`showing_progress`.
    threads : int, optional
        None leaves their number as it is.
    """
    shown = showing_progress() if report is None else nullcontext(report)
    with threadpool_limits(limits=threads), shown as tell:
        yield tell


@contextmanager
def showing_progress() -> Iterator[Watch]:
    """A bar, gone from a terminal when it is done; without either, a line on stderr a minute."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if console.is_jupyter:
        yield Notebook(sys.modules["IPython"].display.display)
    elif not console.is_terminal:
        yield Lines()
    else:
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        text = TextColumn("{task.description}")
        with Bar(*columns, text, console=console, transient=True) as bar:
            yield ProgressBar(bar)


class Watch:
    """Shows what work reports, and once in words what it will take, if that is minutes.

    Attributes
    ----------
    called : bool
        Whether anything was reported, that is whether there was anything to do.
    """

    called = False
    _told = False
    _last = Progress(0, None, "")
    _first, _since = 0, math.nan

    def __call__(self, progress: Progress) -> None:
        """Show where the work is."""
        last, self._last = self._last, progress
        other = (last.total is None) != (progress.total is None) or progress.done < last.done
        if not self.called or other:  # the time left is not that of what came before
            self._first, self._since, self._told = progress.done, math.nan, False
        elif math.isnan(self._since) and progress.done > self._first:
            # from here on, because the first step waits for what is read or compiled once
            self._first, self._since = progress.done, time.monotonic()
        self.show(progress, not self.called or other)
        self.called = True
        left = self._seconds_left()
        if not self._told and left >= _LONG:
            self._told = True
            self.say(f"{progress.total} steps, about {_in_words(left)} to go")

    def show(self, progress: Progress, begins: bool) -> None:
        """Show where the work is, and that it begins."""
        raise NotImplementedError

    def say(self, line: str) -> None:
        """Show a line that stays."""
        print(line, file=sys.stderr, flush=True)

    def _seconds_left(self) -> float:
        """By the time of the steps after the first, and until they tell something, as expected."""
        done, passed = self._last.done - self._first, time.monotonic() - self._since
        if self._last.total is None or done < 1 or not passed >= _JUDGED_AFTER:
            return self._last.expected
        return passed * (self._last.total - self._last.done) / done


class ProgressBar(Watch):
    """On a bar of a terminal."""

    def __init__(self, bar: Bar):
        self._bar, self._line = bar, bar.add_task("starting", total=None)

    def show(self, progress: Progress, begins: bool) -> None:
        """Show where the work is."""
        known: dict[str, Any] = {"total": progress.total, "completed": progress.done}
        if begins:
            self._bar.reset(self._line, **known)
        self._bar.update(self._line, **known, description=describe(progress))

    def say(self, line: str) -> None:
        """Show a line above the bar."""
        self._bar.console.print(line)


class Notebook(Watch):
    """On a bar of a notebook's page."""

    def __init__(self, display: Callable[..., Any]):
        self._display, self._handle, self._updated = display, None, -math.inf

    def show(self, progress: Progress, begins: bool) -> None:
        """Show where the work is."""
        now, over = time.monotonic(), progress.done == progress.total
        if now - self._updated < _UPDATE_EVERY and not over:
            return
        self._updated = now
        bar = "<progress></progress>"
        if progress.total is not None:
            bar = f'<progress value="{progress.done}" max="{progress.total}"></progress> '
            bar += f"{progress.done}/{progress.total}"
        page = {"text/html": f"{bar} {html.escape(describe(progress))}"}
        if self._handle is None:
            self._handle = self._display(page, raw=True, display_id=True)
        else:
            self._handle.update(page, raw=True)


class Lines(Watch):
    """In a line on stderr, the first of them after a minute."""

    def __init__(self) -> None:
        self._start = self._written = time.monotonic()

    def show(self, progress: Progress, begins: bool) -> None:
        """Show where the work is."""
        now = time.monotonic()
        if now - self._written < _LINE_EVERY:
            return
        self._written = now
        of = "" if progress.total is None else f"{progress.done} of {progress.total}, "
        self.say(f"{(now - self._start) / 60:.0f} min: {of}{describe(progress)}")


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def describe(progress: Progress) -> str:
    """Progress in words: what happens now, and the numbers that are known."""
    known = {name: value for name, value in progress.numbers.items() if not math.isnan(value)}
    return ", ".join([progress.doing, *(f"{name} {value:.3g}" for name, value in known.items())])
