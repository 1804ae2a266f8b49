"""``pathkernel compare STORE``: U of a trained network beside the theory's and the sampled one."""

from __future__ import annotations

from pathlib import Path

import click

from pathkernel_cli.output import stdout_console
from pathkernel_cli.parameters import Numbers, temperature_option


@click.command()
@click.argument("store", metavar="FILE.zarr", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="The trained network.  [default: the file of heads that the study was run with]",
)
@click.option(
    "--width",
    "--widths",
    "widths",
    type=Numbers(float, "N,N,…"),
    help="Widths N to show, among the study's; at most three in figures.  [default: all]",
)
@temperature_option
@click.option("--seed", type=int, help="Seed to show; by default the study's first.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the figures; by default beside the store.",
)
@click.option(
    "--figures/--no-figures", default=True, show_default=True, help="Write figures into a folder."
)
def compare(
    store: Path,
    checkpoint: Path | None,
    widths: tuple[float, ...] | None,
    temperature: float | str,
    seed: int | None,
    out: Path | None,
    figures: bool,
) -> None:
    """Compare a trained network's order parameter with the theory.

    FILE.zarr is a study of that network: pathkernel run one-shot-images --heads
    network.safetensors. At every point of the study, U of the trained values and readout is
    compared with the theory's U, and with the sampled one where draws are there. The result is
    kept in the same Zarr store.
    """
    from pathkernel_datasets.store import open_store
    from pathkernel_training.comparison_store import compare_study
    from pathkernel_training.comparison_tables import Shown, comparison_tables

    study = open_store(store)
    shown = Shown.select(study, widths, temperature, seed)
    comparison = compare_study(store, checkpoint)
    for table in comparison_tables(comparison, shown):
        stdout_console().print(table)
    if figures:
        from pathkernel_training.comparison_figures import save_comparison_figures

        folder = store.with_name(f"{store.stem}-figures") / "comparison" if out is None else out
        save_comparison_figures(
            study, comparison, shown, folder, lambda line: click.echo(line, err=True)
        )
        click.echo(f"Figures: {folder.resolve()}")
    click.echo(f"Results: {store.resolve()}")
