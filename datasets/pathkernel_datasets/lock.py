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
    store = Path(os.path.realpath(store))
    return store.with_name(f".{store.name}.lock")


@contextmanager
def locked(
    path: Path,
    *,
    lock: Path | None = None,
    wait: bool = False,
    waiting: Callable[[], None] = lambda: None,
    temporary: bool = False,
) -> Iterator[None]:
    """Lock a store or folder by a file, by default the store's.

    The file is removed at the end if it is ``temporary``. ``waiting`` is called before a wait for
    another process that has the lock.

    Raises
    ------
    StoreError
        If another process has the lock and it is not to be waited for, or its file cannot be
        written.
    """
    lock = lock_of(path) if lock is None else lock
    if not lock.parent.is_dir():
        raise StoreError(
            f"the folder {lock.parent} does not exist; make it, or choose another file"
        )
    file_lock = filelock.FileLock(lock, timeout=0)
    try:
        file_lock.acquire()
    except filelock.Timeout:
        if not lock.exists():  # where no file can be made
            raise _unwritable(path, "no file can be made there") from None
        if not wait:
            raise StoreError(
                f"another process is writing into {path}; wait until it ends, or work in a copy"
            ) from None
        waiting()
        file_lock.acquire(timeout=-1)
    except OSError as error:  # no permission, or a read-only file system
        raise _unwritable(path, error.strerror) from error
    try:
        yield
    finally:
        if temporary:
            lock.unlink(missing_ok=True)
        file_lock.release()


def _unwritable(path: Path, reason: str | None) -> StoreError:
    return StoreError(
        f"the folder {path.parent} cannot be written ({reason}), so that {path} stays as it is; "
        "choose another folder, or work in a copy"
    )
