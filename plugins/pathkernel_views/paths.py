"""Order parameters over pairs of paths as long frames, and which paths are the strongest."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

ROWS = 64
"""Rows of a matrix that a chart shows; more are too small to be told apart."""

KERNELS = 4
"""Paths of which a chart shows the kernel."""

NUMBERS = 80_000
"""Numbers that a chart may hold, about .7 MB."""


def matrix_frame(matrix: xr.DataArray | np.ndarray, names: list[str]) -> pd.DataFrame:
    """A square matrix in long form: columns path, path_dual and U.

    A DataArray has the dims path and path_dual, and perhaps output and output_dual; the names of
    the rows are those of :func:`row_names`.
    """
    if isinstance(matrix, xr.DataArray):
        dims = ("path", "output", "path_dual", "output_dual")
        matrix = matrix.transpose(*dims, missing_dims="ignore").values
    values = np.reshape(matrix, (len(names), len(names)))
    rows, columns = np.repeat(names, len(names)), np.tile(names, len(names))
    frame = pd.DataFrame({"path": rows, "path_dual": columns, "U": values.ravel()})
    return frame.astype({"path": object, "path_dual": object})


def row_names(dataset: xr.Dataset | xr.DataArray) -> list[str]:
    """Names of the rows of U: paths or, of several outputs, paths with an output."""
    names = [str(path) for path in dataset["path"].values]
    if "output" in dataset.dims:
        names = [f"{path} output {c}" for path in names for c in dataset["output"].values]
    return names


def path_diagonal(values: xr.DataArray) -> xr.DataArray:
    """U(π, π) of values with the dims path and path_dual; of several outputs the mean over them."""
    for dim in ("path", "output"):
        if dim in values.dims:
            every = xr.DataArray(np.arange(values.sizes[dim]), dims=dim)
            values = values.isel({dim: every, f"{dim}_dual": every})
    return values.mean("output") if "output" in values.dims else values


def limit_diagonal(dataset: xr.Dataset) -> np.ndarray:
    """U(π, π) in the Gaussian process limit: variances of readout and heads, shape (path,)."""
    _, *values, readout = dataset.attrs["variances"]
    heads = (dataset[f"path_layer_{layer}"].values for layer in dataset["layer"].values)
    strengths = [np.where(head > 0, variance, 1.0) for head, variance in zip(heads, values)]
    return readout * np.prod(strengths, axis=0)


def strongest(diagonals: np.ndarray, outputs: int = 1, most: int = ROWS) -> np.ndarray:
    """Indices of the paths of largest U(π, π), in their order; all if there is room.

    The mean of the diagonals, shape (…, paths), decides; a path has as many rows as outputs.
    """
    rows = np.reshape(diagonals, (-1, np.shape(diagonals)[-1]))
    mean = pd.DataFrame(rows).mean().fillna(0.0).to_numpy()
    return np.sort(np.argsort(-mean, kind="stable")[: max(1, most // outputs)])


def of_paths(shown: int, paths: int) -> str:
    """The sentence of a caption about paths that are left out; empty if all are shown."""
    return f" Of {paths} paths the {shown} strongest are shown." if shown < paths else ""
