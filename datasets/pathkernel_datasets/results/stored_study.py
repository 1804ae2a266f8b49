"""A study in its folder, with its results."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import xarray as xr

from pathkernel_core.contracts.hooks import Plugins, load_plugins
from pathkernel_core.contracts.task import Task
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.reading import open_folder, open_study
from pathkernel_datasets.folder.study_folder import PIECES, STUDY
from pathkernel_datasets.folder.sweep_folder import SweepFolder
from pathkernel_datasets.folder.zarr_files import METADATA, naming_damage, open_tree
from pathkernel_datasets.results.point import Point, PointData
from pathkernel_datasets.results.result_files import damaged_parts, file_of, parts_of, write_part
from pathkernel_datasets.run.workers import mapped, naming_lost_workers, workers
from pathkernel_datasets.study.identity import core_of, differences, file_options, identity_of
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import SETTINGS, Study, describe_option, make_task


class StoredStudy:
    """A study in its folder, with its results.

    Parameters
    ----------
    path : path
        Folder of the study.
    plugins, executor, threads
        As for :func:`pathkernel_datasets.results.run_result.run_result`; see :meth:`mapping`.
    label : str
        Value of the swept option in words, of one of :attr:`singles`.

    Attributes
    ----------
    identity : dict
        All that determines the study, see :func:`pathkernel_datasets.study.identity.identity_of`.
    damaged : frozenset of str
        Parts of results that are as if they were not there.

    Raises
    ------
    StudyError
        If the path is no folder of a study, or the study is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        plugins: Plugins | None = None,
        executor: Executor | None = None,
        threads: int | None = 1,
        label: str = "",
    ):
        self._folder = open_folder(path)
        self.path, self.identity, self.label = self._folder.path, self._folder.identity, label
        self._plugins, self._executor, self._threads = plugins, executor, threads
        self.damaged: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple:
        """Workers open the study themselves, with the plugins that are installed there."""
        return _open_study, (str(self.path.resolve()), self._folder.text)

    @property
    def singles(self) -> list[StoredStudy]:
        """Studies of the single values of the option that is swept; itself if none is.

        Raises a StudyError if the folder of a value is missing, as where ``study.zarr`` was copied
        alone.
        """
        if not isinstance(self._folder, SweepFolder):
            return [self]
        settings, option = (self._plugins, self._executor, self._threads), self._folder.option
        for value, folder in self._folder.folders.items():
            if not os.path.lexists(folder.path):
                raise StudyError(
                    f"{self.path} has no folder {folder.path.name}, that of "
                    f"{describe_option(option, value)}, which this needs beside {STUDY}; copy it "
                    "there from the whole folder of the study, or run the study again"
                )
        return [
            StoredStudy(folder.path, *settings, describe_option(option, value))
            for value, folder in self._folder.folders.items()
        ]

    @cached_property
    def plugins(self) -> Plugins:
        """Where tasks and samplers are looked up."""
        return load_plugins() if self._plugins is None else self._plugins

    @property
    def is_complete(self) -> bool:
        """Whether the study is published, and no run extends it."""
        return open_folder(self.path).is_published

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The study itself, lazily."""
        return open_study(self.path)

    @contextmanager
    def mapping(self, jobs: int = 1, scheduler: str | None = None) -> Iterator[Callable[..., Any]]:
        """Yield a ``map`` that runs independent jobs and returns their results in order.

        Jobs run on the executor of this object, else in a process pool or on a Dask scheduler, else
        in this process.

        Raises
        ------
        StudyError
            If a worker ended early.
        """
        pool = workers(jobs, scheduler) if self._executor is None else nullcontext(self._executor)
        with pool as executor:
            if executor is None:
                yield map
                return
            with naming_lost_workers(self.path), ExitStack() as stack:
                # closing the results cancels jobs that have not begun, where a caller stops early
                def map_jobs(function: Callable[..., Any], jobs: Iterable[Any]) -> Iterator[Any]:
                    results = mapped(executor, self._threads, function, jobs)
                    return stack.enter_context(closing(results))  # type: ignore[type-var]

                yield map_jobs

    def task(self, **replaced: Any) -> Task:
        """Build the study's task, with some options replaced.

        Raises
        ------
        StudyError
            If the folder holds several values of an option.
        UnknownNameError
            If no plugin provides it.
        """
        for name in self.identity.get("sweep", ()):
            raise StudyError(
                f"{self.path} holds several values of the option {name!r}, and this needs a study "
                "of one: take the folder of one of them, or one of StoredStudy(path).singles"
            )
        options = {name: value for name, value in self.options.items() if name not in SETTINGS}
        return make_task(self.plugins.task(self.identity["task"]), options | replaced)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the study's task, a list for one that is swept; files as in `locations`."""
        options = dict(self.identity["options"])
        for name in file_options(options, self.identity["provenance"]):
            existing = filter(os.path.exists, self.locations(options[name]))
            options[name] = str(next(existing, options[name]))
        return options

    def locations(self, file: str | os.PathLike) -> list[Path]:
        """Possible paths of a file: the original, next to the study, in the working folder."""
        file, folder = Path(file), self.path.resolve().parent
        return list(dict.fromkeys((file, folder / file, folder / file.name, Path(file.name))))

    @property
    def results(self) -> list[str]:
        """Names of the results in the folder, or being computed."""
        paths, names = [self.path], set[str]()
        if isinstance(self._folder, SweepFolder):
            paths += [folder.path for folder in self._folder.folders.values()]
        for path in paths:
            names |= {file.stem for file in path.glob("*.zarr") if file.name != STUDY}
            names |= {entry.stem for entry in path.glob(f"{PIECES}/[!.]*") if entry.is_dir()}
        return sorted(names)

    def is_published(self, result: str) -> bool:
        """Whether a result has a file, and is not only being computed, or begun and killed."""
        return os.path.lexists(file_of(self.path, result)[0])

    def parts(self, result: str) -> list[str]:
        """Names of the parts of a result, such as ``corrections/…``, in alphabetic order."""
        path, _ = file_of(self.path, result)
        return sorted(f"{result}/{part}".rstrip("/") for part in parts_of(path))

    def holds(self, part: str) -> bool:
        """Whether the folder has a result, or a part of one such as ``corrections/…``."""
        path, inside = file_of(self.path, part)
        return (path / inside / METADATA).exists() and part not in self.damaged

    def result(self, part: str) -> xr.DataTree:
        """Open the labelled data of a result, or of a part of one, lazily.

        Raises
        ------
        StudyError
            If the folder has none of that name, or it is damaged.
        """
        if not self.holds(part):
            listed = ", ".join(self.results) or "none"
            several = (
                "" if self.singles[0] is self else ", some of them of single values: see singles"
            )
            raise StudyError(f"{self.path} has no {part}; its results are: {listed}{several}")
        path, inside = file_of(self.path, part)
        with naming_damage(path, "run the command of the result again"):
            return open_tree(path, inside)

    def damage(self, result: str) -> str:
        """Fault of the first part of a result that cannot be read; empty if there is none."""
        files = [file_of(single.path, result)[0] for single in (self, *self.singles)]
        faults = (
            fault for file in files if file.exists() for fault in damaged_parts(file).values()
        )
        return next(faults, "")

    def write(self, part: str, data: xr.Dataset | xr.DataTree) -> None:
        """Write a part of a result, to be published when all of them are computed."""
        write_part(self.path, part, data)

    def point(
        self, width: float, temperature: float | None = None, seed: int | None = None
    ) -> Point:
        """Find a point of the study; parameters and errors as for :meth:`Point.find`."""
        return Point.find(self.dataset, width, temperature, seed)

    def rebuild(self, point: Point, **replaced: Any) -> PointData:
        """Draw the data of a point again, and build its network.

        Parameters
        ----------
        point : Point
        **replaced
            Options of the task to replace, such as the path of a file that was moved.

        Raises
        ------
        StudyError
            If the installed code gives another study, or the training examples do not fit into
            memory.
        UnknownNameError
            If no plugin provides the study's task.
        """
        # in NumPy and float64, whatever the study ran in: results such as the next order need it
        study = self._checked_study(**replaced) if replaced else self._study
        data = prepare_data(study, point.seed, array_library("numpy"))
        if data.blocks is not None:
            raise StudyError(
                f"this needs all training examples at once, but the {data.n_examples} of "
                f"{self.path} are too many to hold; run a study of fewer"
            )
        widths = (point.width,) * len(data.network.widths)
        return PointData(point, dataclasses.replace(data.network, widths=widths), data)

    @property
    def core(self) -> str:
        """All that determines parts of results besides their names."""
        return core_of(self.identity)

    @cached_property
    def _study(self) -> Study:
        return self._checked_study()

    def _checked_study(self, **replaced: Any) -> Study:
        """Build the study; raise a StudyError if the installed code gives another."""
        names = {field.name for field in dataclasses.fields(Study)} - {"task", "sweep"}
        entries = self.identity | self.identity["options"]
        settings = {name: entries[name] for name in names & entries.keys()}
        study = Study(self.task(**replaced), **settings)
        if lines := differences(self.identity, identity_of(study), "what is installed here gives"):
            raise StudyError(
                "the study was made from something else than what is installed here "
                f"({'; '.join(lines)}); run it again into another folder"
            )
        return study


@lru_cache(maxsize=1)
def _open_study(path: str, text: str) -> StoredStudy:
    """Open a study in a worker, once for all its jobs."""
    study = StoredStudy(path)
    if study._folder.text != text:
        raise StudyError(f"{path} holds another study by now; run the same again")
    return study
