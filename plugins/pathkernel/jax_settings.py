"""How commands have JAX compute, settled before it is imported."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

_ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
_LARGEST_CACHE = 2**28  # bytes


def prepare_jax(threads: int = 1) -> None:
    """Make JAX compute in float64, on one core if asked for, and keep what it compiled.

    It must not be imported yet. What the user's environment says stands.
    """
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if threads == 1:
        os.environ.setdefault("XLA_FLAGS", _ONE_CORE)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and (folder := _writable_cache()):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_LARGEST_CACHE))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def _writable_cache() -> Path | None:
    """Folder of what was compiled for processors like this one, in the user's cache folder."""
    import pooch

    # JAX does not tell processors apart: code of another one may crash this one
    kind = hashlib.sha256(_processor().encode()).hexdigest()[:16]
    folder = Path(pooch.os_cache("pathkernel")) / "compiled" / kind
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
