"""Log evidence to next order in 1/N over the grid of a study, from what its store holds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xarray as xr
import zarr

from pathkernel_datasets.point import decimal
from pathkernel_datasets.schema import POINT, STATUS_CODES

NAME = "log_evidence_correction"

_GROUP = "corrections"
_SCORE = "log_evidence_next"


def grid_group(seed: int, width: float) -> str:
    """Group of a store that holds the corrections of one seed and width, dims (temperature,)."""
    return f"{_GROUP}/seed-{seed}_N-{decimal(width)}"


def grid_corrections(path: str | os.PathLike, dataset: xr.Dataset) -> tuple[xr.DataArray, ...]:
    """What next orders over the grid add to the log evidence, and where they are lacking.

    Parameters
    ----------
    path : path
        Result store.
    dataset : Dataset
        The study in it.

    Returns
    -------
    corrections, lacking : DataArray, dims (seed, temperature, width)
        In nats, NaN where not computed; and whether a converged point that has a log evidence has
        none.
    """
    leading = dataset["log_evidence"].transpose(*POINT).load()
    found = xr.full_like(leading, np.nan)
    for seed in dataset["seed"].values:
        for width in dataset["width"].values:
            folder = Path(path) / grid_group(seed, width)
            if (folder / "zarr.json").exists():
                group = zarr.open_group(folder, mode="r")
                there = {"temperature": group["temperature"][...]}  # the study may have grown since
                found.loc[{"seed": seed, "width": width, **there}] = group[NAME][...]
    converged = dataset["status"].transpose(*POINT).load() == STATUS_CODES["converged"]
    return found, converged & leading.notnull() & found.isnull()


def with_next_evidence(path: str | os.PathLike, dataset: xr.Dataset) -> xr.Dataset:
    """A study with ``log_evidence_next``, if its store holds it over the grid of some width.

    In nats, dims (seed, temperature, width): NaN at all points of a width of which any lacks it,
    since such temperatures cannot be compared. Under the names that end in ``_gp`` and
    ``_sub_network``, that of the Gaussian process limits, which need no correction.
    """
    if not (Path(path) / _GROUP).is_dir():
        return dataset
    corrections, lacking = grid_corrections(path, dataset)
    known = (dataset["log_evidence"] + corrections).where(~lacking.any(("seed", "temperature")))
    if known.isnull().all():
        return dataset
    limits = {
        _SCORE + suffix: dataset[f"log_evidence{suffix}"]
        for suffix in ("_gp", "_sub_network")
        if f"log_evidence{suffix}" in dataset
    }
    words = {"long_name": "log evidence ln p(Y) to next order in 1/N", "units": "nat"}
    return dataset.assign({_SCORE: known.transpose(*POINT).assign_attrs(words), **limits})
