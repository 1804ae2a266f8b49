"""Bundled networks: each is the one that its name says, whole, and found by a study."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pathkernel_core.contracts.hooks import UnknownNameError
from pathkernel_one_shot.task import OneShotImages
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained import bundled
from pathkernel_trained.bundled import bundled_digests, heads_path
from pathkernel_trained.evaluator import path_outputs
from pathkernel_trained.path_network import read_paths

NAMES = tuple(bundled_digests())


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_network_of_its_name(name):
    match = re.fullmatch(r"trained:(\d+)-(\d+)-(\d+)-(\d+)(?:-seed([1-9]\d*))?", name)
    sizes = tuple(map(int, match.groups()[:4]))
    network = read_paths(heads_path(name))
    shape = network.shape
    assert (shape.layers, shape.heads, shape.width, shape.qk_width) == sizes
    assert network.about["settings"]["seed"] == int(match[5] or 0)
    assert network.label_vectors.shape == (3, 192)
    np.testing.assert_array_equal(network.order_parameter, network.order_parameter.T)
    task = OneShotImages(heads=name)
    assert task.provenance()["heads"] == bundled_digests()[name] == heads_digest(heads_path(name))


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("PATHKERNEL_DATA"), reason="reads the image archives")
@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_accurate_as_it_was_trained_to_be(name):
    network = read_paths(heads_path(name))
    episodes = OneShotImages(heads=name).evaluation_sets(0, 300)["omniglot"]
    outputs = path_outputs(network, episodes)
    accuracy = np.mean(outputs.output() * outputs.labels > 0)
    expected = network.about["test_accuracy"]
    assert expected > 0.75
    assert abs(accuracy - expected) < 4 * np.sqrt(expected * (1 - expected) / 300)


def test_a_name_may_come_as_a_path():
    assert heads_path(Path(NAMES[0])) == heads_path(NAMES[0])


def test_an_unknown_name_is_told_those_that_there_are():
    for use in (heads_path, lambda name: OneShotImages(heads=name)):
        with pytest.raises(UnknownNameError, match=r"no bundled network .*trained:2-4-512-128"):
            use("trained:2-4-512")


def test_a_name_without_its_prefix_is_told_it():
    with pytest.raises(
        ValueError, match="no file '2-4-512-128'; trained:2-4-512-128 is a bundled network"
    ):
        OneShotImages(heads="2-4-512-128")


def test_a_file_that_has_changed_is_refused(tmp_path, monkeypatch):
    folder = shutil.copytree(bundled.FOLDER, tmp_path / "networks")
    monkeypatch.setattr(bundled, "FOLDER", folder)
    file = heads_path(NAMES[0])
    assert file.parent == folder
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="missing or damaged; install pathkernel again"):
        heads_path(NAMES[0])
    file.unlink()
    with pytest.raises(ValueError, match="missing or damaged"):
        heads_path(NAMES[0])
