"""How commands have JAX compute, settled before it is imported."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from pathlib import Path

from pathkernel.compiler_flags import refusal, remembered_flags

ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Flags of the compiler with which JAX computes on one core."""

_LARGEST_CACHE = 2**28  # bytes

_logger = logging.getLogger("pathkernel.jax_settings")


def prepare_jax(threads: int = 1) -> None:
    """Make JAX compute in float64, on one core if asked for, and keep what it compiled.

    It must not be imported yet. What the user's environment says stands, unless the installed
    compiler would end the process for it: flags that it does not know are left out. A log message
    names them.
    """
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    _set_flags(ONE_CORE if threads == 1 else "")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and (folder := _compilation_folder()):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_LARGEST_CACHE))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def described_flags() -> str:
    """Describe the flags with which commands have XLA compile, in one line."""
    accepted, refused = remembered_flags(os.environ.get("XLA_FLAGS", ONE_CORE), _cache())
    return f"XLA_FLAGS: {accepted or 'none'}" + (f"; {refusal(refused)}" if refused else "")


def _set_flags(default: str) -> None:
    wanted = os.environ.get("XLA_FLAGS", default)
    if not wanted:
        return
    os.environ["XLA_FLAGS"], refused = remembered_flags(wanted, _cache())
    if refused:
        level = logging.INFO if wanted == default else logging.WARNING
        _logger.log(level, refusal(refused))


def _compilation_folder() -> Path | None:
    """Folder of what was compiled for processors like this one, in the user's cache folder."""
    # JAX does not tell processors apart: code of another one may crash this one
    return _cache(hashlib.sha256(_processor().encode()).hexdigest()[:16])


def _cache(*names: str) -> Path | None:
    """Folder in the user's cache folder, None where nothing can be written."""
    import pooch

    folder = Path(pooch.os_cache("pathkernel"), "compiled", *names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _processor() -> str:
    """What this processor can do, where the system says so; else which machine this is."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.node()} {platform.machine()}"
