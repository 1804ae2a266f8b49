"""BLAS threads during work on small matrices.

A minimisation makes hundreds of small factorisations and products. Threads gain nothing there, and
where other processes use the same cores, waiting for them takes most of the time.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from threadpoolctl import ThreadpoolController

LONG = 0.05  # seconds of an evaluation on one core, from which threads are left to the process


class _SingleThread:
    """One BLAS thread while a thread of the process asks for it.

    The number of BLAS threads belongs to the process, but some libraries heed only its main thread.
    So each thread sets and restores it, and all restore the number that the first of overlapping
    calls met: a later one meets the limit. A call that overlaps may end with more threads, which
    costs time; the process never stays at one.
    """

    def __init__(self) -> None:
        self._lock, self._calls, self._of_thread = threading.Lock(), 0, threading.local()
        self._first: Any = None  # knows the numbers that are to be restored

    @cached_property
    def _libraries(self) -> ThreadpoolController:
        """BLAS libraries of NumPy and SciPy; a search for them takes milliseconds."""
        importlib.import_module("scipy.linalg.lapack")  # with a BLAS of its own
        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            self._of_thread.calls = getattr(self._of_thread, "calls", 0) + 1
            self._calls += 1
            if self._of_thread.calls == 1:
                limit = self._libraries.limit(limits=1, user_api="blas")
                if self._calls == 1:
                    self._first = limit

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._of_thread.calls -= 1
            self._calls -= 1
            if self._of_thread.calls == 0:
                self._first.restore_original_limits()


_single_thread = _SingleThread()


@contextmanager
def blas_threads_for(seconds: float) -> Iterator[None]:
    """Use one BLAS thread for evaluations below 50 ms, and restore the number afterwards.

    Longer ones keep the number that ``OPENBLAS_NUM_THREADS`` or
    ``threadpoolctl.threadpool_limits`` set.
    """
    if seconds >= LONG:
        yield
        return
    with _single_thread:
        yield
