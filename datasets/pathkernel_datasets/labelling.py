"""Arrays with their names, dimensions, meanings and units, as xarray holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable


def labelled(
    values: Mapping[str, Any],
    variables: Iterable[Variable],
    coordinates: Mapping[str, xr.Variable] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Dataset of arrays that are described beforehand.

    Parameters
    ----------
    values : mapping of str to array
        By the names of the variables, axes in the order of their dimensions.
    variables : iterable of Variable
        Descriptions, of others too.
    coordinates : mapping of str to xarray.Variable, optional
        From :func:`coordinate` or another dataset.
    attributes : mapping, optional
        Of the dataset.
    """
    described = {variable.name: variable for variable in variables}
    return xr.Dataset(
        {
            name: (described[name].dims, array, variable_attributes(described[name]))
            for name, array in values.items()
        },
        coordinates,
        attributes,
    )


def variable_attributes(variable: Variable) -> dict[str, str]:
    """Attributes of a variable: its meaning, its unit, and where it is defined."""
    attributes = {"long_name": variable.long_name, "units": variable.units}
    return attributes | ({"equation": variable.equation} if variable.equation else {})


def coordinate(
    dim: str | tuple[str, ...], values: Iterable[Any], long_name: str, units: str = ""
) -> xr.Variable:
    """Coordinate along a dimension, text as strings of any length."""
    attributes = {"long_name": long_name} | ({"units": units} if units else {})
    return xr.Variable(dim, coordinate_values(values), attributes)


def coordinate_values(values: Iterable[Any]) -> np.ndarray:
    """Values of a coordinate as they are stored: text as strings of any length."""
    values = list(values)
    if values and isinstance(values[0], str):
        return np.array(values, dtype=np.dtypes.StringDType())
    return np.asarray(values)


def coordinates_along(dataset: xr.Dataset, dims: Iterable[str]) -> dict[str, xr.Variable]:
    """Coordinates of a dataset that have no other dimensions than these."""
    dims = set(dims)
    return {
        name: dataset[name].variable
        for name in map(str, dataset.coords)
        if dataset[name].dims and set(dataset[name].dims) <= dims
    }


def path_dims(outputs: int) -> tuple[str, ...]:
    """Dimensions of an order parameter: with several outputs each path is a block of them."""
    return ("path", "output", "path_dual", "output_dual") if outputs > 1 else ("path", "path_dual")


def padded_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array, NaN behind the end of the shorter ones."""
    longest = max(len(row) for row in rows)
    table = np.full((len(rows), longest, *np.shape(rows[0])[1:]), np.nan)
    for filled, row in zip(table, rows):
        filled[: len(row)] = row
    return table
