"""Points of a study: their names, and their data drawn anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from pathkernel_core.network import Network
from pathkernel_datasets.prepared import PreparedData
from pathkernel_datasets.selection import Selection, index_of, number


@dataclass(frozen=True)
class Point:
    """Coordinates of a point of a study.

    Attributes
    ----------
    width, temperature : float
    seed : int
    """

    width: float
    temperature: float
    seed: int

    @classmethod
    def find(
        cls,
        dataset: xr.Dataset,
        width: float,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> Point:
        """The point of a study next to what is asked for.

        Parameters
        ----------
        dataset : Dataset
            The study, from :func:`pathkernel_datasets.store.open_store`.
        width : float
        temperature : float, optional
            By default the one that is chosen at this width, as for :class:`Selection`.
        seed : int, optional
            By default the study's first.

        Raises
        ------
        NotInStoreError
            If the study lacks the point.
        """
        index = index_of(dataset, "width", width)
        if temperature is None:
            temperature = Selection(dataset).temperatures[index]
        at = index_of(dataset, "temperature", temperature)
        place = 0 if seed is None else index_of(dataset, "seed", seed)
        values = dataset["width"].values[index], dataset["temperature"].values[at]
        return cls(float(values[0]), float(values[1]), int(dataset["seed"].values[place]))

    def __str__(self) -> str:
        """Name of the point as a group of a store."""
        return f"seed-{self.seed}_T-{decimal(self.temperature)}_N-{decimal(self.width)}"

    @property
    def words(self) -> str:
        """The point as a reader would write it."""
        return f"N = {number(self.width)}, T = {self.temperature:g}, seed {self.seed}"


def decimal(value: float) -> str:
    """A number in decimals, as names of groups have it: 1000 and 0.0001."""
    return np.format_float_positional(value, trim="-")


@dataclass(frozen=True)
class PointData:
    """A point of a study with its data.

    Attributes
    ----------
    at : Point
    network : Network
        At the point's width.
    data : PreparedData
        NumPy arrays in double precision.
    """

    at: Point
    network: Network
    data: PreparedData
