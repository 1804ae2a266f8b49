"""What commands print: notes that wrap, captions and warnings that are said once, one screen."""

import contextlib
import json
import sys
import warnings

import pandas as pd
import pytest

from pathkernel.commands.output import print_views, say
from pathkernel.commands.tables import TablesCommand
from pathkernel.main import main
from pathkernel_datasets.errors import StudyWarning
from pathkernel_views.table import Table

SMALL = ["run", "hidden-markov", "--examples", "8", "--test-examples", "6", "--no-figures"]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def table(name, caption, **settings):
    return Table(name, name, pd.DataFrame({"a": [1]}), {"a": "{a}"}, caption, **settings)


def test_notes_wrap_but_not_what_is_typed_or_opened(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    path = "/a/path-that/is-longer-than/the-forty/columns-of-the-terminal"
    say(f"A note of more words than fit into the line, with one-shot-images and {path}", wrap=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A note of more words than fit into the"
    assert all(line.startswith("  ") for line in lines[1:])
    assert all(len(line) <= 40 for line in lines if path not in line)
    assert f"  {path}" in lines
    assert "one-shot-images" in " ".join(lines)


@pytest.mark.parametrize("status", [None, 3])
def test_what_other_code_prints_does_not_break_json(capsys, status):
    def callback():
        print("from a plugin")
        print_views([table("one", "Caption.")])
        if status is not None:
            sys.exit(status)

    command = TablesCommand("noisy", callback=callback)
    with contextlib.nullcontext() if status is None else pytest.raises(SystemExit):
        command.main(["--json"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert [shown["name"] for shown in json.loads(out)["tables"]] == ["one"]
    assert err == "from a plugin\n"
    with contextlib.nullcontext() if status is None else pytest.raises(SystemExit):
        command.main([], standalone_mode=False)
    assert capsys.readouterr().out.startswith("from a plugin\n")


def test_shared_captions_are_said_once_and_details_are_counted(capsys):
    views = [table("one", "Shared."), table("two", "Shared."), table("three", "Other.")]
    hidden = [table(f"detail {number}", "", detail=True) for number in range(2)]
    print_views([*views, *hidden], details="pathkernel show NAME --all")
    out = capsys.readouterr().out
    assert (out.count("Shared."), out.count("Other.")) == (1, 1)
    assert "detail" not in out
    assert out.endswith("2 more tables: pathkernel show NAME --all\n")
    print_views([*views, *hidden])
    assert "detail 1" in capsys.readouterr().out


def test_identical_warnings_are_said_once(invoke, monkeypatch):
    def warned(**_):
        for text in ("a chunk is damaged", "a chunk is damaged", "another one"):
            warnings.warn(text, StudyWarning, stacklevel=1)

    monkeypatch.setattr("pathkernel.main.pathkernel.callback", warned)
    err = invoke("plugins")[2]
    assert err == "Warning: a chunk is damaged\nWarning: another one\n"


def test_a_note_on_several_values_is_said_once(invoke):
    """Tables have no column that always says ok, and no median of one seed."""
    variances = ("--variance", "0.0001,0.0002", "--widths", "10")
    status, out, err = invoke(*SMALL, *variances)
    assert (status, err) == (0, "")
    assert max(len(line) for line in out.splitlines() if "Results: " not in line) <= 80
    assert out.count("explains less than 1 %") == 1
    assert "prior variance σ² = " not in out, "it holds for all values"
    assert "ok" not in out.split()
    assert "status" not in out
    _, out, _ = invoke("show", "hidden-markov", "--all")
    assert "edian" not in out
    lines = json.loads(invoke("show", "hidden-markov", "--json")[1])["lines"]
    assert all("\n" not in line for line in lines)


def test_commands_at_widths_say_which_there_are(invoke):
    pytest.importorskip("blackjax", reason="of the extra pathkernel[sampling]")
    assert invoke(*SMALL, "--widths", "10,100")[0] == 0
    for command in ("sample", "correct"):
        status, _, err = invoke(command, "hidden-markov")
        assert status == 1
        assert "widths must name at least one width of the study, which has 10, 100" in err
        assert "--widths" in err


def test_all_prints_what_the_screen_leaves_out(invoke):
    assert invoke(*SMALL, "--widths", "10")[0] == 0
    plain, every = (invoke("show", "hidden-markov", *more)[1] for more in ((), ("--all",)))
    assert "Minimisation" not in plain
    assert "Minimisation" in every


MARKED = "x\u202egnp\x1b[31m\u2066"


@pytest.mark.parametrize(
    "arguments",
    [
        [MARKED],
        ["show", MARKED],
        ["show", "a", MARKED],
        ["check", MARKED],
        ["show", f"--{MARKED}"],
        ["show", "a", "--temperature", MARKED],
        ["run", MARKED],
        ["run", f"{MARKED}.toml"],
        ["run", "hidden-markov", "--variant", MARKED],
        ["run", "hidden-markov", MARKED],
        ["report", MARKED, "--out", MARKED],
    ],
)
def test_marks_of_direction_in_arguments_are_escaped(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr()
    assert end.value.code
    assert r"x\u202egnp" in said.err
    assert (said.out + said.err).replace("\n", "").isprintable()
