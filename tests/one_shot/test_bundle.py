"""Finished trainings become bundled networks; others are refused."""

import numpy as np
import pytest
import xarray as xr

from pathkernel_one_shot.bundle import bundle
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.checkpoint import Checkpoint, save_checkpoint
from pathkernel_trained.network import NetworkShape, initial_weights
from pathkernel_trained.path_network import along_paths, read_paths


def training(folder, seed, **scalars):
    folder.mkdir()
    weights = initial_weights(NetworkShape(2, 2, 6, 4), 192, seed)
    checkpoint = Checkpoint(weights, np.ones((3, 192)), {"settings": {"seed": seed}})
    save_checkpoint(folder / "network.safetensors", checkpoint)
    xr.Dataset({name: ((), value) for name, value in scalars.items()}).to_zarr(
        folder / "curves.zarr", consolidated=False, zarr_format=3
    )
    return folder


def test_networks_are_named_by_size_and_seed_and_listed_with_their_digests(tmp_path):
    trainings = [training(tmp_path / f"{seed}", seed, test_accuracy=0.75) for seed in (0, 3)]
    out = tmp_path / "bundled"
    out.mkdir()
    bundle(trainings[:1], out)
    bundle(trainings[1:], out)
    files = [out / "2-2-6-4-seed3.safetensors", out / "2-2-6-4.safetensors"]
    lines = (out / "SHA256SUMS").read_text().splitlines()
    assert lines == [f"{heads_digest(file)}  {file.name}" for file in files]
    actual = read_paths(files[0])
    weights = initial_weights(NetworkShape(2, 2, 6, 4), 192, 3)
    expected = along_paths(Checkpoint(weights))
    np.testing.assert_array_equal(actual.path_weights, expected.path_weights)
    assert actual.about == {"settings": {"seed": 3}, "test_accuracy": 0.75}


def test_an_unfinished_training_is_refused(tmp_path):
    with pytest.raises(ValueError, match="0 is not finished; resume with: pathkernel train"):
        bundle([training(tmp_path / "0", 0, best_step=1000)], tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
