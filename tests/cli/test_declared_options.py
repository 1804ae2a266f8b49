"""Declared options are the same in Python, on the command line and in a study file."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel.commands.options import options_of
from pathkernel.commands.run import Running
from pathkernel.commands.study_file import StudyFileError, values_of
from pathkernel_core.contracts.options import (
    Options,
    check_value,
    declared_options,
    element_type,
    option,
    option_type,
    several_values,
    takes_several,
)
from pathkernel_datasets.study.study import Study
from pathkernel_one_shot.settings import Training
from pathkernel_sampling.results import Samples
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_trained.results import Comparison

FILE = Path("study.toml")


@dataclass(frozen=True)
class Declared(Options):
    """Options of kinds that few tasks have."""

    name = "declared"

    count: int = option(4, "a number", minimum=-4, maximum=50, even=True)
    share: float = option(0.5, "a fraction", minimum=0, below=1)
    token: int | str = option("last", "a token", choices=("first", "last"), type=int, minimum=0)
    title: str = option("", "a text")
    strengths: tuple[float | None, ...] = option(
        (0.5,), "strengths", type=tuple[float | None, ...], minimum=0
    )


@pytest.fixture(scope="module")
def third_party():
    """Task of another distribution."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "third_party" / "src"))
        from third_party_parity.task import ThirdPartyParity

    return ThirdPartyParity


words = st.text("abcxyz", min_size=1, max_size=5)
numbers = st.integers(-60, 60) | st.integers(-(2**70), 2**70) | st.floats()


def values(declared):
    """Values that can be typed and written into a file, allowed or not."""
    kind, choices = option_type(declared), declared.metadata["choices"] or ()
    if element_type(declared) is not None:
        return st.lists(numbers | words, min_size=1, max_size=3)
    if kind in (int, float):
        return numbers | words | st.sampled_from(choices or ("a",))
    return words | st.sampled_from(choices or ("a",))


def written(value):
    """A value in TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(value) if is_number else json.dumps(value)


def in_python(configured, declared, value):
    if isinstance(value, list) and takes_several(declared):
        return several_values(configured, declared.name, value)
    return check_value(declared, value)


def typed(configured, declared, value):
    command = click.Command("c", params=options_of(configured, several=True), callback=dict)
    for parameter in command.params:
        parameter.required = False
    flag = next(parameter for parameter in command.params if parameter.name == declared.name).opts
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return command.main([f"{flag[0]}={text}"], standalone_mode=False)[declared.name]


def in_a_file(configured, declared, value):
    content = tomllib.loads(f"{declared.name} = {written(value)}")
    read = values_of(FILE, {"options": content}, {}, declared_options(configured))
    return read[declared.name]


def outcome(route, *arguments):
    """The value that an option gets, or the message."""
    try:
        return route(*arguments)
    except StudyFileError as error:
        return str(error).removeprefix(f"{FILE}: ")
    except click.BadParameter as error:
        return error.message
    except (TypeError, ValueError) as error:
        return str(error)


def assert_the_same(configured, declared, value):
    expected = outcome(in_python, configured, declared, value)
    for route in (typed, in_a_file):
        actual = outcome(route, configured, declared, value)
        assert (actual, type(actual)) == (expected, type(expected)), route


CLASSES = [Declared, HiddenMarkov, Training, Samples, Comparison, Study, "third party"]


@pytest.mark.parametrize("configured", CLASSES)
@given(data=st.data())
def test_a_value_is_the_same_wherever_it_is_given(configured, third_party, data):
    configured = third_party if configured == "third party" else configured
    offered = {option.name for option in options_of(configured)}
    entries = [entry for entry in declared_options(configured).values() if entry.name in offered]
    declared = data.draw(
        st.sampled_from([entry for entry in entries if option_type(entry) is not bool])
    )
    assert_the_same(configured, declared, data.draw(values(declared)))


@given(data=st.data())
def test_several_values_are_the_same_wherever_they_are_given(data):
    entries = declared_options(Declared).values()
    declared = data.draw(st.sampled_from([entry for entry in entries if takes_several(entry)]))
    kind = data.draw(st.sampled_from((st.integers(-60, 60), st.sampled_from(("first", "last")))))
    several = data.draw(st.lists(kind, min_size=2, max_size=2, unique=True))
    assert_the_same(Declared, declared, several)


@pytest.mark.parametrize("value", [True, 0, "no", []])
def test_a_flag_is_the_same_in_python_and_in_a_file(value):
    declared = declared_options(Running)["figures"]
    expected = outcome(in_python, Running, declared, value)
    assert outcome(in_a_file, Running, declared, value) == expected
    assert expected in (True, f"figures must be true or false, but is {value!r}")


@pytest.mark.parametrize("name", ["count", "share", "token"])
def test_a_truth_value_is_no_number_in_python_and_in_a_file(name):
    declared = declared_options(Declared)[name]
    message = outcome(in_python, Declared, declared, True)
    assert message.endswith("but is True")
    content = {"options": {name: True}}
    with pytest.raises(StudyFileError, match=message):
        values_of(FILE, content, {}, declared_options(Declared))
