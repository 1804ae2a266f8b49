"""Trainings: interrupted, killed or extended, the same weights; curves; and what is refused."""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("jax", reason="training needs the extra: pip install pathkernel[training]")
pytest.importorskip("optax", reason="training needs the extra: pip install pathkernel[training]")

from pathkernel_core.system import atomic
from pathkernel_core.system.progress import silent
from pathkernel_datasets.errors import StudyError
from pathkernel_one_shot import training, training_run
from pathkernel_one_shot.folder import locked_folder
from pathkernel_one_shot.settings import Training
from pathkernel_one_shot.training_run import DivergedError, TrainingPlan, train
from pathkernel_trained import checkpoint
from pathkernel_trained.checkpoint import read_checkpoint
from pathkernel_trained.network import initial_weights

EPOCHS = 5  # of 8 batches: 66 pairs of 12 characters
SETTINGS = Training(
    *(2, 2, 8, 4, EPOCHS),
    seed=3,
    learning_rate=3e-3,
    batch=8,
    interval=5,
    validate_every=12,
    validation_episodes=20,
)
FILES = ("network.safetensors", "latest.safetensors")


class Killed(BaseException):
    """As little to be caught as a signal."""


def start(folder, data, report=silent, **changes):
    return train(folder, TrainingPlan(replace(SETTINGS, **changes), data), report)


def arrays(folder):
    """All that both files of a training hold, but for the time that it took."""
    actual = {}
    for file in FILES:
        stored = read_checkpoint(folder / file)
        actual |= {f"{file} {name}": array for name, array in stored.weights.items()}
        actual |= {f"{file} {name}": array for name, array in stored.further.items()}
        actual[f"{file} step"] = stored.about["step"]
    del actual["latest.safetensors curve.seconds"]
    return actual


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


@pytest.fixture(scope="module")
def reference(tmp_path_factory, data):
    """A training that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    assert start(folder, data) == 40
    return folder


def test_what_a_training_leaves(reference):
    names = {file.name for file in reference.iterdir() if not file.name.startswith(".")}
    assert names == {"network.safetensors", "latest.safetensors", "curves.zarr"}
    latest = read_checkpoint(reference / "latest.safetensors")
    assert latest.about["step"] == 40
    assert latest.about["epoch"] == 5
    assert latest.about["settings"]["qk_width"] == 4
    assert "jax" in latest.about["package_versions"]
    assert latest.shape == SETTINGS.shape
    first = initial_weights(SETTINGS.shape, 192, 3)
    for name, array in latest.weights.items():
        assert array.dtype == np.float32
        assert not np.array_equal(array, first[name]), f"{name} must be trained"


def test_learning_curves(reference):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = xr.open_zarr(reference / "curves.zarr").load()
    assert dataset["step"].values.tolist() == [5, 10, 12, 15, 20, 24, 25, 30, 35, 36, 40]
    assert dataset["validation_step"].values.tolist() == [12, 24, 36, 40]
    for name, variable in dataset.variables.items():
        assert variable.attrs["long_name"], name
        assert variable.attrs["units"], name
        assert np.isfinite(variable.values).all(), name
    assert (np.diff(dataset["seconds"]) > 0).all()
    accuracy = dataset["validation_accuracy"]
    assert dataset["best_validation_accuracy"] == accuracy.max()
    best = accuracy["validation_step"][int(accuracy.values.argmax())]
    assert dataset["best_step"] == best
    saved = read_checkpoint(reference / "network.safetensors")
    assert saved.about["step"] == best
    assert saved.about["validation_accuracy"] == accuracy.max()
    assert dataset.attrs["qk_width"] == 4


def test_extended_in_pieces_gives_the_same_weights(tmp_path, data, reference):
    folder = tmp_path / "run"
    assert start(folder, data, epochs=1.5) == 12
    assert start(folder, data, epochs=1.5) == 0
    assert start(folder, data, epochs=3) == 12
    assert start(folder, data) == 16
    assert_same(arrays(folder), arrays(reference))


@pytest.mark.parametrize(
    ("module", "function"),
    [(checkpoint.os, "replace"), (checkpoint.os, "fsync"), (atomic, "_exchange")],
)
def test_killed_between_writes_gives_the_same_weights(
    tmp_path, data, reference, monkeypatch, module, function
):
    original, count = getattr(module, function), [0]

    def fail(*arguments, **keywords):
        count[0] += 1
        if count[0] in (1, 2, 4):
            raise Killed
        return original(*arguments, **keywords)

    monkeypatch.setattr(training_run, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(module, function, fail)
    kills = 0
    while True:
        try:
            start(tmp_path / "run", data)
        except Killed:
            kills += 1
        else:
            break
    assert kills == 3
    assert_same(arrays(tmp_path / "run"), arrays(reference))
    written, expected = (
        xr.open_zarr(folder / "curves.zarr").drop_vars("seconds")
        for folder in (tmp_path / "run", reference)
    )
    xr.testing.assert_equal(written, expected)


@pytest.mark.slow
def test_sigkill_loses_nothing_that_is_written(tmp_path, data, reference):
    folder = tmp_path / "run"
    np.savez(tmp_path / "data.npz", data.train, data.validation, data.label_vectors)
    code = (
        "import sys, numpy as np\n"
        "from pathkernel_one_shot import training_run as run\n"
        "from pathkernel_one_shot.data import TrainingData\n"
        "from pathkernel_one_shot.settings import Training\n"
        "run._SAVE_SECONDS = 0.0\n"  # after every interval
        "data = TrainingData(*np.load(sys.argv[2]).values(), {'images': 'made up'})\n"
        f"plan = run.TrainingPlan({replace(SETTINGS, epochs=1e6)}, data)\n"
        "run.train(sys.argv[1], plan)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "data.npz")]
    latest = folder / "latest.safetensors"
    step = 0
    for _ in range(2):
        process = subprocess.Popen(command, env=environment)
        seen = step
        try:
            end = time.monotonic() + 120
            while step < seen + 10 and time.monotonic() < end:
                assert process.poll() is None, "the training ended by itself"
                if latest.exists():
                    step = read_checkpoint(latest).about["step"]  # whole, at any moment
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert step >= seen + 10
    step = read_checkpoint(latest).about["step"]
    epochs = -(-(step + 3) // 8)
    start(folder, data, epochs=epochs)
    expected = tmp_path / "expected"
    start(expected, data, epochs=epochs)
    assert_same(arrays(folder), arrays(expected))


def test_the_same_weights_whatever_precision_jax_has_elsewhere(tmp_path, data, reference):
    import jax

    with jax.enable_x64(not jax.config.jax_enable_x64):
        start(tmp_path / "run", data)
    assert_same(arrays(tmp_path / "run"), arrays(reference))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "seed: the folder has 3, this run 4"),
        ({"width": 9}, "width: the folder has 8, this run 9"),
        ({"batch": 4}, "batch: the folder has 8, this run 4"),
        ({"learning_rate": 0.1}, "learning-rate: the folder has 0.003"),
        ({"epochs": 1}, "a training of 40 steps, more than 8"),
        ({"epochs": 0}, "epochs must be positive and finite, but is 0.0"),
        ({"epochs": np.nan}, "epochs must be positive"),
        ({"layers": 4, "heads": 100}, "100000000 paths, more than the 4096"),
        ({"seed": -1}, "seed must be at least 0, but is -1"),
        ({"batch": 100}, "batch must be between 1 and .*66"),
    ],
)
def test_what_cannot_be_done_is_refused(reference, data, changes, message):
    before = {file: (reference / file).read_bytes() for file in FILES}
    with pytest.raises((StudyError, ValueError), match=message):
        start(reference, data, **changes)
    assert {file: (reference / file).read_bytes() for file in FILES} == before


def test_other_data_are_refused(reference, data):
    with pytest.raises(StudyError, match="data differ"):
        start(reference, replace(data, provenance={"images": "others"}))
    with pytest.raises(StudyError, match="label-vectors differ"):
        start(reference, replace(data, label_vectors=data.label_vectors + 1))


def test_folders_of_something_else_are_refused(tmp_path, data):
    (tmp_path / "letter.txt").write_text("keep me")
    with pytest.raises(StudyError, match=r"holds 'letter.txt' but no training"):
        start(tmp_path, data)
    with pytest.raises(StudyError, match="is no folder"):
        start(tmp_path / "letter.txt", data)
    with pytest.raises(StudyError, match="cannot be made"):
        start(tmp_path / "letter.txt" / "run", data)


def test_a_link_may_lead_to_a_folder_that_is_not_there_yet(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "scratch" / "run")
    with locked_folder(tmp_path / "link"):
        assert (tmp_path / "scratch" / "run").is_dir()


def test_a_network_of_another_training_is_not_replaced(tmp_path, data, reference):
    file = tmp_path / "network.safetensors"
    file.write_bytes(saved := (reference / file.name).read_bytes())
    with pytest.raises(StudyError, match=r"another training.*seed: the folder has 3"):
        start(tmp_path, data, seed=4)
    assert file.read_bytes() == saved
    file.write_bytes(b"no network")
    with pytest.raises(ValueError, match=r"network\.safetensors.*damaged"):
        start(tmp_path, data)
    assert file.read_bytes() == b"no network"


def test_one_process_at_a_time(tmp_path, data):
    refused = []

    def second(progress):
        if progress.done == 6:
            with pytest.raises(StudyError, match=r"another process is writing into .*run"):
                start(tmp_path / "run", data)
            refused.append(progress.done)

    start(tmp_path / "run", data, epochs=1, report=second)
    assert refused == [6]
    assert start(tmp_path / "run", data, epochs=1) == 0


def test_the_test_belongs_to_the_network_that_was_trained(tmp_path, data, monkeypatch):
    """No other process can go on with the training until the test is in the curves."""
    stored = []

    def test(checkpoint, *arguments):
        with pytest.raises(StudyError, match="another process is writing"):
            start(tmp_path / "run", data)
        stored.append(checkpoint.about["step"])
        return 0.75

    monkeypatch.setattr(training, "omniglot_data", lambda: data)
    monkeypatch.setattr(training, "one_shot_accuracy", test)
    trained = training.train_one_shot_images(tmp_path / "run", SETTINGS, epochs=3)
    assert stored == [trained.best_step]
    assert xr.open_zarr(tmp_path / "run" / "curves.zarr")["test_accuracy"] == 0.75
    assert start(tmp_path / "run", data) == 16


def test_weights_that_are_not_finite_are_never_saved(tmp_path, data, monkeypatch):
    """The loss of the step that spoils them is still finite."""
    original = training_run.take_step

    def spoil(state, *arguments, **keywords):
        state, loss = original(state, *arguments, **keywords)
        spoilt = {**state.weights, "readout": state.weights["readout"] * np.nan}
        return state._replace(weights=spoilt), loss

    start(tmp_path / "run", data, epochs=3, interval=1)
    monkeypatch.setattr(training_run, "take_step", spoil)
    monkeypatch.setattr(training_run, "_SAVE_SECONDS", 0.0)
    before = {file: (tmp_path / "run" / file).read_bytes() for file in FILES}
    with pytest.raises(DivergedError, match="after step 25"):
        start(tmp_path / "run", data, interval=1)
    assert {file: (tmp_path / "run" / file).read_bytes() for file in FILES} == before


def test_an_optimiser_stored_in_another_way_is_refused(tmp_path, data):
    start(tmp_path / "run", data, epochs=1)
    latest = tmp_path / "run" / "latest.safetensors"
    stored = read_checkpoint(latest)
    further = {name: array for name, array in stored.further.items() if "count" not in name}
    checkpoint.save_checkpoint(latest, replace(stored, further=further))
    with pytest.raises(StudyError, match=r"count.*stores its state in another way"):
        start(tmp_path / "run", data)


def test_a_training_that_diverges_says_so(tmp_path, data):
    with pytest.raises(DivergedError, match="no longer finite after step"):
        start(tmp_path / "run", data, learning_rate=1e30)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch", 0, "batch must be at least 1"),
        ("interval", 0, "interval must be at least 1"),
        ("validate_every", -1, "validate_every must be at least 1"),
        ("validation_episodes", 3, "validation_episodes must be even"),
        ("learning_rate", 0.0, "learning_rate must be positive"),
        ("learning_rate", np.nan, "learning_rate must be positive"),
        ("weight_decay", -1.0, "weight_decay must be at least 0"),
    ],
)
def test_wrong_settings(name, value, message):
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **{name: value})


def test_data_of_less_than_two_characters(data):
    with pytest.raises(ValueError, match="train must hold 20 drawings of each of at least 2"):
        replace(data, train=data.train[:20])
    with pytest.raises(ValueError, match="validation must hold"):
        replace(data, validation=data.validation[:41])


def test_progress(tmp_path, data):
    seen = []
    start(tmp_path / "run", data, report=seen.append)
    assert (seen[0].done, seen[0].total, seen[0].doing) == (0, 40, "starting")
    steps = [progress.done for progress in seen if progress.doing == "training"]
    assert steps == list(range(1, 41))
    assert seen[-1].numbers["loss"] > 0
    assert 0 <= seen[-1].numbers["accuracy"] <= 1
    assert seen[-1].numbers["steps/s"] > 0


@pytest.mark.parametrize("place", [0.02, 0.5, 0.98])
def test_one_flipped_bit_of_the_values_is_noticed(tmp_path, data, reference, place):
    folder = shutil.copytree(reference, tmp_path / "run")
    file = folder / "latest.safetensors"
    content = bytearray(file.read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")
    content[first + int(place * (len(content) - first))] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"latest\.safetensors' is damaged: its values are not as"):
        start(folder, data, epochs=EPOCHS + 1)
    assert file.read_bytes() == content


def test_a_checkpoint_to_resume_from_must_have_its_checksum(tmp_path, data, reference):
    folder = shutil.copytree(reference, tmp_path / "run")
    file = folder / "latest.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"sha256"', b'"sha255"', 1))
    with pytest.raises(ValueError, match="its values are not as they were written"):
        start(folder, data, epochs=EPOCHS + 1)
