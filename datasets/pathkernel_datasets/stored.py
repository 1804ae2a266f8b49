"""A study in its store, with the results beside it."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import xarray as xr
import zarr
from threadpoolctl import threadpool_limits

from pathkernel_core.hooks import PluginError, Plugins, load_plugins
from pathkernel_core.network import Network
from pathkernel_core.options import check_options
from pathkernel_core.progress import Progress, Report
from pathkernel_core.result import Result
from pathkernel_core.task import Task
from pathkernel_datasets.array_libraries import array_library
from pathkernel_datasets.damage import METADATA, Scan, scan
from pathkernel_datasets.draws import SAMPLES, draw_files, runs
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.lock import lock_of, locked
from pathkernel_datasets.next_evidence import with_next_evidence
from pathkernel_datasets.piece_files import PieceFiles
from pathkernel_datasets.point import Point, PointData
from pathkernel_datasets.prepared import prepare_data
from pathkernel_datasets.publishing import publish_groups
from pathkernel_datasets.store import check_store, open_store, unfinished
from pathkernel_datasets.study import Study, core_of, differences, file_options
from pathkernel_datasets.watching import supervised
from pathkernel_datasets.workers import telling_of_lost_workers, workers

_log = logging.getLogger("pathkernel.result")


class StoredStudy:
    """A study and the results that its store holds, as they are when it is opened.

    Parameters
    ----------
    path : path
        Result store.
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default those installed.
    executor : concurrent.futures.Executor, optional
        Workers that a result may give its independent parts to, see :meth:`parts`.
    threads : int, optional
        Threads of the linear algebra of every worker.

    Attributes
    ----------
    path : Path
    identity : dict
        All that determines the study, see :meth:`pathkernel_datasets.study.Study.identity`.

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
    ):
        self.path, self._plugins = Path(path), plugins
        self._executor, self._threads = executor, threads
        self.identity = check_store(self.path)
        self._damage = Scan()

    def __reduce__(self) -> tuple:
        """Workers open the store themselves, with the plugins that are installed there."""
        return _opened, (str(self.path.resolve()), json.dumps(self.identity))

    @contextmanager
    def parts(self, jobs: int = 1, scheduler: str | None = None) -> Iterator[Callable[..., Any]]:
        """A ``map`` for parts of a result that do not depend on each other; in order.

        The function and what it takes go to the executor that the study was given, else to so many
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
            with telling_of_lost_workers(self.path), ExitStack() as stack:

                def each(function: Callable[..., Any], parts: Iterable[Any]) -> Iterator[Any]:
                    limited = partial(_with_threads, self._threads, function)
                    return stack.enter_context(closing(executor.map(limited, parts)))  # type: ignore[type-var]

                yield each

    @cached_property
    def plugins(self) -> Plugins:
        """Where tasks and samplers are looked up."""
        return load_plugins() if self._plugins is None else self._plugins

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The study itself, lazily, with the log evidence to next order where it is known."""
        return with_next_evidence(self.path, open_store(self.path))

    def task(self, **replaced: Any) -> Task:
        """Task with the study's options, some of them replaced.

        Raises
        ------
        StoreError
            If the store holds several values of an option.
        UnknownNameError
            If no plugin provides it.
        """
        self.check_single()
        return self.plugins.task(self.identity["task"])(**self.options | replaced)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the study's task, files where they are now; a list if it has several values.

        Files are looked for where they were, see :meth:`places`.
        """
        options = dict(self.identity["options"])
        for name in file_options(options, self.identity["provenance"]):
            found = filter(os.path.exists, self.places(options[name]))
            options[name] = str(next(found, options[name]))
        return options

    def check_single(self) -> None:
        """Check that the store holds one value of every option of its task.

        Raises
        ------
        StoreError
            If it does not.
        """
        for name in self.identity.get("sweep", ()):
            value = self.identity["options"][name][0]
            raise StoreError(
                f"{self.path} holds several values of the option {name!r}, and this needs a study "
                f"of one: run one into a store of its own, with --{name.replace('_', '-')} {value} "
                "--out FILE.zarr"
            )

    def places(self, file: str | os.PathLike) -> list[Path]:
        """Where a file of the study may lie: where it was, beside the store, or here."""
        named, beside = Path(file), self.path.resolve().parent
        found = (named, beside / named, beside / named.name, Path(named.name))
        return list(dict.fromkeys(found))

    @property
    def results(self) -> list[str]:
        """Names of the results that the store holds, or that are being computed."""
        if not self.path.exists():  # nothing is published yet
            return []
        found = set(zarr.open_group(self.path, mode="r").group_keys())
        return sorted(found | ({SAMPLES} if runs(self.path) else set()))

    def holds(self, group: str) -> bool:
        """Whether the store has a result, or a part of one such as ``corrections/…``, whole."""
        return (self.path / group / METADATA).exists() and not self._damage.is_damaged(group)

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
        return xr.open_datatree(self.path, group=group, engine="zarr", chunks=None)

    def point(
        self, width: float, temperature: float | None = None, seed: int | None = None
    ) -> Point:
        """The study's point there; parameters and errors as for :meth:`Point.find`."""
        return Point.find(self.dataset, width, temperature, seed)

    def rebuild(self, at: Point, **replaced: Any) -> PointData:
        """Data and network of a point, drawn anew as the study's identity says.

        Parameters
        ----------
        at : Point
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
        study = self._checked(**replaced) if replaced else self._study
        data = prepare_data(study, at.seed, array_library("numpy"))
        if data.blocks is not None:
            raise StoreError(
                f"this needs all training examples at once, but the {data.n_examples} of "
                f"{self.path} are too many to hold; run a study of fewer"
            )
        whole = data.network
        network = Network(whole.heads, at.width, whole.variances, whole.outputs, whole.skips)
        return PointData(at, network, data)

    @property
    def core(self) -> str:
        """All that determines parts of results besides their names."""
        return core_of(self.identity)

    @property
    def files(self) -> PieceFiles:
        """Parts of results that are not published yet."""
        return PieceFiles(self.path, "results")

    def write(self, group: str, part: xr.Dataset | xr.DataTree) -> None:
        """Write a part of a result, which is published with the others when all are computed."""
        self.files.write(group, part, self.core)

    @cached_property
    def _study(self) -> Study:
        return self._checked()

    def _checked(self, **replaced: Any) -> Study:
        held = self.identity
        grid = (held["widths"], held["temperatures"], held["seeds"])
        how = (held["backend"], held["dtype"], held["variances"])
        study = Study(self.task(**replaced), *grid, *how, skips=held.get("skips"))
        lines = differences(held, study.identity(), "what is installed here gives")
        if lines:
            raise StoreError(
                "the study was made from something else than what is installed here "
                f"({'; '.join(lines)}); run it again into another store"
            )
        return study


@lru_cache(maxsize=1)
def _opened(path: str, identity: str) -> StoredStudy:
    """A worker opens a study once for all its parts."""
    study = StoredStudy(path)
    if study.identity != json.loads(identity):
        raise StoreError(f"{path} holds another study by now; run the same again")
    return study


def _with_threads(threads: int | None, function: Callable[..., Any], part: Any) -> Any:
    with threadpool_limits(limits=threads):
        return function(part)


def compute_result(
    result: Result,
    store: str | os.PathLike,
    *,
    plugins: Plugins | None = None,
    executor: Executor | None = None,
    threads: int | None = 1,
    report: Report | None = None,
) -> StoredStudy:
    """Compute a result of a study, and keep it in the study's store.

    Parameters
    ----------
    result : Result
        With its options.
    store : path
        Result store of the study.
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default those installed.
    executor : concurrent.futures.Executor, optional
        Workers for results of independent parts, as for
        :func:`pathkernel_datasets.sweep.run_study`.
    threads : int, optional
        Threads of the linear algebra on the CPU; None leaves their number as it is.
    report : callable, optional
        Called with a Progress as work goes on; not called if nothing was left to do. By default
        a bar shows it, as for :func:`pathkernel_datasets.sweep.run_study`.

    Returns
    -------
    StoredStudy
        For the result's views.

    Raises
    ------
    StoreError
        If the path is no store, the study in it is damaged or not complete, or holds several values
        of an option.
    ValueError
        If an option of the result is too small.
    PluginError
        If the result has the name of a variable of the study, or gives something else than labelled
        data.
    """
    check_options(result)
    study = StoredStudy(store, plugins, executor, threads)
    study.check_single()
    if result.name in study.dataset.variables or result.name == "study":
        raise PluginError(
            f"the result {result.name!r} has the name of a variable of the study, or of the study "
            "itself; give it another"
        )
    if unfinished(study.path) is not None:
        raise StoreError(
            f"{study.path} is not complete: its run goes on, or was interrupted; run the command "
            "again that computes the study, and then this one"
        )
    told = False
    _log.info("%s: %s", study.path, result)

    def tell(progress: Progress) -> None:
        nonlocal told
        told = True
        shown(progress)

    with supervised(report, threads) as shown:
        _publish(study, result.name)  # parts of a run that was killed
        study._damage = _damage(study.path, result.name)
        try:
            for place, part in _parts(result, result.compute(study, tell)):
                if not told:  # by which callers know that there was something to do
                    tell(Progress(0, None, f"writing {place or result.name}"))
                study.write(f"{result.name}/{place}".rstrip("/"), part)
        finally:
            _publish(study, result.name)
    return StoredStudy(store, plugins)


def _damage(path: Path, name: str) -> Scan:
    """What is damaged of a result, which is to be computed again.

    Raises
    ------
    StoreError
        If the study itself is damaged.
    """
    found = scan(path, within=name)
    faults = dict(found.faults())
    if "study" in faults:
        raise StoreError(
            f"{path} is damaged: {faults['study']}; run the command again that computed the "
            "study, which mends it"
        )
    if name in faults:
        warnings.warn(
            f"{path} was damaged ({faults[name]}); what is damaged of the result is computed again",
            StoreWarning,
            stacklevel=3,
        )
    return found


def _publish(study: StoredStudy, name: str) -> None:
    """Publish all parts of a result that are computed."""
    files = study.files
    names = [group for group in files.names() if f"{group}/".startswith(f"{name}/")]
    if names:
        with locked(study.path, lock_of(study.path.resolve()), waiting=lambda: None):
            found = {group: files.read_tree(group, study.core) for group in names}
            publish_groups(
                study.path, {group: part for group, part in found.items() if part is not None}
            )
        files.remove(names)
        blocks = draw_files(study.path)
        blocks.remove([block for block in blocks.names() if block.rpartition("/")[0] in names])


def _parts(result: Result, computed: Any) -> Iterator[tuple[str, xr.Dataset]]:
    """Parts of a result with their places, as they are computed."""
    if isinstance(computed, xr.Dataset):
        yield "", computed
        return
    pairs = isinstance(computed, Iterable) and not isinstance(computed, (str, Mapping))
    for part in computed if pairs else (computed,):
        if not (isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], xr.Dataset)):
            raise PluginError(
                f"compute() of the result {result.name!r} gave a {type(part).__name__}; it must "
                "give an xarray.Dataset, or pairs of a place and an xarray.Dataset"
            )
        yield part
