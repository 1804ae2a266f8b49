"""Tables of a study: widths and limits, head scores, gains over the limit, chosen temperatures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import format_value, number
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain
from pathkernel_datasets.selection.selection import (
    CONVERGED,
    NOT_COMPUTED,
    Selection,
    Selections,
    count_test_examples,
)
from pathkernel_datasets.selection.temperature_choice import (
    choose_temperatures,
    complete_seeds,
    default_choice,
)
from pathkernel_datasets.study.study import describe_option
from pathkernel_datasets.variables.labelling import json_attribute
from pathkernel_datasets.variables.measures import (
    CALIBRATION_BINS,
    Measure,
    choices_of,
    has_temperature,
    label_kind,
    measures_of,
)
from pathkernel_datasets.variables.quantities import STATUS_CODES
from pathkernel_datasets.variables.swept_option import list_values
from pathkernel_views.chart import NothingToPlot
from pathkernel_views.minima import minima_sentences
from pathkernel_views.table import Table, frame_of, labelled_frame
from pathkernel_views.variance_choice import variance_choice_table

UNCONVERGED = {
    name.replace("_", " "): STATUS_CODES[name] for name in ("max_evaluations", "stalled")
}
"""Status of points with values whose minimisation did not converge."""

_MEASURED = {
    "classes": "Accuracy (fraction correct)",
    "probabilities": (
        "Accuracy (fraction correct); log loss: mean of −ln p of a test example's class, in nats; "
        f"ECE: expected calibration error, in {CALIBRATION_BINS} bins of the largest probability"
    ),
    "targets": (
        "R²: 1 − MSE / variance of the test targets; MSE: mean squared error; ln p(y): mean log "
        "density of a test target in nats, of the predictor's variance plus T as noise"
    ),
}


def of_every_value(study: Selections, build: Callable[[Any], pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the frames of all values of an option, with the value in the first column.

    ``build`` is called with the value, None without an option. Values without any computed point
    are left out; if that is all of them, NothingToPlot is raised.
    """
    frames, missing = [], None
    if study.option is None:
        return build(None)
    for value in study.singles:
        try:
            frame = build(value)
        except NothingToPlot as reason:
            missing = reason
            continue
        frame.insert(0, study.option, value)
        frames.append(frame)
    if missing is not None and not frames:
        raise missing
    joined = pd.concat(frames, ignore_index=True)
    joined.attrs = frames[0].attrs
    return joined


def study_frame(
    study: xr.Dataset | Selections, temperature: float | str | None = None
) -> pd.DataFrame:
    """Return a row for each width, each limit and each test set of a study.

    Parameters
    ----------
    study : xarray.Dataset or Selections
        From :func:`pathkernel_datasets.folder.reading.open_study`, complete or not.
    temperature : float or str, optional
        Temperature of the study, or how it is chosen for each row, as for
        :class:`pathkernel_datasets.selection.selection.Selection`.

    Returns
    -------
    pandas.DataFrame
        Columns as docs/scripts.md lists them: medians and ranges over the seeds; ``width`` and
        ``action_…`` are missing in limits.

    Raises
    ------
    ValueError
        If the study does not have that temperature, or the scores of the choice.
    """
    study = Selections.of(study)
    return of_every_value(
        study, lambda value: _frame(study.singles[value], study.at(value, temperature))
    )


def curves_frame(
    study: Selections, measure: Measure, temperature: float | str | None = None
) -> pd.DataFrame:
    """Return the rows of :func:`study_frame` for a chart of one measure.

    For a single seed, the range of a fraction is one binomial standard error of the test set on
    either side. Two columns are added: ``curve``, "theory" or the name of a limit, and
    ``unconverged``.
    """

    def of_value(value: Any) -> pd.DataFrame:
        single = study.singles[value]
        frame = _frame(single, study.at(value, temperature))
        if measure.is_fraction and single.sizes["seed"] == 1:
            names = enumerate(single["test_set"].values)
            counts = {str(name): count_test_examples(single, n) for n, name in names}
            name, fraction = measure.name, frame[f"{measure.name}_median"]
            # a range of a single seed would be a point: the error of a finite test set instead
            error = np.sqrt(fraction * (1 - fraction) / frame["test_set"].map(counts))
            frame[f"{name}_lowest"], frame[f"{name}_highest"] = fraction - error, fraction + error
        return frame

    frame = of_every_value(study, of_value)
    network, is_limit = frame["network"], frame["width"].isna()
    limits = network.where(network == "GP limit", network + " (GP limit)")
    unconverged = frame["status"].str.contains("|".join(UNCONVERGED))
    return frame.assign(curve=limits.where(is_limit, "theory"), unconverged=unconverged)


def _frame(dataset: xr.Dataset, selection: Selection) -> pd.DataFrame:
    """Return the rows of the widths, the limit and the limits of sub-networks."""
    widths, computed = dataset["width"].values, selection.references_done
    has_parts = "sub_network" in dataset.coords
    sub_networks = dataset["sub_network"].values.tolist() if has_parts else []

    def of_networks(name: str) -> xr.DataArray:
        parts = [
            selection.point(name).rename(width="row"),
            selection.reference(f"{name}_gp").expand_dims("row"),
        ]
        if sub_networks:  # Dask cannot take none of them, and NetCDF-3 holds no empty dimension
            values = selection.sub_networks(f"{name}_sub_network")
            parts.append(values.rename(sub_network="row"))
        plain = [array.drop_vars(["row", "temperature"], errors="ignore") for array in parts]
        return xr.concat(plain, "row")

    # limits have no status in the dataset: one without scores could not be factorised
    scores = {measure: of_networks(measure.name) for measure in measures_of(dataset)}
    failed = [*scores.values()][-1].isel(row=slice(len(widths), None)).isnull().all("test_set")
    of_limits = xr.where(failed, STATUS_CODES["not_positive_definite"], CONVERGED)
    of_limits = of_limits.where(computed, NOT_COMPUTED).transpose("seed", "row")
    status = np.concatenate([selection.status.values, of_limits.values], axis=1)
    limits = [selection.temperature_gp, *selection.temperatures_sub_network]
    temperatures = np.array([*selection.temperatures, *limits], dtype=float)
    if selection.chosen:
        temperatures[(status == NOT_COMPUTED).all(axis=0)] = np.nan

    action = selection.point("action")
    of_widths = _over_seeds("action", "action per width S/N", "1", action)
    evaluations = selection.point("evaluations").where(action.notnull()).median("seed")
    of_widths["evaluations"] = evaluations.assign_attrs(
        long_name="evaluations of the energy, median", units="1"
    )
    statistics = {
        name: array.drop_vars(["width", "temperature"], errors="ignore")
        .rename(width="row")
        .pad(row=(0, len(limits)))
        for name, array in of_widths.items()
    }
    for measure, values in scores.items():
        statistics |= _over_seeds(measure.name, measure.long_name, measure.units, values)
    networks = [*(f"N = {number(width)}" for width in widths), "GP limit"]
    networks += map(str, sub_networks)
    states = [_status(codes) for codes in status.T.tolist()]
    of_rows = {
        "network": (networks, "width, limit or sub-network", ""),
        "width": ([*widths, *(np.nan for _ in limits)], "width N, missing in limits", "1"),
        "temperature": (temperatures, "temperature T", "1"),
        "status": (states, "ok, or the seeds that are missing or not converged", ""),
    }
    described = {
        name: ("row", values, {"long_name": label, "units": units})
        for name, (values, label, units) in of_rows.items()
    }
    joined = xr.Dataset(described | statistics).transpose("row", "test_set")
    joined["test_set"].attrs = {"long_name": "test set"}
    frame = frame_of(joined)
    first, last = ["network", "width", "temperature", "test_set"], ["evaluations", "status"]
    return frame[[*first, *(name for name in frame if name not in {*first, *last}), *last]]


def _over_seeds(name: str, label: str, units: str, values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return median, range and count over the seeds, ignoring NaN."""
    statistics = {
        "median": values.median("seed"),
        "lowest": values.min("seed"),
        "highest": values.max("seed"),
        "seeds": values.count("seed"),
    }
    return {
        f"{name}_{key}": statistic.assign_attrs(
            long_name=f"{label}: {'number of seeds' if key == 'seeds' else key}",
            units="1" if key == "seeds" else units,
        )
        for key, statistic in statistics.items()
    }


def _status(codes: list[int]) -> str:
    names = {code: name.replace("_", " ") for name, code in STATUS_CODES.items()}
    counts = sorted(Counter(code for code in codes if code != CONVERGED).items())
    return ", ".join(f"{count} of {len(codes)} {names[code]}" for code, count in counts) or "ok"


def study_summary(
    study: xr.Dataset | Selections, temperature: float | str | None = None
) -> Iterator[Table | str]:
    """Yield the study's table and sentences about it; parameters as for :func:`study_frame`."""
    study = Selections.of(study)
    dataset, frame = study.dataset, study_frame(study, temperature)
    measures = measures_of(dataset)
    several = any(frame[f"{measure.name}_seeds"].max() > 1 for measure in measures)
    one_column = len(measures) * dataset.sizes["test_set"] == 1
    scores = {}
    for measure in measures:
        median, lowest, highest = (
            f"{{{measure.name}_{key}:{measure.form}}}" for key in ("median", "lowest", "highest")
        )
        range_ = f"{' ' if one_column else chr(10)}[{lowest}, {highest}]"
        scores[measure.heading] = median + range_ * several
    cells = _option_cell(study) | {"network": "{network}"}
    if has_temperature(study.dataset):
        cells |= {"T": "{temperature}"}
    across = None
    if len(measures) == 1:
        across, cells["test_set"] = ("test_set", *scores.values()), ""
    else:
        cells |= {"test set": "{test_set}"} if dataset.sizes["test_set"] > 1 else {}
        cells |= scores
    cells |= _status_cell(frame)
    yield Table(
        "study",
        str(dataset.attrs.get("title", "pathkernel study")),
        frame,
        cells,
        _caption(study, temperature, several),
        across,
        study.option or "",
    )
    by_evidence = variance_choice_table(study, frame)
    if by_evidence is not None:
        yield by_evidence
    yield from _sentences(study, temperature, frame)


def study_details(
    study: xr.Dataset | Selections, temperature: float | str | None = None
) -> Iterator[Table]:
    """Yield tables of the minimisation, of head scores, gains and chosen temperatures."""
    study = Selections.of(study)
    frame = study_frame(study, temperature)
    scores = tuple(f"{measure.name}_" for measure in measures_of(study.dataset))
    columns = [name for name in frame if name != "test_set" and not name.startswith(scores)]
    minima = frame.loc[frame["width"].notna(), columns].drop_duplicates()
    minima.attrs = frame.attrs
    cells = _option_cell(study) | {"network": "{network}"}
    if has_temperature(study.dataset):
        cells |= {"T": "{temperature}"}
    cells |= {"action S/N": "{action_median:.4f}", "evaluations": "{evaluations:.0f}"}
    caption = f"Action per width, and evaluations of the energy{_medians(study)}."
    cells |= _status_cell(minima)
    yield Table("minimisation", "Minimisation", minima, cells, caption, detail=True)
    if "head_score" in study.dataset:
        yield _head_score_table(study, temperature)
    if all(complete_seeds(single).size for single in study.singles.values()):
        yield finite_width_gain_table(study, temperature)
    table = choice_table(study)
    if table is not None:
        yield table


def _status_cell(frame: pd.DataFrame) -> dict[str, str]:
    """Column of the status, if there is any but "ok"."""
    return {} if (frame["status"] == "ok").all() else {"status": "{status}"}


def _medians(study: Selections) -> str:
    """Words on what is shown of several seeds."""
    return ", medians over the seeds" * (study.dataset.sizes["seed"] > 1)


def _option_cell(study: Selections) -> dict[str, str]:
    return {describe_option(study.option): f"{{{study.option}}}"} if study.option else {}


def _caption(study: Selections, temperature: float | str | None, several: bool) -> str:
    dataset = study.dataset
    selections = [study.at(value, temperature) for value in study.singles]
    chosen = {selection.describe() for selection in selections}
    choice = chosen.pop() if len(chosen) == 1 else selections[0].describe(values=False)
    if not has_temperature(dataset):
        choice = f"{dataset.attrs['likelihood']} likelihood"
    kind = label_kind(dataset)
    measured = _MEASURED[kind]
    backend, dtype = (dataset.attrs.get(key, "unknown") for key in ("backend", "dtype"))
    options = str(dataset.attrs.get("label", "")).partition(", ")[2]
    if study.option:  # whose values are in the first column
        swept = describe_option(study.option, list_values([*study.singles]))
        options = options.replace(swept, "").removesuffix(", ")
    return (
        f"{measured}{': median and range over the seeds' * several}. "
        f"{'T: temperature. ' * (kind != 'probabilities')}"
        f"{f'Options: {options}. ' * bool(options)}"
        f"{_seeds(dataset['seed'].values)}; backend {backend}, {dtype}; {choice}."
        f"{describe_sub_networks(dataset)}"
    )


def describe_head_scores(dataset: xr.Dataset) -> str:
    """Return the beginning of a caption on what the score of a head is."""
    past = ", or past the heads by a skip connection" * ("skip_score" in dataset)
    return f"Weight of U on the paths through a head{past}, where that of the strongest head is 1"


def describe_sub_networks(dataset: xr.Dataset) -> str:
    """Return a caption's sentence on the heads of each sub-network, empty if there is none."""
    parts = json_attribute(dataset.attrs, "sub_networks")
    # "heads 1 of layer 1", as datasets have it
    words = {name: re.sub(r"heads (\d+) of", r"head \1 of", str(parts[name])) for name in parts}
    named = [f"{name}, {heads}" for name, heads in words.items()]
    return f" Limits of some heads alone: {'; '.join(named)}." if named else ""


def _seeds(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, seeds))
    if len(seeds) > 10:
        listed = f"{seeds[0]} to {seeds[-1]} ({len(seeds)})"
    return f"Seed{'s' * (len(seeds) > 1)} {listed}"


def _sentences(
    study: Selections, temperature: float | str | None, frame: pd.DataFrame
) -> Iterator[str]:
    """Yield sentences on chosen temperatures, skips, minima, notes of the task, missing points."""
    dataset = study.dataset
    lines = _doubts(study, study.first(temperature).chosen, frame)
    if "skips" in dataset.attrs:
        lines.append(f"Skip connections of strength {dataset.attrs['skips']}, by layer.")
    of_values: dict[str, list[str]] = {}
    for value, single in study.singles.items():
        notes = json_attribute(single.attrs, "notes")
        named = (f"{name.capitalize()}: {note}" for name, note in notes.items())
        for sentence in (*minima_sentences(single), *named):
            of_values.setdefault(sentence, []).append(format_value(value))
    for sentence, values in of_values.items():
        of_all = len(values) == len(study.singles)
        prefix = "" if of_all else f"{describe_option(study.option)} = {', '.join(values)}: "
        lines.append(prefix + sentence)
    missing = int((dataset["status"].values == NOT_COMPUTED).sum())
    if missing:
        lines.append(f"{missing} of {dataset['status'].size} grid points are not computed yet.")
    yield from dict.fromkeys(lines)


def _doubts(study: Selections, choice: str | None, frame: pd.DataFrame) -> list[str]:
    """Return warnings about chosen temperatures."""
    if choice is None:
        return []
    grid = study.dataset["temperature"].values
    ends = ((grid.min(), "smallest", "smaller"), (grid.max(), "largest", "larger"))
    lines = [
        f"T = {end:g} is the {extreme} of the grid; {beyond} ones may be better."
        for end, extreme, beyond in ends
        if end in set(frame["temperature"])
    ]
    singles = study.singles.values()
    size = min(single.sizes["path"] * single.sizes.get("output", 1) for single in singles)  # of U_1
    narrow = frame["network"][frame["width"] < size].unique()
    if choice == "leave-one-out" and len(narrow):
        unit = "paths times outputs" if "output" in study.dataset.sizes else "paths"
        lines.append(
            f"{', '.join(narrow)}: below the number of {unit}, {size}, where leave-one-out is "
            "optimistic (docs/temperature.md)."
        )
    return lines


def head_score_frame(dataset: xr.Dataset, selection: Selection) -> pd.DataFrame:
    """Return scores of heads and skips, as median and range over the seeds.

    A row for each width, or the limit (width missing), and each head. The skip connection of
    layer 1 is "1-skip".
    """
    frames = []
    for name in ("skip_score", "head_score"):
        for suffix in ("", "_gp"):
            if name + suffix not in dataset:
                continue
            scores = selection.reference(f"{name}_gp") if suffix else selection.point(name)
            scores = scores.transpose(..., "skip" if name == "skip_score" else "head")
            statistics = _over_seeds("score", "score of the head", "1", scores)
            frame = frame_of(xr.Dataset(statistics))
            if suffix:
                frame = frame.assign(width=np.nan, network="GP limit")
            else:
                frame["network"] = "N = " + frame["width"].map(number)
            if name == "skip_score":
                labels = frame["skip"].astype(str) + "-skip"
                frame = frame.assign(layer=frame["skip"], number="skip", head=labels)
            frame["number"] = frame["number"].astype(str)
            frames.append(frame[frame["score_seeds"] > 0])
    columns = ["network", "width", "temperature", "head", "layer", "number"]
    columns += [f"score_{key}" for key in ("median", "lowest", "highest", "seeds")]
    labels = {"head": "head, or skip connection", "network": "width or limit"}
    frame = pd.concat(frames)[columns].sort_values("layer", kind="stable", ignore_index=True)
    return labelled_frame(frame, labels)


def _head_score_table(study: Selections, temperature: float | str | None) -> Table:
    frame = of_every_value(
        study, lambda value: head_score_frame(study.singles[value], study.at(value, temperature))
    )
    cells = _option_cell(study) | {"head": "{head}"}
    across, lines = ("network", "{score_median:.3f}"), study.option or ""
    at = "; at the temperatures of the study's table" if has_temperature(study.dataset) else ""
    caption = f"{describe_head_scores(study.dataset)}{_medians(study)}{at}."
    return Table(
        "head_scores", "Scores of heads at every width", frame, cells, caption, across, lines, True
    )


def finite_width_gain_table(
    study: xr.Dataset | Selections, temperature: float | str | None = None
) -> Table:
    """Return the table of gains over the limit, see :func:`pathkernel.finite_width_gain`.

    Raises
    ------
    ValueError
        If no seed is complete, or the study lacks the temperature or the scores of the choice.
    """
    study = Selections.of(study)
    dataset = study.dataset
    of_values = {
        value: finite_width_gain(single, temperature) for value, single in study.singles.items()
    }
    frame = of_every_value(study, lambda value: frame_of(of_values[value]))
    seeds = next(iter(of_values.values())).attrs["seeds"]
    measure, several = measures_of(dataset)[0], len(seeds) > 1
    cells = _option_cell(study)
    cells |= {"N": "{width}"}
    if has_temperature(study.dataset):
        cells |= {"T": "{temperature}", "T of limit": "{temperature_gp}"}
    form, unit = (".1p", ", in points") if measure.is_fraction else (".3f", "")
    gain = f"{{gain:+{form}}} ± {{example_error:{form}}}" + f" ({{seed_error:{form}}})" * several
    # without the values themselves, which are means here, and medians in the study's table
    across = ("test_set", gain)
    choice = default_choice(dataset) if temperature is None else temperature
    chosen = ""
    if isinstance(choice, str) and dataset.sizes["temperature"] > 1:
        chosen = f", both of {choices_of(dataset)[choice].description} over the seeds"
    caption = (
        f"{measure.heading[0].upper()}{measure.heading[1:]} less that of the limit{unit}"
        f"{', mean over the seeds' * several} ± standard error over the test examples, which both "
        f"predict{'; in brackets that over the seeds' * several}. {_seeds(seeds)}."
    )
    if has_temperature(study.dataset):
        caption += (
            f" T: temperature of the width, and of the limit that it is compared with{chosen}."
        )
    title = "Gain over the Gaussian process limit"
    lines = study.option or ""
    return Table("gains", title, frame, cells, caption, across, lines, detail=True)


def choice_frame(dataset: xr.Dataset) -> pd.DataFrame:
    """Return scores and temperatures for each choice of the temperature, over complete seeds.

    A row for each choice, test set and width, or limit (width missing), with the median and the
    range over the seeds; empty if there is no choice, or no seed is complete.
    """
    seeds = complete_seeds(dataset)
    if dataset.sizes["temperature"] == 1 or not seeds.size:
        return pd.DataFrame()
    dataset, measure = dataset.sel(seed=seeds), measures_of(dataset)[0]
    frames = []
    for name, choice in choices_of(dataset).items():
        if name == "paper" or choice.score not in dataset:  # of several test sets
            continue
        indices = choose_temperatures(dataset, name)
        for suffix in ("", "_gp"):
            index = indices[f"index{suffix}"]
            score = dataset[f"{measure.name}{suffix}"].load().isel(temperature=index)
            score = score.where(index >= 0).transpose("test_set", ..., "seed")
            statistics = _over_seeds(measure.name, measure.long_name, measure.units, score)
            frame = frame_of(xr.Dataset(statistics))
            frame.insert(0, "choice", f"T of {choice.description.partition(', which')[0]}")
            if suffix:
                frame = frame.assign(width=np.nan, network="GP limit")
            else:
                frame["network"] = [f"N = {number(width)}" for width in frame["width"]]
            frames.append(frame[frame[f"{measure.name}_seeds"] > 0])
    columns = ["choice", "test_set", "network", "width", "temperature"]
    columns += [f"{measure.name}_{key}" for key in ("median", "lowest", "highest", "seeds")]
    return pd.concat(frames, ignore_index=True)[columns]


def choice_table(study: xr.Dataset | Selections) -> Table | None:
    """Return the table of :func:`choice_frame`, or None if there is no choice."""
    study = Selections.of(study)
    frame = of_every_value(study, lambda value: choice_frame(study.singles[value]))
    if "choice" not in frame:
        return None
    measure = measures_of(study.dataset)[0]
    cells = _option_cell(study) | {"choice": "{choice}", "network": "{network}"}
    across = ("test_set", f"{{{measure.name}_median:{measure.form}}}\nT = {{temperature}}")
    heading = f"{measure.heading[0].upper()}{measure.heading[1:]}{_medians(study)}"
    caption = f"{heading}, and the temperature chosen."
    title = "Scores by every choice of the temperature"
    return Table("temperature_choice", title, frame, cells, caption, across, "choice", detail=True)
