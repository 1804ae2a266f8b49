"""A trained network of the theory's form, on data of one's own, compared and pruned."""

import numpy as np
import pytest
import xarray as xr
from computed import opened, prune
from made_up_networks import by_hand, made_up

from pathkernel.main import main
from pathkernel_core.contracts.task import Examples
from pathkernel_core.paths.heads import every_head
from pathkernel_core.system.progress import silent
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_pruning.heads.orders import removed_heads
from pathkernel_trained.checkpoint import Checkpoint, save_checkpoint
from pathkernel_trained.comparison_store import compare_with_trained
from pathkernel_trained.evaluator import PathOutputs, path_outputs
from pathkernel_trained.path_network import read_paths, save_paths
from pathkernel_trained.pruning import prune_study, write_pruned
from pathkernel_trained.results import Pruning

HEADS = (3, 2)
OF_EPISODES = ("path_output", "episode_label")
SETS = {"inputs": 40, "test_inputs": 60, "test_inputs.shifted": 30}


def invoke(*arguments):
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    return exit_.value.code


@pytest.fixture(scope="module")
def weights():
    return made_up(HEADS, seed=4)


@pytest.fixture(scope="module")
def study(weights, tmp_path_factory):
    """A study of examples that the network itself has labelled."""
    folder = tmp_path_factory.mktemp("own")
    generator = np.random.default_rng(8)
    arrays = {}
    for name, count in SETS.items():
        tokens = generator.normal(size=(count, 4, 5))
        arrays[name] = tokens
        arrays[name.replace("inputs", "labels")] = np.sign(by_hand(weights, tokens)).astype(int)
    np.savez(folder / "data.npz", **arrays)
    save_checkpoint(folder / "network.safetensors", Checkpoint(weights))
    return make_study(folder, "network.safetensors", folder / "own")


def make_study(folder, heads, out):
    files = ("--inputs", folder / "data.npz", "--heads", folder / heads)
    grid = ("--widths", "10,100", "--temperature", ".1,1", "--readout", "mean")
    assert invoke("run", "custom", *files, *grid, "--out", out, "--no-figures") == 0
    return out


def test_it_is_compared(study, capsys):
    assert invoke("compare", study, "--no-figures") == 0
    out = capsys.readouterr().out
    assert "theory against trained (N = 6)" in out
    result = opened(study, "comparison")
    assert result["agreement"].notnull().any()
    assert result["head_score_trained"].notnull().sum() == sum(HEADS)


def test_it_is_pruned_on_its_own_test_sets(study, weights, tmp_path, capsys):
    out_file = tmp_path / "pruned.safetensors"
    options = ("--order", "best-of", "--sets", 6, "--random", 5, "--resamples", 20, "--no-figures")
    assert invoke("prune", study, "--remove", 1, "--out", out_file, *options) == 0
    assert out_file.exists()
    out, err = capsys.readouterr()
    assert err == ""
    assert "Warning" not in out
    assert "Accuracy lost, in points: " in out
    result = opened(study, "pruning")
    removed = read_paths(out_file).about["removed_heads"]
    assert removed == [list(head) for head in removed_heads(result, "best-of 6", 1)]
    training = PathOutputs(
        HEADS, *(result[name].sel(episode_set="training").values[:40] for name in OF_EPISODES)
    )
    losses = -training.correct(~np.eye(5, dtype=bool)).mean(axis=1)
    assert removed_heads(result, "greedy")[0] == every_head(HEADS)[int(np.argmin(losses))]
    assert result["test_set"].values.tolist() == ["test", "shifted"]
    assert result["episode_set"].values.tolist() == ["training", "test", "shifted"]
    counts = result["episode_label"].notnull().sum("episode").values.tolist()
    assert counts == list(SETS.values())
    assert (result["measured"].isel(removed=0) == 1).all(), "the labels are its own"
    with np.load(study.parent / "data.npz") as data:
        tokens, labels = data["test_inputs.shifted"], data["test_labels.shifted"]
    removed = [(1, 2)]
    right = np.sign(by_hand(weights, tokens, removed)) == labels
    lost = result["lost"].sel(test_set="shifted", head="1-2")
    assert lost.item() == pytest.approx(1 - right.mean())


def test_its_paths_serve_as_its_weights_do(study, weights, tmp_path):
    """Theory, comparison and pruning on the network along its paths, also after pruning."""
    save_paths(study.parent / "paths.safetensors", read_paths(study.parent / "network.safetensors"))
    second_study = make_study(study.parent, "paths.safetensors", tmp_path / "paths")
    out = tmp_path / "pruned.safetensors"
    options = Pruning(order="trained", remove=2, out=out, random=5, resamples=20)
    first, second = (
        (stored.dataset, compare_with_trained(stored, None), prune_study(stored, options, silent))
        for stored in map(StoredStudy, (study, second_study))
    )
    for left, right in zip(first, second):
        xr.testing.assert_equal(left, right)
    write_pruned(StoredStudy(second_study), options, second[2])
    left = read_paths(out)
    removed = [tuple(head) for head in left.about["removed_heads"]]
    assert len(removed) == 2
    with np.load(study.parent / "data.npz") as data:
        examples = Examples(data["test_inputs"], data["test_labels"])
    expected = by_hand(weights, examples.inputs, removed)
    result = path_outputs(left, [examples]).output()
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)


def test_outputs_are_found_again(study, monkeypatch):
    first = prune(study, random=5, resamples=20)
    monkeypatch.setattr("pathkernel_tasks.custom.read_data", None)  # would fail if called
    repeated = prune(study, random=5, resamples=20)
    xr.testing.assert_identical(first, repeated)


@pytest.mark.parametrize("smallest", [0.5, 1.0])
def test_targets_are_refused(study, tmp_path, smallest):
    """Also if they are ±1 as classes are."""
    with np.load(study.parent / "data.npz") as data:
        arrays = dict(data)
    for name in arrays:
        if "labels" in name:
            arrays[name] = arrays[name] * np.linspace(smallest, 1.0, len(arrays[name]))
    np.savez(tmp_path / "data.npz", **arrays)
    network = study.parent / "network.safetensors"
    files = ("--inputs", tmp_path / "data.npz", "--heads", network, "--readout", "mean")
    out = tmp_path / "targets"
    assert invoke("run", "custom", *files, "--widths", "10", "--no-figures", "--out", out) == 0
    with pytest.raises(StudyError, match=r"real targets, .* takes classes ±1; .* head_score"):
        prune(out)
