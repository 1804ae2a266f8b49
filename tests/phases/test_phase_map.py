"""Maps of phases: points, curves along every axis, and seeds that are resumed."""

import shutil
import warnings

import numpy as np
import pytest
import xarray as xr
from one_signal import OneSignal, computed, study_of

import pathkernel_core as pk
from pathkernel_core.phases.coexistence import ActionFamily, crossings_between
from pathkernel_core.phases.spinodals import spinodal_towards
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_phases.phase_map import PhaseMap, stored_maps, stored_phase_curves
from pathkernel_phases.phase_plane import PhasePlane
from pathkernel_phases.phase_views import phase_views
from pathkernel_phases.results import Phases

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")

VARIANCES = (0.02, 0.08, 0.4)
NUMBERS = ("softest", "trace_ratio", "minima", "region")
TEXTS = ("state", "strongest_path")


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
    return pk.Problem(point.data.xi, point.data.labels), point


def test_points_are_those_of_a_solution(study, phases):
    problem, rebuilt = problem_of(study, 0.4)
    solution = pk.minimise_action(problem, rebuilt.network, 0.01)
    point = phases.sel(variance=0.4, temperature=0.01, width=20, seed=3)
    assert point["softest"] == pytest.approx(solution.stability().softest, rel=1e-5)
    limit = pk.gp_limit(problem, rebuilt.network, 0.01)
    ratio = np.trace(solution.order_parameter) / np.trace(limit.order_parameter)
    assert point["trace_ratio"] == pytest.approx(ratio, rel=1e-5)
    assert point["minima"] == 1 + len(solution.other_minima)
    assert point["state"] == "in use"
    assert phases["state"].sel(variance=0.02, temperature=0.01).item() == "silent"
    strongest = int(np.argmax(np.diag(solution.order_parameter)))
    assert point["strongest_path"] == rebuilt.network.path_labels[strongest]


def test_curves_pass_through_the_crossing_and_the_spinodals_of_the_core(study):
    problem, _ = problem_of(study, 0.08)
    family = ActionFamily(problem, lambda values: (pk.Network((2,), 20, values[0]), 0.01))
    (crossing,) = crossings_between(family, *(family.search(np.log([v])) for v in (0.02, 0.4)))
    ends = [
        spinodal_towards(family, minimum, np.log([target]))
        for minimum, target in zip(crossing.minima, (0.4, 0.02))
    ]
    curves = stored_phase_curves(study, "variance")
    row = curves[curves["vertex_temperature"] == 0.01]
    (of_curve,) = row.loc[row["kind"] == "crossing", "vertex_variance"]
    assert of_curve == pytest.approx(np.exp(crossing.point[0]), rel=1e-6)
    of_curves = sorted(row.loc[row["kind"] == "spinodal", "vertex_variance"])
    np.testing.assert_allclose(of_curves, sorted(np.exp(e.point[0]) for e in ends), rtol=1e-6)
    assert (curves["vertex_width"] == 20).all()


def test_sides_of_a_curve_are_those_of_its_points(study, phases):
    """Silent is where the prior variance is small: left of somebody who goes up in temperature."""
    curves = stored_phase_curves(study, "variance")
    for _, curve in curves[curves["kind"] == "crossing"].groupby("curve"):
        rises = curve["vertex_temperature"].iloc[-1] > curve["vertex_temperature"].iloc[0]
        silent, used = ("left", "right") if rises else ("right", "left")
        assert (curve[f"branch_state_{silent}"] == "silent").all()
        assert (curve[f"branch_state_{used}"] == "in use").all()
        assert (curve[f"branch_trace_ratio_{used}"] > curve[f"branch_trace_ratio_{silent}"]).all()
    ended = curves[curves["kind"] == "spinodal"]
    for _, point in ended.iterrows():
        states = [point["branch_state_left"], point["branch_state_right"]]
        assert sorted(states)[0] == ""
        side = "left" if states[0] else "right"
        assert point[f"branch_softest_{side}"] == 0.0
        other = "right" if side == "left" else "left"
        assert np.isnan(point[f"branch_trace_ratio_{other}"])
    regions = phases["region"].squeeze()
    assert set(np.unique(regions)) == {0, 1}
    assert (regions.where(phases["state"].squeeze() == "silent") != 1).all()


def test_plain_xarray_opens_the_map_without_warnings(study, phases):
    """Though the axis of the map is an option that the study sweeps, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = xr.open_datatree(study.path / "phases.zarr", engine="zarr", chunks=None).load()
    seed = tree["variance/seed-3"].to_dataset()
    xr.testing.assert_equal(
        seed.drop_dims("vertex").drop_vars("side"), phases.sel(seed=3, drop=True)
    )
    crossing = seed.isel(vertex=seed["kind"].values == "crossing")
    assert crossing.sizes["vertex"] > 2
    assert crossing["branch_state"].dims == ("vertex", "side")


@pytest.mark.slow
def test_seeds_that_have_a_map_are_not_computed_again(study, tmp_path, monkeypatch):
    path = shutil.copytree(study.path, tmp_path / "study")
    mapped, grids = [], iter(({"temperature": [0.01, 0.03]}, {}))

    def seed_map(self, seed, report):
        mapped.append(seed)
        grid = self.grid | next(grids)
        shape = [len(values) for values in grid.values()]
        numbers = {name: ([*grid], np.zeros(shape)) for name in NUMBERS}
        texts = {name: ([*grid], np.full(shape, "", np.dtypes.StringDType())) for name in TEXTS}
        curves = {"curve": ("vertex", [0]), "side": ["left", "right"]}
        attributes = {"axis": self.axis, "evaluations": 0}
        return xr.Dataset(numbers | texts | curves, grid, attributes)

    monkeypatch.setattr(PhaseMap, "seed_map", seed_map)
    assert computed(Phases(), path)[1] == 0
    study_of(path, sweep={"variance": VARIANCES}, temperatures=(0.01, 0.02), seeds=(3, 4))
    assert "lacks seed 4, since the study has grown" in next(iter(phase_views(StoredStudy(path))))
    for seeds in ([3], [3, 4]):  # the first map of seed 4 is on another grid
        extended, _ = computed(Phases(), path)
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
    curves = stored_phase_curves(study, axis)
    (crossing,) = curves.loc[curves["kind"] == "crossing", f"vertex_{axis}"]
    assert phases[axis][0] < crossing < phases[axis][-1]
    width, temperature = (float(phases[name].values.flat[0]) for name in ("width", "temperature"))
    point = study.singles[0].rebuild(Point(width, temperature, 3))

    def trace(value):
        scale = value / phases[axis].values[0] if axis == "input_scale" else 1.0
        problem = pk.Problem(scale * point.data.xi, point.data.labels)
        width = value if axis == "width" else point.network.width
        network = pk.Network((2,), width, point.network.variances)
        temperature = value if axis == "temperature" else point.point.temperature
        return np.trace(pk.minimise_action(problem, network, temperature).order_parameter)

    low, high = sorted((trace(crossing / 1.001), trace(crossing * 1.001)))
    assert high > 3 * low


def test_planes_of_every_width_have_their_own_curves(tmp_path):
    path = tmp_path / "study"
    study_of(path, sweep={"variance": VARIANCES}, temperatures=(0.01, 0.02), widths=(18, 20))
    study = computed(Phases(), path)[0]
    curves = stored_phase_curves(study, "variance")
    assert PhaseMap(study).plane == ("variance", "temperature")
    crossings = curves[curves["kind"] == "crossing"]
    assert crossings.groupby("vertex_width")["curve"].nunique().tolist() == [1, 1]
    at_rows = crossings[crossings["vertex_temperature"] == 0.01].set_index("vertex_width")
    # the wider network needs the larger variance
    assert at_rows.loc[20, "vertex_variance"] > at_rows.loc[18, "vertex_variance"]


def test_an_option_that_changes_the_problem_has_a_point_at_each_value(tmp_path):
    path = tmp_path / "study"
    sweep = {"examples": (20, 24)}
    study_of(path, sweep=sweep, temperatures=(0.001, 0.03), variance=0.06)
    study = computed(Phases(axis="temperature"), path)[0]
    curves = stored_phase_curves(study, "temperature")
    crossings = curves[curves["kind"] == "crossing"]
    assert sorted(crossings["vertex_examples"]) == [20, 24]
    assert crossings["curve"].nunique() == 2


def test_a_study_without_crossings_has_none(tmp_path):
    path = tmp_path / "study"
    study_of(path, OneSignal(scale=3.0), sweep={"variance": (0.5, 1.0)})
    study = computed(Phases(), path)[0]
    assert stored_phase_curves(study, "variance").empty
    assert stored_maps(study)["variance"]["softest"].notnull().all()
    assert next(iter(phase_views(study))).startswith("No crossing along prior variance σ²")


def test_points_that_do_not_converge_are_left_out(study, monkeypatch):
    search = ActionFamily.search

    def failing(self, point):
        return None if np.isclose(point[0], np.log(VARIANCES[0])) else search(self, point)

    monkeypatch.setattr(ActionFamily, "search", failing)
    for name in ("follow_crossings", "follow_spinodals"):
        monkeypatch.setattr(PhasePlane, name, lambda self: iter(()))
    phases = PhaseMap(study).seed_map(3)
    for name in NUMBERS:
        assert (phases[name].isnull() == (phases["variance"] == VARIANCES[0])).all()
    assert ((phases["state"] == "") == (phases["variance"] == VARIANCES[0])).all()


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
