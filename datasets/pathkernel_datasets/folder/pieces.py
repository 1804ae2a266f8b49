"""Pieces of a study: their names, and their values within the dataset of the study."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.folder.published import Values
from pathkernel_datasets.variables.template import KNOWN_DIMENSIONS


@dataclass(frozen=True)
class Piece:
    """Key of a piece of a study, which is computed in one go; it has values at all temperatures.

    Attributes
    ----------
    seed : int
    width : float or None
        None for the data and the Gaussian process limits.
    """

    seed: int
    width: float | None

    @property
    def name(self) -> str:
        """Name of the piece's file."""
        width = "" if self.width is None else f"_N-{decimal(self.width)}"
        return f"seed-{self.seed}{width}"

    def __str__(self) -> str:
        """The piece as a reader would write it."""
        return f"seed {self.seed}, " + (
            "GP limit" if self.width is None else f"N = {number(self.width)}"
        )


def decimal(value: float) -> str:
    """A number in decimals, as names of files have it: 1000 and 0.0001."""
    return np.format_float_positional(value, trim="-")


def values_fault(template: xr.Dataset, declared: Container[str], values: Values) -> str:
    """Fault of values of a piece, of which the names are declared; empty if there is none."""
    temperatures = values.get("temperature", np.zeros(0))
    if temperatures.ndim != 1 or temperatures.dtype.kind not in "iuf":
        return "holds no temperatures"
    sizes = {**template.sizes, "temperature": temperatures.size}
    for name, array in values.items():
        if name == "temperature":
            continue
        if name not in declared:
            return f"holds {name}, which the study has not"
        target = template.variables[name]
        dims = [dim for dim in target.dims if dim not in ("seed", "width")]
        shape = tuple(sizes[dim] for dim in dims)
        kinds = "biuf" if target.dtype.kind == "f" else "biu"
        if not _fits(array.shape, shape, dims):
            along = f" along {', '.join(map(str, dims))}" if dims else ""
            return f"holds {name} of shape {array.shape}, not {shape}{along}"
        if array.dtype.kind not in kinds:
            return f"holds {name} of type {array.dtype}, not {target.dtype}"
    return ""


def _fits(shape: tuple[int, ...], expected: tuple[int, ...], dims: Sequence[Any]) -> bool:
    """Whether values have the shape of their variable, or are fewer where seeds may differ."""
    if 0 in expected:  # of sub-networks there may be none, and then no other length is certain
        return 0 in shape and len(shape) == len(expected)
    return len(shape) == len(expected) and all(
        size == whole or (size < whole and (dim == "example" or dim not in KNOWN_DIMENSIONS))
        for size, whole, dim in zip(shape, expected, dims)
    )


def put_values(dataset: xr.Dataset, piece: Piece, seed: int, values: Values) -> None:
    """Put the values of a piece into a dataset at an index of its seed.

    A temperature that the dataset lacks is left out.
    """
    # by NumPy's indices, not by xarray's labels: this runs for each of thousands of pieces
    rows = values.get("temperature", np.zeros(0)).tolist()
    temperatures = dataset.variables["temperature"].values.tolist()
    known = [row for row, value in enumerate(rows) if value in temperatures]
    position: dict[str, Any] = {"seed": seed}
    position["temperature"] = [temperatures.index(rows[row]) for row in known]
    if piece.width is not None:
        position["width"] = dataset.variables["width"].values.tolist().index(piece.width)
    for name, array in values.items():
        if name not in dataset.data_vars:
            continue
        target = dataset.variables[name]
        taken = array[known] if "temperature" in target.dims else array
        # test sets of other seeds and values of the swept option may be larger
        inside = [dim for dim in target.dims if dim not in position]
        shape = np.shape(taken)[np.ndim(taken) - len(inside) :]
        index = position | dict(zip(inside, map(slice, shape)))
        target.values[tuple(index[dim] for dim in target.dims)] = taken
