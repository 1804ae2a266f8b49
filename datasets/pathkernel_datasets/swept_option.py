"""Several values of a task's option in one store: a dimension in front of the others.

All values share dimensions and labels, but for numbers of examples: smaller ones are padded with
NaN.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import xarray as xr

from pathkernel_datasets.errors import NotInStoreError

SWEPT_OPTION, OF_EACH_VALUE = "swept_option", "of_each_value"
"""Attributes of a dataset that holds several values of an option."""


def listed(values: Sequence[Any]) -> str:
    """Values as a reader would write them."""
    *texts, last = map(str, values)
    return f"{', '.join(texts)} and {last}" if len(texts) < 7 else f"{texts[0]} to {last}"


def swept_option(dataset: xr.Dataset) -> str | None:
    """Name of the option that has several values in a dataset; None if there is none."""
    name = dataset.attrs.get(SWEPT_OPTION)
    return name if name in dataset.dims else None


def by_value(dataset: xr.Dataset) -> dict[Any, xr.Dataset]:
    """Split a dataset by the values of its swept option; padding is removed.

    A dataset without a swept option is returned under None.
    """
    name = swept_option(dataset)
    if name is None:
        return {None: dataset}
    dataset = dataset.copy()
    of_values, studies = json.loads(dataset.attrs.pop(OF_EACH_VALUE)), {}
    del dataset.attrs[SWEPT_OPTION]
    for number, value in enumerate(dataset[name].values.tolist()):
        sizes = {dim: slice(size) for dim, size in of_values[str(value)]["sizes"].items()}
        single = dataset.isel({name: number, **sizes}, drop=True)
        studies[value] = single.assign_attrs(of_values[str(value)]["attributes"])
    return studies


def check_single(dataset: xr.Dataset) -> None:
    """Raise a NotInStoreError if an option has several values in a dataset."""
    if name := swept_option(dataset):
        values = dataset[name].values.tolist()
        raise NotInStoreError(
            f"the dataset holds {len(values)} values of the option {name!r} ({listed(values)}); "
            f"take one: pathkernel.by_value(dataset)[{values[0]!r}]"
        )
