"""Reading all of a store, to name what is damaged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pathkernel_datasets.damage import scan
from pathkernel_datasets.store import check_store, open_store


@dataclass(frozen=True)
class Checked:
    """What was found in a store.

    Attributes
    ----------
    study, results : tuple of str
        What is damaged, and how: of the study, and of the results beside it.
    points, computed : int
        Points of the grid, and those of them that are computed; 0 if the study is damaged.
    arrays : int
        Arrays that were read.
    """

    study: tuple[str, ...]
    results: tuple[str, ...] = ()
    points: int = 0
    computed: int = 0
    arrays: int = 0


def check(path: str | os.PathLike) -> Checked:
    """Read all that a store holds, and the pieces beside it.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel.
    """
    path = Path(path)
    if not path.exists():
        check_store(path)  # says so, unless its pieces are there
    found = scan(path)
    if path.exists() and found.identity is None:
        check_store(path)  # says what it is
    faults = list(found.faults())
    study = tuple(fault for owner, fault in faults if owner == "study")
    results = tuple(fault for owner, fault in faults if owner != "study")
    if study:
        return Checked(study, results, arrays=len(found.arrays))
    status = open_store(path)["status"].values
    return Checked((), results, status.size, int((status != 0).sum()), len(found.arrays))
