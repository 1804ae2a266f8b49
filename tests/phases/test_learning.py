"""Learning curves: measured errors next to the average case, and their charts."""

import numpy as np
import pytest
from one_signal import OneSignal, computed, plugins, study_of

from pathkernel_datasets.study import Study
from pathkernel_datasets.testing import check_result
from pathkernel_phases.learning import stored_curves
from pathkernel_phases.results import LearningCurves
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("learning") / "learning.zarr"
    sweep = {"examples": (20, 60, 180)}
    task = OneSignal(scale=1.0)
    study_of(path, task, sweep=sweep, widths=(20, 60, 180), seeds=(3, 4))
    result, steps = computed(LearningCurves(), path)
    assert steps > 0
    return result


def test_the_average_case_is_near_the_measured_error(study):
    curves = stored_curves(study).load()
    assert curves["error"].dims == ("seed", "examples", "temperature", "width")
    for suffix in ("", "_gp"):
        measured = curves[f"error{suffix}"].median("seed")
        average = curves[f"average_case_error{suffix}"].median("seed")
        assert abs(np.log(measured / average)).max() < 0.5
        assert (average.diff("examples") < 0).all()


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
        assert {"layer", "spec"} & chart.altair().to_dict().keys()
    (table,) = (view for view in views if isinstance(view, Table))
    assert len(table.rows) == 3 * 4  # three widths and the limit


def test_learning_curves_need_several_numbers_of_examples(tmp_path):
    path = tmp_path / "single.zarr"
    study_of(path)
    with pytest.raises(ValueError, match="--examples 26,50"):
        computed(LearningCurves(), path)


def test_the_result_keeps_its_contract():
    small = Study(OneSignal(), (20,), (0.01,), sweep={"examples": (20, 40)})
    check_result(LearningCurves(), small, plugins())
