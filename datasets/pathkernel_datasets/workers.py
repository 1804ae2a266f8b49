"""Workers that compute the pieces of a study: processes of this machine, or those of Dask."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from pathkernel_core.extras import import_extra
from pathkernel_datasets.errors import StoreError


def workers(jobs: int = 1, scheduler: str | None = None) -> AbstractContextManager[Executor | None]:
    """So many processes, or the workers of a Dask scheduler; None for one process.

    Raises
    ------
    ValueError
        If both are asked for.
    """
    if scheduler is None:
        return processes(jobs) if jobs > 1 else nullcontext()
    if jobs > 1:
        raise ValueError("jobs and scheduler exclude each other: take one of them")
    return cluster(scheduler)


@contextmanager
def telling_of_lost_workers(store: Path) -> Iterator[None]:
    """Raise a StoreError that says how to go on if a worker has ended."""
    try:
        yield
    except BrokenExecutor:
        raise StoreError(
            "a worker ended before its work was done: for lack of memory, or because the task is "
            f"not in a module that it can import. What is computed is in {store}: run the "
            "same again to go on, with fewer workers"
        ) from None


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """So many processes of this machine, which end at Ctrl-C as this one does.

    They come from a process that has imported what they need, and nothing that has threads.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["pathkernel_datasets.pieces"])
    with ProcessPoolExecutor(count, context, initializer=_end_at_interrupts) as executor:
        yield executor


def _end_at_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of a Dask scheduler, such as ``tcp://host:8786``.

    Raises
    ------
    MissingExtraError
        If the extra ``distributed`` is not installed.
    StoreError
        If there is no scheduler at the address, or it is lost.
    """
    dask = import_extra("distributed", "A Dask scheduler", "distributed", ("distributed",))
    try:
        client = dask.Client(address)
    except (OSError, TimeoutError, ValueError) as error:
        raise StoreError(
            f"no Dask scheduler answers at {address} ({error}); start one with: dask scheduler"
        ) from None
    with client, client.get_executor() as executor:
        try:
            yield executor
        except (CancelledError, OSError, TimeoutError) as error:
            if client.status == "running":
                raise
            raise StoreError(
                f"the Dask scheduler at {address} is lost ({type(error).__name__}); what is "
                "computed is stored: start another, and run the same command again to go on"
            ) from None
