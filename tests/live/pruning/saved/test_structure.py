"""Models compared module by module, by classes, attributes and hooks."""

import weakref
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_pruning.live.saved.structure import _stored_names as stored_names
from pathkernel_pruning.live.saved.structure import passing_tensors, structure_of


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


def test_attributes_put_on_a_container_are_no_computation():
    model, other = (nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2))
    model.note = "first"
    (difference,) = structure_of(model).differences(structure_of(other))
    assert difference.cause == "attribute"
    named = [nn.ModuleDict({name: nn.Linear(2, 2) for name in order}) for order in ("ab", "ba")]
    (difference,) = structure_of(named[0]).differences(structure_of(named[1]))
    assert difference.cause == "computation"


def test_properties_store_what_their_getter_and_setter_do():
    class Cached:
        @property
        def table(self):
            """A table, made once."""
            self.made = 1
            return self.made

        @table.setter
        def table(self, value):
            self.given = value

    assert stored_names(Cached.table) == {"made", "given"}
