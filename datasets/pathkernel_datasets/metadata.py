"""A store's metadata: the index by which readers go, and a copy to mend what is damaged.

The copy is an array that the index leaves out, so that readers do not see it. It holds every file
of metadata, and the labels of the study, byte for byte. It is written before the index: what a
process that was killed did not write is written from there by the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import VLenUTF8
from numpy.dtypes import StringDType

from pathkernel_datasets.atomic import replacing
from pathkernel_datasets.checksums import (
    CHECKED,
    MISSING,
    damaged_chunks,
    read_content,
    write_content,
)
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.labelling import variable_names

COPY = "metadata_copy"
"""Name of the array that holds the copy, one text: JSON of file → content."""

_FILE = "zarr.json"
_CHUNK = "c"  # of an array without dimensions
_NO_INDEX = {"kind": "inline", "must_understand": False, "metadata": {}}  # of a group inside


def consolidate(path: Path) -> None:
    """Write a store's index of metadata, without which plain ``xr.open_zarr`` warns."""
    files = (file for file in path.rglob(_FILE) if file.parent != path)
    index = {file.parent.relative_to(path).as_posix(): _entry(_text(file)) for file in files}
    root = json.loads(_text(path / _FILE))
    root["consolidated_metadata"] = {**_NO_INDEX, "metadata": index}
    (path / _FILE).write_text(_dumped(root))


def index_group(path: Path, group: str, files: Iterable[Path]) -> None:
    """Replace a group's entries of the index and of the copy by those of files of metadata."""
    held = {file.relative_to(path).as_posix(): _text(file) for file in files}
    root = json.loads((path / _FILE).read_text())
    index = {
        name: entry
        for name, entry in root["consolidated_metadata"]["metadata"].items()
        if name != group and not name.startswith(f"{group}/")
    }
    for name, text in held.items():
        index[name.removesuffix(f"/{_FILE}")] = _entry(text)
    root["consolidated_metadata"]["metadata"] = index
    text = _dumped(root)
    copied = _read_copy(path)
    if copied is not None:  # older stores have none
        kept = {name: old for name, old in copied.items() if not name.startswith(f"{group}/")}
        _write_copy(path, kept | held | {_FILE: text})
    _replace(path, _FILE, text)


def copy_metadata(path: Path) -> None:
    """Make the copy from the files; the index must be there."""
    root = json.loads((path / _FILE).read_text())
    variables = variable_names(root["attributes"])
    files = {path / _FILE}
    for name, entry in root["consolidated_metadata"]["metadata"].items():
        files.add(path / name / _FILE)
        if entry["node_type"] == "array" and "/" not in name and name not in variables:
            files.update(file for file in (path / name).rglob("*") if file.is_file())  # labels
    copied = {file.relative_to(path).as_posix(): _text(file) for file in files}
    zarr.create_array(
        path / COPY, shape=(), dtype=StringDType(), compressors=CHECKED, overwrite=True
    )
    _write_copy(path, copied | {f"{COPY}/{_FILE}": _text(path / COPY / _FILE)})


def damaged_metadata(path: Path) -> dict[str, str]:
    """Files of metadata and labels that are not as they were written, and what is wrong with them.

    Nothing is known of older stores, which have no copy, nor of results whose folder was deleted.
    """
    return _differing(path, _read_copy(path))


def _differing(path: Path, copied: Mapping[str, str] | None) -> dict[str, str]:
    if copied is None:
        return {COPY: "cannot be read"} if has_copy(path) else {}
    found = {}
    deleted = tuple(f"{group}/" for group in _deleted(path, copied))
    for name, text in copied.items():
        if name.startswith(deleted):
            continue
        try:
            held = _text(path / name)
            if held != text and not _has_grown(held, text):
                found[name] = "is not as it was written"
        except FileNotFoundError:
            found[name] = MISSING
    return found


def mend_metadata(path: Path) -> list[str]:
    """Write damaged metadata and labels again, as the store's sole writer; returns their names.

    Results whose folder was deleted are taken out of the index.

    Raises
    ------
    StoreError
        If the copy is damaged as well.
    """
    copied = _read_copy(path)
    found = _differing(path, copied)
    if copied is not None:
        for name in found:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            _replace(path, name, copied[name])
    elif found:
        if not _agree(path):
            raise StoreError(
                f"{path} is damaged in several places of its metadata, and cannot be mended; "
                "delete it, and compute it again"
            )
        copy_metadata(path)
    for group in _deleted(path, copied or {}):
        index_group(path, group, ())
    return list(found)


def _has_grown(held: str, copied: str) -> bool:
    """Whether an array is longer, by what a killed process did not finish; who goes on cuts it."""
    try:
        now, before = json.loads(held), json.loads(copied)
        return now.pop("shape") > before.pop("shape") and now == before
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _deleted(path: Path, copied: Mapping[str, str]) -> list[str]:
    """Groups of results, and arrays in them, whose folders are not there any more."""
    folders = sorted(
        name.removesuffix(f"/{_FILE}") for name in copied if name.endswith(f"/{_FILE}")
    )
    return [
        folder
        for folder in folders
        if json.loads(copied[f"{folder.partition('/')[0]}/{_FILE}"])["node_type"] == "group"
        and not (path / folder).exists()
    ]


def has_copy(path: Path) -> bool:
    """Whether there is a copy of metadata, or was one: by this a damaged store is known as ours."""
    root = path / _FILE
    return (path / COPY).exists() or (root.exists() and b'"crc32c"' in root.read_bytes())


def _agree(path: Path) -> bool:
    """Whether the index, the files of metadata and the labels fit each other."""
    try:
        root = json.loads((path / _FILE).read_text())
        variables = variable_names(root["attributes"])
        for name, entry in root["consolidated_metadata"]["metadata"].items():
            labels = entry["node_type"] == "array" and "/" not in name and name not in variables
            if _entry(_text(path / name / _FILE)) != entry or (
                labels and damaged_chunks(zarr.open_array(path / name, mode="r"))
            ):
                return False
    except Exception:  # whatever parsers of a damaged file raise
        return False
    return True


def _dumped(root: dict[str, Any]) -> str:
    index = root["consolidated_metadata"]["metadata"].items()
    ordered = sorted(index, key=lambda item: (item[0].count("/"), item[0]))
    root["consolidated_metadata"]["metadata"] = dict(ordered)
    return json.dumps(root)  # indented it takes five times as long


def _entry(text: str) -> dict[str, Any]:
    """Entry of the index for a file of metadata."""
    entry = json.loads(text)
    if entry["node_type"] == "group":
        entry["consolidated_metadata"] = _NO_INDEX
    return entry


def _read_copy(path: Path) -> dict[str, str] | None:
    try:
        (text,) = VLenUTF8().decode(read_content(path / COPY / _CHUNK))
        return json.loads(text)
    except Exception:  # whatever a decoder raises, or none is there
        return None


def _write_copy(path: Path, files: Mapping[str, str]) -> None:
    text = np.array([json.dumps(files, sort_keys=True)], dtype=object)
    write_content(path / COPY / _CHUNK, VLenUTF8().encode(text))


def _text(file: Path) -> str:
    """Content of any file as text: every byte a character."""
    return file.read_bytes().decode("latin-1")


def _replace(path: Path, name: str, text: str) -> None:
    # beside the store: inside it, readers would wonder what it is
    with replacing(path / name, beside=path.resolve()) as partial:
        partial.write_bytes(text.encode("latin-1"))
