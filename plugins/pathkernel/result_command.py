"""The command of a result: compute it, print its tables and draw its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pathkernel.jax_settings import prepare_jax
from pathkernel.options import (
    Figures,
    check_names,
    help_of,
    options_of,
    out_option,
    store_argument,
)
from pathkernel.output import (
    figure_folder,
    leave_interrupted,
    make_folder,
    print_views,
    say,
    write_charts,
)
from pathkernel.store_views import views_of_values
from pathkernel.tables_command import TablesCommand
from pathkernel_core.hooks import Plugins
from pathkernel_core.options import declared_options
from pathkernel_core.result import Result


def result_command(result: type[Result]) -> click.Command:
    """Command that computes a result of a study, with the result's options."""
    options = [*options_of(result), *options_of(Figures)]
    if not (has_out := _has_out(result)):
        options.append(out_option)

    def callback(store: Path, figures: bool, **values: Any) -> None:
        folder = None if has_out else values.pop("out")
        try:
            configured = result(**values)
        except (TypeError, ValueError) as error:
            raise click.UsageError(str(error)) from None
        if folder is not None:
            make_folder("--out", folder)
        _run(configured, store, figures, folder)

    return TablesCommand(
        result.command,
        callback=callback,
        params=[store_argument, *options],
        help=help_of(result),
        short_help=result.summary + ".",
    )


def check_result_names(result: type[Result]) -> None:
    """Raise PluginError if an option of a result has the name of one of every result's command."""
    further = ["store"] if _has_out(result) else ["store", *out_option.opts]
    check_names(result.command, result, Figures, further=further)


def _has_out(result: type[Result]) -> bool:
    """Whether a result has an option ``out`` in place of the folder for figures."""
    return "out" in declared_options(result)


def _run(result: Result, store: Path, figures: bool, folder: Path | None) -> None:
    prepare_jax()
    from pathkernel_datasets.progress_bar import showing_progress
    from pathkernel_datasets.run_result import run_result

    plugins = click.get_current_context().find_object(Plugins)
    try:
        with showing_progress() as report:
            study = run_result(result, store, plugins=plugins, report=report)
    except KeyboardInterrupt:
        leave_interrupted(
            f"All that is computed for {store} is saved; run the same command again to resume."
        )
    from pathkernel_views.chart import Chart

    views = list(views_of_values(result, study))
    print_views(views, result.name, details=False)
    if not report.called:
        say("Nothing was left to compute: the result was complete.")
    charts = [view for view in views if isinstance(view, Chart) and not view.detail]
    if figures and charts:
        write_charts(charts, figure_folder(store) / result.name if folder is None else folder)
    say(f"Results: {store.resolve()}, group {result.name}")
