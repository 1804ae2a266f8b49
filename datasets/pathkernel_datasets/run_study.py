"""Computing a study: comparing it with its folder, a map over what is missing, then publishing."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Analysis
from pathkernel_core.atomic import remove_leftovers, replacing_folder
from pathkernel_core.hooks import load_plugins
from pathkernel_core.local_files import check_local
from pathkernel_core.progress import Progress, Report, silent
from pathkernel_core.task import Realisation, Task
from pathkernel_datasets.computing import Computation, Job, compute_by_workers, compute_here
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.identity import OTHER_DATA, differences, grid_of, identity_of
from pathkernel_datasets.lock import check_writable, locked, unwritable
from pathkernel_datasets.prepared import array_library, prepare_data
from pathkernel_datasets.progress_bar import supervised
from pathkernel_datasets.reading import check_regular, folder_of, open_study
from pathkernel_datasets.study import Study, described, draw
from pathkernel_datasets.study_folder import (
    DESCRIPTION,
    PIECES,
    STUDY,
    Description,
    StudyFolder,
    described_study,
    stored_description,
)
from pathkernel_datasets.sums import SUMS
from pathkernel_datasets.sweep_folder import SweepFolder, folder_name, joined_template
from pathkernel_datasets.template import study_template
from pathkernel_datasets.zarr_files import CHECKSUM, faults, link_tree, metadata_of

_log = logging.getLogger("pathkernel.study")


def run_study(
    study: Study,
    path: str | os.PathLike,
    *,
    analyses: Iterable[Analysis] | None = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    threads: int | None = 1,
    report: Report | None = None,
) -> xr.Dataset:
    """Compute a study into a folder, or resume an interrupted run.

    The study is computed in pieces, one per seed and width with all temperatures. They are files in
    the folder until all are complete; then they become one Zarr, ``study.zarr``. New widths,
    temperatures or seeds extend the study, and no point is computed twice. Points of the folder
    that the study does not name stay, and are computed if they are missing. Every one of several
    values of an option has a folder of its own inside, such as ``examples-50``; ``study.zarr`` is
    then their joined dataset.

    Parameters
    ----------
    study : Study
    path : path
        Folder to make, to resume or to extend.
    analyses : iterable of Analysis, optional
        Analyses whose variables the dataset also holds; by default all that are registered, as on
        the command line. A study that was begun with others keeps those.
    executor : concurrent.futures.Executor, optional
        Workers to compute the pieces: processes, such as those of
        :func:`pathkernel_datasets.workers.processes`, or those of Dask. They write into the folder
        themselves, so that it must be where all of them see it.
    part : tuple of int, optional
        Compute one part of the study only, such as (1, 3), the first of three. Other processes,
        which share the file system, compute the others, at the same time or later; the one that
        completes the study publishes it.
    threads : int, optional
        Threads of the linear algebra on the CPU, of every worker; None leaves their number as it
        is.
    report : callable, optional
        Called with a Progress before every step, not at all if nothing was left to do. By default
        a bar shows it, on a terminal and in a notebook.

    Returns
    -------
    xarray.Dataset
        All that is computed, lazily once it is published.

    Raises
    ------
    StoreError
        If the folder holds another study or cannot be written; or if a worker ended early,
        or has other code or files.
    TaskError
        If the task or an analysis cannot be sent to workers, or the values of an option that has
        several do not fit into one dataset.
    ValueError
        If there is no such part.

    Notes
    -----
    If a run is interrupted or a worker is lost, call it again: what is computed is never computed
    twice. If the folder holds another study, the message names the differences; give the same
    settings, or another path. Begin workers inside of ``if __name__ == "__main__":``, and define
    tasks of your own in a module, or the workers cannot import them. Points that fail do not stop a
    study: look at ``dataset.status`` before its values.

    Examples
    --------
    >>> import pathkernel as pk
    >>> task = pk.HiddenMarkov(examples=20, test_examples=20)
    >>> dataset = pk.run_study(pk.Study(task, widths=(10, 100), seeds=(0, 1)), "small")
    >>> dataset["accuracy"].sel(width=10).dims
    ('seed', 'temperature', 'test_set')
    """
    if not isinstance(study, Study):
        raise TypeError(f"study must be a Study, not {study!r}; call run_study(Study(task), path)")
    array_library(study.backend, study.dtype)  # loaded before its threads are limited
    with supervised(report, threads) as tell:
        compute_study(study, path, analyses, executor, part, threads, tell)
    return open_study(path)


def compute_study(
    study: Study,
    path: str | os.PathLike,
    analyses: Iterable[Analysis] | None = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    threads: int | None = 1,
    report: Report = silent,
) -> int:
    """Compute a study as :func:`run_study` does; return the number of grid points computed."""
    check_local(path)
    path, part = Path(os.path.realpath(path)), part or (1, 1)
    if not 1 <= part[0] <= part[1]:
        raise ValueError(f"part must be a number and how many there are, as (1, 3), not {part}")
    analyses = tuple(load_plugins().analyses.values() if analyses is None else analyses)
    lock = functools.partial(locked, wait=True, waiting=functools.partial(_tell_wait, path, report))
    # The lock is held while the study is compared with its folder, and while it is published, not
    # in between: parts compute at the same time, and pieces are whole or absent without a lock
    with _folder(path), lock(path):
        run = _begin(study, path, analyses, report)
    jobs = _part([(one, piece) for one in run.computations for piece in one.folder.pieces], part)
    missing = {job: lacking for job in jobs if (lacking := job[0].folder.lacking(job[1]))}
    total = sum(len(one.study.temperatures) for one, piece in jobs if piece.width is not None)
    computed = sum(len(missing[job]) for job in missing if job[1].width is not None)
    _log.info("%s: %d of %d grid points are computed already", path, total - computed, total)

    def tell(progress: Progress) -> None:  # of this part, with what earlier runs have computed
        points = total - computed + progress.done
        report(dataclasses.replace(progress, done=points, total=total))

    if executor is None:
        compute_here(missing, run.drawn, tell)
    elif missing:
        compute_by_workers(missing, executor, threads, tell)
    if run.is_complete:
        return 0
    tell(Progress(computed, None, "complete"))
    with lock(path):
        _publish(path, run)
    return computed


def _tell_wait(path: Path, report: Report) -> None:
    report(Progress(0, None, f"waiting for another process that reads or publishes {path}"))


def _part(jobs: Sequence[Job], part: tuple[int, int]) -> Sequence[Job]:
    """A part of the pieces, such as (1, 3), the first of three; parts are of equal size."""
    # a run of pieces, so that a part prepares the data of few seeds
    first, last = (len(jobs) * number // part[1] for number in (part[0] - 1, part[0]))
    return jobs[first:last]


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder, which goes again if there is an error before anything is in it."""
    is_new = not os.path.lexists(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error.strerror) from error
    try:
        yield
    except BaseException:
        if is_new and not (path / DESCRIPTION).exists():
            shutil.rmtree(path)  # locks, and folders for values
        raise


@dataclass(frozen=True)
class _Run:
    """Studies that are computed together, of single values of the option that is swept.

    Attributes
    ----------
    computations : tuple of Computation
    drawn : Realisation
        That of the first piece.
    description : Description
        Of all of them together.
    is_complete : bool
        Whether all is computed and published, undamaged.
    """

    computations: tuple[Computation, ...]
    drawn: Realisation
    description: Description
    is_complete: bool


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


def _begin(study: Study, path: Path, analyses: tuple[Analysis, ...], report: Report) -> _Run:
    """Compare a study with its folder, and describe it there if anything is to be computed."""
    _check_folder(path)
    stored, first_seeds = stored_description(path), _FirstSeeds()
    joined = study if stored is None else study.joined(_on_grid_of(study, stored))
    if not joined.sweep:
        one = _compare(study, path, analyses, first_seeds, report)
        one.describe()
        drawn = first_seeds(one.computation.study)
        return _Run((one.computation,), drawn, one.description, one.is_complete)
    ((name, values),) = joined.sweep.items()
    if stored is not None:
        before = _on_grid_of(study, stored)
        _check_same(path, stored, identity_of(before, map(first_seeds, before.singles)))
        _warn_of_more(path, study, joined)
    paths = [path / folder_name(name, value) for value in values]
    with ExitStack() as locks:
        for folder in paths:
            folder.mkdir(exist_ok=True)
            locks.enter_context(locked(folder, wait=True))
        if stored is not None and "sweep" not in json.loads(stored.identity):
            _take_over(path, stored, name)
        compared = [
            _compare(single, folder, analyses, first_seeds, report, (name, value))
            for single, folder, value in zip(joined.singles, paths, values)
        ]
        identity = identity_of(joined, map(first_seeds, joined.singles))
        names = compared[0].description.analyses
        description = Description(_text(identity), names, _meaning(joined, name))
        sweep = SweepFolder(path, description.identity, description.meaning)
        templates = {value: one.template() for value, one in zip(values, compared)}
        joined_template(name, description.meaning, templates)  # an error is raised before the work
        # first the folder's own description: folders of values alone are no study
        if described_study(path) != description:
            description.write(path)
        for one in compared:
            one.describe()
    is_complete = all(one.is_complete for one in compared) and sweep.is_published
    if is_complete and (damage := next(faults(path / STUDY), None)):
        _warn_of_damage(path, damage)
        is_complete = False
    computations = tuple(one.computation for one in compared)
    return _Run(computations, first_seeds(computations[0].study), description, is_complete)


@dataclass(frozen=True)
class _Compared:
    """A study of one value of every option that was compared with its folder."""

    computation: Computation
    description: Description
    is_complete: bool
    new_template: xr.Dataset | None

    def template(self) -> xr.Dataset:
        """Template of the study."""
        stored = self.computation.folder
        return stored.template if self.new_template is None else self.new_template

    def describe(self) -> None:
        """Describe the study in its folder, if anything is to be computed."""
        folder = self.computation.folder
        if described_study(folder.path) != self.description:
            self.description.write(folder.path)
        if self.is_complete:  # pieces were left by a process that was killed when it had published
            folder.remove_pieces()
        elif self.new_template is not None:
            folder.write_template(self.new_template)


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
    if stored is not None:
        before = _on_grid_of(study, stored)
        _check_same(path, stored, identity_of(before, [first_seeds(before)]))
        analyses = _stored_analyses(path, stored.analyses, analyses)
        joined = study.joined(before)
        if os.path.lexists(path / STUDY) and (damage := next(faults(path / STUDY), None)):
            _warn_of_damage(path, damage)
        if swept is None:
            _warn_of_more(path, study, joined)
    text = _text(identity_of(joined, [first_seeds(joined)]))
    folder, template = StudyFolder(path, text), None
    is_complete = folder.published_text == text and not damage
    if is_complete:
        _log.info("%s is complete", path)
    elif stored is None or stored.identity != text or not folder.has_template:
        _log.info("%s is %s", path, "begun" if stored is None else "extended or mended")
        report(Progress(0, None, f"seed {joined.seeds[0]}: data and attention"))
        # labels are known only from data
        library = array_library(joined.backend, joined.dtype)
        settings = (joined, joined.seeds[0], library, first_seeds(joined))
        data = prepare_data(*settings, training_only=True)
        label = joined.label(swept[:1] if swept else ())
        template = study_template(joined, text, label, analyses, data, library)
    computation = Computation(folder, joined, analyses, described(*swept) if swept else "")
    description = Description(text, tuple(analysis.name for analysis in analyses))
    return _Compared(computation, description, is_complete, template)


def _text(identity: Mapping[str, Any]) -> str:
    return json.dumps(identity, sort_keys=True)


def _meaning(study: Study, name: str) -> str:
    """Description of an option of a study or of its task."""
    options = (*dataclasses.fields(study), *dataclasses.fields(study.task))
    (declared,) = (entry for entry in options if entry.name == name)
    return declared.metadata.get("help") or described(name)


def _take_over(path: Path, stored: Description, name: str) -> None:
    """Copy the study of a single value to the folder of that value, beside which others come."""
    _check_results(path, name)
    target = path / folder_name(name, json.loads(stored.identity)["options"].get(name))
    if not target.exists() or described_study(target) is not None:
        return
    for part in (STUDY, PIECES, SUMS):
        if (path / part).exists():
            with replacing_folder(target / part) as folder:
                link_tree(path / part, folder)
    stored.write(target)


def _publish(path: Path, run: _Run) -> None:
    """Publish the studies of which all pieces are there, and join them."""
    for one in run.computations:
        with locked(one.folder.path, wait=True) if one.folder.path != path else nullcontext():
            # the lock was free meanwhile: the study may have been published or extended by others
            description = described_study(one.folder.path)
            if description is not None:
                folder = StudyFolder(one.folder.path, description.identity)
                if folder.in_progress:
                    folder.publish()
    sweep = folder_of(path, described_study(path) or run.description)
    if isinstance(sweep, SweepFolder) and not sweep.in_progress:
        sweep.publish()
        StudyFolder(path, "").remove_pieces()  # of a study of a single value before


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
        raise StoreError(
            f"{path} holds another study and is left as it is ({'; '.join(different)}). Choose "
            "another folder (--out on the command line)"
            + ("" if other_data else ", or run with the study's own settings to resume it")
        )


def _check_results(path: Path, name: str) -> None:
    """Check that results of a study of a single value do not get several."""
    if results := sorted(file.stem for file in path.glob("*.zarr") if file.name != STUDY):
        raise StoreError(
            f"{path} holds results of a single value of {name} ({', '.join(results)}), which do "
            "not go with several; choose another folder"
        )


_OWN = frozenset((DESCRIPTION, STUDY, PIECES, SUMS))


def _check_folder(path: Path) -> None:
    """Check that a folder can hold a study, and remove what a killed process left there.

    Raises
    ------
    StoreError
        If it holds something else, a pipe or a device, or cannot be written.
    """
    # a process that was killed before it described its study leaves folders with locks alone
    own = [path / name for name in _OWN if os.path.lexists(path / name)]
    if not own:
        for file in path.rglob("*"):
            if not file.is_dir() and file.name[0] != ".":
                raise StoreError(
                    f"{path} is no folder of a study, but holds {file}; choose another folder"
                )
    for entry in own:
        check_regular(entry)
    check_writable(path, STUDY, PIECES, SUMS)
    for name in (DESCRIPTION, STUDY):
        remove_leftovers(path / name)
    metadata = metadata_of(path / STUDY) if (path / STUDY).exists() else {}
    if CHECKSUM not in metadata.get("attributes", {CHECKSUM: None}):
        raise StoreError(
            f"{path / STUDY} was written by another program than pathkernel, perhaps in part or "
            "changed, and is left as it is; choose another folder"
        )


def _stored_analyses(
    path: Path, names: Sequence[str], analyses: tuple[Analysis, ...]
) -> tuple[Analysis, ...]:
    """Analyses that the study was begun with; plugins that came later do not touch it."""
    available = {analysis.name: analysis for analysis in analyses}
    if missing := [name for name in names if name not in available]:
        raise StoreError(
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
            "for; all of its grid is computed. For a smaller study choose another folder (--out)"
        )


def _warn_of_damage(path: Path, damage: tuple[str, str]) -> None:
    name, fault = damage
    _warn(f"{Path(path, STUDY, name)} {fault}; what is damaged is computed again")


def _warn(message: str) -> None:
    warnings.warn(message, StoreWarning, stacklevel=6)
