"""Groups beside a study in its store: by one writer at a time, whole or not at all."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import xarray as xr
import zarr

from pathkernel_datasets.atomic import PARTIAL, remove_left_over
from pathkernel_datasets.checksums import write_dataset
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.lock import (
    exclusive,
    lock_of,
    lock_of_part,
    running_parts,
    sole,
    turn,
)
from pathkernel_datasets.metadata import index_group, mend_metadata

_OLD, _NAME = "old", "name"  # a group that is being replaced, and which it is


@contextmanager
def sole_writer(path: str | os.PathLike) -> Iterator[None]:
    """Hold the right to write into a store, which ends with the process if nothing else ends it.

    What a writer that was killed left half-written is removed first, and damaged metadata are
    mended. There may be no store yet.

    Parameters
    ----------
    path : path
        The store. The lock is a hidden file beside it.

    Raises
    ------
    StoreError
        If another process writes into the store, its folder does not exist or cannot be written, or
        its metadata cannot be mended.
    """
    path = _place(path)
    with sole(path):
        _tidy(path)
        try:
            yield
        finally:
            if not path.exists():
                lock_of(path).unlink(missing_ok=True)


@contextmanager
def part_writer(
    path: str | os.PathLike,
    part: tuple[int, int] | None,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[tuple[bool, Callable[[], None]]]:
    """Hold the right to write a part of a store, beside processes that write others.

    Until they are let in, no other process writes; others that are to write a part wait.

    Parameters
    ----------
    path : path
        The store. Locks are hidden files beside it.
    part : tuple of int, optional
        Which one, and of how many; by default the whole, as :func:`sole_writer`.
    waiting : callable
        Called before others are waited for.

    Returns
    -------
    alone : bool
        Whether no other part is being computed. What killed writers left is removed only then, at
        the beginning and at the end.
    let_others_in : callable
        To be called once there is a store, and before the part is computed.

    Raises
    ------
    StoreError
        As :func:`sole_writer`; or if another process writes this part.
    ValueError
        If there is no such part.
    """
    if part is None:
        with sole_writer(path):
            yield True, lambda: None
        return
    if not 1 <= part[0] <= part[1]:
        raise ValueError(f"part must be a number and how many there are, as (1, 3), not {part}")
    path = _place(path)
    with ExitStack() as own:
        with ExitStack() as whole:
            whole.enter_context(turn(path, waiting))
            whole.enter_context(exclusive(path, lock_of(path)))
            running = running_parts(path)
            if any(not other.endswith(f" of {part[1]}") for other in running):
                raise StoreError(
                    f"{path} is being computed in parts ({', '.join(running)}), not in {part[1]}; "
                    "wait until they end, or take as many parts"
                )
            alone = not running
            words = f"part {part[0]} of {part[1]} of {path}"
            own.enter_context(exclusive(words, lock_of_part(path, part)))
            if alone:
                _tidy(path)
            yield alone, whole.close
        with turn(path):
            own.close()
            with suppress(StoreError), sole(path):  # no other part is left
                _remove_left_over(path)


def _place(path: str | os.PathLike) -> Path:
    """One name for all names of a store, and its folder is there."""
    path = Path(path).resolve()
    if not path.parent.is_dir():
        raise StoreError(
            f"the folder {path.parent} does not exist; make it, or choose another file"
        )
    return path


def _tidy(path: Path) -> None:
    """Remove what killed writers left, and mend damaged metadata."""
    _remove_left_over(path)
    if path.exists():
        mended = mend_metadata(path)
        if mended:
            warnings.warn(f"{path} was damaged: {', '.join(mended)}; mended", StoreWarning, 4)
        _publish_left_out(path)


def add_group(path: str | os.PathLike, group: str, dataset: xr.Dataset) -> None:
    """Write a dataset as a group of a store; one that is there is replaced.

    Parameters
    ----------
    path : path
        The store, which :func:`sole_writer` holds.
    group : str
        Path of the group inside the store.
    dataset : Dataset
    """
    partial = folder_beside(path)
    try:
        write_dataset(dataset, partial)
        # killed on the way, it is missing rather than half of each
        index_group(Path(path), group, ())
        move_into(partial, path, group)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if (Path(path) / group).exists():
            publish(path, group)


def folder_beside(path: str | os.PathLike) -> Path:
    """Make a folder beside a store, for what :func:`move_into` is to move into it."""
    path = Path(path).resolve()
    return Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))


def move_into(folder: Path, path: str | os.PathLike, group: str) -> None:
    """Make a folder a group of the store beside it; a group that is there is replaced."""
    path = Path(path).resolve()
    target = path / group
    parent = zarr.open_group(path, mode="r+", use_consolidated=False)
    for part in group.split("/")[:-1]:
        parent = parent.require_group(part)
    folder.chmod(0o755)
    if not target.exists():
        os.rename(folder, target)
        return
    aside = folder_beside(path)
    (aside / _NAME).write_text(group)
    os.rename(target, aside / _OLD)
    try:
        os.rename(folder, target)
    finally:
        _put_back(aside, path)


def publish(path: str | os.PathLike, group: str) -> None:
    """Show readers what a group holds: they go by the index of metadata at the store's root.

    The rest of the index stays as it is, so that a block of draws that was not finished, of a run
    in another group, is never seen.
    """
    path = Path(path)
    above = [path.joinpath(*group.split("/")[:end]) for end in range(1, group.count("/") + 1)]
    files = (folder / "zarr.json" for folder in above)
    index_group(path, group, (*files, *(path / group).rglob("zarr.json")))


def _prefix(path: Path) -> str:
    return f".{path.name}.group."


def _put_back(folder: Path, path: Path) -> None:
    """Remove a folder beside the store, but for a group that was to be replaced and was not."""
    if (folder / _OLD).exists() and (folder / _NAME).exists():  # else it was being removed
        group = (folder / _NAME).read_text()
        if not (path / group).exists():
            os.rename(folder / _OLD, path / group)
            publish(path, group)
    shutil.rmtree(folder, ignore_errors=True)


def _left_over(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{glob.escape(_prefix(path))}*"))


def _publish_left_out(path: Path) -> None:
    """Show readers the groups that were moved in just before their writer was killed."""
    try:
        known = json.loads((path / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    except (OSError, ValueError, KeyError):
        return  # no store of ours, or an older one that is damaged; who opens it says so
    for top in sorted(path.glob("*/zarr.json")):
        if json.loads(top.read_text())["node_type"] == "group":
            for file in sorted(top.parent.rglob("zarr.json")):
                group = file.parent.relative_to(path).as_posix()
                if group not in known and json.loads(file.read_text())["node_type"] == "group":
                    publish(path, group)


def _remove_left_over(path: Path) -> None:
    for folder in _left_over(path):
        _put_back(folder, path)
    remove_left_over(path)
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(PARTIAL):  # of a chunk
                Path(folder, name).unlink(missing_ok=True)
