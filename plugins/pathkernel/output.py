"""What commands print and write: tables, figures, and the last words of an interrupted one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

INTERRUPTED = 130  # exit status of a command ended by Ctrl-C


def print_views(views: Iterable[Any]) -> None:
    """Print tables and lines of text to stdout."""
    from pathkernel_views.console import stdout_console

    console = stdout_console()
    for view in views:
        if isinstance(view, str):
            click.echo(view)
        else:
            console.print(view)


def figure_folder(store: Path) -> Path:
    """Folder of a store's figures, beside it."""
    return store.with_name(f"{store.stem}-figures")


def write_figures(figures: Mapping[str, Callable[[], Any]], folder: Path) -> None:
    """Write figures into a folder; say where, and which were left out and why."""
    from pathkernel_views import figure_files

    try:
        figure_files.write_figures(figures, folder, lambda line: click.echo(line, err=True))
    except OSError as error:  # what was computed is kept
        click.echo(f"Warning: no figures are written ({error}).", err=True)
    else:
        click.echo(f"Figures: {folder.resolve()}")


def leave_interrupted(message: str) -> NoReturn:
    """Say what an interrupted command leaves, and end the process at once.

    Its other threads are not waited for: a read or a trajectory that goes on would delay the end or
    report its own. Whatever is written is safe at any moment.
    """
    click.echo(f"\nInterrupted. {message}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
