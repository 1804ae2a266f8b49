"""Who may write: one process, or several with a part each. Locks end with their holders."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import filelock

from pathkernel_datasets.errors import StoreError


def lock_of(store: Path) -> Path:
    """File of a store's lock, hidden beside it."""
    return store.with_name(f".{store.name}.lock")


def lock_of_part(store: Path, part: tuple[int, int]) -> Path:
    """File of the lock of a part of a store, such as (1, 3)."""
    return store.with_name(f".{store.name}.part-{part[0]}-of-{part[1]}.lock")


@contextmanager
def sole(store: Path) -> Iterator[None]:
    """Hold the right to write into all of a store.

    Raises
    ------
    StoreError
        As :func:`exclusive`; or if another process computes a part of it.
    """
    with exclusive(store, lock_of(store)):
        if parts := running_parts(store):
            raise StoreError(
                f"{store} is being computed in parts ({', '.join(parts)}); wait until they end, or "
                "work in a copy"
            )
        yield


def running_parts(store: Path) -> list[str]:
    """Parts that processes compute, such as ``1 of 3``, for the holder of the store's lock."""
    found = []
    before, after = f".{store.name}.part-", ".lock"
    for file in sorted(store.parent.glob(f"{glob.escape(before)}*{after}")):
        try:
            with filelock.FileLock(file, timeout=0):
                pass
            file.unlink(missing_ok=True)  # nobody takes one without the store's lock
        except filelock.Timeout:
            found.append(file.name[len(before) : -len(after)].replace("-", " "))
    return found


def turn(store: Path, waiting: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
    """Wait for other parts that begin or end: they do so one after another."""
    return exclusive(store, store.with_name(f".{store.name}.turn.lock"), waiting=waiting)


@contextmanager
def exclusive(
    path: Path | str,
    lock: Path,
    *,
    passing: bool = False,
    waiting: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold the right to write into a store or folder.

    Parameters
    ----------
    path : Path or str
        What is written, for messages.
    lock : Path
        File of the lock; it stays.
    passing : bool
        Remove the file at the end, where another process seldom comes at that very moment.
    waiting : callable, optional
        Wait until another process gives the right up; called before.

    Raises
    ------
    StoreError
        If another process holds the right, or the file of the lock cannot be written.
    """
    held = filelock.FileLock(lock, timeout=0)
    try:
        held.acquire()
    except filelock.Timeout:
        if waiting is None:
            raise StoreError(
                f"another process is writing into {path}; wait until it ends, or work in a copy"
            ) from None
        waiting()
        held.acquire(timeout=-1)
    except OSError as error:  # no permission, or a file system that is read only
        raise StoreError(
            f"the folder {lock.parent} cannot be written ({error.strerror}), so that {path} stays "
            "as it is; work in a copy elsewhere"
        ) from error
    try:
        yield
    finally:
        if passing:
            lock.unlink(missing_ok=True)
        held.release()
