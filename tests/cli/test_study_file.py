"""A study in a TOML file: run, refused, and written back from a folder."""

import dataclasses
import math
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pathkernel.commands.study_file import StudyFileError, _toml, read_study, study_toml
from pathkernel.main import main
from pathkernel_core import QueryKey
from pathkernel_datasets.folder.reading import open_folder
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.testing import SMALL_STUDY
from pathkernel_tasks.heads_file import save_heads
from pathkernel_tasks.hidden_markov import HiddenMarkov


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    """Run the command line in an empty folder → (exit status, stdout, stderr)."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


RUN = 'task = "hidden-markov"\n'
STUDY = """
task = "hidden-markov"
widths = [10, 30.5]
temperatures = 0.5
seeds = "1-2"
variances = [1, 0.5, 0.25, 2]
skips = [0.7, "none"]
figures = false

[options]
variant = "strong-noise"
examples = [10, 20]
test_examples = 10
"""


def test_a_study_is_run_written_back_and_gone_on_with(invoke, tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(STUDY)
    status, _, err = invoke("run", file)
    assert (status, err) == (0, "")
    folder = tmp_path / "small"
    held = open_folder(folder).identity
    assert held["task"] == "hidden-markov"
    assert held["options"] == HiddenMarkov("strong-noise", test_examples=10).options() | {
        "examples": [10, 20]
    }
    assert (held["widths"], held["temperatures"], held["seeds"]) == ([10, 30.5], [0.5], [1, 2])
    assert (held["variances"], held["skips"]) == ([1, 0.5, 0.25, 2], [0.7, None])

    status, out, _ = invoke("show", folder, "--toml")
    assert status == 0
    again = tmp_path / "another folder" / "again.toml"
    again.parent.mkdir()
    again.write_text(out)
    status, out, err = invoke("run", again, "--no-figures")
    assert (status, err) == (0, "")
    assert "Nothing was left to compute" in out
    status, _, err = invoke("run", again, "--no-figures", "--skips", "0.5")
    assert status == 1
    assert re.search(r"\(skips: the folder has .*0\.7.*, this run 0\.5\)", err)
    assert not (again.parent / "again").exists()


def test_a_byte_order_mark_is_no_part_of_a_study(tmp_path):
    file = tmp_path / "marked.toml"
    file.write_text(STUDY, encoding="utf-8-sig")
    name, content = read_study(file)
    assert name == "hidden-markov"
    assert content["options"] == tomllib.loads(STUDY)["options"]


def test_paths_are_taken_from_the_folder_of_the_file(invoke, tmp_path):
    generator = np.random.default_rng(0)
    inputs, layer = generator.normal(size=(8, 3, 4)), generator.normal(size=(2, 2, 2, 4))
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "d.npz", inputs=inputs, labels=np.tile([-1, 1], 4))
    save_heads(tmp_path / "data" / "heads.npz", [QueryKey(*layer)])
    (tmp_path / "mean").mkdir()  # no path is meant by a word
    (tmp_path / "s.toml").write_text(
        'task = "custom"\nwidths = [10]\ntemperatures = [1]\nout = "data/s"\n'
        '[options]\ninputs = "data/d.npz"\nheads = "data/heads.npz"\nreadout = "mean"\n'
        "test_fraction = 0.25\n"
    )
    status, _, err = invoke("run", tmp_path / "s.toml", "--no-figures")
    assert (status, err) == (0, "")
    options = open_folder(tmp_path / "data" / "s").identity["options"]
    assert options["inputs"] == str(tmp_path / "data" / "d.npz")
    assert options["readout"] == "mean"
    (tmp_path / "data").rename(tmp_path / "moved")
    _, out, _ = invoke("show", tmp_path / "moved" / "s", "--toml")
    assert tomllib.loads(out)["options"]["heads"] == str(tmp_path / "moved" / "heads.npz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task = ", "is no TOML file: Invalid value"),
        ("widths = [1]", "task must name a task"),
        ('task = "hidden-markow"', "Did you mean 'hidden-markov'?"),
        (
            'task = "hidden-markov"\nwidhts = [1]',
            "'widhts'. Did you mean 'widths'",
        ),
        ('task = "hidden-markov"\nexamples = 10', "examples is an option of the task; write it"),
        ('task = "hidden-markov"\njson = true', "no setting named 'json'"),
        (RUN + "widths = [1, true]", "each of widths must be one number, but is True"),
        (RUN + "widths = []", "widths must hold at least one value"),
        (RUN + "seeds = [0.5]", "each of seeds must be a whole number, but is 0.5"),
        (RUN + "seeds = '4-1'", "seeds holds the range '4-1', which is empty or too long"),
        (RUN + f"seeds = '0-{2**70}'", "which is empty or too long"),
        (RUN + "skips = ['some']", "each of skips must be one number, but is 'some'"),
        (RUN + "figures = 2", "figures must be true or false, but is 2"),
        (RUN + "jobs = 1.5", "jobs must be a whole number, but is 1.5"),
        (RUN + "threads = 0", "threads must be at least 1 and at most 1024, but is 0"),
        (RUN + "out = ['a', 'b']", "out must be a path, but is ['a', 'b']"),
        (RUN + "out = ''", "out must be a path, but is empty"),
        (RUN + "options = 3", "options must be a table"),
        (RUN + "[options]\nexample = 3", "Did you mean 'examples'?"),
        (RUN + "[options]\nexamples = []", "examples must be a whole number, but is []"),
        (RUN + "[options]\nexamples = [2, true]", "examples must be a whole number, but is True"),
        (RUN + "[options]\nexamples = [2, 3]", "examples must be even and at least 2, but is 3"),
        (RUN + "[options]\nvariant = 'plane'", "variant must be one of plain, strong-noise, "),
    ],
)
def test_what_is_wrong_is_named(invoke, tmp_path, text, message):
    file = tmp_path / "study.toml"
    file.write_text(text)
    status, out, err = invoke("run", file)
    assert (status, out) == (1, "")
    assert str(file) in err or "hidden-markow" in err
    assert message in err
    assert not (tmp_path / "study").exists()


def test_a_file_that_does_not_exist(invoke, tmp_path):
    status, _, err = invoke("run", tmp_path / "none.toml")
    assert status == 1
    assert f"No such file or directory: {tmp_path / 'none.toml'}" in err


HARD = "\x00\t\n\x7f\x85\u2028é\ufeff\U0001f600"


@pytest.mark.parametrize(
    "value",
    [
        *("", "a \\ \"b\" '#'", HARD, True, [1, 2.5, "a"], [False]),
        *(0, -3, 2**62, 0.1, 1e300, 5e-324, 1.0, -0.0),
    ],
)
def test_what_is_written_is_read_back(value):
    found = tomllib.loads(f"a = {_toml('a', value)}")["a"]
    assert repr(found) == repr(value)


def test_names_of_options_of_any_task_are_read_back(tmp_path):
    held = {"task": "mine", "widths": [10.0], "temperatures": [0.1], "seeds": [0]}
    options = {"plain-name_1": 1, 'a "b" = [c]\n': 2, "": 3, "é": 4}
    study = SimpleNamespace(identity=held, options=options, path=tmp_path / "a")
    assert tomllib.loads(study_toml(study))["options"] == options


def test_what_toml_cannot_hold_is_refused():
    for value in ("\udc80", None, {"a": 1}, math.inf):
        with pytest.raises(StudyFileError, match=r"a = .* cannot be written"):
            _toml("a", value)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without end")
def test_a_device_without_end_is_no_study(tmp_path):
    (tmp_path / "study.toml").symlink_to("/dev/zero")
    with pytest.raises(StudyFileError, match="is larger than 1 MiB, unlike any study file"):
        read_study(tmp_path / "study.toml")


def test_one_variance_for_all_weights_is_written_alone(tmp_path):
    study = dataclasses.replace(SMALL_STUDY, variance=2.0, variances=None)
    compute_study(study, tmp_path / "s", analyses=())
    written = tomllib.loads(study_toml(StoredStudy(tmp_path / "s")))
    assert "variances" not in written
    assert written["options"]["variance"] == 2
