"""Checkpoints: what is written is read, heads files, damage, and replacement in one stroke."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pathkernel_core import QueryKey, order_parameter_from_weights
from pathkernel_datasets.atomic import remove_leftovers
from pathkernel_one_shot.task import OneShotImages
from pathkernel_one_shot.tokens import label_vectors
from pathkernel_tasks.heads_file import read_heads, save_heads
from pathkernel_trained.checkpoint import (
    FORMAT,
    Checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from pathkernel_trained.network import NetworkShape, initial_weights
from pathkernel_trained.path_network import empirical_order_parameter

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
    found = read_checkpoint(tmp_path / "own.safetensors").weights
    for name, array in checkpoint.weights.items():
        assert np.array_equal(found[name], array)


def test_a_checkpoint_is_known_as_one(path):
    """What of it is read as heads is no slip, and the rest is not lost."""
    note = "network.safetensors is a checkpoint: compare and prune take its values, too"
    assert read_heads(path).ignored == note


def test_round_trip(tmp_path, checkpoint):
    path = tmp_path / "latest.safetensors"
    further = {"curve.loss": np.arange(3.0), "optimiser.count": np.array(4, dtype=np.int32)}
    save_checkpoint(path, Checkpoint(checkpoint.weights, label_vectors(3), ABOUT, further))
    found = read_checkpoint(path)
    assert found.shape == SHAPE
    assert found.about == ABOUT
    assert found.weights.keys() == checkpoint.weights.keys()
    for name, array in checkpoint.weights.items():
        assert found.weights[name].dtype == np.float32
        assert np.array_equal(found.weights[name], array)
    assert np.array_equal(found.label_vectors, label_vectors(3))
    assert found.further.keys() == further.keys()
    assert found.further["optimiser.count"] == 4
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
    found = read_checkpoint(tmp_path / "own.safetensors")
    assert found.label_vectors is None
    assert found.scale == 0.3
    assert read_heads(tmp_path / "own.safetensors").layers[1].scale == 0.3
    assert Checkpoint(weights).scale == pytest.approx(SHAPE.qk_width**-0.5)


def rewrite(path, arrays, about=None):
    about = json.dumps(ABOUT) if about is None else about
    save_file(arrays, path, metadata={"format": FORMAT, "about": about})


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("projection", np.ones((3, 192)), "must have shape"),
        ("readout", np.full(10, np.nan), "readout holds NaN"),
        ("labels", np.ones((2, 192)), "labels must have one row"),
        ("scale", np.array(-0.7), "scale must be one positive number, such as 1/√G"),
        ("keys.2", np.ones((3, 4, 192), dtype=np.int32), "keys"),
    ],
)
def test_wrong_arrays(path, name, array, message):
    rewrite(path, {**load_file(path), name: array})
    if name == "keys.2":
        rewrite(path, {**load_file(path), "keys.1": array})
    with pytest.raises(ValueError, match=message):
        read_checkpoint(path)


@pytest.mark.parametrize("keep", [0, 5, 300, -40])
def test_truncated(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"network\.safetensors' is damaged"):
        read_checkpoint(path)


def test_header_that_is_no_json(path):
    rewrite(path, load_file(path), about="{")
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(path)


def test_wrong_paths(tmp_path, checkpoint):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "none.safetensors")
    for use in (read_checkpoint, lambda path: save_checkpoint(path, checkpoint)):
        with pytest.raises(ValueError, match=r"must end in \.safetensors"):
            use(tmp_path / "network.pt")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_older_file(path, checkpoint, monkeypatch, call):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(path, checkpoint)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_a_kill_leaves_is_removed(path):
    (path.parent / ".network.safetensors.a.partial").touch()
    (path.parent / ".pruned.safetensors.a.partial").touch()  # what another command is writing
    remove_leftovers(path)
    names = {file.name for file in path.parent.iterdir()}
    assert names == {path.name, ".pruned.safetensors.a.partial"}


# -- the order parameter of a checkpoint


def test_empirical_order_parameter(path):
    """W of every path as a product, at the theory's scale of the weights."""
    found = empirical_order_parameter(read_checkpoint(path).weights)
    weights = {name: array.astype(float) for name, array in read_checkpoint(path).weights.items()}
    rows = []
    for first in weights["values"][0]:
        for second in weights["values"][1]:
            # theory's weights are √10 times these, with a factor 1/√10 for each layer
            rows.append(np.sqrt(10) * weights["readout"] @ second @ first)
    expected = np.array(rows) @ np.array(rows).T / 10
    assert found.shape == (9, 9)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    values, readout = list(weights["values"]), weights["readout"]
    plain = order_parameter_from_weights(values, readout)
    np.testing.assert_allclose(found, 10**3 * plain, rtol=1e-12)


def test_reading_and_the_order_parameter_need_no_jax(path):
    code = (
        "import sys; sys.modules['jax'] = sys.modules['optax'] = None\n"
        "from pathkernel_trained.checkpoint import read_checkpoint\n"
        "from pathkernel_trained.path_network import empirical_order_parameter\n"
        "print(empirical_order_parameter(read_checkpoint(sys.argv[1]).weights).shape)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(path)]
    assert subprocess.check_output(command, env=environment, text=True).strip() == "(9, 9)"


@pytest.mark.parametrize("about", ["[" * 100_000, "[]", '"about"', "{"])
def test_what_is_known_is_damaged(tmp_path, about):
    path = tmp_path / "network.safetensors"
    save_file({"scale": np.array(1.0)}, path, metadata={"format": FORMAT, "about": about})
    with pytest.raises(ValueError, match=r"network\.safetensors' is damaged: "):
        read_checkpoint(path)


def test_bfloat16(tmp_path, path, checkpoint):
    """As other programs convert checkpoints: the upper halves of float32 numbers."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data, halves = json.loads(content[8 : 8 + length]), content[8 + length :], b""
    for name, entry in sorted(header.items()):
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            array = np.frombuffer(data[first:last], "<f8" if entry["dtype"] == "F64" else "<f4")
            kept = (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
            entry |= {"dtype": "BF16", "data_offsets": [len(halves), len(halves) + len(kept)]}
            halves += kept
    text = json.dumps(header).encode()
    half = tmp_path / "half.safetensors"
    half.write_bytes(len(text).to_bytes(8, "little") + text + halves)
    found = read_checkpoint(half)
    assert found.about == ABOUT
    for name in ("values", "queries", "keys"):
        np.testing.assert_allclose(found.weights[name], checkpoint.weights[name], rtol=2**-7)
