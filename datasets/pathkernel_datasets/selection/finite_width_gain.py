"""Finite-width gain: accuracy or R² less that of the Gaussian process limit, with its error."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pathkernel_datasets.selection.selection import index_of
from pathkernel_datasets.selection.temperature_choice import (
    check_choice,
    choose_temperatures,
    complete_seeds,
    default_choice,
)
from pathkernel_datasets.variables.measures import label_kind, measures_of
from pathkernel_datasets.variables.swept_option import checked_dataset


def finite_width_gain(dataset: xr.Dataset, temperature: float | str | None = None) -> xr.Dataset:
    """Accuracy or R² at every width, its gain over the Gaussian process limit, and errors.

    Both predict the same test examples, so that most of the error of either cancels in the gain:
    its error is that of a paired difference. In that of R² the variance of the targets counts as
    known.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.folder.reading.open_study`. Seeds that are not complete are
        left out.
    temperature : float or str, optional
        Temperature T of the study; or how it is chosen for each width and for the limit, as for
        :class:`pathkernel_datasets.selection.selection.Selection`.

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
        If no seed is complete, or the study lacks the temperature or the scores of the choice.

    Examples
    --------
    >>> import pathkernel as pk
    >>> study = pk.Study(pk.HiddenMarkov(examples=20, test_examples=20), widths=(10, 100))
    >>> gain = pk.finite_width_gain(pk.run_study(study, "small"))
    >>> gain["gain"].dims
    ('width', 'test_set')
    """
    dataset = checked_dataset(dataset)
    choice = default_choice(dataset) if temperature is None else temperature
    if isinstance(choice, str):
        check_choice(dataset, choice)
    else:
        dataset = dataset.isel(temperature=[index_of(dataset, "temperature", choice)])
    seeds = complete_seeds(dataset)
    if not seeds.size:
        raise ValueError(
            "no seed of the study is complete, so that there is no gain yet; resume its run first"
        )
    dataset = dataset.sel(seed=seeds)
    if isinstance(choice, str):
        indices = choose_temperatures(dataset, choice).isel(test_set=0, drop=True)
        chosen, chosen_gp = (
            dataset["temperature"][index].where(index >= 0).drop_vars("temperature")
            for index in (indices["index"], indices["index_gp"])
        )
    else:
        chosen_gp = dataset["temperature"].isel(temperature=0, drop=True)
        chosen = chosen_gp.expand_dims(width=dataset["width"].values)
    finite = _example_scores(dataset, "predictor_mean", chosen)
    limit = _example_scores(dataset, "predictor_mean_gp", chosen_gp)
    gain = finite - limit
    # first over the seeds, which may share their test examples or not: the spread over examples of
    # the mean is right in both cases, where all seeds' examples together would count shared ones
    # several times
    of_examples = gain.mean("seed", skipna=False)
    examples = of_examples.count("example")
    several = of_examples.where(examples > 1, 0.0)  # of fewer NumPy warns
    example_error = several.std("example", ddof=1).where(examples > 1) / np.sqrt(examples)
    of_seeds = gain.mean("example").where(seeds.size > 1)
    seed_error = of_seeds.std("seed", ddof=int(seeds.size > 1), skipna=False) / seeds.size**0.5
    measure = measures_of(dataset)[0]
    described = {
        measure.name: (_mean(finite), f"{measure.long_name}, mean over seeds"),
        "gain": (
            _mean(gain),
            f"{measure.heading} less that of the Gaussian process limit, mean over seeds",
        ),
        "example_error": (example_error, "standard error of the gain over test examples"),
        "seed_error": (seed_error, "standard error of the gain over seeds"),
        f"{measure.name}_gp": (
            _mean(limit),
            f"{measure.heading} in the Gaussian process limit, mean over seeds",
        ),
        "temperature": (chosen, "temperature T of the width"),
        "temperature_gp": (chosen_gp, "temperature T of the Gaussian process limit"),
    }
    variables = {
        name: values.assign_attrs(long_name=long_name, units="1")
        for name, (values, long_name) in described.items()
    }
    gained = xr.Dataset(variables, attrs={"seeds": seeds.tolist()})
    # in this order, whatever that of the dataset
    ordered = gained.drop_vars(["width", "test_set"]).transpose("width", "test_set")
    return ordered.assign_coords({name: gained[name] for name in ("width", "test_set")})


def _mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over seeds, NaN unless all have it, and over the examples that there are."""
    return values.mean("seed", skipna=False).mean("example")


def _example_scores(dataset: xr.Dataset, name: str, temperatures: xr.DataArray) -> xr.DataArray:
    """Scores of single examples, whose mean is the accuracy or R²; NaN where there is none."""
    labels = dataset["test_label"].load()
    any_of_them = temperatures.fillna(dataset["temperature"].values[0])
    mean = dataset[name].load().sel(temperature=any_of_them).where(temperatures.notnull())
    present = mean.notnull() & labels.notnull()
    outputs = [dim for dim in labels.dims if dim == "output"]
    if label_kind(dataset) == "targets":
        squared, variance = ((labels - mean) ** 2).mean(outputs), labels.var("example")
        varied = (labels.max("example") > labels.min("example")).any(outputs)
        scores = 1 - squared / variance.mean(outputs).where(varied)
    elif outputs:
        scores = mean.fillna(0).argmax("output") == labels.fillna(0).argmax("output")
    else:
        scores = mean * labels > 0
    scores = scores.where(present.all(outputs))
    return scores.drop_vars("temperature").drop_attrs()
