"""Workers that compute the pieces of a study: processes of this machine, or of Dask."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.extras import import_extra
from pathkernel_datasets.errors import StudyError

_LOGGERS = ("distributed.client", "distributed.core", "distributed.comm", "tornado.application")


def workers(jobs: int = 1, scheduler: str | None = None) -> AbstractContextManager[Executor | None]:
    """Start processes, or connect to a Dask scheduler; yield None for one job without scheduler.

    Raises
    ------
    ValueError
        If both are given.
    """
    if scheduler is None:
        return processes(jobs) if jobs > 1 else nullcontext()
    if jobs > 1:
        raise ValueError("jobs and scheduler exclude each other: take one of them")
    return cluster(scheduler)


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """Start processes on this machine, which end with this one.

    They are forked from a server process that has imported this package, and has no threads. Each
    sees one of the GPUs, in turn. If this process is interrupted, pieces that have not begun are
    cancelled, and the others are not waited for.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver, resource_tracker  # which not every system has

        context.set_forkserver_preload(["pathkernel_datasets.run.run_study"])
        resource_tracker.ensure_running()
        # the server must ignore Ctrl-C, which a terminal sends to all processes
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()  # imports while data are drawn in this process
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    executor = ProcessPoolExecutor(count, context, _initialise, (context.Value("i"), _gpus()))
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()


def _gpus() -> list[str]:
    """NVIDIA GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return list(filter(None, os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    return [str(index) for index, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def _initialise(counter: Any, gpus: Sequence[str]) -> None:
    """Initialise a worker process; the counter numbers them from 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def _end_with(parent: Any) -> None:
    """End this worker with its parent, even if that is killed."""
    parent.join()
    os._exit(1)


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Connect to a Dask scheduler, such as ``tcp://host:8786``, and yield its executor.

    Raises
    ------
    MissingExtraError
        If the extra ``distributed`` is not installed.
    StudyError
        If there is no scheduler at the address, or it is lost.
    """
    dask = import_extra("distributed", "A Dask scheduler", "distributed", ("distributed",))
    with _silent(*_LOGGERS):  # a lost connection would be logged over the one line that explains it
        try:
            client = dask.Client(address)
        except (OSError, TimeoutError, ValueError) as error:
            raise StudyError(
                f"no Dask scheduler answers at {address} ({error}); start one with: dask scheduler"
            ) from None
        with client, client.get_executor() as executor:
            try:
                yield executor
            except Exception as error:  # of many types, some of the library's own
                if client.status == "running" or isinstance(error, PathkernelError):
                    raise
                raise StudyError(
                    f"the Dask scheduler at {address} is lost ({type(error).__name__}); what is "
                    "computed is stored: start another, and run the same command again to resume"
                ) from None


@contextmanager
def _silent(*loggers: str) -> Iterator[None]:
    """Silence loggers, which report a lost connection with tracebacks of their own."""

    def reject(record: logging.LogRecord) -> bool:
        return False

    for name in loggers:
        logging.getLogger(name).addFilter(reject)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(reject)


@contextmanager
def naming_lost_workers(folder: Path) -> Iterator[None]:
    """Raise a StudyError with the likely causes if a worker has ended."""
    try:
        yield
    except BrokenExecutor:
        raise StudyError(
            "a worker was killed, or ended by itself, before its work was done: for lack of "
            "memory, by a signal, because the task is not in a module that it can import, or "
            'because a script begins its workers outside of `if __name__ == "__main__":`. What is '
            f"computed is in {folder}: run the same again to resume, with fewer workers"
        ) from None


def mapped(
    executor: Executor, threads: int | None, function: Callable[[Any], Any], parts: Iterable[Any]
) -> Iterator[Any]:
    """Map a function over parts by workers, in order, with some threads of linear algebra each."""
    return executor.map(functools.partial(_with_threads, threads, function), parts)


def _with_threads(threads: int | None, function: Callable[[Any], Any], part: Any) -> Any:
    with threadpool_limits(limits=threads):
        return function(part)
