"""The folder of a training: what lies in it, and whether a training can go on there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathkernel_datasets.store import StoreError
from pathkernel_training import checkpoint, curves
from pathkernel_training.checkpoint import Checkpoint, read_checkpoint

BEST, LATEST, CURVES = "network.safetensors", "latest.safetensors", "curves.zarr"


def open_folder(folder: Path, identity: Mapping[str, Any], total: int) -> Checkpoint | None:
    """Make the folder, or find the training in it and check that it is the one to go on with.

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
        If the folder holds another training, one of more steps, or something else, or cannot be
        written.
    ValueError
        If the checkpoint is damaged.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is no folder; choose another one for the training")
    latest = folder / LATEST
    if not latest.exists():
        others = [] if not folder.exists() else [p.name for p in folder.iterdir()]
        others = [name for name in others if not name.startswith(".") and name != BEST]
        if others:
            raise StoreError(
                f"{folder} holds {others[0]!r} but no training to go on with; choose a new folder"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the folder {folder} cannot be made: {error}") from error
    if not os.access(folder, os.W_OK):
        raise StoreError(f"the folder {folder} cannot be written; choose another one")
    checkpoint.remove_abandoned(folder)
    curves.remove_abandoned(folder / CURVES)
    if not latest.exists():
        return None
    held = read_checkpoint(latest)
    different = _differences(held.about["settings"], identity)
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
    return held


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
