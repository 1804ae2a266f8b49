"""File locks, which end with the process that has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from pathkernel_datasets.errors import StoreError


def lock_of(store: Path) -> Path:
    """File of a store's lock, hidden beside it."""
    store = store.resolve()
    return store.with_name(f".{store.name}.lock")


@contextmanager
def locked(
    path: Path,
    lock: Path,
    *,
    waiting: Callable[[], None] | None = None,
    temporary: bool = False,
) -> Iterator[None]:
    """Lock a store or folder by a file, which is removed at the end if it is ``temporary``.

    If ``waiting`` is given, it is called before a wait for another process that has the lock.

    Raises
    ------
    StoreError
        If another process has the lock, or its file cannot be written.
    """
    if not lock.parent.is_dir():
        raise StoreError(
            f"the folder {lock.parent} does not exist; make it, or choose another file"
        )
    file_lock = filelock.FileLock(lock, timeout=0)
    try:
        file_lock.acquire()
    except filelock.Timeout:
        if waiting is None:
            raise StoreError(
                f"another process is writing into {path}; wait until it ends, or work in a copy"
            ) from None
        waiting()
        file_lock.acquire(timeout=-1)
    except OSError as error:  # no permission, or a read-only file system
        raise unwritable(path, error) from error
    try:
        yield
    finally:
        if temporary:
            lock.unlink(missing_ok=True)
        file_lock.release()


def unwritable(path: str | os.PathLike, error: OSError) -> StoreError:
    """Error for a path beside which nothing can be written."""
    return StoreError(
        f"the folder {Path(path).parent} cannot be written ({error.strerror}), so that {path} "
        "stays as it is; choose another folder, or work in a copy"
    )
