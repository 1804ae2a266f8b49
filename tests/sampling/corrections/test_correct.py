"""Next orders of a study: stored with it, and compared with samples over the width."""

import warnings

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("blackjax")
pytest.importorskip("arviz_stats")

from noisy_task import Noisy
from pickling_workers import Pickling

from pathkernel.main import main
from pathkernel_core import (
    Network,
    Problem,
    accuracy,
    attentioned_inputs,
    minimise_action,
)
from pathkernel_core.contracts.hooks import load_plugins
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_sampling.chains.diagnostics import sampled_log_evidence
from pathkernel_sampling.chains.store import open_run
from pathkernel_sampling.corrections.correct import open_correction
from pathkernel_sampling.corrections.next_order import next_order, predict_next_order
from pathkernel_sampling.draws.charts import finite_width_frame
from pathkernel_sampling.draws.views import Run
from pathkernel_sampling.results import NextOrder, Samples
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_views.chart import Chart, save_charts

TASK = HiddenMarkov(examples=10, test_examples=20)
WIDTHS = (3, 20, 100)
POINT = Point(width=20, temperature=0.01, seed=0)


def train(seed):
    """Attentioned inputs and labels of the training examples."""
    data = TASK.realise(seed)
    return attentioned_inputs(data.train.inputs, data.layers, data.readout), data.train.labels


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("studies") / "study"
    run_study(Study(TASK, WIDTHS), path)
    return path


@pytest.fixture(scope="module")
def corrected(study):
    run_result(NextOrder(widths=(20,)), study)
    return open_correction(StoredStudy(study), POINT).load()


def test_the_store_keeps_what_the_expansion_gives(study, corrected):
    data = TASK.realise(0)
    problem = Problem(*train(0))
    solution = minimise_action(problem, Network(data.heads, 20), 0.01)
    expected = next_order(solution)
    for name in (
        *("order_parameter", "order_parameter_correction", "log_evidence"),
        *("log_evidence_correction", "log_evidence_two_loops"),
    ):
        np.testing.assert_allclose(corrected[name], getattr(expected, name), rtol=1e-10)
        assert corrected[name].attrs["long_name"]
        assert corrected[name].attrs["units"] in ("1", "nat")
    test = data.test_sets["test"]
    new = attentioned_inputs(test.inputs, data.layers, data.readout)
    following = predict_next_order(solution, new, correction=expected)
    for name in ("predictor_mean", "predictor_variance"):
        before = getattr(solution.predict(new), name.removeprefix("predictor_"))
        after = getattr(following, name.removeprefix("predictor_"))
        np.testing.assert_allclose(corrected[name].sel(test_set="test"), before, rtol=1e-10)
        both = (corrected[name] + corrected[f"{name}_correction"]).sel(test_set="test")
        np.testing.assert_allclose(both, after, rtol=1e-10)
        assert abs(after / before - 1).max() > 1e-3
    right = accuracy(following.mean, test.labels)
    assert float((corrected.accuracy + corrected.accuracy_correction).sel(test_set="test")) == right
    assert corrected["path"].values.tolist() == ["1-1", "1-2", "2-1", "2-2"]
    # the saddle is the study's own
    saddle = open_study(study)["order_parameter"].sel(seed=0, temperature=0.01, width=20)
    np.testing.assert_allclose(corrected["order_parameter"], saddle, rtol=1e-6, atol=1e-8)


def test_plain_xarray_opens_corrections_without_warnings(study, corrected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = study / "corrections.zarr"
        tree = xr.open_datatree(file, engine="zarr", chunks=None).load()
    xr.testing.assert_equal(tree[str(POINT)].to_dataset(), corrected)


@pytest.mark.slow
def test_the_predictor_of_targets_is_measured_as_the_study_measures_it(tmp_path, are_documented):
    path = tmp_path / "noisy"
    run_study(Study(Noisy(), [50], [1.0], (1,)), path)
    plugins = load_plugins()
    plugins.tasks[Noisy.name] = Noisy
    study = run_result(NextOrder(widths=(50,), temperature=1.0), path, plugins=plugins)
    point, dataset = Point(50, 1.0, 1), open_study(path)
    correction = open_correction(StoredStudy(path), point).load()
    theory = dataset.sel(width=50, temperature=1.0, seed=1).load()
    for name in ("predictor_mean", "predictor_variance", "r_squared", "mean_squared_error"):
        assert np.allclose(correction[name], theory[name], rtol=1e-8, equal_nan=True)
        assert np.any(correction[f"{name}_correction"] != 0)
    mean = correction["predictor_mean"] + correction["predictor_mean_correction"]
    error = ((mean - theory["test_label"]) ** 2).mean("example")
    found = correction["mean_squared_error"] + correction["mean_squared_error_correction"]
    assert np.allclose(found, error.transpose("test_set"))
    assert "accuracy" not in correction
    tables = list(NextOrder().views(study))
    assert "R²" in tables[2].headings
    points, entries, scores = (table.as_json("corrections") for table in tables)
    assert are_documented([points, entries, scores])
    (row,) = points["rows"]
    assert (row["width"], row["seed"]) == (50, 1)
    sums = correction["log_evidence"] + correction["log_evidence_correction"]
    assert row["log_evidence_next"] == float(sums)
    first = {"width": 50, "temperature": 1, "seed": 1, "entry": "1, 1"}.items()
    assert first <= entries["rows"][0].items()
    assert entries["rows"][0]["saddle"] == float(correction["order_parameter"][0, 0])
    assert [row["r_squared"] for row in scores["rows"]] == correction["r_squared"].values.tolist()


def test_it_is_computed_once_and_leaves_the_study_alone(study, corrected, monkeypatch):
    before = open_study(study).load()
    monkeypatch.setattr(
        "pathkernel_sampling.corrections.correct.next_order", None
    )  # would fail if called
    run_result(NextOrder(widths=(20,)), study)
    xr.testing.assert_identical(open_correction(StoredStudy(study), POINT), corrected)
    xr.testing.assert_identical(open_study(study).load(), before)
    assert open_correction(StoredStudy(study), Point(100, 0.01, 0)) is None


def test_what_cannot_be_expanded_is_refused_and_leaves_nothing(study):
    with pytest.raises(ValueError, match="width N_1 = 3 is smaller than the size 4"):
        run_result(NextOrder(widths=(3,)), study)
    with pytest.raises(StudyError, match="no width 7; it has 3, 20, 100"):
        run_result(NextOrder(widths=(7,)), study)
    assert open_correction(StoredStudy(study), Point(3, 0.01, 0)) is None
    names = {file.name for file in study.iterdir() if not file.name.startswith(".")}
    assert names <= {"study.json", "study.zarr", "corrections.zarr"}


def test_the_command_prints_what_it_keeps(study, corrected, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["correct", str(study), "--widths", "20,100"])
    out, err = capsys.readouterr()
    assert exit_.value.code == 0, err
    assert err == ""
    line, of_predictor = (line for line in out.splitlines() if line.split()[:1] == ["20"])
    assert line.split()[3:5] == [
        format(float(corrected["log_evidence"]), ".3f"),
        format(float(corrected["log_evidence_correction"]), "+.3f"),
    ]
    variance = corrected["predictor_variance"], corrected["predictor_variance_correction"]
    spreads = np.sqrt(variance[0].mean()), np.sqrt(sum(variance).mean())
    assert of_predictor.split()[-2:] == [format(float(spread), ".4g") for spread in spreads]
    assert open_correction(StoredStudy(study), Point(100, 0.01, 0)) is not None


def test_workers_give_the_same(study, corrected, tmp_path):
    path = tmp_path / "study"
    run_study(Study(TASK, WIDTHS), path)
    with Pickling(1) as executor:
        run_result(NextOrder(widths=(20,)), path, executor=executor)
    xr.testing.assert_identical(open_correction(StoredStudy(path), POINT).load(), corrected)


@pytest.mark.slow
def test_samples_and_next_order_meet_over_the_width(study, corrected, tmp_path):
    run_result(Samples(widths=(3, 20), draws=1500, chains=2, warm_up=200), study)
    stored = StoredStudy(study)
    groups = [f"samples/order-parameter/seed-0_T-0.01_N-{width}" for width in (3, 20)]
    frame = finite_width_frame([Run(stored, group) for group in groups])
    found = frame.pivot(index=["quantity", "width"], columns="network", values="value")
    saddle, following, sampled = found[["theory (saddle)", "next order in 1/N", "sampled"]].T.values
    at = {key: place for place, key in enumerate(found.index)}
    assert np.isnan(following[[width == 3 for _, width in at]]).all(), "singular: no expansion"
    assert np.isfinite(saddle[at["distance of U", 3]])
    run = open_run(stored, groups[1])
    place = at["distance of ln p(Y)", 20]
    assert sampled[place] == sampled_log_evidence(run)[1]
    # at N = 20 the next order is closer to the exact values than the saddle, and agrees with them
    assert following[place] < 4 * sampled[place] + 0.03 * saddle[place]
    place = at["distance of U", 20]
    assert saddle[place] > 2 * sampled[place]
    assert following[place] < 0.5 * saddle[place]
    charts = [view for view in Samples().views(stored) if isinstance(view, Chart)]
    (chart,) = (chart for chart in charts if chart.name == "finite_width")
    assert save_charts([chart], tmp_path, formats=("svg",)) == [tmp_path / "finite_width.svg"]
