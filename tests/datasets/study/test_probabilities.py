"""Studies of classes with probabilities: values, measures, resuming, what is refused, views."""

import io
import json
import re

import numpy as np
import pytest
import xarray as xr
from noisy_task import Noisy
from rich.console import Console
from small_task import Small, count_minimisations

import pathkernel_core as pk
from pathkernel_core.contracts.task import Blocks
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain
from pathkernel_datasets.selection.selection import Selection
from pathkernel_datasets.study.identity import identity_of
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.variables.measures import CALIBRATION_BINS, reliability
from pathkernel_phases.results import LearningCurves, Phases
from pathkernel_sampling.results import NextOrder, Samples
from pathkernel_tasks.custom import Custom
from pathkernel_trained.results import Comparison, Pruning
from pathkernel_views.calibration import IDEAL, LIMIT, reliability_frame
from pathkernel_views.chart import Chart
from pathkernel_views.study_views import study_charts, study_views
from pathkernel_views.table import Table

OUTPUTS = {"logistic": 1, "softmax": 3}


def study_of(likelihood, **settings):
    settings = {"widths": (5, 50), "seeds": (0,)} | settings
    return Study(Small(OUTPUTS[likelihood]), likelihood=likelihood, **settings)


@pytest.fixture(scope="module", params=OUTPUTS)
def likelihood(request):
    return request.param


@pytest.fixture(scope="module")
def store(likelihood, tmp_path_factory):
    path = tmp_path_factory.mktemp("probabilities") / likelihood
    run_study(study_of(likelihood), path)
    return path


@pytest.fixture(scope="module")
def dataset(store):
    return open_study(store).load()


def by_hand(likelihood, width):
    """Solution and realisation, from the core alone."""
    drawn = Small(OUTPUTS[likelihood]).realise(0)
    labels = drawn.train.labels
    if likelihood == "softmax":
        labels = (labels + 1) / 2
    xi = pk.attentioned_inputs(drawn.train.inputs, drawn.layers, "mean")
    problem = pk.Problem(xi, labels, likelihood=likelihood)
    network = pk.Network((2, 3), width or 50, 1.3, OUTPUTS[likelihood])
    solve = pk.minimise_action if width else pk.gp_limit
    return solve(problem, network), drawn


@pytest.mark.parametrize("width", [5, 50, None])
def test_probabilities_and_measures_are_those_of_the_theory(dataset, likelihood, width):
    solution, drawn = by_hand(likelihood, width)
    point = dataset.isel(seed=0, temperature=0)
    suffix = "_gp" if width is None else ""
    if width is not None:
        point = point.sel(width=width)
    assert float(point[f"log_evidence{suffix}"]) == pytest.approx(
        solution.log_evidence, nan_ok=True
    )
    for name, examples in drawn.test_sets.items():
        xi = pk.attentioned_inputs(examples.inputs, drawn.layers, "mean")
        prediction = solution.predict(xi)
        p, error = prediction.probabilities, prediction.probability_error
        stored_errors = point[f"probability_error{suffix}"].sel(test_set=name).values
        np.testing.assert_allclose(stored_errors[: len(p)], error, atol=1e-6)
        stored = point[f"probability{suffix}"].sel(test_set=name).values
        np.testing.assert_allclose(stored[: len(p)], p, atol=1e-6)
        assert np.isnan(stored[len(p) :]).all()
        classes = examples.labels.argmax(1) if p.shape[1] == 3 else (examples.labels > 0) * 1
        loss = -np.log(p[np.arange(len(p)), classes]).mean()
        assert float(point[f"log_loss{suffix}"].sel(test_set=name)) == pytest.approx(loss, rel=1e-5)
        confidence, right = p.max(1), p.argmax(1) == classes
        bins = np.floor(confidence * 10)
        error = sum(abs((confidence - right)[bins == b].sum()) for b in range(10)) / len(p)
        stored_error = float(point[f"calibration_error{suffix}"].sel(test_set=name))
        assert stored_error == pytest.approx(error, rel=1e-5)


def test_dataset_names_classes_likelihood_and_bins_and_has_nothing_of_the_squared_loss(
    dataset, likelihood
):
    expected = [-1, 1] if likelihood == "logistic" else [0, 1, 2]
    assert dataset["class"].values.tolist() == expected
    assert dataset.attrs["likelihood"] == likelihood
    assert dataset.attrs["calibration_bins"] == CALIBRATION_BINS == 10
    assert "10 bins" in dataset["calibration_error"].attrs["long_name"]
    assert dataset["temperature"].values.tolist() == [1.0]
    assert not [name for name in dataset if "leave_one_out" in name or "explained" in name]
    assert {"log_loss_sub_network", "skip_score"} & {*dataset} == {"log_loss_sub_network"}
    assert dataset["log_loss_sub_network"].notnull().all()


def test_study_grows_and_resumes_without_computing_again(likelihood, tmp_path, monkeypatch):
    path = tmp_path / "study"
    run_study(study_of(likelihood, widths=(5,)), path)
    first = open_study(path).load()
    minimised = count_minimisations(monkeypatch)
    run_study(study_of(likelihood, widths=(5, 20)), path)
    assert set(np.ravel(minimised)) == {20.0}
    grown = open_study(path).load()
    assert grown.sel(width=[5])["probability"].equals(first["probability"])
    minimised.clear()
    run_study(study_of(likelihood, widths=(5, 20)), path)
    assert not minimised
    with pytest.raises(StudyError, match="likelihood"):
        run_study(Study(Small(OUTPUTS[likelihood]), widths=(5,), temperatures=(1.0,)), path)


@pytest.mark.parametrize("names", [(0, 1, 2), ("cat", "dog", "owl")])
def test_custom_classes_keep_their_names(names, tmp_path):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(24, 3, 4))
    labels = np.array(names)[np.resize(range(3), 24)]
    attention = [rng.dirichlet(np.ones(3), size=(24, 2, 3)).swapaxes(2, 3)]
    settings = {"attention": attention, "test_fraction": 0.5, "folder": tmp_path / "data"}
    task = Custom.from_arrays(inputs, labels, **settings)
    study = Study(task, widths=(20,), likelihood="softmax")
    run_study(study, tmp_path / "study")
    plain = xr.open_zarr(tmp_path / "study" / "study.zarr")
    assert plain["class"].values.tolist() == [str(name) for name in names]
    np.testing.assert_allclose(plain["probability"].sum("class", skipna=False), 1)
    assert plain.attrs["calibration_bins"] == 10


def test_prior_variance_is_swept_with_the_evidence_at_each(tmp_path):
    study = study_of("softmax", widths=(30,), sweep={"variance": (0.3, 3.0)})
    swept = run_study(study, tmp_path / "swept").load()
    assert swept["log_evidence"].dims[0] == "variance"
    assert swept["log_evidence"].notnull().all()
    one = study_of("softmax", widths=(30,), variance=3.0)
    single = run_study(one, tmp_path / "single").load()
    stored = swept["probability"].sel(variance=3.0).values
    np.testing.assert_array_equal(stored, single["probability"].values)


def test_variance_of_largest_evidence_is_chosen_for_each_network(tmp_path):
    values = (0.1, 1.0, 10.0, 100.0)
    study = study_of("softmax", widths=(30,), seeds=(0, 1), sweep={"variance": values})
    dataset = run_study(study, tmp_path / "swept").load()
    tables = [view for view in study_views(dataset) if isinstance(view, Table)]
    (table,) = [view for view in tables if view.name == "variance_choice"]
    for name, evidence in (
        ("N = 30", dataset["log_evidence"].sel(width=30)),
        ("GP limit", dataset["log_evidence_gp"]),
    ):
        totals = evidence.sum("seed").squeeze()
        chosen = float(totals.idxmax("variance"))
        rows = table.frame[table.frame["network"] == name]
        assert set(rows["variance"]) == {chosen}
        assert rows["log_evidence"].tolist() == pytest.approx([float(totals.max())] * len(rows))
        at_end = chosen in (values[0], values[-1])
        assert (name in table.caption.partition("curve.")[2]) == at_end
        scores = rows.set_index("test_set")["log_loss_median"]
        suffix, at = ("_gp", {}) if name == "GP limit" else ("", {"width": int(name[4:])})
        for test_set, score in scores.items():
            stored = dataset[f"log_loss{suffix}"].sel(variance=chosen, test_set=test_set, **at)
            assert score == pytest.approx(float(stored.median()))


def test_squared_loss_has_no_trace_of_likelihoods(tmp_path):
    study = Study(Small(), widths=(5,), temperatures=(0.1,))
    assert "likelihood" not in identity_of(study)
    dataset = run_study(study, tmp_path / "squared")
    assert not {"probability", "log_loss", "calibration_error", "class"} & {*dataset.variables}
    assert "likelihood" not in dataset.attrs
    assert "likelihood" not in json.loads(dataset.attrs["study"])


class InBlocks(Small):
    name = "in-blocks"

    def blocks(self, seed):
        return Blocks(12, 6, lambda number: self.realise(seed).train)


@pytest.mark.parametrize(
    ("task", "likelihood", "reason"),
    [
        (Noisy(), "logistic", "needs classes, but the labels of the task are real targets"),
        (Small(1), "softmax", "two classes in one output.*--likelihood logistic"),
        (Small(3), "logistic", "3 classes.*--likelihood softmax"),
        (InBlocks(1), "logistic", "needs all training examples at once, but 12 come in blocks"),
    ],
)
def test_labels_of_another_kind_are_refused_before_anything_is_computed(
    task, likelihood, reason, tmp_path, monkeypatch
):
    minimised = count_minimisations(monkeypatch)
    with pytest.raises(StudyError, match=reason):
        run_study(Study(task, widths=(5,), likelihood=likelihood), tmp_path / "refused")
    assert not minimised
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("temperatures", [(0.1,), (1.0, 2.0), (0.01, 0.1, 1.0)])
def test_temperatures_are_refused_with_the_scale_that_there_is(temperatures):
    with pytest.raises(ValueError, match=r"temperatures must be left out.*--variance"):
        study_of("softmax", temperatures=temperatures)


@pytest.mark.parametrize("name", ["probit", "logistic,softmax", ""])
def test_unknown_likelihoods_are_refused(name):
    with pytest.raises(ValueError, match='likelihood must be one of "squared", "logistic"'):
        Study(Small(), likelihood=name)


@pytest.mark.parametrize(
    "result", [Samples, NextOrder, Phases, LearningCurves, Comparison, Pruning]
)
def test_results_of_the_squared_loss_are_refused(result, store, likelihood):
    before = sorted(store.iterdir())
    with pytest.raises(StudyError, match=f"is a study of the {likelihood} likelihood"):
        run_result(result(), store)
    assert sorted(store.iterdir()) == before


@pytest.mark.parametrize("result", [Comparison, Pruning, LearningCurves])
def test_results_of_one_output_ask_for_two_classes_at_once(result, store, likelihood, tmp_path):
    command = result().command
    two = "of two classes " if likelihood == "softmax" else ""
    with pytest.raises(StudyError, match=f"^{command} .*run a study {two}without --likelihood"):
        run_result(result(), store)
    run_study(Study(Small(3), widths=(5,), temperatures=(0.1,)), tmp_path / "squared")
    with pytest.raises(StudyError, match=f"^{command} takes one output, .* has 3; .*two classes"):
        run_result(result(), tmp_path / "squared")


@pytest.mark.parametrize("choice", ["evidence", "leave-one-out"])
def test_choices_of_a_temperature_are_refused(dataset, choice):
    with pytest.raises(ValueError, match=f"no temperature to choose by '{choice}'"):
        Selection(dataset, choice)


def test_views_show_log_loss_and_calibration(dataset, likelihood):
    views = list(study_views(dataset))
    console = Console(file=io.StringIO(), width=200)
    table = next(view for view in views if isinstance(view, Table))
    console.print(table.as_rich(200), crop=False)
    text = console.file.getvalue()
    assert "log loss" in text
    assert "ECE" in text
    assert f"{likelihood} likelihood" in text
    assert not re.search(r"\bT\b", table.caption)
    charts = {chart.name: chart for chart in study_charts(dataset)}
    assert {"accuracy", "log_loss", "calibration_error", "reliability"} <= charts.keys()
    for name in ("log_loss", "reliability"):
        assert charts[name].altair().to_dict()
    assert finite_width_gain(dataset)["gain"].notnull().all()


def test_nothing_that_is_shown_names_a_temperature(dataset, likelihood, tmp_path):
    told = []
    run_study(study_of(likelihood, widths=(5,)), tmp_path / "told", report=told.append)
    shown = [progress.doing for progress in told]
    for view in study_views(dataset.assign(minima=0 * dataset["minima"] + 2)):
        if isinstance(view, Table):
            shown += [view.title, view.caption]
            assert not {"T", "T of limit"} & view.cells.keys()
            assert "temperature" not in view.caption
        elif isinstance(view, Chart):
            shown += [view.title, view.description]
            if view.name in ("kernels", "accuracy"):  # whose panels and switches name points
                shown.append(json.dumps(view.altair().to_dict()))
        else:
            shown.append(str(view))
    assert any("Several minima of the action at N = 5, seed 0" in text for text in shown)
    assert not [text for text in shown if re.search(r"\bT = ", text)]


def test_reliability_frame_counts_every_test_example_once(dataset):
    frame = reliability_frame(dataset, [0, 1])
    counts = frame.groupby(["network", "test_set"])["examples"].sum()
    for network in ("N = 5", "N = 50", LIMIT):
        assert counts[network].to_dict() == {"long": 9, "short": 5}
    diagonal = frame[frame["network"] == IDEAL]
    assert (diagonal["confidence"] == diagonal["correct"]).all()


def test_probabilities_that_are_frequencies_are_calibrated():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 20_000)
    drawn = np.array([rng.choice(3, p=row) for row in p])
    one_hot = np.eye(3)[drawn]
    assert reliability(p, one_hot).error < 0.02
    assert reliability(one_hot, one_hot).error == 0
    assert reliability(np.roll(one_hot, 1, axis=1), one_hot).error == 1
    two = reliability(np.array([[0.3, 0.7], [0.3, 0.7]]), np.array([1.0, -1.0]))
    assert two.counts.sum() == 2
    assert two.error == pytest.approx(0.2)
