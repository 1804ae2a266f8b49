"""The table that all commands print: columns of numbers and names, with what files hold of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pathkernel_views.table_data import TableData, Values, columns_of

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from pathkernel_views.captioned import CaptionedTable

_HUGE = 1e7


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    heading : str
    cells : iterable of float, str or None
        Numbers, NaN where they are not known; text as it is; None for an empty cell.
    form : str
        Format of the numbers.
    wraps : bool
        Whether cells may be broken into lines where the terminal is narrow.
    name, units : str
        What the column is called in files of tables, by default as its heading; and its units.
    """

    heading: str
    cells: Iterable[Any]
    form: str = ""
    wraps: bool = False
    name: str = ""
    units: str = ""


def shown(value: Any, form: str) -> str:
    """A value as cells show it: "-" where it is not known; with an exponent where it is huge."""
    if value is None:
        return ""
    if np.asarray(value).dtype.kind not in "biuf":  # text, or a date
        return str(value)
    value = float(value)
    if form.endswith("f") and abs(value) >= _HUGE:
        form = form.replace("f", "e")
    return "-" if np.isnan(value) else format(value, form)


def value_table(
    title: str,
    columns: Sequence[Column],
    caption: str = "",
    lines: Collection[int] = (),
    names: Collection[int] = (0,),
    *,
    name: str = "",
    of: Mapping[str, Any] = MappingProxyType({}),
    data: xr.Dataset | Iterable[Values] | None = None,
) -> Table:
    """Table of columns, those of names to the left and those of numbers to the right.

    Parameters
    ----------
    title, caption : str
        Neither these nor any cell is read as markup.
    columns : sequence of Column
        All of the same length.
    lines : collection of int
        Rows, counted from 0, that a line follows.
    names : collection of int
        Columns, counted from 0, that hold names.
    name : str
        What the table is called in files; by default as its title.
    of : mapping of str to float or str
        What all its rows are of, such as a width: columns of the files, in front of the others.
    data : xarray.Dataset or iterable of Values, optional
        What stands in files in place of the cells, where those hold several numbers or words: a
        row for each combination of the labels, or columns.

    Returns
    -------
    rich.table.Table
        Its ``data`` is a :class:`pathkernel_views.table_data.TableData`.
    """
    from rich.text import Text

    table = plain_table(Text(title), caption)
    held = [list(column.cells) for column in columns]
    if data is None:
        data = [
            Values(each.name or each.heading, cells, each.heading, each.units)
            for each, cells in zip(columns, held)
        ]
    inside = columns_of(data) if isinstance(data, xr.Dataset) else list(data)
    size = len(inside[0].cells) if inside else 0
    whole = [Values(key, [value] * size) for key, value in of.items()]
    table.data = TableData.made(name, title, caption, [*whole, *inside])
    cells = [[shown(cell, column.form) for cell in own] for column, own in zip(columns, held)]
    for place, (column, texts) in enumerate(zip(columns, cells)):
        justify = "left" if place in names else "right"
        wraps = place in names or column.wraps
        longest = max(
            len(word) for text in (column.heading, *texts) for word in text.split() or [""]
        )
        table.add_column(
            Text(column.heading), justify=justify, no_wrap=not wraps, min_width=longest
        )
    for place, row in enumerate(zip(*cells, strict=True)):
        table.add_row(*map(Text, row), end_section=place in lines)
    return table


def plain_table(title: str | Text, caption: str = "") -> CaptionedTable:
    """Table without columns yet, in the style that all tables share; the caption stands left."""
    from rich import box
    from rich.text import Text

    from pathkernel_views.captioned import CaptionedTable

    return CaptionedTable(
        title=title,
        caption=Text(caption, justify="left") if caption else None,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
