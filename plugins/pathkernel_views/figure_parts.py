"""What figures of a store share: which part of it there is to show, and the words for it."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pathkernel_datasets.selection import Selection, index_of, number
from pathkernel_views.figure_files import NothingToPlot


def require(dataset: xr.Dataset, *names: str) -> None:
    """Raise NothingToPlot unless the store holds these variables."""
    missing = [name for name in names if name not in dataset]
    if missing:
        raise NothingToPlot(f"the store holds no {' and no '.join(missing)}")


def seed_index(dataset: xr.Dataset, values: xr.DataArray, seed: int | None) -> int:
    """Index of the seed asked for, or of the first that has values."""
    known = values.notnull().any([dim for dim in values.dims if dim != "seed"]).values
    if seed is None:
        if not known.any():
            raise NothingToPlot(f"{values.name} is not computed yet")
        return int(np.argmax(known))
    place = index_of(dataset, "seed", seed)
    if not known[place]:
        raise NothingToPlot(f"{values.name} of seed {seed} is not computed yet")
    return place


def known_widths(values: xr.DataArray) -> list[int]:
    """Indices of the widths that have values, the smallest width first."""
    known = values.notnull().any([dim for dim in values.dims if dim != "width"]).values
    if not known.any():
        raise NothingToPlot("no width is computed yet")
    return [int(w) for w in np.argsort(values["width"].values) if known[w]]


def at_seed(dataset: xr.Dataset, selection: Selection, index: int, values: bool = False) -> str:
    """Seed and choice of temperatures in words, with or without their values."""
    return f"{seed_words(dataset, index)}, {selection.describe(values)}"


def seed_words(dataset: xr.Dataset, index: int) -> str:
    """Seed in words."""
    return f"seed {dataset['seed'].values[index]}"


def point_words(dataset: xr.Dataset, selection: Selection, w: int) -> str:
    """Width, and its temperature where that differs from width to width."""
    words = f"N = {number(dataset['width'].values[w])}"
    return f"{words}, T = {selection.temperatures[w]:g}" if selection.chosen else words
