"""Failures in the code of plugins, told by the names of the object and of its class."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from pathkernel_core.system.errors import PathkernelError


@contextmanager
def named_failures(
    what: str,
    code: type,
    error_class: type[PathkernelError],
    refusals: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Raise errors of a plugin's own code again, with the object, its class and the action.

    Those of bundled classes, of the disk and of memory pass through, as all of Pathkernel's: they
    name what is wrong already. An attempt to end the process is an error like others; Ctrl-C is
    not.

    Parameters
    ----------
    what : str
        Subject and action, such as "the task 'parity' cannot draw seed 0".
    code : type
        Class whose code runs.
    error_class : type
        Class of the error that is raised.
    refusals : tuple of type
        Further errors that pass through, by which the code refuses what it is given.
    """
    passing: tuple[type[Exception], ...] = (PathkernelError, OSError, MemoryError, *refusals)
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        if is_bundled(code):
            raise
        raise error_class(
            f"{what}: {type(error).__name__}: {error}. Its own code raised this, class "
            f"{code.__module__}.{code.__qualname__}"
        ) from error


def is_bundled(code: type) -> bool:
    """Whether a class is of a package with plugins of Pathkernel's own distribution."""
    package = code.__module__.partition(".")[0]
    try:
        entries = importlib.metadata.distribution("pathkernel").entry_points
    except importlib.metadata.PackageNotFoundError:
        return False
    return package in {entry.module.partition(".")[0] for entry in entries}
