"""``pathkernel run TASK``: compute a study into a folder, with a table and figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pathkernel.commands.groups import SuggestingGroup
from pathkernel.commands.options import (
    Figures,
    check_names,
    help_of,
    offered_options,
    options_of,
)
from pathkernel.commands.output import (
    figure_folder,
    leave_interrupted,
    print_views,
    say,
    write_charts,
)
from pathkernel.commands.study_file import SUFFIX, StudyFileError, read_study, values_of
from pathkernel.commands.tables import TablesCommand
from pathkernel.jax_settings import prepare_jax
from pathkernel_core.contracts.hooks import Plugins, UnknownNameError
from pathkernel_core.contracts.options import option, takes_several
from pathkernel_core.contracts.task import Task
from pathkernel_datasets.study.study import OF_TASK, Study, make_task


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

    Runs the theory over a grid of widths, temperatures and seeds, prints a table and writes a
    folder with the dataset and figures. The same command, run again, resumes an interrupted run.
    """


def _file_command(path: Path, plugins: Plugins) -> click.Command:
    """Command of a task whose options have the values of a study file as defaults."""
    name, content = read_study(path)
    try:
        task = plugins.task(name)
    except UnknownNameError as error:
        raise StudyFileError(f"{path}: {error}") from None
    command = task_command(task)
    settings = offered_options(Study) | offered_options(Running)
    values = values_of(path, content, settings, offered_options(task))
    command.context_settings["default_map"] = values
    return command


_MOST_WORKERS = 1024  # processes, or threads of each


@dataclass(frozen=True)
class Running(Figures):
    """Options of a run that change no result."""

    out: Path | None = option(
        None,
        "Folder of the study, to make or to resume.  [default: TASK]",
        type=Path,
        metavar="NAME",
    )
    threads: int = option(
        1,
        "Threads of every worker for linear algebra on the CPU.",
        minimum=1,
        maximum=_MOST_WORKERS,
    )
    jobs: int = option(
        1, "Number of worker processes on this machine.", minimum=1, maximum=_MOST_WORKERS
    )
    scheduler: str | None = option(
        None, "Dask scheduler whose workers compute, tcp://HOST:PORT.", metavar="ADDRESS"
    )
    part: str | None = option(
        None,
        "Part of the study to compute, such as 1/3, while other processes that share the disk "
        "compute the other parts.  [default: all]",
        metavar="I/N",
    )

    def __post_init__(self):
        if self.part is not None:
            number, _, count = self.part.partition("/")
            if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
                raise ValueError(
                    f"part must be I/N, such as 1/3 for the first of three, but is {self.part!r}"
                )

    @property
    def number_and_count(self) -> tuple[int, int] | None:
        """Number of the part, and of all parts."""
        if self.part is None:
            return None
        number, _, count = self.part.partition("/")
        return int(number), int(count)


def check_task_names(task: type[Task]) -> None:
    """Raise PluginError if an option of a task has the name of one of every run."""
    check_names(task.name, task, Study, Running)


def task_command(task: type[Task]) -> click.Command:
    """Command that runs a task, with the options of the task, of the grid and of computing."""
    defaults = {name: getattr(task, name) for name in OF_TASK}
    sections = {
        f"Options of {task.name}": options_of(task, several=True),
        "Grid": options_of(Study, several=True, defaults=defaults),
        "Computing": options_of(Running),
    }

    def callback(**values: Any) -> None:
        of_task, of_study, of_running = (
            {name: values[name] for name in offered_options(configured)}
            for configured in (task, Study, Running)
        )
        sweep = {}
        for configured, settings in ((task, of_task), (Study, of_study)):
            for name, entry in offered_options(configured).items():
                if takes_several(entry) and isinstance(settings[name], tuple):
                    sweep[name], settings[name] = settings[name], settings[name][0]
        try:
            running = Running(**of_running)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        _run_study(Study(make_task(task, of_task), sweep=sweep, **of_study), running)

    return TablesCommand(
        task.name,
        callback=callback,
        sections=sections,
        help=help_of(task, summarised=True),
    )


def _run_study(study: Study, running: Running) -> None:
    threads, part = running.threads, running.number_and_count
    resources = running.jobs, running.scheduler
    if study.backend == "jax":
        prepare_jax(threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # or OpenMP takes all cores
    from pathkernel_datasets.run.workers import workers

    out = running.out or Path(study.task.name)
    if out.is_file():
        raise click.UsageError(f"--out: {out} is a file; name a folder, which may be new")
    plugins = click.get_current_context().find_object(Plugins)
    try:
        with workers(*resources) as executor:  # which import while this process does
            from pathkernel_datasets.run.progress_bar import showing_progress
            from pathkernel_datasets.run.run_study import run_study

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
        is_begun = out.exists()  # the folder of a study goes again if nothing is in it
        saved = (
            f"All that is computed for {out} is saved" if is_begun else "Nothing is computed yet"
        )
        leave_interrupted(f"{saved}; run the same command again to resume.")
    if part is not None:
        status = dataset["status"]
        say(
            f"Part {part[0]} of {part[1]} is computed; of all {status.size} grid points, "
            f"{int((status != 0).sum())} are. Table and figures: pathkernel show {out}, and plot",
            wrap=True,
        )
        return
    from pathkernel_datasets.selection.selection import Selections
    from pathkernel_views.study_tables import study_summary
    from pathkernel_views.study_views import still_charts

    selections = Selections(dataset)
    print_views(study_summary(selections), "study")
    if not report.called:
        say("Nothing was left to compute: the study was complete.")
    if failed := int((dataset["status"] > 1).sum()):
        say(
            f"Warning: {failed} grid points are not minimised to the tolerance; see the variables "
            "status and gradient_norm (docs/data.md).",
            err=True,
            wrap=True,
        )
    if running.figures:
        write_charts(still_charts(selections), figure_folder(out))
    say(f"Results: {out.resolve()}")
