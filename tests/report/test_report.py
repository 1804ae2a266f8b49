"""The report of a small store: its numbers against the store's, its text, and it in a browser."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from chromium import FOUND, Chromium
from matplotlib.figure import Figure

from pathkernel.main import main
from pathkernel.plugin import pathkernel_commands
from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.attention import AttentionProduct
from pathkernel_core.hooks import Plugins
from pathkernel_core.result import Result
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets.store import open_store
from pathkernel_datasets.stored import compute_result
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import run_study
from pathkernel_report.payload import chart_payload
from pathkernel_views.chart import Chart, chart_data, strongest, within
from pathkernel_views.study_charts import study_charts

HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">&\u202e'
TEMPERATURES, WIDTHS, SEEDS = (0.1, 1.0), (10, 100), (0, 3)


@dataclass(frozen=True)
class Hostile(Task):
    """Gaussian tokens, and names that would be markup."""

    name: ClassVar[str] = "hostile"
    summary: ClassVar[str] = "Names that would be markup"

    examples: int = option(12, "training examples")
    words: str = option("", "in the label")

    def realise(self, seed):
        generator = np.random.default_rng(seed)

        def draw(count=12):
            labels = np.resize([1.0, -1.0], count)
            inputs = generator.standard_normal((count, 3, 4))
            inputs[:, 0, 0] = labels * np.abs(inputs[:, 0, 0])
            return Examples(inputs, labels)

        heads = [AttentionProduct(generator.standard_normal((2, 4, 4))) for _ in range(2)]
        tests = {HOSTILE: draw(), "plain": draw()}
        return Realisation(heads, "last", draw(self.examples), tests, notes={HOSTILE: HOSTILE})


@dataclass(frozen=True)
class Strange(Result):
    """A stranger's result, of which a figure fails."""

    name = "strange"
    summary = "A result of a stranger"

    def compute(self, study, report):
        return xr.Dataset({"number": xr.DataArray(3.0, attrs={"long_name": "number"})})

    def tables(self, study):
        from rich.table import Table
        from rich.text import Text

        table = Table("a", "b", title="strange table")
        table.add_row(Text(HOSTILE), "[bold]1,5[/bold]")
        yield table
        yield f"a line {HOSTILE}"

    def figures(self, study):
        def draw():
            figure = Figure()
            figure.suptitle(HOSTILE)
            figure.subplots().plot([1, 2])
            return figure

        return {"drawn": draw, "replaced": draw, "failed": lambda: 1 / 0}

    def charts(self, study):
        y = np.array([0.0, 1.0, 2.0])
        known = np.where(y < 2, y, np.nan)  # the last point has no range
        data = chart_data({"y": y, "low": known - 1, "high": known + 1}, {"x": [1, 2, 3]})
        roles = {"x": "x", "y": "y", "low": "low", "high": "high"}
        wrong = Chart("Wrong", "", data, "lines", x="none", y="y")
        return {
            "replaced": lambda: Chart("My chart", HOSTILE, data, "points", **roles),
            "wrong": lambda: wrong,
        }


def make(path, sweep=None):
    study = Study(Hostile(words=HOSTILE), WIDTHS, TEMPERATURES, SEEDS, sweep=sweep or {})
    run_study(study, path, analyses=pathkernel_analyses())
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = make(tmp_path_factory.mktemp("report") / "study.zarr")
    compute_result(Strange(), path)
    return path


@pytest.fixture(scope="module")
def dataset(store):
    return open_store(store)


def run(monkeypatch, store, *options):
    commands = {command.name: command for command in pathkernel_commands()}
    plugins = Plugins(results={"strange": Strange}, commands=commands)
    monkeypatch.setattr("pathkernel.main.load_plugins", lambda: plugins)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(store), *options])
    return ended.value.code


@pytest.fixture(scope="module")
def page(store):
    pytest.importorskip("vl_convert", reason='needs the extra: pip install "pathkernel[report]"')
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, store) == 0
    return store.with_name("study.html")


def chart(dataset, name, temperature=None):
    return study_charts(dataset, temperature)[name]()


def read(packed, dims, **at):
    """A value out of what the page is given, found as the page does."""

    def place(names):
        return (
            int(np.ravel_multi_index([at[n] for n in names], [dims[n] for n in names] or 1))
            if names
            else 0
        )

    block = packed["blocks"][packed["index"][place(packed["chosen"])]]
    return np.frombuffer(base64.b64decode(block), "<f4")[place(packed["rest"])]


def test_charts_hold_the_numbers_of_the_store(dataset):
    shown = chart(dataset, "order_parameters").data["U"]
    for t, temperature in enumerate(TEMPERATURES):
        matrices = shown.sel(temperature=f"{temperature:g}").transpose("seed", "width", ...)
        np.testing.assert_array_equal(matrices, dataset["order_parameter"].isel(temperature=t))
    shown = chart(dataset, "accuracy").data.sel(temperature="1", series="theory")
    scores = dataset["accuracy"].sel(temperature=1.0).transpose("seed", "test_set", "width").values
    np.testing.assert_array_equal(shown["value"], np.median(scores, 0))
    np.testing.assert_array_equal(shown["low"], scores.min(0))
    np.testing.assert_array_equal(shown["high"], scores.max(0))
    limit = chart(dataset, "accuracy_against_temperature").data.sel(series="GP limit")
    wanted = dataset["accuracy_gp"].median("seed").transpose("test_set", "temperature")
    np.testing.assert_array_equal(limit["value"], wanted)


def test_what_is_shown_first_is_the_choice_of_temperatures(dataset):
    shown = chart(dataset, "order_parameters").data["U"].isel(temperature=0)
    errors = dataset["leave_one_out_squared_error"].sum("seed").transpose("width", "temperature")
    best = errors.argmin("temperature").values
    for w, place in enumerate(best):
        wanted = dataset["order_parameter"].isel(temperature=place, width=w)
        np.testing.assert_array_equal(shown.isel(width=w), wanted)
    choices = chart(dataset, "temperature_choice").data
    chosen = choices.sel(choice="T of smallest leave-one-out error")
    for w, place in enumerate(best):
        assert (chosen["temperature"].isel(width=w) == TEMPERATURES[place]).all()
        wanted = dataset["accuracy"].isel(temperature=place, width=w).median("seed")
        np.testing.assert_array_equal(chosen["score"].isel(width=w), wanted)


def test_strengths_are_those_of_the_limit_where_the_width_is_large(tmp_path):
    study = Study(Hostile(), widths=(1e7,), temperatures=(1.0,), seeds=(0,), variances=2.0)
    found = chart(run_study(study, tmp_path / "wide.zarr"), "strongest_paths").data["strength"]
    np.testing.assert_allclose(found.values.ravel(), np.ones(4), atol=1e-3)


def test_the_page_is_given_what_the_chart_holds(dataset):
    held = chart(dataset, "order_parameters")
    given = chart_payload(held)
    dims = {dim: len(labels["labels"]) for dim, labels in given["dims"].items()}
    rng = np.random.default_rng(0)
    for _ in range(20):
        at = {dim: int(rng.integers(size)) for dim, size in dims.items()}
        assert read(given["variables"]["U"], dims, **at) == np.float32(held.data["U"].isel(at))
    packed = given["variables"]["U"]
    assert len(packed["index"]) == 3 * 2 * 2  # temperatures and their choice, seeds, widths
    assert len(packed["blocks"]) == 2 * 2 * 2  # what the choice takes is there already


def test_several_values_of_an_option_are_a_switch(tmp_path):
    study = Study(Hostile(), (10,), (1.0,), (0,), sweep={"examples": (8, 12)})
    dataset = run_study(study, tmp_path / "swept.zarr", analyses=pathkernel_analyses())
    shown = chart(dataset, "order_parameters")
    assert shown.switches[0] == "examples"
    for place, value in enumerate(("8", "12")):
        wanted = dataset["order_parameter"].isel(examples=place, seed=0, temperature=0, width=0)
        np.testing.assert_array_equal(shown.data["U"].sel(examples=value).squeeze(), wanted)
    against = chart(dataset, "accuracy_against_examples").data["value"].sel(series="N = 10")
    wanted = (
        dataset["accuracy"]
        .squeeze(("seed", "temperature", "width"))
        .transpose("test_set", "examples")
    )
    np.testing.assert_array_equal(against.squeeze("temperature"), wanted)
    kernels = chart(dataset, "kernels").data["K"]
    assert kernels["example"].values.tolist() == [str(place + 1) for place in range(12)]
    padded = kernels.sel(examples="8", seed="0", kernel="path 1-1").isnull().all("example")
    assert padded.values.tolist() == [False] * 8 + [True] * 4


class Markup(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.scripts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)


def test_text_of_a_store_is_never_markup(page):
    markup = Markup(page.read_text("utf-8"))
    names = [tag for tag, _ in markup.tags]
    assert names.count("script") == 3
    assert not any(name.startswith("on") for _, held in markup.tags for name in held)
    images = [held["src"] for tag, held in markup.tags if tag == "img"]
    assert images
    assert all(source.startswith("data:image/") for source in images)
    assert "\u202e" not in page.read_text("utf-8")
    told = "".join(markup.texts)
    assert told.count(HOSTILE.replace("\u202e", r"\u202e")) >= 5  # title, notes, tables
    given = json.loads(markup.scripts[0])
    assert HOSTILE in given["charts"][0]["dims"]["test_set"]["labels"]


def test_nothing_is_let_in_or_out(page):
    markup = Markup(page.read_text("utf-8"))
    (policy,) = (held["content"] for tag, held in markup.tags if "http-equiv" in held)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "eval" not in policy
    for script in markup.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    sources = [held[name] for _, held in markup.tags for name in ("src", "href") if name in held]
    assert all(source.startswith(("#", "data:")) for source in sources)


def test_a_strangers_result_is_there_with_tables_and_figures(page):
    text = page.read_text("utf-8")
    markup = Markup(text)
    assert "Strange" in markup.texts
    assert "My chart" in markup.texts
    assert "1,5" in markup.texts
    assert any("failed: not drawn (ZeroDivisionError: division by zero)" in t for t in markup.texts)
    assert any(t.startswith("Wrong: not drawn (KeyError: ") for t in markup.texts)
    headings = re.findall(r"<h3[^>]*>([^<]*)</h3>", text)
    assert "Drawn" in headings
    assert "Replaced" not in headings  # by the chart of that name
    (csv,) = (t for t in json.loads(markup.scripts[0])["tables"] if "1,5" in t)
    assert csv.splitlines()[1].endswith(',"1,5"')


def test_charts_hold_what_a_page_has_room_for():
    sizes = {"turned": 4, "chosen": 5, "x": 6}
    data = chart_data({"y": np.zeros((4, 5, 6))}, {name: range(k) for name, k in sizes.items()})
    whole = Chart("Chart", "About it.", data, "lines", x="x", y="y", switches=("turned", "chosen"))
    assert within(whole, 120) is whole
    for most, left, words in (
        (119, (4, 4, 6), " In the page are 4 of 5 of chosen."),
        (23, (3, 1, 6), " In the page are 1 of 5 of chosen and 3 of 4 of turned."),
        (4, (1, 1, 4), " In the page are 1 of 5 of chosen and 1 of 4 of turned and 4 of 6 of x."),
    ):
        some = within(whole, most)
        assert tuple(some.data.sizes.values()) == left
        assert some.about == f"About it.{words}"


def test_a_heatmap_stays_square_and_what_is_small_stays_whole():
    matrix, line = np.zeros((20, 20)), xr.DataArray(np.zeros(50), dims="t")
    names = {"x": range(20), "y": range(20), "t": range(50)}
    data = chart_data({"K": xr.DataArray(matrix, dims=("x", "y")), "m": line}, names)
    some = within(Chart("Chart", "About it.", data, "heatmap", x="x", y="y"), 100)
    assert dict(some.data.sizes) == {"x": 10, "y": 10, "t": 50}
    assert some.about == "About it. In the page are 10 of 20 of x and 10 of 20 of y."


def test_the_strongest_rows_in_their_order():
    np.testing.assert_array_equal(strongest(np.array([[1, 5, 3, 4], [1, 5, 3, 2]]), 3), [1, 2, 3])
    np.testing.assert_array_equal(strongest(np.array([2, np.nan, 3]), 2), [0, 2])
    one_seed = np.array([[np.nan] * 4, [1, 5, 3, 4]])  # the other was not computed
    np.testing.assert_array_equal(strongest(one_seed, 2), [1, 3])


def test_an_attribute_that_is_nested_without_end_is_text(store, tmp_path, monkeypatch):
    pytest.importorskip("vl_convert", reason='needs the extra: pip install "pathkernel[report]"')
    copy = shutil.copytree(store, tmp_path / "study.zarr")
    deep = {"lists": "[" * 5000, "dicts": '{"a":' * 900 + "1" + "}" * 900}
    zarr.open_group(copy, mode="r+").attrs.update(deep)
    assert run(monkeypatch, copy, "--only", "study") == 0
    assert f">{'[' * 5000}<" in copy.with_suffix(".html").read_text("utf-8")


def test_beside_a_store_that_is_the_working_directory(store, tmp_path, monkeypatch, capsys):
    pytest.importorskip("vl_convert", reason='needs the extra: pip install "pathkernel[report]"')
    copy = shutil.copytree(store, tmp_path / "study.zarr")
    monkeypatch.chdir(copy)
    page = tmp_path / "study.html"
    page.write_text("<!doctype html>mine")
    assert run(monkeypatch, ".", "--only", "strange") == 1
    assert "study.html is there already and is no report; delete it" in capsys.readouterr().err
    assert page.read_text() == "<!doctype html>mine"
    page.write_text("")
    for _ in range(2):  # nothing, and then a report replaces a report
        assert run(monkeypatch, ".", "--only", "strange") == 0
    assert "strange table" in page.read_text("utf-8")
    assert run(monkeypatch, ".", "--out", str(tmp_path)) == 1
    assert "is a folder; name a file by --out" in capsys.readouterr().err
    assert run(monkeypatch, ".", "--seed", "9") == 1
    assert "the store has no seed 9; it has 0, 3. Run the study with it in --seed, which" in (
        " ".join(capsys.readouterr().err.split())
    )


def test_without_the_extra_the_remedy_is_named(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    out = tmp_path / "page.html"
    assert run(monkeypatch, store, "--only", "strange", "--out", str(out)) == 1
    assert 'pip install "pathkernel[report]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


HELPERS = """
window.figureOf = (title) => [...document.querySelectorAll("[data-chart]")]
  .find((each) => each.querySelector("h3").textContent === title);
window.until = async (get) => {
  for (let waited = 0; waited < 20000; waited += 20) {
    const found = get();
    if (found) return found;
    await new Promise((after) => setTimeout(after, 20));
  }
  throw new Error(`waited in vain for ${get}`);
};
window.drawn = async (title, marks) => {
  const figure = figureOf(title);
  figure.scrollIntoView({ behavior: "instant", block: "center" });
  await until(() => figure.querySelector(marks));
  return figure.querySelectorAll(marks).length;
};
window.saved = [];
URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return "blob:"; };
HTMLAnchorElement.prototype.click = () => {};
"""


def number_in(text, before):
    return float(text.rpartition(before)[2].replace("−", "-"))


def look(browser, dataset):
    """Point at cells of U, switch width and theme, go by keys, take the CSV along."""
    title, cells = "Order parameter U", ".mark-rect.marks path"
    assert browser.evaluate("document.querySelectorAll('.mark-line path').length") > 0
    assert browser.evaluate(f"drawn({title!r}, {cells!r})") == 16
    u = dataset["order_parameter"].sel(temperature=1.0, seed=0).transpose("width", ...).values
    figure = f"figureOf({title!r})"

    def switch(name, label):
        return browser.evaluate(
            f"""(() => {{
              const spot = [...{figure}.querySelectorAll("label")]
                .find((each) => each.textContent.startsWith({name!r}));
              const select = spot.querySelector("select");
              select.value = [...select.options].find((each) => each.text === {label!r}).value;
              select.dispatchEvent(new Event("change"));
            }})()"""
        )

    def point_at(row, column):
        cell = f"{figure}.querySelectorAll({cells!r})[{4 * row + column}]"
        box = browser.evaluate(f"{cell}.getBoundingClientRect().toJSON()")
        browser.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        return browser.evaluate("document.querySelector('.tip').textContent")

    paths = dataset["path"].values
    switch("temperature", "1")
    for w, width in enumerate(WIDTHS):
        switch("width", str(width))
        fill = f"{figure}.querySelectorAll({cells!r})[6].getAttribute('fill')"
        browser.evaluate(f"new Promise((after) => setTimeout(after, 50)).then(() => {fill})")
        told = point_at(1, 2)
        assert told.startswith(f"path {paths[1]}, path′ {paths[2]}. U = ")
        assert number_in(told, "= ") == pytest.approx(u[w, 1, 2], rel=1e-3)
        point_at(3, 3)
    # the charts that have a width turn together
    strongest = "figureOf('The network and its strongest paths')"
    assert browser.evaluate(f"[...{strongest}.querySelectorAll('select')].at(-1).value") == "1"

    readout = f"{figure}.querySelector('.readout').textContent"
    browser.evaluate(f"{figure}.querySelector('.plot').focus()")
    for key, (row, column) in {"Home": (0, 0), "ArrowRight": (0, 1), "ArrowDown": (1, 1)}.items():
        browser.press(key)
        told = browser.evaluate(readout)
        assert told.startswith(f"path {paths[row]}, path′ {paths[column]}. U = ")
        assert number_in(told, "= ") == pytest.approx(u[1, row, column], rel=1e-3)

    browser.evaluate(f"{figure}.querySelector('button').click()")
    lines = browser.evaluate("until(() => saved[0])").splitlines()
    assert lines[0].lstrip("\ufeff") == "temperature,seed,width,path,path_dual,U"
    assert len(lines) == 1 + 3 * 2 * 2 * 16
    assert f"1,0,100,{paths[1]},{paths[1]}," in "\n".join(lines)

    points, mine = ".mark-symbol path", "figureOf('My chart')"
    assert browser.evaluate(f"drawn('My chart', {points!r})") == 3
    box = "each.getBoundingClientRect().top"
    tops = browser.evaluate(f"[...{mine}.querySelectorAll({points!r})].map((each) => {box})")
    assert tops[0] - tops[1] == pytest.approx(tops[1] - tops[2], abs=1)
    assert tops[0] - tops[1] > 20
    assert browser.evaluate(f"{mine}.querySelectorAll('.mark-rule.role-mark line').length") == 2

    background = "getComputedStyle(document.body).backgroundColor"
    before = browser.evaluate(background)
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(background) != before


@pytest.mark.skipif(FOUND is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_in_a_browser(page, dataset, tmp_path):
    browser = Chromium(tmp_path)
    try:
        browser.open(page)
        browser.evaluate(HELPERS)
        look(browser, dataset)
        assert browser.said() == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in browser.requested())
        assert browser.evaluate("'hacked' in window") is False
    finally:
        browser.close()
