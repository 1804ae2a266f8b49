"""``show``, ``plot`` and ``plugins``: look at what was computed and at what is installed."""

from __future__ import annotations

from pathlib import Path

import click

from pathkernel_cli.output import print_table, stdout_console, write_figures
from pathkernel_cli.parameters import temperature_option
from pathkernel_core.hooks import Plugins

_STORE = click.argument("store", metavar="FILE.zarr", type=click.Path(path_type=Path))


@click.command()
@_STORE
@temperature_option
@click.option(
    "--gains", is_flag=True, help="What finite width gains over the infinite-width (GP) limit."
)
def show(store: Path, temperature: float | str, gains: bool) -> None:
    """Print the table of a result store."""
    from pathkernel_datasets.gains import gain_table
    from pathkernel_datasets.store import open_store

    if gains:
        stdout_console().print(gain_table(open_store(store), temperature))
    else:
        print_table(open_store(store), temperature)


@click.command()
@_STORE
@temperature_option
@click.option("--seed", type=int, help="Seed of the heatmaps; by default the first.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the figures; by default beside the store.",
)
def plot(store: Path, temperature: float | str, seed: int | None, out: Path | None) -> None:
    """Draw the figures of a result store, as PNG and SVG."""
    from pathkernel_datasets.store import open_store

    folder = store.with_name(f"{store.stem}-figures") if out is None else out
    write_figures(open_store(store), folder, temperature, seed)
    click.echo(f"Figures: {folder.resolve()}")


@click.command()
@click.pass_obj
def plugins(found: Plugins) -> None:
    """List what is registered, by which distribution, and what failed to load."""
    from rich.console import Console
    from rich.table import Table

    summaries = {
        f"{kind} {thing.name}": getattr(thing, "summary", None) or thing.get_short_help_str(60)
        for kind, table in (
            ("task", found.tasks),
            ("sampler", found.samplers),
            ("analysis", found.analyses),
            ("command", found.commands),
        )
        for thing in table.values()
    }
    table = Table(title="Plugins of pathkernel")
    for column in ("distribution", "plugin", "provides", "summary"):
        table.add_column(column, overflow="fold")
    for entry in found.loaded:
        for provided in entry.provides:
            table.add_row(entry.distribution, entry.name, provided, summaries[provided])
        if entry.error:
            table.add_row(entry.distribution, entry.name, "[red]failed[/red]", entry.error)
    Console().print(table)
