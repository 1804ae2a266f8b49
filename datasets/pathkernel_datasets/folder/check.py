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
from pathkernel_core.system.local_files import check_local, file_sizes
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
        metadata_of(file.parent).get("node_type") == "array"
        for file in (Path(file) for file, _ in file_sizes(path))
        if file.name == METADATA
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
    study = _stored_study(path)
    yield from _piece_damage(path, study if isinstance(study, StudyFolder) else None)
    if isinstance(study, SweepFolder):
        for single in study.folders.values():
            yield from _study_damage(single.path)
            own = described_study(single.path)
            if own is not None and core_of(json.loads(own.attrs["study"])) != single.core:
                yield f"{single.path} holds another study than {path / DESCRIPTION}"
    if study is not None and study.fault:
        yield study.fault


def _stored_study(path: Path) -> StudyFolder | SweepFolder | None:
    """The study in a folder; None if nothing there says which it is."""
    template = stored_template(path)
    return None if template is None else folder_of(path, template.attrs["study"])


def _piece_damage(path: Path, study: StudyFolder | None) -> Iterator[str]:
    """Lines about damage to the pieces and sums in a folder.

    The study is None where it is unknown, and for several values of an option: the files are then
    those of the study of a single value before.
    """
    core = None if study is None else study.core
    for file in _array_files(path / PIECES):
        fault = file_fault(file, core)
        if not fault and study is not None and (piece := study.piece_of(file)) is not None:
            values = read_arrays(file, study.core)
            fault = "" if values is None else study.piece_fault(piece, values)
        if fault and os.path.lexists(file):  # else another process has published it meanwhile
            yield f"{file} {fault}"
    for file in _array_files(path / SUMS):
        if fault := file_fault(file, core):
            yield f"{file} {fault}"


def _array_files(folder: Path) -> list[Path]:
    """Files of arrays directly in a folder, and all that is named like one."""
    _, folders, names = next(os.walk(folder), ("", [], []))
    return sorted(folder / name for name in (*folders, *names) if name.endswith(SUFFIX))


def _result_damage(path: Path) -> Iterator[str]:
    """Lines about damage to results and to draws that are not published yet, and leftovers."""
    folders = (Path(above, name) for above, names, _ in os.walk(path) for name in names)
    for result in sorted(folder for folder in folders if folder.suffix == ".zarr"):
        if result.name != STUDY and PIECES not in result.relative_to(path).parts:
            for name, fault in faults(result):
                yield f"{result / name} {fault}"
    study = _stored_study(path)
    singles = study.folders.values() if isinstance(study, SweepFolder) else [study]
    cores = {single.path: single.core for single in singles if single is not None}
    for study_path in dict.fromkeys((path, *cores)):
        yield from _leftovers(study_path)
    for draws in sorted(Path(file) for file, _ in file_sizes(path)):
        parts = draws.relative_to(path).parts
        if draws.suffix == SUFFIX and PIECES in parts[:-2]:  # in a folder of the result inside
            study_path = path.joinpath(*parts[: parts.index(PIECES)])
            if fault := file_fault(draws, cores.get(study_path)):
                yield f"{draws} {fault}"


def _leftovers(path: Path) -> Iterator[str]:
    """Lines about files that a killed process was about to move into the folder of a study."""
    if (path / PIECES).exists():  # somebody computes, or was killed, and may be writing them
        return
    targets = (path / DESCRIPTION, path / STUDY, *path.glob("*.zarr"))
    for entry in sorted(path.glob(".*")):
        if any(is_leftover(entry, target) for target in targets):
            yield f"{entry} was left by a command that failed; run it again, which removes it"
