"""Files of arrays in NumPy's format npz, moved into place whole: each is there and whole, or not.

A zip file has the CRC-32 of everything in it. Texts in the file say what its arrays belong to, so
that one that was left by another study, or renamed, is not taken for another.
"""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.local_files import is_damage, open_regular
from pathkernel_datasets.errors import StudyWarning

SUFFIX = ".npz"
_NAME, _STUDY, _MEMBERS = "file_name", "study", "members"


def write_arrays(file: Path, arrays: Mapping[str, Any], study: str) -> None:
    """Write arrays of a study by name, text among them; an older file is replaced."""
    members = {**arrays, _NAME: file.name, _STUDY: study, _MEMBERS: sorted(arrays)}
    try:
        _replace(file, members)
    except FileNotFoundError:  # a run that has published its study removed the folder just now
        _replace(file, members)


def _replace(file: Path, arrays: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file, several_writers=True) as partial, open(partial, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_arrays(file: Path, study: str) -> dict[str, np.ndarray] | None:
    """Arrays of a study; None if the file is missing, of another study, or damaged.

    A warning says that it is damaged.
    """
    if not os.path.lexists(file):
        return None
    arrays = _arrays(file)
    if not arrays:
        warnings.warn(f"{file} is damaged; a run computes it again", StudyWarning, stacklevel=3)
        return None
    return arrays if str(arrays.pop(_STUDY)) == study else None  # left by another of this name


def is_damaged(file: Path) -> bool:
    """Whether a file of arrays cannot be read, or is another that was renamed."""
    return not _arrays(file)


def _arrays(file: Path) -> dict[str, Any]:
    """Arrays of a file and its study; empty if it is damaged, renamed, or no plain file."""
    if (stream := open_regular(file)) is None:
        return {}
    with stream:
        content = io.BytesIO(stream.read())
    try:
        # checksums before NumPy parses anything: a damaged header may ask for any memory
        with zipfile.ZipFile(content) as archive:
            if archive.testzip() is not None:
                return {}
        content.seek(0)
        with np.load(content, allow_pickle=False) as members:
            arrays = dict(members)
        # the directory at the end of a zip file has no checksum: it may have lost members
        name, names = str(arrays.pop(_NAME)), arrays.pop(_MEMBERS).tolist()
    except Exception as error:  # whatever the reader of a damaged file raises
        if not is_damage(error):
            raise
        return {}
    return arrays if name == file.name and {*arrays} == {*names, _STUDY} else {}
