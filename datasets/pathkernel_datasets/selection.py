"""Which part of a store tables and figures show: one temperature at every width."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from pathkernel_datasets.choice import (
    NOT_COMPUTED,
    check_choice,
    choose,
    default_choice,
)
from pathkernel_datasets.choices import choices_of
from pathkernel_datasets.errors import NotInStoreError
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.swept import check_single

CONVERGED = STATUS_CODES["converged"]


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
    temperature : float or str, optional
        Temperature of the store; or, for each width and for the limits, the one of a choice, pooled
        over the seeds: see :data:`pathkernel_datasets.choices.CHOICES`. By default that of
        :func:`pathkernel_datasets.choice.default_choice`.

    Attributes
    ----------
    temperatures : array, shape (width,)
        Temperature T chosen for each width.
    temperature_gp : float
        Temperature chosen for the Gaussian process limit.
    temperatures_sub_network : array, shape (sub_network,)
        Temperature chosen for that of each sub-network.
    chosen : str or None
        Name of the choice, if there was one between temperatures to be made.
    status : xarray.DataArray, dims (seed, width)
        Status code of every grid point.

    Raises
    ------
    ValueError
        If the store does not have the temperature asked for, or what the choice goes by: a
        score of validation examples, or a log evidence at all of its widths; or if the dataset
        holds several values of an option of its task.
    """

    def __init__(self, dataset: xr.Dataset, temperature: float | str | None = None):
        check_single(dataset)
        self._dataset = dataset
        available = dataset["temperature"].values
        # the markers first: what they vouch for is then surely there, even while a run goes on
        status = dataset["status"].transpose("seed", "temperature", "width").load()
        self._references = dataset["reference_done"].transpose("seed", "temperature").load()
        if temperature is None:
            temperature = default_choice(dataset)
        parts = dataset.sizes.get("sub_network", 0)
        chosen: str | None = None
        if isinstance(temperature, str):
            chosen = temperature
            check_choice(dataset, temperature)
            found = choose(dataset, temperature).isel(test_set=0, drop=True)
            index = found["index"].values
            computed = (status != NOT_COMPUTED).any(("seed", "temperature")).values
            _check_defined(dataset, temperature, (index < 0) & computed)
            self._index_gp = max(int(found["index_gp"]), 0)
            of_parts = found["index_sub_network"].values if parts else np.zeros(0, dtype=int)
        else:
            self._index_gp = index_of(dataset, "temperature", temperature)
            index = np.full(dataset.sizes["width"], self._index_gp)
            of_parts = np.full(parts, self._index_gp)
        # where all failed any will do
        index, of_parts = np.maximum(index, 0), np.maximum(of_parts, 0)
        self._index_sub_network = xr.DataArray(of_parts, dims="sub_network")
        self.temperatures_sub_network = available[of_parts]
        self._index = xr.DataArray(np.array(index, dtype=int), dims="width")
        self.temperatures = available[index]
        self.temperature_gp = float(available[self._index_gp])
        self.chosen = chosen if available.size > 1 else None
        self.status = self._at_width(status)

    def point(self, name: str) -> xr.DataArray:
        """Variable of the grid points, dims (seed, width, …), NaN where not computed."""
        return self._at_width(self._dataset[name]).where(self.status != NOT_COMPUTED)

    def reference(self, name: str) -> xr.DataArray:
        """Variable of the Gaussian process limit, dims (seed, …), NaN where not computed."""
        values = self._dataset[name].isel(temperature=self._index_gp)
        return values.where(self.references_done)

    def sub_networks(self, name: str) -> xr.DataArray:
        """Variable of the sub-networks, dims (seed, sub_network, …), NaN where not computed."""
        every = xr.DataArray(np.arange(self._index_sub_network.size), dims="sub_network")
        at = {"temperature": self._index_sub_network, "sub_network": every}
        done = self._references.isel(temperature=self._index_sub_network) != 0
        return self._dataset[name].isel(at).where(done).transpose("seed", "sub_network", ...)

    @property
    def references_done(self) -> xr.DataArray:
        """Whether the limits of each seed are computed, dims (seed,)."""
        return self._references.isel(temperature=self._index_gp) != 0

    def describe(self, values: bool = True) -> str:
        """The choice of temperatures in words, with or without their values."""
        if not self.chosen:
            return f"T = {self.temperature_gp:g}"
        words = f"T of {choices_of(self._dataset)[self.chosen].words}"
        if not values:
            return words
        known = self.temperatures[(self.status != NOT_COMPUTED).any("seed").values]
        places = []
        if known.size:
            ends = dict.fromkeys(f"{value:g}" for value in (known.min(), known.max()))
            places.append(f" at each width ({' to '.join(ends)})")
        if self.references_done.any():
            places.append(f" in the GP limit ({self.temperature_gp:g})")
        return words + " and".join(places)

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
        option = "--seed" if name == "seed" else f"--{name}s"
        raise NotInStoreError(
            f"the store has no {name} {number(value)}; it has {_listed(dataset, name)}. Run the "
            f"study with it in {option}, which extends the store"
        )
    return int(found[0])


def _listed(dataset: xr.Dataset, name: str) -> str:
    return ", ".join(map(number, dataset[name].values))


def _check_defined(dataset: xr.Dataset, choice: str, missing: np.ndarray) -> None:
    if choice in ("evidence", "next-evidence") and missing.any():
        undefined = missing & dataset["log_evidence"].isnull().all(("seed", "temperature")).values
        why = "is not defined at N = {}, below the sizes of the order parameters"
        if not undefined.any():
            why, undefined = "to next order is not computed on the grid of N = {}", missing
        widths = ", ".join(number(width) for width in dataset["width"].values[undefined])
        raise NotInStoreError(
            f"the log evidence {why.format(widths)}; choose the temperature by "
            f'"{default_choice(dataset)}"'
        )


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
