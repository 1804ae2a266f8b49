"""HTML tables and coloured matrices for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np

_LARGEST = 16  # rows of a matrix that are shown
_SIGNS = {True: "31, 119, 180", False: "214, 39, 40"}  # RGB of positive and other values


def table(title: str, rows: Mapping[str, object]) -> str:
    """HTML table of names and values under a title."""
    cells = [
        f"<tr><th style='text-align: left'>{html.escape(name)}</th>"
        f"<td style='text-align: left'>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    ]
    return f"<table><caption>{html.escape(title)}</caption>{''.join(cells)}</table>"


def matrix(title: str, values: np.ndarray, labels: Sequence[str]) -> str:
    """HTML of the first rows of a square matrix, blue for positive and red for other values."""
    shown, names = values[:_LARGEST, :_LARGEST], [html.escape(name) for name in labels[:_LARGEST]]
    if len(values) > _LARGEST:
        title += f", the first {_LARGEST} of {len(values)} rows and columns"
    largest = np.abs(np.nan_to_num(shown)).max() or 1.0
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = [
        f"<tr><th>{name}</th>{''.join(_cell(value, largest) for value in row)}</tr>"
        for name, row in zip(names, shown)
    ]
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}<tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _cell(value: float, largest: float) -> str:
    shade = 0.7 * abs(value) / largest if np.isfinite(value) else 0.0
    colour = f"rgba({_SIGNS[bool(value > 0)]}, {shade:.2f})"
    return f"<td style='background-color: {colour}'>{value:.3g}</td>"
