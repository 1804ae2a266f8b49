"""The command line as a user meets it: output, errors, interruption, start-up time."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pathkernel.commands.output import print_views, say
from pathkernel.commands.run import run, task_command
from pathkernel.main import _with_commands, main, pathkernel
from pathkernel_core import Network
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.options import option
from pathkernel_datasets.folder.piece_files import write_arrays
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run import computing
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_phases.results import LearningCurves
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_views.chart import save_charts
from pathkernel_views.paths import limit_diagonal
from pathkernel_views.study_views import study_charts
from pathkernel_views.table import Table

SMALL = ["run", "hidden-markov", "--examples", "10", "--test-examples", "20"]


def command(*arguments):
    return [sys.executable, "-m", "pathkernel", *arguments]


def test_run_prints_a_table_and_says_where_everything_lies(invoke, tmp_path):
    grid = ("--widths", "10,100", "--temperature", "0.01,0.1", "--seed", "0-1")
    status, out, err = invoke(*SMALL, *grid)
    assert status == 0, err
    folder = tmp_path / "hidden-markov"
    figures = folder / "figures"
    assert out.splitlines()[-1] == f"Results: {folder}"
    assert f"Figures: {figures}" in out
    drawn = {file.name for file in figures.iterdir()}
    assert {"accuracy.png", "accuracy.svg", "temperature_choice.png"} <= drawn
    dataset = open_study(folder)
    assert list(dataset.width.values) == [10, 100]
    assert list(dataset.seed.values) == [0, 1]
    at_width = dataset.sel(width=10)
    chosen = at_width.leave_one_out_squared_error.sum("seed").idxmin("temperature")
    assert f"{float(at_width.accuracy.sel(temperature=chosen).median()):.3f}" in out
    assert "good + denoising" in out
    assert err == "", "stderr is no terminal: no progress and no warning belongs there"


def test_ctrl_c_before_a_command_can_say_more(invoke, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pathkernel, "callback", interrupted)
    assert invoke("plugins") == (130, "", "\nInterrupted.\n")


def test_what_is_logged_goes_to_stderr_while_a_command_runs(invoke):
    logger = logging.getLogger("pathkernel")
    short = (*SMALL, "--widths", "10", "--no-figures")
    status, out, err = invoke("--log-level", "debug", *short)
    assert status == 0
    assert "hidden-markov is begun" in err
    assert "DEBUG pathkernel.study: seed 0, N = 10, T = 0.01: converged after " in err
    assert "pathkernel.study" not in out
    status, out, err = invoke("--log-level", "info", *short)
    assert "Nothing was left to compute: the study was complete." in out
    assert "hidden-markov is complete\n" in err
    assert invoke(*short)[2] == ""
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pathkernel pl", ["plain,plot", "plain,plugins"]),
        ("pathkernel run hid", ["plain,hidden-markov"]),
        ("pathkernel run study.t", ["file,study.t"]),
        ("pathkernel run hidden-markov --readout last,me", ["plain,last,mean"]),
        ("pathkernel show --temperature leave", ["plain,leave-one-out"]),
        ("pathkernel show any", ["dir,any"]),
    ],
)
def test_the_shell_completes_words(invoke, monkeypatch, words, found):
    monkeypatch.setenv("_PATHKERNEL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    status, out, _ = invoke()
    assert (status, out.splitlines()) == (0, found)


def test_names_from_files_do_not_command_the_terminal(capsys):
    frame = pd.DataFrame({"b": ["\x1b[1m"]})
    table = Table("a", "a\x1b[31m", frame, {"b": "{b}"}, "caption\x1b]0;title\x07")
    print_views([table, "line\x1b[2J\r"])
    say("Warning: \x1b[8m", err=True)
    out, err = capsys.readouterr()
    assert out.count("\\x1b") == 4
    assert set("\x1b\x07\r").isdisjoint(out + err)
    assert err == "Warning: \\x1b[8m\n"


def test_a_part_says_what_is_computed(invoke):
    status, out, err = invoke(*SMALL, "--widths", "10,100", "--part", "1/3")
    assert status == 0, err
    assert out == (
        "Part 1 of 3 is computed; of all 2 grid points, 1 are. Table and figures: pathkernel show "
        "hidden-markov, and plot\n"
    )
    assert "2 are" in invoke(*SMALL, "--widths", "10,100", "--part", "2/2")[1]
    for wrong in ("4/3", "0/3", "1", "a/b", "-1/3"):
        status, _, err = invoke(*SMALL, "--part", wrong)
        assert status == 2
        assert f"such as 1/3 for the first of three, but is '{wrong}'" in err


def test_python_makes_the_same_study(invoke, tmp_path):
    """With the analyses that are registered; either goes on with the other's folder."""
    assert invoke(*SMALL, "--no-figures", "--out", "a")[0] == 0
    study = Study(HiddenMarkov(examples=10, test_examples=20))
    other = run_study(study, tmp_path / "b").load()
    one = open_study(tmp_path / "a").load()
    assert "head_score" in one
    xr.testing.assert_identical(one, other)
    called = []
    xr.testing.assert_identical(run_study(study, tmp_path / "a", report=called.append), one)
    assert not called


def test_prior_variances(invoke, tmp_path):
    given = ("--widths", "10", "--no-figures", "--variances")
    assert invoke(*SMALL, *given, "1,0.5,0.5,1")[0] == 0
    assert open_study(tmp_path / "hidden-markov").attrs["variances"] == [1, 0.5, 0.5, 1]
    status, _, err = invoke(*SMALL, *given, "2")
    assert status == 1
    assert "holds another study and is left as it is (variances: " in err
    assert "has [1.0, 0.5, 0.5, 1.0], this run 2.0" in err
    assert not (tmp_path / "hidden-markov" / "figures").exists()


def test_skip_connections(invoke, tmp_path):
    variances = (1, 0.5, 0.25, 2)
    small = (*SMALL, "--widths", "10", "--no-figures")
    given = (*small, "--variances", ",".join(map(str, variances)), "--skips")
    status, out, err = invoke(*given, "0.7,none")
    assert status == 0, err
    found = open_study(tmp_path / "hidden-markov")
    assert "Skip connections of strength 0.7, none, by layer." in out
    charts = [chart for chart in study_charts(found) if chart.name == "head_scores"]
    assert [file.name for file in save_charts(charts, tmp_path, formats=["png"])] == [
        "head_scores.png"
    ]
    network = Network((2, 2), 10, variances, skips=(0.7, None))
    np.testing.assert_allclose(limit_diagonal(found), network.limit_diagonal)
    status, _, err = invoke("compare", "hidden-markov")
    assert status == 1
    assert err.startswith("Error: the study hidden-markov has skip connections, and the")
    status, _, err = invoke(*given, "0.7,all")
    assert status == 2
    assert "each of skips must be one number, but is 'all'" in err


def test_several_values_of_an_option(invoke):
    """Run, show and check them, with a result."""
    small = ("run", "hidden-markov", "--test-examples", "6", "--widths", "10", "--no-figures")
    status, out, err = invoke(*small, "--examples", "4,8")
    assert status == 0, err
    assert open_study("hidden-markov").examples.values.tolist() == [4, 8]
    assert [line.split()[0] for line in out.splitlines() if " N = 10 " in line] == ["4", "8"]
    _, out, _ = invoke("show", "hidden-markov", "--gains")
    assert out.count("Gain over") == 1
    assert invoke("check", "hidden-markov")[0] == 0
    if importlib.util.find_spec("jax"):  # of the extra pathkernel[sampling]
        status, out, err = invoke("correct", "hidden-markov", "--widths", "10")
        assert (status, err) == (0, "")
        values = [line.strip() for line in out.splitlines() if line.startswith("examples ")]
        assert values == ["examples 4", "examples 8"]
        assert out.endswith("hidden-markov, corrections.zarr in the folder of each value\n")
        shown = invoke("show", "hidden-markov", "--only", "corrections")[1]
        assert "examples 8" in shown
        path = Path("hidden-markov", "examples-4", "corrections.zarr")
        assert np.isfinite(xr.open_datatree(path)["seed-0_T-0.01_N-10"].log_evidence)
    status, _, err = invoke(*small, "--examples", "4,x")
    assert status == 2
    assert "examples must be a whole number, but is 'x'" in err
    status, _, err = invoke(*small, "--variant", "plain,strong-noise", "--out", "x")
    assert status == 1
    assert "run each value of 'variant' into a folder of its own" in err
    _, out, _ = invoke("run", "hidden-markov", "--help")
    assert "--examples INTEGER,…" in out


def test_damage_is_named_and_mended(invoke, tmp_path):
    study = (*SMALL, "--widths", "10,20", "--no-figures", "--out", "a")
    invoke(*study)
    status, out, _ = invoke("check", "a")
    assert (status, "Nothing is damaged: 2 of 2 points are computed" in out) == (0, True)
    array = Path("a", "study.zarr", "accuracy")
    (array / "c" / "0" / "0" / "0" / "0").write_bytes(b"damage")
    status, out, _ = invoke("check", "a")
    assert status == 1
    assert f"Damaged: {array} is damaged" in out
    assert "or pathkernel show a --toml > study.toml && pathkernel run study.toml: it mends" in out
    status, _, err = invoke("show", "a")
    assert status == 1
    assert "study.zarr is damaged (accuracy: " in err
    assert "run the command again that computed it" in err
    status, out, err = invoke(*study)
    assert status == 0
    assert "is computed again" in err
    assert "was complete" not in out
    assert invoke("check", "a")[0] == 0


def test_temperature_may_be_a_number_or_a_choice(invoke):
    grid = ("--temperature", "0.01,0.1", "--widths", "10,100")
    status, _, err = invoke(*SMALL, *grid, "--out", "a", "--no-figures")
    assert status == 0, err
    for value, words in (
        ("leave-one-out", "T of smallest leave-one-out squared error"),
        ("evidence", "T of largest log evidence"),
        ("paper", "T of largest accuracy on the first test set"),
        ("0.1", "T = 0.1."),
    ):
        _, out, _ = invoke("show", "a", "--temperature", value)
        assert words in " ".join(out.split())  # in lines of a narrow table
    _, out, _ = invoke("show", "a", "--temperature", "0.1", "--gains")
    assert "Gain over the Gaussian process limit" in " ".join(out.split())
    for command_ in (
        ("show", "a"),
        ("show", "a", "--gains"),
        ("plot", "a", "--out", "b"),
    ):
        status, _, err = invoke(*command_, "--temperature", "validation")
        assert status == 1
        assert "no validation scores" in err
        status, _, err = invoke(*command_, "--temperature", "best")
        assert status == 2
        assert "must be a number or one of validation, leave-one-out" in err


@pytest.mark.version
def test_plugins_are_listed_with_their_distribution(invoke):
    status, out, _ = invoke("plugins")
    assert status == 0
    for word in ("hidden-markov", "one-shot-images", "head-scores", "pathkernel"):
        assert word in out


@pytest.mark.version
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "hidden-markow"], "Did you mean 'hidden-markov'"),
        (["rum"], "Did you mean 'run'"),
        ([*SMALL, "--backend", "nunpy"], "Did you mean 'numpy'"),
        ([*SMALL, "--widths", "ten"], "each of widths must be one number, but is 'ten'"),
        ([*SMALL, "--widths", "0"], "widths must be positive"),
        ([*SMALL, "--temperature", "-1"], "temperatures must be positive"),
        ([*SMALL, "--seed", "x"], "each of seeds must be a whole number, but is 'x'"),
        (["run", "hidden-markov", "--examples", "3"], "examples must be even"),
        (["run", "hidden-markov", "--examples", f"{2**63}"], "examples must be at most 2^53"),
        (["run", "hidden-markov", "--examples", f"{2**63}", "--jobs", "2"], "at most 2^53"),
        ([*SMALL, "--jobs", f"{2**63}"], "jobs must be at least 1 and at most 1024"),
        ([*SMALL, "--widths", "x" * 3000], "each of widths must be one number, but is 'xx"),
        ([*SMALL, "--dtype", "x" * 3000], "(3003 characters) Known: float32, float64"),
        (["run", "hidden-markov", "--variant", "strange"], "strange"),
        (["show", "nothing"], "there is no study at nothing; make one: pathkernel run TASK"),
        (["plot", ""], "the name of a folder is empty"),
        ([*SMALL, "--out", ""], "out must be a path, but is empty"),
    ],
)
def test_mistakes_get_one_clear_line(invoke, tmp_path, arguments, message):
    status, _, err = invoke(*arguments)
    assert status not in (0, None)
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.version
def test_traceback_on_request(invoke):
    _, _, err = invoke("--traceback", "show", "nothing")
    assert "Traceback" in err
    assert "there is no study" in err


@pytest.mark.version
def test_full_disk_keeps_what_is_computed(invoke):
    files = []

    def full(file, *given):
        files.append(file)
        if len(files) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_arrays(file, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "write_arrays", full)
        status, _, err = invoke(*SMALL, "--no-figures")
    assert status == 1
    assert "run the same command again" in err
    assert int((open_study("hidden-markov").status != 0).sum()) == 1
    assert invoke(*SMALL, "--no-figures")[0] == 0


def points_in_pieces(path):
    """Pieces of a width, by file, each of one temperature or several."""
    return sorted(path.glob("pieces/*_N-*.npz"))


def wait_for_points(path, count, status):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert status() is None, f"ended early with exit status {status()}"
        if len(points_in_pieces(path)) >= count:
            return
        time.sleep(0.01)
    raise AssertionError("the run computed nothing in time")


STUDY = ["run", "hidden-markov", "--examples", "30", "--test-examples", "20", "--seed", "0-3"]
CHOOSING = [*STUDY[:-1], "0", "--temperature", "0.01,0.03,0.1", "--widths", "10,30,100"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A study computed in one go → (folder, what stdout and a terminal on stderr showed)."""
    import pty

    path = tmp_path_factory.mktemp("whole") / "study"
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command(*STUDY, "--no-figures", "--out", str(path)),
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            block = os.read(leader, 4096)
        except OSError:
            break
        if not block:
            break
        shown += block
    out, _ = process.communicate()
    assert process.returncode == 0
    return path, out, shown


@pytest.fixture(scope="module")
def start():
    """Start a command in a process of its own, forked from one that has imported all before."""
    context = multiprocessing.get_context("forkserver")
    packages = "pathkernel", "pathkernel_one_shot", "pathkernel_tasks"
    plugins = [f"{package}.plugin" for package in packages]
    modules = [
        "pathkernel_datasets.run.run_study",
        "pathkernel_views.study_tables",
        "rich.progress",
    ]
    context.set_forkserver_preload(["pathkernel.main", *plugins, *modules])

    def begin(*arguments):
        process = context.Process(target=main, args=(list(arguments),))
        process.start()
        return process

    return begin


def run_killed(start, arguments, path, counts):
    """Run a study until it has so many points, kill it, for each of the numbers."""
    for count in counts:
        process = start(*arguments)
        wait_for_points(path, count, lambda process=process: process.exitcode)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL


def run_to_its_end(start, arguments):
    process = start(*arguments)
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
def test_killed_choice_goes_on_to_the_same_study(tmp_path, start):
    """A study at several temperatures, whose minimisations start from one another."""
    path, whole = tmp_path / "study", tmp_path / "whole"
    arguments = [*CHOOSING, "--no-figures", "--out"]
    run_killed(start, [*arguments, str(path)], path, [1])
    for folder in (path, whole):
        run_to_its_end(start, [*arguments, str(folder)])
    xr.testing.assert_identical(open_study(path).load(), open_study(whole).load())


def test_killed_study_goes_on_to_the_same_dataset(tmp_path, start, undisturbed):
    path = tmp_path / "study"
    arguments = [*STUDY, "--no-figures", "--out", str(path)]
    run_killed(start, arguments, path, [1, 3, 12])
    computed = open_study(path).status != 0
    assert 0 < computed.sum() < computed.size, "the run was killed in the middle"
    pieces = {file: file.stat().st_mtime_ns for file in points_in_pieces(path)}
    process = start(*arguments)
    while process.exitcode is None:
        for file in filter(Path.exists, pieces):
            with contextlib.suppress(FileNotFoundError):  # published meanwhile
                assert file.stat().st_mtime_ns == pieces[file], f"{file} was computed twice"
        time.sleep(0.05)
    assert process.exitcode == 0
    xr.testing.assert_identical(open_study(path).load(), open_study(undisturbed[0]).load())


@pytest.mark.version
def test_ctrl_c_says_how_to_go_on(tmp_path):
    path = tmp_path / "study"
    heeding = (  # what runs in the background inherits that Ctrl-C is ignored
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathkernel.main import main; main(sys.argv[1:])"
    )
    arguments = [*STUDY, "--temperature", "0.01,0.03,0.1,0.3,1"]
    process = subprocess.Popen(
        [sys.executable, "-c", heeding, *arguments, "--out", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for_points(path, 2, process.poll)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert b"run the same command again" in err
    assert b"Traceback" not in err, err.decode()


@pytest.mark.version
def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pathkernel.main import _run; _run(['--help']); "
        "print([name for name in ('scipy.linalg', 'xarray', 'zarr', 'altair', 'PIL', 'pooch', "
        "'jax', 'torch', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "[]", result.stdout + result.stderr


def test_progress_is_shown_on_a_terminal_only(undisturbed):
    _, out, shown = undisturbed
    assert b"/28" in shown
    assert b"/28" not in out


@pytest.mark.parametrize("name", ["widths", "width", "jobs"])
def test_a_task_whose_option_is_called_as_one_of_run_is_skipped(name, capsys):
    task = dataclasses.make_dataclass(
        "Clashing",
        [(name, int, option(3, "a number"))],
        bases=(HiddenMarkov,),
        namespace={"name": "clashing"},
        frozen=True,
    )
    plugins = Plugins(tasks={"clashing": task}, providers={"task clashing": "mine 1.0"})
    _with_commands(plugins)
    assert plugins.tasks == {}
    err = capsys.readouterr().err
    assert "the task clashing of mine 1.0 is skipped" in err
    assert "rename those of the plugin" in err


def test_a_result_whose_option_is_called_as_one_of_every_result_has_no_command(capsys):
    result = dataclasses.make_dataclass(
        "Clashing",
        [("figures", int, option(3, "a number"))],
        bases=(LearningCurves,),
        namespace={"name": "clashing"},
        frozen=True,
    )
    group = _with_commands(Plugins(results={"clashing": result, "curves": LearningCurves}))
    assert group.list_commands(None) == ["learning-curves"]
    assert "the result clashing has no command: the command clashing has several options named" in (
        capsys.readouterr().err
    )


def test_no_command_is_made_for_the_version(invoke, monkeypatch):
    def unwanted(*_):
        raise AssertionError("a command was made")

    monkeypatch.setattr("pathkernel.main.result_command", unwanted)
    monkeypatch.setattr("pathkernel.commands.run.task_command", unwanted)
    status, out, _ = invoke("--version")
    assert (status, out.split()[0]) == (0, "pathkernel,")


def test_an_option_of_python_alone_is_no_option_of_the_command(invoke, monkeypatch, tmp_path):
    task = dataclasses.make_dataclass(
        "Quiet",
        [("hidden", int, option(3, "a number", flags=None))],
        bases=(HiddenMarkov,),
        namespace={"name": "quiet"},
        frozen=True,
    )
    assert task(hidden=4).options()["hidden"] == 4
    command = task_command(task)
    assert "hidden" not in [parameter.name for parameter in command.params]
    (tmp_path / "quiet.toml").write_text('task = "quiet"\n[options]\nhidden = 4\n')
    monkeypatch.setattr(
        "pathkernel.main.load_plugins", lambda: Plugins({"quiet": task}, commands={"run": run})
    )
    assert "there is no option named 'hidden'" in invoke("run", "quiet.toml")[2]
