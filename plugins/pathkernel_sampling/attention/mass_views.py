"""Masses of the modes of learned attention along a parameter: a table, a chart and crossings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.results.draws import runs
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_sampling.draws.sampled import Run
from pathkernel_views.chart import Chart
from pathkernel_views.primitives import lines
from pathkernel_views.table import Table, labelled_frame

if TYPE_CHECKING:
    import altair as alt

_NAME = "mode_masses"
_LABELS = {
    "width": "width N",
    "temperature": "temperature T",
    "kind": "what heads attend to",
    "mass": "posterior probability",
    "mass_error": "Monte-Carlo error of the mass, from its spread over chains",
    "smallest": "smallest mass in a chain",
    "largest": "largest mass in a chain",
    "low": "mass less its error",
    "high": "mass plus its error",
}
_LOGARITHMIC = ("width", "temperature", "examples")
_MASSES = ("kind", "chains")
_POINT = ("width", "temperature", "seed", "form", "sampler", "method")


def mass_views(
    study: StoredStudy, result: str, seed: int | None = None, temperature: float | None = None
) -> Iterator[Table | Chart | str]:
    """Yield masses of the kinds of modes at all points of a study, if they are several.

    A kind is what the heads of a mode attend to; modes of one kind count together, since the number
    of clusters is that of a point. Single chains of the no-U-turn sampler stand beside tempering
    where both were run: a chain that stays where it started has a mass of 0 or 1.

    Parameters
    ----------
    study : StoredStudy
        With all values of a swept option.
    result : str
        Name of the result.
    seed : int, optional
        Seed of the points to show; by default all.
    temperature : float, optional
        Their temperature; by default all.
    """
    masses = _masses(study, result, seed, temperature)
    if not (settings := _varying(masses)):
        return
    along = _axis(masses, settings)
    frame = _frame(masses)
    labelled = labelled_frame(frame, _LABELS)
    yield Table(
        _NAME,
        f"Masses of modes along the {_word(along)}",
        labelled,
        {
            **{_word(name): f"{{{name}}}" for name in [along, *settings] if name != along},
            _word(along): f"{{{along}}}",
            "heads attend to": "{kind}",
            "mass ± error": "{mass:.3f} ± {mass_error:.2g}",
            "in a chain": "{smallest:.3f} – {largest:.3f}",
        },
        "Posterior probability of all modes of a kind, whatever the order of heads in a layer, its "
        "error from the spread over chains, and its range over them. A mode near the limit of two "
        "kinds may count for either. By tempering every chain weighs all modes; a single chain "
        "(nuts) may stay where it started, and then has 0 or 1.",
    )
    panels = [name for name in settings if name != along]
    if not _is_parameter(frame, along):
        return
    for rows in _parts(masses, panels):
        yield from (f"{line}." for line in crossings(rows, along, panels))
    yield Chart(
        _NAME,
        f"Masses of modes along the {_word(along)}",
        "Posterior probability of the modes of learned attention, by what their heads attend to, "
        "with Monte-Carlo errors.",
        partial(_draw, labelled, along, panels),
    )


def _masses(
    study: StoredStudy, result: str, seed: int | None, temperature: float | None
) -> pd.DataFrame:
    """Rows of points and kinds, with the mass in each chain."""
    option, rows = next(iter(study.identity.get("sweep", ())), None), []
    for single in study.singles:
        for name in runs(single, result):
            run = Run(single, name)
            if "modes" not in run.draws.children:
                continue  # the run is not complete
            settings = run.all_settings
            if seed not in (None, settings["seed"]):
                continue
            if temperature is not None and not math.isclose(temperature, settings["temperature"]):
                continue
            point = {name: settings.get(name, "") for name in _POINT}
            if option:
                point = {option: single.identity["options"][option]} | point
            modes = run.draws["modes"].to_dataset()[["name", "mass_of_chain", "head"]].load()
            rows += [
                {**point, "kind": kind, "chains": chains} for kind, chains in _kinds(modes).items()
            ]
    return _with_zeros(pd.DataFrame(rows))


def _kinds(modes: xr.Dataset) -> dict[str, np.ndarray]:
    """Masses of kinds in every chain.

    Modes are of one kind if they differ by their number, or by the order of the heads of a layer,
    which may be exchanged.
    """
    layers = [str(head).partition("-")[0] for head in modes["head"].values]
    kinds: dict[str, np.ndarray] = {}
    for name, chains in zip(modes["name"].values, modes["mass_of_chain"].transpose("mode", ...)):
        heads = str(name).partition(" (")[0].split(" + ")
        of_layers = itertools.groupby(zip(layers, heads), key=lambda pair: pair[0])
        kind = " + ".join(head for _, pairs in of_layers for _, head in sorted(pairs))
        kinds[kind] = kinds.get(kind, 0.0) + chains.values
    return kinds


def _with_zeros(masses: pd.DataFrame) -> pd.DataFrame:
    """The rows, and mass 0 of the kinds that a point lacks and another has."""
    if masses.empty:
        return masses
    point = [name for name in masses if name not in _MASSES]
    rows = []
    for values, group in masses.groupby(point, sort=False, dropna=False):
        of_kind, without = dict(zip(group["kind"], group["chains"])), 0 * group["chains"].iloc[0]
        for kind in masses["kind"].unique():
            rows.append([*values, kind, of_kind.get(kind, without)])
    return pd.DataFrame(rows, columns=[*point, *_MASSES])


def _varying(masses: pd.DataFrame) -> list[str]:
    columns = (name for name in masses if name not in _MASSES)
    return [name for name in columns if masses[name].nunique() > 1]


def _axis(masses: pd.DataFrame, settings: list[str]) -> str:
    """The swept option if there is one, otherwise the number that has most values."""
    swept = [name for name in settings if name not in _POINT]
    numbers = [name for name in settings if name in ("width", "temperature")]
    numbers.sort(key=lambda name: -masses[name].nunique())
    return [*swept, *numbers, *settings][0]


def _is_parameter(frame: pd.DataFrame, along: str) -> bool:
    """Whether a column is a number along which masses change: no seed, no name, no switch."""
    dtype = frame[along].dtype
    is_number = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
    return is_number and along != "seed"


def _word(name: str) -> str:
    return {"width": "width N", "temperature": "temperature T"}.get(name, name.replace("_", " "))


def _frame(masses: pd.DataFrame) -> pd.DataFrame:
    means, errors = zip(*map(_mean_and_error, masses["chains"]))
    frame = masses.drop(columns="chains").assign(
        mass=means,
        mass_error=errors,
        smallest=masses["chains"].map(np.min),
        largest=masses["chains"].map(np.max),
    )
    width = frame["mass_error"].fillna(0.0)
    return frame.assign(low=frame["mass"] - width, high=frame["mass"] + width)


def _mean_and_error(chains: np.ndarray) -> tuple[float, float]:
    """Mean over chains, and its standard error, NaN of a single chain."""
    count = len(chains)
    error = float(chains.std(ddof=1) / np.sqrt(count)) if count > 1 else math.nan
    return float(chains.mean()), error


def _parts(masses: pd.DataFrame, panels: list[str]) -> Iterator[pd.DataFrame]:
    if not panels:
        yield masses
        return
    for _, rows in masses.groupby(panels, sort=False):
        yield rows


def crossings(masses: pd.DataFrame, along: str, panels: list[str]) -> Iterator[str]:
    """Sentences on where two kinds of modes are equally likely, with an error.

    The logarithm of the ratio of their masses is interpolated between neighbouring values, along
    the logarithm of a width, a temperature or a number of examples.

    Parameters
    ----------
    masses : pandas.DataFrame
        Rows of one setting, with columns ``kind``, ``chains``, the mass in each chain.
    along : str
        Column of the parameter.
    panels : list of str
        Columns of settings that the sentences name.
    """
    is_log = along in _LOGARITHMIC
    first = masses.iloc[0]
    setting = "".join(f", {_word(name)} {_text(first[name])}" for name in panels)
    for one, other in itertools.combinations(masses["kind"].unique(), 2):
        points = _log_ratios(masses, along, one, other)
        for (x, ratio, error), (beyond, following, its_error) in itertools.pairwise(points):
            # at a value where both are equal the crossing is the end of one pair of neighbours
            if np.sign(ratio) == np.sign(following) or ratio == 0:
                continue
            between = f"between {number(float(x))} and {number(float(beyond))}"
            what = f"Modes of {one} and of {other} are equally likely where the {_word(along)} is"
            if not np.isfinite(ratio - following):
                yield f"{what} {between}{setting}; one kind has no draw there"
                continue
            ends = np.log([x, beyond]) if is_log else np.array([x, beyond], dtype=float)
            share = ratio / (ratio - following)
            place = ends[0] + share * (ends[1] - ends[0])
            # the errors of the two ratios, as far as each moves the crossing
            moved = abs((ends[1] - ends[0]) / (ratio - following))
            spread = moved * np.hypot((1 - share) * error, share * its_error)
            if is_log:
                place, spread = np.exp(place), np.exp(place) * spread
            told = f" ± {spread:.2g}" if np.isfinite(spread) else ""
            yield f"{what} {place:.3g}{told}{setting}, interpolated {between}"


def _log_ratios(
    masses: pd.DataFrame, along: str, one: str, other: str
) -> list[tuple[float, float, float]]:
    """Values of the parameter, logs of the ratio of two masses, and errors.

    Values at which both are 0 are left out; where one is, the log is infinite.
    """
    ratios = []
    for value, rows in masses.groupby(along):
        of_kind = rows.set_index("kind")["chains"]
        first, second = of_kind[one], of_kind[other]
        ends = first.mean(), second.mean()
        if not any(ends):
            continue
        if not all(ends):
            ratios.append((value, math.copysign(math.inf, ends[0] - ends[1]), math.nan))
            continue
        both = sum(ends)
        share = ends[0] / both
        # of the share of the first in both, by linear propagation from the chains
        _, error = _mean_and_error((first - share * (first + second)) / both)
        ratios.append((value, float(np.log(ends[0] / ends[1])), error / (share * (1 - share))))
    return ratios


def _text(value: Any) -> str:
    return number(float(value)) if isinstance(value, int | float | np.number) else str(value)


def _draw(frame: pd.DataFrame, along: str, panels: list[str]) -> alt.TopLevelMixin:
    attributes = frame.attrs
    if panels:
        texts = [
            ", ".join(f"{_word(name)} {_text(value)}" for name, value in zip(panels, row))
            for row in frame[panels].itertuples(index=False)
        ]
        frame = frame.assign(setting=texts)
        frame.attrs = attributes
    is_log = along in _LOGARITHMIC
    return lines(
        frame,
        along,
        "mass",
        low="low",
        high="high",
        series="kind",
        bands=False,
        log=is_log,
        **({"panel": "setting"} if panels else {}),
    )
