"""``show``, ``plot`` and ``plugins``: look at what was computed and at what is installed."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pathkernel.kept import kept
from pathkernel.options import store_argument, temperature_option
from pathkernel.output import figure_folder, print_views, say, write_charts
from pathkernel.study_file import study_toml
from pathkernel.tables_command import TablesCommand
from pathkernel_core.errors import MissingExtraError, PathkernelError
from pathkernel_core.hooks import Plugins, UnknownNameError, unknown_name
from pathkernel_core.result import Result

if TYPE_CHECKING:
    from pathkernel_datasets.stored import StoredStudy

STUDY = "study"
"""What ``--only`` calls the study itself."""


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the store, and options that say which of it is shown."""
    options = (
        store_argument,
        temperature_option,
        click.option(
            "--seed", type=int, help="Seed of what is of a single one; by default the first."
        ),
        click.option(
            "--only",
            metavar="NAME,NAME,…",
            help="Which parts of the store, such as study,samples; by default all.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=TablesCommand)
@_selecting
@click.option(
    "--gains", is_flag=True, help="What finite width gains over the infinite-width (GP) limit."
)
@click.option(
    "--all", "details", is_flag=True, help="Print tables of details, too, such as S/N and gains."
)
@click.option(
    "--toml", is_flag=True, help="The study as a TOML file, for pathkernel run FILE.toml."
)
def show(
    store: Path,
    temperature: float | str | None,
    seed: int | None,
    only: str | None,
    gains: bool,
    details: bool,
    toml: bool,
) -> None:
    """Print the tables of a result store: of the study, and of every result beside it."""
    if toml:
        say(study_toml(_parts(store, only)[0]))
        return
    from pathkernel_views.study_tables import gains_table, study_summary

    if gains and (only is not None or seed is not None):
        raise click.UsageError(
            "--gains is a table of the study, of all seeds: leave --only and --seed out"
        )
    study, parts = _parts(store, only, seed)
    if gains:
        print_views([gains_table(study.dataset, temperature)], STUDY)
        return
    for part in parts:
        views = _views_of(study, part, temperature, seed)
        if part == STUDY and not details and kept() is None:  # details take a while to compute
            views = study_summary(study.dataset, temperature)
        print_views(views, part, details=details)


@click.command()
@_selecting
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the figures; by default beside the store.",
)
@click.option("--all", "details", is_flag=True, help="Draw charts of details, too.")
@click.option(
    "--format",
    "formats",
    default="png,svg",
    show_default=True,
    metavar="FORMAT,…",
    help="png, svg, pdf, or several.",
)
@click.option(
    "--dpi", type=click.FloatRange(30, 1200), default=200, show_default=True, help="Of PNG files."
)
@click.option(
    "--width",
    type=click.FloatRange(1, 40),
    help="Width of every figure in inches, such as 3.4 for a paper's column; letters keep their "
    "size.  [default: as the figure needs]",
)
@click.option("--title/--no-title", default=True, help="Whether figures have titles.")
def plot(
    store: Path,
    temperature: float | str | None,
    seed: int | None,
    only: str | None,
    out: Path | None,
    details: bool,
    formats: str,
    dpi: float,
    width: float | None,
    title: bool,
) -> None:
    """Draw the figures of a result store, of the study and its results."""
    from pathkernel_views.chart import FORMATS, Chart
    from pathkernel_views.study_views import still_charts

    kinds = list(dict.fromkeys(kind.strip().lower() for kind in formats.split(",")))
    if unknown := [kind for kind in kinds if kind not in FORMATS]:
        raise click.UsageError(f"--format takes {', '.join(FORMATS)}, not {', '.join(unknown)}")
    study, parts = _parts(store, only, seed)
    charts = still_charts(study.dataset, temperature, seed) if STUDY in parts else []
    for part in parts:
        for view in _views_of(study, part, temperature, seed) if part != STUDY else ():
            if isinstance(view, Chart) and (details or not view.detail):
                charts.append(dataclasses.replace(view, name=f"{part}/{view.name}"))
            elif isinstance(view, str) and view.startswith(f"{part}: skipped"):
                say(view, err=True)
    folder = figure_folder(store) if out is None else out
    settings = {"formats": kinds, "dpi": dpi, "width": width, "title": title}
    write_charts(charts, folder, asked_for=True, **settings)


@click.command()
@_selecting
@click.option(
    "--out", type=click.Path(path_type=Path), help="File to write; by default beside the store."
)
def report(
    store: Path,
    temperature: float | str | None,
    seed: int | None,
    only: str | None,
    out: Path | None,
) -> None:
    """Write a result store as one HTML page, to look at in a browser and to send.

    Charts tell their values when pointed at, and have switches for width, temperature and seed;
    tables can be taken along as CSV. The page needs nothing else: no network, no other file.
    """
    from pathkernel_views.report import write_report

    study, parts = _parts(store, only, seed)
    sections = {part: _views_of(study, part, temperature, seed) for part in parts}
    out = store.with_name(f"{store.stem}.html") if out is None else out
    command = shlex.join(["pathkernel", *sys.argv[1:]])
    write_report(study.dataset, store, sections, out, command=command)
    say(f"Report: {out.resolve()}")


@click.command(cls=TablesCommand)
@click.pass_obj
def plugins(loaded: Plugins) -> None:
    """List what is registered, by which distribution, and what failed to load."""
    import pandas as pd

    from pathkernel_views.table import Table

    summaries = {
        f"{kind} {thing.name}": getattr(thing, "summary", None) or thing.get_short_help_str(60)
        for kind, table in loaded.tables()
        for thing in table.values()
    }
    rows = []
    for entry in loaded.loaded:
        for provided in entry.provides:
            rows.append((entry.distribution, entry.name, provided, summaries[provided]))
        if entry.error:
            rows.append((entry.distribution, entry.name, "failed", entry.error))
    columns = ["distribution", "plugin", "provides", "summary"]
    cells = {name: f"{{{name}}}" for name in columns}
    frame = pd.DataFrame(rows, columns=columns)
    print_views([Table("plugins", "Plugins", frame, cells)], "plugins")


def _parts(
    store: Path, only: str | None, seed: int | None = None
) -> tuple[StoredStudy, Sequence[str]]:
    """The store, and the names of its parts that are to be shown, the study first."""
    from pathkernel_datasets.selection import index_of
    from pathkernel_datasets.stored import StoredStudy

    study = StoredStudy(store, click.get_current_context().find_object(Plugins))
    if seed is not None:
        index_of(study.dataset, "seed", seed)
    stored = [STUDY, *study.results]
    parts = stored if only is None else [name.strip() for name in only.split(",")]
    for name in parts:
        if name not in stored:
            raise UnknownNameError(unknown_name(f"part of {store}", name, stored))
    return study, parts


def _views_of(
    study: StoredStudy, name: str, temperature: float | str | None, seed: int | None
) -> Iterator[Any]:
    """Views of a part of a store, or a line that says why there are none."""
    if name == STUDY:
        from pathkernel_views.study_views import study_views

        yield from study_views(study.dataset, temperature, seed)
        return
    result = study.plugins.results.get(name)
    if result is None:
        yield f"{name}: skipped, no plugin that is installed knows this result"
        return
    try:
        yield from views_of_values(_configured(result, temperature, seed), study)
    except MissingExtraError as error:
        yield f"{name}: skipped, {error}"
    except (PathkernelError, OSError):
        raise
    except Exception as error:  # whatever a stranger's views raise, the others must be seen
        yield f"{name}: skipped, {type(error).__name__}: {error}"


def views_of_values(result: Result, study: StoredStudy) -> Iterator[Any]:
    """Views of a result for every value of an option that is swept."""
    from pathkernel_views.chart import Chart

    for single in study.singles:
        if result.name not in single.results:
            continue
        value = single.prefix.rstrip("/").replace("-", " ", 1).replace("_", " ")
        if value:
            yield value
        for view in result.views(single):
            if value and isinstance(view, Chart):
                name, title = f"{single.prefix}{view.name}", f"{view.title}, {value}"
                view = dataclasses.replace(view, name=name, title=title)
            yield view


def _configured(result: type[Result], temperature: float | str | None, seed: int | None) -> Result:
    """A result with its options at their defaults, but for what the user chose."""
    options = {entry.name: entry for entry in dataclasses.fields(result)}
    takes_words = "temperature" in options and options["temperature"].metadata.get("choices")
    if isinstance(temperature, str) and not takes_words:
        temperature = None
    chosen = {"seed": seed, "temperature": temperature}
    names = [name for name in result.view_options if chosen.get(name) is not None]
    return result(**{name: chosen[name] for name in names})
