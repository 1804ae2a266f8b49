"""Values as texts: equal where they compute the same, and only there; read in bounded time."""

import functools
import random
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.nn import functional as F

from pathkernel_pruning.live.saved.structure import structure_of


class Mode(Enum):
    FIRST = 1
    SECOND = 2


@dataclass
class Settings:
    factor: float
    nested: tuple = ()


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def scripted(function):
    return torch.jit.trace(function, torch.ones(2))


def multiplied(factor):
    return lambda x: x * factor


def circle(value):
    entries = [value]
    entries.append(entries)
    return entries


def filled(value):
    linear = nn.Linear(2, 2)
    nn.init.constant_(linear.weight, value)
    nn.init.zeros_(linear.bias)
    return [linear]  # in a list, which PyTorch does not register


# pairs of functions whose values are equal in each, and unlike between them
VALUES = {
    "float": (lambda: 0.1, lambda: 0.1000001),
    "flag": (lambda: True, lambda: False),
    "none": (lambda: None, lambda: "None"),
    "tuple": (lambda: (1, 2), lambda: (2, 1)),
    "nested": (lambda: {"a": [1, {2}]}, lambda: {"a": [1, {3}]}),
    "order of a set": (lambda: {"b", "a", "c"}, lambda: {"b", "a"}),
    "dict": (lambda: OrderedDict(a=1), lambda: OrderedDict(a=2)),
    "enum": (lambda: Mode.FIRST, lambda: Mode.SECOND),
    "dataclass": (lambda: Settings(1.0), lambda: Settings(1.0, (2,))),
    "slots": (lambda: Slots(3), lambda: Slots(4)),
    "fraction": (lambda: Fraction(1, 3), lambda: Fraction(2, 3)),
    "pattern": (lambda: re.compile("a"), lambda: re.compile("b")),
    "array": (lambda: np.arange(3.0), lambda: np.arange(3.0) + 1),
    "objects": (lambda: np.array([1, "a"], object), lambda: np.array([1, "b"], object)),
    "type": (lambda: torch.float32, lambda: torch.float64),
    "class": (lambda: nn.ReLU, lambda: nn.GELU),
    "function": (lambda: F.relu, lambda: F.silu),
    "built in": (lambda: F.gelu, lambda: torch.tanh),
    "ufunc": (lambda: np.exp, lambda: np.sin),
    "partial": (
        lambda: functools.partial(F.leaky_relu, negative_slope=0.1),
        lambda: functools.partial(F.leaky_relu, negative_slope=0.2),
    ),
    "closure": (lambda: multiplied(2), lambda: multiplied(3)),
    "code": (lambda: lambda x: x + 2, lambda: lambda x: x * 2),
    "constants": (lambda: lambda x: x in {"a", "b"}, lambda: lambda x: x in {"a", "c"}),
    "default": (lambda: lambda x, y=1: x, lambda: lambda x, y=2: x),
    "method": (lambda: Settings(1.0).__eq__, lambda: Settings(2.0).__eq__),
    "namespace": (lambda: SimpleNamespace(a=1), lambda: SimpleNamespace(a=2)),
    "range": (lambda: range(3), lambda: range(4)),
    "path": (lambda: Path("a"), lambda: Path("b")),
    "method of tensors": (lambda: torch.Tensor.relu, lambda: torch.Tensor.tanh),
    "shared": (lambda: [[1], [1]], lambda: [[1], [2]]),
    "circle": (lambda: circle(1), lambda: circle(2)),
    "modules in a list": (lambda: filled(1.0), lambda: filled(2.0)),
    "tensors in a list": (lambda: [torch.ones(2)], lambda: [torch.zeros(2)]),
    "scripted": (lambda: scripted(torch.tanh), lambda: scripted(torch.sin)),
    "long": (lambda: "a" * 999 + "b", lambda: "a" * 999 + "c"),
}


def text_of(value):
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].setting = value
    texts = structure_of(model).modules["0"]
    return texts["setting"], texts.get("code of setting")


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated")
@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    one, other = VALUES[name]
    assert text_of(one()) == text_of(one())
    assert text_of(one()) != text_of(other())
    assert len(text_of(one())[0]) < 250


def test_what_cannot_be_read_is_compared_by_its_class():
    assert text_of(threading.Lock()) == text_of(threading.Lock()) != text_of(threading.Event)


class Node:
    """Refers to others, and its own code must not run."""

    def __init__(self, value):
        self.value, self.others = value, []

    def __reduce_ex__(self, protocol):
        raise AssertionError("an object was asked for its content")

    __repr__ = __iter__ = __len__ = __reduce_ex__


def network(count, rng):
    """Nodes that refer to one another, at random and in a ring."""
    nodes = [Node(number) for number in range(count)]
    for number, node in enumerate(nodes):
        node.others = [nodes[(number + 1) % count], *rng.choices(nodes, k=8)]
    return nodes


def nested(depth):
    entries = [0]
    for _ in range(depth):
        entries = [entries]
    return entries


def doubled(depth):
    entries = [0]
    for _ in range(depth):
        entries = [entries, entries]
    return entries


@pytest.mark.parametrize("count", [12, 400])
def test_objects_that_refer_to_one_another(count):
    """Each is read once, and the last of them still tells."""
    nodes, again = (network(count, random.Random(1)) for _ in range(2))
    start = time.monotonic()
    assert text_of(nodes) == text_of(again)
    again[-1].value = -1
    assert text_of(nodes) != text_of(again)
    assert time.monotonic() - start < 5


LARGE = {
    "deep": lambda: nested(1200),
    "wide": lambda: doubled(60),
    "long": lambda: range(2**20),
    "logs": lambda: [0.5] * 2**18,
    "circle": lambda: circle(1),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_values_are_read_in_part(name):
    start = time.monotonic()
    assert text_of(LARGE[name]()) == text_of(LARGE[name]())
    assert time.monotonic() - start < 5


def test_a_longer_log_is_another_one():
    assert text_of([0.5] * 2**17) != text_of([0.5] * (2**17 + 1))


def test_equal_values_are_alike_whether_they_are_one_object():
    part = [1, {"a": 2}]
    assert text_of([part, part]) == text_of([[1, {"a": 2}], [1, {"a": 2}]])


def test_objects_that_run_the_process_are_named_by_their_class():
    """Such as random numbers, locks and files, whose content says nothing of outputs."""
    assert text_of(random.Random(1)) == text_of(random.Random(2)) == ("Random", None)
