"""Points of a study whose order parameters score heads, and samples at them."""

import json

import numpy as np
import pytest
import xarray as xr

from pathkernel_core import Network, head_scores
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.draws import order_parameter_draws
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.result_files import publish_parts, write_part
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SmallTask
from pathkernel_trained.theory_scores import (
    sampled_head_scores,
    score_grid,
    theory_points,
    theory_scores,
)

WIDTHS, TEMPERATURES, SEEDS = (10.0, 40.0, 100.0), (0.1, 0.5), (0, 7)
NETWORK = Network((2, 2), 10)


def made_up_study(seed=0, network=NETWORK):
    """What of a study is read; both seeds have the smallest error at N = 100, T = 0.5."""
    generator = np.random.default_rng(seed)
    size = network.n_paths
    factors = generator.normal(size=(2, 2, 3, size, size + 2))
    matrices = factors @ factors.swapaxes(-1, -2)
    scores = [head_scores(network, u) for u in matrices.reshape(-1, size, size)]
    scores = np.reshape(scores, (2, 2, 3, *np.shape(scores[0])))
    error = 10 + np.arange(12.0).reshape(2, 2, 3)[:, ::-1, ::-1]
    point = ("seed", "temperature", "width")
    labels = np.array(network.path_labels, dtype=np.dtypes.StringDType())
    return xr.Dataset(
        {
            "order_parameter": ((*point, "path", "path_dual"), matrices),
            "head_score": ((*point, "head"), scores),
            "leave_one_out_squared_error": (point, error),
            "leave_one_out_squared_error_gp": (point[:2], error[..., 0]),
            "leave_one_out_log_density": (point, -error),
            "leave_one_out_log_density_gp": (point[:2], -error[..., 0]),
            "status": (point, np.ones((2, 2, 3), dtype=int)),
            "reference_done": (point[:2], np.ones((2, 2), dtype=int)),
        },
        {
            "test_set": ["a"],
            "seed": list(SEEDS),
            "temperature": list(TEMPERATURES),
            "width": list(WIDTHS),
            "path": labels,
            "path_dual": labels,
        },
        {"heads_per_layer": list(network.heads)},
    )


@pytest.fixture
def study():
    return made_up_study()


def test_points_of_smallest_error_and_of_the_paper(study):
    assert theory_points(study) == [Point(100, 0.5, 0), Point(10, 0.5, 0)]
    assert theory_points(study, seed=7) == [Point(100, 0.5, 7), Point(10, 0.5, 7)]
    assert theory_points(study, temperature=0.1)[0] == Point(100, 0.1, 0)
    assert theory_points(study, widths=(40, 10)) == [Point(40, 0.5, 0), Point(10, 0.5, 0)]
    study["leave_one_out_squared_error"].loc[{"width": 10, "temperature": 0.1}] = 1
    assert theory_points(study) == [Point(10, 0.1, 0)], "the paper's width only once"
    study["status"].loc[{"width": 10, "temperature": 0.1}] = 0
    assert theory_points(study)[0] == Point(100, 0.5, 0), "what is not computed has no error"


def test_all_points_go_by_the_errors_of_all_seeds(study):
    """Seed 0 alone would choose T = 0.1 everywhere, and N = 40; both seeds together do not."""
    error = study["leave_one_out_squared_error"]
    error[:] = 10
    error.loc[{"seed": 0, "temperature": 0.1}] = 9
    error.loc[{"seed": 7, "temperature": 0.5}] = 5
    error.loc[{"seed": 0, "temperature": 0.5, "width": 40}] = 7
    error.loc[{"seed": 7, "temperature": 0.5, "width": 100}] = 1
    for seed in SEEDS:
        assert theory_points(study, seed=seed) == [
            Point(100, 0.5, seed),
            Point(10, 0.5, seed),
        ]
        for point in theory_points(study, widths=WIDTHS, seed=seed):
            assert point == Point.find(study, point.width, None, seed), "where samples are drawn"
    at_cold = theory_points(study, temperature=0.1)
    assert {point.temperature for point in at_cold} == {0.1}
    # a width that some seed lacks cannot be compared with the others
    study["status"].loc[{"seed": 7, "width": 100}] = 0
    assert theory_points(study)[0] == Point(40, 0.5, 0)
    # and the seed itself must have the point
    study["status"].loc[{"seed": 7, "width": 10}] = 0
    assert theory_points(study, seed=7) == [Point(40, 0.5, 7)]


def test_points_with_draws_are_taken_too(study):
    drawn = [Point(40, 0.5, 0), Point(10, 0.1, 0), Point(40, 0.1, 7)]
    first = [Point(100, 0.5, 0), Point(10, 0.5, 0)]
    assert theory_points(study, drawn=drawn) == [*first, Point(40, 0.5, 0)]
    assert theory_points(study, seed=7, drawn=drawn) == theory_points(study, seed=7)
    assert theory_points(study, widths=(10,), drawn=drawn) == first[1:]


def test_points_that_are_missing(study):
    with pytest.raises(StudyError, match="no width 20; it has 10, 40, 100"):
        theory_points(study, widths=(20,))
    with pytest.raises(StudyError, match="no temperature 3"):
        theory_points(study, temperature=3)
    with pytest.raises(StudyError, match="no seed 3; it has 0, 7"):
        theory_points(study, seed=3)
    study["status"].loc[{"width": 40}] = 0
    with pytest.raises(StudyError, match=r"no order parameter at N = 40, T = 0\.5, seed 0; resume"):
        theory_scores(study, *theory_points(study, (40,), 0.5))
    study["status"][:] = 0
    with pytest.raises(StudyError, match="no point of the study is computed yet"):
        theory_points(study)


def test_scores_over_the_grid(study):
    study["status"].loc[{"width": 40, "temperature": 0.1}] = 0
    study["head_score"].loc[{"width": 10, "temperature": 0.5}] = np.nan
    grid = score_grid(study, 7)
    assert grid.shape == (2, 3, 4)
    for t, temperature in enumerate(TEMPERATURES):
        for w, width in enumerate(WIDTHS):
            if (width, temperature) in ((40, 0.1), (10, 0.5)):
                assert np.isnan(grid[t, w]).all()
                continue
            part = study.sel(seed=7, width=width, temperature=temperature)
            expected = head_scores(NETWORK, part["order_parameter"].values)
            np.testing.assert_allclose(grid[t, w], expected)
            actual = theory_scores(study, Point(width, temperature, 7))
            np.testing.assert_allclose(actual, expected)


def posterior(draws, network=NETWORK):
    """Draws (chain, draw, n, n) with the labels of their paths."""
    labels = np.array(network.path_labels, dtype=np.dtypes.StringDType())
    return xr.DataArray(
        draws, {"path": labels, "path_dual": labels}, ("chain", "draw", "path", "path_dual")
    )


def write_draws(folder, sampler, location, draws, network=NETWORK):
    """Draws of a study, as ``pathkernel sample`` lays them out."""
    dataset = xr.Dataset({"order_parameter": posterior(draws, network)})
    run = xr.DataTree.from_dict({"posterior": dataset})
    point = {"seed": location.seed, "temperature": location.temperature, "width": location.width}
    run.attrs["settings"] = json.dumps(point)
    write_part(folder, f"samples/{sampler}/{location}", run)
    publish_parts(folder, "samples")


def test_draws_of_a_study(tmp_path):
    folder = tmp_path / "study"
    run_study(Study(SmallTask(), (10,), (0.5,)), folder, analyses=())
    assert order_parameter_draws(StoredStudy(folder)) == {}
    generator = np.random.default_rng(0)
    first, second = Point(40, 0.5, 0), Point(10, 0.5, 0)
    draws = {}
    for sampler, point, count in (
        ("weights", first, 30),
        ("collapsed", first, 30),
        ("order-parameter", first, 20),
        ("weights", second, 5),
        ("collapsed", second, 0),
    ):
        factors = generator.normal(size=(2, count, 4, 6))
        draws[sampler, point] = factors @ factors.swapaxes(-1, -2)
        write_draws(folder, sampler, point, draws[sampler, point])
    actual = order_parameter_draws(StoredStudy(folder))
    assert list(actual) == [second, first]
    np.testing.assert_array_equal(actual[first], draws["collapsed", first])
    np.testing.assert_array_equal(actual[second], draws["weights", second])


def test_sampled_scores_are_those_of_the_mean(study):
    generator = np.random.default_rng(0)
    factors = generator.normal(size=(2, 30, 4, 6))
    draws = factors @ factors.swapaxes(-1, -2)
    actual, errors = sampled_head_scores(study, posterior(draws))
    expected = head_scores(NETWORK, draws.mean(axis=(0, 1)))
    np.testing.assert_allclose(actual, expected)
    assert (errors >= 0).all()
    _, unknown = sampled_head_scores(study, posterior(draws[:1, :1]))
    assert np.isnan(unknown).all(), "one draw says nothing of its error"


def test_the_errors_of_sampled_scores_are_their_spread_between_runs(study):
    """Over many runs of independent draws; the largest score is 1 by definition, without error."""
    generator = np.random.default_rng(1)
    mean = generator.normal(size=(4, 4))
    mean = mean @ mean.T + np.diag([5.0, 0.0, 2.0, 0.0])
    runs = [
        sampled_head_scores(study, posterior(mean + generator.normal(size=(4, 50, 4, 4))))
        for _ in range(200)
    ]
    scores, errors = (np.array([run[part] for run in runs]) for part in (0, 1))
    spread = scores.std(axis=0)
    largest = np.argmax(scores.mean(axis=0))
    assert spread[largest] < 1e-12
    below_one = np.arange(4) != largest
    # 40 stretches fix an error to 11 %, 200 runs their spread to 5 %
    np.testing.assert_allclose(errors.mean(axis=0)[below_one], spread[below_one], rtol=0.2)
    assert (errors[:, largest] < 1e-12).all()
