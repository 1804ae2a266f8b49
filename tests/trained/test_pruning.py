"""Studies of real images: heads compared and removed, and the command that does it."""

import io
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from computed import opened, prune
from test_theory_scores import write_draws

from pathkernel.main import main
from pathkernel_analyses.heads import HeadScores
from pathkernel_core import Network, head_scores
from pathkernel_core.paths.heads import every_head, kept_heads
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_one_shot.held_out import TEST_SETS, VALIDATION, episode_set
from pathkernel_one_shot.task import OneShotImages
from pathkernel_one_shot.tokens import label_vectors
from pathkernel_pruning.heads.heads import removal_order
from pathkernel_pruning.heads.orders import removed_heads
from pathkernel_pruning.heads.score_table import score_name
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from pathkernel_trained.evaluator import path_outputs
from pathkernel_trained.network import NetworkShape, initial_weights
from pathkernel_trained.path_network import along_paths, without_heads
from pathkernel_trained.pruning import order_named
from pathkernel_trained.pruning_views import pruning_views
from pathkernel_trained.scores import NEEDS
from pathkernel_trained.study_checkpoint import study_checkpoint
from pathkernel_trained.theory_drops import PREDICTIONS
from pathkernel_trained.theory_scores import theory_scores
from pathkernel_views.chart import Chart

HEADS = (2, 3)
EPISODES = 40


def needs_data(test):
    """Mark a test that reads the real archives; it is skipped where there is no mirror."""
    skip = pytest.mark.skipif(
        not os.environ.get("PATHKERNEL_DATA"),
        reason="set PATHKERNEL_DATA to a folder that holds the image archives",
    )
    return pytest.mark.data(skip(test))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study with the heads of an untrained network of 2 and 3 heads."""
    folder = tmp_path_factory.mktemp("pruning")
    weights = initial_weights(NetworkShape(2, 3, 8, 4), 192, 0)
    weights["queries"] = 3 * weights["queries"]  # attention that tells tokens apart
    unpruned = Checkpoint(weights, label_vectors(5), {"step": 1})
    save_checkpoint(folder / "network.safetensors", without_heads(unpruned, [(1, 2)]))
    folder_before = os.getcwd()
    os.chdir(folder)
    try:
        task = OneShotImages(heads="network.safetensors", examples=20, test_examples=10)
        grid = ((10, 40), (0.1, 0.5), (0, 1))
        run_study(Study(task, *grid), folder / "study", analyses=[HeadScores()])
    finally:
        os.chdir(folder_before)
    return folder / "study"


@pytest.fixture(scope="module")
def result(study):
    return prune(study, episodes=EPISODES, sets=9, random=5, resamples=20)


def scores_of(result, name):
    table = result["score"].sel(order=name, draw=1).values.ravel()
    return table[~np.isnan(table)]


@needs_data
def test_orders_and_labels(study, result):
    names = [str(name) for name in result["order"].values]
    assert names[0].startswith("theory N=")
    assert "theory N=10" in names
    network_scores = ["trained", "gradient", "raw-gradient", "magnitude"]
    network_scores += ["curvature", "renewed-curvature", "ablation", "shapley"]
    joint = ["greedy", "best-of 9", "random"]
    assert names[-14:] == [*PREDICTIONS, *network_scores, *joint]
    assert {*map(score_name, names)} == {*NEEDS, "random"} - {"sampled"}
    assert result["test_set"].values.tolist() == list(TEST_SETS)
    assert result.sizes["removed"] == 4
    assert result.sizes["episode"] == EPISODES
    for name in (*result.data_vars, *result.coords):
        assert result[name].attrs["long_name"], name
    dataset = open_study(study)
    for column, name in enumerate(name for name in names if name.startswith("theory")):
        width, temperature = (
            float(result[f"order_{coordinate}"].values[column])
            for coordinate in ("width", "temperature")
        )
        assert name == f"theory N={width:g}"
        errors = dataset["leave_one_out_squared_error"].sel(width=width).sum("seed")
        assert temperature == float(errors["temperature"][errors.values.argmin()])
        expected = theory_scores(dataset, Point(width, temperature, 0))
        np.testing.assert_allclose(scores_of(result, name), expected)
    for name in names[:-2]:
        order = removal_order(scores_of(result, name), HEADS)
        assert removed_heads(result, name) == [every_head(HEADS)[head] for head in order]
    assert order_named(names, "theory") == names[0]
    with pytest.raises(ValueError, match=r"no order 'sampled', only .*draw samples with"):
        order_named(names, "sampled")
    # scores at every point agree with themselves
    first = {name: float(result[f"order_{name}"][0]) for name in ("width", "temperature")}
    assert float(result["theory_agreement"].sel(first)) == pytest.approx(1)


@needs_data
def test_it_is_stored_and_the_study_is_left_alone(study, result, monkeypatch):
    before = open_study(study).load()
    stored = opened(study, "pruning")
    xr.testing.assert_identical(stored.load(), result)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = xr.open_zarr(study / "pruning.zarr", chunks=None).load()
        xr.open_datatree(study / "pruning.zarr", engine="zarr", chunks=None)
    xr.testing.assert_equal(plain, result)
    # again, for other widths: the path outputs are found in the store
    monkeypatch.setattr("pathkernel_one_shot.task.episode_set", None)  # would fail if called
    repeated = prune(study, widths=(40,), episodes=EPISODES, sets=9, random=5, resamples=20)
    assert str(repeated["order"].values[0]) == "theory N=40"
    xr.testing.assert_identical(repeated["path_output"], result["path_output"])
    xr.testing.assert_identical(repeated["measured"][:, -2], result["measured"][:, -2])
    xr.testing.assert_identical(opened(study, "pruning").load(), repeated)
    xr.testing.assert_identical(open_study(study).load(), before)
    visible = {file.name for file in study.parent.iterdir() if not file.name.startswith(".")}
    assert visible == {"network.safetensors", study.name}


@needs_data
def test_orders_are_measured_with_refitted_gains_too(study, result):
    actual = prune(study, refit=True, episodes=EPISODES, sets=9, random=5, resamples=20)
    names = [str(name) for name in result["order"].values]
    again = [f"{name} refitted" for name in names[:-1]]
    assert actual["order"].values.tolist() == [*names[:-1], *again, "random"]
    # intervals are ends of a matrix product over all orders, which rounds by its number of rows
    interval = "difference_interval"
    before, after = result, actual.sel(order=names)
    xr.testing.assert_identical(after.drop_vars(interval), before.drop_vars(interval))
    xr.testing.assert_allclose(after[interval], before[interval], rtol=0, atol=1e-13)
    plain, refitted = result.sel(order=names[:-1]), actual.sel(order=again)
    assert set(refitted["needs"].values) == {"examples"}
    for name in ("is_removed", "order_width"):
        np.testing.assert_array_equal(refitted[name], plain[name])


@needs_data
def test_draws_of_the_study_are_scored(study, tmp_path):
    """Found without being named, at the temperature at which they are drawn by default."""
    copy = shutil.copytree(study, tmp_path / study.name)
    shutil.copy(study.with_name("network.safetensors"), tmp_path)
    network, generator = Network(HEADS, 10), np.random.default_rng(0)
    point = Point.find(open_study(study), 40, None, None)
    factors = generator.normal(size=(4, 20, 6, 8))
    draws = factors @ factors.swapaxes(-1, -2)
    write_draws(copy, "order-parameter", point, draws, network)
    actual = prune(copy, order="sampled", episodes=EPISODES, random=2, resamples=5)
    names = [str(name) for name in actual["order"].values]
    assert {"theory N=10", "theory N=40", "sampled N=40"} <= set(names)
    assert order_named(names, "sampled") == "sampled N=40"
    part = actual.sel(order="sampled N=40", draw=1)
    assert (float(part["order_width"]), float(part["order_temperature"])) == (40, point.temperature)
    expected = head_scores(network, draws.mean(axis=(0, 1)))
    np.testing.assert_allclose(scores_of(actual, "sampled N=40"), expected)
    assert (part["score_error"].notnull() == part["score"].notnull()).all()
    assert (part["score_error"] > 0).any()
    remaining = actual["score_error"].drop_sel(order=["sampled N=40", "ablation"])
    assert remaining.isnull().all()

    charts = {view.name: view for view in pruning_views(actual) if isinstance(view, Chart)}
    drawn = charts["scores"].draw()
    bars = pd.read_csv(io.StringIO(drawn.data.values)).set_index("order")
    temperature = f", T = {point.temperature:g}"
    assert {f"theory N=40{temperature}", f"sampled N=40{temperature}", "trained"} <= {*bars.index}
    sampled = bars.loc[f"sampled N=40{temperature}"]
    np.testing.assert_allclose(sampled["score"], expected, rtol=1e-4)
    errors = part["score_error"].values
    np.testing.assert_allclose(
        (sampled["high"] - sampled["low"]) / 2, errors[~np.isnan(errors)], atol=1e-4
    )


@needs_data
def test_an_order_that_is_missing_is_missed_before_the_work(study):
    reports = []
    with pytest.raises(ValueError, match="there is no order 'sampled', only theory N="):
        prune(study, order="sampled", episodes=EPISODES + 2, report=reports.append)
    assert reports == []


@needs_data
def test_other_episodes_are_computed_anew(study, result):
    reports = []
    second = prune(
        study, seed=1, episodes=EPISODES + 4, random=2, resamples=5, report=reports.append
    )
    assert second.sizes["episode"] == EPISODES + 4
    assert not np.array_equal(second["path_output"][:, :EPISODES], result["path_output"])
    assert reports[-1].done == reports[-1].total == 4 * (EPISODES + 4)
    assert [p.done for p in reports] == sorted(p.done for p in reports)
    assert json.loads(second.attrs["settings"])["seed"] == 1


@needs_data
def test_validation_characters_score_and_test_characters_do_not(study, result):
    """The scores that need episodes are those of the validation set."""
    _, unpruned = study_checkpoint(StoredStudy(study))
    drawn = episode_set(VALIDATION, EPISODES, unpruned.label_vectors, 0)
    outputs = path_outputs(unpruned, drawn.batches())
    for column, (layer, head) in enumerate(every_head(HEADS)):
        right = outputs.correct(np.stack([np.ones(5, bool), np.arange(5) != column])).mean(axis=1)
        actual = result["score"].sel(order="ablation", head=f"{layer}-{head}", draw=1)
        assert float(actual) == pytest.approx(right[0] - right[1])
        parts = outputs.values[:, outputs.through[:, column]].sum(axis=1) / np.sqrt(6)
        expected = np.mean(abs(2 * (outputs.output() - outputs.labels) * parts))
        actual = result["score"].sel(order="raw-gradient", head=f"{layer}-{head}", draw=1)
        assert float(actual) == pytest.approx(expected)


@needs_data
def test_episodes_are_balanced_and_each_set_has_its_own():
    vectors = label_vectors(0)
    drawn = {name: episode_set(name, 300, vectors, 0) for name in (VALIDATION, "omniglot", "mnist")}
    for name, episodes in drawn.items():
        batches = list(episodes.batches())
        assert [part.inputs.shape for part in batches] == [(250, 48, 192), (50, 48, 192)]
        assert sum(part.labels.sum() for part in batches) == 0
        repeated = next(episode_set(name, 300, vectors, 0).batches())
        np.testing.assert_array_equal(batches[0].inputs, repeated.inputs)
        second = next(episode_set(name, 300, vectors, 1).batches())
        assert not np.array_equal(batches[0].inputs, second.inputs)
    with pytest.raises(ValueError, match="episodes must be even and at least 2, but is 7"):
        episode_set("mnist", 7, vectors)
    with pytest.raises(ValueError, match="name must be one of omniglot validation, omniglot"):
        episode_set("cifar", 10, vectors)


@pytest.fixture
def invoke(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(["prune", *map(str, arguments)])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


@needs_data
def test_the_command(study, invoke, tmp_path):
    out = tmp_path / "pruned.safetensors"
    status, text, err = invoke(
        study, "--episodes", EPISODES, "--widths", "40", "--remove", "2", "--out", out
    )
    assert status == 0, err
    result = opened(study, "pruning")
    unpruned = result.squeeze().isel(order=0, removed=0)
    poor = (
        result["test_set"]
        .values[unpruned["measured"] < 0.5 + 3 * unpruned["measured_error"]]
        .tolist()
    )
    assert poor, "the network is not trained"
    # stderr is no terminal: no progress belongs there
    assert err == ""
    assert text.count("Warning") == 1
    warned, _, _ = text.partition("there.")
    assert "no better than chance" in warned
    assert [name for name in TEST_SETS if f"{name} (" in warned] == poor
    assert result.sizes["random_order"] == 200
    folder = next(study.parent.rglob("scores.png")).parent
    names = {
        f"{name}.{kind}"
        for name in ("scores", "removed", "single_heads", "theory_grid")
        for kind in ("png", "svg", "txt")
    }
    assert {file.name for file in folder.iterdir()} == names
    assert "Accuracy on omniglot in every order of removal" in text
    assert f"more tables: pathkernel show {study} --only pruning --all\n" in text
    accuracy = result["measured"].sel(order="trained", removed=1, test_set="omniglot").item()
    assert any(
        row.split()[1:2] == [f"{accuracy:.3f}"] for row in text.splitlines() if "trained " in row
    )
    assert len(text.splitlines()) <= 40, "one screen"
    removed = removed_heads(result, "theory N=40")[:2]
    pruned = read_checkpoint(out)
    assert pruned.about["removed_heads"] == [list(head) for head in removed]
    left = tuple(len(layer) for layer in kept_heads(HEADS, removed))
    assert pruned.shape.heads_per_layer == left
    unpruned = 8 * 192 + 8 + 5 * (64 + 2 * 4 * 192)
    assert f"Parameters: {unpruned:,} before, {unpruned - 2 * 1600:,} now" in text
    assert f"Pruned network: {out}" in text
    # the theory takes it as a file of heads
    task = OneShotImages(heads=str(out), examples=4, test_examples=2)
    assert task.realise(0).heads == left


@needs_data
def test_the_command_writes_refitted_gains(study, invoke, tmp_path):
    """The written network has the accuracies of its order with refitted gains."""
    out = tmp_path / "pruned.safetensors"
    status, text, err = invoke(
        *(study, "--episodes", EPISODES, "--widths", "40", "--random", 2, "--resamples", 5),
        *("--refit", "--order", "renewed-curvature", "--remove", "2", "--out", out),
    )
    assert status == 0, err
    result = opened(study, "pruning")
    heads = removed_heads(result, "renewed-curvature", 2)
    labels = ", ".join(f"{layer}-{head}" for layer, head in heads)
    assert f"Heads removed by renewed-curvature refitted: {labels};" in text
    pruned = read_checkpoint(out)
    assert pruned.about["removed_heads"] == [list(head) for head in heads]
    assert sum(map(len, pruned.about["gains"])) == 3
    _, unpruned = study_checkpoint(StoredStudy(study))
    differ = 0
    for name in TEST_SETS:
        drawn = episode_set(name, EPISODES, unpruned.label_vectors, 0)
        outputs = path_outputs(along_paths(pruned), drawn.batches())
        accuracy = np.mean(outputs.output() * outputs.labels > 0)
        of_set = result.sel(test_set=name, removed=2)["measured"].squeeze()
        assert accuracy == float(of_set.sel(order="renewed-curvature refitted"))
        differ += accuracy != float(of_set.sel(order="renewed-curvature"))
    assert differ, "gains decide no episode, so that this test shows nothing"


@needs_data
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--remove", "1"), "give both or neither"),
        (("--remove", "4", "--out", "pruned.safetensors"), "of 5 heads at most 3 can be removed"),
        (("--remove", "1", "--out", "pruned.npz"), "must end in .safetensors"),
        (("--remove", "1", "--out", "none/pruned.safetensors"), "in a folder that exists"),
        (("--remove", "1", "--out", "network.safetensors"), "is the trained network itself"),
        (("--remove", "1", "--out", "mine.safetensors"), "exists, and is no pruned network"),
        (("--widths", "11"), "no width 11; it has 10, 40"),
        (
            ("--order", "sampled", "--remove", "1", "--out", "pruned.safetensors"),
            "draw samples with: pathkernel sample",
        ),
        (("--episodes", "41"), "episodes must be even"),
        (("--order", "luck"), "order must be one of theory, "),
    ],
)
def test_errors_of_the_command(study, invoke, monkeypatch, arguments, message):
    monkeypatch.chdir(study.parent)
    Path("mine.safetensors").touch()
    status, _, err = invoke(study.name, *arguments)
    assert status != 0
    assert message in err
    assert "unexpected" not in err
    assert not (study.parent / "pruned.safetensors").exists()
