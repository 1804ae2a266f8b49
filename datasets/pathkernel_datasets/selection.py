"""Which part of a store tables and figures show: one temperature at every width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from pathkernel_datasets.choice import CHOICES
from pathkernel_datasets.errors import NotInStoreError
from pathkernel_datasets.schema import STATUS_CODES

CONVERGED = STATUS_CODES["converged"]
NOT_COMPUTED = STATUS_CODES["not computed"]


WORDS = ("evidence", "validation")
"""Choices of a temperature that have not seen the test sets."""


@dataclass(frozen=True)
class Spread:
    """Median and range of a quantity over the seeds that have it.

    Attributes
    ----------
    median, lowest, highest : float
        In the quantity's own units; NaN if no seed has it.
    seeds : int
        Number of seeds that have it.
    """

    median: float
    lowest: float
    highest: float
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Spread of some numbers, NaN left out."""
        values = np.asarray(list(values), dtype=float)
        values = values[~np.isnan(values)]
        if not values.size:
            return cls(np.nan, np.nan, np.nan, 0)
        return cls(float(np.median(values)), float(values.min()), float(values.max()), values.size)


class Selection:
    """A store at one temperature for every width: what figures and tables show.

    Grid points without a status, of a run that goes on or was stopped, count as NaN.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`.
    temperature : float, "evidence" or "validation"
        Temperature of the store; or, for each width, the one with the largest log evidence summed
        over the seeds, or with the largest validation accuracy (ties by the log evidence), and for
        the Gaussian process limit likewise its own. Seeds for which other seeds have more
        temperatures so far do not take part in the choice.

    Attributes
    ----------
    temperatures : array, shape (width,)
        Temperature T chosen for each width.
    temperature_gp : float
        Temperature chosen for the Gaussian process limit and the sub-networks.
    chosen : str or None
        "evidence" or "validation" if there was a choice between temperatures to be made.
    status : xarray.DataArray, dims (seed, width)
        Status code of every grid point.

    Raises
    ------
    ValueError
        If the store does not have the temperature or the validation accuracy asked for.
    """

    def __init__(self, dataset: xr.Dataset, temperature: float | str = "evidence"):
        self._dataset = dataset
        available = dataset["temperature"].values
        # the markers first: what they vouch for is then surely there, even while a run goes on
        status = dataset["status"].transpose("seed", "temperature", "width").load()
        self._references = dataset["reference_done"].transpose("seed", "temperature").load()
        by_word = isinstance(temperature, str)
        if by_word:
            scores, scores_gp = _scores(dataset, temperature)
            tried = status.values != NOT_COMPUTED
            index = [
                _best([score[..., w] for score in scores], tried[..., w])
                for w in range(dataset.sizes["width"])
            ]
            self._index_gp = _best(scores_gp, self._references.values != 0)
        else:
            self._index_gp = index_of(dataset, "temperature", temperature)
            index = [self._index_gp] * dataset.sizes["width"]
        self._index = xr.DataArray(np.array(index, dtype=int), dims="width")
        self.temperatures = available[index]
        self.temperature_gp = float(available[self._index_gp])
        self.chosen = temperature if by_word and available.size > 1 else None
        self.status = self._at_width(status)

    def point(self, name: str) -> xr.DataArray:
        """Variable of the grid points, dims (seed, width, …), NaN where not computed."""
        return self._at_width(self._dataset[name]).where(self.status != NOT_COMPUTED)

    def reference(self, name: str) -> xr.DataArray:
        """Variable of the Gaussian process limit, dims (seed, …), NaN where not computed."""
        return self._dataset[name].isel(temperature=self._index_gp).where(self.references_done)

    @property
    def references_done(self) -> xr.DataArray:
        """Whether the limits of each seed are computed, dims (seed,)."""
        return self._references.isel(temperature=self._index_gp) != 0

    def describe(self, values: bool = True) -> str:
        """The choice of temperatures in words, with or without their values."""
        if not self.chosen:
            return f"T = {self.temperature_gp:g}"
        words = f"T of {CHOICES[self.chosen]}"
        if not values:
            return words
        lowest, highest = min(self.temperatures), max(self.temperatures)
        widths = f"{lowest:g}" if lowest == highest else f"{lowest:g} to {highest:g}"
        return f"{words} at each width ({widths}) and in the GP limit ({self.temperature_gp:g})"

    def _at_width(self, variable: xr.DataArray) -> xr.DataArray:
        every = xr.DataArray(np.arange(variable.sizes["width"]), dims="width")
        chosen = variable.isel(temperature=self._index, width=every)
        return chosen.transpose("seed", "width", ...)


def index_of(dataset: xr.Dataset, name: str, value: float) -> int:
    """Index of a seed, temperature or width of a store.

    Raises
    ------
    NotInStoreError
        If the store does not have it.
    """
    values = dataset[name].values
    found = np.flatnonzero(np.isclose(values, value, rtol=1e-9, atol=0))
    if not found.size:
        raise NotInStoreError(
            f"the store has no {name} {number(value)}; it has {_listed(dataset, name)}. Run the "
            f"study with it in --{name}s, into another store"
        )
    return int(found[0])


def check_choice(dataset: xr.Dataset, choice: str) -> None:
    """Check that temperatures of a store can be chosen in this way.

    Raises
    ------
    ValueError
        If there is no such choice, or the store does not have what it goes by.
    """
    if choice not in WORDS:
        raise ValueError(f"temperature must be a number or one of {', '.join(WORDS)}, not {choice}")
    if choice == "validation" and "accuracy_validation" not in dataset:
        raise ValueError(
            "the store has no validation accuracy, because its task gives no validation examples; "
            f'choose the temperature by "evidence", or name one of '
            f"{_listed(dataset, 'temperature')}"
        )


def _listed(dataset: xr.Dataset, name: str) -> str:
    return ", ".join(map(number, dataset[name].values))


def _scores(dataset: xr.Dataset, choice: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a choice goes by, the deciding score last, at finite width and in the GP limit."""
    check_choice(dataset, choice)
    names = ["log_evidence"]
    if choice == "validation":
        names.append("accuracy_validation")
    return (
        [dataset[name].transpose("seed", "temperature", "width").values for name in names],
        [dataset[f"{name}_gp"].transpose("seed", "temperature").values for name in names],
    )


def _best(scores: Sequence[np.ndarray], tried: np.ndarray) -> int:
    """Temperature of largest sum over seeds of the last score, ties by the one before it.

    Scores and ``tried`` have the shape (seed, temperature).
    """
    seeds = tried.sum(axis=1) == tried.sum(axis=1).max()
    common = tried[seeds].all(axis=0)
    if not common.any():  # the seeds have different temperatures: go by the first
        seeds = np.arange(len(tried)) == np.argmax(seeds)
        common = tried[seeds][0]
    finite = np.where(common, np.isfinite(scores[0][seeds]).sum(axis=0), -1)
    left = finite == finite.max()  # one that failed for some seed is chosen only if all did
    for score in reversed(scores):
        total = np.where(np.isfinite(score[seeds]), score[seeds], 0).sum(axis=0)
        total = np.where(left, total, -np.inf)
        left = total >= total.max() - 1e-12  # sums of equal accuracies may differ by rounding
    return int(np.argmax(left))


def count_test_examples(dataset: xr.Dataset, test_set: int) -> int:
    """Number of examples of a test set, by its index; shorter sets are filled up with NaN."""
    labels = dataset["test_label"].isel(test_set=test_set)
    if "output" in labels.dims:
        labels = labels.isel(output=0)
    return int(labels.notnull().sum("example").max())


def number(value: float) -> str:
    """A width as a reader would write it: 1000, not 1e+03."""
    whole = float(value).is_integer() and abs(value) < 1e7
    return f"{value:.0f}" if whole else f"{value:g}"


def few(count: int, most: int = 5) -> list[int]:
    """Places of at most so many of several things in order, first and last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})
