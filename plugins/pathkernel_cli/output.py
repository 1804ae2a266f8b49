"""Progress, tables and figures as the commands show and write them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from pathkernel_cli.main import INTERRUPTED

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console
    from rich.progress import Progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Progress on stderr, gone when it is done; silent where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        yield bar


def stdout_console() -> Console:
    """Console for tables."""
    from rich.console import Console

    # without a terminal there is no width to fit into, and a cut table helps nobody
    return Console() if sys.stdout.isatty() else Console(width=120)


def print_table(dataset: xr.Dataset, temperature: float | str = "evidence") -> None:
    """Print the summary of a dataset to stdout."""
    from pathkernel_datasets.tables import rich_table

    stdout_console().print(rich_table(dataset, temperature))


def write_figures(
    dataset: xr.Dataset,
    folder: Path,
    temperature: float | str = "evidence",
    seed: int | None = None,
) -> None:
    """Write every figure that the dataset allows into a folder; say which were left out."""
    from pathkernel_datasets.figures import save_figures

    save_figures(
        dataset,
        folder,
        temperature=temperature,
        seed=seed,
        report=lambda line: click.echo(line, err=True),
    )


def leave_interrupted(message: str) -> NoReturn:
    """Say what an interrupted command leaves, and end the process at once.

    Its other threads are not waited for: a read or a trajectory that goes on would delay the end or
    report its own. Whatever is written is safe at any moment.
    """
    click.echo(f"\nInterrupted. {message}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
