"""A command of every result that plugins provide: compute it, show its tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pathkernel.jax_settings import prepare_jax
from pathkernel.options import StorePath, check_names, figures_option, help_of, options_of
from pathkernel.output import (
    figure_folder,
    leave_interrupted,
    print_views,
    say,
    write_charts,
)
from pathkernel.show_commands import views_of_values
from pathkernel.tables_command import TablesCommand
from pathkernel_core.hooks import Plugins
from pathkernel_core.result import Result


def result_command(result: type[Result]) -> click.Command:
    """Command that computes a result of a study and shows it, with the result's options."""
    parameters: list[click.Parameter] = [
        click.Argument(["store"], metavar="FILE.zarr", type=StorePath()),
        figures_option,
    ]
    check_names(result, parameters)
    options = options_of(result)
    parameters[1:1] = options
    names = {option.name for option in options}
    if "out" not in names:
        parameters.append(
            click.Option(
                ["--out"],
                type=click.Path(path_type=Path),
                help="Folder for the figures; by default next to the store.",
            )
        )

    def callback(store: Path, figures: bool, **values: Any) -> None:
        folder = None if "out" in names else values.pop("out")
        try:
            wanted = result(**values)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        _run(wanted, store, figures, folder)

    return TablesCommand(
        result.command,
        callback=callback,
        params=parameters,
        help=help_of(result),
        short_help=result.summary + ".",
    )


def _run(wanted: Result, store: Path, figures: bool, folder: Path | None) -> None:
    prepare_jax()
    from pathkernel_datasets.progress_bar import showing_progress
    from pathkernel_datasets.stored import compute_result

    plugins = click.get_current_context().find_object(Plugins)
    try:
        with showing_progress() as report:
            study = compute_result(wanted, store, plugins=plugins, report=report)
    except KeyboardInterrupt:
        leave_interrupted(
            f"What is computed for {store} is kept; run the same command again to resume."
        )
    from pathkernel_views.chart import Chart

    views = list(views_of_values(wanted, study))
    print_views(views, wanted.name, details=False)
    if not report.called:
        say("Nothing was left to compute: the result was complete.")
    charts = [view for view in views if isinstance(view, Chart) and not view.detail]
    if figures and charts:
        write_charts(charts, figure_folder(store) / wanted.name if folder is None else folder)
    say(f"Results: {store.resolve()}, group {wanted.name}")
