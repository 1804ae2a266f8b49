"""The map of phases as tables and charts: numbers that they show, axes, curves and names."""

import io

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from one_signal import computed, study_of

from pathkernel_phases import phase_views
from pathkernel_phases.coincidence import coincident_curves
from pathkernel_phases.map_chart import label_places, ticks
from pathkernel_phases.phase_map import stored_maps, stored_phase_curves
from pathkernel_phases.results import Phases
from pathkernel_phases.surface import CELLS
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")

VARIANCES = (0.02, 0.08, 0.4)
TEMPERATURES = (0.01, 0.02)
WIDTHS = (16, 18, 20)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("phases") / "study"
    study_of(path, sweep={"variance": VARIANCES}, temperatures=TEMPERATURES, widths=WIDTHS)
    return computed(Phases(), path)[0]


@pytest.fixture(scope="module")
def phases(study):
    return stored_maps(study)["variance"].load()


@pytest.fixture(scope="module")
def curves(study):
    return stored_phase_curves(study, "variance")


@pytest.fixture(scope="module")
def views(study):
    return list(Phases().views(study))


@pytest.fixture(scope="module")
def layers(views):
    """Layers of the panels of each chart, by temperature."""
    return {temperature: layers_of(views, temperature) for temperature in TEMPERATURES}


def layers_of(views, temperature):
    """Panels of the chart at a temperature: title, and encoding and rows of every layer."""
    name = f"phases_variance_width_temperature_{temperature:g}"
    (chart,) = (view for view in views if isinstance(view, Chart) and view.name == name)
    spec = chart.specification(validate=True)
    panels = {}
    for panel in spec["concat"]:
        texts = [spec["datasets"][layer["data"]["name"]] for layer in panel["layer"]]
        frames = [pd.read_csv(io.StringIO(text)) for text in texts]
        panels[panel["title"]] = list(zip(panel["layer"], frames))
    return panels


def test_the_table_has_the_curves_at_the_values_of_the_study(views, curves):
    table, _ = (view for view in views if isinstance(view, Table))
    frame = table.frame
    crossings = frame[frame["kind"] == "crossing"]
    assert len(crossings) == len(WIDTHS) * len(TEMPERATURES)
    assert (crossings["below"] == "silent").all()
    assert crossings["above"].str.startswith("in use, ").all()
    row = crossings.set_index(["temperature", "width"]).loc[(0.01, 20)]
    stored = curves[(curves["kind"] == "crossing") & (curves["vertex_temperature"] == 0.01)]
    (expected,) = stored.loc[stored["vertex_width"] == 20, "vertex_variance"]
    assert row["variance"] == expected
    assert f"{expected:.4g}" in {cell for row in table.rows for cell in row}
    for _, point in frame[frame["kind"] == "spinodal"].iterrows():
        assert "-" in (point["below"], point["above"])
    # the silent minimum ends above its crossing, and that in use below
    ends = frame[frame["kind"] == "spinodal"].set_index(["temperature", "width"]).loc[(0.01, 20)]
    silent, used = (ends[ends["below"] == "silent"], ends[ends["below"] == "-"])
    assert used["variance"].item() < expected < silent["variance"].item()


def test_a_second_table_has_every_point_in_order(views, curves):
    _, table = (view for view in views if isinstance(view, Table))
    assert table.detail
    assert len(table.frame) == len(curves)
    np.testing.assert_array_equal(table.frame["variance"], curves["vertex_variance"])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_panels_have_the_points_of_the_map(layers, phases, temperature):
    panels = layers[temperature]
    assert list(panels) == [
        "accuracy (fraction correct)",
        "tr U / limit",
        "log₁₀ of the eigenvalue",
        "minima at grid points",
    ]
    cells, rows = panels["tr U / limit"][0]
    assert cells["encoding"]["x"]["title"] == "prior variance σ²"
    assert cells["encoding"]["y"]["title"] == "width N"
    assert len(rows) > CELLS**2  # with smaller cells along the crossing
    spans = [np.log(rows[f"{name}_high"] / rows[f"{name}_low"]) for name in ("variance", "width")]
    whole = np.log(0.4 / 0.02) * np.log(20 / 16)
    assert whole < (spans[0] * spans[1]).sum() < 2 * whole  # they overlap a little
    at_temperature = phases["trace_ratio"].sel(temperature=temperature).squeeze()
    for corner in ({"variance": 0.02, "width": 16}, {"variance": 0.4, "width": 20}):
        inside = (rows["variance_low"] <= corner["variance"] * 1.001) & (
            rows["variance_high"] >= corner["variance"] * 0.999
        )
        inside &= (rows["width_low"] <= corner["width"] * 1.001) & (
            rows["width_high"] >= corner["width"] * 0.999
        )
        assert np.log(rows.loc[inside, "value"].iloc[0]) == pytest.approx(
            np.log(at_temperature.sel(corner).item()), abs=0.1
        )
    _, counts = panels["minima at grid points"][0]
    assert len(counts) == len(VARIANCES) * len(WIDTHS)
    highs, lows = (np.unique(counts[f"variance_{end}"].round(6)) for end in ("high", "low"))
    assert (highs[:-1] >= lows[1:]).all()  # cells leave no gap


def test_colours_have_one_range_on_all_maps(layers):
    scales = [
        [panel[0][0]["encoding"]["color"]["scale"].get("domain") for panel in panels.values()]
        for panels in layers.values()
    ]
    assert scales[0] == scales[1]
    assert None not in scales[0]


def test_curves_are_drawn_in_order_and_told_apart_by_their_dashes(layers, curves):
    of_map = curves[curves["vertex_temperature"] == 0.01]
    for panel in layers[0.01].values():
        drawn = [(mark, rows) for mark, rows in panel if mark["mark"]["type"] == "line"]
        assert len(drawn) == 2  # over a white seam
        for _, rows in drawn:
            assert len(rows) == len(of_map)
            for number, rows_of_curve in rows.groupby("curve"):
                assert (rows_of_curve["order"].diff().dropna() == 1).all()
                expected = of_map.loc[of_map["curve"] == number, "vertex_variance"]
                np.testing.assert_allclose(rows_of_curve["vertex_variance"], expected, rtol=1e-5)
        dash = drawn[-1][0]["encoding"]["strokeDash"]["scale"]
        assert dash["domain"] == ["crossing", "end of a silent minimum", "end of a minimum in use"]
        assert len({tuple(pattern) for pattern in dash["range"]}) == 3


def test_regions_are_named_clear_of_the_curves(layers, phases, curves):
    of_map = curves[curves["vertex_temperature"] == 0.01]
    at_map = phases.sel(temperature=0.01).isel(seed=0)[["region", "state"]].squeeze()
    at_map = at_map.transpose("variance", "width")
    halves = dict.fromkeys((0, 1), np.array([0.22, 0.08]))
    places = label_places(at_map, of_map, ["variance", "width"], halves)
    crossings = of_map.loc[of_map["kind"] == "crossing", "vertex_variance"]
    names = [rows for mark, rows in layers[0.01]["accuracy (fraction correct)"]][-1]
    assert names["text"].tolist()[0] == "silent"
    assert names["text"].tolist()[1] in {"1", "2", "1-1", "1-2", "2-1", "2-2"}
    assert places[0][0] < crossings.min()
    assert places[1][0] > crossings.max()
    axes = [at_map[name].values for name in ("variance", "width")]
    half = np.array([0.3, 0.1])  # a name as wide as two thirds of the panel crosses no axis
    wide = label_places(at_map, of_map, ["variance", "width"], dict.fromkeys((0, 1), half))
    for place in wide.values():
        shares = [np.log(p / axis[0]) / np.log(axis[-1] / axis[0]) for p, axis in zip(place, axes)]
        assert (np.array(shares) > half - 1e-9).all()
        assert (np.array(shares) < 1 - half + 1e-9).all()


def test_cells_along_a_crossing_are_small_and_powers_of_ten_are_written_out(layers, views):
    (cells, rows), *_ = layers[0.01]["tr U / limit"]
    extent = np.log(rows["variance_high"] / rows["variance_low"])
    crossed = next(rows for _, rows in layers[0.01]["tr U / limit"] if "order" in rows)
    at_crossing = crossed.loc[crossed["line"] == "crossing", "vertex_variance"]
    inside = [((rows["variance_low"] <= v) & (v <= rows["variance_high"])) for v in at_crossing]
    smallest = min(extent[mask].min() for mask in inside)
    assert smallest < 0.6 * extent.max()  # a fifth of a cell, and their overlap
    legend = cells["encoding"]["color"]["legend"]
    assert '"1": "10"' in legend["labelExpr"]
    assert "²" in legend["labelExpr"] or "³" in legend["labelExpr"]
    charts = [view for view in views if isinstance(view, Chart)]
    assert all("prior variance" in chart.caption and "Seed 3." in chart.caption for chart in charts)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.001, 0.1, [0.001, 0.01, 0.1]),
        (0.02, 0.4, [0.02, 0.05, 0.1, 0.2]),
        (3.0, 100.0, [10.0, 100.0]),
    ],
)
def test_ticks_are_decades_where_there_are_two(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_maps_beyond_the_first_are_counted(study, monkeypatch):
    monkeypatch.setattr(phase_views, "MOST", 1)
    views = list(Phases().views(study))
    assert sum(isinstance(view, Chart) for view in views) == 1
    assert "Maps of 1 of 2 values of temperature are drawn." in views


@pytest.mark.parametrize("number", range(6))
def test_names_of_regions_lie_on_no_line_where_there_is_room(number):
    generator = np.random.default_rng(number)
    x, y = np.geomspace(0.01, 1, 9), np.geomspace(1e-3, 10, 8)
    border = 0.01 ** generator.uniform(0.25, 0.75)  # of two regions, upright
    shape = 0.3 * generator.uniform(-0.2, 0.2, 30)
    line = pd.DataFrame(
        {"vertex_x": border * np.exp(shape), "vertex_y": np.geomspace(1e-3, 10, 30)}
    )
    line = line.assign(curve=0, kind="crossing")
    regions = np.repeat((x > border)[:, None], len(y), axis=1).astype(float)
    phases = xr.Dataset({"region": (("x", "y"), regions)}, {"x": x, "y": y})
    halves = {region: generator.uniform([0.05, 0.03], [0.11, 0.08]) for region in (0, 1)}
    shares = np.column_stack([np.log(line["vertex_x"] / 0.01) / np.log(100), np.linspace(0, 1, 30)])
    for region, place in label_places(phases, line, ["x", "y"], halves).items():
        centre = np.log(place / [0.01, 1e-3]) / np.log([100, 1e4])
        assert (np.abs(shares - centre) > halves[region]).any(axis=1).all()


def test_curves_that_lie_on_each_other_are_told():
    generator = np.random.default_rng(1)
    x = np.geomspace(0.01, 1, 12)
    names, ranges = ("x", "y"), [(0.01, 1.0), (0.1, 10.0)]

    def curve(number, x, shift):
        return pd.DataFrame({"vertex_x": x, "vertex_y": 10 * x * shift, "seed": 0, "curve": number})

    same, apart = 1 + 0.02 * generator.standard_normal(12), generator.uniform(1.6, 3.0)
    frame = pd.concat([curve(0, x, 1.0), curve(4, x, same), curve(7, x, apart)])
    assert coincident_curves(frame, names, ranges) == [(0, 4)]
    part = pd.concat([curve(0, x, 1.0), curve(2, x[5:9], 1.0)])  # of fewer points, and shorter
    assert coincident_curves(part, names, ranges) == [(0, 2)]
    assert coincident_curves(part.assign(seed=part["curve"]), names, ranges) == []
