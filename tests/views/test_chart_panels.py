"""Panels at the width of a column of a paper: their titles, names and numbers have room."""

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from pathkernel_views.chart import Chart, svg_of
from pathkernel_views.chart_panels import stacked_legend, text_width, wrap_text
from pathkernel_views.primitives import heatmaps, lines, points

COLUMN = 3.4 * 72  # points
WORDS = ["accuracy", "head", "score", "of", "fashion-mnist", "fraction", "correct", "largest"]


def boxes(svg):
    """Text, left, right, top and bottom of every horizontal text of a drawing, in points."""
    texts = []

    def visit(element, x, y):
        move = re.search(r"translate\(([-\d.e]+)[, ]([-\d.e]+)\)", element.get("transform", ""))
        if move:
            x, y = x + float(move.group(1)), y + float(move.group(2))
        is_text = element.tag.endswith("}text") and element.get("opacity") != "0"
        if is_text and "rotate" not in element.get("transform", ""):
            text, size = "".join(element.itertext()), float(element.get("font-size", "8")[:-2])
            width = 0.95 * text_width(text, size)
            left = x - {"middle": width / 2, "end": width}.get(element.get("text-anchor"), 0)
            texts.append((text, left, left + width, y - 0.7 * size, y))
        for child in element:
            visit(child, x, y)

    visit(ElementTree.fromstring(svg), 0.0, 0.0)
    return texts


def overlapping(svg):
    """Pairs of texts that lie on each other by more than half a point."""
    visible = [box for box in boxes(svg) if box[0].strip()]
    return [
        (one[0], other[0])
        for n, one in enumerate(visible)
        for other in visible[:n]
        if min(one[2], other[2]) - max(one[1], other[1]) > 0.5
        and min(one[4], other[4]) - max(one[3], other[3]) > 0.5
    ]


def draw_svg(draw, width=COLUMN):
    return svg_of(Chart("draw_svg", "Title", "Caption.", draw).specification(width=width))


@pytest.mark.parametrize(("size", "count", "letters"), [(2, 4, 2), (4, 4, 3), (4, 3, 9), (8, 2, 3)])
def test_numbers_in_cells_have_room(size, count, letters):
    generator = np.random.default_rng(size)
    names = [f"{n}".rjust(letters, "o") for n in range(size)]
    index = pd.MultiIndex.from_product([names, names], names=["path", "path_dual"])
    frames = [
        pd.Series(generator.normal(size=size**2), index, name="U")
        .reset_index()
        .assign(panel=f"N = {n}")
        for n in range(count)
    ]
    frame = pd.concat(frames)
    svg = draw_svg(lambda: heatmaps(frame, "path_dual", "path", "U", panel="panel"))
    numbers = [box for box in boxes(svg) if re.fullmatch(r"[−\d.]+", box[0])]
    assert len(numbers) >= count * size**2
    assert overlapping(svg) == []


def test_values_too_small_for_a_colour_are_0_where_all_are_tiny():
    frame = pd.DataFrame({"a": ["x", "y"], "b": ["z", "z"], "U": [1e-5, -2e-12]})
    texts = [box[0] for box in boxes(draw_svg(lambda: heatmaps(frame, "a", "b", "U")))]
    assert {"1e-5", "0"} <= set(texts)
    assert "−2e-12" not in texts


@pytest.mark.parametrize("width", [COLUMN, 504])
def test_names_of_points_do_not_lie_on_each_other(width):
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(generator.normal(size=(32, 2)) ** 3, columns=["x", "y"])
    frame["name"] = [f"{n % 4 + 1}-{n // 4 % 4 + 1}" for n in range(32)]
    frame["panel"] = np.repeat(["one", "two"], 16)
    svg = draw_svg(lambda: points(frame, "x", "y", name="name", panel="panel", reference=""), width)
    is_name = re.compile(r"\d-\d").fullmatch
    assert sum(bool(is_name(box[0])) for box in boxes(svg)) > 6
    assert not [pair for pair in overlapping(svg) if all(map(is_name, pair))]


@pytest.mark.parametrize(
    ("value", "log"),
    [(0.9658, False), (0.0, False), (-17.25, False), (1e-4, False), (0.9658, True), (1e-4, True)],
)
def test_an_axis_of_a_single_value_names_it(value, log):
    frame = pd.DataFrame({"width": [10, 100], "mean": [value, value]})
    texts = [
        box[0] for box in boxes(draw_svg(lambda: lines(frame, "width", "mean", log_y=log), 300))
    ]
    ticks = [float(text.replace("−", "-")) for text in texts if re.fullmatch(r"[−\d.e]+", text)]
    around = [tick for tick in ticks if tick not in (10, 100)]
    assert around
    assert min(abs(tick - value) for tick in around) <= 0.02 * abs(value)


def test_lines_of_a_text_are_about_as_long_and_keep_quantities_together():
    generator = np.random.default_rng(0)
    for _ in range(200):
        words = list(generator.choice(WORDS, generator.integers(1, 7)))
        ending = generator.choice(["", "N = 10", "95 %", "T", "unit 0.688", "ρ = 0.19"])
        text = " ".join([*words, *filter(None, [ending])])
        room = generator.uniform(40, 160)
        wrapped = wrap_text(text, room)
        assert "".join(wrapped).replace(" ", "") == text.replace(" ", "")
        assert all(re.match(r"[^\d%=]", line) and line != "T" for line in wrapped)
        word = max(map(len, (*WORDS, "correct N = 10")))  # the longest that has no break
        assert max(map(len, wrapped)) <= len(text) / len(wrapped) + word
    assert wrap_text("head score, median (largest 1)", 110) == ["head score, median", "(largest 1)"]


def test_a_legend_for_stacked_panels_is_as_narrow_as_one_of_them():
    rows = [
        (f"series {n} of many", panel, x, n + x)
        for n in range(4)
        for panel in ("one", "two", "three")
        for x in (1, 2)
    ]
    frame = pd.DataFrame(rows, columns=["name", "panel", "x", "y"])
    draw = lambda **settings: Chart(  # noqa: E731
        "draw_svg", "", "", lambda: lines(frame, "x", "y", series="name", **settings)
    ).specification()
    spec = draw(panel="panel")
    one = spec["vconcat"][0]["concat"][0]["width"]
    assert stacked_legend(spec)["width"] < one + 20 < spec["vconcat"][1]["width"]
    assert stacked_legend(draw()) is None  # which has one panel
