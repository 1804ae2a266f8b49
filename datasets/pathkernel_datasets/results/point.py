"""Points of a study: their names, and their data drawn again."""

from __future__ import annotations

from dataclasses import dataclass

import xarray as xr

from pathkernel_core.paths.network import Network
from pathkernel_core.system.text import number
from pathkernel_datasets.folder.pieces import decimal
from pathkernel_datasets.selection.selection import Selection, index_of
from pathkernel_datasets.study.prepared import PreparedData


@dataclass(frozen=True)
class Point:
    """Coordinates of a point of a study."""

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
        """The point of a study with some coordinates.

        By default the temperature is the one chosen at this width, as for :class:`Selection`, and
        the seed is the study's first.

        Raises
        ------
        NotInStudyError
            If the study lacks the point.
        """
        indices = {"width": index_of(dataset, "width", width)}
        if temperature is None:
            temperature = Selection(dataset).temperatures[indices["width"]]
        indices["temperature"] = index_of(dataset, "temperature", temperature)
        indices["seed"] = 0 if seed is None else index_of(dataset, "seed", seed)
        return cls(**{name: dataset[name].values[index].item() for name, index in indices.items()})

    def __str__(self) -> str:
        """Name of the point in results."""
        return f"seed-{self.seed}_T-{decimal(self.temperature)}_N-{decimal(self.width)}"

    @property
    def description(self) -> str:
        """The point as a reader would write it, such as ``N = 10, T = 0.1, seed 0``."""
        return f"N = {number(self.width)}, T = {self.temperature:g}, seed {self.seed}"


@dataclass(frozen=True)
class PointData:
    """A point of a study with its network, and its data as NumPy arrays in double precision."""

    point: Point
    network: Network
    data: PreparedData
