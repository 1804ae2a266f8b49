"""Files of a study's results: one plain Zarr each, of parts that are written one by one.

A part is the result itself, such as ``comparison``, or a group in it, such as
``samples/order-parameter/seed-0_T-0.1_N-10``. While a result is computed its new parts are folders
among the pieces of the study; then they and the older ones become one Zarr, which replaces that.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import xarray as xr
import zarr

from pathkernel_core.system.atomic import PARTIAL, remove_folder, remove_leftovers, replacing_folder
from pathkernel_datasets.errors import StudyWarning
from pathkernel_datasets.folder.lock import lock_folder
from pathkernel_datasets.folder.study_folder import PIECES, remove_empty
from pathkernel_datasets.folder.zarr_files import (
    METADATA,
    exchanged_chunks,
    faults,
    is_inside,
    link_tree,
    metadata_faults,
    metadata_index,
    replacing_zarr,
    write_groups,
)


def file_of(folder: Path, part: str) -> tuple[Path, str]:
    """Zarr of a result in a study's folder, and the name of a part inside it."""
    name, _, inside = part.partition("/")
    return folder / f"{name}.zarr", inside


def parts_of(path: Path) -> list[str]:
    """Parts in the Zarr of a result: the outermost groups that have variables or attributes."""
    index, parts = metadata_index(path), list[str]()
    arrays = [name for name, entry in index.items() if entry.get("node_type") == "array"]
    groups = {name.rpartition("/")[0] for name in arrays}
    groups |= {name for name, entry in index.items() if entry.get("attributes")}
    for group in sorted(groups):  # outer ones first
        if not any(is_inside(group, part) for part in parts):
            parts.append(group)
    return parts


def damaged_parts(path: Path) -> dict[str, str]:
    """Parts of a result that cannot be read, with the fault of each; other damage by its name."""
    parts, damaged = parts_of(path), dict[str, str]()
    for name, fault in faults(path):
        # of a part whose metadata are lost, and of groups above parts, no part is listed
        names = [part for part in parts if is_inside(name, part)] or [name or METADATA]
        damaged |= dict.fromkeys(names, f"{path / name} {fault}")
    return damaged


def write_part(folder: Path, part: str, data: xr.Dataset | xr.DataTree) -> None:
    """Write a part of a result of the study in a folder, to be published with the others."""
    path, inside = file_of(folder / PIECES, part)
    target = path / inside
    # under the lock, or another process, which publishes parts of its own, could take a part that
    # is being written for a leftover, or its folder for an empty one
    with lock_folder(folder, wait=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(target) as partial:
            write_groups(partial, data)


def publish_parts(folder: Path, name: str) -> list[str]:
    """Publish the new parts of a result, with older ones that they do not replace; name the new.

    Older ones that cannot be kept as they are, since their metadata are damaged or their chunks
    exchanged, are left out, which a warning tells. The folder must be locked.
    """
    path, new = folder / f"{name}.zarr", folder / PIECES / f"{name}.zarr"
    remove_leftovers(path)
    for leftover in new.rglob(f".*{PARTIAL}"):  # of a killed process: others wait for the lock
        shutil.rmtree(leftover, ignore_errors=True)
    new_parts, old_parts = parts_of(new), parts_of(path) if path.exists() else []
    faulty = {*metadata_faults(path), *exchanged_chunks(path)} if old_parts else set()
    damaged = [part for part in old_parts if any(is_inside(name, part) for name in faulty)]
    if not new_parts and (damaged or not faulty):
        return []
    # where no part is damaged, but the groups above them are, these are written again
    sources = {} if "" in new_parts else {part: path / part for part in old_parts}
    for part in damaged:
        sources.pop(part, None)
        if part not in new_parts:
            warnings.warn(
                f"{path / part} was damaged, and is removed; run its command again",
                StudyWarning,
                stacklevel=4,
            )
    sources |= {part: new / part for part in new_parts}
    with replacing_zarr(path) as target:
        root = zarr.open_group(target, mode="a", zarr_format=3)
        for part, source in sources.items():
            if "/" in part:
                root.require_group(part.rpartition("/")[0])
            link_tree(source, target / part)
    for part in new_parts:
        remove_folder(new / part)
    remove_empty(folder / PIECES)
    return new_parts
