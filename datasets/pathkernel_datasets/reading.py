"""Opening the study of a folder, complete or in progress."""

from __future__ import annotations

import json
import os
from pathlib import Path

import xarray as xr

from pathkernel_core.atomic import remove_leftovers
from pathkernel_core.local_files import IRREGULAR, check_local, irregular_entries
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.labelling import drawable
from pathkernel_datasets.lock import locked
from pathkernel_datasets.study_folder import (
    DESCRIPTION,
    PIECES,
    REMEDY,
    STUDY,
    Description,
    StudyFolder,
    stored_description,
)
from pathkernel_datasets.sweep_folder import SweepFolder
from pathkernel_datasets.zarr_files import naming_damage, open_dataset


def open_study(path: str | os.PathLike) -> xr.Dataset:
    """Open the dataset of a study's folder lazily, text of fixed length so that xarray draws it.

    While a run is in progress, or after it was interrupted, the dataset holds all that is computed;
    the status of other points is 0, "not computed".

    Raises
    ------
    StudyError
        If the path is no folder of a study, or the study is damaged.

    Notes
    -----
    Variables are read when they are used: call ``dataset[names].load()`` before many small
    selections. Points that are not computed, or whose kernel could not be factorised, are NaN (0
    for whole numbers); those that did not converge have numbers, too: look at ``dataset.status``,
    where 1 is converged. Plain ``xarray.open_zarr`` reads ``study.zarr`` in the folder as well.

    Examples
    --------
    >>> import pathkernel as pk
    >>> study = pk.Study(pk.HiddenMarkov(examples=20, test_examples=20), widths=(10, 100))
    >>> computed = pk.run_study(study, "small")
    >>> pk.open_study("small").sizes["width"]
    2
    """
    folder = open_folder(path)
    if not folder.is_published:
        dataset = folder.dataset()
        if not (folder := open_folder(path)).is_published:  # not published meanwhile
            return drawable(dataset)
    file = folder.path / STUDY
    with naming_damage(file, "", REMEDY):
        return drawable(open_dataset(file))


def open_folder(path: str | os.PathLike) -> StudyFolder | SweepFolder:
    """The study in a folder.

    Raises
    ------
    StudyError
        If there is none, or it is damaged.
    """
    check_local(path)
    path = Path(path)
    for entry in (path / DESCRIPTION, path / STUDY, path / PIECES):
        check_regular(entry)
    if not (path / STUDY).exists() and any(path.glob(f".{STUDY}.*.old")):
        with locked(path, wait=True):  # perhaps it is replaced just now
            remove_leftovers(path / STUDY)
    if (description := stored_description(path)) is None:
        raise StudyError(_fault(path))
    return folder_of(path, description)


def folder_of(path: Path, description: Description) -> StudyFolder | SweepFolder:
    """The folder of a study with a description."""
    if json.loads(description.identity).get("sweep"):
        return SweepFolder(path, description.identity, description.meaning)
    return StudyFolder(path, description.identity)


def check_regular(path: Path) -> None:
    """Raise a StudyError if a path is a pipe, a device or a broken link, or holds one."""
    for entry in irregular_entries(path):
        raise StudyError(f"{entry} is {IRREGULAR}; remove it")


def _fault(path: Path) -> str:
    """Reason why a path is not the folder of a study."""
    if not os.path.lexists(path):
        similar = path.with_suffix("")
        is_similar = similar != path and (similar / DESCRIPTION).exists()
        hint = f"did you mean {similar}?" if is_similar else "make one: pathkernel run TASK"
        return f"there is no study at {path}; {hint}"
    if (path.parent / DESCRIPTION).exists():
        return f"{path} is inside the folder of a study; give the folder: {path.parent}"
    if any(os.path.lexists(path / name) for name in (DESCRIPTION, STUDY, PIECES)):
        return f"{path} is damaged: {DESCRIPTION} is missing or unreadable; {REMEDY}"
    return f"{path} is no folder of a study; make one: pathkernel run TASK"
