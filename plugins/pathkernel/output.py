"""What commands print and write: tables, figures, and the last words of an interrupted one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pathkernel.kept import kept
from pathkernel_core.text import printable

if TYPE_CHECKING:
    from pathkernel_views.chart import Chart

INTERRUPTED = 130  # exit status of a command ended by Ctrl-C


def print_views(views: Iterable[Any], part: str = "", *, details: bool = True) -> None:
    """Print tables and sentences about a part of a store to stdout, or keep them for scripts.

    Without ``details`` tables of details are kept only, and a line names them.
    """
    from pathkernel_views.console import stdout_console
    from pathkernel_views.table import Table

    console, record, more = stdout_console(), kept(), []
    for view in views:
        if isinstance(view, str):
            say(view)
        elif isinstance(view, Table):
            if record is not None:
                record.tables.append((part, view))
            if view.detail and not details:
                more.append(view.title)
            elif record is None or not record.silent:
                console.print(view.as_rich(console.width), crop=False)
    if more:
        say(f"More tables with --all: {'; '.join(dict.fromkeys(more))}")


def say(line: str, *, err: bool = False) -> None:
    """Print text to stdout or stderr, in which nothing can command the terminal, or keep it."""
    record = kept()
    if record is not None and not err:
        record.lines.append(line)
        if record.silent:
            return
    with contextlib.suppress(*(OSError,) if err else ()):
        click.echo(printable(line, keep="\n"), err=err)


def figure_folder(store: Path) -> Path:
    """Folder of a store's figures, beside it."""
    return store.with_name(f"{store.stem}-figures")


def write_charts(
    charts: Iterable[Chart], folder: Path, *, asked_for: bool = False, **settings: Any
) -> None:
    """Save charts in a folder; say where, and which were left out and why.

    ``settings`` are those of :func:`pathkernel_views.chart.save`.

    Raises
    ------
    Exception
        If none can be drawn and they are what was asked for; else what was computed is kept, and a
        warning says why they are missing.
    """
    from pathkernel_views.chart import NothingToPlot, save

    try:
        if not save(charts, folder, lambda line: say(line, err=True), **settings) and asked_for:
            raise NothingToPlot("nothing is drawn: there is no chart of these parts of the store")
    except Exception as error:
        if asked_for:
            raise
        say(f"Warning: no figures are written ({error}).", err=True)
    else:
        say(f"Figures: {folder.resolve()}")


def leave_interrupted(message: str) -> NoReturn:
    """Say what an interrupted command leaves, and end the process at once.

    Its other threads are not waited for: a read or a trajectory that goes on would delay the end or
    report its own. Whatever is written is safe at any moment.
    """
    say(f"\nInterrupted. {message}", err=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)
