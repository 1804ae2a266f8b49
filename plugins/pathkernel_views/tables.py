"""A result store as a table: what was found at every width and in the limits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pathkernel_datasets.choice import default_choice
from pathkernel_datasets.gains import gains
from pathkernel_datasets.labelling import json_attribute
from pathkernel_datasets.measures import Measure, choices_of, kind_of, measures_of
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import CONVERGED, NOT_COMPUTED, Selection, Spread, number
from pathkernel_datasets.swept import by_value, described, swept_option
from pathkernel_views.minima import minima_sentences
from pathkernel_views.table_data import Values
from pathkernel_views.value_table import Column, shown, value_table

if TYPE_CHECKING:
    from rich.table import Table


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
        Gibbs temperature T that the row is taken at; NaN where none could be chosen yet.
    action : Spread or None
        Action per width S/N; None for limits.
    scores : dict of str to dict of str to Spread
        How well the test examples are predicted, by measure and test set: ``accuracy`` of classes,
        ``r_squared``, ``mean_squared_error`` and ``log_predictive_density`` of targets.
    evaluations : float or None
        Median over seeds of the evaluations of the energy; None for limits.
    status : str
        ``"ok"``, or how many of the seeds' points are not computed or not converged.
    """

    name: str
    width: float | None
    temperature: float
    action: Spread | None
    scores: dict[str, dict[str, Spread]]
    evaluations: float | None
    status: str


def summary(dataset: xr.Dataset, temperature: float | str | None = None) -> list[Row]:
    """Table of a result store: one row per width, the Gaussian process limit, sub-networks.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float or str, optional
        Temperature of the store, or how it is chosen for each row (see :class:`Selection`).

    Returns
    -------
    list of Row

    Raises
    ------
    ValueError
        If the store does not have that temperature, or what the choice goes by.
    """
    return _rows(dataset, Selection(dataset, temperature))


def _rows(dataset: xr.Dataset, selection: Selection) -> list[Row]:
    return [*_width_rows(dataset, selection), *_limit_rows(dataset, selection)]


def _width_rows(dataset: xr.Dataset, selection: Selection) -> list[Row]:
    names = {code: name.replace("_", " ") for name, code in STATUS_CODES.items()}
    action = selection.point("action")
    scores = {measure.name: selection.point(measure.name) for measure in measures_of(dataset)}
    evaluations = selection.point("evaluations").where(action.notnull())
    rows = []
    for w, width in enumerate(dataset["width"].values):
        codes = selection.status.isel(width=w).values.tolist()
        problems = {names[code]: codes.count(code) for code in sorted(set(codes) - {CONVERGED})}
        known = not selection.chosen or set(codes) != {NOT_COMPUTED}
        rows.append(
            Row(
                name=f"N = {number(width)}",
                width=float(width),
                temperature=float(selection.temperatures[w]) if known else np.nan,
                action=Spread.of(action.isel(width=w).values),
                scores={name: _by_set(found.isel(width=w)) for name, found in scores.items()},
                evaluations=Spread.of(evaluations.isel(width=w).values).median,
                status=_status(problems, len(codes)),
            )
        )
    return rows


def _limit_rows(dataset: xr.Dataset, selection: Selection) -> list[Row]:
    names = [measure.name for measure in measures_of(dataset)]
    whole = {name: selection.reference(f"{name}_gp") for name in names}
    limits = [("GP limit", selection.temperature_gp, whole)]
    if dataset.sizes.get("sub_network", 0):
        parts = {name: selection.sub_networks(f"{name}_sub_network") for name in names}
        for place, temperature in enumerate(selection.temperatures_sub_network):
            part = {name: found.isel(sub_network=place) for name, found in parts.items()}
            limits.append((dataset["sub_network"].values[place], float(temperature), part))
    done = selection.references_done.values
    known = not selection.chosen or done.any()
    rows = []
    for name, temperature, found in limits:
        failed = int((found[names[-1]].isnull().all("test_set").values & done).sum())
        problems = {"not computed": int((~done).sum()), "not positive definite": failed}
        status = _status(problems, done.size)
        scores = {measure: _by_set(values) for measure, values in found.items()}
        at = temperature if known else np.nan
        rows.append(Row(str(name), None, at, None, scores, None, status))
    return rows


def _by_set(values: xr.DataArray) -> dict[str, Spread]:
    """Spread over the seeds, by test set."""
    by_set = values.transpose("test_set", "seed")
    return {str(each["test_set"].item()): Spread.of(each.values) for each in by_set}


def _status(problems: dict[str, int], seeds: int) -> str:
    counts = [f"{count} of {seeds} {words}" for words, count in problems.items() if count]
    return ", ".join(counts) or "ok"


def rich_table(dataset: xr.Dataset, temperature: float | str | None = None) -> Table:
    """The same table, to print with rich.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float or str, optional
        As for :func:`summary`.

    Returns
    -------
    rich.table.Table
        Of several values of an option, the rows of one below those of the other. Ranges over the
        seeds stand beside the medians, below them if there are several test sets
        or measures; none are shown for a single seed. Classes have a column for every test set,
        targets one for every measure.

    Raises
    ------
    ValueError
        If the store does not have that temperature, or what the choice goes by.
    """
    parts = by_value(dataset)
    selections = [Selection(part, temperature) for part in parts.values()]
    groups = [_rows(part, chosen) for part, chosen in zip(parts.values(), selections)]
    rows = [row for group in groups for row in group]
    measures = measures_of(dataset)
    if len(measures) > 1:  # which leaves no room for more
        own = _by_measure(rows, measures)
    else:
        own = [
            Column("S/N", [row.action and row.action.median for row in rows], ".4f"),
            *_by_test_set(rows, measures[0]),
            Column("evals", [row.evaluations for row in rows], ".0f"),
        ]
    columns = [
        Column("network", [row.name for row in rows]),
        Column("T", [row.temperature for row in rows], "g"),
        *own,
        Column("status", [row.status for row in rows], wraps=True),
    ]
    lines, names, option = {dataset.sizes["width"] - 1}, {0}, swept_option(dataset)
    if option is not None:
        each = len(groups[0])
        cells = [[str(value), *[None] * (each - 1)] for value in parts]
        columns.insert(0, Column(described(option), [cell for group in cells for cell in group]))
        lines, names = set(range(each - 1, len(rows), each)), {0, 1}
    title = str(dataset.attrs.get("title", "pathkernel study"))
    pairs = [(value, row) for value, own in zip(parts, groups) for row in own]
    data = _data(option, pairs, measures)
    caption = _caption(dataset, selections, rows)
    return value_table(title, columns, caption, lines, names, name="study", data=data)


def _data(
    option: str | None, rows: Sequence[tuple[Any, Row]], measures: Sequence[Measure]
) -> list[Values]:
    """Columns of files: a row for each row and test set; medians and ranges over the seeds."""
    pairs = [(value, row, name) for value, row in rows for name in row.scores[measures[0].name]]
    found = [] if option is None else [Values(option, [value for value, _, _ in pairs])]

    def add(name: str, label: str, units: str, cell: Callable[[Row, str], Any]) -> None:
        found.append(Values(name, [cell(row, of) for _, row, of in pairs], label, units))

    def add_spread(name: str, label: str, units: str, of: Callable[[Row, str], Any]) -> None:
        for key in ("median", "lowest", "highest", "seeds"):
            words = f"{label}: {key if key != 'seeds' else 'number of seeds'}"
            add(f"{name}_{key}", words, units, lambda *at, key=key: getattr(of(*at), key, None))

    add("network", "width, limit or sub-network", "", lambda row, _: row.name)
    add("width", "width N, null in limits", "1", lambda row, _: row.width)
    add("temperature", "temperature T", "1", lambda row, _: row.temperature)
    add("test_set", "test set", "", lambda _, name: name)
    add_spread("action", "action per width S/N", "1", lambda row, _: row.action)
    for each in measures:
        of = functools.partial(lambda key, row, name: row.scores[key][name], each.name)
        add_spread(each.name, each.long_name, each.units, of)
    add("evaluations", "energy evaluations, median", "1", lambda row, _: row.evaluations)
    add("status", "ok, or what is missing", "", lambda row, _: row.status)
    return found


def _by_test_set(rows: Sequence[Row], measure: Measure) -> list[Column]:
    found = [row.scores[measure.name] for row in rows]
    stacked = len(found[0]) > 1  # three test sets then fit a terminal of 80 columns
    return [
        Column(name, [_cell(spreads[name], measure, stacked) for spreads in found])
        for name in found[0]
    ]


def _by_measure(rows: Sequence[Row], measures: Sequence[Measure]) -> list[Column]:
    """Cells hold the test sets below one another; their names stand first if there are several."""
    names = list(rows[0].scores[measures[0].name])
    spreads = [spread for row in rows for held in row.scores.values() for spread in held.values()]
    ranges = any(spread.seeds > 1 for spread in spreads)

    def cell(lines: Iterable[str]) -> str:
        """Test sets below one another, each with room for its range."""
        return "\n".join(line + "\n" * (ranges and "\n" not in line) for line in lines)

    columns = [Column("test set", [cell(names)] * len(rows))] if len(names) > 1 else []
    for measure in measures:
        held = [row.scores[measure.name] for row in rows]
        cells = [cell(_cell(found[name], measure, True) for name in names) for found in held]
        columns.append(Column(measure.heading, cells))
    return columns


def _cell(spread: Spread, measure: Measure, stacked: bool) -> str:
    median, lowest, highest = (
        shown(value, measure.form) for value in (spread.median, spread.lowest, spread.highest)
    )
    if spread.seeds < 2:
        return median
    if stacked:
        return f"{median}\n{lowest}{'..' if lowest.startswith('-') else '-'}{highest}"
    return f"{median} [{lowest}, {highest}]"


def _caption(dataset: xr.Dataset, selections: Sequence[Selection], rows: Sequence[Row]) -> str:
    seeds = dataset.sizes["seed"]
    shown = "median and range over the seeds" if seeds > 1 else "one seed"
    values = [str(value) for value in dataset["seed"].values]
    listed = ", ".join(values) if seeds <= 10 else f"{values[0]} to {values[-1]} ({seeds})"
    chosen = {selection.describe() for selection in selections}
    temperatures = chosen.pop() if len(chosen) == 1 else selections[0].describe(values=False)
    lines = [
        _measured(dataset, shown),
        f"{'Seeds' if seeds > 1 else 'Seed'} {listed}; "
        f"backend {dataset.attrs.get('backend', 'unknown')}, "
        f"{dataset.attrs.get('dtype', 'unknown')}; {temperatures}.",
    ]
    if selections[0].chosen:
        lines += _doubts(dataset, selections[0].chosen, rows)
    every = [json_attribute(part.attrs, "notes") for part in by_value(dataset).values()]
    if "skips" in dataset.attrs:
        parts = zip(by_value(dataset).values(), selections)
        lines += dict.fromkeys(_skips(part, selection) for part, selection in parts)
    option = swept_option(dataset)
    for value, part in by_value(dataset).items():
        of_value = "" if option is None else f"{option} = {value}: "
        lines += [of_value + sentence for sentence in minima_sentences(part)]
    notes = [f"{name.capitalize()}: {note}" for held in every for name, note in held.items()]
    lines += dict.fromkeys(notes)
    status = dataset["status"].values
    missing = int((status == NOT_COMPUTED).sum())
    if missing:
        lines.append(f"{missing} of {status.size} grid points are not computed yet.")
    return "\n".join(lines)


def _skips(dataset: xr.Dataset, selection: Selection) -> str:
    """Strengths of skip connections and, in units of the largest score of a head, their scores."""
    scores = selection.point("skip_score").transpose("width", "layer", "seed")
    found = [
        f"N = {number(width)}: {', '.join(shown(Spread.of(each).median, '.2f') for each in values)}"
        for width, values in zip(dataset["width"].values, scores.values)
    ]
    return (
        f"Skip connections of strength {dataset.attrs['skips']}, by layer; their scores (medians "
        f"over the seeds), where the largest of a head is 1: {'; '.join(found)}."
    )


def _doubts(dataset: xr.Dataset, choice: str, rows: Sequence[Row]) -> list[str]:
    """Where the temperatures that were chosen deserve a second look."""
    grid, taken = dataset["temperature"].values, {row.temperature for row in rows}
    ends = ((grid.min(), "smallest", "smaller"), (grid.max(), "largest", "larger"))
    lines = [
        f"T = {end:g} is the {word} of the grid; {beyond} ones may be better."
        for end, word, beyond in ends
        if end in taken
    ]
    parts = by_value(dataset).values()
    size = min(part.sizes["path"] * part.sizes.get("output", 1) for part in parts)  # of U_1
    narrow = [row.name for row in rows if row.width is not None and row.width < size]
    if choice == "leave-one-out" and narrow:
        of = "paths times outputs" if "output" in dataset.sizes else "paths"
        lines.append(
            f"{', '.join(dict.fromkeys(narrow))}: below the number of {of}, {size}, where "
            "leave-one-out is optimistic (docs/temperature.md)."
        )
    return [" ".join(lines)] if lines else []


def _measured(dataset: xr.Dataset, shown: str) -> str:
    """What the numbers of the table are."""
    if kind_of(dataset) == "classes":
        return (
            f"Accuracy (fraction correct): {shown}. T: temperature; S/N: action per width; "
            "evals: energy evaluations."
        )
    return (
        "R²: 1 − MSE / variance of the test targets; MSE: mean squared error; ln p(y): mean log "
        "density of a test target in nats, of the predictor's variance plus T as noise; each: "
        f"{shown}. T: temperature."
    )


def gain_table(
    dataset: xr.Dataset,
    temperature: float | str | None = None,
    of: Mapping[str, Any] = MappingProxyType({}),
) -> Table:
    """What finite width gains over the limit; as for :func:`pathkernel_datasets.gains.gains`.

    ``of``: the value of an option that the dataset is one of several of, as for `value_table`.
    """
    found = gains(dataset, temperature)
    seeds = found.attrs["seeds"]
    several = len(seeds) > 1
    spread = "; in brackets that over the seeds" if several else ""
    measure = measures_of(dataset)[0]
    fraction = measure.name == "accuracy"
    caption = (
        f"{'Accuracy (fraction correct)' if fraction else measure.long_name}, and its gain over "
        f"the GP limit {'in points ' * fraction}± standard error "
        f"over the test examples, which both {'classify' if fraction else 'predict'}{spread}. "
        "Means over "
        f"{'seeds' if several else 'seed'} {', '.join(map(str, seeds))}. T: temperature of "
        "the width and, behind it, of the limit that it is compared with"
        f"{_chosen(dataset, temperature)}."
    )
    limit = float(found["temperature_gp"])
    temperatures = [f"{value:g} | {limit:g}" for value in found["temperature"].values]
    widths = [f"N = {number(width)}" for width in found["width"].values]
    columns = [
        Column("network", [*widths, "GP limit"]),
        Column("T", [*temperatures, f"{limit:g}"]),
    ]
    for name in found["test_set"].values:
        here = found.sel(test_set=name)
        cells = [_gain_cell(here.isel(width=w), measure, several) for w in range(len(widths))]
        heading = str(name) if fraction else f"{name}\n{measure.heading}"
        columns.append(Column(heading, [*cells, here[f"{measure.name}_gp"]], ".3f"))
    title = f"Gain over the Gaussian process limit: {dataset.attrs['label']}"
    return value_table(title, columns, caption, {len(widths) - 1}, name="gains", of=of, data=found)


def _chosen(dataset: xr.Dataset, temperature: float | str | None) -> str:
    """How temperatures were chosen, in words."""
    choice = default_choice(dataset) if temperature is None else temperature
    if not isinstance(choice, str) or dataset.sizes["temperature"] == 1:
        return ""
    return f", both of {choices_of(dataset)[choice].words} over the seeds"


def _gain_cell(point: xr.Dataset, measure: Measure, several: bool) -> str:
    if point["gain"].isnull():
        return "-"
    scale, digits = (100, 1) if measure.name == "accuracy" else (1, 3)
    gain, error, of_seeds = (
        scale * float(point[name]) for name in ("gain", "example_error", "seed_error")
    )
    brackets = f" ({of_seeds:.{digits}f})" if several else ""
    value = shown(point[measure.name], ".3f")
    return f"{value}\n{gain:+.{digits}f} ± {error:.{digits}f}{brackets}"
