"""The figure of the temperature's choices, against the numbers in the store."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from test_choice import Validated
from test_figures import heading, legend, make

from pathkernel_datasets.choice import choose
from pathkernel_views.drawing import BLUE, GREEN, ORANGE, PURPLE
from pathkernel_views.figure_files import NothingToPlot
from pathkernel_views.figures import save_figures
from pathkernel_views.temperature_figure import temperature_choice

pytestmark = pytest.mark.filterwarnings("error")

COLOURS = {"validation": PURPLE, "leave-one-out": GREEN, "evidence": BLUE, "test": ORANGE}
TEMPERATURES = (0.02, 0.3, 1.0)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("figure") / "study.zarr"
    return make(path, Validated(), seeds=(0, 1, 2), temperatures=TEMPERATURES, analyses=False)


def curves(axis):
    """Choice → (places, heights, lowest, highest) of its points with error bars."""
    found = {}
    for container in axis.containers[:4]:  # then that of the legend's last entry
        line, _, (bars,) = container.lines
        choice = next(
            name for name, c in COLOURS.items() if to_rgba(line.get_color()) == to_rgba(c)
        )
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        found[choice] = (line.get_xdata(), line.get_ydata(), ends[:, 0], ends[:, 1])
    return found


def at_chosen(study, variable, choice, test_set, suffix=""):
    """Accuracy, or temperature, where a choice over all seeds takes it, NaN where it takes none."""
    index = choose(study, choice)[f"index{suffix}"].sel(test_set=test_set).values
    if variable == "temperature":
        return np.where(index < 0, np.nan, study.temperature.values[index])
    values = study[f"accuracy{suffix}"].sel(test_set=test_set).transpose(..., "seed").values
    taken = values[index] if suffix else values[index, np.arange(len(index))]
    return np.where(index < 0, np.nan, taken.T)


def test_one_column_per_test_set_shows_every_choice(study):
    figure = temperature_choice(study)
    above, below = figure.axes[:2], figure.axes[2:]
    assert [axis.get_title() for axis in above] == ["long", "short"]
    for name, *axes in zip(("long", "short"), above, below):
        for axis, variable in zip(axes, ("accuracy", "temperature")):
            found = curves(axis)
            assert list(found) == list(COLOURS)
            for choice, (x, y, low, high) in found.items():
                values = np.atleast_2d(at_chosen(study, variable, choice, name))
                there = ~np.isnan(values[0])  # below the paths there is no evidence
                assert there.all() == (choice != "evidence")
                values = values[:, there]
                # moved aside a little
                np.testing.assert_allclose(x, study.width[there], rtol=0.15)
                np.testing.assert_array_equal(y, np.median(values, axis=0))
                np.testing.assert_allclose(low, values.min(axis=0))
                np.testing.assert_allclose(high, values.max(axis=0))
            limits = [np.median(at_chosen(study, variable, c, name, "_gp")) for c in COLOURS]
            across = [line for line in axis.get_lines() if len(set(line.get_ydata())) == 1]
            across = [line for line in across if list(line.get_xdata()) == [0, 1]]
            assert [line.get_ydata()[0] for line in across] == limits
            places = [x for x, *_ in found.values()]
            assert len({tuple(place) for place in places}) == 4, "error bars stand apart"
            assert axis.get_xscale() == "log"
    assert {axis.get_yscale() for axis in below} == {"log"}
    assert below[0].get_xlabel() == "width N"
    assert above[0].get_ylabel() == "accuracy (fraction correct)"
    assert below[0].get_ylabel() == "temperature T chosen"
    assert legend(figure) == [
        "T of largest validation accuracy",
        "T of smallest leave-one-out error",
        "T of largest log evidence, where defined",
        "T best on this very test set (optimistic)",
        "GP limit, T chosen likewise",
    ]
    assert "median and range of 3 seeds" in heading(figure)


def test_the_evidence_to_next_order_is_shown_where_it_is_known(study):
    """Here with a temperature of its own: the choices of the limits are those of the evidence."""
    next_ = study.log_evidence + 1e3 * (study.temperature == 0.3)
    parts = {f"log_evidence_next{suffix}": study[f"log_evidence{suffix}"] for suffix in ("_gp",)}
    study = study.assign(log_evidence_next=next_, **parts)
    figure = temperature_choice(study)
    assert "T of largest log evidence to next order" in legend(figure)
    drawn = [c.lines[0] for c in figure.axes[2].containers if c.lines[0].get_marker() == "v"]
    (line,) = (line for line in drawn if len(line.get_ydata()))
    assert set(line.get_ydata()) == {0.3}
    np.testing.assert_allclose(line.get_xdata(), study.width[1:], rtol=0.15)


def test_one_seed_has_the_binomial_error(study):
    study = study.isel(seed=[1])
    figure = temperature_choice(study)
    assert "seed 1, accuracy ± binomial standard error" in heading(figure)
    for axis, name, count in zip(figure.axes[:2], ("long", "short"), (9, 5)):
        for _, middle, low, high in curves(axis).values():
            error = np.sqrt(middle * (1 - middle) / count)
            np.testing.assert_allclose(high - middle, error)
            np.testing.assert_allclose(middle - low, error)
        values = at_chosen(study, "accuracy", "test", name, "_gp").item()
        error = np.sqrt(values * (1 - values) / count)
        boxes = [box.get_extents().transformed(axis.transData.inverted()) for box in axis.patches]
        if error:
            assert any(
                (box.y0, box.y1) == pytest.approx((values - error, values + error)) for box in boxes
            )


def test_unfinished_seeds_are_left_out(study):
    study = study.load().copy(deep=True)
    study.status[0, 0, 0] = 0
    found = curves(temperature_choice(study).axes[0])["test"]
    values = at_chosen(study.isel(seed=[1, 2]), "accuracy", "test", "long")
    np.testing.assert_array_equal(found[1], np.median(values, axis=0))
    study.status[:, 0, 0] = 0
    with pytest.raises(NothingToPlot, match="grid of no seed is complete"):
        temperature_choice(study)


def test_one_temperature_leaves_nothing_to_show(tmp_path):
    one = make(tmp_path / "one.zarr", Validated(), seeds=(0,), temperatures=(0.1,), analyses=False)
    with pytest.raises(NothingToPlot, match="no choice between temperatures"):
        temperature_choice(one)


def test_it_is_written_where_there_is_a_choice(study, tmp_path):
    written = {file.name for file in save_figures(study, tmp_path)}
    assert {"temperature_choice.png", "temperature_choice.svg"} < written


def test_text_lies_inside_the_figure(study):
    figure = temperature_choice(study)
    figure.draw_without_rendering()
    page, content = figure.bbox, figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert content.x0 > -1
    assert content.y0 > -1
    assert content.x1 < page.x1 + 1
    assert content.y1 < page.y1 + 1
