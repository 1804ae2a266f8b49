"""``show``, ``plot`` and ``plugins``: look at what was computed and at what is installed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pathkernel.options import store_argument, temperature_option
from pathkernel.output import figure_folder, print_views, say, write_figures
from pathkernel.study_file import study_toml
from pathkernel.tables_command import TablesCommand
from pathkernel_core.errors import MissingExtraError, PathkernelError
from pathkernel_core.hooks import Plugins, UnknownNameError, unknown_name
from pathkernel_core.result import Result

if TYPE_CHECKING:
    from pathkernel_datasets.stored import StoredStudy
    from pathkernel_report.report import Part as ReportedPart

STUDY = "study"
"""What ``--only`` calls the study itself."""

_ONLY = click.option(
    "--only",
    metavar="NAME,NAME,…",
    help="Which parts of the store, such as study,samples; by default all.",
)


@click.command(cls=TablesCommand)
@store_argument
@temperature_option
@click.option("--seed", type=int, help="Seed of the results; by default as each is shown.")
@click.option(
    "--gains", is_flag=True, help="What finite width gains over the infinite-width (GP) limit."
)
@_ONLY
@click.option(
    "--toml", is_flag=True, help="The study as a TOML file, for pathkernel run FILE.toml."
)
def show(
    store: Path,
    temperature: float | str | None,
    seed: int | None,
    gains: bool,
    only: str | None,
    toml: bool,
) -> None:
    """Print the tables of a result store: of the study, and of every result beside it."""
    if toml:
        say(study_toml(_parts(store, only)[0]))
        return
    from pathkernel_datasets.swept import by_value, swept_option
    from pathkernel_views.tables import gain_table, rich_table

    if gains and (only is not None or seed is not None):
        raise click.UsageError(
            "--gains is a table of the study, of all seeds: leave --only and --seed out"
        )
    study, parts = _parts(store, only, seed)
    if gains:
        option = swept_option(study.dataset)
        for value, dataset in by_value(study.dataset).items():
            of = {} if option is None else {option: value}
            print_views([gain_table(dataset, temperature, of)], STUDY)
        return
    for part in parts:
        if part == STUDY:
            print_views([rich_table(study.dataset, temperature)], STUDY)
        else:
            print_views(_views_of(study, part, "tables", temperature, seed), part)


@click.command()
@store_argument
@temperature_option
@click.option("--seed", type=int, help="Seed of the heatmaps; by default the first.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the figures; by default beside the store.",
)
@_ONLY
def plot(
    store: Path,
    temperature: float | str | None,
    seed: int | None,
    out: Path | None,
    only: str | None,
) -> None:
    """Draw the figures of a result store, of the study and its results, as PNG and SVG."""
    from pathkernel_views.figures import study_figures

    study, parts = _parts(store, only, seed)
    figures: dict[str, Callable[[], Any]] = {}
    for part in parts:
        if part == STUDY:
            figures |= study_figures(study.dataset, temperature, seed)
        else:
            for found in _views_of(study, part, "figures", temperature, seed):
                if isinstance(found, str):
                    say(found, err=True)
                else:
                    figures |= {f"{part}/{name}": draw for name, draw in found.items()}
    write_figures(figures, figure_folder(store) if out is None else out, asked_for=True)


@click.command()
@store_argument
@temperature_option
@click.option("--seed", type=int, help="Seed of the results; by default as each is shown.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write; by default beside the store.",
)
@_ONLY
def report(
    store: Path,
    temperature: float | str | None,
    seed: int | None,
    out: Path | None,
    only: str | None,
) -> None:
    """Write a result store as one HTML page, to look at in a browser and to send.

    Charts tell their values when pointed at, and have switches for width, temperature and seed;
    tables can be taken along as CSV. The page needs nothing else: no network, no other file.
    """
    from pathkernel_report.report import write_report

    study, parts = _parts(store, only, seed)
    found = [_reported(study, part, temperature, seed) for part in parts]
    out = store.with_name(f"{store.stem}.html") if out is None else out
    write_report(study.dataset, store, found, out)
    say(f"Report: {out.resolve()}")


def _reported(
    study: StoredStudy, part: str, temperature: float | str | None, seed: int | None
) -> ReportedPart:
    """What the report shows of a part of a store."""
    from pathkernel_datasets.swept import by_value, swept_option
    from pathkernel_report.report import Part
    from pathkernel_views.figures import study_figures
    from pathkernel_views.study_charts import study_charts
    from pathkernel_views.tables import gain_table, rich_table

    if part == STUDY:
        dataset = study.dataset
        tables = [rich_table(dataset, temperature)]
        option = swept_option(dataset)
        with suppress(ValueError):  # no seed is complete yet
            for value, each in by_value(dataset).items():
                of = {} if option is None else {option: value}
                tables.append(gain_table(each, temperature, of))
        charts = study_charts(dataset, temperature)
        return Part("Study", tables, charts, study_figures(dataset, temperature, seed))
    tables = list(_views_of(study, part, "tables", temperature, seed))
    views: dict[str, dict[str, Callable[[], Any]]] = {"charts": {}, "figures": {}}
    for kind, held in views.items():
        for found in _views_of(study, part, kind, temperature, seed):
            if not isinstance(found, str):
                held.update(found)
            elif found not in tables:
                tables.append(found)
    return Part(part.replace("-", " ").capitalize(), tables, **views)


@click.command(cls=TablesCommand)
@click.pass_obj
def plugins(found: Plugins) -> None:
    """List what is registered, by which distribution, and what failed to load."""
    from rich.table import Table
    from rich.text import Text

    summaries = {
        f"{kind} {thing.name}": getattr(thing, "summary", None) or thing.get_short_help_str(60)
        for kind, table in found.tables()
        for thing in table.values()
    }
    table = Table(title="Plugins")
    for column in ("distribution", "plugin", "provides", "summary"):
        table.add_column(column, overflow="fold")
    for entry in found.loaded:
        for provided in entry.provides:
            table.add_row(entry.distribution, entry.name, provided, summaries[provided])
        if entry.error:
            failed = Text("failed", style="red")
            table.add_row(entry.distribution, entry.name, failed, Text(entry.error))
    print_views([table], "plugins")


def _parts(
    store: Path, only: str | None, seed: int | None = None
) -> tuple[StoredStudy, Sequence[str]]:
    """The store, and the names of its parts that are to be shown, the study first."""
    from pathkernel_datasets.selection import index_of
    from pathkernel_datasets.stored import StoredStudy

    study = StoredStudy(store, click.get_current_context().find_object(Plugins))
    if seed is not None:
        index_of(study.dataset, "seed", seed)
    held = [STUDY, *study.results]
    if only is None:
        return study, held
    asked = [name.strip() for name in only.split(",")]
    for name in asked:
        if name not in held:
            raise UnknownNameError(unknown_name(f"part of {store}", name, held))
    return study, asked


def _views_of(
    study: StoredStudy, name: str, views: str, temperature: float | str | None, seed: int | None
) -> Iterator[Any]:
    """Tables, or figures, of a result, or a line that says why there are none."""
    result = study.plugins.results.get(name)
    if result is None:
        yield f"{name}: skipped, no plugin that is installed knows this result"
        return
    try:
        yield from views_of_values(_configured(result, temperature, seed), study, views)
    except MissingExtraError as error:
        yield f"{name}: skipped, {error}"
    except (PathkernelError, OSError):
        raise
    except Exception as error:  # whatever a stranger's views raise, the others must be seen
        yield f"{name}: skipped, {type(error).__name__}: {error}"


def views_of_values(result: Result, study: StoredStudy, views: str) -> Iterator[Any]:
    """Tables of a result for every value of an option that is swept; or its figures by name."""
    for single in study.singles:
        if result.name not in single.results:
            continue
        found = getattr(result, views)(single)
        if views != "tables":
            yield {f"{single.prefix}{name}": draw for name, draw in found.items()}
            continue
        if single.prefix:
            yield single.prefix.rstrip("/").replace("-", " ", 1).replace("_", " ")
        yield from found


def _configured(result: type[Result], temperature: float | str | None, seed: int | None) -> Result:
    """A result with its options at their defaults, but for what the user chose."""
    chosen: dict[str, Any] = {} if seed is None else {"seed": seed}
    options: dict[str, Any] = {entry.name: entry.metadata for entry in dataclasses.fields(result)}
    words = options.get("temperature", {}).get("choices")
    if temperature is not None and (words or isinstance(temperature, float)):
        chosen["temperature"] = temperature
    return result(**{key: value for key, value in chosen.items() if key in result.view_options})
