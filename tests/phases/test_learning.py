"""Learning curves: measured errors next to the average case, and their charts."""

import warnings

import numpy as np
import pytest
import xarray as xr
from one_signal import OneSignal, computed, plugins, study_of

from pathkernel_core.prediction.average_case import average_case_error, kernel_spectrum
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import check_result
from pathkernel_phases.learning import stored_learning_curves
from pathkernel_phases.results import LearningCurves
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("learning") / "learning"
    sweep = {"examples": (20, 60, 180)}
    task = OneSignal(scale=1.0)
    study_of(path, task, sweep=sweep, widths=(20, 60, 180), seeds=(3, 4))
    result, steps = computed(LearningCurves(), path)
    assert steps > 0
    return result


def test_the_average_case_is_near_the_measured_error(study):
    curves = stored_learning_curves(study).load()
    assert curves["error"].dims == ("seed", "examples", "temperature", "width")
    for suffix in ("", "_gp"):
        measured = curves[f"error{suffix}"].median("seed")
        average = curves[f"average_case_error{suffix}"].median("seed")
        assert abs(np.log(measured / average)).max() < 0.5
        assert (average.diff("examples") < 0).all()


@pytest.mark.parametrize(
    ("tests", "skip", "mean"),  # no more examples than features, and more
    [(8, None, 0.0), (50, 0.7, 3.0)],
)
def test_the_average_case_is_that_of_the_kernel_at_every_point(tmp_path, tests, skip, mean):
    grid = {"widths": (20,), "temperatures": (0.02, 0.3), "variances": (0.4, 2.0, 0.7)}
    task = OneSignal(scale=1.0, tests=tests, mean=mean)
    path = tmp_path / "learning"
    study_of(path, task, sweep={"examples": (20, 60)}, skips=skip, **grid)
    study, _ = computed(LearningCurves(), path)
    curves = stored_learning_curves(study).isel(seed=0).load()
    # c_π² and U in the limit, σ²_a or σ²_a σ²_1, of a path past the heads and through each of two
    squares, limit = ([0.7**2, 0.5, 0.5], [0.7, 1.4, 1.4]) if skip else ([0.5] * 2, [1.4] * 2)
    for examples, single in zip((20, 60), study.singles):
        data = single.rebuild(Point(20.0, 0.02, 3)).data
        xi, labels = data.test_sets["test"]
        scaled = xi * np.sqrt(squares)[:, None]
        grams = 0.4 / xi.shape[2] * np.einsum("pai,qbi->abpq", scaled, scaled)
        order_parameters = single.dataset["order_parameter"].isel(seed=0)
        for temperature in grid["temperatures"]:
            curve = curves.sel(examples=examples, temperature=temperature, width=20)
            matrix = order_parameters.sel(temperature=temperature, width=20).values
            for suffix, weights in (("", matrix), ("_gp", np.diag(limit))):
                kernel = np.einsum("ab,abpq->pq", weights, grams)
                spectrum = kernel_spectrum(kernel, labels - data.offset)
                expected = average_case_error(*spectrum, examples, temperature)
                assert float(curve[f"average_case_error{suffix}"]) == pytest.approx(expected)


def test_plain_xarray_opens_the_curves_without_warnings(study):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = study.path / "learning-curves.zarr"
        tree = xr.open_datatree(file, engine="zarr", chunks=None).load()
    curves = stored_learning_curves(study).sel(seed=4, drop=True)
    xr.testing.assert_equal(tree["seed-4"].to_dataset(), curves)


def test_a_complete_result_is_not_computed_again(study):
    assert computed(LearningCurves(), study.path)[1] == 0


def test_charts_are_drawn_at_fixed_width_and_at_a_fixed_ratio(study):
    views = list(LearningCurves().views(study))
    charts = {view.name: view for view in views if isinstance(view, Chart)}
    quantities = ("accuracy", "error", "trace", "evidence")
    assert set(charts) == {
        f"learning_{name}{ratio}" for name in quantities for ratio in ("", "_fixed_ratio")
    }
    for chart in charts.values():
        assert chart.specification(validate=True)["vconcat"]
    (table,) = (view for view in views if isinstance(view, Table))
    assert len(table.rows) == 3 * 4  # three widths and the limit


def test_learning_curves_need_several_numbers_of_examples(tmp_path):
    path = tmp_path / "single"
    study_of(path)
    with pytest.raises(ValueError, match="--examples 26,50"):
        computed(LearningCurves(), path)


def test_the_result_keeps_its_contract():
    small = Study(OneSignal(), (20,), (0.01,), sweep={"examples": (20, 40)})
    check_result(LearningCurves(), small, plugins())
