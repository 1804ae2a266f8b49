"""Locks of folders, which end with the process that has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import filelock

from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.errors import StudyError


def lock_of(folder: Path) -> Path:
    """File of a folder's lock, hidden inside it."""
    return Path(os.path.realpath(folder)) / ".lock"


@contextmanager
def lock_folder(
    folder: Path,
    *,
    wait: bool = False,
    waiting: Callable[[], None] = lambda: None,
    temporary: bool = False,
) -> Iterator[None]:
    """Lock a folder by a file in it, which is removed at the end if it is ``temporary``.

    ``waiting`` is called before a wait for another process that has the lock.

    Raises
    ------
    StudyError
        If another process has the lock and it is not to be waited for, or its file cannot be
        written.
    """
    lock = lock_of(folder)
    file_lock = filelock.FileLock(lock, timeout=0)
    try:
        _acquire(file_lock, 0)
    except filelock.Timeout:
        if not lock.exists():  # where no file can be made
            raise unwritable_error(lock, "no file can be made there") from None
        if not wait:
            raise StudyError(
                f"another process is writing into {folder}; wait until it ends, or work in a copy"
            ) from None
        waiting()
        _acquire(file_lock, -1)
    except OSError as error:  # no permission, or a read-only file system
        raise unwritable_error(lock, error.strerror) from error
    try:
        yield
    finally:
        if temporary:
            lock.unlink(missing_ok=True)
        file_lock.release()


def waiting_lock(folder: Path, report: Report) -> AbstractContextManager[None]:
    """Lock a folder after a wait for other processes, which is reported."""
    wait = Progress(0, None, f"waiting for another process that reads or publishes {folder}")
    return lock_folder(folder, wait=True, waiting=lambda: report(wait))


def _acquire(lock: filelock.BaseFileLock, timeout: float) -> None:
    try:
        lock.acquire(timeout=timeout)
    except FileNotFoundError:  # the folder went again with a study that could not begin
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout)


def unwritable_error(file: Path, reason: str | None) -> StudyError:
    """Error that a file of a folder cannot be written."""
    return StudyError(
        f"{file} cannot be written ({reason}), and nothing is changed; choose another folder, or "
        "work in a copy"
    )


def check_writable(folder: Path, *names: str) -> None:
    """Raise a StudyError if a folder, or some of the folders inside of it, cannot be written."""
    inside = [Path(path) for name in names for path, _, _ in os.walk(folder / name)]
    for path in (folder, *inside):
        if not os.access(path, os.W_OK | os.X_OK):
            raise unwritable_error(path, "permission denied, or a read-only file system")
