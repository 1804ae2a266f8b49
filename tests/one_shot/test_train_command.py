"""The command ``pathkernel train``, its presets, and one training on real images."""

import functools
import os

import numpy as np
import pytest

from pathkernel.main import main
from pathkernel_core.contracts.hooks import UnknownNameError
from pathkernel_one_shot.settings import PRESETS, Training, preset
from pathkernel_trained.network import NetworkShape
from without_jax import without_jax

NEEDS_EXTRA = "training needs the extra: pip install pathkernel[training]"
TINY = ("--layers", "1", "--heads", "2", "--width", "8", "--qk-width", "4", "--epochs", "0.2")
needs_data = pytest.mark.skipif(
    not os.environ.get("PATHKERNEL_DATA"),
    reason="set PATHKERNEL_DATA to a folder that holds the image archives",
)


def outcome(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["train", "one-shot-images", *arguments])
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


def test_presets():
    assert preset("2-4-512-128") == Training()
    assert preset("3-3-512-170").weight_decay == 0.0, "it would never begin to learn"
    assert preset("small").shape == NetworkShape(2, 4, 128, 32)
    assert preset("small").epochs == 4
    for name, chosen in PRESETS.items():
        assert name == "small" or chosen.folder == f"one-shot-images-{name}"
    with pytest.raises(UnknownNameError, match=r"no preset named 'smal'\. Did you mean 'small'"):
        preset("smal")


def test_help_needs_no_jax():
    completed = without_jax("train", "one-shot-images", "--help")
    assert completed.returncode == 0, completed.stderr
    for words in ("--preset", "--qk-width", "2-4-512-128", "small"):
        assert words in completed.stdout
    assert "train " in without_jax("--help").stdout


def test_without_jax_the_command_says_what_to_install(tmp_path):
    completed = without_jax("train", "one-shot-images", "--out", str(tmp_path / "run"))
    assert completed.returncode == 1
    assert 'pip install "pathkernel[training]"' in completed.stderr
    assert "training needs jax" in completed.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--preset", "smal"), "Did you mean 'small'"),
        (("--heads", "0"), "'--heads': heads must be at least 1, but is 0"),
        (("--epochs", "0"), "'--epochs': epochs must be positive and finite, but is 0.0"),
        (("--test-episodes", "7"), "test_episodes must be even and at least 2, but is 7"),
        (("--layers", "4", "--heads", "100"), "100000000 paths, more than the 4096"),
    ],
)
def test_wrong_options(capsys, options, message):
    pytest.importorskip("optax", reason=NEEDS_EXTRA)
    code, _, err = outcome(capsys, *options)
    assert code in (1, 2)
    assert message in err


def test_unknown_training_gets_a_suggestion(capsys):
    with pytest.raises(SystemExit):
        main(["train", "one-shot-image"])
    assert "Did you mean 'one-shot-images'" in capsys.readouterr().err


def made_up(monkeypatch, data):
    pytest.importorskip("optax", reason=NEEDS_EXTRA)
    monkeypatch.setattr("pathkernel_one_shot.training.omniglot_data", lambda: data)
    return ("--layers", "1", "--heads", "1", "--width", "4", "--qk-width", "2", "--epochs", "1")


def test_ctrl_c_says_what_is_saved(capsys, data, monkeypatch, tmp_path):
    from dataclasses import replace

    # more drawings, so that an epoch has batches of 128
    larger = replace(data, train=np.tile(data.train, (3, 1, 1)))
    options = (*made_up(monkeypatch, larger), "--out", str(tmp_path / "run"))

    steps = [0]
    from pathkernel_one_shot import training_run

    original = training_run.take_step

    def interrupted(*arguments, **keywords):
        steps[0] += 1
        if steps[0] == stop:
            raise KeyboardInterrupt
        return original(*arguments, **keywords)

    monkeypatch.setattr(training_run, "take_step", interrupted)
    stop = 2
    code, out, err = outcome(capsys, *options)
    assert (code, out) == (130, "")
    assert "Interrupted. No checkpoint was saved yet; run the same command again" in err
    monkeypatch.setattr(training_run, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(
        training_run, "_next", lambda step, every: step + 1
    )  # a checkpoint at each step
    steps[0], stop = 0, 3
    code, out, err = outcome(capsys, *options)
    assert code == 130
    assert f"Step 2 of the training is saved in {tmp_path / 'run'}; run the same" in err


@pytest.mark.data
@needs_data
def test_the_command_trains_and_resumes(capsys, monkeypatch, tmp_path):
    pytest.importorskip("optax", reason=NEEDS_EXTRA)
    import xarray as xr

    from pathkernel_one_shot import data, training
    from pathkernel_tasks.heads_file import read_heads
    from pathkernel_trained.checkpoint import read_checkpoint

    monkeypatch.chdir(tmp_path)
    original = data.split_characters
    # all 24,000 drawings, and those of the other splits, take seconds
    monkeypatch.setattr(data, "split_characters", lambda split: original(split)[::10])
    read_once = functools.cache(training.omniglot_data)
    monkeypatch.setattr(training, "omniglot_data", read_once)
    folder = tmp_path / "one-shot-images-1-2-8-4"
    for again in (False, True):
        code, out, err = outcome(capsys, *TINY, "--test-episodes", "200")
        assert code == 0, err
        assert err == "", "stderr is no terminal: no progress belongs there"
        assert out.splitlines()[-1] == f"Results: {folder}"
        assert ("already complete" in out) == again
        assert "8 steps" in out
        assert "Test accuracy: " in out
    checkpoint = read_checkpoint(folder / "network.safetensors")
    accuracy = float(xr.open_zarr(folder / "curves.zarr", chunks=None)["test_accuracy"])
    assert training.one_shot_accuracy(checkpoint, "test", 200, seed=0) == accuracy
    assert 0.3 < accuracy < 0.7, "eight steps teach nothing"
    assert len(read_heads(folder / "network.safetensors", 192).layers) == 1
    for wrong in ({"split": "tset"}, {"episodes": 3}):
        with pytest.raises(ValueError, match=r"split must be one of|episodes must be even"):
            training.one_shot_accuracy(checkpoint, **wrong)


@pytest.mark.slow
@pytest.mark.data
@needs_data
def test_the_small_network_learns(tmp_path):
    """Half an epoch, well before the preset's end, already generalises to unseen characters."""
    pytest.importorskip("optax", reason=NEEDS_EXTRA)
    from pathkernel_one_shot.training import train_one_shot_images

    trained = train_one_shot_images(tmp_path / "run", "small", epochs=0.5)
    assert trained.steps == 2062
    assert trained.test_accuracy > 0.58
    assert trained.validation_accuracy > 0.58
