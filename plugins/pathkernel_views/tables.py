"""A result store as a table: what was found at every width and in the limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pathkernel_datasets.choice import CHOICES
from pathkernel_datasets.gains import gains
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import CONVERGED, NOT_COMPUTED, Selection, Spread, number

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True)
class Row:
    """One width, or one limit, of a study.

    Attributes
    ----------
    name : str
        ``"N = 10"``, ``"GP limit"``, or the name of a sub-network (Gaussian process limit).
    width : float or None
        Width N; None for limits.
    temperature : float
        Gibbs temperature T that the row is taken at.
    action : Spread or None
        Action per width S/N; None for limits.
    accuracy : dict of str to Spread
        Fraction of test examples classified correctly, by test set.
    evaluations : float or None
        Median over seeds of the evaluations of the energy; None for limits.
    status : str
        ``"ok"``, or how many of the seeds' points are not computed or not converged.
    """

    name: str
    width: float | None
    temperature: float
    action: Spread | None
    accuracy: dict[str, Spread]
    evaluations: float | None
    status: str


def summary(dataset: xr.Dataset, temperature: float | str = "evidence") -> list[Row]:
    """Table of a result store: one row per width, the Gaussian process limit, sub-networks.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        Temperature of the store; or the one with the largest log evidence, or validation accuracy,
        chosen for each width and for the limit (see :class:`Selection`).

    Returns
    -------
    list of Row

    Raises
    ------
    ValueError
        If the store does not have that temperature, or no validation accuracy to choose it by.
    """
    return _rows(dataset, Selection(dataset, temperature))


def _rows(dataset: xr.Dataset, selection: Selection) -> list[Row]:
    return [*_width_rows(dataset, selection), *_limit_rows(dataset, selection)]


def _width_rows(dataset: xr.Dataset, selection: Selection) -> list[Row]:
    test_sets = [str(name) for name in dataset["test_set"].values]
    names = {code: name.replace("_", " ") for name, code in STATUS_CODES.items()}
    action, accuracy = selection.point("action"), selection.point("accuracy")
    evaluations = selection.point("evaluations").where(action.notnull())
    rows = []
    for w, width in enumerate(dataset["width"].values):
        codes = selection.status.isel(width=w).values.tolist()
        problems = [
            f"{codes.count(code)} of {len(codes)} {names[code]}"
            for code in sorted(set(codes) - {CONVERGED})
        ]
        rows.append(
            Row(
                name=f"N = {number(width)}",
                width=float(width),
                temperature=float(selection.temperatures[w]),
                action=Spread.of(action.isel(width=w).values),
                accuracy={
                    name: Spread.of(accuracy.isel(width=w, test_set=t).values)
                    for t, name in enumerate(test_sets)
                },
                evaluations=Spread.of(evaluations.isel(width=w).values).median,
                status=", ".join(problems) or "ok",
            )
        )
    return rows


def _limit_rows(dataset: xr.Dataset, selection: Selection) -> list[Row]:
    test_sets = [str(name) for name in dataset["test_set"].values]
    limits = [("GP limit", selection.reference("accuracy_gp"))]
    if dataset.sizes.get("sub_network", 0):
        parts = selection.reference("accuracy_sub_network")
        limits += [
            (str(name), parts.isel(sub_network=index))
            for index, name in enumerate(dataset["sub_network"].values)
        ]
    done = selection.references_done.values
    rows = []
    for name, accuracy in limits:
        failed = int((accuracy.isnull().all("test_set").values & done).sum())
        counts = ((int((~done).sum()), "not computed"), (failed, "not positive definite"))
        problems = [f"{count} of {done.size} {problem}" for count, problem in counts if count]
        rows.append(
            Row(
                name=name,
                width=None,
                temperature=selection.temperature_gp,
                action=None,
                accuracy={
                    test_set: Spread.of(accuracy.isel(test_set=t).values)
                    for t, test_set in enumerate(test_sets)
                },
                evaluations=None,
                status=", ".join(problems) or "ok",
            )
        )
    return rows


def plain_table(title: str | Text, caption: str = "") -> Table:
    """Table without columns yet, in the style that all tables share; the caption stands left."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=title,
        caption=Text(caption, justify="left") if caption else None,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def rich_table(dataset: xr.Dataset, temperature: float | str = "evidence") -> Table:
    """The same table, to print with rich.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        As for :func:`summary`.

    Returns
    -------
    rich.table.Table
        Ranges over the seeds stand beside the medians, below them if there are several test sets;
        none are shown for a single seed.

    Raises
    ------
    ValueError
        If the store does not have that temperature, or no validation accuracy to choose it by.
    """
    from rich.text import Text

    selection = Selection(dataset, temperature)
    rows = _rows(dataset, selection)
    stacked = len(rows[0].accuracy) > 1  # three test sets then fit a terminal of 80 columns
    title = Text(str(dataset.attrs.get("title", "pathkernel study")))
    table = plain_table(title, _caption(dataset, selection))
    table.add_column("network")
    for heading in ("T", "S/N", *(Text(name) for name in rows[0].accuracy), "evals"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("status", justify="right")
    limits = False
    for row in rows:
        if row.width is None and not limits:
            table.add_section()
            limits = True
        table.add_row(
            Text(row.name),
            f"{row.temperature:g}",
            "" if row.action is None else _show(row.action.median, ".4f"),
            *(Text(_cell(spread, stacked)) for spread in row.accuracy.values()),
            "" if row.evaluations is None else _show(row.evaluations, ".0f"),
            Text(row.status),
        )
    return table


def _show(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def _cell(spread: Spread, stacked: bool) -> str:
    median = _show(spread.median, ".3f")
    if spread.seeds < 2:
        return median
    if stacked:
        return f"{median}\n{spread.lowest:.3f}-{spread.highest:.3f}"
    return f"{median} [{spread.lowest:.3f}, {spread.highest:.3f}]"


def _caption(dataset: xr.Dataset, selection: Selection) -> str:
    seeds = dataset.sizes["seed"]
    shown = "median and range over the seeds" if seeds > 1 else "one seed"
    values = [str(value) for value in dataset["seed"].values]
    listed = ", ".join(values) if seeds <= 10 else f"{values[0]} to {values[-1]} ({seeds})"
    lines = [
        f"Accuracy (fraction correct): {shown}. T: temperature; S/N: action per width; "
        "evals: energy evaluations.",
        f"{'Seeds' if seeds > 1 else 'Seed'} {listed}; "
        f"backend {dataset.attrs.get('backend', 'unknown')}, "
        f"{dataset.attrs.get('dtype', 'unknown')}; {selection.describe()}.",
    ]
    lines += [
        f"{name.capitalize()}: {note}" for name, note in dataset.attrs.get("notes", {}).items()
    ]
    status = dataset["status"].values
    missing = int((status == NOT_COMPUTED).sum())
    if missing:
        lines.append(f"{missing} of {status.size} grid points are not computed yet.")
    return "\n".join(lines)


def gain_table(dataset: xr.Dataset, temperature: float | str = "evidence") -> Table:
    """What finite width gains over the limit; as for :func:`pathkernel_datasets.gains.gains`."""
    from rich.text import Text

    found = gains(dataset, temperature)
    seeds = found.attrs["seeds"]
    several = len(seeds) > 1
    spread = "; in brackets that over the seeds" if several else ""
    if not isinstance(temperature, str):
        at = f"T = {temperature:g}"
    elif "choice" in dataset.dims:
        at = f"the T of {CHOICES[temperature]} of each seed"
    else:
        at = f"T = {dataset['temperature'].item():g}"
    table = plain_table(
        Text(f"Gain over the Gaussian process limit: {dataset.attrs['label']}"),
        "Accuracy (fraction correct), and its gain over the GP limit in points ± standard error "
        f"over the test examples, which both classify{spread}. Means over "
        f"{'seeds' if several else 'seed'} {', '.join(map(str, seeds))}, at {at}.",
    )
    table.add_column("network")
    for name in found["test_set"].values:
        table.add_column(Text(str(name)), justify="right", no_wrap=True)
    for width in found["width"].values:
        points = (found.sel(width=width, test_set=name) for name in found["test_set"].values)
        table.add_row(f"N = {number(width)}", *(_gain_cell(point, several) for point in points))
    table.add_section()
    table.add_row("GP limit", *(_accuracy(value) for value in found["accuracy_gp"]))
    return table


def _accuracy(value: xr.DataArray) -> str:
    return "-" if value.isnull() else f"{float(value):.3f}"


def _gain_cell(point: xr.Dataset, several: bool) -> str:
    if point["gain"].isnull():
        return "-"
    gain, error, of_seeds = (
        100 * float(point[name]) for name in ("gain", "example_error", "seed_error")
    )
    brackets = f" ({of_seeds:.1f})" if several else ""
    return f"{_accuracy(point['accuracy'])}\n{gain:+.1f} ± {error:.1f}{brackets}"
