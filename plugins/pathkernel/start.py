"""The first moments of the command line, before anything that takes time is imported."""

from __future__ import annotations

import codecs
import os
import signal
import sys
import unicodedata

_PLAIN = {"−": "-", "–": "-", "—": "-", "…": "...", "√": "sqrt", "±": "+-", "×": "x", "→": "->"}
_PLAIN |= {"·": "*", "≤": "<=", "≥": ">=", "“": '"', "”": '"', "’": "'", "─": "-", "━": "-"}


def main() -> None:
    """Entry point of ``pathkernel`` and ``python -m pathkernel``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _leave)
    codecs.register_error("pathkernel", _in_plain_letters)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started the process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
        getattr(sys, name).reconfigure(errors="pathkernel")
    from pathkernel.main import main as run

    run(ready=_be_interruptible)


def _be_interruptible() -> None:
    """From here on Ctrl-C raises a KeyboardInterrupt, as elsewhere."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    """End the process in the middle of an import, where an exception is reported or lost."""
    os.write(2, b"\nInterrupted.\n")
    os._exit(130)


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that the terminal's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    letters = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    greek, _, name = unicodedata.name(character, "").rpartition(" LETTER ")
    if greek.startswith("GREEK") and name.isalpha():
        letters = name.capitalize() if "CAPITAL" in greek else name.lower()
    return _PLAIN.get(character) or letters or character.encode("unicode_escape").decode()
