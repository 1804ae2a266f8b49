"""Several values of a task's option in one dataset: a dimension in front of the others.

All values share dimensions and labels, but for numbers of examples: smaller ones are padded with
NaN.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import xarray as xr

from pathkernel_core.system.text import format_value
from pathkernel_datasets.errors import NotInStudyError
from pathkernel_datasets.variables.labelling import drawable

SWEPT_OPTION, OF_EACH_VALUE = "swept_option", "of_each_value"
"""Attributes of a dataset that holds several values of an option."""


def list_values(values: Sequence[Any]) -> str:
    """Values as a reader would write them."""
    *texts, last = map(format_value, values)
    return f"{', '.join(texts)} and {last}" if len(texts) < 7 else f"{texts[0]} to {last}"


def swept_option(dataset: xr.Dataset) -> str | None:
    """Name of the option that has several values in a dataset; None if there is none."""
    name = dataset.attrs.get(SWEPT_OPTION)
    return name if name in dataset.dims else None


def by_value(dataset: xr.Dataset) -> dict[Any, xr.Dataset]:
    """Split a dataset by the values of its swept option; padding is removed.

    A dataset without a swept option is returned under None.

    Raises
    ------
    NotInStudyError
        If the dataset was cut so that it is none of a study.
    """
    dataset = checked_dataset(dataset)
    name = swept_option(dataset)
    if name is None:
        return {None: dataset}
    return {value: _of_value(dataset, name, value) for value in dataset[name].values.tolist()}


def _of_value(dataset: xr.Dataset, name: str, value: Any) -> xr.Dataset:
    """The study of a value of an option in a dataset of several, or of it alone."""
    if name in dataset.dims:
        dataset = dataset.isel({name: dataset[name].values.tolist().index(value)})
    own = json.loads(dataset.attrs[OF_EACH_VALUE])[str(value)]
    attributes = {k: v for k, v in dataset.attrs.items() if k not in (OF_EACH_VALUE, SWEPT_OPTION)}
    padded = {dim: slice(size) for dim, size in own["sizes"].items() if dim in dataset.dims}
    single = dataset.isel(padded).drop_vars(name).drop_attrs(deep=False)
    return single.assign_attrs(attributes | own["attributes"])


def checked_dataset(dataset: xr.Dataset) -> xr.Dataset:
    """Dataset of a study as views take it, also if it was cut, copied or opened by xarray alone.

    Paths and outputs that were cut along one of two dimensions are cut along the other, and a
    single value of a swept option becomes the study of that value.

    Raises
    ------
    NotInStudyError
        If it lacks a dimension that every study has.
    """
    name = dataset.attrs.get(SWEPT_OPTION)
    if name in dataset.coords and name not in dataset.dims:
        dataset = _of_value(dataset, name, dataset[name].item())
    for dim in ("seed", "temperature", "width", "test_set", "path"):
        if dim not in dataset.dims:
            raise NotInStudyError(
                f"the dataset has no dimension {dim!r}, which every study has; select with a list, "
                f"as in dataset.isel({dim}=[0])"
            )
    for dim in ("path", "output"):
        dual = f"{dim}_dual"
        if {dim, dual} <= {*dataset.dims}:
            labels, duals = (dataset[name].values.tolist() for name in (dim, dual))
            if labels != duals:
                both = [label for label in labels if label in duals]
                dataset = dataset.sel({dim: both, dual: both})
    return drawable(dataset)


def check_single(dataset: xr.Dataset) -> None:
    """Raise a NotInStudyError if an option has several values in a dataset."""
    if name := swept_option(dataset):
        values = dataset[name].values.tolist()
        raise NotInStudyError(
            f"the dataset holds {len(values)} values of the option {name!r} "
            f"({list_values(values)}); take one: pathkernel.by_value(dataset)[{values[0]!r}]"
        )
