"""Ctrl-C while modules are imported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once: within imports an exception is reported or lost."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if handler is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _end(*_: object) -> None:
    with suppress(OSError):
        os.write(2, b"\nInterrupted.\n")
    os._exit(130)
