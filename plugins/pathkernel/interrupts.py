"""Ctrl-C while modules are imported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once: within imports an exception is reported or lost."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _end(*_: object) -> None:
    os.write(2, b"\nInterrupted.\n")
    os._exit(130)
