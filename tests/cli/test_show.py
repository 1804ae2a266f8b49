"""``show`` and ``plot`` on stores with results, of which some cannot be shown."""

from dataclasses import dataclass

import pytest
import xarray as xr

from pathkernel.main import main
from pathkernel.plugin import pathkernel_commands
from pathkernel_core.hooks import Plugins
from pathkernel_core.result import Result
from pathkernel_datasets.stored import compute_result
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study
from pathkernel_datasets.testing import SmallTask


@dataclass(frozen=True)
class Number(Result):
    """A number, with a view of it."""

    name = "number"
    summary = "A number"

    def compute(self, study, report):
        return xr.Dataset({"number": xr.DataArray(3.0, attrs={"long_name": "number"})})

    def tables(self, study):
        yield f"The number is {study.result(self.name)['number'].item():g}"


@dataclass(frozen=True)
class Broken(Number):
    """A number that cannot be shown."""

    name = "broken"

    def tables(self, study):
        raise RuntimeError("no table")

    def figures(self, study):
        raise RuntimeError("no figure")


RESULTS = {result.name: result for result in (Broken, Number)}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("show") / "study.zarr"
    compute_study(Study(SmallTask(), (10,), (0.1,), (0,)), path)
    for result in (*RESULTS.values(), type("Gone", (Number,), {"name": "gone"})):
        compute_result(result(), path)
    return path


@pytest.fixture
def show(store, monkeypatch, capsys):
    commands = {command.name: command for command in pathkernel_commands()}
    plugins = Plugins(results=RESULTS, commands=commands)
    monkeypatch.setattr("pathkernel.main.load_plugins", lambda: plugins)

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([arguments[0], str(store), *arguments[1:]])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def test_what_cannot_be_shown_is_said_and_the_rest_is_shown(show):
    status, out, _ = show("show")
    assert status == 0
    assert "GP limit" in out
    assert "broken: skipped, RuntimeError: no table" in out
    assert "gone: skipped, no plugin that is installed knows this result" in out
    assert "The number is 3" in out


def test_parts_by_name(show):
    status, out, _ = show("show", "--only", "number")
    assert (status, out) == (0, "The number is 3\n")
    status, _, err = show("show", "--only", "numbr")
    assert status == 1
    assert "Did you mean 'number'" in err


def test_figures_that_fail_leave_the_others(show, tmp_path):
    status, _, err = show("plot", "--out", str(tmp_path / "figures"))
    assert status == 0
    assert "broken: skipped, RuntimeError: no figure" in err
    assert (tmp_path / "figures" / "accuracy.png").exists()


def test_gains_take_no_parts(show):
    status, _, err = show("show", "--gains", "--only", "study")
    assert status == 2
    assert "leave --only and --seed out" in err
