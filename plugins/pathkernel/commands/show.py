"""``show``, ``plot``, ``report`` and ``plugins``: look at studies and at the installed plugins."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pathkernel.commands.groups import Command
from pathkernel.commands.options import all_option, options_of, out_option
from pathkernel.commands.output import (
    current_record,
    figure_folder,
    make_folder,
    print_views,
    say,
    write_charts,
)
from pathkernel.commands.selected_parts import SELECTION, STUDY, SelectedParts, naming_folder
from pathkernel.commands.study_file import study_command, study_toml
from pathkernel.commands.tables import TablesCommand
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.options import Options, option


@click.command(cls=TablesCommand, params=[*SELECTION, all_option])
@click.option(
    "--gains", is_flag=True, help="Print the gain of finite width over the infinite-width limit."
)
@click.option(
    "--toml", is_flag=True, help="Print the study as a TOML file for pathkernel run FILE.toml."
)
def show(gains: bool, details: bool, toml: bool, **selection: Any) -> None:
    """Print the tables of a study and its results."""
    selected = SelectedParts(**selection)
    if toml:
        say(study_toml(selected.study))
        return
    from pathkernel_views.study_tables import finite_width_gain_table, study_summary

    if gains:
        if selected.only is not None or selected.seed is not None:
            raise click.UsageError(
                "--gains is a table of the study, of all seeds: leave --only and --seed out"
            )
        with naming_folder(selected.folder):
            table = finite_width_gain_table(selected.study.dataset, selected.temperature)
        print_views([table], STUDY)
        return
    for part in selected.parts:
        views = selected.views(part)
        if part == STUDY and not details and current_record() is None:  # details take a while
            views = study_summary(selected.study.dataset, selected.temperature)
        command = shlex.join(["pathkernel", "show", str(selected.folder), "--only", part, "--all"])
        with naming_folder(selected.folder):
            print_views(views, part, details="" if details else command)
    if STUDY in selected.parts and not selected.study.is_complete:
        say(
            "The study is in progress, or its run was interrupted: run the command again that "
            "computes it.",
            wrap=True,
        )


@dataclass(frozen=True)
class _Drawing(Options):
    """Options of the files of figures."""

    formats: str = option(
        "png,svg",
        "File formats: png, svg, pdf, or several.",
        flags=("--format",),
        metavar="FORMAT,…",
    )
    dpi: float = option(
        200.0, "Resolution of PNG files in dots per inch.", minimum=30, maximum=1200
    )
    width: float | None = option(
        None,
        "Width of every figure in inches, such as 3.4 for a paper's column; the font size stays "
        "the same.  [default: as the figure needs]",
        type=float,
        minimum=1,
        maximum=40,
    )
    title: bool = option(True, "Draw the titles of figures.")


@click.command(cls=Command, params=[*SELECTION, out_option, *options_of(_Drawing)])
@click.option("--all", "details", is_flag=True, help="Draw detail charts, too.")
def plot(
    out: Path | None,
    details: bool,
    formats: str,
    dpi: float,
    width: float | None,
    title: bool,
    **selection: Any,
) -> None:
    """Draw the figures of a study and its results."""
    from pathkernel_views.chart import FORMATS, Chart
    from pathkernel_views.study_views import still_charts

    kinds = list(dict.fromkeys(kind.strip().lower() for kind in formats.split(",")))
    if unknown := [kind for kind in kinds if kind not in FORMATS]:
        raise click.UsageError(f"--format takes {', '.join(FORMATS)}, not {', '.join(unknown)}")
    selected, charts = SelectedParts(**selection), []
    parts = selected.parts
    folder = make_folder("--out", figure_folder(selected.folder) if out is None else out)
    if STUDY in parts:
        with naming_folder(selected.folder):
            charts = still_charts(selected.study.dataset, selected.temperature, selected.seed)
    for part in parts:
        for view in selected.views(part) if part != STUDY else ():
            if isinstance(view, Chart) and (details or not view.detail):
                charts.append(dataclasses.replace(view, name=f"{part}/{view.name}"))
            elif isinstance(view, str) and view.startswith(f"{part}: skipped"):
                say(view, err=True)
    settings = {"formats": kinds, "dpi": dpi, "width": width, "title": title}
    write_charts(charts, folder, required=True, **settings)


@click.command(cls=Command, params=[*SELECTION])
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="HTML file to write.  [default: NAME/report.html]",
)
def report(out: Path | None, **selection: Any) -> None:
    """Write a study and its results as one HTML page.

    Charts show their values under the pointer and have switches for width, temperature and seed;
    tables can be saved as CSV. The page needs no network and no other file.
    """
    from pathkernel_views.report import write_report

    selected = SelectedParts(**selection)
    folder, study, parts = selected.folder, selected.study, selected.parts
    out = folder / "report.html" if out is None else out
    make_folder("--out", out.parent)
    sections = {part: selected.views(part) for part in parts}
    origin = {
        "study made by": study_command(study),
        "study made": _date_of(folder),
        "page made by": shlex.join(["pathkernel", *sys.argv[1:]]),
    }
    write_report(study.dataset, folder, sections, out, origin=origin)
    say(f"Report: {out.resolve()}")


def _date_of(folder: Path) -> str:
    """When the dataset of a study was published, by its file; a copy may be younger."""
    changed = (folder / "study.zarr" / "zarr.json").stat().st_mtime
    return datetime.datetime.fromtimestamp(changed, datetime.UTC).isoformat(" ", "minutes")


@click.command(cls=TablesCommand)
@click.pass_obj
def plugins(loaded: Plugins) -> None:
    """List the installed plugins, and which failed to load."""
    import pandas as pd

    from pathkernel_views.table import Table

    summaries = {
        f"{kind} {name}": getattr(provided, "summary", None) or provided.get_short_help_str(80)
        for kind, table in loaded.tables()
        for name, provided in table.items()
    }
    rows = []
    for entry in loaded.loaded:
        for provided in entry.provides:
            skipped = "skipped: an option has the name of one of the command's"
            summary = summaries.get(provided, skipped)
            rows.append((entry.distribution, entry.name, provided, summary))
        if entry.error:
            rows.append((entry.distribution, entry.name, "failed", entry.error))
    columns = ["distribution", "plugin", "provides", "summary"]
    frame = pd.DataFrame(rows, columns=columns)
    distributions, caption = frame["distribution"].unique(), ""
    if len(distributions) == 1:  # no column that always says the same
        columns, caption = columns[1:], f"All plugins are of {distributions[0]}."
    cells = {name: f"{{{name}}}" for name in columns}
    print_views([Table("plugins", "Plugins", frame, cells, caption)], "plugins")
