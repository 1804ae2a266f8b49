"""One process at a time: a lock that ends with its holder, however that ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from pathkernel_datasets.errors import StoreError


def lock_of(store: Path) -> Path:
    """File of a store's lock, hidden beside it."""
    return store.with_name(f".{store.name}.lock")


@contextmanager
def exclusive(path: Path, lock: Path, *, passing: bool = False) -> Iterator[None]:
    """Hold the right to write into a store or folder.

    Parameters
    ----------
    path : Path
        What is written, for messages.
    lock : Path
        File of the lock; it stays.
    passing : bool
        Remove the file at the end, where another process seldom comes at that very moment.

    Raises
    ------
    StoreError
        If another process holds the right, or the file of the lock cannot be written.
    """
    held = filelock.FileLock(lock, timeout=0)
    try:
        held.acquire()
    except filelock.Timeout:
        raise StoreError(
            f"another process is writing into {path}; wait until it ends, or work in a copy"
        ) from None
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
