"""Tables, text and figures that commands print and write."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pathkernel_core.system.local_files import check_local
from pathkernel_core.system.text import printable

if TYPE_CHECKING:
    from pathkernel_views.chart import Chart
    from pathkernel_views.table import Table

INTERRUPTED = 130  # exit status of a command ended by Ctrl-C
_RECORD = "pathkernel.record"  # in what click's contexts of one run share


@dataclass
class Record:
    """Tables and lines of a command, for ``--json`` and ``--csv``.

    Attributes
    ----------
    silent : bool
        Whether they are only recorded, and not printed as well.
    tables : list of (str, Table)
        Each with its part of the study, or the command.
    lines : list of str
    """

    silent: bool
    tables: list[tuple[str, Table]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def start_record(silent: bool) -> Record:
    """Record the output of the running command from now on."""
    record = click.get_current_context().meta[_RECORD] = Record(silent)
    return record


def current_record() -> Record | None:
    """Record of the running command; None if it only prints."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_RECORD)


def print_views(views: Iterable[Any], part: str = "", *, details: str = "") -> None:
    """Print or record tables and sentences about a part of a study.

    Detail tables are only recorded if ``details`` names the command that prints them. A caption
    that several tables share is printed below the first.
    """
    from pathkernel_views.console import stdout_console
    from pathkernel_views.table import Table

    console, record, omitted, captions = stdout_console(), current_record(), 0, set()
    for view in views:
        if isinstance(view, str):
            say(view, wrap=True)
        elif isinstance(view, Table):
            if record is not None:
                record.tables.append((part, view))
            if view.detail and details:
                omitted += 1
            elif record is None or not record.silent:
                shown = replace(view, caption="") if view.caption in captions else view
                console.print(shown.as_rich(console.width), crop=False)
                captions.add(view.caption)
    if omitted:
        say(f"{omitted} more table{'s' * (omitted > 1)}: {details}")


def say(line: str, *, err: bool = False, wrap: bool = False) -> None:
    """Print text to stdout or stderr without terminal control characters, or record it.

    With ``wrap``, for sentences, lines are as long as those of tables, and later ones indented.
    """
    record = current_record()
    if record is not None and not err:
        record.lines.append(line)
        if record.silent:
            return
    if wrap:
        line = _wrap(line)
    with contextlib.suppress(*(OSError,) if err else ()):
        click.echo(printable(line, keep="\n"), err=err)


def _wrap(text: str) -> str:
    from pathkernel_views.console import has_width, stdout_console

    if not has_width():  # a program reads them, perhaps line by line
        return text
    # what is typed or opened stays whole: names with hyphens, and paths
    wrapper = textwrap.TextWrapper(
        stdout_console().width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(map(wrapper.fill, text.split("\n")))


def make_folder(option: str, folder: Path) -> Path:
    """Make the folder that an option names, and check that files can be written into it.

    Raises
    ------
    click.UsageError
        If they cannot.
    """
    check_local(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise click.UsageError(
            f"{option}: the folder {folder} cannot be written ({error.strerror}); name another one"
        ) from None
    return folder


def figure_folder(folder: Path) -> Path:
    """Folder of the figures in the folder of a study."""
    return folder / "figures"


def write_charts(
    charts: Iterable[Chart], folder: Path, *, required: bool = False, **settings: Any
) -> None:
    """Save charts in a folder; say where, and which were left out and why.

    ``settings`` are those of :func:`pathkernel_views.chart.save_charts`. Unless they are
    ``required``, a failure is only a warning.
    """
    from pathkernel_views.chart import NothingToPlot, save_charts

    try:
        files = save_charts(charts, folder, lambda line: say(line, err=True, wrap=True), **settings)
        if required and not files:
            raise NothingToPlot("nothing is drawn: there is no chart of these parts of the study")
    except Exception as error:
        if required:
            raise
        say(f"Warning: no figures are written ({error}).", err=True, wrap=True)
    else:
        say(f"Figures: {folder.resolve()}")


def leave_interrupted(message: str) -> NoReturn:
    """Say how to resume an interrupted command, and end the process at once.

    Its other threads are not waited for: they would delay the end or report their own. Every file
    is safe at any moment.
    """
    say(f"\nInterrupted. {message}", err=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)
