"""``pathkernel run TASK``: compute a study into a store, with a table and figures."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pathkernel.command_groups import SuggestingGroup
from pathkernel.jax_settings import prepare_jax
from pathkernel.options import Part, StorePath, figures_option, help_of, options_of
from pathkernel.output import (
    figure_folder,
    leave_interrupted,
    print_views,
    say,
    write_charts,
)
from pathkernel.study_file import SUFFIX, StudyFileError, defaults_of, read_study
from pathkernel.tables_command import OPTIONS, TablesCommand
from pathkernel_core.hooks import Plugins, UnknownNameError
from pathkernel_core.options import takes_several
from pathkernel_core.task import Task
from pathkernel_datasets.study import SETTINGS, Study


class TaskGroup(SuggestingGroup):
    """A command for every task of the plugins, and for every study file."""

    kind = "task"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the tasks."""
        return sorted(_plugins(ctx).tasks)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Command that runs a task with its options, or the study of a file."""
        if name.endswith(SUFFIX):
            return _file_command(Path(name), _plugins(ctx))
        task = _plugins(ctx).tasks.get(name)
        return None if task is None else task_command(task)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of tasks, or else files."""
        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, type="file")]


def _plugins(ctx: click.Context) -> Plugins:
    return ctx.find_object(Plugins) or Plugins()


@click.group(cls=TaskGroup, name="run", subcommand_metavar="TASK|FILE.toml [OPTIONS]")
def run() -> None:
    """Compute a task's predictions into a labelled dataset.

    FILE.toml holds a task and its options (docs/scripts.md); options on the command line override
    them.

    Runs the theory over a grid of widths, temperatures and seeds, prints a table and writes a Zarr
    store and figures. The same command, run again, resumes an interrupted run.
    """


def _file_command(path: Path, plugins: Plugins) -> click.Command:
    """Command of a task whose options have the values of a study file as defaults."""
    name, content = read_study(path)
    try:
        task = plugins.task(name)
    except UnknownNameError as error:
        raise StudyFileError(f"{path}: {error}") from None
    command = task_command(task)
    names = {entry.name for entry in dataclasses.fields(task)}
    options = [option for option in command.params if option.name in names]
    settings = [option for option in command.params if option.name not in {*names, *OPTIONS}]
    command.context_settings["default_map"] = defaults_of(path, content, settings, options)
    return command


_MOST_WORKERS = 1024  # processes, or threads of each
_RUNNING = (
    click.Option(
        ["--out"], type=StorePath(), help="Zarr store to make or to resume.  [default: TASK.zarr]"
    ),
    figures_option,
    click.Option(
        ["--threads"],
        type=click.IntRange(1, _MOST_WORKERS),
        default=1,
        show_default=True,
        help="Threads of every worker for linear algebra on the CPU.",
    ),
    click.Option(
        ["--jobs"],
        type=click.IntRange(1, _MOST_WORKERS),
        default=1,
        show_default=True,
        help="Number of worker processes on this machine.",
    ),
    click.Option(
        ["--scheduler"],
        metavar="ADDRESS",
        help="Dask scheduler whose workers compute, tcp://HOST:PORT.",
    ),
    click.Option(
        ["--part"],
        type=Part(),
        help="Part of the study to compute, such as 1/3, while other processes that share the disk "
        "compute the other parts.  [default: all]",
    ),
)


def task_command(task: type[Task]) -> click.Command:
    """Command that runs a task, with the options of the task, of the grid and of computing.

    Raises
    ------
    PluginError
        If two options have the same name.
    """
    defaults = {name: getattr(task, name) for name in ("widths", "temperatures", "variances")}
    grid = options_of(Study, several=True, defaults=defaults)
    options = options_of(task, several=True)
    several = [
        *SETTINGS,
        *(entry.name for entry in dataclasses.fields(task) if takes_several(entry)),
    ]

    def callback(**values: Any) -> None:
        sweep = {name: values[name] for name in several if isinstance(values[name], tuple)}
        values |= {name: several_values[0] for name, several_values in sweep.items()}
        of_task, settings = (
            {str(option.name): values.pop(str(option.name)) for option in part}
            for part in (options, grid)
        )
        settings |= dict.fromkeys(sweep.keys() & settings.keys())
        _run_study(Study(task(**of_task), sweep=sweep, **settings), **values)

    return TablesCommand(
        task.name,
        callback=callback,
        sections={f"Options of {task.name}": options, "Grid": grid, "Computing": _RUNNING},
        help=help_of(task, summarised=True),
    )


def _run_study(
    study: Study,
    out: Path | None,
    figures: bool,
    threads: int,
    jobs: int,
    scheduler: str | None,
    part: tuple[int, int] | None,
) -> None:
    if study.backend == "jax":
        prepare_jax(threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # or OpenMP takes all cores
    from pathkernel_datasets.pieces import pieces_folder
    from pathkernel_datasets.workers import workers

    out = Path(f"{study.task.name}.zarr") if out is None else out
    plugins = click.get_current_context().find_object(Plugins)
    try:
        with workers(jobs, scheduler) as executor:  # which import while this process does
            from pathkernel_datasets.progress_bar import showing_progress
            from pathkernel_datasets.sweep import run_study

            with showing_progress() as report:
                dataset = run_study(
                    study,
                    out,
                    analyses=plugins.analyses.values(),
                    executor=executor,
                    part=part,
                    threads=threads,
                    report=report,
                )
    except KeyboardInterrupt:
        is_begun = out.exists() or pieces_folder(out).exists()
        saved = (
            f"All that is computed for {out} is saved" if is_begun else "Nothing is computed yet"
        )
        leave_interrupted(f"{saved}; run the same command again to resume.")
    if part is not None:
        status = dataset["status"]
        say(
            f"Part {part[0]} of {part[1]} is computed; of all {status.size} grid points, "
            f"{int((status != 0).sum())} are. Table and figures: pathkernel show {out}, and plot"
        )
        return
    from pathkernel_views.study_tables import study_summary
    from pathkernel_views.study_views import still_charts

    print_views(study_summary(dataset), "study")
    if not report.called:
        say("Nothing was left to compute: the store was complete.")
    if failed := int((dataset["status"] > 1).sum()):
        say(
            f"Warning: {failed} grid points are not minimised to the tolerance; see the variables "
            "status and gradient_norm (docs/data.md).",
            err=True,
        )
    if figures:
        write_charts(still_charts(dataset), figure_folder(out))
    say(f"Results: {out.resolve()}")
