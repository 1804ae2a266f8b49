"""Every kind of chart on a page in a browser, in the light and in the dark: what can be read."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from chromium import FOUND, Chromium
from readable import mark_contrasts, show_whole, text_contrasts

from pathkernel_phases.map_chart import Panel, draw_map
from pathkernel_views.chart import INK, Chart
from pathkernel_views.colours import (
    CONTRAST_OF_MARKS,
    CONTRAST_OF_TEXT,
    DARK_CARD,
    WHITE,
    contrast,
    for_dark,
)
from pathkernel_views.network import network
from pathkernel_views.primitives import bars, heatmaps, lines, points
from pathkernel_views.report import write_report
from pathkernel_views.table import Table

GROUNDS = {"light": WHITE, "dark": DARK_CARD}


def curves(count):
    names = [*(f"N = {10 * n}" for n in range(1, count)), "theory", "random", "best set", "sampled"]
    frame = pd.DataFrame(
        [(name, x, 0.1 * n + 0.01 * x) for n, name in enumerate(names) for x in (1, 2, 3)],
        columns=["network", "width", "mean"],
    )
    limits = pd.DataFrame({"network": ["GP limit", "good (GP limit)"], "mean": [0.2, 0.55]})
    frame = pd.concat([frame, limits], ignore_index=True)
    return frame.assign(low=frame["mean"] - 0.05, high=frame["mean"] + 0.05, failed=False)


def draw_curves(count, **settings):
    ends = {"low": "low", "high": "high", "series": "network", "hollow": "failed"}
    frame = curves(count)
    frame.loc[0, "failed"] = True
    return lines(frame, "width", "mean", **(ends | settings))


def draw_bars():
    rows = [(f"layer {la}", str(h), f"N = {n}", n) for la in (1, 2) for h in (1, 2) for n in (1, 2)]
    frame = pd.DataFrame(rows, columns=["layer", "head", "network", "score"])
    frame = frame.assign(low=frame["score"] - 0.2, high=frame["score"] + 0.2)
    ends = {"low": "low", "high": "high"}
    return bars(frame, "head", "score", series="network", panel="layer", **ends)


def draw_points():
    frame = pd.DataFrame(
        {"x": np.arange(6.0), "y": np.arange(6.0) ** 2 - 3, "name": list("abcdef")}
    )
    frame = frame.assign(kind=["one", "two"] * 3)
    return points(frame, "x", "y", name="name", series="kind", reference="zero")


def draw_cells(size, **settings):
    generator, names = np.random.default_rng(size), [f"p{n}" for n in range(size)]
    index = pd.MultiIndex.from_product([names, names], names=["path", "path_dual"])
    # values over the whole scale, so that a number lies on every colour
    values = pd.Series(np.linspace(-1, 1, size**2), index, name="U").sample(
        frac=1, random_state=generator.integers(100)
    )
    return heatmaps(values.reset_index(), "path_dual", "path", "U", **settings)


def draw_paths():
    frame = pd.DataFrame({"path": [f"{a}-{b}" for a in (1, 2, 3) for b in (1, 2, 3)]})
    return network(frame.assign(w=np.arange(9.0, 0, -1)), "path", "w", (3, 3))


def draw_phases():
    variances, temperatures = np.geomspace(0.01, 1, 4), np.geomspace(0.001, 0.1, 4)
    dims = ("seed", "variance", "temperature")
    is_used = np.add.outer(np.arange(4), np.zeros(4))[None] > 1
    phases = xr.Dataset(
        {
            "measure": (dims, 0.5 + 0.4 * is_used),
            "minima": (dims, 1.0 + is_used),
            "region": (dims, is_used.astype(float)),
            "state": (dims, np.where(is_used, "in use", "silent")),
            "strongest_path": (dims, np.full(is_used.shape, "1-1")),
        },
        {"seed": [0], "variance": variances, "temperature": temperatures},
    )
    curve = pd.DataFrame({"vertex_temperature": temperatures, "vertex_variance": 0.1})
    curve = curve.assign(seed=0, curve=0, kind="crossing", branch_measure_left=0.5)
    curve = curve.assign(branch_state_left="silent", branch_state_right="in use")
    curve["branch_measure_right"] = 0.9
    axes = {"variance": "prior variance σ²", "temperature": "temperature T"}
    panels = [
        Panel("measure", "branch_measure", "accuracy", (0.5, 0.9)),
        Panel("minima", "", "minima", (1, 2)),
    ]
    return draw_map(phases, curve, axes, panels)


def draw_panels():
    frame = pd.concat([curves(3).assign(panel=f"T = {n}") for n in range(5)])
    return lines(frame, "width", "mean", series="network", panel="panel")


CHARTS = {
    "a few lines": lambda: draw_curves(3),
    "more lines than colours": lambda: draw_curves(6),
    "panels": draw_panels,
    "bars": draw_bars,
    "points": draw_points,
    "a matrix with numbers": lambda: draw_cells(5),
    "a large matrix": lambda: draw_cells(14, centred=False, edges=["p7"]),
    "paths": draw_paths,
    "phases": draw_phases,
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readable")
    grid = ("seed", "temperature", "width")
    dataset = xr.Dataset(
        {"status": (grid, np.ones((1, 1, 1), dtype=int))},
        {"path": ["1-1"], "seed": [0], "temperature": [0.1], "width": [10]},
    )
    charts = [
        Chart(name.replace(" ", "_"), name, "A note. And more.", draw)
        for name, draw in CHARTS.items()
    ]
    frame = pd.DataFrame({"a": [1, 2]})
    views = [*charts, Table("numbers", "Numbers", frame, {"a": "{a}"}, "Below."), "A sentence."]
    write_report(dataset, folder, {"charts": views}, folder / "page.html")
    return folder / "page.html"


DRAWN = "[...document.querySelectorAll('[data-chart]')].every((c) => c.querySelector('svg'))"
WAIT = f"""(async () => {{ for (let n = 0; n < 200 && !({DRAWN}); n++)
    await new Promise((next) => setTimeout(next, 50)); return {DRAWN}; }})()"""
KEYS_ABOVE = """(() => {
    const drawings = [...document.querySelectorAll('.plot svg')];
    const svg = drawings.find((svg) => svg.querySelector('title').textContent === 'panels');
    const texts = [...svg.querySelectorAll('text')];
    const top = (name) =>
        texts.find((text) => text.textContent === name).getBoundingClientRect().top;
    return top('GP limit') < top('T = 0') && top('T = 0') < top('T = 4'); })()"""
LETTERS = """Object.fromEntries([...document.querySelectorAll('.plot svg')].map((svg) => [
    svg.querySelector('title').textContent,
    8 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width]))"""


@pytest.mark.skipif(FOUND is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_panels_fill_the_width_of_a_phone(page, tmp_path):
    browser = Chromium(tmp_path)
    try:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.open(page)
        assert browser.evaluate(WAIT)
        letters = browser.evaluate(LETTERS)  # heights in pixels
        assert min(letters.values()) > 10.9
        assert browser.evaluate(KEYS_ABOVE)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        browser.close()


@pytest.mark.skipif(FOUND is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_every_text_and_mark_can_be_read_in_the_light_and_in_the_dark(page, tmp_path):
    browser = Chromium(tmp_path)
    try:
        browser.open(page)
        assert browser.evaluate(WAIT)
        described = "[...document.querySelectorAll('.plot svg')].map((svg) => [svg.ariaLabel,"
        described += " ...['title', 'desc'].map((t) => svg.querySelector(t).textContent)])"
        for label, title, description in browser.evaluate(described):
            assert title in CHARTS
            assert description == "A note."
            assert label == f"{title}. {description}"
        show_whole(browser, 1280)
        for theme, ground in GROUNDS.items():
            if browser.evaluate("document.documentElement.dataset.theme") != theme:
                browser.evaluate("document.getElementById('theme').click()")
            texts, marks = text_contrasts(browser), mark_contrasts(browser, ground)
            assert len(texts) > 150
            assert len(marks) > 100
            assert [text for text in texts if text[1] < CONTRAST_OF_TEXT] == [], theme
            assert [mark for mark in marks if mark[1] < CONTRAST_OF_MARKS] == [], theme
    finally:
        browser.close()


def test_dark_colours_keep_their_contrast_and_their_order():
    generator = np.random.default_rng(0)
    for parts in generator.integers(0, 256, (200, 3)):
        colour = "#{:02x}{:02x}{:02x}".format(*parts)
        if contrast(colour) >= CONTRAST_OF_MARKS:
            assert contrast(for_dark(colour), DARK_CARD) >= CONTRAST_OF_MARKS
    assert contrast(for_dark(INK), DARK_CARD) >= CONTRAST_OF_TEXT
    greys = [f"#{part:02x}{part:02x}{part:02x}" for part in range(0, 256, 15)]
    light = [contrast(for_dark(grey), "#000000") for grey in greys]
    assert light == sorted(light, reverse=True)
    assert contrast(for_dark("#000000"), WHITE) == pytest.approx(1)
