"""Arrays with their names, dimensions, meanings and units, as xarray holds them."""

from __future__ import annotations

import hashlib
import json
import numbers
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


def storable(dataset: xr.Dataset) -> xr.Dataset:
    """Dataset as stores hold it: what Zarr specifies, and NetCDF can hold too.

    Text is of any length, an attribute a text, a number or a list of numbers; others become JSON.
    """
    attributes = {name: _plain(value) for name, value in dataset.attrs.items()}
    return _with_text(dataset, np.dtypes.StringDType()).assign_attrs(attributes)


def drawable(dataset: xr.Dataset) -> xr.Dataset:
    """Dataset of a store with text of fixed length, which xarray's figures take."""
    return _with_text(dataset, np.dtype("U"))


def _with_text(dataset: xr.Dataset, dtype: np.dtype) -> xr.Dataset:
    return dataset.assign_coords(
        {
            name: (held.dims, np.array(held.values.tolist(), dtype=dtype), held.attrs)
            for name, held in dataset.coords.items()
            if held.dtype.kind in "TU" and held.dtype.kind != dtype.kind
        }
    )


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list) and value and isinstance(value[0], numbers.Real):
        return value
    return json.dumps(value) if isinstance(value, (Mapping, list)) else value


def json_attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """Attribute that is a mapping or a list, which stores hold as JSON unless it is of numbers."""
    value = attributes.get(name, "{}")
    return json.loads(value) if isinstance(value, str) else value


def attributes_digest(attributes: Mapping[str, Any]) -> str:
    """Checksum of a dataset's attributes, but for what xarray writes among them."""
    attributes = {key: value for key, value in attributes.items() if key != "coordinates"}
    return hashlib.sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()


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
