"""Comparing a study with what is in its folder, and describing it there before it is computed."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Analysis
from pathkernel_core.atomic import remove_leftovers, replacing_folder
from pathkernel_core.progress import Progress, Report
from pathkernel_core.task import Realisation, Task
from pathkernel_datasets.computing import Computation
from pathkernel_datasets.errors import StudyError, StudyWarning
from pathkernel_datasets.identity import OTHER_DATA, differences, grid_of, identity_of, text_of
from pathkernel_datasets.lock import check_writable, locked
from pathkernel_datasets.prepared import array_library, prepare_data
from pathkernel_datasets.reading import check_regular
from pathkernel_datasets.study import POINT, Study, described, draw
from pathkernel_datasets.study_folder import (
    DESCRIPTION,
    PIECES,
    STUDY,
    SUMS,
    Description,
    StudyFolder,
    described_study,
    stored_description,
)
from pathkernel_datasets.sweep_folder import SweepFolder, folder_name, joined_template
from pathkernel_datasets.template import on_grid, study_template
from pathkernel_datasets.zarr_files import faults, is_rewritten, link_tree

_log = logging.getLogger("pathkernel.study")
_OWN = (DESCRIPTION, STUDY, PIECES, SUMS)


def begin(
    study: Study, path: Path, analyses: tuple[Analysis, ...], report: Report
) -> tuple[list[Computation], Realisation, bool]:
    """Compare a study with its folder, and describe it there if anything is to be computed.

    Returns
    -------
    computations : list of Computation
        The study, or those of all values of the option that is swept.
    drawn : Realisation
        That of the first piece.
    is_complete : bool
        Whether all is computed and published, undamaged.
    """
    _check_folder(path)
    stored, first_seeds = stored_description(path), _FirstSeeds()
    joined = study if stored is None else study.joined(_on_grid_of(study, stored))
    if not joined.sweep:
        one = _compare(study, path, analyses, first_seeds, report)
        one.describe()
        return [one.computation], first_seeds(one.computation.study), one.template is None
    ((name, values),) = joined.sweep.items()
    if stored is not None:
        before = _on_grid_of(study, stored)
        _check_same(path, stored, identity_of(before, map(first_seeds, before.singles)))
        analyses = _stored_analyses(path, stored.analyses, analyses)
        _warn_of_more(path, study, joined)
    paths = [path / folder_name(name, value) for value in values]
    with ExitStack() as locks, ExitStack() as undo:
        for folder in paths:
            folder.mkdir(exist_ok=True)
            locks.enter_context(locked(folder, wait=True))
        if stored is not None and "sweep" not in json.loads(stored.identity):
            _take_over(path, stored, name, undo)
        compared = [
            _compare(single, folder, analyses, first_seeds, report, (name, value))
            for single, folder, value in zip(joined.singles, paths, values)
        ]
        identity = identity_of(joined, map(first_seeds, joined.singles))
        names = compared[0].description.analyses
        description = Description(text_of(identity), names, _meaning(joined, name))
        sweep = SweepFolder(path, description.identity, description.meaning)
        grid = {dim: joined.along(dim) for dim in POINT}  # a value may have been extended by itself
        templates = {
            value: on_grid(
                one.computation.folder.template if one.template is None else one.template, grid
            )
            for value, one in zip(values, compared)
        }
        joined_template(name, description.meaning, templates)  # an error is raised before the work
        # first the folder's own description: folders of values alone are no study
        if described_study(path) != description:
            description.write(path)
        undo.pop_all()
        for one in compared:
            one.describe()
    is_complete = all(one.template is None for one in compared) and sweep.is_published
    if is_complete and (damage := next(faults(path / STUDY), None)):
        _warn_of_damage(path, damage)
        is_complete = False
    computations = [one.computation for one in compared]
    return computations, first_seeds(computations[0].study), is_complete


class _FirstSeeds:
    """Realisations of the first seeds of studies, each drawn once."""

    def __init__(self) -> None:
        self._drawn: list[tuple[Task, int, Realisation]] = []

    def __call__(self, single: Study) -> Realisation:
        task, seed = single.task, single.seeds[0]
        for other, other_seed, realisation in self._drawn:
            if (other, other_seed) == (task, seed):
                return realisation
        self._drawn.append((task, seed, draw(task, seed)))
        return self._drawn[-1][2]


@dataclass(frozen=True)
class _Compared:
    """A study of one value of every option that was compared with its folder.

    Attributes
    ----------
    computation : Computation
    description : Description
    template : Dataset or None
        None if the study is complete.
    """

    computation: Computation
    description: Description
    template: xr.Dataset | None

    def describe(self) -> None:
        """Describe the study in its folder, for workers and for those who read meanwhile."""
        folder = self.computation.folder
        if self.template is not None:
            folder.write_template(self.template)  # first: a description alone has no labels
        if described_study(folder.path) != self.description:
            self.description.write(folder.path)
        if self.template is None:  # a process that was killed when it had published left pieces
            folder.remove_pieces()


def _compare(
    study: Study,
    path: Path,
    analyses: tuple[Analysis, ...],
    first_seeds: _FirstSeeds,
    report: Report,
    swept: tuple[str, Any] | None = None,
) -> _Compared:
    """Compare a study of one value of every option with its folder, and join their grids."""
    stored, joined, damage = stored_description(path), study, None
    if swept is not None:
        _check_folder(path)
    if stored is None and os.path.lexists(path / STUDY):
        raise StudyError(
            f"{path} is damaged: neither {DESCRIPTION} nor {STUDY} says which study it holds; "
            "choose another folder"
        )
    if stored is not None:
        before = _on_grid_of(study, stored)
        _check_same(path, stored, identity_of(before, [first_seeds(before)]))
        analyses = _stored_analyses(path, stored.analyses, analyses)
        joined = study.joined(before)
        if os.path.lexists(path / STUDY) and (damage := next(faults(path / STUDY), None)):
            _warn_of_damage(path, damage)
        if swept is None:
            _warn_of_more(path, study, joined)
    text = text_of(identity_of(joined, [first_seeds(joined)]))
    folder, template = StudyFolder(path, text), None
    label = joined.label(swept[:1] if swept else ())
    # a study that was taken over may not name the value, if it is the default
    is_labelled = swept is None or stored is None or label == _label(folder)
    if folder.published_text == text and not damage and is_labelled:
        _log.info("%s is complete", path)
    elif stored is not None and stored.identity == text and folder.has_template and is_labelled:
        template = folder.template
    else:
        _log.info("%s is %s", path, "begun" if stored is None else "extended or mended")
        report(Progress(0, None, f"seed {joined.seeds[0]}: data and attention"))
        # labels are known only from data
        library = array_library(joined.backend, joined.dtype)
        settings = (joined, joined.seeds[0], library, first_seeds(joined))
        data = prepare_data(*settings, training_only=True)
        template = study_template(joined, text, label, analyses, data, library)
    computation = Computation(folder, joined, analyses, described(*swept) if swept else "")
    description = Description(text, tuple(analysis.name for analysis in analyses))
    return _Compared(computation, description, template)


def _label(folder: StudyFolder) -> str:
    """Label of the study in a folder; empty if it is lost."""
    with suppress(StudyError):
        return str(folder.template.attrs["label"])
    return ""


def _meaning(study: Study, name: str) -> str:
    """Description of an option of a study or of its task."""
    options = (*dataclasses.fields(study), *dataclasses.fields(study.task))
    (declared,) = (entry for entry in options if entry.name == name)
    return declared.metadata.get("help") or described(name)


def _take_over(path: Path, stored: Description, name: str, undo: ExitStack) -> None:
    """Copy the study of a single value to the folder of that value, beside which others come."""
    _check_results(path, name)
    identity = json.loads(stored.identity)
    target = path / folder_name(name, identity["options"].get(name))
    if not target.exists():
        return
    # a run that was killed before the folder had its new description may have copied it already
    if (copied := described_study(target)) is not None:
        grid = grid_of(json.loads(copied.identity))
        if all({*values} <= {*grid[dim]} for dim, values in grid_of(identity).items()):
            return
    undo.callback(shutil.rmtree, target, ignore_errors=True)
    for part in (STUDY, PIECES, SUMS):
        if (path / part).exists():
            with replacing_folder(target / part) as folder:
                link_tree(path / part, folder)
    stored.write(target)


def _on_grid_of(study: Study, stored: Description) -> Study:
    """A study on the grid of a folder."""
    # a folder of a single value, asked for several: its own value joins them
    identity, options = json.loads(stored.identity), study.options
    single = {name: [identity["options"].get(name, options[name])] for name in study.sweep}
    grid = single | grid_of(identity)
    return study.on_grid({name: grid[name] for name in grid if name in {*study.grid, *options}})


def _check_same(path: Path, stored: Description, identity: Mapping[str, Any]) -> None:
    """Check that the study of a folder is this one."""
    if different := differences(json.loads(stored.identity), identity, "this run"):
        other_data = different[-1].startswith(OTHER_DATA)
        raise StudyError(
            f"{path} holds another study and is left as it is ({'; '.join(different)}). Choose "
            "another folder (--out on the command line)"
            + ("" if other_data else ", or run with the study's own settings to resume it")
        )


def _check_results(path: Path, name: str) -> None:
    """Check that results of a study of a single value do not get several."""
    files = (*path.glob("*.zarr"), *filter(Path.is_dir, path.glob(f"{PIECES}/[!.]*")))
    if results := sorted({file.stem for file in files} - {Path(STUDY).stem}):
        raise StudyError(
            f"{path} holds results of a single value of {name} ({', '.join(results)}), which do "
            "not go with several; choose another folder"
        )


def _check_folder(path: Path) -> None:
    """Check that a folder can hold a study, and remove what a killed process left there.

    Raises
    ------
    StudyError
        If it holds something else, a pipe or a device, or cannot be written.
    """
    # a process that was killed before it described its study leaves folders with locks alone
    own = [path / name for name in _OWN if os.path.lexists(path / name)]
    if not own:
        for file in path.rglob("*"):
            if not file.is_dir() and file.name[0] != ".":
                raise StudyError(
                    f"{path} is no folder of a study, but holds {file}; choose another folder"
                )
    for entry in own:
        check_regular(entry)
    check_writable(path, STUDY, PIECES, SUMS)
    for name in (DESCRIPTION, STUDY):
        remove_leftovers(path / name)
    if (path / STUDY).exists() and is_rewritten(path / STUDY):
        raise StudyError(
            f"{path / STUDY} was written by another program than pathkernel, perhaps in part or "
            "changed, and is left as it is; choose another folder"
        )


def _stored_analyses(
    path: Path, names: Sequence[str], analyses: tuple[Analysis, ...]
) -> tuple[Analysis, ...]:
    """Analyses that the study was begun with; plugins that came later do not touch it."""
    available = {analysis.name: analysis for analysis in analyses}
    if missing := [name for name in names if name not in available]:
        raise StudyError(
            f"{path} was begun with the analysis {', '.join(missing)}, which is not available; "
            "install its plugin to resume it, or choose another folder"
        )
    return tuple(available[name] for name in names)


def _warn_of_more(path: Path, study: Study, joined: Study) -> None:
    """Warn that a folder holds more of the grid than is asked for."""
    if joined.grid == study.grid:
        return
    if excess := [name for name in joined.grid if {*joined.along(name)} - {*study.along(name)}]:
        _warn(
            f"{path} holds more values of {' and '.join(map(described, excess))} than are asked "
            "for: they stay, and what is missing of the whole grid is computed. For a smaller "
            "study choose another folder (--out)"
        )


def _warn_of_damage(path: Path, damage: tuple[str, str]) -> None:
    name, fault = damage
    _warn(f"{Path(path, STUDY, name)} {fault}; what is damaged is computed again")


def _warn(message: str) -> None:
    warnings.warn(message, StudyWarning, stacklevel=6)
