"""Which points of a comparison are shown, and the table of the agreement there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from rich.table import Table
from rich.text import Text

from pathkernel_datasets.selection import Selection, few, index_of, number
from pathkernel_views.value_table import Column, value_table

_HEADINGS = {
    "correlation": "all\nof U",
    "correlation_off_diagonal": "off\ndiag.",
    "rank_correlation_off_diagonal": "off d.\nranks",
    "equal_signs": "signs",
    "equal_signs_weighted": "signs\nby |U|",
    "head_scores": "head\nscores",
}
_CAPTION = """\
Agreement with the trained U; below in brackets, the fraction of {relabellings}
relabellings of heads that agree at least as well.
all of U, off diag.: correlation of entries; ranks: rank correlation
signs: fraction of equal ones off the diagonal; by |U|: weighted
blocks: correlation of mean |U| over paths through the heads of a layer
head scores: their rank correlation. {points}."""


@dataclass(frozen=True)
class Shown:
    """Points of a comparison that a table or a figure shows.

    Attributes
    ----------
    seed : int
    widths : tuple of float
    temperatures : tuple of float
        One for each width.
    words : str
        Seed and choice of temperatures.
    """

    seed: int
    widths: tuple[float, ...]
    temperatures: tuple[float, ...]
    words: str

    @classmethod
    def select(
        cls,
        study: xr.Dataset,
        widths: Sequence[float] | None = None,
        temperature: float | str | None = None,
        seed: int | None = None,
    ) -> Shown:
        """Choose points of a study.

        Parameters
        ----------
        study : Dataset
            From :func:`pathkernel_datasets.store.open_store`.
        widths : sequence of float, optional
            By default all of the study.
        temperature : float or str
            One of the study's, or how it is chosen at each width, as for
            :class:`pathkernel_datasets.selection.Selection`.
        seed : int, optional
            By default the study's first.

        Raises
        ------
        StoreError
            If the study lacks a width or the seed.
        ValueError
            If it lacks the temperature or what it is to be chosen by.
        """
        selection = Selection(study, temperature)
        available = study["width"].values
        wanted = np.sort(available) if widths is None else widths
        index = [index_of(study, "width", width) for width in wanted]
        place = 0 if seed is None else index_of(study, "seed", seed)
        seed = int(study["seed"].values[place])
        return cls(
            seed,
            tuple(available[index].tolist()),
            tuple(selection.temperatures[index].tolist()),
            f"seed {seed}, {selection.describe(values=False)}",
        )

    def at(self, values: xr.DataArray, place: int) -> xr.DataArray:
        """Values over the grid at one of the points."""
        return values.sel(
            seed=self.seed, width=self.widths[place], temperature=self.temperatures[place]
        )

    def title(self, place: int) -> str:
        """Width and temperature of one of the points."""
        return f"N = {number(self.widths[place])}, T = {self.temperatures[place]:g}"

    def few(self) -> Shown:
        """At most three of the points: smallest, middle and largest width."""
        points = sorted(zip(self.widths, self.temperatures))
        widths, temperatures = zip(*(points[place] for place in few(len(points), 3)))
        return Shown(self.seed, widths, temperatures, self.words)


def comparison_tables(comparison: xr.Dataset, shown: Shown) -> list[Table]:
    """Agreement with the trained network at every width, p-values below in brackets.

    Parameters
    ----------
    comparison : Dataset
        From :func:`pathkernel_trained.comparison_store.open_comparison`.
    shown : Shown

    Returns
    -------
    list of Table
        For the theory and for the samples, where they are known at any of the points; the last
        explains the columns.
    """
    found = {}
    for source in ("theory", "sampled"):
        entries = comparison[["agreement", "p_value"]].sel(source=source).load()
        points = [shown.at(entries, place) for place in range(len(shown.widths))]
        known = [point for point in points if point["agreement"].notnull().any()]
        if known:
            found[source] = _table(source, known, comparison.attrs["trained_width"])
    tables = list(found.values())
    if tables:
        tables[-1].caption = Text(_caption(comparison, shown), justify="left")
    return tables


def _table(source: str, points: Sequence[xr.Dataset], trained_width: int) -> Table:
    names = [str(name) for name in points[0]["statistic"].values]
    columns = [
        Column("N", [number(float(point["width"])) for point in points]),
        Column("T", [point["temperature"] for point in points], "g"),
    ]
    for name in names:
        if name in _HEADINGS or name.startswith("blocks_"):
            heading = _HEADINGS.get(name) or _blocks(name)
            cells = [_cell(point.sel(statistic=name)) for point in points]
            columns.append(Column(heading, cells))
    title = f"Order parameter U: {source} against trained (N = {trained_width})"
    data = xr.concat(points, "point", combine_attrs="override")
    return value_table(title, columns, names=(), name="agreement", data=data)


def _blocks(name: str) -> str:
    return f"layer {name.removeprefix('blocks_layer_')}\nblocks"


def _caption(comparison: xr.Dataset, shown: Shown) -> str:
    count, which = (comparison.attrs[name] for name in ("relabellings", "relabellings_are"))
    every = f"all {count}" if which == "all" else f"{count} random"
    points = shown.words[0].upper() + shown.words[1:]
    return _CAPTION.format(relabellings=every, points=points)


def _cell(point: xr.Dataset) -> str:
    if point["agreement"].isnull():
        return "-"
    bracket = f"{point['p_value'].item():.3f}".removeprefix("0")  # for 80 columns in all
    return f"{point['agreement'].item():.2f}\n({bracket})"
