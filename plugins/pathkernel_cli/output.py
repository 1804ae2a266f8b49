"""Tables and figures as the commands print and write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import xarray as xr


def print_table(dataset: xr.Dataset, temperature: float | None = None) -> None:
    """Print the summary of a dataset to stdout."""
    from rich.console import Console

    from pathkernel_datasets.tables import rich_table

    # without a terminal there is no width to fit into, and a cut table helps nobody
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(rich_table(dataset, temperature))


def write_figures(
    dataset: xr.Dataset, folder: Path, temperature: float | None = None, seed: int | None = None
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
