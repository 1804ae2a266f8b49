"""A study compared with the network its heads come from: found, checked, kept, printed, drawn."""

import io
import json
import os
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from computed import compare, opened
from safetensors.numpy import load_file, save_file

from pathkernel.main import main
from pathkernel_core import Network, QueryKey
from pathkernel_core.contracts.task import Examples, Realisation
from pathkernel_core.paths.order_parameter import head_scores
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.zarr_files import write_tree
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.result_files import publish_parts, write_part
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_one_shot.task import OneShotImages
from pathkernel_one_shot.tokens import label_vectors
from pathkernel_tasks.custom import Custom
from pathkernel_tasks.heads_file import read_heads, save_heads
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_trained.bundled import bundled_digests, heads_path
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from pathkernel_trained.comparison import compare_order_parameters
from pathkernel_trained.comparison_views import comparison_views, shown_points
from pathkernel_trained.network import NetworkShape, initial_weights
from pathkernel_trained.path_network import empirical_order_parameter
from pathkernel_trained.results import Comparison
from pathkernel_trained.study_checkpoint import study_checkpoint
from pathkernel_views.chart import Chart
from without_jax import without_jax

SHAPE = NetworkShape(2, 3, 8, 4)
NETWORK = Network((3, 3), 8)
FILE = "comparison.zarr"
GRID = {"widths": (100, 10), "temperatures": (0.1, 0.5), "seeds": (3, 4)}

needs_data = pytest.mark.skipif(
    not os.environ.get("PATHKERNEL_DATA"),
    reason="set PATHKERNEL_DATA to a folder that holds the image archives",
)


@dataclass(frozen=True)
class MadeUpImages(OneShotImages):
    """The task with tokens that need no data set."""

    def realise(self, seed):
        generator = np.random.default_rng(seed)
        layers = [
            QueryKey(*generator.standard_normal((2, 3, 4, 192)), 1 / 2) for _ in range(SHAPE.layers)
        ]
        if self.heads != "random":
            layers, _ = self._trained_heads()
        return Realisation(
            layers=layers,
            readout="mean",
            train=Examples(*self._draw(generator, self.examples)),
            test_sets={"made-up": Examples(*self._draw(generator, self.test_examples))},
        )

    @staticmethod
    def _draw(generator, examples):
        return generator.standard_normal((examples, 5, 192)), np.resize([1.0, -1.0], examples)


def save_network(path, seed=0, shape=SHAPE):
    checkpoint = Checkpoint(initial_weights(shape, 192, seed), label_vectors(0), {"step": 7})
    save_checkpoint(path, checkpoint)
    return path


def make_study(path, heads, grid=GRID):
    task = MadeUpImages(heads=heads, examples=12, test_examples=4)
    run_study(Study(task, **grid), path, analyses=())
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder with a network and a study of it, which was moved since the study was made."""
    folder = tmp_path_factory.mktemp("original") / "before"
    folder.mkdir()
    save_network(folder / "network.safetensors")
    before = Path.cwd()
    os.chdir(folder)
    try:
        make_study(folder / "study", "network.safetensors")
    finally:
        os.chdir(before)
    return folder.rename(folder.with_name("after"))


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "copy"))


@pytest.fixture
def study(folder):
    return folder / "study"


@pytest.fixture(scope="module")
def compared(original, tmp_path_factory):
    """A study with its comparison, which tests only read."""
    folder = shutil.copytree(original, tmp_path_factory.mktemp("compared") / "copy")
    compare(folder / "study")
    return Path(folder) / "study"


def invoke(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


# -- what is kept


def test_every_point_of_the_study_is_compared(compared):
    comparison = opened(compared, "comparison")
    network = compared.with_name("network.safetensors")
    trained = empirical_order_parameter(read_checkpoint(network).weights)
    np.testing.assert_array_equal(comparison["order_parameter_trained"], trained)
    assert comparison["order_parameter_trained"].dims == ("path", "path_dual")
    theory = open_study(compared)["order_parameter"]
    assert comparison["agreement"].dims == ("source", "seed", "temperature", "width", "statistic")
    for seed in GRID["seeds"]:
        for temperature in GRID["temperatures"]:
            for width in GRID["widths"]:
                point = {"seed": seed, "temperature": temperature, "width": width}
                expected = compare_order_parameters(NETWORK, theory.sel(point).values, trained)
                part = comparison.sel(point | {"source": "theory"})
                np.testing.assert_allclose(part["agreement"], expected.values, atol=1e-12)
                np.testing.assert_allclose(part["p_value"], expected.p_values, atol=1e-12)
    assert comparison["statistic"].values.tolist() == [s.name for s in expected.statistics]
    assert comparison["meaning"].values.tolist() == [s.long_name for s in expected.statistics]
    np.testing.assert_array_equal(comparison["head_score_trained"], head_scores(NETWORK, trained))
    assert comparison["agreement"].sel(source="sampled").isnull().all()
    assert comparison["order_parameter_sampled"].isnull().all()
    assert comparison.attrs["trained_width"] == 8
    assert (comparison.attrs["relabellings"], comparison.attrs["relabellings_are"]) == (36, "all")
    assert (
        comparison.attrs["checkpoint_sha256"]
        == StoredStudy(compared).identity["provenance"]["heads"]
    )


def test_it_opens_with_plain_xarray_and_explains_itself(compared):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comparison = xr.open_zarr(compared / FILE, chunks=None).load()
        tree = xr.open_datatree(compared / FILE, engine="zarr", chunks=None)
    np.testing.assert_array_equal(tree["agreement"], comparison["agreement"])
    for name, variable in comparison.variables.items():
        assert variable.attrs["long_name"], name
        if name in comparison.data_vars:
            assert variable.attrs["units"] == "1", name
    by_head = comparison["order_parameter_trained"].sel(path=comparison["path_layer_1"] == 2)
    assert by_head["path"].values.tolist() == ["2-1", "2-2", "2-3"]


def change_status(study, points):
    """Say of points that they are not computed."""
    dataset = xr.open_zarr(study / "study.zarr", chunks=None).load()
    dataset["status"].values[points] = 0
    write_tree(study / "study.zarr", dataset)


def test_points_that_are_not_computed_stay_open(study):
    change_status(study, (1, 0, 1))
    comparison = compare(study)["agreement"].sel(source="theory")
    open_points = comparison.isnull().all("statistic").values
    expected = np.zeros((2, 2, 2), dtype=bool)
    expected[1, 0, 1] = True
    np.testing.assert_array_equal(open_points, expected)


def write_draws(study, sampler, count, value):
    """Draws whose mean is known, written as ``pathkernel sample`` does."""
    draws = value + np.linspace(-1, 1, 2 * count).reshape(2, count, 1, 1) * np.ones((9, 9))
    paths = open_study(study)["path"].values
    labels = {"path": paths, "path_dual": paths}
    matrices = xr.DataArray(draws, labels, ("chain", "draw", "path", "path_dual"))
    run = xr.DataTree.from_dict({"posterior": xr.Dataset({"order_parameter": matrices})})
    run.attrs["settings"] = json.dumps({"seed": 4, "temperature": 0.5, "width": 10.0})
    write_part(study, f"samples/{sampler}/{Point(10, 0.5, 4)}", run)
    publish_parts(study, "samples")


def test_draws_of_the_study_are_compared_too(study, folder):
    compare(study)
    generator = np.random.default_rng(0)
    first, second = (np.cov(generator.standard_normal((9, 20))) for _ in range(2))
    write_draws(study, "order-parameter", 3, first)
    write_draws(study, "weights", 7, second)
    comparison = compare(study)
    point = {"seed": 4, "temperature": 0.5, "width": 10}
    np.testing.assert_allclose(comparison["order_parameter_sampled"].sel(point), second)
    assert comparison["order_parameter_sampled"].count() == 81, "nowhere else"
    trained = comparison["order_parameter_trained"].values
    expected = compare_order_parameters(NETWORK, second, trained)
    part = comparison.sel(point | {"source": "sampled"})
    np.testing.assert_allclose(part["agreement"], expected.values, atol=1e-12)
    np.testing.assert_allclose(part["p_value"], expected.p_values, atol=1e-12)


# -- written whole or not at all


def test_comparing_again_replaces_what_is_there(study):
    before = compare(study).load()
    write_draws(study, "weights", 2, np.eye(9))
    after = compare(study).load()
    assert before["order_parameter_sampled"].count() == 0
    assert after["order_parameter_sampled"].count() == 81
    xr.testing.assert_equal(xr.open_zarr(study / FILE, chunks=None).load(), after)


def test_a_comparison_of_a_study_that_has_grown_is_shown_as_it_is(study, folder):
    compare(study)
    before = [views.name for views in Comparison().views(StoredStudy(study))]
    make_study(study, str(folder / "network.safetensors"), GRID | {"widths": (100, 10, 30)})
    *views, sentence = Comparison().views(StoredStudy(study))
    assert [view.name for view in views] == before
    assert views[0].headings[1:] == ["N = 10\nT = 0.5", "N = 100\nT = 0.5"]
    assert "grown since" in sentence
    compare(study)
    assert not any(isinstance(view, str) for view in Comparison().views(StoredStudy(study)))


# -- which checkpoint


def test_the_checkpoint_is_found_from_the_working_directory_or_beside_the_study(
    folder, study, monkeypatch, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert study_checkpoint(StoredStudy(study))[0] == folder / "network.safetensors"
    save_network(elsewhere / "network.safetensors", seed=1)
    assert study_checkpoint(StoredStudy(study))[0] == folder / "network.safetensors", (
        "the other has its name"
    )
    shutil.copy(folder / "network.safetensors", elsewhere)
    renamed = (folder / "network.safetensors").rename(folder / "moved.safetensors")
    assert study_checkpoint(StoredStudy(study))[0] == Path("network.safetensors")
    (elsewhere / "network.safetensors").unlink()
    assert study_checkpoint(StoredStudy(study), renamed)[0] == renamed
    with pytest.raises(FileNotFoundError, match=r"not at .*before.* nor at .*copy.*--checkpoint"):
        study_checkpoint(StoredStudy(study))
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint 'none"):
        study_checkpoint(StoredStudy(study), "none.safetensors")


def test_a_study_of_a_bundled_network_finds_it(tmp_path, monkeypatch):
    name = "trained:2-4-512-128"
    grid = {key: values[:1] for key, values in GRID.items()}
    study = make_study(tmp_path / "study", name, grid)
    monkeypatch.chdir(tmp_path)
    for named in (None, name):
        file, network = study_checkpoint(StoredStudy(study), named)
        assert file == heads_path(name)
    comparison = compare(study)
    np.testing.assert_array_equal(comparison["order_parameter_trained"], network.order_parameter)
    assert comparison.attrs["checkpoint"] == name
    assert comparison.attrs["checkpoint_sha256"] == bundled_digests()[name]
    assert comparison.attrs["trained_step"] == network.about["step"]


def test_another_network_is_refused(study, folder):
    second = save_network(folder / "other.safetensors", seed=1)
    with pytest.raises(StudyError, match=r"not the file of heads.*--checkpoint, or run a study"):
        compare(study, second)
    # the same queries and keys, other values: another moment of the training
    checkpoint = read_checkpoint(folder / "network.safetensors")
    weights = checkpoint.weights | {"values": 2 * checkpoint.weights["values"]}
    save_checkpoint(second, replace(checkpoint, weights=weights))
    with pytest.raises(StudyError, match="not the file of heads"):
        compare(study, second)
    save_network(second, shape=NetworkShape(1, 9, 8, 4))
    with pytest.raises(StudyError, match=r"not the file of heads.*--out NEW"):
        compare(study, second)
    assert not (study / FILE).exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_file_of_heads_alone_is_refused(tmp_path, suffix):
    heads = tmp_path / f"heads{suffix}"
    layers = read_heads(save_network(tmp_path / "network.safetensors"), 192).layers
    save_heads(heads, layers)
    grid = {name: values[:1] for name, values in GRID.items()}
    study = make_study(tmp_path / "study", str(heads), grid)
    with pytest.raises(
        ValueError, match=r"queries and keys only.*as head_score.*pathkernel train one"
    ):
        compare(study)


@pytest.mark.parametrize("missing", ["readout", "values.1"])
def test_a_file_without_readout_or_values_is_refused(study, tmp_path, folder, missing):
    arrays = load_file(folder / "network.safetensors")
    del arrays[missing]
    save_file(arrays, tmp_path / "part.safetensors")
    with pytest.raises(ValueError, match="holds queries and keys only"):
        compare(study, tmp_path / "part.safetensors")


def test_studies_without_a_trained_network_are_refused(tmp_path):
    grid = {name: values[:1] for name, values in GRID.items()}
    study = make_study(tmp_path / "random", "random", grid)
    with pytest.raises(StudyError, match=r"heads of .* are random.*run one-shot-images --heads"):
        compare(study)
    markov = tmp_path / "markov"
    run_study(Study(HiddenMarkov(examples=10, test_examples=10), (10,)), markov, analyses=())
    with pytest.raises(StudyError, match="are made by its task"):
        compare(markov, save_network(tmp_path / "network.safetensors"))
    inputs, labels = np.ones((4, 2, 3)), [0, 1, 0, 1]
    task = Custom.from_arrays(
        inputs,
        labels,
        attention=[np.full((4, 1, 2, 2), 0.5)],
        test_inputs=inputs,
        test_labels=labels,
        test_attention=[np.full((4, 1, 2, 2), 0.5)],
        folder=tmp_path,
    )
    run_study(Study(task, (10,), (1.0,)), tmp_path / "custom", analyses=())
    message = "attention of .* was given as matrices.*in study.zarr, as head_score.*custom --heads"
    with pytest.raises(StudyError, match=message):
        compare(tmp_path / "custom")
    with pytest.raises(StudyError, match="there is no study"):
        compare(tmp_path / "none")


# -- the command


def test_the_table_shows_what_is_kept(study, folder, capsys, monkeypatch, are_documented):
    monkeypatch.chdir(folder)
    status, out, err = invoke(capsys, "compare", study, "--no-figures", "--seed", 4)
    assert (status, err) == (0, "")
    assert str(study) in out.splitlines()[-1]
    assert not list(folder.rglob("*.png"))
    comparison = opened(study, "comparison").sel(source="theory", seed=4)
    error = open_study(study)["leave_one_out_squared_error"].sum("seed")
    table, *_ = Comparison(seed=4).views(StoredStudy(study))
    assert [row[0] for row in table.rows] == comparison["meaning"].values.tolist()
    for column, width in enumerate((10, 100), start=1):
        temperature = float(error.sel(width=width).idxmin("temperature"))
        assert table.headings[column] == f"N = {width}\nT = {temperature:g}"
        part = comparison.sel(width=width, temperature=temperature)
        cells = zip(part["agreement"].values, part["p_value"].values)
        assert [row[column] for row in table.rows] == [f"{a:.2f} ({p:.3f})" for a, p in cells]
        assert all(row[column] in out for row in table.rows)
    assert "sampled" not in out
    assert "all 36" in out
    _, out, err = invoke(capsys, "show", study, "--only", "comparison", "--seed", 4, "--json")
    (table,) = json.loads(out)["tables"]
    assert are_documented([table])
    for row in table["rows"]:
        point = comparison.sel({key: row[key] for key in ("width", "temperature", "statistic")})
        assert row["agreement"] == point["agreement"].item()
        assert row["p_value"] == point["p_value"].item()


def test_one_width_and_temperature(compared):
    table, *_ = Comparison(widths=(10,), temperature=0.1).views(StoredStudy(compared))
    assert table.headings[1:] == ["N = 10\nT = 0.1"]


def test_samples_have_a_table_and_panels(study, folder, capsys):
    write_draws(study, "weights", 5, np.cov(np.random.default_rng(1).standard_normal((9, 20))))
    options = ("--seed", 4, "--temperature", 0.5, "--out", folder / "figures")
    status, out, err = invoke(capsys, "compare", study, *options)
    assert (status, err) == (0, "")
    assert out.index("theory against trained") < out.index("sampled against trained")
    assert f"Figures: {folder / 'figures'}" in out
    names = {file.name for file in (folder / "figures").iterdir()}
    assert names == {
        f"{name}.{kind}"
        for name in ("order_parameters", "entries", "head_scores")
        for kind in ("png", "svg", "txt")
    }
    drawn = (folder / "figures" / "order_parameters.svg").read_text()
    for title in ("theory, N = 10", "theory, N = 100", "sampled, N = 10", "trained, N = 8"):
        assert title in drawn
    assert "sampled, N = 100" not in drawn, "no draws there"


def test_charts_hold_the_strongest_paths(compared, monkeypatch):
    monkeypatch.setattr("pathkernel_views.paths.strongest.__defaults__", (1, 2))
    comparison, dataset = opened(compared, "comparison"), open_study(compared)
    points = shown_points(dataset, (10,), 0.5, 4)
    views = list(comparison_views(dataset, comparison, *points))
    charts = {view.name: view for view in views if isinstance(view, Chart)}
    u = dataset["order_parameter"].sel(seed=4, temperature=0.5, width=10)
    assert "Of 9 paths the 2 strongest are shown." in charts["order_parameters"].caption
    frame = data(charts["order_parameters"]).set_index(["source", "path"])
    assert frame.index.unique("source").tolist() == ["theory, N = 10, T = 0.5", "trained, N = 8"]
    paths = frame.columns.tolist()
    shown = frame.loc["theory, N = 10, T = 0.5"].loc[paths, paths]
    expected = (u / np.abs(u).max()).sel(path=paths, path_dual=paths).transpose("path", "path_dual")
    np.testing.assert_allclose(shown, expected, rtol=1e-4)
    entries = data(charts["entries"])
    assert sorted(entries["path"].dropna()) == sorted(paths), "names on the diagonal"
    assert len(entries) == 3
    bars = data(charts["head_scores"])
    trained = bars[bars["network"] == "trained, N = 8"]["score"]
    scores = comparison["head_score_trained"].values.ravel()
    np.testing.assert_allclose(trained, scores, rtol=1e-4)


def data(chart):
    """What a chart shows, as a frame."""
    return pd.read_csv(io.StringIO(chart.draw().data.values))


def test_figures_need_computed_points(study, capsys):
    change_status(study, ...)
    status, _, err = invoke(capsys, "compare", study)
    assert status == 0
    assert "order_parameters: skipped, the theory is not computed at these widths" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--widths", "20"), "has no width 20; it has 100, 10"),
        (("--temperature", "3"), "has no temperature 3; it has 0.1, 0.5"),
        (("--seed", "9"), "has no seed 9; it has 3, 4"),
        (("--checkpoint", "none.safetensors"), "there is no checkpoint 'none.safetensors'"),
    ],
)
def test_wrong_options_leave_nothing(study, capsys, options, message):
    status, out, err = invoke(capsys, "compare", study, *options)
    assert (status, out) == (1, "")
    assert message in err
    assert not (study / FILE).exists()


def test_comparing_needs_no_jax(study):
    process = without_jax("compare", str(study), "--no-figures")
    assert process.returncode == 0, process.stderr
    assert "theory against trained" in process.stdout
