"""Options: what they take, what they convert it to, and what they say of the rest."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pathkernel_core.contracts.options import (
    Options,
    bounds,
    declared_options,
    option,
    several_values,
)


@dataclass(frozen=True)
class Every(Options):
    """An option of every kind."""

    count: int = option(4, "a number of examples", minimum=2, maximum=50, even=True)
    whole: int | None = option(None, "a whole number", type=int)
    share: float = option(0.5, "a fraction", minimum=0, below=1)
    scale: float = option(1.0, "a factor", above=0)
    word: str = option("one", "a word", choices=("one", "two"))
    choice: float | str | None = option(None, "a number or a word", choices=("best",), type=float)
    text: str = option("", "a text")
    file: Path | None = option(None, "a file", type=Path)
    flag: bool = option(False, "whether")
    seeds: tuple[int, ...] = option((0,), "seeds", type=tuple[int, ...], minimum=0, below=2**63)
    factors: float | tuple[float, ...] = option(1.0, "factors", type=float | tuple[float, ...])
    strengths: tuple[float | None, ...] = option(
        (0.5,), "strengths", type=tuple[float | None, ...], minimum=0
    )
    other: object = None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", np.int32(6), 6),
        ("count", np.array(6), 6),
        ("whole", None, None),
        ("whole", -(2**53), -(2**53)),
        ("share", 0, 0.0),
        ("scale", np.float32(0.5), 0.5),
        ("choice", "best", "best"),
        ("choice", 3, 3.0),
        ("text", Path("a/b"), "a/b"),
        ("file", "a/b", Path("a/b")),
        ("flag", np.True_, True),
        ("seeds", range(2), (0, 1)),
        ("seeds", np.arange(2), (0, 1)),
        ("seeds", [2**63 - 1], (2**63 - 1,)),
        ("factors", 2, 2.0),
        ("factors", [1, 2.5], (1.0, 2.5)),
        ("strengths", [1, None], (1.0, None)),
        ("other", 1j, 1j),
    ],
)
def test_values_become_those_of_python(name, value, expected):
    converted = getattr(Every(**{name: value}), name)
    assert converted == expected
    assert type(converted) is type(expected)
    if isinstance(expected, tuple):
        assert list(map(type, converted)) == list(map(type, expected))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 3, "count must be even, at least 2 and at most 50, but is 3"),
        ("count", 52, "count must be even, at least 2 and at most 50, but is 52"),
        ("count", 4.0, "count must be a whole number, but is 4.0"),
        ("count", True, "count must be a whole number, but is True"),
        ("count", np.True_, "count must be a whole number, but is True"),
        ("count", None, "count must be a whole number, but is None"),
        ("whole", 2**53 + 1, "whole must be at most 2^53 in size, but is larger"),
        ("share", 1, "share must be at least 0 and below 1, but is 1.0"),
        ("share", float("nan"), "share must be at least 0 and below 1, but is nan"),
        ("share", "0.5", "share must be one number, but is '0.5'"),
        ("scale", 0, "scale must be positive and finite, but is 0.0"),
        ("scale", float("inf"), "scale must be positive and finite, but is inf"),
        ("scale", False, "scale must be one number, but is False"),
        ("word", "three", "word must be one of one, two, but is 'three'"),
        ("word", np.array(["one"]), "word must be one of one, two, but is an array of shape (1,)"),
        ("choice", "worst", "choice must be a number or one of best, but is 'worst'"),
        ("choice", float("nan"), "choice must be finite, but is nan"),
        (
            "text",
            np.ones((2, 3)),
            "text must be text, but is an array of shape (2, 3); name a file",
        ),
        ("text", 3, "text must be text, but is 3"),
        ("file", 3, "file must be a path, but is 3"),
        ("flag", 1, "flag must be true or false, but is 1"),
        ("seeds", 3, "seeds must be a sequence, such as (3,), but is 3"),
        ("seeds", "12", "seeds must be a sequence, such as (0, 1), but is '12'"),
        ("seeds", (), "seeds must hold at least one value"),
        ("seeds", (1, -1), "each of seeds must be at least 0 and below 2^63, but is -1"),
        ("seeds", (None,), "each of seeds must be a whole number, but is None"),
        ("factors", "1", "factors must be one number, but is '1'"),
        ("strengths", (1, "none"), "each of strengths must be one number, but is 'none'"),
    ],
)
def test_what_is_refused_names_option_requirement_and_value(name, value, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        Every(**{name: value})
    assert str(caught.value).startswith(message)
    with pytest.raises(type(caught.value)):
        replace(Every(), **{name: value})


def test_bounds_in_words():
    words = {name: bounds(entry) for name, entry in declared_options(Every).items()}
    assert words["count"] == "even, at least 2 and at most 50"
    assert words["scale"] == "positive"
    assert words["word"] == words["flag"] == ""
    assert "other" not in words


def test_a_class_checks_its_options_against_each_other_after_each_of_them():
    seen = []

    @dataclass(frozen=True)
    class Ordered(Options):
        low: int = option(1, "lower end", minimum=0)
        high: int = option(2, "upper end", minimum=0)

        def __post_init__(self):
            seen.append((self.low, self.high))
            if self.low > self.high:
                raise ValueError("low must be at most high")

    @dataclass(frozen=True)
    class Named(Ordered):
        name: str = option("", "a name")

        def __post_init__(self):
            super().__post_init__()
            object.__setattr__(self, "name", self.name or f"{self.low} to {self.high}")

    assert Named(np.int64(1), 3).name == "1 to 3"
    assert seen == [(1, 3)]
    assert type(seen[0][0]) is int
    with pytest.raises(ValueError, match="low must be at most high"):
        Named(3, 2)
    with pytest.raises(ValueError, match="high must be at least 0, but is -1"):
        Named(3, -1)
    assert len(seen) == 2


def test_several_values_are_each_checked():
    assert several_values(Every(), "count", np.array([4.0, 8.0])) == (4, 8)
    assert several_values(Every(), "choice", (1, 2)) == (1.0, 2.0)
    with pytest.raises(ValueError, match=r"choice holds both numbers and words: 1\.0, best"):
        several_values(Every(), "choice", (1, "best"))
    with pytest.raises(ValueError, match="the option 'seeds' takes one value"):
        several_values(Every(), "seeds", ((1,), (2,)))
    with pytest.raises(ValueError, match="count must be even"):
        several_values(Every(), "count", (4, 5))


def test_a_class_that_is_mixed_in_does_not_leave_options_unchecked():
    class Mixed:
        def __post_init__(self):
            self.count + 0  # of an option that is checked already

    @dataclass(frozen=True)
    class Configured(Mixed, Options):
        count: int = option(1, "a number", minimum=1)

    assert Configured(2).count == 2
    for wrong in (0, "bad"):
        with pytest.raises((TypeError, ValueError), match="count must be"):
            Configured(wrong)


def test_classes_and_single_values_of_array_libraries():
    @dataclass(frozen=True)
    class Configured(Options):
        dtype: str = option("float64", "a type")
        count: int = option(1, "a number")

    with pytest.raises(TypeError, match=r"dtype must be text, but is <class 'numpy\.float32'>"):
        Configured(dtype=np.float32)
    assert Configured(count=np.array(3)).count == 3
