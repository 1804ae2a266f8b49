"""``show`` and ``plot`` on studies with results, of which some cannot be shown."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import pandas as pd
import pytest
import xarray as xr

from pathkernel.main import main
from pathkernel.plugin import pathkernel_commands
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.result import Result
from pathkernel_datasets.folder.study_folder import StudyFolder
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SmallTask
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table


@dataclass(frozen=True)
class Number(Result):
    """A number, with a view of it."""

    name = "counted"
    summary = "A number"

    def compute(self, study, report):
        return xr.Dataset({"number": xr.DataArray(3.0, attrs={"long_name": "number"})})

    def views(self, study):
        yield f"The number is {study.result(self.name)['number'].item():g}"


@dataclass(frozen=True)
class Broken(Number):
    """A number that cannot be shown."""

    name = "broken"

    def views(self, study):
        raise RuntimeError("no view")


@dataclass(frozen=True)
class Tabled(Number):
    """A number in tables, and in a chart."""

    name = "tabled"

    def views(self, study):
        frame = pd.DataFrame({"number": [3.0], "words": ["[red]three\x1b"]})
        cells = {"the [b]number[/b]": "{number:.1f}", "words": "{words}"}
        yield Table("numbers", "A [i]title[/i]", frame, cells)
        yield Table("more", "In detail", frame, cells, detail=True)
        yield Chart("drawn", "Drawn", "The number.", partial(draw, frame))
        yield Chart("detail", "Detail", "The number.", partial(draw, frame), detail=True)


def draw(frame):
    import altair as alt

    return alt.Chart(frame).mark_bar().encode(x="words", y="number")


RESULTS = {result.name: result for result in (Broken, Number, Tabled)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("show") / "study"
    compute_study(Study(SmallTask(), (10,), (0.1,), (0,)), path)
    for result in (*RESULTS.values(), type("Gone", (Number,), {"name": "gone"})):
        run_result(result(), path)
    return path


@pytest.fixture
def show(folder, monkeypatch, capsys):
    commands = {command.name: command for command in pathkernel_commands()}
    plugins = Plugins(results=RESULTS, commands=commands)
    monkeypatch.setattr("pathkernel.main.load_plugins", lambda: plugins)

    def run(*arguments, at=folder):
        with pytest.raises(SystemExit) as exit_:
            main([arguments[0], str(at), *arguments[1:]])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def test_what_cannot_be_shown_is_said_and_the_rest_is_shown(show):
    status, out, _ = show("show")
    assert status == 0
    assert "GP limit" in out
    assert "broken: skipped, RuntimeError: no view" in out
    assert "gone: skipped, no plugin that is installed knows this result" in out
    assert "The number is 3" in out


def test_a_study_in_progress_is_shown_as_such(show, folder, tmp_path):
    assert "in progress" not in show("show")[1]
    path = shutil.copytree(folder, tmp_path / "study")
    StudyFolder(path, "").begin()
    status, out, _ = show("show", "--only", "study", at=path)
    assert status == 0
    assert "in progress, or its run was interrupted: run the command again" in out


def test_a_damaged_result_is_named_by_its_file(show, folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "study")
    (path / "counted.zarr" / "number" / "c").write_bytes(b"damage")
    status, out, _ = show("show", at=path)
    assert status == 0
    assert f"counted: skipped, {path / 'counted.zarr' / 'number'} is damaged" in out


def test_everything_as_json_and_nothing_else(show, tmp_path, are_documented):
    status, out, err = show("show", "--json", "--csv", str(tmp_path / "tables"))
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["version"], found["command"]) == (1, "pathkernel show")
    tables = {(table["part"], table["name"]): table for table in found["tables"]}
    assert are_documented([table for (part, _), table in tables.items() if part == "study"])
    assert [row["width"] for row in tables["study", "study"]["rows"]][:2] == [10, None]
    tabled = tables["tabled", "numbers"]
    assert tabled["title"] == "A [i]title[/i]"
    assert tabled["columns"][0] == {"name": "number", "label": "number", "units": None}
    assert tabled["rows"] == [{"number": 3, "words": "[red]three\x1b"}]
    assert ("tabled", "more") in tables
    assert "The number is 3" in found["lines"]
    assert "broken: skipped, RuntimeError: no view" in found["lines"]
    assert found["lines"][-1] == f"Tables: {tmp_path / 'tables'}"
    files = {file.name for file in (tmp_path / "tables").iterdir()}
    of_study = {f"study{name}.csv" for name in ("", "-minimisation", "-gains", "-head_scores")}
    assert files == of_study | {"tabled-numbers.csv", "tabled-more.csv"}
    status, out, _ = show("show", "--gains", "--json")
    assert are_documented(json.loads(out)["tables"])
    status, out, _ = show("show", "--json", "--only", "countd")
    assert (status, out) == (1, "")


def test_what_is_damaged_as_json(show, folder, tmp_path, are_documented):
    status, out, _ = show("check", "--json")
    damaged, checked = json.loads(out)["tables"]
    assert are_documented([checked])
    assert (status, damaged["rows"]) == (0, [])
    assert checked["rows"][0]["points"] == checked["rows"][0]["computed"] == 1
    copy = shutil.copytree(folder, tmp_path / "copy")
    array = copy / "counted.zarr" / "number"
    (array / "c").write_bytes(b"\0" * 20)
    status, out, _ = show("check", "--json", at=copy)
    (row,) = json.loads(out)["tables"][0]["rows"]
    assert status == 1
    assert row["part"] == "results"
    assert row["damage"].startswith(f"{array} is damaged")


def test_parts_by_name(show):
    status, out, _ = show("show", "--only", "counted")
    assert (status, out) == (0, "The number is 3\n")
    status, _, err = show("show", "--only", "countd")
    assert status == 1
    assert "Did you mean 'counted'" in err


def test_figures_that_fail_leave_the_others(show, tmp_path):
    status, _, err = show("plot", "--out", str(tmp_path / "figures"))
    assert status == 0
    assert "broken: skipped, RuntimeError: no view" in err
    assert (tmp_path / "figures" / "accuracy.png").exists()


def test_charts_and_details(show, folder, tmp_path):
    figures = tmp_path / "figures"
    options = ("--only", "tabled", "--out", str(figures), "--format", "svg, PDF")
    assert show("plot", *options)[0] == 0
    assert {file.name for file in (figures / "tabled").iterdir()} == {
        *("drawn.svg", "drawn.pdf", "drawn.txt")
    }
    assert b">Drawn</text>" in (figures / "tabled" / "drawn.svg").read_bytes()
    assert show("plot", *options, "--all", "--no-title", "--width", "2")[0] == 0
    assert (figures / "tabled" / "detail.svg").exists()
    assert b">Drawn</text>" not in (figures / "tabled" / "drawn.svg").read_bytes()
    out = show("show", "--only", "tabled")[1]
    assert "three\\x1b" in out
    assert "[b]number[/b]" in out
    assert f"1 more table: pathkernel show {folder} --only tabled --all\n" in out
    assert out.count("three") == 1
    assert show("show", "--only", "tabled", "--all")[1].count("three") == 2
    assert "S/N" in show("show", "--all")[1]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("plot", "--out", "file"), "--out"),
        (("report", "--out", "file/report.html"), "--out"),
        (("show", "--csv", "file/tables"), "--csv"),
    ],
)
def test_folders_that_cannot_be_written(show, tmp_path, monkeypatch, arguments, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    status, out, err = show(*arguments)
    assert (status, out) == (2, "")
    message = rf"Error: {option}: the folder file\S* cannot be written \(.+\); name another one\n"
    assert re.search(message, err)
    assert (tmp_path / "file").read_text() == "no folder"


def test_a_plot_that_writes_nothing_fails(show, tmp_path):
    status, _, err = show("plot", "--only", "counted", "--out", str(tmp_path))
    assert status == 1
    assert "nothing is drawn: there is no chart of these parts of the study" in err
    status, _, err = show("plot", "--format", "jpg")
    assert status == 2
    assert "--format takes png, svg, pdf, not jpg" in err


def test_a_folder_is_shown_also_from_inside(show, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert show("show", "--only", "counted", at=".")[:2] == (0, "The number is 3\n")
    monkeypatch.chdir(folder / "counted.zarr")
    assert show("show", "--only", "counted", at="..")[:2] == (0, "The number is 3\n")


@pytest.mark.parametrize("file", ["study.zarr", "counted.zarr"])
def test_the_folder_is_asked_for_where_a_file_in_it_is_given(show, folder, file):
    for command in ("show", "plot", "report", "check"):
        status, out, err = show(command, at=folder / file)
        assert (status, out) == (1, "")
        wanted = f"{folder / file} is inside the folder of a study; give the folder: {folder}"
        assert err == f"Error: {wanted}\n"


def test_gains_take_no_parts(show):
    status, _, err = show("show", "--gains", "--only", "study")
    assert status == 2
    assert "leave --only and --seed out" in err


def test_altair_is_imported_where_charts_are_drawn_only(folder):
    commands = (["--help"], ["show", str(folder)], ["show", str(folder), "--all", "--json"])
    code = (
        "import sys; from pathkernel.main import main\n"
        f"for words in {commands}:\n"
        "    try:\n        main(words)\n"
        "    except SystemExit as ended:\n        assert not ended.code\n"
        "    assert 'altair' not in sys.modules and 'vl_convert' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
