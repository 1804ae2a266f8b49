"""Checkpoints: what is written is read, heads files, damage, and replacement in one stroke."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pathkernel_core import QueryKey
from pathkernel_one_shot.task import OneShotImages
from pathkernel_one_shot.tokens import label_vectors
from pathkernel_tasks.heads_file import read_heads, save_heads
from pathkernel_trained import checkpoint as module
from pathkernel_trained.checkpoint import (
    FORMAT,
    Checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from pathkernel_trained.network import NetworkShape, initial_weights

SHAPE = NetworkShape(2, 3, 10, 4)
ABOUT = {"step": 7, "validation_accuracy": 0.75, "settings": {"seed": 0}}


@pytest.fixture
def checkpoint():
    return Checkpoint(initial_weights(SHAPE, 192, 0), label_vectors(3), ABOUT)


@pytest.fixture
def path(tmp_path, checkpoint):
    path = tmp_path / "network.safetensors"
    save_checkpoint(path, checkpoint)
    return path


def test_parameters_of_torch_are_taken_detached(tmp_path, checkpoint):
    torch = pytest.importorskip("torch")
    parameters = {
        name: torch.nn.Parameter(torch.asarray(array)) for name, array in checkpoint.weights.items()
    }
    save_checkpoint(tmp_path / "own.safetensors", Checkpoint(parameters))
    actual = read_checkpoint(tmp_path / "own.safetensors").weights
    for name, array in checkpoint.weights.items():
        assert np.array_equal(actual[name], array)


def test_a_checkpoint_is_known_as_one(path):
    """What of it is read as heads is no slip, and the rest is not lost."""
    note = "network.safetensors is a checkpoint: compare and prune take its values, too"
    assert read_heads(path).ignored == note


def test_round_trip(tmp_path, checkpoint):
    path = tmp_path / "latest.safetensors"
    further = {"curve.loss": np.arange(3.0), "optimiser.count": np.array(4, dtype=np.int32)}
    save_checkpoint(path, Checkpoint(checkpoint.weights, label_vectors(3), ABOUT, further))
    actual = read_checkpoint(path)
    assert actual.shape == SHAPE
    assert actual.about == ABOUT
    assert actual.weights.keys() == checkpoint.weights.keys()
    for name, array in checkpoint.weights.items():
        assert actual.weights[name].dtype == np.float32
        assert np.array_equal(actual.weights[name], array)
    assert np.array_equal(actual.label_vectors, label_vectors(3))
    assert actual.further.keys() == further.keys()
    assert actual.further["optimiser.count"] == 4
    with safe_open(path, framework="np") as file:
        header = file.metadata()
    assert header["format"] == FORMAT
    assert json.loads(header["about"]) == ABOUT


def test_a_checkpoint_is_a_heads_file(path, checkpoint):
    heads = read_heads(path, 192)
    assert len(heads.layers) == 2
    for layer, (queries, keys) in zip(
        heads.layers, zip(checkpoint.weights["queries"], checkpoint.weights["keys"])
    ):
        assert np.array_equal(layer.queries, queries)
        assert np.array_equal(layer.keys, keys)
        assert layer.scale == 0.5  # 1/√4
    assert np.array_equal(heads.label_vectors, label_vectors(3))
    assert OneShotImages(heads=str(path)).heads == str(path)


def test_a_heads_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "heads.safetensors"
    save_heads(path, [QueryKey(np.ones((1, 2, 192)), np.ones((1, 2, 192)))])
    with pytest.raises(ValueError, match="is no checkpoint of a training"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["projection", "values.1", "queries.2", "scale", "readout"])
def test_missing_arrays(path, name):
    arrays = load_file(path)
    del arrays[name]
    rewrite(path, arrays)
    with pytest.raises(ValueError, match=r"network\.safetensors'.*(lacks|must have shape|damaged)"):
        read_checkpoint(path)


def test_networks_of_tasks_without_label_vectors(tmp_path):
    weights = initial_weights(SHAPE, 5, 0)
    save_checkpoint(tmp_path / "own.safetensors", Checkpoint(weights, scale=0.3))
    actual = read_checkpoint(tmp_path / "own.safetensors")
    assert actual.label_vectors is None
    assert actual.scale == 0.3
    assert read_heads(tmp_path / "own.safetensors").layers[1].scale == 0.3
    assert Checkpoint(weights).scale == pytest.approx(SHAPE.qk_width**-0.5)


def rewrite(path, arrays, about=None):
    about = json.dumps(ABOUT) if about is None else about
    save_file(arrays, path, metadata={"format": FORMAT, "about": about})


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("projection", np.ones((3, 192)), "must have shape"),
        ("readout", np.full(10, np.nan), "'readout' holds NaN"),
        ("labels", np.ones((2, 192)), "'labels' must have shape"),
        ("scale", np.array(-0.7), "'scale' must be positive, such as 1/√G"),
        ("keys.2", np.ones((3, 4, 192), dtype=np.int32), "keys"),
    ],
)
def test_wrong_arrays(path, name, array, message):
    rewrite(path, {**load_file(path), name: array})
    if name == "keys.2":
        rewrite(path, {**load_file(path), "keys.1": array})
    with pytest.raises(ValueError, match=message):
        read_checkpoint(path)


@pytest.mark.parametrize("length", [0, 5, 300, -40])
def test_truncated(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"network\.safetensors' is damaged"):
        read_checkpoint(path)


def test_wrong_paths(tmp_path, checkpoint):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "none.safetensors")
    for use in (read_checkpoint, lambda path: save_checkpoint(path, checkpoint)):
        with pytest.raises(ValueError, match=r"must end in \.safetensors"):
            use(tmp_path / "network.pt")


# -- the order parameter of a checkpoint


@pytest.mark.parametrize("about", ["[" * 100_000, "[]", '"about"', "{"])
def test_what_is_known_is_damaged(tmp_path, about):
    path = tmp_path / "network.safetensors"
    save_file({"scale": np.array(1.0)}, path, metadata={"format": FORMAT, "about": about})
    with pytest.raises(ValueError, match=r"network\.safetensors' is damaged: "):
        read_checkpoint(path)


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """As by a training that runs: the header of one version, the arrays of the next."""
    first, second = (
        Checkpoint(initial_weights(SHAPE, 192, seed), label_vectors(3), {"step": seed})
        for seed in (1, 2)
    )
    file = tmp_path / "latest.safetensors"
    save_checkpoint(file, first)
    read_arrays, calls = module.read_arrays, []

    def replaced(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            save_checkpoint(file, second)
        return read_arrays(*arguments)

    monkeypatch.setattr(module, "read_arrays", replaced)
    network = read_checkpoint(file)
    assert network.about["step"] == 2
    np.testing.assert_array_equal(network.weights["readout"], second.weights["readout"])
    assert len(calls) == 2
