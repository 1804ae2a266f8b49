"""What finite width gains over the Gaussian process limit, with its error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from pathkernel_datasets.choice import check_choice, choose, complete_seeds, default_choice
from pathkernel_datasets.measures import measures_of
from pathkernel_datasets.selection import index_of


def gains(dataset: xr.Dataset, temperature: float | str | None = None) -> xr.Dataset:
    """Accuracy or R² at every width, what it gains over the Gaussian process limit, and errors.

    Both predict the same test examples, so that most of the error of either cancels in the gain:
    its error is that of a paired difference. In that of R² the variance of the targets counts as
    known.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`. Seeds that are not complete are left
        out.
    temperature : float or str, optional
        Temperature T of the store; or how it is chosen for each width and for the limit, as for
        :class:`pathkernel_datasets.selection.Selection`.

    Returns
    -------
    xarray.Dataset
        Means over the seeds, dims (width, test_set): ``accuracy`` of classes, as a fraction, or
        ``r_squared`` of targets; ``gain``; ``example_error``, the standard error of the gain over
        test examples, and ``seed_error``, over the seeds (NaN for a single one). Dims (test_set,):
        ``accuracy_gp`` or ``r_squared_gp``. ``temperature`` (width,) and ``temperature_gp``: where
        both sides are taken. Attribute ``seeds``: those that are complete. NaN where a point of any
        seed failed.

    Raises
    ------
    ValueError
        If no seed is complete, or the store does not have that temperature, or what the choice
        goes by.
    """
    if isinstance(temperature, str):
        check_choice(dataset, temperature)
        index = np.arange(dataset.sizes["temperature"])
    elif temperature is None:
        temperature, index = default_choice(dataset), np.arange(dataset.sizes["temperature"])
    else:
        index = np.array([index_of(dataset, "temperature", temperature)])
    at = dataset.isel(temperature=index)
    seeds = complete_seeds(at)
    if not seeds.size:
        raise ValueError(
            "no seed of the store is complete yet, so that there is no gain to be told; go on with "
            "its run first"
        )
    at = at.sel(seed=seeds)
    if isinstance(temperature, str):
        found = choose(at, temperature).isel(test_set=0, drop=True)
        chosen, limit_chosen = (
            at["temperature"][values].where(values >= 0).drop_vars("temperature")
            for values in (found["index"], found["index_gp"])
        )
    else:
        limit_chosen = at["temperature"].isel(temperature=0, drop=True)
        chosen = limit_chosen.expand_dims(width=at["width"].values)
    labels = at["test_label"].load()
    measure = measures_of(dataset)[0]
    score = _right if measure.name == "accuracy" else _explained
    finite = _of_examples(score, at["predictor_mean"], chosen, labels)
    limit = _of_examples(score, at["predictor_mean_gp"], limit_chosen, labels)
    gain = finite - limit
    # first over the seeds, which may share their test examples or not
    of_examples = gain.mean("seed", skipna=False)
    of_seeds = gain.mean("example")
    over_seeds = (
        of_seeds.std("seed", ddof=1, skipna=False) / np.sqrt(seeds.size)
        if seeds.size > 1
        else xr.full_like(of_seeds.isel(seed=0, drop=True), np.nan)
    )
    found = {
        measure.name: (_mean(finite), measure.long_name),
        "gain": (_mean(gain), f"{measure.heading} less that of the Gaussian process limit"),
        "example_error": (
            of_examples.std("example", ddof=1) / np.sqrt(of_examples.count("example")),
            "standard error of the gain over test examples",
        ),
        "seed_error": (over_seeds, "standard error of the gain over seeds"),
        f"{measure.name}_gp": (
            _mean(limit),
            f"{measure.heading} in the Gaussian process limit",
        ),
        "temperature": (chosen, "temperature T of the width"),
        "temperature_gp": (limit_chosen, "temperature T of the Gaussian process limit"),
    }
    described = {
        name: values.assign_attrs(long_name=words, units="1")
        for name, (values, words) in found.items()
    }
    found = xr.Dataset(described, attrs={"seeds": seeds.tolist()})
    return found.transpose("width", "test_set")


def _mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over seeds, NaN unless all have it, and over the examples that there are."""
    return values.mean("seed", skipna=False).mean("example")


def _of_examples(
    score: Callable[[xr.DataArray, xr.DataArray], xr.DataArray],
    mean: xr.DataArray,
    chosen: xr.DataArray,
    labels: xr.DataArray,
) -> xr.DataArray:
    """Every example's part of a score; NaN where there is none or nothing computed."""
    known = chosen.notnull()
    some = chosen.where(known, mean["temperature"].values[0])
    mean = mean.load().sel(temperature=some, method="nearest", tolerance=1e-9).where(known)
    there = mean.notnull() & labels.notnull()
    if "output" in there.dims:
        there = there.all("output")
    found = score(mean, labels).where(there)
    return found.drop_vars(["temperature", "choice"], errors="ignore").drop_attrs()


def _right(mean: xr.DataArray, labels: xr.DataArray) -> xr.DataArray:
    """Whether examples are classified correctly."""
    if "output" not in labels.dims:
        return mean * labels > 0
    best, wanted = (values.fillna(0).argmax("output") for values in (mean, labels))
    return best == wanted


def _explained(mean: xr.DataArray, labels: xr.DataArray) -> xr.DataArray:
    """1 − squared error / variance of the targets, whose mean is R²."""
    squared, spread = (labels - mean) ** 2, labels.var("example")
    varied = labels.max("example") > labels.min("example")
    if "output" in labels.dims:
        squared, spread = squared.mean("output"), spread.mean("output")
        varied = varied.any("output")
    return 1 - squared / spread.where(varied)
