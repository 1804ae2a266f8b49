"""Opening the study of a folder, complete or in progress."""

from __future__ import annotations

import os
from pathlib import Path

import xarray as xr

from pathkernel_core.system.atomic import remove_leftovers
from pathkernel_core.system.local_files import check_local
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.lock import lock_folder, lock_of
from pathkernel_datasets.folder.piece_files import SUFFIX
from pathkernel_datasets.folder.study_folder import (
    DESCRIPTION,
    PIECES,
    REMEDY,
    RESUME,
    STUDY,
    StudyFolder,
    check_regular,
    description_fault,
    stored_template,
)
from pathkernel_datasets.folder.sweep_folder import SweepFolder, folder_of
from pathkernel_datasets.folder.zarr_files import attributes_of, naming_damage, open_dataset
from pathkernel_datasets.variables.labelling import drawable
from pathkernel_datasets.variables.template_faults import template_fault


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
            if not folder.in_progress and not dataset["status"].any():
                raise StudyError(f"{folder.fault or f'{folder.path / STUDY} is damaged'}; {REMEDY}")
            return drawable(dataset)
    file = folder.path / STUDY
    with naming_damage(file, REMEDY):
        dataset = drawable(open_dataset(file))
        if fault := template_fault(dataset):
            raise ValueError(fault)
    return dataset


def open_folder(path: str | os.PathLike) -> StudyFolder | SweepFolder:
    """The study in a folder.

    Raises
    ------
    StudyError
        If there is none, or it is damaged.
    """
    check_local(path)
    path = Path(path)
    check_regular(path)
    if not (path / STUDY).exists() and any(path.glob(f".{STUDY}.*.old")):
        with lock_folder(path, wait=True):  # perhaps it is replaced just now
            remove_leftovers(path / STUDY)
    if (template := stored_template(path)) is None:
        raise StudyError(_fault(path))
    return folder_of(path, template.attrs["study"])


def _fault(path: Path) -> str:
    """Reason why a path is not the folder of a study."""
    if not os.path.lexists(path):
        similar = path.with_suffix("")
        is_similar = similar != path and (similar / DESCRIPTION).exists()
        hint = f"did you mean {similar}?" if is_similar else "make one: pathkernel run TASK"
        return f"there is no study at {path}; {hint}"
    if (path.parent / DESCRIPTION).exists():
        return f"{path} is inside the folder of a study; give the folder: {path.parent}"
    if "study" in attributes_of(path):
        return (
            f"{path} is the dataset of a study without its folder; move it to {STUDY} in a folder "
            "of its own, and give that"
        )
    is_described = any(os.path.lexists(path / name) for name in (DESCRIPTION, STUDY))
    if is_described or any(path.glob(f"{PIECES}/*{SUFFIX}")):
        reason = description_fault(path)
        reason = f" ({reason})" * bool(reason)
        return f"{path} is damaged: {DESCRIPTION} is missing or unreadable{reason}; {REMEDY}"
    if (path / PIECES).exists() or lock_of(path).exists():
        return f"{path} is in progress, and nothing is computed yet; {RESUME}"
    return f"{path} is no folder of a study; make one: pathkernel run TASK"
