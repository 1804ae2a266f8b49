"""Order parameters over pairs of paths as long frames, and the choice of the strongest paths."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_datasets.variables.labelling import output_names
from pathkernel_views.chart import NothingToPlot

ROWS = 64
"""Maximum number of rows of a matrix in a chart, with cells that can still be told apart."""

KERNELS = 4
"""Maximum number of paths whose kernel a chart shows."""

STRONGEST = 8
"""Maximum number of paths that a picture of the network shows."""

NUMBERS = 80_000
"""Maximum number of values in a chart, about 0.7 MB."""


def matrix_frame(matrix: xr.DataArray | np.ndarray, names: list[str]) -> pd.DataFrame:
    """Convert a square matrix to long form, with the columns path, path_dual and U.

    A DataArray has the dims path and path_dual, and optionally output and output_dual; ``names``
    are those of :func:`row_names`.
    """
    if isinstance(matrix, xr.DataArray):
        dims = ("path", "output", "path_dual", "output_dual")
        matrix = matrix.transpose(*dims, missing_dims="ignore").values
    values = np.reshape(matrix, (len(names), len(names)))
    rows, columns = np.repeat(names, len(names)), np.tile(names, len(names))
    frame = pd.DataFrame({"path": rows, "path_dual": columns, "U": values.ravel()})
    return frame.astype({"path": object, "path_dual": object})


def row_names(dataset: xr.Dataset | xr.DataArray) -> list[str]:
    """Return the names of the rows of U: paths, with the output if there are several."""
    names = [str(path) for path in dataset["path"].values]
    if "output" in dataset.dims:
        outputs = output_names(dataset["output"].values)
        names = [f"{path} output {output}" for path in names for output in outputs]
    return names


def path_diagonal(values: xr.DataArray) -> xr.DataArray:
    """Return U(π, π), the mean over outputs, of values with the dims path and path_dual."""
    for dim in ("path", "output"):
        if dim in values.dims:
            indices = xr.DataArray(np.arange(values.sizes[dim]), dims=dim)
            values = values.isel({dim: indices, f"{dim}_dual": indices})
    return values.mean("output") if "output" in values.dims else values


def limit_diagonal(dataset: xr.Dataset) -> np.ndarray:
    """Return U(π, π) in the Gaussian process limit, shape (path,): a product of variances."""
    if "variances" not in dataset.attrs:  # some operations of xarray drop all attributes
        raise NothingToPlot(
            "the dataset has lost its attributes; keep them: xarray.set_options(keep_attrs=True)"
        )
    # a path past a layer has no value weights there, and so no variance of that layer
    _, *values, readout = dataset.attrs["variances"]
    heads = (dataset[f"path_layer_{layer}"].values for layer in range(1, len(values) + 1))
    strengths = [np.where(head > 0, variance, 1.0) for head, variance in zip(heads, values)]
    return readout * np.prod(strengths, axis=0)


def strongest(diagonals: np.ndarray, outputs: int = 1, max_rows: int = ROWS) -> np.ndarray:
    """Return the indices, in ascending order, of the paths of largest mean U(π, π).

    ``diagonals`` has the shape (…, paths); a path takes one row for each output.
    """
    rows = np.reshape(diagonals, (-1, np.shape(diagonals)[-1]))
    mean = pd.DataFrame(rows).mean().fillna(0.0).to_numpy()
    return np.sort(np.argsort(-mean, kind="stable")[: max(1, max_rows // outputs)])


def of_paths(shown: int, paths: int) -> str:
    """Return a caption's sentence about paths left out, empty if all are shown."""
    return f" Of {paths} paths the {shown} strongest are shown." if shown < paths else ""
