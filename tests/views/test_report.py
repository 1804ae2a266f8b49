"""The report of a small study: its numbers against the dataset's, its text, and it in a browser."""

import base64
import csv
import hashlib
import io
import json
import re
import shlex
import shutil
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from chromium import FOUND, Chromium

from pathkernel.commands.study_file import study_command
from pathkernel.main import main
from pathkernel.plugin import pathkernel_commands
from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.result import Result
from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_core.paths.layers import AttentionProduct
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.report import write_report
from pathkernel_views.study_views import study_charts
from pathkernel_views.table import Table

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
    """A stranger's result, of which a chart fails."""

    name = "strange"
    summary = "A result of a stranger"

    def compute(self, study, report):
        return xr.Dataset({"number": xr.DataArray(3.0, attrs={"long_name": "number"})})

    def views(self, study):
        frame = pd.DataFrame({"a": [HOSTILE, "x"], "b": [1.5, 2.5], "of": ["p", "q"]})
        yield Table("numbers", "Strange table", frame, {"a": "{a}", "b": "{b}"}, HOSTILE)
        yield f"a line {HOSTILE}"

        def draw():
            from pathkernel_views.primitives import points

            settings = {"series": "a", "name": "a", "switches": ["of"], "titles": {"of": HOSTILE}}
            return points(frame.assign(of=frame["a"]), "b", "b", **settings)

        def nothing():
            raise NothingToPlot("there is none")

        yield Chart("drawn", f"My chart {HOSTILE}", HOSTILE, draw)
        yield Chart("failed", "Failed", "", lambda: 1 / 0)
        yield Chart("missing", "Missing", "", nothing)


def make(path, sweep=None):
    study = Study(Hostile(words=HOSTILE), WIDTHS, TEMPERATURES, SEEDS, sweep=sweep or {})
    run_study(study, path, analyses=pathkernel_analyses())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = make(tmp_path_factory.mktemp("report") / "study")
    run_result(Strange(), path)
    return path


@pytest.fixture(scope="module")
def dataset(folder):
    return open_study(folder)


def run(monkeypatch, folder, *options):
    commands = {command.name: command for command in pathkernel_commands()}
    plugins = Plugins(results={"strange": Strange}, commands=commands)
    monkeypatch.setattr("pathkernel.main.load_plugins", lambda: plugins)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), *options])
    return ended.value.code


@pytest.fixture(scope="module")
def page(folder):
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, folder) == 0
    return folder / "report.html"


def spec(dataset, name, temperature=None):
    (chart,) = (chart for chart in study_charts(dataset, temperature) if chart.name == name)
    return chart.specification(validate=True)


def rows(chart):
    """Data of a chart as a DataFrame."""
    (text,) = (text for text in chart["datasets"].values() if isinstance(text, str))
    return pd.read_csv(io.StringIO(text), dtype={"seed": str, "examples": str})


def test_charts_hold_the_numbers_of_the_dataset(dataset):
    frame = rows(spec(dataset, "order_parameters"))
    for temperature in TEMPERATURES:
        for seed in SEEDS:
            for width in WIDTHS:
                own = frame[
                    (frame["shown"] == f"T = {temperature:g}") & (frame["seed"] == str(seed))
                ]
                own = own[own["panel"] == f"N = {width}"]
                at = {"temperature": temperature, "seed": seed, "width": width}
                wanted = dataset["order_parameter"].sel(at).transpose("path", "path_dual")
                matrix = own[[str(path) for path in dataset["path"].values]].to_numpy()
                np.testing.assert_allclose(matrix, wanted, rtol=1e-5)
    limit = frame[frame["panel"] == "GP limit"].iloc[:4, -4:].to_numpy()
    np.testing.assert_array_equal(limit, np.diag(np.diag(limit)))
    frame = rows(spec(dataset, "accuracy"))
    own = frame[(frame["shown"] == "T = 1") & (frame["curve"] == "theory")]
    scores = dataset["accuracy"].sel(temperature=1.0).transpose("seed", "width", "test_set")
    for name, wanted in (
        ("accuracy_median", scores.median("seed")),
        ("accuracy_lowest", scores.min("seed")),
        ("accuracy_highest", scores.max("seed")),
    ):
        np.testing.assert_allclose(own[name], wanted.values.ravel(), rtol=1e-5)
    own = rows(spec(dataset, "accuracy_against_temperature"))
    own = own[(own["curve"] == "GP limit") & (own["test_set"] == "plain")]
    wanted = dataset["accuracy_gp"].median("seed").sel(test_set="plain")
    np.testing.assert_allclose(own["accuracy_median"], wanted, rtol=1e-5)


def test_the_temperature_of_all_widths_is_shown_first(dataset):
    frame = rows(spec(dataset, "order_parameters"))
    errors = dataset["leave_one_out_squared_error"].sum(("seed", "width"))
    place = int(errors.argmin("temperature"))
    first = frame[frame["shown"] == frame["shown"].iloc[0]]
    assert first["shown"].iloc[0] == f"T = {TEMPERATURES[place]:g}"
    (chart,) = (chart for chart in study_charts(dataset) if chart.name == "accuracy")
    said = f"At T = {TEMPERATURES[place]:g}, of smallest leave-one-out squared error, all widths"
    assert said in chart.caption
    for w in range(len(WIDTHS)):
        wanted = dataset["order_parameter"].isel(temperature=place, width=w, seed=0)
        own = first[(first["panel"] == f"N = {WIDTHS[w]}") & (first["seed"] == "0")]
        np.testing.assert_allclose(own.iloc[:, -4:].to_numpy(), wanted, rtol=1e-5)


def test_a_figure_of_every_temperature_has_a_panel_for_each(dataset):
    frame = rows(spec(dataset, "accuracy_at_every_temperature"))
    panels = [f"{name}, T = {t:g}" for name in dataset["test_set"].values for t in TEMPERATURES]
    assert frame["panel"].drop_duplicates().tolist() == [
        panel.replace("\u202e", r"\u202e") for panel in panels
    ]
    wanted = dataset["accuracy"].median("seed").sel(test_set="plain", temperature=1.0)
    own = frame[(frame["panel"] == "plain, T = 1") & (frame["curve"] == "theory")]
    np.testing.assert_allclose(own["accuracy_median"], wanted, rtol=1e-5)


def test_strengths_are_those_of_the_limit_where_the_width_is_large(tmp_path):
    study = Study(Hostile(), widths=(1e7,), temperatures=(1.0,), seeds=(0,), variances=2.0)
    dataset = run_study(study, tmp_path / "wide", analyses=())
    strengths = rows(spec(dataset, "strongest_paths"))
    np.testing.assert_allclose(strengths["strength"], np.ones(4), atol=1e-3)


def test_several_values_of_an_option_are_a_switch(tmp_path):
    study = Study(Hostile(), (10,), (1.0,), (0,), sweep={"examples": (8, 12)})
    dataset = run_study(study, tmp_path / "swept", analyses=pathkernel_analyses())
    chart = spec(dataset, "order_parameters")
    assert chart["params"][0]["bind"]["options"] == ["8", "12"]
    frame = rows(chart)
    for place, value in enumerate(("8", "12")):
        wanted = dataset["order_parameter"].isel(examples=place, seed=0, temperature=0, width=0)
        own = frame[(frame["examples"] == value) & (frame["panel"] == "N = 10")]
        np.testing.assert_allclose(own.iloc[:, -4:].to_numpy(), wanted, rtol=1e-5)
    against = rows(spec(dataset, "accuracy_against_examples"))
    own = against[(against["curve"] == "N = 10") & (against["test_set"] == "plain")]
    wanted = dataset["accuracy"].squeeze(("seed", "temperature", "width")).sel(test_set="plain")
    np.testing.assert_allclose(own["accuracy_median"], wanted, rtol=1e-5)
    kernels = rows(spec(dataset, "kernels"))
    assert kernels["example"].max() == 12
    panels = kernels.groupby("examples")["panel"].unique()
    assert panels.iloc[0].tolist() == panels.iloc[1].tolist()  # so that none is empty


def test_no_two_cards_have_one_title(dataset, page, tmp_path):
    titles = re.findall("<h3>(.*?)</h3>", page.read_text("utf-8"))
    assert len(titles) > 10
    assert len(set(titles)) == len(titles)
    assert not any(title.endswith("(2)") for title in titles)  # the study's own are apart
    generator = np.random.default_rng(3)
    given = generator.choice(["a", "a (2)", "b"], 12).tolist()  # of plugins, which may be alike
    frame = pd.DataFrame({"x": [1]})
    views = [Table("t", title, frame, {"x": "{x}"}, "") for title in given]
    out = tmp_path / "alike.html"
    write_report(dataset, tmp_path / "study", {"one": views[:6], "other": views[6:]}, out)
    shown = re.findall("<h3>(.*?)</h3>", out.read_text("utf-8"))
    assert len(set(shown)) == len(shown) == len(given)
    assert all(own.startswith(title) for own, title in zip(shown, given, strict=True))


def test_captions_tell_what_is_drawn(dataset):
    def captions(of_part):
        return {chart.name: chart.caption for chart in study_charts(of_part)}

    every, single = captions(dataset), captions(dataset.isel(seed=[0]))
    assert "whiskers" in every["head_scores"]
    assert "whiskers" not in single["head_scores"]
    assert "skip" not in every["head_scores"]  # of a network that has none
    assert "over the seeds" in every["temperature_choice"]
    assert "over the seeds" not in single["temperature_choice"]
    named = dataset.assign_attrs(sub_networks='{"some": "heads 1 of layer 1 and heads 1, 2 of 2"}')
    told = captions(named)
    assert "some, head 1 of layer 1 and heads 1, 2 of 2" in told["accuracy"]
    assert "some" not in told["accuracy_against_temperature"]  # where it is not drawn


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3, 0.3])
def test_kernels_that_are_nearly_uniform_fill_their_scale(dataset, spread):
    kernels = dataset["same_path_kernel"].load()
    noise = np.random.default_rng(0).standard_normal(kernels.shape)
    kernels = kernels.copy(data=0.7 + spread * noise)
    frame = rows(spec(dataset.assign(same_path_kernel=kernels), "kernels"))
    cells = frame[frame["panel"].str.startswith("path 1-1")]
    values = cells.iloc[:, -12:].to_numpy(float)
    heading = cells["panel"].iloc[0].partition(", ")[2]
    if spread == 0:
        assert heading == "all 0.7"
        assert np.ptp(values) == 0
        return
    low, high = (float(end) for end in heading.split(" to "))
    assert low < 0.7 < high
    assert (values <= 0).any()
    assert (values >= 1).any()
    assert 0.3 < np.median(values) < 0.7


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


def test_text_of_a_study_is_never_markup(page):
    markup = Markup(page.read_text("utf-8"))
    names = [tag for tag, _ in markup.tags]
    assert names.count("script") == 3
    assert "img" not in names
    assert not any(name.startswith("on") for _, held in markup.tags for name in held)
    assert "\u202e" not in page.read_text("utf-8")
    told = "".join(markup.texts)
    assert told.count(HOSTILE.replace("\u202e", r"\u202e")) >= 5  # title, notes, tables
    assert json.loads(markup.scripts[0])["charts"]


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


def test_a_strangers_views_and_provenance_are_there(page):
    markup = Markup(page.read_text("utf-8"))
    texts = [text.strip() for text in markup.texts]
    assert "Strange table" in texts
    assert "Failed: not drawn (ZeroDivisionError: division by zero)" in texts
    assert "Missing: left out, there is none" in texts
    assert {"page made", "study made", "versions of the page", "versions of the study"} <= set(
        texts
    )
    commands = [text for text in texts if text.startswith("pathkernel ")]
    assert any(text.startswith("pathkernel run hostile --width 10,100") for text in commands)
    assert "page made by" in texts
    assert not any("crc32" in text or "heads of layer 1" in text for text in texts)  # fingerprints
    tables = [list(csv.reader(io.StringIO(t))) for t in json.loads(markup.scripts[0])["tables"]]
    assert [["a", "b", "of"], [HOSTILE.replace("\u202e", r"\u202e"), "1.5", "p"]] in [
        table[:2] for table in tables
    ]
    links = {held["href"] for tag, held in markup.tags if tag == "a"}
    ids = {held.get("id") for _, held in markup.tags}
    assert {"#section-1", "#chart-0"} <= links
    assert {link[1:] for link in links} <= ids


def test_an_attribute_that_is_nested_without_end_is_text(dataset, tmp_path):
    deep = {"notes": "[" * 5000, "references": '{"a":' * 900 + "1" + "}" * 900}
    write_report(dataset.assign_attrs(deep), tmp_path, {}, tmp_path / "report.html")
    assert f">{'[' * 5000}<" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_in_a_folder_that_is_the_working_directory(folder, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(folder, tmp_path / "study")
    monkeypatch.chdir(copy)
    page = copy / "report.html"
    page.write_text("<!doctype html>mine")
    assert run(monkeypatch, ".", "--only", "strange") == 1
    assert "report.html already exists and is not a report; delete it" in capsys.readouterr().err
    assert page.read_text() == "<!doctype html>mine"
    page.write_text("")
    for _ in range(2):  # nothing, and then a report replaces a report
        assert run(monkeypatch, ".", "--only", "strange") == 0
    assert "Strange table" in page.read_text("utf-8")
    assert run(monkeypatch, ".", "--out", str(tmp_path)) == 2
    assert "is a directory" in capsys.readouterr().err
    assert run(monkeypatch, ".", "--seed", "9") == 1
    assert "the study has no seed 9; it has 0, 3. Run the study with it in --seed, which" in (
        " ".join(capsys.readouterr().err.split())
    )


HELPERS = """
window.figureOf = (title) => [...document.querySelectorAll("[data-chart]")]
  .find((each) => each.querySelector("h3").textContent.startsWith(title));
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


def look(browser, dataset):
    """Point at cells of U, switch temperature and theme, go by keys, take the CSV along."""
    title, cells = "Order parameter U", ".mark-rect.role-mark path"
    assert browser.evaluate(f"drawn({title!r}, {cells!r})") == 3 * 16
    u = dataset["order_parameter"].sel(temperature=1.0, seed=3, width=10).values
    figure = f"figureOf({title!r})"

    def switch(name, label):
        return browser.evaluate(
            f"""(() => {{
              const spot = [...{figure}.querySelectorAll("label")]
                .find((each) => each.textContent.startsWith({name!r}));
              const select = spot.querySelector("select");
              select.value = {label!r};
              select.dispatchEvent(new Event("change"));
            }})()"""
        )

    switch("temperature", "T = 1")
    switch("seed", "3")
    settings = f"until(() => {figure}.textContent.includes('T = 1, seed 3'))"
    assert browser.evaluate(settings)
    for row, column in ((1, 2), (3, 3)):
        shown = f"{u[row, column]:.2f}".replace("-", "−")
        paths = dataset["path"].values
        label = f"path: {paths[row]}"
        found = browser.evaluate(
            f"[...{figure}.querySelectorAll({cells!r})].filter((each) => each.ariaLabel"
            f".includes({label!r}))[{column}].getBoundingClientRect().toJSON()"
        )
        browser.move(found["x"] + found["width"] / 2, found["y"] + found["height"] / 2)
        told = browser.evaluate(
            "until(() => document.querySelector('#vg-tooltip-element.visible')?.textContent)"
        )
        assert str(paths[row]) in told
        assert browser.evaluate(f"{figure}.textContent").count(shown) >= 1
        browser.move(1, 1)
    strongest = "figureOf('The network and its strongest paths')"  # they turn together
    assert browser.evaluate("drawn('The network and its strongest paths', '.mark-line path')")
    same = f"until(() => {strongest}.textContent.includes('T = 1, seed 3, N = 10'))"
    assert browser.evaluate(same)

    browser.evaluate(f"{figure}.querySelector('.plot').focus()")
    browser.press("ArrowRight")
    told = browser.evaluate(f"{figure}.querySelector('output').textContent")
    assert str(paths[0]) in told

    browser.evaluate(f"{figure}.querySelector('button').click()")
    lines = browser.evaluate("until(() => saved[0])").splitlines()
    names = [str(path) for path in paths]
    assert lines[0].lstrip("\ufeff").split(",") == ["shown", "seed", "panel", "path", *names]
    assert len(lines) == 1 + 2 * 2 * 3 * 4
    browser.evaluate(f"{figure}.querySelector('summary').click()")
    assert browser.evaluate(f"until(() => {figure}.querySelectorAll('td').length)") == 48 * 8

    assert browser.evaluate("drawn('My chart', '.mark-symbol path[role=\"graphics-symbol\"]')") == 1
    background = "getComputedStyle(document.body).backgroundColor"
    before = browser.evaluate(background)
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(background) != before


def check_print(browser):
    """Print loses nothing: details are open, and wide tables shrink."""
    closed = "document.querySelectorAll('details.card:not([open])').length"
    before = browser.evaluate(closed)
    assert before > 0
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate(closed) == 0
    shrinks = browser.evaluate(
        "[...document.querySelectorAll('.scroll table')].filter((table) => table.tHead)"
        ".map((table) => +table.style.getPropertyValue('--shrink'))"
    )
    assert shrinks
    assert all(0 < shrink <= 1 for shrink in shrinks)
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(closed) == before
    pdf = base64.b64decode(browser.call("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")


def test_the_command_of_a_study_computes_it(folder, tmp_path, monkeypatch):
    study = StoredStudy(folder, Plugins(tasks={"hostile": Hostile}))
    words = shlex.split(study_command(study))
    assert words[:3] == ["pathkernel", "run", "hostile"]
    given = dict(zip(words[3::2], words[4::2]))
    assert given["--width"] == "10,100"
    assert given["--temperature"] == "0.1,1"
    assert given["--seed"] == "0,3"
    assert given["--examples"] == "12"
    assert given["--words"] == HOSTILE
    assert given["--out"] == "study"


PRINTED = """
dispatchEvent(new Event("beforeprint"));
[...document.querySelectorAll("details.card")].map((card) => {
  const scroll = card.querySelector(".scroll");
  const { right, bottom } = card.getBoundingClientRect();
  const table = scroll.querySelector("table").getBoundingClientRect();
  const whole = scroll.scrollHeight <= scroll.clientHeight + 1;
  return [card.open, whole, table.right <= right, table.bottom <= bottom];
});
"""


@pytest.mark.skipif(FOUND is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_print_opens_every_table_and_cuts_nothing_off(page, tmp_path):
    browser = Chromium(tmp_path)
    try:
        browser.open(page)
        browser.call("Emulation.setEmulatedMedia", media="print")
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=688,  # of A4 within its margins
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )
        tables = browser.evaluate(PRINTED)
        assert len(tables) > 3
        assert all(all(table) for table in tables), tables
        browser.evaluate("dispatchEvent(new Event('afterprint'))")
        assert browser.evaluate("document.querySelector('details.card:not([open])') !== null")
    finally:
        browser.close()


@pytest.mark.skipif(FOUND is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_in_a_browser(page, dataset, tmp_path):
    browser = Chromium(tmp_path)
    try:
        browser.open(page)
        browser.evaluate(HELPERS)
        everything = "[...document.querySelectorAll('[data-chart]')]"
        is_drawn = "(each) => each.querySelector('svg') || each.textContent.includes('Not drawn')"
        assert browser.evaluate(f"until(() => {everything}.every({is_drawn}))")
        look(browser, dataset)
        check_print(browser)
        assert browser.said() == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in browser.requested())
        assert browser.evaluate("'hacked' in window") is False
    finally:
        browser.close()
