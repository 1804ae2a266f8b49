"""Reading all of a store, to name what is damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr

from pathkernel_datasets.checksums import damaged_chunks, is_checked
from pathkernel_datasets.lock import sole, turn
from pathkernel_datasets.metadata import damaged_metadata
from pathkernel_datasets.store import Store, check_store
from pathkernel_datasets.study import grid_of
from pathkernel_datasets.swept import words_of


@dataclass(frozen=True)
class Checked:
    """What was found in a store.

    Attributes
    ----------
    study, results : tuple of str
        What is damaged, and how: of the study, and of the results beside it.
    points, computed : int
        Points of the grid, and those of them that are computed; 0 if the study is damaged.
    arrays, unchecked : int
        Arrays, and those of them that have no checksums, as older versions wrote them: there only
        what cannot be decoded is found.
    """

    study: tuple[str, ...]
    results: tuple[str, ...] = ()
    points: int = 0
    computed: int = 0
    arrays: int = 0
    unchecked: int = 0


def check(path: str | os.PathLike) -> Checked:
    """Read all that a store holds.

    If metadata are damaged they alone are read, since the rest needs them.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or another process writes into it.
    """
    path = Path(path).resolve()
    if not path.exists():
        check_store(path)  # says so
    with ExitStack() as stack:
        if os.access(path.parent, os.W_OK):  # else nobody writes there
            stack.enter_context(turn(path))  # parts that begin wait
            stack.enter_context(sole(path))
        metadata = damaged_metadata(path)
        if metadata:
            return Checked(tuple(f"{name} {fault}" for name, fault in metadata.items()))
        grid = grid_of(check_store(path))
        store = Store(path)
        study = []
        for marker in store.markers:
            for index, faults in store.damaged(marker).items():
                place = {dim: values[i] for (dim, values), i in zip(grid.items(), index)}
                at = ", ".join(
                    words_of(dim, value if isinstance(value, str) else f"{value:g}")
                    for dim, value in place.items()
                )
                study += [f"{name} at {at} {fault}" for name, fault in sorted(faults.items())]
        arrays = _arrays(zarr.open_group(path, mode="r"))
        labels = {
            name: array
            for name, array in arrays.items()
            if "/" not in name and not store.is_variable(name)  # of variables, markers say it
        }
        study += _damaged(labels)
        results = _damaged({name: array for name, array in arrays.items() if "/" in name})
        status = store.marker("status") if not study else np.empty(0)
    return Checked(
        tuple(study),
        tuple(results),
        status.size,
        int((status != 0).sum()),
        len(arrays),
        sum(not is_checked(array) for array in arrays.values()),
    )


def damaged_result(path: Path, name: str) -> list[str]:
    """What is damaged of a result, in words."""
    arrays = _arrays(zarr.open_group(path, mode="r"))
    return _damaged({at: array for at, array in arrays.items() if at.startswith(f"{name}/")})


def _arrays(group: zarr.Group) -> dict[str, zarr.Array]:
    members = dict(group.members(max_depth=None))
    return {name: member for name, member in members.items() if isinstance(member, zarr.Array)}


def _damaged(arrays: Mapping[str, zarr.Array]) -> list[str]:
    return [
        f"{name}, chunk {'/'.join(map(str, chunk))}, {fault}"
        for name, array in arrays.items()
        for chunk, fault in damaged_chunks(array).items()
    ]
