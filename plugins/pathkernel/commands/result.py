"""The command of a result: compute it, print its tables and draw its figures."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from pathkernel.commands.options import (
    Figures,
    all_option,
    check_names,
    folder_argument,
    help_of,
    options_of,
    out_option,
)
from pathkernel.commands.output import (
    figure_folder,
    leave_interrupted,
    make_folder,
    print_views,
    say,
    write_charts,
)
from pathkernel.commands.selected_parts import views_of_values
from pathkernel.commands.tables import TablesCommand
from pathkernel.jax_settings import prepare_jax
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.options import declared_options
from pathkernel_core.contracts.result import Result


def result_command(result: type[Result]) -> click.Command:
    """Command that computes a result of a study, with the result's options."""
    options = [*options_of(result), *options_of(Figures), all_option]
    if not (has_out := _has_out(result)):
        options.append(out_option)

    def callback(folder: Path, figures: bool, details: bool, **values: Any) -> None:
        out = None if has_out else values.pop("out")
        try:
            configured = result(**values)
        except (TypeError, ValueError) as error:
            raise click.UsageError(str(error)) from None
        if out is not None:
            make_folder("--out", out)
        _run(configured, folder, figures, out, details)

    return TablesCommand(
        result.command,
        callback=callback,
        params=[folder_argument, *options],
        help=help_of(result),
        short_help=result.summary + ".",
    )


def check_result_names(result: type[Result]) -> None:
    """Raise PluginError if an option of a result has the name of one of every result's command."""
    further = ["folder", all_option.name, *all_option.opts]
    further += [] if _has_out(result) else out_option.opts
    check_names(result.command, result, Figures, further=further)


def _has_out(result: type[Result]) -> bool:
    """Whether a result has an option ``out`` in place of the folder for figures."""
    return "out" in declared_options(result)


def _run(result: Result, folder: Path, figures: bool, out: Path | None, details: bool) -> None:
    prepare_jax()
    from pathkernel_datasets.results.run_result import run_result
    from pathkernel_datasets.run.progress_bar import showing_progress

    plugins = click.get_current_context().find_object(Plugins)
    try:
        with showing_progress() as report:
            study = run_result(result, folder, plugins=plugins, report=report)
    except KeyboardInterrupt:
        leave_interrupted(
            f"All that is computed for {folder} is saved; run the same command again to resume."
        )
    from pathkernel_views.chart import Chart

    views = list(views_of_values(result, study))
    command = shlex.join(["pathkernel", "show", str(folder), "--only", result.name, "--all"])
    print_views(views, result.name, details="" if details else command)
    if not report.called:
        say("Nothing was left to compute: the result was complete.")
    charts = [view for view in views if isinstance(view, Chart) and not view.detail]
    if figures and charts:
        write_charts(charts, figure_folder(folder) / result.name if out is None else out)
    file, path = f"{result.name}.zarr", folder.resolve()
    is_single = result.of_all_values or "sweep" not in study.identity
    say(f"Results: {path / file if is_single else f'{path}, {file} in the folder of each value'}")
