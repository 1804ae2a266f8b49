"""Files of a study's results: one plain Zarr each, of parts that are written one by one.

A part is the result itself, such as ``comparison``, or a group in it, such as
``samples/order-parameter/seed-0_T-0.1_N-10``. While a result is computed its new parts are folders
among the pieces of the study; then they and the older ones become one Zarr, which replaces that.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import xarray as xr
import zarr

from pathkernel_core.atomic import replacing_folder
from pathkernel_datasets.study_folder import PIECES, remove_empty
from pathkernel_datasets.zarr_files import (
    METADATA,
    faults,
    is_inside,
    link_tree,
    metadata_faults,
    metadata_of,
    replacing_zarr,
    write_groups,
)


def file_of(folder: Path, part: str) -> tuple[Path, str]:
    """Zarr of a result in a study's folder, and the name of a part inside it."""
    name, _, inside = part.partition("/")
    return folder / f"{name}.zarr", inside


def parts_of(path: Path, group: str = "") -> Iterator[str]:
    """Parts in the Zarr of a result: the outermost groups that have variables or attributes."""
    # hidden ones are being written, or were when a process was killed
    members = sorted(entry for entry in (path / group).glob("[!.]*") if entry.is_dir())
    metadata = {entry: metadata_of(entry) for entry in members}
    has_variables = any(content.get("node_type") == "array" for content in metadata.values())
    if has_variables or (group and metadata_of(path / group).get("attributes")):
        yield group
        return
    for entry in members:
        yield from parts_of(path, entry.relative_to(path).as_posix())


def damaged_parts(path: Path) -> dict[str, str]:
    """Parts of a result that cannot be read, with the fault of each; other damage by its name."""
    parts, damaged = list(parts_of(path)), dict[str, str]()
    for name, fault in faults(path):
        # of a part whose metadata are lost, and of groups above parts, no part is listed
        names = [part for part in parts if is_inside(name, part)] or [name or METADATA]
        damaged |= dict.fromkeys(names, f"{path / name} {fault}")
    return damaged


def write_part(folder: Path, part: str, data: xr.Dataset | xr.DataTree) -> None:
    """Write a part of a result of the study in a folder, to be published with the others."""
    path, inside = file_of(folder / PIECES, part)
    target = path / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_folder(target) as partial:
        write_groups(partial, "", data)


def publish_parts(folder: Path, name: str) -> list[str]:
    """Publish the new parts of a result, with older ones that they do not replace; name the new.

    Those of which metadata are damaged are left out.
    """
    path, new = folder / f"{name}.zarr", folder / PIECES / f"{name}.zarr"
    new_parts = list(parts_of(new))
    damaged = metadata_faults(path) if path.exists() else {}
    if not new_parts and not damaged:
        return []
    sources = {
        part: path / part
        for part in parts_of(path)
        if not any(is_inside(member, part) for member in damaged if member or not part)
    }
    sources |= {part: new / part for part in new_parts}
    if (new / METADATA).exists():  # the result is a single part
        sources = {"": new}
    with replacing_zarr(path) as target:
        root = zarr.open_group(target, mode="a", zarr_format=3)
        for part, source in sources.items():
            if "/" in part:
                root.require_group(part.rpartition("/")[0])
            link_tree(source, target / part)
    for part in new_parts:  # no others, which another process may have written meanwhile
        shutil.rmtree(new / part, ignore_errors=True)
    remove_empty(folder / PIECES)
    return new_parts
