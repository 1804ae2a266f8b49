"""``--json`` and ``--csv`` of every command that prints tables."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from pathkernel.commands.groups import Command
from pathkernel.commands.output import Record, make_folder, say, start_record

OPTIONS = ("json", "csv")
"""Names of the options that every such command has."""

VERSION = 1
"""Version of the JSON document, raised when something is renamed or removed."""


class TablesCommand(Command):
    """Command whose tables can be had as JSON on stdout and as CSV files.

    Parameters
    ----------
    sections : mapping of str to sequence of click.Option
        Further parameters of the command, by their headings in ``--help``.
    """

    def __init__(
        self,
        *arguments: Any,
        sections: Mapping[str, Sequence[click.Option]] = MappingProxyType({}),
        **settings: Any,
    ):
        super().__init__(*arguments, **settings)
        self.sections = sections
        self.params += [option for options in sections.values() for option in options]
        self.params += [
            click.Option(
                ["--json"],
                is_flag=True,
                help="Print only the tables, as JSON, with numbers in full precision.",
            ),
            click.Option(
                ["--csv"],
                metavar="DIR",
                type=click.Path(path_type=Path, file_okay=False),
                help="Folder to write the tables into, too, as CSV files.",
            ),
        ]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List options under the headings of their sections, the remaining ones last."""
        listed = [option for options in self.sections.values() for option in options]
        options = [entry for entry in self.get_params(ctx) if isinstance(entry, click.Option)]
        remaining = [option for option in options if option not in listed]
        for heading, options in (*self.sections.items(), ("Options", remaining)):
            if records := [option.get_help_record(ctx) for option in options]:
                with formatter.section(heading):
                    formatter.write_dl([record for record in records if record])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and write what it recorded, even if it ends with a status."""
        silent, folder = (ctx.params.pop(name) for name in OPTIONS)
        if not silent and folder is None:
            return super().invoke(ctx)
        if folder is not None:
            make_folder("--csv", folder)
        record = start_record(silent)
        # what the code of a plugin or a library prints would break the document
        stdout = contextlib.redirect_stdout(sys.stderr) if silent else contextlib.nullcontext()
        try:
            with stdout:
                result = super().invoke(ctx)
        except SystemExit:
            _write(record, ctx.command_path, folder)
            raise
        _write(record, ctx.command_path, folder)
        return result


def _write(record: Record, command: str, folder: Path | None) -> None:
    if folder is not None:
        from pathkernel_views.table import write_csv

        write_csv(record.tables, folder)
        say(f"Tables: {folder.resolve()}")
    if record.silent:
        tables = [table.as_json(part) for part, table in record.tables]
        lines = record.lines
        document = {"version": VERSION, "command": command, "tables": tables, "lines": lines}
        click.echo(json.dumps(document, allow_nan=False))
