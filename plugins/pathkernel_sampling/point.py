"""One point of a stored study, found in its store and rebuilt to be sampled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.hooks import Plugins
from pathkernel_core.network import Network
from pathkernel_datasets.array_libraries import array_library
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.selection import Selection, number
from pathkernel_datasets.store import StoreError, check_store
from pathkernel_datasets.study import Study


@dataclass(frozen=True)
class GridPoint:
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
        cls, dataset: xr.Dataset, width: float, temperature: float | None, seed: int | None
    ) -> GridPoint:
        """The point of a study next to what is asked for.

        Parameters
        ----------
        dataset : Dataset
            The study, from :func:`pathkernel_datasets.store.open_store`.
        width : float
        temperature : float, optional
            By default that of largest log evidence at this width.
        seed : int, optional
            By default the study's first.

        Raises
        ------
        StoreError
            If the study lacks the point.
        """
        index = _find(dataset, "width", width, "--widths")
        if temperature is None:
            temperature = Selection(dataset).temperatures[index]
        at = _find(dataset, "temperature", temperature, "--temperatures")
        if seed is None:
            seed = dataset["seed"].values[0]
        _find(dataset, "seed", seed, "--seeds")
        values = dataset["width"].values[index], dataset["temperature"].values[at]
        return cls(float(values[0]), float(values[1]), int(seed))

    def __str__(self) -> str:
        """Name of the point as a group of a store."""
        numbers = (
            np.format_float_positional(value, trim="-") for value in (self.temperature, self.width)
        )
        return "seed-{}_T-{}_N-{}".format(self.seed, *numbers)


@dataclass(frozen=True)
class Point:
    """A point of a study with its data.

    Attributes
    ----------
    at : GridPoint
    network : Network
        At the point's width.
    data : PreparedData
        NumPy arrays in double precision.
    """

    at: GridPoint
    network: Network
    data: PreparedData

    @classmethod
    def rebuild(cls, store: str | os.PathLike, at: GridPoint, plugins: Plugins) -> Point:
        """Data and network of a point, drawn anew as the study's identity says.

        Parameters
        ----------
        store : path
            Result store of the study.
        at : GridPoint
        plugins : Plugins
            Where the study's task is looked up.

        Raises
        ------
        StoreError
            If what is installed would not give the same study.
        UnknownNameError
            If no plugin provides the study's task.
        """
        stored = check_store(Path(store))
        task = plugins.task(stored["task"])(**stored["options"])
        grid = (stored["widths"], stored["temperatures"], stored["seeds"])
        study = Study(task, *grid, stored["backend"], stored["dtype"])
        _check_identity(stored, study.identity())
        data = prepare_data(study, at.seed, array_library("numpy"))
        whole = data.network
        network = Network(whole.heads, at.width, whole.variances, whole.outputs)
        return cls(at, network, data)


def _find(dataset: xr.Dataset, name: str, value: float, flag: str) -> int:
    values = dataset[name].values
    found = np.flatnonzero(np.isclose(values, value, rtol=1e-9, atol=0))
    if not found.size:
        raise StoreError(
            f"the store has no {name} {value:g}; it has {', '.join(map(number, values))}. Run "
            f"the study with it in {flag}, into another store"
        )
    return int(found[0])


def _check_identity(stored: Mapping[str, Any], installed: Mapping[str, Any]) -> None:
    lines = [
        f"{key}: the store has {stored.get(key)}, here it is {value}"
        for key, value in sorted(installed.items())
        if value != stored.get(key)
    ]
    if lines:
        raise StoreError(
            "the study was made from something else than what is installed here "
            f"({'; '.join(lines)}); run it again into another store"
        )
