"""A grid point is a function of its own parameters, whatever else a study holds."""

import numpy as np
import pytest

from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_tasks.hidden_markov import HiddenMarkov

TEMPERATURES = (0.01, 0.02, 0.1, 1.0)
NAMES = ("action", "order_parameter", "predictor_mean", "minima")


def compute(path, *, widths=(20,), temperatures=(0.01,)):
    task = HiddenMarkov(examples=60, test_examples=10)
    study = Study(task, widths=widths, temperatures=temperatures, seeds=(0,), variances=0.05)
    return run_study(study, path, analyses=()).load()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return compute(tmp_path_factory.mktemp("alone") / "study")


@pytest.mark.parametrize("temperatures", [(0.01, 0.1), TEMPERATURES])
def test_neighbours_on_the_grid_change_no_point(tmp_path, alone, temperatures):
    grid = compute(tmp_path / "grid", widths=(10, 20), temperatures=temperatures)
    point = grid.sel(width=[20], temperature=[0.01])
    for name in NAMES:
        np.testing.assert_allclose(point[name], alone[name], rtol=1e-6, atol=1e-8)


def test_the_order_of_computation_changes_no_point(tmp_path, alone):
    compute(tmp_path / "grown", temperatures=(1.0,))
    compute(tmp_path / "grown", temperatures=(0.01, 1.0))
    grown = compute(tmp_path / "grown", widths=(10, 20), temperatures=TEMPERATURES)
    point = grown.sel(width=[20], temperature=[0.01])
    for name in NAMES:
        np.testing.assert_allclose(point[name], alone[name], rtol=1e-6, atol=1e-8)
