"""Maps of phases: points, crossings along every axis, and seeds that are resumed."""

import shutil
import warnings

import numpy as np
import pytest
import xarray as xr
from one_signal import OneSignal, computed, study_of

import pathkernel_core as pk
from pathkernel_core.coexistence import Coexistence, coexistence
from pathkernel_datasets.point import Point
from pathkernel_datasets.stored_study import StoredStudy
from pathkernel_phases import phase_map
from pathkernel_phases.phase_map import PhaseMap, stored_maps
from pathkernel_phases.phase_views import phase_views
from pathkernel_phases.results import Phases

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")

VARIANCES = (0.02, 0.08, 0.4)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("phases") / "study"
    study_of(path, sweep={"variance": VARIANCES}, temperatures=(0.01, 0.02))
    return computed(Phases(), path)[0]


@pytest.fixture
def phases(study):
    return stored_maps(study)["variance"].load()


def problem_of(study, variance, width=20):
    point = study.singles[VARIANCES.index(variance)].rebuild(Point(width, 0.01, 3))
    return pk.PathKernels(point.data.xi, point.data.labels), point.network


def test_points_are_those_of_a_solution(study, phases):
    problem, network = problem_of(study, 0.4)
    solution = pk.minimise_action(problem, network, 0.01)
    point = phases.sel(variance=0.4, temperature=0.01, width=20, seed=3)
    assert point["softest"] == pytest.approx(solution.stability().softest, rel=1e-5)
    limit = pk.gp_limit(problem, network, 0.01)
    ratio = np.trace(solution.order_parameter) / np.trace(limit.order_parameter)
    assert point["trace_ratio"] == pytest.approx(ratio, rel=1e-5)
    assert point["minima"] == 1 + len(solution.other_minima)


def test_a_crossing_is_that_of_the_core(study, phases):
    problem, network = problem_of(study, 0.08)

    def solve(variance, start=None):
        network = pk.Network((2,), 20, variance)
        return pk.minimise_action(problem, network, 0.01, start=start)

    assert network.heads == (2,)
    sides = [(variance, solve(variance)) for variance in (0.02, 0.4)]
    expected = coexistence(solve, *sides, limits=(0.002, 4.0))
    row = phases.sel(temperature=0.01, width=20, seed=3).isel(transition=0)
    for name in ("crossing", "lower_spinodal", "upper_spinodal"):
        assert row[name] == pytest.approx(getattr(expected, name), rel=1e-3)
    assert phases.attrs["evaluations"] > 0


def test_plain_xarray_opens_the_map_without_warnings(study, phases):
    """Though the axis of the map is an option that the study sweeps, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = xr.open_datatree(study.path / "phases.zarr", engine="zarr", chunks=None).load()
    xr.testing.assert_equal(tree["variance/seed-3"].to_dataset(), phases.sel(seed=3, drop=True))


@pytest.mark.slow
def test_seeds_that_have_a_map_are_not_computed_again(study, tmp_path, monkeypatch):
    path = shutil.copytree(study.path, tmp_path / "study")
    mapped, grids = [], iter(({"temperature": [0.01, 0.03]}, {}))

    def seed_map(self, seed):
        mapped.append(seed)
        grid = self.grid | next(grids)
        softest = xr.DataArray(np.zeros([len(values) for values in grid.values()]), grid, [*grid])
        return xr.Dataset({"softest": softest}, attrs={"axis": self.axis, "evaluations": 0})

    monkeypatch.setattr(PhaseMap, "seed_map", seed_map)
    assert computed(Phases(), path)[1] == 0
    study_of(path, sweep={"variance": VARIANCES}, temperatures=(0.01, 0.02), seeds=(3, 4))
    assert "lacks seed 4, since the study has grown" in next(iter(phase_views(StoredStudy(path))))
    for seeds in ([3], [3, 4]):  # the first map of seed 4 is on another grid
        extended, steps = computed(Phases(), path)
        assert steps == 1
        assert stored_maps(extended)["variance"]["seed"].values.tolist() == seeds
    assert mapped == [4, 4]


@pytest.mark.parametrize(
    ("axis", "settings"),
    [
        ("input_scale", {"sweep": {"input_scale": (0.1, 2.0)}, "variance": 0.2}),
        ("temperature", {"temperatures": (0.001, 0.03), "variance": 0.06}),
        ("width", {"widths": (5, 500), "variance": 0.12}),
    ],
)
def test_along_other_axes_the_lowest_minimum_changes_at_the_crossing(tmp_path, axis, settings):
    path = tmp_path / "study"
    study_of(path, **settings)
    study = computed(Phases(axis=axis), path)[0]
    phases = stored_maps(study)[axis].load()
    crossing = phases["crossing"].item()
    assert phases[axis][0] < crossing < phases[axis][-1]
    width, temperature = (float(phases[name].values.flat[0]) for name in ("width", "temperature"))
    point = study.singles[0].rebuild(Point(width, temperature, 3))

    def trace(value):
        scale = value / phases[axis].values[0] if axis == "input_scale" else 1.0
        problem = pk.PathKernels(scale * point.data.xi, point.data.labels)
        width = value if axis == "width" else point.network.width
        network = pk.Network((2,), width, point.network.variances)
        temperature = value if axis == "temperature" else point.point.temperature
        return np.trace(pk.minimise_action(problem, network, temperature).order_parameter)

    low, high = sorted((trace(crossing / 1.001), trace(crossing * 1.001)))
    assert high > 3 * low


def test_a_study_without_crossings_has_none(tmp_path):
    path = tmp_path / "study"
    study_of(path, OneSignal(scale=3.0), sweep={"variance": (0.5, 1.0)})
    phases = stored_maps(computed(Phases(), path)[0])["variance"]
    assert phases["crossing"].isnull().all()
    assert phases["softest"].notnull().all()


def test_points_that_do_not_converge_are_left_out(study, monkeypatch):
    minimise_from = phase_map.minimise_from

    def failing(problem, network, *arguments):
        failed = network.variances[0] == VARIANCES[0]
        return None if failed else minimise_from(problem, network, *arguments)

    monkeypatch.setattr(phase_map, "minimise_from", failing)
    monkeypatch.setattr(phase_map, "coexistence", lambda *arguments: None)
    phases = PhaseMap(study).seed_map(3)
    for name in ("softest", "trace_ratio", "minima"):
        assert (phases[name].isnull() == (phases["variance"] == VARIANCES[0])).all()


@pytest.mark.parametrize(
    ("axis", "settings", "message"),
    [
        ("variance", {"temperatures": (0.01, 0.1)}, r"run it again .*or take --axis temperature"),
        (None, {}, "'temperature' needs several values"),
        (None, {"sweep": {"readout": ("first", "last")}}, "positive numbers .*'readout'"),
    ],
)
def test_an_axis_needs_several_positive_values(tmp_path, axis, settings, message):
    study = study_of(tmp_path / "study", **settings)
    with pytest.raises(ValueError, match=message):
        PhaseMap(study, axis)


def test_transitions_of_one_line_have_one_number():
    def at(*crossings):
        return [Coexistence(crossing, np.nan, np.nan) for crossing in crossings]

    rows = {(0,): at(0.1), (1,): at(0.01, 0.12), (2,): [], (3,): at(1.0)}
    lines = phase_map.joined_lines(rows, (4,))["crossing"]
    expected = [[0.1, np.nan, np.nan], [0.12, 0.01, np.nan], [np.nan] * 3, [np.nan, np.nan, 1.0]]
    np.testing.assert_array_equal(lines, expected)
