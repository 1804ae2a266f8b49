"""Log evidence to next order in 1/N over the grid of a study, from the corrections in its store."""

from __future__ import annotations

import os
from pathlib import Path

import xarray as xr
import zarr

from pathkernel_datasets.point import decimal
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.study import POINT

NAME = "log_evidence_correction"

_GROUP = "corrections"


def grid_group(seed: int, width: float) -> str:
    """Group of a store that holds the corrections of one seed and width, dims (temperature,)."""
    return f"{_GROUP}/seed-{seed}_N-{decimal(width)}"


def grid_corrections(path: str | os.PathLike, dataset: xr.Dataset) -> tuple[xr.DataArray, ...]:
    """Next-order corrections of the log evidence in a store, over the grid of its study.

    Returns
    -------
    corrections, lacking : DataArray, dims (seed, temperature, width)
        In nats, NaN where not computed; and whether a converged point that has a log evidence has
        none.
    """
    leading = dataset["log_evidence"].transpose(*POINT).load()
    corrections = xr.full_like(leading, float("nan"))
    for seed in dataset["seed"].values:
        for width in dataset["width"].values:
            folder = Path(path) / grid_group(seed, width)
            if (folder / "zarr.json").exists():
                group = zarr.open_group(folder, mode="r")
                temperatures = group["temperature"][...]  # the study may have grown since
                point = {"seed": seed, "width": width, "temperature": temperatures}
                corrections.loc[point] = group[NAME][...]
    converged = dataset["status"].transpose(*POINT).load() == STATUS_CODES["converged"]
    return corrections, converged & leading.notnull() & corrections.isnull()


def with_next_evidence(path: str | os.PathLike, dataset: xr.Dataset) -> xr.Dataset:
    """A study with ``log_evidence_next``, if its store holds it over the grid of some width.

    In nats, dims (seed, temperature, width): NaN at all points of a width of which any lacks it,
    since such temperatures cannot be compared. Under the names that end in ``_gp`` and
    ``_sub_network``, that of the Gaussian process limits, which need no correction.
    """
    if not (Path(path) / _GROUP).is_dir():
        return dataset
    corrections, lacking = grid_corrections(path, dataset)
    evidence = dataset["log_evidence"] + corrections
    evidence = evidence.where(~lacking.any(("seed", "temperature"))).transpose(*POINT)
    if evidence.isnull().all():
        return dataset
    long_name = "log evidence ln p(Y) to next order in 1/N"
    scores = {"log_evidence_next": evidence.assign_attrs(long_name=long_name, units="nat")}
    for suffix in ("_gp", "_sub_network"):
        if f"log_evidence{suffix}" in dataset:
            scores[f"log_evidence_next{suffix}"] = dataset[f"log_evidence{suffix}"]
    return dataset.assign(scores)
