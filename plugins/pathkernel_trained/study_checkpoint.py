"""The checkpoint whose queries and keys a study takes: found, and checked to be that one."""

from __future__ import annotations

import os
from pathlib import Path

import xarray as xr

from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.stored import StoredStudy
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.path_network import PathNetwork, read_paths
from pathkernel_trained.shipped import heads_path


def study_checkpoint(
    study: StoredStudy, given: str | os.PathLike | None = None
) -> tuple[Path, PathNetwork]:
    """File of the trained network that a study's heads come from, and the network along its paths.

    Parameters
    ----------
    study : StoredStudy
    given : path, optional
        The checkpoint, or ``trained:NAME``. By default what the study names; a relative path counts
        from the working directory or else from the store's folder.

    Raises
    ------
    StoreError
        If its heads are not those of a file, or the checkpoint is another than that file.
    FileNotFoundError
        If there is no such checkpoint.
    ValueError
        If the file is damaged, or holds queries and keys only.
    """
    store, stored = study.path, study.identity
    if "skips" in stored:
        raise StoreError(
            f"the study {store} has skip connections, and the trained networks have none; compare "
            "and prune a study without --skips"
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
    held = read_paths(file)
    _check_same(study.dataset, stored["provenance"]["heads"], file, held)
    return file, held


def study_heads(study: xr.Dataset) -> list[int]:
    """Number of heads of each layer of a study."""
    return [int(study[f"path_layer_{layer}"].max()) for layer in study["layer"].values]


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


def _check_same(study: xr.Dataset, expected: str, file: Path, held: PathNetwork) -> None:
    again = f"run a study of this one: pathkernel run TASK --heads {file} --out NEW.zarr"
    heads, shape = study_heads(study), held.shape
    if list(shape.heads_per_layer) != heads or "output" in study.dims:
        raise StoreError(
            f"{file} has layers of {', '.join(map(str, shape.heads_per_layer))} heads and one "
            "output, but the "
            f"study has layers of {', '.join(map(str, heads))} heads and "
            f"{study.sizes.get('output', 1)}; give the checkpoint that the study was run with, or "
            f"{again}"
        )
    digest = heads_digest(file)
    if digest != expected:
        raise StoreError(
            f"{file} is not the file of heads that the study was run with (its SHA-256 is "
            f"{digest[:12]}…, not {expected[:12]}…), for example after more training; give that "
            f"file with --checkpoint, or {again}"
        )
