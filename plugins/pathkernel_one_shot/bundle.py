"""Ship trained networks with the package: ``python -m pathkernel_one_shot.bundle FOLDER …``.

For maintainers, in a checkout. Each folder is that of a finished training of
``pathkernel train one-shot-images``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import xarray as xr

from pathkernel_one_shot.folder import BEST, CURVES
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.bundled import DIGESTS, FOLDER
from pathkernel_trained.path_network import read_paths, save_paths


def bundle(trainings: Iterable[Path], folder: Path = FOLDER) -> None:
    """Write the networks along their paths, and the digests of all that the folder holds.

    Raises
    ------
    ValueError
        If a training has not come to its end.
    """
    for training in trainings:
        curves = xr.open_zarr(training / CURVES, chunks=None, consolidated=False)
        if "test_accuracy" not in curves:
            raise ValueError(f"{training} is not finished; resume with: pathkernel train")
        network = read_paths(training / BEST)
        shape, seed = network.shape, network.about["settings"]["seed"]
        name = f"{shape.layers}-{shape.heads}-{shape.width}-{shape.qk_width}"
        name += f"-seed{seed}" if seed else ""
        about = dict(network.about) | {"test_accuracy": float(curves["test_accuracy"])}
        save_paths(folder / f"{name}.safetensors", replace(network, about=about))
    files = sorted(folder.glob("*.safetensors"))
    lines = [f"{heads_digest(file)}  {file.name}\n" for file in files]
    (folder / DIGESTS).write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    bundle(map(Path, sys.argv[1:]))
