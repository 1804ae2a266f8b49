"""``pathkernel correct STORE``: the next order in 1/N at points of a study."""

from __future__ import annotations

from pathlib import Path

import click

from pathkernel_cli.output import progress_bar, stdout_console
from pathkernel_core.hooks import Plugins
from pathkernel_sampling.command import import_extra, point_options, prepare_jax


@click.command()
@point_options
def correct(
    store: Path, widths: tuple[float, ...], temperature: float | None, seed: int | None
) -> None:
    """Compute the next order in 1/N at points of a study.

    Corrects the order parameter and the log evidence of the saddle point, without sampling, and
    keeps the result in the same Zarr store. Widths must be at least as large as the order
    parameter. The time grows at least with the fourth power of the number of paths.
    """
    prepare_jax()
    module = import_extra("pathkernel_sampling.correct")
    from threadpoolctl import threadpool_limits

    plugins = click.get_current_context().find_object(Plugins)
    points = []
    with threadpool_limits(limits=1), progress_bar() as bar:
        line = bar.add_task("starting", total=len(widths))
        for width in widths:
            bar.update(line, description=f"N = {width:g}")
            at = {"width": width, "temperature": temperature, "seed": seed}
            points.append(module.correct_study(store, **at, plugins=plugins))
            bar.advance(line)
    from pathkernel_sampling.sample_tables import corrected_entries_table, correction_table

    console = stdout_console()
    console.print(correction_table(store, points))
    console.print(corrected_entries_table(store, points))
    click.echo(f"Results: {store.resolve()}")
