"""Comparing a study with what is in its folder, and describing it there before it is computed."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.contracts.analysis import Analysis
from pathkernel_core.contracts.task import Realisation, Task
from pathkernel_core.system.atomic import remove_leftovers, replacing_folder
from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.errors import AnalysisError, StudyError, StudyWarning, TaskError
from pathkernel_datasets.folder.lock import check_writable, waiting_lock
from pathkernel_datasets.folder.study_folder import (
    DESCRIPTION,
    OWN,
    PIECES,
    STUDY,
    SUMS,
    StudyFolder,
    check_regular,
    described_study,
    stored_template,
    unreadable,
    write_template,
)
from pathkernel_datasets.folder.sweep_folder import (
    SweepFolder,
    folder_name,
    folder_of,
    joined_template,
)
from pathkernel_datasets.folder.zarr_files import attributes_of, faults, is_rewritten, link_tree
from pathkernel_datasets.run.computing import Computation
from pathkernel_datasets.study.identity import (
    OTHER_DATA,
    differences,
    grid_of,
    identity_of,
    text_of,
)
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import (
    POINT,
    SETTINGS,
    Study,
    describe_option,
    draw_realisation,
)
from pathkernel_datasets.variables.labelling import json_attribute
from pathkernel_datasets.variables.template import on_grid, study_template

_log = logging.getLogger("pathkernel.study")


def begin(
    study: Study, path: Path, analyses: tuple[Analysis, ...], report: Report
) -> tuple[list[Computation], FirstSeeds, bool]:
    """Compare a study with its folder, and describe it there if anything is to be computed.

    Returns
    -------
    computations : list of Computation
        The study, or those of all values of the option that is swept.
    first_seeds : FirstSeeds
        Data that were drawn meanwhile.
    is_complete : bool
        Whether all is computed and published, undamaged.
    """
    _check_folder(path)
    stored, first_seeds = stored_template(path), FirstSeeds()
    _check_parent(path, study, first_seeds)
    joined = study if stored is None else study.join_grid(_on_grid_of(study, stored))
    if not joined.sweep:
        one = _compare(study, path, analyses, first_seeds, report)
        one.describe()
        return [one.computation], first_seeds, one.is_complete
    ((name, values),) = joined.sweep.items()
    if stored is not None:
        before = _on_grid_of(study, stored)
        _check_same(path, stored, identity_of(before, map(first_seeds, before.singles)))
        analyses = _stored_analyses(path, stored, analyses)
        _warn_of_more(path, study, joined)
    paths = [path / folder_name(name, value) for value in values]
    with ExitStack() as locks, ExitStack() as undo:
        for folder in paths:
            folder.mkdir(exist_ok=True)
            locks.enter_context(waiting_lock(folder, report))
        if stored is not None and "sweep" not in json.loads(stored.attrs["study"]):
            _take_over(path, stored, name, undo)
        compared = [
            _compare(single, folder, analyses, first_seeds, report, (name, value))
            for single, folder, value in zip(joined.singles, paths, values)
        ]
        text = text_of(identity_of(joined, map(first_seeds, joined.singles)))
        grid = {dim: joined.along(dim) for dim in POINT}  # a value may have been extended by itself
        templates = {value: on_grid(one.template, grid) for value, one in zip(values, compared)}
        # an error is raised before the work
        template = joined_template(name, _meaning(joined, name), templates, text)
        if fault := unreadable(template):
            raise _unreadable_task(joined.task, fault)
        is_complete = all(one.is_complete for one in compared) and _is_published(path, template)
        if is_complete and (damage := next(faults(path / STUDY), None)):
            _warn_of_damage(path, damage)
            is_complete = False
        undo.pop_all()
        sweep = SweepFolder(path, text)
        if not is_complete:  # before the folders of values, which alone are no study
            sweep.begin()
        for one in compared:
            one.describe()
        write_template(path, template)
        if is_complete:
            sweep.end()
    return [one.computation for one in compared], first_seeds, is_complete


class FirstSeeds:
    """Realisations of the first seeds of studies, each drawn once."""

    def __init__(self) -> None:
        self._drawn: list[tuple[Task, int, Realisation]] = []

    def __call__(self, single: Study) -> Realisation:
        """The realisation of a study's first seed, drawn unless it is."""
        task, seed = single.task, single.seeds[0]
        if (realisation := self.drawn(task, seed)) is None:
            realisation = draw_realisation(task, seed)
            self._drawn.append((task, seed, realisation))
        return realisation

    def drawn(self, task: Task, seed: int, *, is_last: bool = False) -> Realisation | None:
        """The realisation of a seed, if it is drawn; released if ``is_last``, its last use."""
        for index, (other, other_seed, realisation) in enumerate(self._drawn):
            if (other, other_seed) == (task, seed):
                if is_last:
                    del self._drawn[index]
                return realisation
        return None


@dataclass(frozen=True)
class _Compared:
    """A study of one value of every option that was compared with its folder.

    Attributes
    ----------
    computation : Computation
    template : Dataset
        The dataset without values.
    is_complete : bool
        Whether it is published, undamaged.
    """

    computation: Computation
    template: xr.Dataset
    is_complete: bool

    def describe(self) -> None:
        """Describe the study in its folder, for workers and for those who read meanwhile."""
        folder = self.computation.folder
        if not self.is_complete:
            folder.begin()
        write_template(folder.path, self.template)
        if self.is_complete:  # a process that was killed when it had published left pieces
            folder.end()


def _compare(
    study: Study,
    path: Path,
    analyses: tuple[Analysis, ...],
    first_seeds: FirstSeeds,
    report: Report,
    swept: tuple[str, Any] | None = None,
) -> _Compared:
    """Compare a study of one value of every option with its folder, and join their grids."""
    stored, joined, damage = stored_template(path), study, None
    if swept is not None:
        _check_folder(path)
    if stored is None and os.path.lexists(path / STUDY):
        raise StudyError(
            f"{path} is damaged: neither {DESCRIPTION} nor {STUDY} says which study it holds; "
            "choose another folder"
        )
    label = joined.label(swept[:1] if swept else ())
    if stored is not None:
        before = _on_grid_of(study, stored)
        _check_same(path, stored, identity_of(before, [first_seeds(before)]))
        analyses = _stored_analyses(path, stored, analyses)
        joined = study.join_grid(before)
        if swept is None:
            _warn_of_more(path, study, joined)
        # a value that is the default is named in the folder of several alone
        label = label if swept else stored.attrs["label"]
        if os.path.lexists(path / STUDY) and (damage := next(faults(path / STUDY), None)):
            _warn_of_damage(path, damage)
    text = text_of(identity_of(joined, [first_seeds(joined)]))
    template = stored if stored is not None and stored.coords else None
    if template is None or (template.attrs["study"], template.attrs["label"]) != (text, label):
        _log.info("%s is %s", path, "begun" if stored is None else "extended")
        report(Progress(0, None, f"seed {joined.seeds[0]}: data and attention"))
        # labels are known only from data
        library = array_library(joined.backend, joined.dtype)
        settings = (joined, joined.seeds[0], library, first_seeds(joined))
        data = prepare_data(*settings, training_only=True)
        template = _readable_template(joined, text, label, analyses, data, library)
    is_complete = not damage and _is_published(path, template)
    _log.info("%s is %s", path, "complete" if is_complete else "in progress")
    folder = StudyFolder(path, text)
    named = describe_option(*swept) if swept else ""
    computation = Computation(folder, joined, analyses, named, is_sound=not damage)
    return _Compared(computation, template, is_complete)


def _readable_template(
    study: Study, text: str, label: str, analyses: Sequence[Analysis], *rest: Any
) -> xr.Dataset:
    """Template of a study as :func:`study_template` makes it, which its readers take.

    Raises
    ------
    TaskError, AnalysisError
        If labels or attributes are none that they take, by whose they are.
    """
    template = study_template(study, text, label, analyses, *rest)
    if not unreadable(template):
        return template
    if fault := unreadable(study_template(study, text, label, (), *rest)):
        raise _unreadable_task(study.task, fault)
    for analysis in analyses:
        if fault := unreadable(study_template(study, text, label, [analysis], *rest)):
            kind = type(analysis)
            raise AnalysisError(
                "the dataset could not be read again with the analysis "
                f"{analysis.name!r} of class {kind.__module__}.{kind.__qualname__}: {fault}; give "
                "labels that are texts or numbers, and descriptions that are texts"
            )
    raise StudyError(f"the dataset of the study could not be read again: {unreadable(template)}")


def _unreadable_task(task: Task, fault: str) -> TaskError:
    kind = type(task)
    return TaskError(
        f"the dataset of the task {task.name!r} of class {kind.__module__}.{kind.__qualname__} "
        f"could not be read again: {fault}; let realise() name test sets, outputs and sub-networks "
        "by texts"
    )


def _is_published(path: Path, template: xr.Dataset) -> bool:
    """Whether the published study of a folder is that of a template, and named like it."""
    published = attributes_of(path / STUDY) if (path / STUDY).exists() else {}
    return all(published.get(name) == template.attrs[name] for name in ("study", "label"))


def _meaning(study: Study, name: str) -> str:
    """Description of an option of a study or of its task."""
    options = (*dataclasses.fields(study), *dataclasses.fields(study.task))
    (declared,) = (entry for entry in options if entry.name == name)
    help_text = declared.metadata.get("help", "").partition("  [")[0].rstrip(".")
    return help_text if help_text and name not in SETTINGS else describe_option(name)


def _take_over(path: Path, stored: xr.Dataset, name: str, undo: ExitStack) -> None:
    """Copy the study of a single value to the folder of that value, beside which others come."""
    _check_results(path, name)
    identity = json.loads(stored.attrs["study"])
    target = path / folder_name(name, identity["options"].get(name))
    if not target.exists():
        return
    # a run that was killed before the folder had its new description may have copied it already
    if (copied := described_study(target)) is not None:
        grid = grid_of(json.loads(copied.attrs["study"]))
        if all({*values} <= {*grid[dim]} for dim, values in grid_of(identity).items()):
            return
    undo.callback(shutil.rmtree, target, ignore_errors=True)
    for part in (STUDY, PIECES, SUMS):
        if (path / part).exists():
            with replacing_folder(target / part) as folder:
                link_tree(path / part, folder)
    if stored.coords:
        write_template(target, stored)


def _on_grid_of(study: Study, stored: xr.Dataset) -> Study:
    """A study on the grid of a folder."""
    # a folder of a single value, asked for several: its own value joins them
    identity, options = json.loads(stored.attrs["study"]), study.options
    single = {name: [identity["options"].get(name, options[name])] for name in study.sweep}
    grid = single | grid_of(identity)
    return study.on_grid({name: grid[name] for name in grid if name in {*study.grid, *options}})


def _check_same(path: Path, stored: xr.Dataset, identity: Mapping[str, Any]) -> None:
    """Check that the study of a folder is this one."""
    if different := differences(json.loads(stored.attrs["study"]), identity, "this run"):
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
    if not any(os.path.lexists(path / name) for name in OWN):
        for folder, _, names in os.walk(path):
            for name in names:
                if name[0] != ".":
                    raise StudyError(
                        f"{path} is no folder of a study, but holds {Path(folder, name)}; choose "
                        "another folder"
                    )
    check_regular(path)
    check_writable(path, STUDY, PIECES, SUMS)
    for name in (DESCRIPTION, STUDY):
        remove_leftovers(path / name)
    if (path / STUDY).exists() and is_rewritten(path / STUDY):
        raise StudyError(
            f"{path / STUDY} was written by another program than pathkernel, perhaps in part or "
            "changed, and is left as it is; choose another folder"
        )


def _check_parent(path: Path, study: Study, first_seeds: FirstSeeds) -> None:
    """Check that a folder inside that of several values is the folder of the study's own value."""
    parent = described_study(path.parent)
    if parent is None:
        return
    sweep = folder_of(path.parent, parent.attrs["study"])
    if not isinstance(sweep, SweepFolder):
        return
    singles = [one for one in sweep.folders.values() if one.path == path]
    if study.sweep or not singles:
        raise StudyError(
            f"{path} is inside the folder of several values of {describe_option(sweep.option)}; "
            f"choose another folder, or run all values into {path.parent}"
        )
    own = parent.assign_attrs(study=singles[0].text)
    single = _on_grid_of(study, own)
    _check_same(path, own, identity_of(single, [first_seeds(single)]))


def _stored_analyses(
    path: Path, stored: xr.Dataset, analyses: tuple[Analysis, ...]
) -> tuple[Analysis, ...]:
    """Analyses that the study was begun with; plugins that came later do not touch it."""
    available = {analysis.name: analysis for analysis in analyses}
    names = json_attribute(stored.attrs, "analyses")
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
            f"{path} holds more values of {' and '.join(map(describe_option, excess))} than are "
            "asked for: they stay, and what is missing of the whole grid is computed. For a "
            "smaller study choose another folder (--out)"
        )


def _warn_of_damage(path: Path, damage: tuple[str, str]) -> None:
    name, fault = damage
    _warn(f"{Path(path, STUDY, name)} {fault}; what is damaged is computed again")


def _warn(message: str) -> None:
    warnings.warn(message, StudyWarning, stacklevel=6)
