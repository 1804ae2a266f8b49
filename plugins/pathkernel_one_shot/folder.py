"""The folder of a training: what lies in it, and whether a training can go on there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pathkernel_datasets.atomic import remove_leftovers
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.lock import locked
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint

BEST, LATEST, CURVES = "network.safetensors", "latest.safetensors", "curves.zarr"
_LOCK = ".lock"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make the folder of a training if need be, and hold the right to write into it.

    What a killed training left half-written is removed first.

    Raises
    ------
    StoreError
        If the folder holds something else or cannot be written, or another process trains there.
    """
    folder = folder.resolve()  # a link may lead to where no folder is yet
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is no folder; choose another one for the training")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder {folder} cannot be made: {error}") from error
    _check_content(folder)
    with locked(folder, lock=folder / _LOCK):
        for name in (BEST, LATEST, CURVES):
            remove_leftovers(folder / name)
        yield


def held_training(folder: Path, identity: Mapping[str, Any], total: int) -> Checkpoint | None:
    """Find the training in a folder and check that it is the one to go on with.

    Parameters
    ----------
    folder : Path
    identity : mapping
        What fixes the weights after any step, as JSON holds it.
    total : int
        Steps to be done in all.

    Returns
    -------
    Checkpoint or None
        Where to go on; None at the start.

    Raises
    ------
    StoreError
        If the folder holds another training, or one of more steps.
    ValueError
        If the checkpoint is damaged.
    """
    found = folder / (LATEST if (folder / LATEST).exists() else BEST)
    if not found.exists():
        return None
    held = read_checkpoint(found)
    different = _differences(held.about.get("settings", {}), identity)
    if different:
        raise StoreError(
            f"{folder} holds another training and is left as it is ({'; '.join(different)}). "
            "Choose another folder, or go on with its own settings"
        )
    if held.about["step"] > total:
        raise StoreError(
            f"{folder} holds a training of {held.about['step']} steps, more than the {total} asked "
            "for. Choose another folder, or at least as many epochs"
        )
    return held if found.name == LATEST else None  # stopped before the first state was kept


def _check_content(folder: Path) -> None:
    others = (p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name != BEST)
    other = next(others, None)
    if other and not (folder / LATEST).exists():
        raise StoreError(
            f"{folder} holds {other!r} but no training to go on with; choose a new folder"
        )


def _differences(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in {**held, **wanted}:
        there, here = held.get(name), wanted.get(name)
        if there == here:
            continue
        words = name.replace("_", "-")
        if isinstance(here, (list, dict)) or isinstance(there, (list, dict)):
            lines.append(f"{words} are others")
        else:
            lines.append(f"{words}: the folder has {there}, this run {here}")
    return lines
