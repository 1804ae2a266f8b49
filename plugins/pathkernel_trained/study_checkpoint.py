"""The checkpoint whose queries and keys a study takes: found, and checked to be that one."""

from __future__ import annotations

import os
from pathlib import Path

from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.stored import StoredStudy
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.path_network import PathNetwork, read_paths
from pathkernel_trained.shipped import heads_path


def study_checkpoint(
    study: StoredStudy, given: str | os.PathLike | None = None
) -> tuple[Path, PathNetwork]:
    """File of the trained network that a study's heads come from, and the network along its paths.

    By default it is the file that the study names; a relative path counts from the working
    directory or else from the store's folder. ``given`` may be ``trained:NAME``.

    Raises
    ------
    StoreError
        If its heads are not those of a file, or the checkpoint is another than that file.
    FileNotFoundError, ValueError
        If there is no such checkpoint; or it is damaged, or holds queries and keys only.
    """
    store, stored = study.path, study.identity
    if "skips" in stored:
        raise StoreError(
            f"the study {store} has skip connections, and the trained networks have none; compare "
            "and prune a study without --skips"
        )
    if "output" in study.dataset.dims:
        raise StoreError(
            f"the study {store} has several outputs, and the trained networks have one"
        )
    if "heads" not in stored["provenance"]:
        kind = "random" if stored["options"].get("heads") == "random" else "made by its task"
        belongs = f"the heads of {store} are {kind}, so that no trained network belongs to them"
        if stored["task"] == "custom":
            belongs = (
                f"the attention of {store} was given as matrices, without the network's values"
            )
        raise StoreError(
            f"{belongs}; the theory's score of every head is in the store, as head_score. Compare "
            "and prune a study of a checkpoint: pathkernel run one-shot-images --heads "
            "trained:NAME, or pathkernel run custom --heads network.safetensors"
        )
    file = _find(study) if given is None else heads_path(given)
    network = read_paths(file)
    _check_same(stored["provenance"]["heads"], file)
    return file, network


def _find(study: StoredStudy) -> Path:
    locations = study.locations(heads_path(study.identity["options"]["heads"]))
    found = [location for location in locations if location.is_file()]
    if not found:
        raise FileNotFoundError(
            f"the study's file of heads is not at {' nor at '.join(map(str, locations))}; name it "
            "with --checkpoint"
        )
    expected = study.identity["provenance"]["heads"]
    return next((file for file in found if heads_digest(file) == expected), found[0])


def _check_same(expected: str, file: Path) -> None:
    if (digest := heads_digest(file)) != expected:
        raise StoreError(
            f"{file} is not the file of heads that the study was run with (its SHA-256 is "
            f"{digest[:12]}…, not {expected[:12]}…), for example after more training; give that "
            "file with --checkpoint, or run a study of this one: pathkernel run TASK --heads "
            f"{file} --out NEW.zarr"
        )
