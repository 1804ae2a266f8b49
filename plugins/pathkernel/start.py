"""The entry point, in a module that imports next to nothing before Ctrl-C is handled."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Entry point of ``pathkernel`` and ``python -m pathkernel``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # an exception within an import may be lost; main restores the handler
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None where it is closed
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    from pathkernel.main import main as run

    run()
