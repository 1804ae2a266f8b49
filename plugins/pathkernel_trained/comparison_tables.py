"""Which points of a comparison are shown, and the table of the agreement there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from rich.table import Table
from rich.text import Text

from pathkernel_datasets.selection import Selection, index_of, number
from pathkernel_views.tables import plain_table

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
        temperature: float | str = "evidence",
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
            One of the study's, or the word by which it is chosen at each width: evidence or
            validation.
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
        order = np.argsort(self.widths)
        kept = sorted({0, len(order) // 2, len(order) - 1})
        widths, temperatures = (
            tuple(values[order[place]] for place in kept)
            for values in (self.widths, self.temperatures)
        )
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
    title = Text(f"Order parameter U: {source} against trained (N = {trained_width})")
    table = plain_table(title)
    names = [str(name) for name in points[0]["statistic"].values]
    chosen = [name for name in names if name in _HEADINGS or name.startswith("blocks_")]
    for heading in ("N", "T", *(_HEADINGS.get(name, _blocks(name)) for name in chosen)):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        columns = [point.sel(statistic=name) for name in chosen]
        table.add_row(
            number(float(point["width"])),
            f"{float(point['temperature']):g}",
            *(_cell(float(column["agreement"]), float(column["p_value"])) for column in columns),
        )
    return table


def _blocks(name: str) -> str:
    return f"layer {name.removeprefix('blocks_layer_')}\nblocks"


def _caption(comparison: xr.Dataset, shown: Shown) -> str:
    count, which = (comparison.attrs[name] for name in ("relabellings", "relabellings_are"))
    every = f"all {count}" if which == "all" else f"{count} random"
    points = shown.words[0].upper() + shown.words[1:]
    return _CAPTION.format(relabellings=every, points=points)


def _cell(value: float, p_value: float) -> str:
    if np.isnan(value):
        return "-"
    bracket = f"{p_value:.3f}".removeprefix("0")  # narrow enough for 80 columns in all
    return f"{value:.2f}\n({bracket})"
