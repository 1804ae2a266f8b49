"""The part of a study that tables and figures show: one temperature at every width."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.errors import NotInStudyError
from pathkernel_datasets.selection.temperature_choice import (
    NOT_COMPUTED,
    check_choice,
    choose_common_temperature,
    choose_temperatures,
    default_choice,
)
from pathkernel_datasets.variables.measures import choices_of
from pathkernel_datasets.variables.quantities import STATUS_CODES
from pathkernel_datasets.variables.swept_option import (
    by_value,
    check_single,
    checked_dataset,
    swept_option,
)

CONVERGED = STATUS_CODES["converged"]


class Selection:
    """A study at one temperature for every width, NaN where not computed.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.folder.reading.open_study`.
    temperature : float or str, optional
        Temperature of the study; or, for each width and for the limits, the one of a choice, pooled
        over the seeds: see :data:`pathkernel_datasets.variables.measures.CHOICES`. By default that
        of :func:`pathkernel_datasets.selection.temperature_choice.default_choice`.

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
        If the study lacks the temperature, or the scores of the choice: those of validation
        examples, or a log evidence at all of its widths; or if the dataset holds several values of
        an option of its task.
    """

    def __init__(self, dataset: xr.Dataset, temperature: float | str | None = None):
        dataset = checked_dataset(dataset)
        check_single(dataset)
        self._dataset, candidates = dataset, dataset
        choice = default_choice(dataset) if temperature is None else temperature
        if isinstance(choice, str):
            check_choice(dataset, choice)
            self.chosen = choice if dataset.sizes["temperature"] > 1 else None
        else:
            candidates = dataset.isel(temperature=[index_of(dataset, "temperature", choice)])
            choice, self.chosen = "test", None  # of one temperature any choice takes it
        indices = choose_temperatures(candidates, choice).isel(test_set=0, drop=True)
        if choice == "evidence":
            _check_evidence(dataset, indices["index"])
        # where all temperatures failed any will do
        temperatures = candidates["temperature"].values
        chosen = {name: temperatures[index.values.clip(0)] for name, index in indices.items()}
        self.temperatures = chosen["index"]
        self.temperature_gp = float(chosen["index_gp"])
        self.temperatures_sub_network = chosen.get("index_sub_network", temperatures[:0])
        self.status = self._at_widths("status").load()

    def point(self, name: str) -> xr.DataArray:
        """Variable of the grid points, dims (seed, width, …), NaN where not computed."""
        return self._at_widths(name).where(self.status != NOT_COMPUTED)

    def reference(self, name: str) -> xr.DataArray:
        """Variable of the Gaussian process limit, dims (seed, …), NaN where not computed."""
        values = self._dataset[name].sel(temperature=self.temperature_gp)
        return values.where(self.references_done)

    def sub_networks(self, name: str) -> xr.DataArray:
        """Variable of the sub-networks, dims (seed, sub_network, …), NaN where not computed."""
        temperatures = xr.DataArray(self.temperatures_sub_network, dims="sub_network")
        chosen = self._dataset[[name, "reference_done"]].sel(temperature=temperatures)
        computed = chosen[name].where(chosen["reference_done"] != 0)
        return computed.transpose("seed", "sub_network", ...)

    @property
    def references_done(self) -> xr.DataArray:
        """Whether the limits of each seed are computed, dims (seed,)."""
        return self._dataset["reference_done"].sel(temperature=self.temperature_gp) != 0

    def describe(self, values: bool = True) -> str:
        """The choice of temperatures in words, with or without their values."""
        if not self.chosen:
            return f"T = {self.temperature_gp:g}"
        description = f"T of {choices_of(self._dataset)[self.chosen].description}"
        if not values:
            return description
        ranges = []
        computed = self.temperatures[(self.status != NOT_COMPUTED).any("seed").values]
        if computed.size:
            ends = dict.fromkeys(f"{end:g}" for end in (computed.min(), computed.max()))
            ranges.append(f" at each width ({' to '.join(ends)})")
        if self.references_done.any():
            ranges.append(f" in the GP limit ({self.temperature_gp:g})")
        return description + " and".join(ranges)

    def _at_widths(self, name: str) -> xr.DataArray:
        temperatures = xr.DataArray(self.temperatures, dims="width")
        values = self._dataset[name].sel(temperature=temperatures)
        return values.transpose("seed", "width", ...)


class Selections:
    """The selections of a study of one value of an option or of several, each made once.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.folder.reading.open_study`.

    Attributes
    ----------
    dataset : xarray.Dataset
        As views take it, see :func:`pathkernel_datasets.variables.swept_option.checked_dataset`.
    option : str or None
        Name of the swept option.
    singles : dict
        Datasets by the values of the option; by None without one.
    """

    def __init__(self, dataset: xr.Dataset):
        self.dataset = checked_dataset(dataset)
        self.option = swept_option(self.dataset)
        self.singles = by_value(self.dataset)
        self._made: dict[tuple[Any, float | str | None], Selection] = {}

    @classmethod
    def of(cls, study: xr.Dataset | Selections) -> Selections:
        """Return the selections of a dataset; those that are given, as they are."""
        return study if isinstance(study, Selections) else cls(study)

    def at(self, value: Any, temperature: float | str | None) -> Selection:
        """Return the study of a value of the option at a temperature, or choice of one.

        Raises
        ------
        ValueError
            As for :class:`Selection`.
        """
        key = value, temperature
        if key not in self._made:
            self._made[key] = Selection(self.singles[value], temperature)
        return self._made[key]

    def common_temperature(self, temperature: float | str | None) -> float:
        """Return one temperature for all widths and values of the option, for their comparison.

        It is the one given, or the one that a choice takes for all of them together: networks at
        mixed temperatures would not show what the width does.

        Raises
        ------
        ValueError
            As for :class:`Selection`.
        """
        grid, singles = self.dataset["temperature"].values, list(self.singles.values())
        if temperature is not None and not isinstance(temperature, str):
            return float(grid[index_of(self.dataset, "temperature", temperature)])
        if len(grid) == 1 and temperature is None:
            return float(grid[0])
        choice = default_choice(singles[0]) if temperature is None else temperature
        common = choose_common_temperature(singles, choice)
        return float(grid[0]) if common is None else common

    def describe_common(self, temperature: float | str | None) -> str:
        """Return the common temperature in words, with its choice if there was one to be made."""
        text = f"T = {self.common_temperature(temperature):g}"
        if self.dataset.sizes["temperature"] == 1 or isinstance(temperature, int | float):
            return text
        single = next(iter(self.singles.values()))
        choice = default_choice(single) if temperature is None else temperature
        return f"{text}, of {choices_of(single)[choice].description}, all widths together"

    def first(self, temperature: float | str | None) -> Selection:
        """Return the selection of the first value of the option."""
        return self.at(next(iter(self.singles)), temperature)


def index_of(dataset: xr.Dataset, name: str, value: float) -> int:
    """Index of a seed, temperature or width of a study.

    Raises
    ------
    NotInStudyError
        If the study does not have it.
    """
    matches = np.isclose(dataset[name].values, value, rtol=1e-9, atol=0)
    if not matches.any():
        option = "--seed" if name == "seed" else f"--{name}s"
        listed = ", ".join(map(number, dataset[name].values))
        raise NotInStudyError(
            f"the study has no {name} {number(value)}; it has {listed}. Run the "
            f"study with it in {option}, which extends it"
        )
    return int(matches.argmax())


def _check_evidence(dataset: xr.Dataset, index: xr.DataArray) -> None:
    """Check that every width at which anything is computed has a log evidence."""
    grid = ("seed", "temperature")
    undefined = (index < 0) & (dataset["status"] != NOT_COMPUTED).any(grid)
    if undefined.any():
        widths = ", ".join(number(width) for width in dataset["width"].values[undefined.values])
        raise NotInStudyError(
            f"the log evidence is not defined at N = {widths}, below the sizes of the order "
            f'parameters; choose the temperature by "{default_choice(dataset)}"'
        )


def count_test_examples(dataset: xr.Dataset, test_set: int) -> int:
    """Number of examples of a test set, by its index; shorter sets are filled up with NaN."""
    labels = dataset["test_label"].isel(test_set=test_set, output=0, missing_dims="ignore")
    return int(labels.count("example").max())


def spread_indices(count: int, limit: int = 5) -> list[int]:
    """Evenly spaced indices of an ordered sequence, at most ``limit``, with its first and last."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, limit))})
