"""The folder of a training: its files, its lock, and the checkpoint to resume from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pathkernel_core.system.atomic import remove_leftovers
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.lock import lock_folder
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint

BEST, LATEST, CURVES = "network.safetensors", "latest.safetensors", "curves.zarr"


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a training if needed, lock it, and remove half-written files.

    Raises
    ------
    StudyError
        If the folder holds something else or cannot be written, or another process trains there.
    """
    folder = folder.resolve()  # a link may lead to a folder that does not exist yet
    if folder.exists() and not folder.is_dir():
        raise StudyError(f"{folder} is no folder; choose another one for the training")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"the folder {folder} cannot be made: {error}") from error
    # another's folder must not get files that a later training would overwrite
    if not (folder / LATEST).exists():
        for path in folder.iterdir():
            if not path.name.startswith(".") and path.name != BEST:
                raise StudyError(
                    f"{folder} holds {path.name!r} but no training to resume; choose a new folder"
                )
    with lock_folder(folder):
        for name in (BEST, LATEST, CURVES):
            remove_leftovers(folder / name)
        yield


def latest_checkpoint(folder: Path, identity: Mapping[str, Any], total: int) -> Checkpoint | None:
    """Checkpoint to resume a training of ``total`` steps from, or None at the start.

    ``identity`` are the settings that fix the weights after any step, as JSON holds them.

    Raises
    ------
    StudyError
        If the folder holds another training, or one of more steps.
    ValueError
        If the checkpoint is damaged.
    """
    file = folder / (LATEST if (folder / LATEST).exists() else BEST)
    if not file.exists():
        return None
    checkpoint = read_checkpoint(file, needs_checksum=True)
    if differences := _differences(checkpoint.about.get("settings", {}), identity):
        raise StudyError(
            f"{folder} holds another training and is left as it is ({'; '.join(differences)}). "
            "Choose another folder, or resume with its own settings"
        )
    step = checkpoint.about["step"]
    if step > total:
        raise StudyError(
            f"{folder} holds a training of {step} steps, more than {total}. Choose another folder, "
            "or at least as many epochs"
        )
    return checkpoint if file.name == LATEST else None  # stopped before the first state was saved


def _differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in {**stored, **current}:
        old, new = stored.get(name), current.get(name)
        if old != new:
            scalar = not isinstance(old or new, (list, dict))
            values = f": the folder has {old}, this run {new}" if scalar else " differ"
            lines.append(name.replace("_", "-") + values)
    return lines
