"""Failures in the code of plugins, told by the names of the object and of its class."""

from __future__ import annotations

import dis
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from pathkernel_core.system.errors import PathkernelError


@contextmanager
def named_failures(
    what: str,
    code: type,
    error_class: type[PathkernelError],
    may_refuse: bool = False,
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
    may_refuse : bool
        Whether a ValueError that the code itself raises, or the check of its options, passes
        through: it refuses what it is given, in words of its own.
    """
    try:
        yield
    except (PathkernelError, OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if is_bundled(code) or (may_refuse and _is_refusal(error, code)):
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


def _is_refusal(error: BaseException, code: type) -> bool:
    """Whether an error is a ValueError of a ``raise`` statement of a class's own code.

    That is its package, and the modules of its base classes. Of what they call, NumPy for example,
    errors are mistakes.
    """
    innermost = error.__traceback__
    if not isinstance(error, ValueError) or innermost is None:
        return False
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    module = innermost.tb_frame.f_globals.get("__name__", "")
    is_own = module.partition(".")[0] == code.__module__.partition(".")[0] or any(
        module == base.__module__ for base in code.__mro__
    )
    # functions written in C have no frame: their errors seem to be raised by the line that calls
    instruction = innermost.tb_frame.f_code.co_code[innermost.tb_lasti]
    return is_own and dis.opname[instruction] == "RAISE_VARARGS"
