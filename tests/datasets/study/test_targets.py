"""Studies of real targets: measures, centring, choices of temperature, gains, tables, figures."""

import dataclasses
import io
import json
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
from noisy_task import MEAN, Noisy
from rich.console import Console

import pathkernel_core as pk
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain
from pathkernel_datasets.selection.temperature_choice import choose_temperatures, default_choice
from pathkernel_datasets.study.identity import identity_of
from pathkernel_datasets.study.study import Study
from pathkernel_views.study_tables import finite_width_gain_table, study_summary
from pathkernel_views.study_views import study_charts

MEASURES = ("mean_squared_error", "r_squared", "log_predictive_density")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("targets") / "noisy"
    run_study(Study(Noisy(), seeds=(1, 2)), path)
    return path


@pytest.fixture(scope="module")
def dataset(store):
    return open_study(store).load()


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    path = tmp_path_factory.mktemp("targets") / "two"
    run_study(Study(Noisy(outputs=2), widths=(5,), temperatures=(0.1,), seeds=(1,)), path)
    return open_study(path).load()


def predicted(realisation, solution, examples, paths=slice(None)):
    """Moments of uncentred targets, from the core alone."""
    xi = pk.attentioned_inputs(examples.inputs, realisation.layers, "mean")[:, paths]
    moments = solution.predict(xi)
    return moments.mean + realisation.train.labels.mean(axis=0), moments.variance


def measured(mean, variance, labels, temperature):
    """Measures by their definitions."""
    squared = ((labels - mean) ** 2).mean()
    density = scipy.stats.norm.logpdf(labels, mean, np.sqrt(variance + temperature))
    return squared, 1 - squared / labels.var(axis=0).mean(), density.mean()


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_store_holds_what_the_definitions_say(dataset, of_two, outputs):
    """Of centred targets whose mean is far from 0, in the limits and at finite width."""
    data = dataset if outputs == 1 else of_two
    realisation = Noisy(outputs=outputs).realise(1)
    labels = realisation.train.labels - realisation.train.labels.mean(axis=0)
    xi = pk.attentioned_inputs(realisation.train.inputs, realisation.layers, "mean")
    problem, network = pk.Problem(xi, labels), pk.Network((2,), 5, outputs=outputs)
    point = data.sel(seed=1, temperature=0.1, width=5).isel(sub_network=0)
    solutions = {
        "": pk.minimise_action(problem, network, 0.1),
        "_gp": pk.gp_limit(problem, network, 0.1),
        "_sub_network": pk.gp_limit(problem.keep_paths([0]), network.keep_heads(((1,),)), 0.1),
    }
    for suffix, solution in solutions.items():
        paths = [0] if suffix == "_sub_network" else slice(None)
        for name, examples in realisation.test_sets.items():
            moments = predicted(realisation, solution, examples, paths)
            stored = [float(point[measure + suffix].sel(test_set=name)) for measure in MEASURES]
            expected = measured(*moments, examples.labels, 0.1)
            np.testing.assert_allclose(stored, expected, rtol=1e-6, err_msg=name + suffix)
        mean, _ = predicted(realisation, solution, realisation.validation, paths)
        error = ((mean - realisation.validation.labels) ** 2).mean()
        stored = point[f"mean_squared_error_validation{suffix}"]
        np.testing.assert_allclose(stored, error, rtol=1e-6)
    mean, _ = predicted(realisation, solutions[""], realisation.test_sets["long"])
    np.testing.assert_allclose(point.predictor_mean.sel(test_set="long"), mean, rtol=1e-6)
    assert abs(mean.mean() - MEAN[:outputs].mean()) < 5, "predictions are moved back"
    left = pk.leave_one_out(solutions[""], xi, labels)
    np.testing.assert_allclose(point.leave_one_out_squared_error, left.squared_error, rtol=1e-6)


def test_nothing_is_called_accuracy(dataset, of_two):
    for data in (dataset, of_two):
        assert not [name for name in data.variables if "accuracy" in name]
        assert data.attrs["kind"] == "targets"
        assert data.attrs["centred"]
        shown = printed(next(study_summary(data)), finite_width_gain_table(data))
        assert "ccuracy" not in shown
        assert "R²" in shown
        assert not [chart for chart in study_charts(data) if "accuracy" in chart.name]
    labels = dataset["train_label"].sel(seed=1)
    assert set(labels.values) == set(Noisy().realise(1).train.labels), "as the task drew them"


def test_outputs_are_named(of_two):
    for dim in ("output", "output_dual"):
        assert of_two[dim].values.tolist() == ["near", "far"]
    centre = of_two["predictor_mean"].sel(output="far").mean()
    assert abs(float(centre) - MEAN[1]) < 4


def test_temperatures_are_chosen_by_squared_errors(dataset):
    assert default_choice(dataset) == "validation"
    for choice, score in (
        ("validation", dataset["mean_squared_error_validation"]),
        ("paper", dataset["mean_squared_error"].isel(test_set=0)),
        ("leave-one-out", dataset["leave_one_out_squared_error"]),
    ):
        expected = score.sum("seed").argmin("temperature")
        index = choose_temperatures(dataset, choice)["index"].isel(test_set=0)
        assert index.values.tolist() == expected.values.tolist(), choice
    index = choose_temperatures(dataset, "test")["index"]
    expected = dataset["mean_squared_error"].sum("seed").argmin("temperature")
    assert index.values.tolist() == expected.transpose(*index.dims).values.tolist()


def test_r_squared_of_several_outputs_divides_by_their_mean_variance(of_two):
    """As the study's own R², by another way to it: the outputs vary by unlike amounts."""
    found, stored = finite_width_gain(of_two), of_two.squeeze(["seed", "temperature", "width"])
    np.testing.assert_allclose(found["r_squared"].squeeze("width"), stored["r_squared"])
    np.testing.assert_allclose(found["r_squared_gp"], stored["r_squared_gp"])


def test_gains_are_differences_of_r_squared(dataset):
    gain = finite_width_gain(dataset, 0.1)
    at = dataset.sel(temperature=0.1)
    np.testing.assert_allclose(gain["r_squared"], at["r_squared"].mean("seed"))
    np.testing.assert_allclose(gain["r_squared_gp"], at["r_squared_gp"].mean("seed"))
    np.testing.assert_allclose(gain["gain"], gain["r_squared"] - gain["r_squared_gp"])
    one = finite_width_gain(dataset.sel(seed=[2]), 0.1).sel(test_set="long")
    labels = at["test_label"].sel(seed=2, test_set="long")
    squared = [
        ((labels - at[name].sel(seed=2, test_set="long")) ** 2)
        for name in ("predictor_mean_gp", "predictor_mean")
    ]
    pairs = (squared[0] - squared[1]).transpose("width", "example").values / labels.values.var()
    np.testing.assert_allclose(one["example_error"], pairs.std(axis=1, ddof=1) / 3)


def printed(*tables):
    text = io.StringIO()
    for table in tables:
        Console(file=text, width=80).print(table.as_rich(80), crop=False)
    assert max(len(line.strip()) for line in text.getvalue().splitlines()) <= 80
    return text.getvalue()


def test_the_table_has_every_measure_of_every_test_set(dataset, of_two):
    table, *_ = study_summary(dataset, 0.1)
    text, frame = printed(table), table.frame
    for name, form in zip(MEASURES, (".4g", ".3f", ".2f")):
        for value in frame[f"{name}_median"]:
            assert format(value, form) in text
    assert [text.count(name) for name in ("long", "short")] == [len(frame) / 2] * 2
    point = dataset.sel(temperature=0.1, width=5, test_set="short")
    row = frame[(frame["width"] == 5) & (frame["test_set"] == "short")]
    assert row["r_squared_median"].item() == float(point.r_squared.median())
    assert f"{float(of_two.r_squared[0, 0, 0, 0]):.3f}" in printed(next(study_summary(of_two)))


def test_charts_show_every_measure(dataset):
    charts = {chart.name: chart for chart in study_charts(dataset, 0.1)}
    assert list(charts)[:3] == ["r_squared", "mean_squared_error", "log_predictive_density"]
    for name in MEASURES:
        held = json.dumps(charts[name].specification(validate=True))
        assert "long" in held
        assert "short" in held
    held = json.dumps(charts["temperature_choice"].specification(validate=True))
    assert "T of smallest validation error" in held


def test_centring_is_undone_and_part_of_the_study(store):
    with pytest.raises(StudyError, match="centred: the folder has true, this run false"):
        run_study(Study(Noisy(centred=False), seeds=(1, 2)), store)


def test_the_kind_is_part_of_the_study(tmp_path):
    """Even where the arrays that are drawn are the same."""

    @dataclass(frozen=True)
    class Signs(Noisy):
        def realise(self, seed):
            signs = super().realise(seed)
            for part in (signs.train, signs.validation, *signs.test_sets.values()):
                part.labels[:] = np.sign(part.labels - MEAN[0])
            return dataclasses.replace(signs, kind=self.kind)

    grid = {"widths": (5,), "temperatures": (0.1,)}
    identities = [
        identity_of(Study(Signs(kind=kind, centred=False), **grid))["drawn"]
        for kind in (None, "targets")
    ]
    assert identities[1] == identities[0] | {"kind": "targets"}
    run_study(Study(Signs(centred=False), **grid), tmp_path / "signs")
    assert "accuracy" in open_study(tmp_path / "signs")


def test_charts_of_two_targets_are_drawn_without_warnings(of_two):
    """Total kernels of several outputs are not stored."""
    for chart in study_charts(of_two, 0.1):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            assert chart.draw().to_dict(validate=False)
