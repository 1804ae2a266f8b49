"""The contract of tasks accepts a good task, and each of its checks rejects a bad one."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from pathkernel_core import (
    Attention,
    AttentionProduct,
    Examples,
    Realisation,
    Task,
    option,
)
from pathkernel_core.contracts.testing import check_task
from pathkernel_tasks.hidden_markov import HiddenMarkov

pytestmark = pytest.mark.version


@dataclass(frozen=True)
class Parity(Task):
    """Parity of two tokens; every way to break it overrides one method or attribute."""

    name = "parity"
    summary = "Parity of two signs"

    examples: int = option(8, "training examples")

    def realise(self, seed):
        generator = np.random.default_rng(seed)
        products = generator.standard_normal((2, 4, 4))
        return Realisation(
            layers=[AttentionProduct(products), AttentionProduct(products[:1])],
            readout="mean",
            train=self.draw(self.examples, generator),
            test_sets={"test": self.draw(6, generator)},
            sub_networks={"first": ((1,), (1,))},
        )

    def draw(self, examples, generator):
        signs = generator.choice([-1.0, 1.0], size=(examples, 2))
        signs[0], signs[1] = (1, 1), (1, -1)
        tokens = np.concatenate(
            [signs[..., None], generator.standard_normal((examples, 2, 3))], axis=2
        )
        return Examples(tokens, signs.prod(axis=1))


@pytest.mark.parametrize(
    "task",
    [
        Parity(),
        HiddenMarkov(examples=10, test_examples=10),
        HiddenMarkov(variant="strong-noise", examples=10, test_examples=10, readout="mean"),
    ],
)
def test_tasks_keep_the_contract(task):
    check_task(task)


def replaced(**changes):
    """A realise that changes fields of a good realisation."""

    def realise(self, seed):
        good = Parity.realise(self, seed)
        return dataclasses.replace(
            good, **{name: change(good, seed) for name, change in changes.items()}
        )

    return realise


def train(change):
    def realise(self, seed):
        good = Parity.realise(self, seed)
        inputs, labels = change(good.train.inputs.copy(), good.train.labels.copy())
        return dataclasses.replace(good, train=Examples(inputs, labels), kind=None)

    return realise


def validation(change):
    """Validation examples that are the training examples of a good realisation, changed."""
    return lambda good, seed: Examples(*change(good.train.inputs.copy(), good.train.labels.copy()))


def into_a_buffer(part="train"):
    """A realise that puts every draw into the same array."""
    buffers = []

    def realise(self, seed):
        good = Parity.realise(self, seed)
        array = good.train.inputs if part == "train" else np.ones((1, 4, 4)) + seed
        buffers[:] = buffers or [np.empty_like(array)]
        buffers[0][...] = array
        if part == "layers":
            return dataclasses.replace(good, layers=[AttentionProduct(buffers[0])] * 2)
        return dataclasses.replace(good, train=Examples(buffers[0], good.train.labels))

    return realise


def with_value(array, value):
    array[0] = value
    return array


def from_the_global_generator(self, seed):
    np.random.uniform()  # noqa: NPY002
    return Parity.realise(self, seed)


def never_the_same(self, seed):
    return Parity.realise(self, np.random.default_rng().integers(2**32))


def always_the_same(self, seed):
    return Parity.realise(self, 0)


# broken field: (changes of the task, message)
BROKEN = {
    "name with capitals": ({"name": "My Task"}, "lower-case words"),
    "no summary": ({"summary": " "}, "summary must say in one line"),
    "long summary": ({"summary": "a\nb"}, "single line"),
    "no widths": ({"widths": ()}, "widths must not be empty"),
    "negative width": ({"widths": (-1,)}, "widths must be positive"),
    "zero temperature": ({"temperatures": (0.0,)}, "temperatures must be positive"),
    "global generator": (
        {"realise": from_the_global_generator},
        "generator of its own|from its own generator",
    ),
    "no seed": ({"realise": never_the_same}, "inputs differ"),
    "one seed": ({"realise": always_the_same}, "same training inputs"),
    "no realisation": ({"realise": lambda self, seed: None}, "must return a Realisation"),
    "no test set": (
        {"realise": replaced(test_sets=lambda good, seed: {})},
        "at least one test set",
    ),
    "flat inputs": (
        {"realise": train(lambda x, y: (x[:, 0], y))},
        r"training: inputs must have shape \(P, M, N_0\)",
    ),
    "too few labels": (
        {"realise": train(lambda x, y: (x, y[:-1]))},
        "training: one label per example",
    ),
    "other width in the test set": (
        {"realise": train(lambda x, y: (x[..., :3], y))},
        "input width differs from training",
    ),
    "other outputs in the test set": (
        {"realise": train(lambda x, y: (x, np.stack([y, -y], axis=1)))},
        "outputs differ",
    ),
    "NaN in inputs": (
        {"realise": train(lambda x, y: (with_value(x, np.nan), y))},
        "training: inputs hold NaN",
    ),
    "NaN in labels": (
        {"realise": train(lambda x, y: (x, with_value(y, np.nan)))},
        "training: labels hold NaN",
    ),
    "labels of zero": (
        {
            "realise": replaced(
                train=lambda good, seed: Examples(
                    good.train.inputs, with_value(good.train.labels, 0.0)
                )
            )
        },
        "must be ±1",
    ),
    "labels 0 and 1": (
        {"realise": train(lambda x, y: (x, np.where(y > 0, 1.0, 0.0)))},
        "labels are 0 and 1; take",
    ),
    "labels of one sign": ({"realise": train(lambda x, y: (x, np.abs(y)))}, "both signs"),
    "targets that are all the same": (
        {"realise": train(lambda x, y: (x, 0 * y + 2.5))},
        "training: all its targets are the same",
    ),
    "labels that are classes with one seed only": (
        {"realise": replaced(kind=lambda good, seed: "targets" if seed else "classes")},
        "of another kind",
    ),
    "flat validation inputs": (
        {"realise": replaced(validation=validation(lambda x, y: (x[:, 0], y)))},
        r"validation: inputs must have shape \(P, M, N_0\)",
    ),
    "NaN in validation inputs": (
        {"realise": replaced(validation=validation(lambda x, y: (with_value(x, np.nan), y)))},
        "validation: inputs hold NaN",
    ),
    "validation labels of one sign": (
        {"realise": replaced(validation=validation(lambda x, y: (x, np.abs(y))))},
        "validation: labels must hold both signs",
    ),
    "validation examples of one seed only": (
        {"realise": replaced(validation=lambda good, seed: None if seed else good.train)},
        "another has none",
    ),
    "heads that depend on the seed": (
        {"realise": replaced(layers=lambda good, seed: good.layers[: 1 + seed % 2])},
        "numbers of heads differ",
    ),
    "readout that depends on the seed": (
        {"realise": replaced(readout=lambda good, seed: seed % 2)},
        "readout differs",
    ),
    "test sets that depend on the seed": (
        {"realise": replaced(test_sets=lambda good, seed: {f"test {seed}": good.train})},
        "test sets differ",
    ),
    "sub-networks that depend on the seed": (
        {"realise": replaced(sub_networks=lambda good, seed: {"a": ((1 + seed % 2,), (1,))})},
        "sub-networks differ",
    ),
    "sub-network of heads that do not exist": (
        {"realise": replaced(sub_networks=lambda good, seed: {"a": ((3,), (1,))})},
        "heads",
    ),
    "attention of another input width": (
        {"realise": replaced(layers=lambda good, seed: [AttentionProduct(np.ones((1, 5, 5)))])},
        "",
    ),
    "attention of the training examples only": (
        {"realise": replaced(layers=lambda good, seed: [Attention(np.ones((8, 1, 2, 2)) / 2)])},
        "",
    ),
    "arrays that the next draw fills": (
        {"realise": into_a_buffer()},
        "later draw changed .*inputs",
    ),
    "heads that the next draw fills": (
        {"realise": into_a_buffer("layers")},
        "later draw changed array 1 of the layers.* of an earlier one",
    ),
    "unknown readout": ({"realise": replaced(readout=lambda good, seed: "middle")}, ""),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
@pytest.mark.filterwarnings("ignore")
def test_a_broken_task_fails_its_check(changes, message):
    broken = dataclass(frozen=True)(type("Broken", (Parity,), changes))()
    with pytest.raises((AssertionError, ValueError, TypeError), match=message):
        check_task(broken)


def test_options_that_are_not_plain_fail():
    @dataclass(frozen=True)
    class NoHelp(Parity):
        additional: int = 3

    @dataclass(frozen=True)
    class NotPlain(Parity):
        doubled: int = option(1, "another each time")

        def __post_init__(self):
            object.__setattr__(self, "doubled", 2 * self.doubled)

    for task, message in (
        (NoHelp(), "option additional needs a help text"),
        (NotPlain(), "rebuild"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_task(task)


def test_options_are_values_by_name():
    task = HiddenMarkov(examples=20)
    assert task.options() == {
        "variant": "plain",
        "examples": 20,
        "test_examples": 1000,
        "readout": "last",
    }
    assert task.provenance() == {}
    entries = {entry.name: entry.metadata for entry in dataclasses.fields(task)}
    assert entries["variant"]["choices"] == ("plain", "strong-noise", "strong-noise-uniform")
    assert entries["examples"]["help"]


def test_a_realisation_knows_its_network():
    realisation = Parity().realise(0)
    assert realisation.heads == (2, 1)
    assert realisation.outputs == 1
    several = Examples(realisation.train.inputs, np.ones((8, 3)))
    assert dataclasses.replace(realisation, train=several, kind="targets").outputs == 3


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([-1, 1, 1.0], "classes"),
        ([-1, 0, 1.0], "targets"),
        ([2.0, -3.0, 2.0], "targets"),
        ([[1, -1, -1], [-1, -1, 1], [-1, 1, -1]], "classes"),
        ([[1, 0], [0, 1], [0, 1]], "classes"),
        ([[1, 1], [0, 1], [0, 1]], "targets"),
        ([[0.5, 0.1], [0.2, 1], [0.3, 3]], "targets"),
    ],
)
def test_the_kind_of_labels_is_told_by_their_values(labels, kind):
    good = Parity(examples=3).realise(0)
    drawn = Examples(good.train.inputs, np.array(labels))
    assert dataclasses.replace(good, train=drawn, kind=None).kind == kind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "numbers"}, "kind must be one of classes, targets, not 'numbers'"),
        ({"kind": "classes", "centred": True}, "classes are ±1 and not centred"),
        ({"output_names": ("a", "b")}, "must name 1 outputs, but names 2"),
        (
            {"train": Examples(np.ones((2, 3, 1)), np.array([0, 1]))},
            "of training examples must be ±1",
        ),
        ({"validation": Examples(np.ones((2, 3, 1)), np.array([1, 2]))}, "of validation examples"),
    ],
)
def test_a_realisation_that_contradicts_itself(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Parity().realise(0), **changes)


def test_names_of_outputs_differ():
    good = Parity(examples=3).realise(0)
    train = Examples(good.train.inputs, 2 * np.eye(3)[:, :2] - 1)
    with pytest.raises(ValueError, match="output_names must differ, but are a, a"):
        dataclasses.replace(good, train=train, kind="targets", output_names=("a", "a"))


def test_a_task_of_targets_keeps_the_contract():
    class Distance(Parity):
        def realise(self, seed):
            good = super().realise(seed)
            changed = {
                name: Examples(part.inputs, np.abs(part.inputs[:, 0, 1]))
                for name, part in {"train": good.train, **good.test_sets}.items()
            }
            train = changed.pop("train")
            return dataclasses.replace(
                good, train=train, test_sets=changed, kind="targets", centred=True
            )

    check_task(Distance())


def test_a_task_must_implement_realise():
    @dataclass(frozen=True)
    class Nothing(Task):
        name = "nothing"

    with pytest.raises(TypeError, match="abstract"):
        Nothing()
