"""Attributes of modules as texts: equal where they compute the same, and only there."""

import functools
import re
import threading
import weakref
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

from pathkernel_pruning.live.structure import passing_tensors, structure_of


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


def test_parts_of_the_model_are_named():
    """Wherever they stand, and not by their values, which training changes."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].others = [weakref.ref(model[1]), model[1].weight, model[1].forward]
    before = structure_of(model).modules["0"]["others"]
    assert before.startswith("(module '1', tensor '1.weight', ")
    nn.init.ones_(model[1].weight)
    assert structure_of(model).modules["0"]["others"] == before


def test_differences_name_the_module_and_the_values():
    one, other = (nn.Sequential(nn.LayerNorm(4), nn.ReLU()) for _ in range(2))
    assert not [*structure_of(one).differences(structure_of(other))]
    other[0].eps, other[1] = 0.5, nn.GELU()
    other[1].register_forward_hook(print)
    other.flag = 1
    other.append(nn.Identity())
    assert [*map(str, structure_of(one).differences(structure_of(other)))] == [
        "the model itself has flag 1, where the saved model has it not set",
        "0 has eps 0.5, where the saved model has 1e-05",
        "1 is torch.GELU, not torch.ReLU",
        "2 is another module",
    ]
    assert structure_of(other).hooks() == ["1 has forward hooks (print)"]


def test_modules_in_another_order():
    parts = {"first": nn.Linear(2, 2), "second": nn.ReLU()}
    one, other = nn.Sequential(OrderedDict(parts)), nn.Sequential()
    for name in ("second", "first"):
        other.add_module(name, parts[name])
    (difference,) = structure_of(one).differences(structure_of(other))
    assert difference.text.startswith("the model itself has order ('second', 'first'), where")


def test_attributes_of_another_version_of_a_library_may_be_missing():
    one, other = (nn.Sequential(nn.LayerNorm(4)) for _ in range(2))
    other[0].new_in_torch = True
    assert [*structure_of(one).differences(structure_of(other))]
    assert not [*structure_of(one).differences(structure_of(other), {"torch"})]
    other[0].eps = 0.5
    assert len([*structure_of(one).differences(structure_of(other), {"torch"})]) == 1


def test_training_dropout_and_memory_compute_nothing_in_evaluation():
    one, other = (
        nn.Sequential(nn.Dropout(p), nn.Linear(2, 2), nn.MultiheadAttention(4, 2, dropout=p))
        for p in (0.1, 0.9)
    )
    other.eval()
    other[1].gradient_checkpointing = True
    assert not [*structure_of(one).differences(structure_of(other))]
    other[0].forward = print
    assert [*map(str, structure_of(one).differences(structure_of(other)))] == [
        "0 has forward print, where the saved model has it not set"
    ]


def test_tensors_that_the_state_does_not_have():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[1].register_buffer("table", torch.ones(3), persistent=False)
    model[1].cache, model[1].alias = torch.zeros(2), model[0].weight
    assert passing_tensors(model).keys() == {"1.table", "1.cache"}
