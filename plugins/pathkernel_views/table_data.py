"""What tables hold, for scripts: columns of numbers in full precision, as JSON and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pathkernel_core.errors import PathkernelError
from pathkernel_core.text import printable
from pathkernel_datasets.atomic import replacing

if TYPE_CHECKING:
    from rich.table import Table

_UNNAMED = "table"
_LONGEST = 48  # letters of a file's name, which file systems take whatever the letters are


@dataclass(frozen=True)
class Values:
    """One column of what a table holds.

    Attributes
    ----------
    name : str
        Lower-case words joined by underscores.
    cells : sequence
        Numbers and text; None or NaN where there is nothing or it is not known.
    label : str
        What it is, in words.
    units : str
        Empty where there are none; "1" of pure numbers.
    """

    name: str
    cells: Sequence[Any]
    label: str = ""
    units: str = ""


@dataclass(frozen=True)
class TableData:
    """What a table holds.

    Attributes
    ----------
    name, title, caption : str
    columns : tuple of Values
        All of the same length, with names of their own.
    named : bool
        Whether the name was given, and is not made of the title.
    """

    name: str
    title: str
    caption: str
    columns: tuple[Values, ...]
    named: bool

    @classmethod
    def of(cls, table: Table) -> TableData:
        """What a table holds; of one that is not of :func:`value_table`, the text of its cells."""
        data = getattr(table, "data", None)
        if isinstance(data, cls):  # its caption may have come later
            return dataclasses.replace(data, caption=str(table.caption or ""))
        texts = [
            Values(plain_text(column.header), [plain_text(cell) for cell in column.cells])
            for column in table.columns
        ]
        title = plain_text(table.title)
        return cls.made("", title, plain_text(table.caption), texts)

    @classmethod
    def made(cls, name: str, title: str, caption: str, columns: Iterable[Values]) -> TableData:
        """The same of names that are not yet words joined by underscores, nor unlike each other.

        Without a name the table is called by its title.
        """
        found: dict[str, Values] = {}
        for place, column in enumerate(columns, start=1):
            words = own = _words(column.name) or f"column_{place}"
            while own in found:
                own, place = f"{words}_{place}", place + 1
            label = " ".join((column.label or column.name).split())
            found[own] = Values(own, list(column.cells), label, column.units)
        called = _words(name or title) or _UNNAMED
        return cls(called, title, caption, tuple(found.values()), bool(name))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows by the names of columns: int, finite float, bool, str or None."""
        names = [column.name for column in self.columns]
        cells = zip(*([_plain(cell) for cell in column.cells] for column in self.columns))
        return [dict(zip(names, row)) for row in cells]

    def as_json(self, part: str) -> dict[str, Any]:
        """What :func:`json.dumps` takes; ``part`` says what the table is of."""
        columns = [
            {"name": each.name, "label": each.label, "units": each.units or None}
            for each in self.columns
        ]
        words = {"part": part, "name": self.name, "title": self.title, "caption": self.caption}
        return words | {"columns": columns, "rows": self.rows}


def columns_of(dataset: xr.Dataset) -> list[Values]:
    """Labelled values as columns: a row for each combination of labels, then the variables."""
    sizes = dict(dataset.sizes)
    labels = [name for name in (*sizes, *dataset.coords) if name in dataset.coords]
    found = []
    for name in (*dict.fromkeys(labels), *dataset.data_vars):
        held = dataset[name].variable
        values = held.set_dims(sizes).transpose(*sizes).values.ravel()
        cells = list(values) if values.dtype.kind in "mM" else values.tolist()
        words = str(held.attrs.get("long_name", name))
        found.append(Values(str(name), cells, words, str(held.attrs.get("units", ""))))
    return found


def write_csv(tables: Iterable[tuple[str, TableData]], folder: str | os.PathLike) -> list[Path]:
    """Write tables into a folder, as ``PART-NAME.csv``.

    Rows of tables of the same name go into one file. Tables that are named by nothing but their
    titles have one in common where titles and columns are the same.

    Parameters
    ----------
    tables : iterable of (str, TableData)
        Tables, each with the part that it is of.
    folder : path
        Made if it does not exist. A file that has the same columns is replaced.

    Raises
    ------
    TableFileError
        If a file is there already that has other columns.
    """
    folder, found = Path(folder), {}
    for part, table in tables:
        columns = {column.name: None for column in table.columns}
        alike = (part, table.name) if table.named else (part, table.title, *columns)
        name = part if table.name == part else f"{part}-{table.name}"
        header, rows, _ = found.setdefault(alike, ({}, [], name[:_LONGEST]))
        header.update(columns)
        rows += table.rows
    files: dict[Path, tuple[list[str], list[dict[str, Any]]]] = {}
    for header, rows, name in found.values():
        names = (f"{name}{f'-{count}' * (count > 1)}.csv" for count in itertools.count(1))
        files[next(path for each in names if (path := folder / each) not in files)] = (
            [*header],
            rows,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, (header, _) in files.items():  # before any is written
        _check_own(path, header)
    for path, (header, rows) in files.items():
        with replacing(path) as partial:
            partial.write_text(csv_text(header, rows), encoding="utf-8", newline="")
    return list(files)


def csv_text(header: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """Rows as CSV below the names of their columns; nothing in it can command a terminal."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, header, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _written(value) for key, value in row.items()})
    return stream.getvalue()


class TableFileError(PathkernelError, FileExistsError):
    """A file is in the way that is no table of the same columns."""


def _check_own(file: Path, header: list[str]) -> None:
    if file.exists():
        with open(file, encoding="utf-8", errors="replace", newline="") as stream:
            held = next(csv.reader(line[: 2**16] for line in stream), [])
        if held != header:
            raise TableFileError(
                f"{file} is there already, with other columns than {', '.join(header)}; delete it, "
                "or choose another folder"
            )


def _written(value: Any) -> Any:
    return printable(value, keep="\n") if isinstance(value, str) else value


def _plain(cell: Any) -> Any:
    if isinstance(cell, (np.datetime64, np.timedelta64)):
        return None if np.isnat(cell) else str(cell)
    if isinstance(cell, (np.generic, np.ndarray, xr.DataArray)):
        cell = cell.item()
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell if cell is None or isinstance(cell, (bool, int, float, str)) else str(cell)


def _words(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").lower()


def plain_text(view: Any) -> str:
    """Anything that rich shows as plain text; empty for None."""
    if view is None:
        return ""
    from rich.console import Console

    console = Console(width=10_000, color_system=None)
    with console.capture() as captured:
        console.print(view)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip()
