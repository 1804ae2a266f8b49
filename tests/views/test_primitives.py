"""Pictures of frames: the data that they hold, what switches show, and their files."""

import csv
import html
import io
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from pathkernel_views.chart import (
    GREY,
    THEME,
    Chart,
    NothingToPlot,
    render_image,
    save_charts,
    svg_of,
)
from pathkernel_views.chart_panels import TALLEST, with_width
from pathkernel_views.colours import contrast
from pathkernel_views.looks import looks
from pathkernel_views.network import network
from pathkernel_views.primitives import bars, chart_grid, heatmaps, lines, points

HOSTILE = '"] + <b>\\'


@pytest.fixture
def frame():
    rows = [
        (seed, name, width, 0.1 * seed + 0.01 * n)
        for seed in (0, 1)
        for n, (name, width) in enumerate(
            [("theory", 10), ("theory", 100), ("GP limit", None), ("random", 10)]
        )
    ]
    frame = pd.DataFrame(rows, columns=["seed", "network", "width", "mean"])
    return frame.assign(low=frame["mean"] - 0.05, high=frame["mean"] + 0.05)


def against_width(frame, **settings):
    ends = {"low": "low", "high": "high", "series": "network", "log": True}
    return lines(frame, "width", "mean", **(ends | settings))


def chart(draw, **settings):
    return Chart("drawn", f"Title {HOSTILE}", "Caption.", draw, **settings)


def specification(draw):
    return chart(draw).specification(validate=True)


def data_of(spec):
    (text,) = (text for text in spec["datasets"].values() if isinstance(text, str))
    return list(csv.DictReader(io.StringIO(text)))


def texts(spec):
    """Text of a drawn chart."""
    svg = svg_of(spec)
    return [
        html.unescape(re.sub("<[^>]*>", "", text)) for text in re.findall(r"<text.*?</text>", svg)
    ]


def test_lines_hold_the_frame_and_say_what_they_show(frame):
    spec = specification(lambda: against_width(frame, switches=["seed"]))
    same = chart(lambda: against_width(frame, switches=["seed"])).altair().to_dict()
    assert same | {"config": spec["config"]} == spec  # Altair adds its own theme
    rows = data_of(spec)
    assert [float(row["mean"]) for row in rows] == pytest.approx(frame["mean"].tolist())
    assert rows[2]["width"] == ""
    (parameter,) = spec["params"]
    assert parameter["bind"]["options"] == ["0", "1"]
    told = texts(spec)
    assert any(text.endswith("seed 0") for text in told)
    spec["params"][0]["value"] = "1"
    assert any(text.endswith("seed 1") for text in texts(spec))
    assert {"10", "100", "theory", "GP limit", "random"} <= set(told)


def test_a_chart_has_one_range_with_and_without_its_switch(frame):
    spec = specification(lambda: against_width(frame, switches=["seed"]))
    for seed in (0, 1):
        spec["params"][0]["value"] = str(seed)
        rows = frame[frame["seed"] == seed]
        still = specification(lambda rows=rows: against_width(rows, switches=["seed"]))
        assert texts(spec)[:-1] == texts(still)[:-1]


def test_single_values_are_words_and_not_switches(frame):
    one = frame[frame["seed"] == 0].assign(shown="T = 0.1")
    spec = specification(lambda: against_width(one, switches=["shown", "seed"]))
    assert "params" not in spec
    assert any(text.endswith("T = 0.1, seed 0") for text in texts(spec))
    bare = chart(lambda: against_width(one, switches=["seed"])).altair(title=False)
    assert texts(bare.to_dict())[-1] == "seed 0"


def test_series_are_told_apart_by_colour_and_by_dash_or_marker():
    names = ["theory N=10", "theory N=100", "GP limit", "good (GP limit)", "a", "b", "random"]
    styles = looks(names)
    assert list(styles) == names
    assert styles["random"].colour == GREY
    assert len({(look.colour, look.dash, look.shape) for look in styles.values()}) == len(names)
    assert styles["GP limit"].dash != styles["a"].dash
    many = [f"order {n}" for n in range(13)] + [f"N = {10**n}" for n in range(6)]
    drawn = looks(many).values()
    assert len({(look.colour, look.dash) for look in drawn}) == len(many)
    assert min(contrast(look.colour) for look in drawn) >= 3


def test_rows_that_are_hollow_have_white_markers(frame):
    marked = frame.assign(failed=frame["width"] == 100)
    spec = specification(lambda: against_width(marked, hollow="failed"))
    markers = re.findall(r'<path[^>]*role="graphics-symbol"[^>]*>', svg_of(spec))
    white = [marker for marker in markers if 'fill="white"' in marker]
    assert len(white) == (frame["width"] == 100).sum()
    assert all("width: 100" in marker for marker in white)


def test_names_of_points_stand_where_there_is_room():
    x = np.array([0.0, 0.0, 0.0, 1.0])
    frame = pd.DataFrame({"x": x, "y": x, "low": x - 0.1, "high": x + 0.1, "name": list("abcd")})
    frame["name"] = frame["name"] * 12  # as wide as a third of the panel
    told = texts(specification(lambda: points(frame, "x", "y", name="name")))
    assert "d" * 12 in told
    crowded = pd.concat([frame.assign(name=frame["name"] + str(n)) for n in range(6)])
    told = texts(specification(lambda: points(crowded, "x", "y", name="name")))
    assert 2 <= sum(len(text) == 13 for text in told) < 24


def test_text_along_x_panels_and_names_that_are_code(frame):
    named = frame.assign(width=HOSTILE, network=frame["network"] + HOSTILE)
    for settings in ({}, {"panel": "seed"}, {"panel": "seed", "same_y": False}):
        spec = specification(lambda settings=settings: against_width(named, **settings))
        assert any("theory" in text for text in texts(spec))


@pytest.mark.parametrize("size", [4, 16, 40])
def test_heat_maps(size):
    names = [f"{n}.[{HOSTILE}]" for n in range(size)]
    values = np.random.default_rng(0).normal(size=(2, size, size))
    values[0, 0, 1] = np.nan
    frames = []
    for seed, matrix in enumerate(values):
        index = pd.MultiIndex.from_product([names, names], names=["path", "path_dual"])
        long_form = pd.Series(matrix.ravel(), index, name="U").reset_index()
        frames.append(long_form.assign(seed=seed, panel=f"N = {10**seed}"))
    frame = pd.concat(frames)

    def draw():
        return heatmaps(frame, "path_dual", "path", "U", panel="panel", edges=names[1:2])

    spec = specification(draw)
    rows = data_of(spec)
    cells = [[float(row[name] or "nan") for name in names] for row in rows]
    np.testing.assert_allclose(cells, values.reshape(-1, size), rtol=1e-5)
    told = texts(spec)
    assert (f"{values[0, 0, 0]:.2f}".replace("-", "−") in told) is (size == 4)
    assert (names[0] in told) is (size <= 16)


def test_heat_maps_of_several_sizes_each_fill_their_panel():
    frames = []
    for size, unit in ((2, 1.0), (4, 1e-4)):
        names = [f"{size} paths" if n == size - 1 else f"path {n}" for n in range(size)]
        index = pd.MultiIndex.from_product([names, names], names=["path", "path_dual"])
        matrix = pd.Series(np.full(size**2, 0.5 * unit), index, name="U").reset_index()
        frames.append(matrix.assign(examples=size))
    frame = pd.concat(frames)
    spec = specification(lambda: heatmaps(frame, "path_dual", "path", "U", switches=["examples"]))
    assert {"path 0", "2 paths"} <= set(told := texts(spec))
    assert not {"path 1", "4 paths"} & set(told)
    assert told.count("0.50") == 4
    spec["params"][0]["value"] = "4"
    assert {"path 0", "path 1", "path 2", "4 paths"} <= set(told := texts(spec))
    assert "2 paths" not in told
    assert told.count("5e-5") == 16  # not 0.00


def test_bars_points_and_the_network(frame):
    layers = pd.DataFrame(
        [(f"layer {layer}", str(h), n, 0.5) for layer in (1, 2) for h in (1, 2) for n in "ab"],
        columns=["layer", "head", "series", "score"],
    )
    spec = specification(lambda: bars(layers, "head", "score", series="series", panel="layer"))
    assert {"layer 1", "layer 2", "1", "2", "a", "b"} <= set(texts(spec))
    pairs = pd.DataFrame({"x": [0.0, 1.0], "y": [0.1, 0.9], "name": ["1-1", HOSTILE]})
    spec = specification(lambda: points(pairs, "x", "y", name="name"))
    assert "1-1" in texts(spec)
    paths = pd.DataFrame(
        {
            "path": ["1-1", "2-1", "skip-1"] * 2,
            "w": [3, 1, np.nan, 2, 5, 1],
            "seed": [0] * 3 + [1] * 3,
        }
    )
    spec = specification(lambda: network(paths, "path", "w", (2, 1), switches=["seed"]))
    assert {"input", "layer 1", "layer 2", "output", "1-1:  3"} <= set(texts(spec))
    spec["params"][0]["value"] = "1"
    assert "skip-1:  1" in texts(spec)
    both = chart_grid(
        against_width(frame, switches=["seed"]), against_width(frame, switches=["seed"])
    )
    spec = specification(lambda: both)
    assert len(spec["params"]) == 1
    assert texts(spec).count("theory") == 1


def test_nothing_to_plot(frame, tmp_path):
    empty = frame.assign(mean=np.nan)
    with pytest.raises(NothingToPlot, match="mean is not computed yet"):
        against_width(empty)
    lines_said = []
    assert save_charts([chart(lambda: against_width(empty))], tmp_path, lines_said.append) == []
    assert lines_said == ["drawn: skipped, mean is not computed yet"]


def test_files(frame, tmp_path):
    drawn = chart(lambda: against_width(frame, switches=["seed"]))
    formats = ("png", "svg", "pdf")
    files = save_charts([drawn], tmp_path, formats=formats, dpi=100, width=3.0)
    assert [file.name for file in files] == ["drawn.png", "drawn.svg", "drawn.pdf"]
    assert (tmp_path / "drawn.txt").read_text().startswith('Title "] + <b>\\, seed 0. Caption.')
    with Image.open(files[0]) as image:
        assert image.width == 300
        assert image.info["dpi"][0] == pytest.approx(100, abs=0.1)
    assert b"<text" in files[1].read_bytes()
    drawing = ElementTree.parse(files[1]).getroot()
    about = [drawing.find(f"{{http://www.w3.org/2000/svg}}{tag}").text for tag in ("title", "desc")]
    assert about == ['Title "] + <b>\\', "Caption."]
    assert files[2].read_bytes().startswith(b"%PDF")
    assert save_charts([drawn], tmp_path, formats=formats) == files  # they replace themselves
    files[0].write_bytes(b"mine")
    said = []
    assert save_charts([drawn], tmp_path, said.append) == []
    assert "is not a chart of pathkernel" in said[0]
    assert files[0].read_bytes() == b"mine"


@pytest.mark.parametrize("text", ["log₁₀ of U", "log 10⁻⁶", "log x⁰₂", "log 10² and 10⁹"])
def test_exponents_and_indices_leave_the_font_of_their_text(text):
    def picture(text):
        mark = {"type": "text", "text": text, "align": "left", "x": 2, "fontSize": 14}
        spec = {"data": {"values": [{}]}, "mark": mark, "width": 150, "height": 20}
        svg = svg_of(spec | {"config": THEME})
        assert not set(re.sub("<[^>]*>", "", svg)) & set("⁰⁶⁹⁻₀₁")
        return np.asarray(Image.open(io.BytesIO(render_image(svg, "png"))).convert("L"))

    letters = slice(20, 60)  # pixels, of the letters l and o
    np.testing.assert_array_equal(picture(text)[:, letters], picture("log of U")[:, letters])


def test_a_chart_that_fails_leaves_the_others(frame, tmp_path):
    said, broken = [], Chart("broken", "", "", lambda: 1 / 0)
    good = chart(lambda: against_width(frame))
    assert len(save_charts([broken, good], tmp_path, said.append)) == 2
    assert said == ["Warning: broken is not drawn (ZeroDivisionError: division by zero)."]
    with pytest.raises(ZeroDivisionError):
        save_charts([broken], tmp_path)


def size_of(svg):
    found = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    return float(found.group(1)), float(found.group(2))


def test_long_titles_are_broken_and_widen_no_chart(frame):
    one = frame[frame["seed"] == 0].assign(shown="T of the largest " + "very long choice " * 4)
    draw = lambda: against_width(one, switches=["shown", "seed"])  # noqa: E731
    short = Chart("drawn", "Title", "", draw)
    long = Chart("drawn", "Accuracy of a network " * 6, "", draw)
    svg = svg_of(long.specification(width=245))
    assert size_of(svg)[0] == pytest.approx(245, abs=3)
    widths = [size_of(svg_of(drawn.specification(switches=False)))[0] for drawn in (short, long)]
    assert widths[1] < 1.15 * widths[0]  # letters are as wide as they are
    assert "very long" not in svg  # which is for the caption


@pytest.mark.parametrize("points", [244.8, 360, 504])
@pytest.mark.parametrize("heading", ["", "a heading that is longer than its panel {}"])
@pytest.mark.parametrize("count", [1, 4, 14])
def test_charts_have_the_width_that_was_asked_for_and_fit_on_a_page(frame, points, heading, count):
    one = frame[frame["seed"] == 0]
    panels = pd.concat(
        [one.assign(panel=heading.format(n) if heading else f"{n}") for n in range(count)]
    )
    drawn = chart(lambda: against_width(panels, panel="panel")).specification(width=points)
    svg = svg_of(drawn)
    assert -3 < points - size_of(svg)[0] < 3
    width, height = size_of(with_width(svg, points))
    assert width == points
    assert height <= TALLEST


def places(svg, x):
    """Horizontal positions of the points of a chart, and of the ticks of their values."""
    text = re.findall(r'<text[^>]*transform="translate\(([\d.]+),13\)"[^>]*>([^<]+)<', svg)
    ticks = {name: float(place) for place, name in text}
    marks = re.findall(r'<path (aria-label="[^>]*roledescription="point"[^>]*)>', svg)
    pattern = rf'{x}: ([^;"]+).*translate\(([\d.]+),'
    points = [re.search(pattern, mark).groups() for mark in marks]
    return [(name, float(place), ticks[name]) for name, place in points]


@pytest.mark.parametrize("points", [None, 244.8, 504])
@pytest.mark.parametrize("x", ["width", "readout"])
def test_points_stand_at_their_values(frame, points, x):
    """Neighbouring series are nowhere further than 2 % of the panel from their value."""
    rows = pd.concat([frame.assign(network=f"series {n}") for n in range(5)])
    rows = rows.dropna().reset_index(drop=True)
    rows = rows.assign(readout=rows["width"].map({10: "first", 100: "last"}))
    spec = chart(
        lambda: (
            against_width(rows, log=x == "width")
            if x == "width"
            else lines(rows, x, "mean", low="low", high="high", series="network")
        )
    ).specification(width=points)
    svg = svg_of(spec)
    panel = spec["vconcat"][0]["width"]
    found = places(svg, x)
    assert len(found) == len(rows)
    shifts = [abs(place - tick) / panel for _, place, tick in found]
    assert max(shifts) < (0.005 if x == "width" else 0.02)
    assert len({place for _, place, _ in found}) == (2 if x == "width" else 10)


def test_panels_share_axes_and_their_headings_are_on_one_line(frame):
    panels = pd.concat([frame.assign(panel=f"panel {n}") for n in range(5)])
    svg = svg_of(chart(lambda: against_width(panels, panel="panel")).specification())
    for row in ((0, 1, 2), (3, 4)):
        heights = [re.search(rf'translate\([\d.]+,([−\d.-]+)\)"[^>]*>panel {n}<', svg) for n in row]
        assert len({float(height.group(1)) for height in heights}) == 1
    assert svg.count(">mean<") == 2  # one for each row
    assert svg.count(">width<") == 3  # one below each column, also above a gap


def test_more_series_than_colours_have_panels_of_their_own(frame):
    rows = pd.concat([frame.assign(network=f"order {n}") for n in range(14)]).dropna()
    told = texts(specification(lambda: against_width(rows)))
    assert sum(text.startswith("order ") for text in told) == 14
    assert "the other networks" in told


def test_series_that_agree_are_told_and_ranges_without_extent_are_not_in_the_legend(frame):
    one = frame[frame["seed"] == 0]
    same = one[one["network"] == "theory"]
    copies = [same.assign(network=f"copy {n}") for n in range(2)]
    spec = specification(lambda: against_width(pd.concat([one, *copies])))
    assert "three networks agree: theory, copy 0 and copy 1" in " ".join(texts(spec))
    assert not any("agree" in text for text in texts(specification(lambda: against_width(one))))
    keys = {key["name"]: key for key in spec["usermeta"]["keys"]}
    assert keys["theory"]["band"] > 0
    flat = one.assign(low=one["mean"], high=one["mean"])
    for key in specification(lambda: against_width(flat))["usermeta"]["keys"]:
        assert not {"band", "bar"} & key.keys()


def test_colours_that_are_cut_off_are_marked():
    index = pd.RangeIndex(25)
    frame = index.to_frame(name="x").merge(index.to_frame(name="y"), how="cross")
    frame["U"] = np.linspace(-1, 1, len(frame))
    told = texts(specification(lambda: heatmaps(frame, "x", "y", "U")))
    assert not any(text.startswith(("≥", "≤")) for text in told)
    frame.loc[0, "U"] = 50.0
    told = texts(specification(lambda: heatmaps(frame, "x", "y", "U")))
    assert any(text.startswith("≥") for text in told)
    told = texts(specification(lambda: heatmaps(frame, "x", "y", "U", domain=(0, 0.5))))
    assert {"≤ 0", "0.25", "≥ 0.5"} <= set(told)  # the middle is not rounded to 0.3


def test_a_dominant_point_leaves_room_for_the_others():
    frame = pd.DataFrame({"x": [*np.linspace(0.01, 0.1, 40), 9.0]})
    frame["y"] = frame["x"]
    told = texts(specification(lambda: points(frame, "x", "y", reference="")))
    assert "x, cube-root scale" in told
