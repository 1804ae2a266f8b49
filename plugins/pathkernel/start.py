"""The entry point, which imports next to nothing before Ctrl-C is taken care of."""

from __future__ import annotations

import os
import sys

from pathkernel.interrupts import ending_at_once


def main() -> None:
    """Entry point of ``pathkernel`` and ``python -m pathkernel``."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None where it is closed
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    with ending_at_once():
        from pathkernel.main import main as run
    run()
