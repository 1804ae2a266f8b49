"""Trained networks bundled with pathkernel, which ``trained:NAME`` names in place of a heads file.

They are stored along their paths (:mod:`pathkernel_trained.path_network`), with their digests in
``SHA256SUMS``, which ``sha256sum --check`` reads, too.
"""

from __future__ import annotations

import os
from pathlib import Path

from pathkernel_core.contracts.hooks import UnknownNameError, unknown_name
from pathkernel_tasks.heads_file import heads_digest

PREFIX = "trained:"
FOLDER = Path(__file__).with_name("bundled_networks")
DIGESTS = "SHA256SUMS"


def bundled_digests() -> dict[str, str]:
    """SHA-256 of every bundled network, by ``trained:NAME``."""
    lines = (FOLDER / DIGESTS).read_text(encoding="ascii").splitlines()
    return {PREFIX + Path(file).stem: digest for digest, file in map(str.split, lines)}


def heads_path(heads: str | os.PathLike) -> Path:
    """Resolve a path, or the name ``trained:NAME`` of a bundled network, to a heads file.

    Raises an UnknownNameError that lists the bundled networks if there is none of that name, and a
    ValueError if its file has changed.
    """
    name = str(heads)
    digests = bundled_digests()
    if not name.startswith(PREFIX):
        if PREFIX + name in digests and not Path(name).exists():
            raise ValueError(f"there is no file {name!r}; {PREFIX}{name} is a bundled network")
        return Path(heads)
    if name not in digests:
        raise UnknownNameError(unknown_name("bundled network", name, digests))
    file = FOLDER / f"{name.removeprefix(PREFIX)}.safetensors"
    if not file.is_file() or heads_digest(file) != digests[name]:
        raise ValueError(f"{file} is missing or damaged; install pathkernel again")
    return file
