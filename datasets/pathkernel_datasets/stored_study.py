"""A study in its store, with its results."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import xarray as xr
import zarr

from pathkernel_core.hooks import PluginError, Plugins, load_plugins
from pathkernel_core.local_files import check_local
from pathkernel_core.progress import Progress, Report
from pathkernel_core.result import Result
from pathkernel_core.task import Task
from pathkernel_datasets.array_libraries import array_library
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.identity import (
    core_of,
    differences,
    file_options,
    identity_of,
    single_identity,
)
from pathkernel_datasets.lock import locked
from pathkernel_datasets.pieces import PieceFiles
from pathkernel_datasets.point import Point, PointData
from pathkernel_datasets.prepared import prepare_data
from pathkernel_datasets.progress_bar import supervised
from pathkernel_datasets.published import METADATA, Published, is_inside
from pathkernel_datasets.publishing import publish_groups
from pathkernel_datasets.store import check_chunks, check_store, open_store, unfinished
from pathkernel_datasets.study import SETTINGS, Study
from pathkernel_datasets.swept_option import by_value
from pathkernel_datasets.workers import mapped, naming_lost_workers, workers

_log = logging.getLogger("pathkernel.result")


class StoredStudy:
    """A study in its store, with its results.

    Parameters
    ----------
    path : path
        Result store.
    plugins, executor, threads
        As for :func:`compute_result`; see :meth:`mapping`.
    value : object, optional
        Value of the swept option; by default all. The names of its groups begin with ``prefix``.

    Attributes
    ----------
    identity : dict
        All that determines the study, see :func:`pathkernel_datasets.identity.identity_of`.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        plugins: Plugins | None = None,
        executor: Executor | None = None,
        threads: int | None = 1,
        value: Any = None,
    ):
        check_local(path)
        self.path, self._plugins, self.value = Path(path), plugins, value
        self._executor, self._threads = executor, threads
        self.identity, self.prefix = check_store(self.path), ""
        self._damaged: list[str] = []
        if value is not None:
            (name,) = self.identity["sweep"]
            self.identity = single_identity(self.identity, name, value)
            self.prefix = f"{name}-{value}/"

    def __reduce__(self) -> tuple:
        """Workers open the store themselves, with the plugins that are installed there."""
        return _opened, (str(self.path.resolve()), self.value, json.dumps(self.identity))

    @property
    def singles(self) -> list[StoredStudy]:
        """Studies of the single values of the option that is swept; itself if none is."""
        names = self.identity.get("sweep", ())
        values = [value for name in names for value in self.identity["options"][name]]
        settings = (self.path, self._plugins, self._executor, self._threads)
        return [StoredStudy(*settings, value) for value in values] or [self]

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return self.path / self.prefix

    @cached_property
    def plugins(self) -> Plugins:
        """Where tasks and samplers are looked up."""
        return load_plugins() if self._plugins is None else self._plugins

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The study itself, lazily."""
        dataset = open_store(self.path)
        return dataset if self.value is None else by_value(dataset)[self.value]

    @contextmanager
    def mapping(self, jobs: int = 1, scheduler: str | None = None) -> Iterator[Callable[..., Any]]:
        """Yield a ``map`` that runs independent jobs and returns their results in order.

        Jobs run on the executor of this object, else in a process pool or on a Dask scheduler, else
        in this process.

        Raises
        ------
        StoreError
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
        StoreError
            If the store holds several values of an option.
        UnknownNameError
            If no plugin provides it.
        """
        for name in self.identity.get("sweep", ()):
            raise StoreError(
                f"{self.path} holds several values of the option {name!r}, and this needs a study "
                "of one: take one of StoredStudy(path).singles"
            )
        options = {name: value for name, value in self.options.items() if name not in SETTINGS}
        return self.plugins.task(self.identity["task"])(**options | replaced)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the study's task, a list for one that is swept; files as in `locations`."""
        options = dict(self.identity["options"])
        for name in file_options(options, self.identity["provenance"]):
            existing = filter(os.path.exists, self.locations(options[name]))
            options[name] = str(next(existing, options[name]))
        return options

    def locations(self, file: str | os.PathLike) -> list[Path]:
        """Possible paths of a file: the original, next to the store, in the working folder."""
        file, folder = Path(file), self.path.resolve().parent
        return list(dict.fromkeys((file, folder / file, folder / file.name, Path(file.name))))

    @property
    def results(self) -> list[str]:
        """Names of the results in the store, or being computed."""
        if not self.path.exists():  # nothing is published yet
            return []
        singles = self.singles
        names = set(zarr.open_group(self.folder, mode="r").group_keys())
        names -= {single.prefix.rstrip("/") for single in singles}
        for single in singles:
            if single.folder.exists():
                names.update(zarr.open_group(single.folder, mode="r").group_keys())
            names.update(group.partition("/")[0] for group in single.unpublished_groups())
        return sorted(names)

    def unpublished_groups(self) -> list[str]:
        """Groups with blocks of draws that are not published yet."""
        files = PieceFiles(self.path, "draws")
        first_blocks: dict[str, str] = {}
        for name in sorted(files.names(), key=lambda name: int(name.rpartition("/")[2])):
            if name.startswith(self.prefix):
                group = name.removeprefix(self.prefix).rpartition("/")[0]
                first_blocks.setdefault(group, name)
        return [
            group
            for group, first in first_blocks.items()
            if self.holds(group) or files.read(first, self.core) is not None
        ]

    def holds(self, group: str) -> bool:
        """Whether the store has an undamaged result, or part of one such as ``corrections/…``."""
        group = f"{self.prefix}{group}"
        damaged = any(is_inside(line, group) for line in self._damaged)
        return (self.path / group / METADATA).exists() and not damaged

    def result(self, group: str) -> xr.DataTree:
        """Open the labelled data of a result, or of a part of one, lazily.

        Raises
        ------
        StoreError
            If the store has none of that name.
        """
        if not self.holds(group):
            listed = ", ".join(self.results) or "none"
            raise StoreError(f"{self.path} has no {group}; its results are: {listed}")
        group = f"{self.prefix}{group}"
        check_chunks(self.path, group)
        return xr.open_datatree(self.path, group=group, engine="zarr", chunks=None)

    def write(self, group: str, part: xr.Dataset | xr.DataTree) -> None:
        """Write a part of a result as a piece, to be published when all parts are computed."""
        PieceFiles(self.path, "results").write(f"{self.prefix}{group}", part, self.core)

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
        StoreError
            If the installed code gives another study, or the training examples do not fit into
            memory.
        UnknownNameError
            If no plugin provides the study's task.
        """
        # in NumPy and float64, whatever the study ran in: results such as the next order need it
        study = self._checked_study(**replaced) if replaced else self._study
        data = prepare_data(study, point.seed, array_library("numpy"))
        if data.blocks is not None:
            raise StoreError(
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
        """Build the study; raise a StoreError if the installed code gives another."""
        names = {field.name for field in dataclasses.fields(Study)} - {"task", "sweep"}
        entries = self.identity | self.identity["options"]
        settings = {name: entries[name] for name in names & entries.keys()}
        study = Study(self.task(**replaced), **settings)
        if lines := differences(self.identity, identity_of(study), "what is installed here gives"):
            raise StoreError(
                "the study was made from something else than what is installed here "
                f"({'; '.join(lines)}); run it again into another store"
            )
        return study


@lru_cache(maxsize=1)
def _opened(path: str, value: Any, identity: str) -> StoredStudy:
    """Open a study in a worker, once for all its jobs."""
    study = StoredStudy(path, value=value)
    if study.identity != json.loads(identity):
        raise StoreError(f"{path} holds another study by now; run the same again")
    return study


def compute_result(
    result: Result,
    store: str | os.PathLike,
    *,
    plugins: Plugins | None = None,
    executor: Executor | None = None,
    threads: int | None = 1,
    report: Report | None = None,
) -> StoredStudy:
    """Compute a result of a study, at every value of a swept option, and store it with the study.

    Parameters
    ----------
    result : Result
    store : path
        Store of the study.
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default those installed.
    executor, threads, report
        As for :func:`pathkernel_datasets.sweep.run_study`.

    Returns
    -------
    StoredStudy
        Study with its results, as views take it.

    Raises
    ------
    StoreError
        If the path is no store, or the study in it is damaged or incomplete.
    ValueError
        If an option of the result is out of range.
    PluginError
        If the result has the name of a variable of the study, or computes no labelled data.

    Examples
    --------
    >>> import pathkernel as pk
    >>> task = pk.HiddenMarkov(examples=20, test_examples=20)
    >>> study = pk.Study(task, widths=(10,), temperatures=(0.01, 0.1))
    >>> computed = pk.run_study(study, "small.zarr")
    >>> pk.compute_result(pk.Phases(), "small.zarr").results
    ['phases']
    """
    study = StoredStudy(store, plugins, executor, threads)
    if result.name in study.dataset.variables or result.name == "study":
        raise PluginError(
            f"the result {result.name!r} has the name of a variable of the study, or of the study "
            "itself; give it another"
        )
    if unfinished(study.path) is not None:
        raise StoreError(
            f"{study.path} is not complete: its run is in progress, or was interrupted; run the "
            "command again that computes the study, and then this one"
        )
    reported = False
    _log.info("%s: %s", study.path, result)

    def tell(progress: Progress) -> None:
        nonlocal reported
        reported = True
        shown(progress)

    with supervised(report, threads) as shown:
        for single in [study] if result.of_all_values else study.singles:
            group = f"{single.prefix}{result.name}"
            _publish(single, group)  # parts of a run that was killed
            single._damaged = _damage(single.path, group)
            try:
                for name, part in _parts(result, result.compute(single, tell)):
                    if not reported:  # tells callers that there was something to do
                        tell(Progress(0, None, f"writing {name or result.name}"))
                    single.write(f"{result.name}/{name}".rstrip("/"), part)
            finally:  # Ctrl-C leaves the parts so far in the store, and the next run does the rest
                _publish(single, group)
    return StoredStudy(store, plugins)


def _damage(path: Path, group: str) -> list[str]:
    """List the damaged files of a result, after restoring its metadata; warn of them."""
    with locked(path, wait=True):
        published = Published(path)
        published.check_writable()
        faults = dict(published.read_files(group))
        for name, fault in faults.items():
            if published.owner(name) == "study":
                raise StoreError(
                    f"{path} is damaged: {name} {fault}; run the command again that computed the "
                    "study, which mends it"
                )
        damaged = [name for name in faults if is_inside(name, group)]
        if damaged:
            publish_groups(path, ())  # restores metadata
            warnings.warn(
                f"{path} was damaged ({damaged[0]} {faults[damaged[0]]}); what is damaged of the "
                "result is computed again",
                StoreWarning,
                stacklevel=3,
            )
    return damaged


def _publish(study: StoredStudy, group: str) -> None:
    """Publish all computed parts of a result."""
    files, draws = PieceFiles(study.path, "results"), PieceFiles(study.path, "draws")
    published = set()

    def parts(names: Iterable[str]) -> Iterator[tuple[str, xr.DataTree]]:
        for name in names:
            if (part := files.read(name, study.core)) is not None:
                published.add(name)
                yield name, part

    if names := [name for name in files.names() if is_inside(name, group)]:
        with locked(study.path, wait=True):
            publish_groups(study.path, parts(names))
        files.remove(names)
        draws.remove(name for name in draws.names() if name.rpartition("/")[0] in published)


def _parts(result: Result, computed: Any) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield the parts of a result, with their names below its group, as they are computed."""
    if isinstance(computed, xr.Dataset):
        yield "", computed
        return
    pairs = isinstance(computed, Iterable) and not isinstance(computed, (str, Mapping))
    for part in computed if pairs else (computed,):
        if not (isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], xr.Dataset)):
            raise PluginError(
                f"compute() of the result {result.name!r} gave a {type(part).__name__}; it must "
                "give an xarray.Dataset, or pairs of a group name and an xarray.Dataset"
            )
        yield part
