"""The map of phases as a table and charts: numbers that they show, axes and curves."""

import io

import numpy as np
import pandas as pd
import pytest
from one_signal import computed, study_of

from pathkernel_phases import phase_views
from pathkernel_phases.phase_map import stored_maps
from pathkernel_phases.results import Phases
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
def views(study):
    return list(Phases().views(study))


def layers_of(views, temperature):
    """Panels of the chart at a temperature: title, and encoding and rows of every layer."""
    name = f"phases_variance_width_temperature_{temperature:g}"
    (chart,) = (view for view in views if isinstance(view, Chart) and view.name == name)
    spec = chart.altair().to_dict()
    panels = {}
    for panel in spec["concat"]:
        texts = [spec["datasets"][layer["data"]["name"]] for layer in panel["layer"]]
        frames = [pd.read_csv(io.StringIO(text)) for text in texts]
        panels[panel["title"]] = list(zip(panel["layer"], frames))
    return panels


def test_the_table_has_every_crossing(views, phases):
    (table,) = (view for view in views if isinstance(view, Table))
    assert len(table.frame) == len(WIDTHS) * len(TEMPERATURES)
    row = table.frame.set_index(["temperature", "width"]).loc[(0.01, 20)]
    expected = phases.sel(temperature=0.01, width=20, seed=3).isel(transition=0)
    for name in ("lower_spinodal", "crossing", "upper_spinodal"):
        assert row[name] == pytest.approx(float(expected[name]), nan_ok=True)
    assert f"{float(expected['crossing']):.4g}" in {cell for row in table.rows for cell in row}


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_panels_have_the_points_of_the_map(views, phases, temperature):
    panels = layers_of(views, temperature)
    assert list(panels) == [
        "accuracy (fraction correct)",
        "tr U / limit",
        "softest eigenvalue",
        "number of minima",
    ]
    cells, rows = panels["tr U / limit"][0]
    assert cells["encoding"]["x"]["title"] == "prior variance σ²"
    assert cells["encoding"]["y"]["title"] == "width N"
    assert len(rows) == len(VARIANCES) * len(WIDTHS)
    for row in rows.itertuples():
        point = phases.sel(variance=row.variance, width=row.width, temperature=temperature)
        assert row.trace_ratio == pytest.approx(point["trace_ratio"].item(), rel=1e-4)
        assert row.variance_low < row.variance < row.variance_high
        assert row.width_low < row.width < row.width_high
    highs, lows = (np.unique(rows[f"variance_{end}"]) for end in ("high", "low"))
    np.testing.assert_allclose(highs[:-1], lows[1:])  # cells leave no gap


def test_curves_are_the_crossings(views, phases):
    expected = phases["crossing"].sel(temperature=0.01).squeeze(["seed", "transition"])
    for layers in layers_of(views, 0.01).values():
        curves = layers[1:]
        assert curves
        for _, rows in curves:
            crossings = rows[rows["branch"] == "crossing"].set_index("width")["value"]
            np.testing.assert_allclose(crossings[list(WIDTHS)], expected, rtol=1e-4)


def test_maps_beyond_the_first_are_counted(study, monkeypatch):
    monkeypatch.setattr(phase_views, "MOST", 1)
    views = list(Phases().views(study))
    assert sum(isinstance(view, Chart) for view in views) == 1
    assert "Maps of 1 of 2 values of temperature are drawn." in views
