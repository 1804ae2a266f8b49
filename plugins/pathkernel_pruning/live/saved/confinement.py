"""Run code of a library without files, connections, processes and pickles.

What a model's class does with a configuration is the library's own affair: some open a folder, or
ask a server, that a text in it names. Python tells every such act to its audit hooks beforehand,
and one of these refuses it, whichever class it comes from.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.machinery import all_suffixes
from typing import Any

_ACTS = (
    "socket.",
    "urllib.",
    "http.",
    "ftplib.",
    "smtplib.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pickle.",
    "_thread.",  # it would be outside of the context; Python 3.11 does not tell
    "shutil.",
    "tempfile.",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
)
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True)
class _Readable:
    """Files that may be read: of installed packages, and code on the path, but not of a folder.

    ``files`` are those that may be read wherever they are, which ``threads`` may do.
    """

    packages: tuple[str, ...]
    path: tuple[str, ...]
    folder: str | None
    files: frozenset[str]
    threads: bool

    def allows(self, name: str) -> bool:
        name = os.path.realpath(name)
        if name in self.files:
            return True
        if self.folder is not None and _is_inside(name, self.folder):
            return False
        is_code = name.endswith(tuple(all_suffixes()))
        return any(
            _is_inside(name, root) for root in (*self.packages, *(self.path if is_code else ()))
        )


_READABLE: ContextVar[_Readable | None] = ContextVar("readable", default=None)


@contextmanager
def confined(
    folder: str | os.PathLike | None = None,
    files: Iterable[str | os.PathLike] = (),
    *,
    threads: bool = False,
) -> Iterator[None]:
    """Refuse files, connections, processes, threads and pickles to the code inside the context.

    Files of installed packages, and modules on Python's path, may still be read, since libraries
    import theirs when they are needed; modules in ``folder`` may not, but ``files`` may. Other
    threads are not concerned, and may be started with ``threads``. Refusals are PermissionErrors,
    which libraries take for those of the system.
    """
    _install_hook()
    packages = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    packages |= {*site.getsitepackages(), site.getusersitepackages()}
    for library in ("torch", "transformers", "timm"):  # that may be installed from a checkout
        packages |= {*getattr(sys.modules.get(library), "__path__", ())}
    readable = _Readable(
        tuple(os.path.realpath(root) for root in packages),
        tuple(os.path.realpath(root) for root in sys.path),
        None if folder is None else os.path.realpath(folder),
        frozenset(os.path.realpath(file) for file in files),
        threads,
    )
    token = _READABLE.set(readable)
    try:
        yield
    finally:
        _READABLE.reset(token)


@cache
def _install_hook() -> None:
    # Python cannot remove a hook: it stays, and does nothing outside of the context
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if (readable := _READABLE.get()) is None:
        return
    if event.startswith(_ACTS) and not (readable.threads and event.startswith("_thread.")):
        raise PermissionError(f"{event} is refused while a model is built from a file")
    if event not in ("open", "ctypes.dlopen") or isinstance(args[0], int | None):
        return  # a file that is open already
    name = os.fsdecode(args[0])
    if event == "open":
        _, mode, flags = args
        is_harmless = not (flags & _WRITING or {*(mode or "")} & {*"wax+"})
        is_harmless = is_harmless and (name == os.devnull or readable.allows(name))
    else:  # a library by its path, or by its name for the system to find
        is_harmless = not os.path.dirname(name) or readable.allows(name)
    if not is_harmless:
        raise PermissionError(f"{name[:200]!r} is not opened while a model is built from a file")


def _is_inside(name: str, folder: str) -> bool:
    return name == folder or name.startswith(os.path.join(folder, ""))
