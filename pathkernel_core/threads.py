"""BLAS threads during work on small matrices.

A minimisation makes hundreds of small factorisations and products. Threads gain nothing there, and
where other processes use the same cores, waiting for them takes most of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import scipy
from threadpoolctl import ThreadpoolController

LONG = 0.05  # seconds of an evaluation on one core, from which threads are left to the process


class _SingleThread:
    """One BLAS thread while anything asks for it, in any thread of the process.

    The number of BLAS threads belongs to the process. Calls that overlap are counted, since each of
    them, were it to restore the number that it met, could restore that of another call.
    """

    def __init__(self) -> None:
        self._lock, self._calls = threading.Lock(), 0
        self._limit: Any = None

    @cached_property
    def _libraries(self) -> ThreadpoolController:
        """BLAS libraries of NumPy and SciPy; a search for them takes milliseconds."""
        assert scipy.linalg.lapack  # imported when it is first used, and with it a BLAS of its own
        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            if self._calls == 0:
                self._limit = self._libraries.limit(limits=1, user_api="blas")
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                self._limit.restore_original_limits()


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
