"""Studies: what they are made of, and what is refused before anything is computed."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from small_task import Small, count_minimisations

import pathkernel_core as pk
from pathkernel_core.contracts.options import option
from pathkernel_core.contracts.task import Blocks, Task
from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.identity import identity_of
from pathkernel_datasets.study.study import Study, make_task
from pathkernel_tasks.hidden_markov import HiddenMarkov

pytestmark = pytest.mark.version


@dataclass(frozen=True)
class Sized(Task):
    """A stranger's task that trusts its options."""

    name = "sized"
    summary = "Arrays of a size"

    examples: int = option(3, "examples")
    tokens: int = option(3, "tokens", minimum=2)

    def realise(self, seed):
        return np.ones((self.examples, self.tokens))


def test_arrays_and_ranges_are_sequences():
    study = Study(Small(), widths=np.array([5, 7]), temperatures=(0.1,), seeds=np.arange(3))
    assert study.widths == (5.0, 7.0)
    assert study.seeds == (0, 1, 2)
    assert {type(seed) for seed in study.seeds} == {int}
    assert Study(Small(), seeds=range(2)).seeds == (0, 1)


def test_numbers_of_numpy_are_those_of_python():
    study = Study(HiddenMarkov(examples=np.int64(20)), variance=np.float32(2))
    assert study == Study(HiddenMarkov(examples=20), variance=2.0)
    assert type(study.task.examples) is int
    with pytest.raises(ValueError, match=r"examples must be at most 2\^53"):
        Study(HiddenMarkov(examples=2**63))


@pytest.mark.parametrize("name", ["widths", "temperatures", "seeds"])
@pytest.mark.parametrize("value", [10, 0.5])
def test_a_number_where_several_may_be(name, value):
    with pytest.raises(
        TypeError, match=rf"{name} must be a sequence, such as \({value},\), but is"
    ):
        Study(Small(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("variances", "1.0"), ("variances", ("1.0",)), ("widths", ("50",)), ("temperatures", ("1",))],
)
def test_what_is_no_number(name, value):
    with pytest.raises(TypeError, match=f"{name} must be one number, but is "):
        Study(Small(), **{name: value})


@pytest.mark.parametrize("task", [Small, "small", None])
def test_what_is_no_task(task):
    with pytest.raises(TypeError, match="task must be a task with its options, as Custom"):
        Study(task)


def test_arguments_in_another_order(tmp_path):
    with pytest.raises(TypeError, match=r"study must be a Study, not '.*x'; call"):
        run_study(str(tmp_path / "x"), Study(Small()))


def test_options_that_are_too_small():
    with pytest.raises(ValueError, match="tokens must be at least 2, but is -1"):
        Study(Sized(tokens=-1))


def test_a_strangers_task_that_fails_is_named():
    with pytest.raises(
        TaskError, match=r"the task 'sized' with examples=-5, tokens=3 cannot draw "
    ):
        identity_of(Study(Sized(examples=-5), widths=(10,)))


@dataclass(frozen=True)
class Mistaken(Small):
    """A stranger's task, one of whose own functions makes a mistake."""

    name = "mistaken"
    place: str = option("", "function of the mistake")
    mistake = KeyError("token")

    def __post_init__(self):
        self.fail_in("made")

    def realise(self, seed):
        self.fail_in("drawn")
        return super().realise(seed)

    def blocks(self, seed):
        self.fail_in("blocks")
        if self.place != "block":
            return None
        return Blocks(12, 6, lambda number: self.fail_in("block"))

    def provenance(self):
        self.fail_in("provenance")
        return super().provenance()

    def fail_in(self, place):
        if self.place == place:
            raise self.mistake


@pytest.mark.parametrize("mistake", [KeyError("token"), IndexError("row 3"), SystemExit(2)])
@pytest.mark.parametrize(
    ("place", "doing"),
    [
        ("made", "cannot be made"),
        ("drawn", "with .*place='drawn' cannot draw seed 0"),
        ("blocks", "with .* cannot draw seed 0"),
        ("block", "with .* cannot draw block 0 of seed 0"),
        ("provenance", "with .* cannot tell its provenance"),
    ],
)
def test_a_mistake_in_a_tasks_own_code_names_the_task_and_its_class(
    tmp_path, monkeypatch, place, doing, mistake
):
    monkeypatch.setattr(Mistaken, "mistake", mistake)
    with pytest.raises(TaskError) as error:
        run_study(Study(make_task(Mistaken, {"place": place}), widths=(5,)), tmp_path / "a")
    kind = type(mistake).__name__
    assert re.search(f"the task 'mistaken' {doing}: {kind}: ", str(error.value))
    assert str(error.value).endswith(f"Its own code raised this, class {__name__}.Mistaken")


def test_errors_of_bundled_tasks_pass_through(tmp_path, monkeypatch):
    from pathkernel_tasks.hidden_markov import HiddenMarkov

    monkeypatch.setattr(HiddenMarkov, "realise", Mistaken.fail_in)
    monkeypatch.setattr(HiddenMarkov, "place", 0, raising=False)
    monkeypatch.setattr(HiddenMarkov, "mistake", KeyError("token"), raising=False)
    with pytest.raises(KeyError, match="token"):
        run_study(Study(HiddenMarkov(), widths=(5,)), tmp_path / "a")


def test_what_a_task_refuses_is_told_as_it_says_it():
    with pytest.raises(ValueError, match=r"^tokens must be at least 2, but is 1$"):
        make_task(Sized, {"tokens": 1})
    with pytest.raises(ValueError, match="variant must be one of"):
        make_task(HiddenMarkov, {"variant": "loud"})


def refuse(task):
    raise ValueError("this task has no such examples")


def round_again(task):
    try:
        raise KeyError("examples")
    except KeyError as error:
        raise ValueError("no such examples either") from error


MISTAKES = {
    "broadcast": lambda task: np.zeros(3) + np.zeros(4),
    "reshape": lambda task: np.zeros(3).reshape(2, 2),
    "inverse": lambda task: np.linalg.inv(np.zeros((2, 2))),
    "number": lambda task: int("a"),
    "unpacking": lambda task: dict([(1, 2, 3)]),
    "text": lambda task: b"\xff".decode(),
    "list": lambda task: [].index(3),
    "core": lambda task: pk.Problem(np.zeros(3), np.zeros(3)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_value_error_of_what_a_task_calls_is_no_refusal(monkeypatch, mistake):
    monkeypatch.setattr(Mistaken, "fail_in", lambda task, place: MISTAKES[mistake](task))
    with pytest.raises(TaskError, match=r"'mistaken' cannot be made: \w+: .*class .*\.Mistaken$"):
        make_task(Mistaken, {})


@pytest.mark.parametrize("refusal", [refuse, round_again])
def test_a_value_error_that_a_task_raises_itself_is_told_as_it_says_it(monkeypatch, refusal):
    monkeypatch.setattr(Mistaken, "fail_in", lambda task, place: refusal(task))
    with pytest.raises(ValueError, match=r"^(this task has )?no such examples") as error:
        make_task(Mistaken, {})
    assert type(error.value) is ValueError


@dataclass(frozen=True)
class Telling(Small):
    """A stranger's task whose texts and names may be of other types."""

    name = "telling"
    limit: object = 1.0
    origin: ClassVar = {}
    drawn: ClassVar = {}

    def realise(self, seed):
        return dataclasses.replace(super().realise(seed), **self.drawn)

    def provenance(self):
        return self.origin


NO_TEXTS = (5, 0.5, None, True, np.int64(3), Path("a"), ("b",))
SET = Small().realise(0).train


@pytest.mark.parametrize(
    ("origin", "drawn", "limit", "message"),
    [
        ({"rows": 5}, {}, 1, r"in its provenance\(\) for 'rows' 5 of type int; .* such as '5'$"),
        *[
            ({"rows": value}, {}, 1, f"for 'rows' .* of type {type(value).__name__}; give a text")
            for value in NO_TEXTS
        ],
        *[
            ({value: "a"}, {}, 1, f"a name .* of type {type(value).__name__}; give a text")
            for value in NO_TEXTS
        ],
        (["rows"], {}, 1, r"gives provenance\(\) of type list; give a mapping of texts"),
        ({}, {"notes": {"rows": np.int64(3)}}, 1, "in its notes for 'rows' .* of type int64"),
        ({}, {"test_sets": {3: SET}}, 1, "its labels test_set are of type int64; .* by texts"),
        ({}, {"sub_networks": {None: ((1,), (1,))}}, 1, "its sub_network holds other labels than"),
        ({}, {}, float("inf"), "has the option limit=inf, of type float"),
        ({}, {}, (1, {}), "has the option limit=.*, of type dict"),
    ],
)
def test_what_could_not_be_read_again_is_refused_before_the_work(
    tmp_path, monkeypatch, origin, drawn, limit, message
):
    monkeypatch.setattr(Telling, "origin", origin)
    monkeypatch.setattr(Telling, "drawn", drawn)
    minimised = count_minimisations(monkeypatch)
    with pytest.raises(TaskError, match=rf"the task 'telling' of class {__name__}\.Telling") as e:
        run_study(Study(Telling(limit=limit), (5,)), tmp_path / "a", analyses=())
    assert re.search(message, str(e.value))
    assert minimised == []
    assert list(tmp_path.iterdir()) == []
