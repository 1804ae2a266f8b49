"""The trained network whose queries and keys a study takes."""

from __future__ import annotations

import os
from pathlib import Path

from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.bundled import heads_path
from pathkernel_trained.path_network import PathNetwork, read_paths


def study_checkpoint(
    study: StoredStudy, checkpoint: str | os.PathLike | None = None
) -> tuple[Path, PathNetwork]:
    """Find the trained network that a study's heads come from, and read it along its paths.

    By default it is the file that the study names; a relative path counts from the working
    directory, or else from the one that the study's folder is in. ``checkpoint`` may be
    ``trained:NAME``.

    Raises
    ------
    StudyError
        If its heads are not those of a file, or the checkpoint differs from that file.
    FileNotFoundError, ValueError
        If there is no such checkpoint; or it is damaged, or holds queries and keys only.
    """
    folder, identity = study.path, study.identity
    if "skips" in identity:
        raise StudyError(
            f"the study {folder} has skip connections, and the trained networks have none; compare "
            "and prune a study without --skips"
        )
    if (kernel := study.identity["options"].get("token_kernel", "linear")) != "linear":
        raise StudyError(
            f"the study {folder} has the token kernel {kernel}, but the trained networks attend to "
            "bare tokens; compare and prune a study without --token-kernel"
        )
    if "heads" not in identity["provenance"]:
        kind = "random" if identity["options"].get("heads") == "random" else "made by its task"
        reason = f"the heads of {folder} are {kind}, so that no trained network belongs to them"
        if identity["task"] == "custom":
            reason = f"the attention of {folder} was given as matrices, without the values"
        raise StudyError(
            f"{reason}; the theory's score of every head is in study.zarr, as head_score. Compare "
            "and prune a study of a checkpoint: pathkernel run one-shot-images --heads "
            "trained:NAME, or pathkernel run custom --heads network.safetensors"
        )
    expected = identity["provenance"]["heads"]
    if checkpoint is not None:
        file = heads_path(checkpoint)
    else:
        locations = study.locations(heads_path(identity["options"]["heads"]))
        files = [location for location in locations if location.is_file()]
        if not files:
            raise FileNotFoundError(
                f"the study's file of heads is not at {' nor at '.join(map(str, locations))}; name "
                "it with --checkpoint"
            )
        file = next((file for file in files if heads_digest(file) == expected), files[0])
    network = read_paths(file)
    if (digest := heads_digest(file)) != expected:
        raise StudyError(
            f"{file} is not the file of heads that the study was run with (its SHA-256 is "
            f"{digest[:12]}…, not {expected[:12]}…), for example after more training; name that "
            "file with --checkpoint, or run a study of this one: pathkernel run TASK --heads "
            f"{file} --out NEW"
        )
    return file, network
