"""A study in its store, with the results beside it."""

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
from pathkernel_core.network import Network
from pathkernel_core.options import check_options
from pathkernel_core.progress import Progress, Report
from pathkernel_core.result import Result
from pathkernel_core.task import Task
from pathkernel_datasets.array_libraries import array_library
from pathkernel_datasets.damage import METADATA, Published, faults, is_inside
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.identity import (
    core_of,
    differences,
    file_options,
    identity_of,
    single_identity,
)
from pathkernel_datasets.lock import locked
from pathkernel_datasets.next_evidence import with_next_evidence
from pathkernel_datasets.pieces import PieceFiles
from pathkernel_datasets.point import Point, PointData
from pathkernel_datasets.prepared import prepare_data
from pathkernel_datasets.publishing import publish_groups
from pathkernel_datasets.store import check_chunks, check_store, open_store, unfinished
from pathkernel_datasets.study import Study
from pathkernel_datasets.swept import by_value
from pathkernel_datasets.watching import supervised
from pathkernel_datasets.workers import mapped, naming_lost_workers, workers

_log = logging.getLogger("pathkernel.result")


class StoredStudy:
    """A study and the results that its store holds.

    Parameters
    ----------
    path : path
        Result store.
    plugins, executor, threads
        As for :func:`compute_result`; see :meth:`mapping`.
    value : object, optional
        Value of the option that the study sweeps; by default all. ``prefix``, with which the names
        of its groups begin, names it.

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
        """The study itself, lazily, with the log evidence to next order where it is known."""
        dataset = open_store(self.path)
        dataset = dataset if self.value is None else by_value(dataset)[self.value]
        return with_next_evidence(self.folder, dataset)

    @contextmanager
    def mapping(self, jobs: int = 1, scheduler: str | None = None) -> Iterator[Callable[..., Any]]:
        """A ``map`` for parts of a result that do not depend on each other; in order.

        The function and its arguments go to the executor that the study was given, else to
        processes or to the workers of a Dask scheduler, else they are called here, one by one.

        Raises
        ------
        StoreError
            If a worker ended before its work was done.
        """
        given = self._executor is not None
        with nullcontext(self._executor) if given else workers(jobs, scheduler) as executor:
            if executor is None:
                yield map
                return
            with naming_lost_workers(self.path), ExitStack() as stack:

                def map_parts(function: Callable[..., Any], parts: Iterable[Any]) -> Iterator[Any]:
                    results = mapped(executor, self._threads, function, parts)
                    return stack.enter_context(closing(results))  # type: ignore[type-var]

                yield map_parts

    def task(self, **replaced: Any) -> Task:
        """Task with the study's options, some of them replaced.

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
        return self.plugins.task(self.identity["task"])(**self.options | replaced)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the study's task; a list if it has several values.

        Files are looked for where they were, see :meth:`locations`.
        """
        options = dict(self.identity["options"])
        for name in file_options(options, self.identity["provenance"]):
            existing = filter(os.path.exists, self.locations(options[name]))
            options[name] = str(next(existing, options[name]))
        return options

    def locations(self, file: str | os.PathLike) -> list[Path]:
        """Where a file of the study may be: where it was, beside the store, or here."""
        file, beside = Path(file), self.path.resolve().parent
        return list(dict.fromkeys((file, beside / file, beside / file.name, Path(file.name))))

    @property
    def results(self) -> list[str]:
        """Names of the results that the store holds, or that are being computed."""
        if not self.path.exists():  # nothing is published yet
            return []
        names: set[str] = set()
        for single in self.singles:
            if single.folder.exists():
                names.update(zarr.open_group(single.folder, mode="r").group_keys())
            names.update(group.partition("/")[0] for group in single.unpublished_groups())
        return sorted(names)

    def unpublished_groups(self) -> list[str]:
        """Groups of which blocks of draws are there that are not published."""
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
        """Whether the store has a result, or a part of one such as ``corrections/…``, whole."""
        group = f"{self.prefix}{group}"
        damaged = any(is_inside(line, group) for line in self._damaged)
        return (self.path / group / METADATA).exists() and not damaged

    def result(self, group: str) -> xr.DataTree:
        """Labelled data of a result or of a part of one, lazily.

        Raises
        ------
        StoreError
            If the store has none of that name.
        """
        if not self.holds(group):
            listed = ", ".join(self.results) or "none"
            raise StoreError(f"{self.path} holds no {group}; of results it holds: {listed}")
        group = f"{self.prefix}{group}"
        check_chunks(self.path, group)
        return xr.open_datatree(self.path, group=group, engine="zarr", chunks=None)

    def write(self, group: str, part: xr.Dataset | xr.DataTree) -> None:
        """Write a part of a result, which is published with the others when all are computed."""
        PieceFiles(self.path, "results").write(f"{self.prefix}{group}", part, self.core)

    def point(
        self, width: float, temperature: float | None = None, seed: int | None = None
    ) -> Point:
        """The study's point there; parameters and errors as for :meth:`Point.find`."""
        return Point.find(self.dataset, width, temperature, seed)

    def rebuild(self, point: Point, **replaced: Any) -> PointData:
        """Data and network of a point, drawn again as the study's identity says.

        Parameters
        ----------
        point : Point
        **replaced
            Options of the task to take instead, such as a file that was moved.

        Raises
        ------
        StoreError
            If what is installed would not give the same study, or its training examples are too
            many to hold.
        UnknownNameError
            If no plugin provides the study's task.
        """
        study = self._checked_study(**replaced) if replaced else self._study
        data = prepare_data(study, point.seed, array_library("numpy"))
        if data.blocks is not None:
            raise StoreError(
                f"this needs all training examples at once, but the {data.n_examples} of "
                f"{self.path} are too many to hold; run a study of fewer"
            )
        whole = data.network
        network = Network(whole.heads, point.width, whole.variances, whole.outputs, whole.skips)
        return PointData(point, network, data)

    @property
    def core(self) -> str:
        """All that determines parts of results besides their names."""
        return core_of(self.identity)

    @cached_property
    def _study(self) -> Study:
        return self._checked_study()

    def _checked_study(self, **replaced: Any) -> Study:
        names = {field.name for field in dataclasses.fields(Study)} - {"task", "sweep"}
        settings = {name: self.identity[name] for name in names & self.identity.keys()}
        study = Study(self.task(**replaced), **settings)
        if lines := differences(self.identity, identity_of(study), "what is installed here gives"):
            raise StoreError(
                "the study was made from something else than what is installed here "
                f"({'; '.join(lines)}); run it again into another store"
            )
        return study


@lru_cache(maxsize=1)
def _opened(path: str, value: Any, identity: str) -> StoredStudy:
    """A worker opens a study once for all its parts."""
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
    """Compute a result of a study, and store it beside the study.

    Of a study that sweeps an option, the result is computed for every value.

    Parameters
    ----------
    result : Result
        With its options.
    store : path
        Result store of the study.
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default those installed.
    executor, threads, report
        As for :func:`pathkernel_datasets.sweep.run_study`.

    Returns
    -------
    StoredStudy
        For the result's views.

    Raises
    ------
    StoreError
        If the path is no store, or the study in it is damaged or not complete.
    ValueError
        If an option of the result is too small.
    PluginError
        If the result has the name of a variable of the study, or gives something else than labelled
        data.
    """
    check_options(result)
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
        for single in study.singles:
            group = f"{single.prefix}{result.name}"
            _publish(single, group)  # parts of a run that was killed
            single._damaged = _damage(single.path, group)
            try:
                for name, part in _parts(result, result.compute(single, tell)):
                    if not reported:  # by which callers know that there was something to do
                        tell(Progress(0, None, f"writing {name or result.name}"))
                    single.write(f"{result.name}/{name}".rstrip("/"), part)
            finally:
                _publish(single, group)
    return StoredStudy(store, plugins)


def _damage(path: Path, group: str) -> list[str]:
    """Arrays and groups of a result that are damaged, and are to be computed again."""
    with locked(path, wait=True):
        damage = list(faults(Published(path), within=group))
    for owner, name, fault in damage:
        if owner == "study":
            raise StoreError(
                f"{path} is damaged: {name}, {fault}; run the command again that computed the "
                "study, which mends it"
            )
    lines = [(name, fault) for _, name, fault in damage if is_inside(name, group)]
    if lines:
        with locked(path, wait=True):
            publish_groups(path, ())  # which mends groups of groups
        warnings.warn(
            f"{path} was damaged ({', '.join(lines[0])}); what is damaged of the result is "
            "computed again",
            StoreWarning,
            stacklevel=3,
        )
    return [name for name, _ in lines]


def _publish(study: StoredStudy, group: str) -> None:
    """Publish all parts of a result that are computed."""
    files, draws = PieceFiles(study.path, "results"), PieceFiles(study.path, "draws")
    if names := [name for name in files.names() if is_inside(name, group)]:
        with locked(study.path, wait=True):
            parts = ((name, files.read(name, study.core)) for name in names)
            publish_groups(study.path, ((name, part) for name, part in parts if part is not None))
        files.remove(names)
        draws.remove(block for block in draws.names() if block.rpartition("/")[0] in names)


def _parts(result: Result, computed: Any) -> Iterator[tuple[str, xr.Dataset]]:
    """Parts of a result with their names below its group, as they are computed."""
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
