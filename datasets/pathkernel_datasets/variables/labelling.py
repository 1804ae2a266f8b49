"""Arrays with their names, dimensions, meanings and units, as xarray holds them."""

from __future__ import annotations

import json
import numbers
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.system.memory import bytes_in_words, claim_bound
from pathkernel_datasets.errors import StudyError

CHECKSUM = "metadata_crc32"
"""Attribute of a file's metadata: their CRC-32."""


def checksum(content: Mapping[str, Any]) -> str:
    """CRC-32 of the metadata of a file, but for that attribute."""
    # as text, which netCDF holds too: its whole numbers may have 32 bits, one of them for the sign
    attributes = {key: v for key, v in content["attributes"].items() if key != CHECKSUM}
    text = json.dumps({**content, "attributes": attributes}, sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"


def label_arrays(
    values: Mapping[str, Any],
    variables: Iterable[Variable],
    coordinates: Mapping[str, xr.Variable] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Dataset of arrays that are described beforehand.

    Values have the names of their variables and axes in the order of their dimensions; there may
    be descriptions of others, too. Coordinates are from :func:`coordinate` or another dataset.
    """
    described = {variable.name: variable for variable in variables}
    arrays = {
        name: (described[name].dims, array, variable_attributes(described[name]))
        for name, array in values.items()
    }
    return xr.Dataset(arrays, coordinates, attributes)


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
    is_text = values and isinstance(values[0], str)
    return np.array(values, dtype=np.dtypes.StringDType() if is_text else None)


def storable(dataset: xr.Dataset) -> xr.Dataset:
    """Dataset as files hold it: within the Zarr specification, and within NetCDF.

    Text is of any length, an attribute a text, a number or a list of numbers; others become JSON.
    """
    attributes = {name: _to_plain(value) for name, value in dataset.attrs.items()}
    # as objects: xarray before 2026.9 writes StringDType as text of fixed length
    return _with_text(dataset, np.dtype(object)).assign_attrs(attributes)


def drawable(dataset: xr.Dataset) -> xr.Dataset:
    """Dataset of a file with text of fixed length, which xarray's figures take."""
    return _with_text(dataset, np.dtype("U"))


def _with_text(dataset: xr.Dataset, dtype: np.dtype) -> xr.Dataset:
    for name, labels in dataset.coords.variables.items():
        if dtype.kind == "U" and labels.dtype.kind in "TO":
            lengths = [len(str(text)) for text in labels.values.ravel()]
            size = 4 * len(lengths) * max(lengths, default=0)
            if size > claim_bound(sum(lengths)):
                raise StudyError(
                    f"the labels {name} of the dataset would take {bytes_in_words(size)} as text "
                    f"of fixed length, since one of them has {max(lengths)} characters"
                )
    return dataset.assign_coords(
        {
            name: (texts.dims, np.array(texts.values.tolist(), dtype=dtype), texts.attrs)
            for name, texts in dataset.coords.variables.items()
            if texts.dtype.kind in "TUO" and texts.dtype.kind != dtype.kind
        }
    )


def _to_plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    of_numbers = isinstance(value, list) and value and isinstance(value[0], numbers.Real)
    return json.dumps(value) if isinstance(value, (Mapping, list)) and not of_numbers else value


def json_attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """Attribute that is a mapping or a list, which files hold as JSON unless it is of numbers."""
    value = attributes.get(name, "{}")
    return json.loads(value) if isinstance(value, str) else value


def coordinates_along(dataset: xr.Dataset, dims: Iterable[str]) -> dict[str, xr.Variable]:
    """Coordinates of a dataset that have no other dimensions than these."""
    dims = set(dims)
    return {
        str(name): labels
        for name, labels in dataset.coords.variables.items()
        if labels.dims and set(labels.dims) <= dims
    }


def stored_dims(dims: Iterable[str], outputs: int) -> tuple[str, ...]:
    """Dimensions of a variable in a study: none of outputs for a network that has one."""
    absent = () if outputs > 1 else ("output", "output_dual")
    return tuple(dim for dim in dims if dim not in absent)


def path_dims(outputs: int) -> tuple[str, ...]:
    """Dimensions of an order parameter: with several outputs each path is a block of them."""
    return stored_dims(("path", "output", "path_dual", "output_dual"), outputs)


def padded_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array, NaN behind the end of the shorter ones."""
    table = np.full((len(rows), max(map(len, rows)), *np.shape(rows[0])[1:]), np.nan)
    for padded, row in zip(table, rows):
        padded[: len(row)] = row
    return table


def output_names(outputs: np.ndarray) -> list[str]:
    """Return the names of outputs for a reader: those of classes, or else numbers from 1.

    Datasets number outputs from 0, unlike heads.
    """
    is_index = np.array_equal(outputs, np.arange(len(outputs)))
    return [str(output + 1 if is_index else output) for output in outputs]
