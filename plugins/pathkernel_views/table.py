"""A table: a long pandas DataFrame with templates for its printed rows.

>>> import pandas as pd
>>> import pathkernel as pk
>>> frame = pd.DataFrame({"width": [10, 100], "rank": 1, "eigenvalue": [2.5, 1.04]})
>>> table = pk.views.Table("spectrum", "Eigenvalues of U", frame, {"N": "{width}"},
...                  across=("rank", "{eigenvalue:.2f}"))
>>> table.headings, table.rows
(['N', '1'], [['10', '2.50'], ['100', '1.04']])

Printed columns are templates over a row; JSON and CSV contain the frame, in full precision.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import itertools
import math
import os
import re
import string
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.local_files import check_local
from pathkernel_core.system.text import number, printable
from pathkernel_views.files import check_replaceable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group

_HUGE = 1e7
_WIDE = 10_000  # characters, more than any table has
_ROUNDING = 1e-12
_MISSING = re.compile(r" [(\[]-(, -)*[)\]]")  # brackets without a value
_LONGEST_NAME = 48  # characters of a file name, few enough for every file system


@dataclass(frozen=True)
class Table:
    """A titled DataFrame.

    Attributes
    ----------
    name : str
        Lower-case words joined by underscores: ``name`` in JSON, part of the name of a CSV file.
    frame : pandas.DataFrame
        Long form, full precision, one column per quantity, labelled by :func:`frame_of` or
        :func:`labelled_frame`.
    cells : mapping of str to str
        Printed heading → template over a row, such as ``"{mean:.3f} ± {error:.3f}"``, or in per
        cent ``"{accuracy:.1p}"``. A missing value prints as "-", and so does a template whose
        values are all missing; brackets without a value are omitted.
    across : (str, str), optional
        A column whose values become headings of printed columns, or a template of these headings;
        and the template of their cells. Rows with equal other cells share a line. The columns
        replace the key of ``cells`` with the same name, and are last by default.
    lines : str
        Column of the frame: a line is drawn where its value changes.
    detail : bool
        Whether it is printed on request only.
    """

    name: str
    title: str
    frame: pd.DataFrame
    cells: Mapping[str, str]
    caption: str = ""
    across: tuple[str, str] | None = None
    lines: str = ""
    detail: bool = False

    @cached_property
    def _printed_columns(self) -> tuple[list[str], list[list[str]], list[bool], list[bool]]:
        """Headings, rows, which columns are numeric, and the rows that a line follows."""
        # one line for all records of equal printed cells, whose values of the column across spread
        # over printed columns: what pivot does by values, which may print alike and be different
        column, template = self.across or ("", "")
        heading = column if "{" in column else f"{{{column}}}"
        fixed = {name: text for name, text in self.cells.items() if name != column}
        heads: dict[str, None] = {}
        rows: dict[tuple[Any, ...], dict[str, str]] = {}
        for record in self.frame.to_dict("records"):
            group = plain(record.get(self.lines))
            row = rows.setdefault((group, *(_fill_template(t, record) for t in fixed.values())), {})
            if column:
                head = _fill_template(heading, record)
                heads[head] = None
                row[head] = _fill_template(template, record)
        before = list(self.cells).index(column) if column in self.cells else len(fixed)
        headings, templates = list(fixed), list(fixed.values())
        headings[before:before] = heads
        templates[before:before] = [template] * len(heads)
        cells = []
        for (_, *line), row in rows.items():
            line[before:before] = [row.get(head, "-") for head in heads]
            cells.append(line)
        numeric = [
            bool(names := _fields(text)) and all(_is_numeric(self.frame[name]) for name in names)
            for text in templates
        ]
        ends = [key[0] != following[0] for key, following in itertools.pairwise(rows)]
        return headings, cells, numeric, [*ends, False]

    @property
    def headings(self) -> list[str]:
        """Headings of the printed columns."""
        return self._printed_columns[0]

    @property
    def rows(self) -> list[list[str]]:
        """Printed cells, row by row."""
        return self._printed_columns[1]

    @property
    def numeric(self) -> list[bool]:
        """Whether each printed column is numeric, and so aligned to the right."""
        return self._printed_columns[2]

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Name, label and units of every column of the frame."""
        described = self.frame.attrs.get("columns", {})
        return [
            {
                "name": str(name),
                "label": described.get(name, {}).get("label") or str(name).replace("_", " "),
                "units": described.get(name, {}).get("units") or None,
            }
            for name in self.frame
        ]

    def as_json(self, part: str) -> dict[str, Any]:
        """Return the table for :func:`json.dumps`, as in docs/scripts.md; ``part`` is its owner."""
        records = self.frame.to_dict("records")
        rows = [{str(key): plain(value) for key, value in record.items()} for record in records]
        texts = {"part": part, "name": self.name, "title": self.title, "caption": self.caption}
        return texts | {"columns": self.columns, "rows": rows}

    def as_rich(self, width: int = 80) -> Group:
        """Return the table for a rich console; markup and control characters are escaped.

        In a narrow console, text wraps between words. Numbers never wrap, so a table may be wider
        than the console.
        """
        from rich import box
        from rich.console import Console, Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        headings, rows, are_numeric, ends = self._printed_columns
        headings = [printable(heading, keep="\n") for heading in headings]
        rows = [[printable(cell, keep="\n") for cell in row] for row in rows]
        for heading, is_numeric, *cells in zip(headings, are_numeric, *rows):
            if is_numeric:  # headings may wrap, but numbers may not
                longest = max((len(line) for cell in cells for line in cell.split("\n")), default=1)
                wrap = textwrap.TextWrapper(longest or 1, break_long_words=False).wrap
                heading = "\n".join(part for line in heading.split("\n") for part in wrap(line))
            column = "\n".join([heading, *cells])
            unbreakable = column.split("\n") if is_numeric else column.split()
            table.add_column(
                Text(heading),
                justify="right" if is_numeric else "left",
                no_wrap=is_numeric,
                min_width=max(map(len, unbreakable), default=0),
            )
        for row, is_end in zip(rows, ends):
            table.add_row(*map(Text, row), end_section=is_end)
        room = Console(width=_WIDE).measure(table)
        table.width = max(min(room.maximum, width), room.minimum)
        title = Text(printable(self.title, keep="\n"), "italic")
        caption = Text(printable(self.caption, keep="\n"), "dim italic")
        return Group(*filter(None, (title, table, caption)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        yield self.as_rich(options.max_width)

    def _repr_html_(self) -> str:
        title, caption = _escape_html(self.title), _escape_html(self.caption)
        return f"<p><em>{title}</em></p>{self.as_html()}<p><small>{caption}</small></p>"

    def as_html(self) -> str:
        """Return the table as an HTML element, with all text escaped."""

        def line(tag: str, cells: list[str]) -> str:
            style = [' class="number"' * is_numeric for is_numeric in self.numeric]
            parts = (f"<{tag}{css}>{_escape_html(cell)}</{tag}>" for cell, css in zip(cells, style))
            return f"<tr>{''.join(parts)}</tr>"

        body = "".join(line("td", row) for row in self.rows)
        return f"<table><thead>{line('th', self.headings)}</thead><tbody>{body}</tbody></table>"


def labelled_frame(
    frame: pd.DataFrame, labels: Mapping[str, str], units: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Return the frame with labels and units of columns added to the ones it has."""
    described = frame.attrs.get("columns", {})
    frame = frame.copy(deep=False)
    frame.attrs["columns"] = columns = {}
    for name in frame:
        old = described.get(name, {})
        columns[name] = {
            "label": labels.get(name, old.get("label", "")),
            "units": (units or {}).get(name, old.get("units", "")),
        }
    return frame


def frame_of(data: xr.Dataset | xr.DataArray) -> pd.DataFrame:
    """Convert labelled values to long form, with a row for each combination of labels.

    Columns are the dimensions that have labels, other coordinates and the variables; labels and
    units come from the attributes ``long_name`` and ``units``.
    """
    dataset = data.to_dataset() if isinstance(data, xr.DataArray) else data
    sizes = dict(dataset.sizes)
    labels = [name for name in (*sizes, *dataset.coords) if name in dataset.coords]
    columns, described = {}, {}
    for name in (*dict.fromkeys(labels), *dataset.data_vars):
        variable = dataset[name].variable
        values = variable.set_dims(sizes).transpose(*sizes).values.ravel()
        columns[str(name)] = values.astype(object) if values.dtype.kind in "UT" else values
        described[str(name)] = {
            "label": str(variable.attrs.get("long_name", "")),
            "units": str(variable.attrs.get("units", "")),
        }
    frame = pd.DataFrame(columns)
    frame.attrs["columns"] = described
    return frame


def write_csv(tables: Iterable[tuple[str, Table]], folder: str | os.PathLike) -> list[Path]:
    """Write tables, each with the part that it belongs to, as ``PART-NAME.csv``.

    Tables of the same part and name share a file. A file with the same columns is replaced. Names
    that are not valid for files are shortened and end in a checksum.

    Raises
    ------
    FileInTheWayError
        If a file exists and has other columns.
    """
    check_local(folder)
    frames: dict[str, list[pd.DataFrame]] = {}
    for part, table in tables:
        name = part if table.name == part else f"{part}-{table.name}"
        frames.setdefault(name, []).append(table.frame.astype(object))
    Path(folder).mkdir(parents=True, exist_ok=True)
    joined = {Path(folder, f"{_file(name)}.csv"): pd.concat(rows) for name, rows in frames.items()}
    for path, frame in joined.items():  # before any is written: a refusal leaves all files
        _check_columns(path, csv_text(frame[:0]))
    for path, frame in joined.items():
        with replace_file(path) as partial:
            partial.write_text(csv_text(frame), encoding="utf-8", newline="\n")
    return list(joined)


def _check_columns(file: Path, header: str) -> None:
    kind = f"table of the columns {header.strip().replace(',', ', ')}"
    check_replaceable(file, kind, lambda content: content.startswith(header.encode()))


def _file(name: str) -> str:
    """Return a unique file name for the name of a table."""
    plain = re.sub(r"[^\w-]+", "_", name)[:_LONGEST_NAME]
    checksum = hashlib.sha256(name.encode()).hexdigest()[:8]
    return plain if plain == name else f"{plain}-{checksum}"


def csv_text(frame: pd.DataFrame, digits: int | None = None) -> str:
    """Return a frame as CSV without control characters, numbers by default in full precision."""

    def cell(value: Any) -> Any:
        value = plain(value)
        if digits is not None and isinstance(value, float):
            return f"{value:.{digits}g}"
        return printable(value, keep="\n") if isinstance(value, str) else value

    columns = {printable(str(name)): map(cell, values) for name, values in frame.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))
    return text.getvalue()


def plain(value: Any) -> bool | int | float | str | None:
    """Convert a cell to a value of JSON and CSV: None if it is missing or not finite."""
    if type(value) is str:  # most cells are text or floats
        return value
    if type(value) is not float and isinstance(value, (np.generic, np.ndarray, xr.DataArray)):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value if isinstance(value, (bool, int, str)) else str(value)


class _Cells(string.Formatter):
    """Formatter of cells: "-" if missing, integers without a point, small values not as 0."""

    def format_field(self, value: Any, form: str) -> str:
        value = plain(value)
        if value is None:
            return "-"
        if isinstance(value, (str, bool)):
            return str(value)
        if not form:
            return number(value)
        if form.endswith("p"):
            return format(100 * value, f"{form[:-1]}f")
        if form.endswith("f") and abs(value) >= _HUGE:
            form = form.replace("f", "e")
        if form.endswith("f") and abs(value) < _ROUNDING:  # of a difference that should be zero
            value = 0.0
        text = format(value, form)
        if value and form.endswith("f") and not float(text):  # it would print as 0.000
            return format(value, f"{'+' * form.startswith('+')}.3g")
        return text


def _fill_template(template: str, record: Mapping[str, Any]) -> str:
    fields = _fields(template)
    if fields and all(plain(record[name]) is None for name in fields):
        return "-"
    return _MISSING.sub("", _Cells().vformat(template, (), record))


def _fields(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def _is_numeric(values: pd.Series) -> bool:
    return values.dropna().infer_objects().dtype.kind in "iuf"


def _escape_html(text: str) -> str:
    return escape(printable(text, keep="\n")).replace("\n", "<br>")
