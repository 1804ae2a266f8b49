"""Reading all of a study's folder, to name what is damaged in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr

from pathkernel_core.system.atomic import is_leftover
from pathkernel_core.system.local_files import check_local
from pathkernel_datasets.folder.piece_files import SUFFIX, file_fault, read_arrays
from pathkernel_datasets.folder.reading import open_folder
from pathkernel_datasets.folder.study_folder import (
    DESCRIPTION,
    PIECES,
    STUDY,
    SUMS,
    StudyFolder,
    described_study,
    description_fault,
    irregular_files,
    stored_template,
)
from pathkernel_datasets.folder.sweep_folder import SweepFolder, folder_of
from pathkernel_datasets.folder.zarr_files import METADATA, faults, metadata_of
from pathkernel_datasets.study.identity import core_of


@dataclass(frozen=True)
class Checked:
    """Outcome of reading all of a study's folder.

    Attributes
    ----------
    study, results : tuple of str
        Lines about damage: of the study, and of its results.
    points, computed : int
        Points of the grid, and those of them that are computed; 0 if the study is damaged.
    arrays : int
        Arrays that were read.
    is_published : bool
        Whether ``study.zarr`` holds all of the study.
    """

    study: tuple[str, ...]
    results: tuple[str, ...] = ()
    points: int = 0
    computed: int = 0
    arrays: int = 0
    is_published: bool = True


def check(path: str | os.PathLike) -> Checked:
    """Read all that is in the folder of a study.

    Raises
    ------
    StudyError
        If the path is no folder of a study.
    """
    check_local(path)
    path = Path(path)
    if stored_template(path) is None and not (path / STUDY).exists():
        open_folder(path)  # says what it is
    study, results = list(_study_damage(path)), list(_result_damage(path))
    arrays = sum(
        metadata_of(file.parent).get("node_type") == "array" for file in path.rglob(METADATA)
    )
    if study:
        return Checked(tuple(study), tuple(results), arrays=arrays)
    folder = open_folder(path)
    is_published = folder.is_published
    # all of it has been read: one array is opened, not the dataset
    status = (
        np.asarray(zarr.open_array(path / STUDY / "status", mode="r"))
        if is_published
        else folder.dataset()["status"].values
    )
    computed = int((status != 0).sum())
    return Checked((), tuple(results), status.size, computed, arrays, is_published)


def _study_damage(path: Path) -> Iterator[str]:
    """Lines about damage to the study of a folder, or to the studies of all values of an option."""
    if described_study(path) is None:
        reason = description_fault(path)
        yield f"{path / DESCRIPTION} is missing or damaged" + f": {reason}" * bool(reason)
    yield from irregular_files(path)
    if (path / STUDY).is_dir():
        for name, fault in faults(path / STUDY):
            yield f"{path / STUDY / name} {fault}"
    template = stored_template(path)
    folder = None if template is None else folder_of(path, template.attrs["study"])
    for file in sorted((*path.glob(f"{PIECES}/*{SUFFIX}"), *path.glob(f"{SUMS}/*{SUFFIX}"))):
        if fault := _piece_fault(folder, file):
            yield f"{file} {fault}"
    if folder is None:
        return
    if isinstance(folder, SweepFolder):
        for single in folder.folders.values():
            yield from _study_damage(single.path)
            own = described_study(single.path)
            if own is not None and core_of(json.loads(own.attrs["study"])) != single.core:
                yield f"{single.path} holds another study than {path / DESCRIPTION}"
    if folder.fault:
        yield folder.fault


def _result_damage(path: Path) -> Iterator[str]:
    """Lines about damage to results, and to draws that are not published yet."""
    for file in sorted(path.rglob("*.zarr")):
        if file.name != STUDY and PIECES not in file.relative_to(path).parts and file.is_dir():
            for name, fault in faults(file):
                yield f"{file / name} {fault}"
    template = stored_template(path)
    folder = None if template is None else folder_of(path, template.attrs["study"])
    singles = folder.folders.values() if isinstance(folder, SweepFolder) else [folder]
    cores = {single.path: single.core for single in singles if single is not None}
    for owner in dict.fromkeys((path, *cores)):
        for entry in sorted(filter(is_leftover, owner.glob(".*"))):
            # else somebody computes, or was killed, and may be writing it
            if not (owner / PIECES).exists() and (
                ".zarr." in entry.name or DESCRIPTION in entry.name
            ):
                yield f"{entry} was left by a command that failed; run it again, which removes it"
    for file in sorted(path.glob(f"**/{PIECES}/*/**/*{SUFFIX}")):
        owner = next(above.parent for above in file.parents if above.name == PIECES)
        if fault := file_fault(file, cores.get(owner)):
            yield f"{file} {fault}"


def _piece_fault(folder: StudyFolder | SweepFolder | None, file: Path) -> str:
    """Fault of the file of a piece, or of sums; empty if there is none."""
    if not isinstance(folder, StudyFolder):  # the pieces of the study of a single value before
        return file_fault(file, None)
    if fault := file_fault(file, folder.core):
        return fault
    piece = folder.piece_of(file) if file.parent.name == PIECES else None
    if piece is None or (values := read_arrays(file, folder.core)) is None:
        return ""
    return folder.piece_fault(piece, values)
