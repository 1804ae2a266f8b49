"""Flags of JAX's compiler, XLA, asked for before they are set: it aborts at one it does not know.

Flags come and go with versions of jaxlib. Only a process of its own can be asked without harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from pathkernel_core.system.atomic import replace_file

# jaxlib alone starts in a sixth of the time that JAX takes, but its names may go
_START = """
try:
    from jaxlib import xla_client
    start = xla_client.make_cpu_client
except (ImportError, AttributeError):
    import jax
    start = lambda: jax.devices("cpu")
start()
"""
_LONGEST_START = 120  # seconds


def accepted_flags(flags: str) -> tuple[str, list[str]]:
    """Select the flags of XLA that the installed jaxlib knows.

    It takes .3 s, and as long again for each flag where one is refused.

    Parameters
    ----------
    flags : str
        As in ``XLA_FLAGS``: words separated by spaces, or the path of a file, which is not read.

    Returns
    -------
    str, list of str
        Accepted flags, and those that are refused. All are accepted where there is no jaxlib, or
        where it does not start without flags either.
    """
    if not flags.lstrip().startswith("-") or importlib.util.find_spec("jaxlib") is None:
        return flags, []
    if _starts_with(flags):
        return flags, []
    words = flags.split()
    refused = [word for word in words if word.startswith("-") and not _starts_with(word)]
    accepted = " ".join(word for word in words if word not in refused)
    if accepted.startswith("-") and _starts_with(accepted):
        return accepted, refused
    return ("", words) if _starts_with("") else (flags, [])


def remembered_flags(flags: str, folder: Path | None) -> tuple[str, list[str]]:
    """Select accepted flags as :func:`accepted_flags` does, once for each jaxlib and folder."""
    if folder is None or importlib.util.find_spec("jaxlib") is None:
        return accepted_flags(flags)
    question = f"{importlib.metadata.version('jaxlib')} {flags}"
    file = folder / f"flags-{hashlib.sha256(question.encode()).hexdigest()[:16]}"
    try:
        accepted, refused = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        accepted, words = accepted_flags(flags)
        refused = " ".join(words)
        with (
            contextlib.suppress(OSError),
            replace_file(file, several_writers=True) as partial,
        ):
            partial.write_text(f"{accepted}\n{refused}", encoding="utf-8")
    return accepted, refused.split()


def refusal(refused: list[str]) -> str:
    """Describe flags that were left out, in one line."""
    version = importlib.metadata.version("jaxlib")
    return f"left out of XLA_FLAGS, unknown to jaxlib {version}: {' '.join(refused)}"


def _starts_with(flags: str) -> bool:
    """Whether XLA starts with these flags."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", _START],
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LONGEST_START,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0
