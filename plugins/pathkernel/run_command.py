"""``pathkernel run TASK``: compute a study into a store, with a table and figures."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from pathkernel.groups import SuggestingGroup
from pathkernel.jax_settings import prepare_jax
from pathkernel.options import Part, StorePath, check_names, figures_option, help_of, options_of
from pathkernel.output import (
    figure_folder,
    leave_interrupted,
    print_views,
    say,
    write_charts,
)
from pathkernel.study_file import SUFFIX, StudyFileError, defaults_of, read_toml, task_named
from pathkernel.tables_command import OPTIONS, TablesCommand
from pathkernel_core.hooks import Plugins, UnknownNameError
from pathkernel_core.options import takes_several
from pathkernel_core.task import Task
from pathkernel_datasets.study import Study

if TYPE_CHECKING:
    import xarray as xr


class TaskGroup(SuggestingGroup):
    """One sub-command per task that the plugins provide."""

    kind = "task"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the tasks."""
        return sorted(self._tasks(ctx))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Command that runs a task, with the task's options; or the study of a file."""
        if name.endswith(SUFFIX):
            return _file_command(Path(name), ctx.find_object(Plugins) or Plugins())
        task = self._tasks(ctx).get(name)
        return None if task is None else _task_command(task)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of tasks, or else files."""
        found = super().shell_complete(ctx, incomplete)
        return found or [CompletionItem(incomplete, type="file")]

    def _tasks(self, ctx: click.Context) -> dict[str, type[Task]]:
        plugins = ctx.find_object(Plugins)
        return {} if plugins is None else plugins.tasks


@click.group(cls=TaskGroup, name="run", subcommand_metavar="TASK|FILE.toml [OPTIONS]")
def run() -> None:
    """Compute a task's predictions into a labelled dataset.

    FILE.toml holds a task and its options (docs/scripts.md); options that are given beside it count
    more than its own.

    Runs the theory over a grid of widths, temperatures and seeds, prints a table and writes a Zarr
    store and figures. The same command, given again, resumes an interrupted run.
    """


def _file_command(path: Path, plugins: Plugins) -> click.Command:
    """Command of a task whose options have the values of a study file as defaults."""
    content = read_toml(path)
    try:
        task = plugins.task(task_named(path, content))
    except UnknownNameError as error:
        raise StudyFileError(f"{path}: {error}") from None
    command = _task_command(task)
    names = {entry.name for entry in dataclasses.fields(task)}
    options = [option for option in command.params if option.name in names]
    settings = [option for option in command.params if option.name not in {*names, *OPTIONS}]
    command.context_settings["default_map"] = defaults_of(path, content, settings, options)
    return command


_RUNNING = (
    click.Option(
        ["--out"], type=StorePath(), help="Zarr store to make or to resume.  [default: TASK.zarr]"
    ),
    figures_option,
    click.Option(
        ["--threads"],
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Threads of the linear algebra on the CPU, of every worker.",
    ),
    click.Option(
        ["--jobs"],
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Processes of this machine to compute with.",
    ),
    click.Option(
        ["--scheduler"],
        metavar="ADDRESS",
        help="Compute with the workers of a Dask scheduler, tcp://HOST:PORT.",
    ),
    click.Option(
        ["--part"],
        type=Part(),
        help="Compute one part only, such as 1/3, as do other processes that share the disk.",
    ),
)


def check_task_names(task: type[Task]) -> None:
    """Check that no option of a task is called as one of ``run``; raises a PluginError."""
    check_names(task, [*options_of(Study), *_RUNNING])


def _task_command(task: type[Task]) -> click.Command:
    defaults = {name: getattr(task, name) for name in ("widths", "temperatures", "variances")}
    grid, options = options_of(Study, defaults=defaults), options_of(task, several=True)
    several = [entry.name for entry in dataclasses.fields(task) if takes_several(entry)]

    def callback(**values: Any) -> None:
        own = {str(option.name): values.pop(str(option.name)) for option in options}
        sweep = {name: own[name] for name in several if isinstance(own[name], tuple)}
        settings = {str(option.name): values.pop(str(option.name)) for option in grid}
        first = {name: several_values[0] for name, several_values in sweep.items()}
        _run_study(Study(task(**own | first), sweep=sweep, **settings), **values)

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
        kept = (
            f"What is computed for {out} is kept; run"
            if out.exists() or pieces_folder(out).exists()
            else "Nothing was computed yet; run"
        )
        leave_interrupted(f"{kept} the same command again to resume.")
    if part is not None:
        status = dataset["status"]
        say(
            f"Part {part[0]} of {part[1]} is computed; of all {status.size} grid points, "
            f"{int((status != 0).sum())} are. Table and figures: pathkernel show {out}, and plot"
        )
        return
    _finish(out, dataset, report.called, figures)


def _finish(out: Path, dataset: xr.Dataset, computed: bool, figures: bool) -> None:
    from pathkernel_views.study_tables import study_summary
    from pathkernel_views.study_views import still_charts

    print_views(study_summary(dataset), "study")
    if not computed:
        say("Nothing was left to compute: the store was complete.")
    failed = int((dataset["status"] > 1).sum())
    if failed:
        say(
            f"Warning: {failed} grid points are not minimised to the tolerance; see the variables "
            "status and gradient_norm (docs/data.md).",
            err=True,
        )
    if figures:
        write_charts(still_charts(dataset), figure_folder(out))
    say(f"Results: {out.resolve()}")
