"""Trained networks that come with pathkernel, as ``trained:NAME`` in place of a file of heads.

They lie along their paths (:mod:`pathkernel_trained.path_network`) in a folder of this package,
with their digests in ``SHA256SUMS``, which ``sha256sum --check`` reads, too.
"""

from __future__ import annotations

import os
from pathlib import Path

from pathkernel_core.hooks import UnknownNameError, unknown_name
from pathkernel_tasks.heads_file import heads_digest

PREFIX = "trained:"
FOLDER = Path(__file__).with_name("shipped_networks")
DIGESTS = "SHA256SUMS"


def shipped_digests() -> dict[str, str]:
    """SHA-256 of every shipped network, by ``trained:NAME``."""
    lines = (FOLDER / DIGESTS).read_text(encoding="ascii").splitlines()
    return {PREFIX + Path(file).stem: digest for digest, file in map(str.split, lines)}


def heads_path(heads: str | os.PathLike) -> Path:
    """File of heads that a path names, or ``trained:NAME``.

    Raises an UnknownNameError that lists the bundled networks if there is none of that name, and a
    ValueError if its file is not the one that was bundled.
    """
    name = str(heads)
    digests = shipped_digests()
    if not name.startswith(PREFIX):
        if PREFIX + name in digests and not Path(name).exists():
            raise ValueError(
                f"there is no file {name!r}; {PREFIX}{name} is a network that comes along"
            )
        return Path(heads)
    if name not in digests:
        raise UnknownNameError(unknown_name("shipped network", name, digests))
    file = FOLDER / f"{name.removeprefix(PREFIX)}.safetensors"
    if not file.is_file() or heads_digest(file) != digests[name]:
        raise ValueError(f"{file} is missing or damaged; install pathkernel again")
    return file
