"""The contract of tasks, for their authors: ``check_task`` in a test says what to change.

from pathkernel_core.testing import check_task

def test_parity():
    check_task(Parity(examples=20))
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np

from pathkernel_core.attention import attentioned_inputs
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import gp_limit
from pathkernel_core.network import Network
from pathkernel_core.options import NAME_PATTERN
from pathkernel_core.task import Examples, Realisation, Task

SEEDS = (0, 1)
"""Seeds with which tasks are checked."""


def check_task(task: Task) -> None:
    """Check that a task keeps its contract: seeds, shapes, options, and that the theory runs.

    Parameters
    ----------
    task : Task
        With small sizes, to keep the checks fast.

    Raises
    ------
    AssertionError
        At the first check that fails, saying what to change. What the task raises itself is passed
        on.
    """
    for check in CHECKS:
        check(task)


def _check_describes_itself(task: Task) -> None:
    """Its name, summary and default grid can be shown and typed."""
    assert re.fullmatch(NAME_PATTERN, task.name), (
        f"name {task.name!r} must be lower-case words joined by hyphens"
    )
    assert task.summary.strip(), "summary must say in one line what the task is"
    assert "\n" not in task.summary, "summary must be a single line"
    for name in ("widths", "temperatures"):
        values = getattr(task, name)
        assert values, f"{name} must not be empty"
        assert all(value > 0 for value in values), f"{name} must be positive"


def _check_options_are_plain(task: Task) -> None:
    """Its options survive JSON, explain themselves and rebuild the task."""
    options = json.loads(json.dumps(task.options()))
    assert type(task)(**options) == task, "options() must rebuild the task"
    provenance = task.provenance()
    assert json.loads(json.dumps(provenance)) == provenance, (
        "provenance() must be a dictionary of plain values, such as text"
    )
    for entry in dataclasses.fields(task):
        assert entry.metadata.get("help"), f"option {entry.name} needs a help text"


def _check_same_seed_same_data(task: Task) -> None:
    """A seed fixes the data, and NumPy's global generator is left alone."""
    before = _global_state()
    first, second = _realise(task, 0), _realise(task, 0)
    assert _global_state() == before, (
        "realise must draw from its own generator, not from NumPy's global one"
    )
    for (name, one), (_, other) in zip(_examples(first), _examples(second)):
        assert np.array_equal(one.inputs, other.inputs), f"{name}: inputs differ"
        assert np.array_equal(one.labels, other.labels), f"{name}: labels differ"
    pairs = zip(_arrays_of_layers(first), _arrays_of_layers(second), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs), (
        "the layers differ: draw random heads from the seed too"
    )


def _check_other_seed_other_data(task: Task) -> None:
    """Two seeds give two draws."""
    first, second = (_realise(task, seed) for seed in SEEDS)
    assert not np.array_equal(first.train.inputs, second.train.inputs), (
        "two seeds gave the same training inputs"
    )


def _check_shapes_agree(task: Task) -> None:
    """Inputs, labels, layers, test sets and validation examples fit one network."""
    realisation = _realise(task, SEEDS[0])
    assert realisation.test_sets, "test_sets must hold at least one test set"
    width = realisation.train.inputs.shape[-1]
    for name, examples in _examples(realisation):
        inputs, labels = examples.inputs, examples.labels
        assert inputs.ndim == 3, f"{name}: inputs must have shape (P, M, N_0)"
        assert inputs.shape[0] == labels.shape[0] > 0, f"{name}: one label per example"
        assert inputs.shape[2] == width, f"{name}: input width differs from training"
        assert labels.shape[1:] == realisation.train.labels.shape[1:], f"{name}: outputs differ"
        heads = tuple(layer.n_heads for layer in realisation.layers_of(examples))
        assert heads == realisation.heads, f"{name}: its layers have other heads than the rest"
        assert np.isfinite(inputs).all(), f"{name}: inputs hold NaN or infinity"
        assert np.isfinite(labels).all(), f"{name}: labels hold NaN or infinity"
        if realisation.kind == "targets":
            assert np.ptp(labels, axis=0).any(), f"{name}: all its targets are the same"
        elif labels.ndim == 1:
            assert set(np.sign(labels).tolist()) == {-1.0, 1.0}, (
                f"{name}: labels must hold both signs, or accuracy means nothing"
            )


def _check_blocks_are_drawn_alike(task: Task) -> None:
    """Blocks, if there are any, are whole, and the same ones whenever they are drawn."""
    seed = SEEDS[0]
    blocks = task.blocks(seed)
    if blocks is None:
        return
    realisation, again = _realise(task, seed), task.blocks(seed)
    sizes = []
    assert again is not None, "blocks are given once, and not again"
    for number in reversed(range(len(blocks))):
        block, other = blocks.draw(number), again.draw(number)
        assert np.array_equal(block.inputs, other.inputs), f"block {number}: inputs differ"
        assert np.array_equal(block.labels, other.labels), f"block {number}: labels differ"
        assert block.inputs.shape[2] == realisation.train.inputs.shape[2], (
            f"block {number}: input width differs from that of realise"
        )
        heads = tuple(layer.n_heads for layer in realisation.layers_of(block))
        assert heads == realisation.heads, f"block {number}: its layers have other heads"
        dataclasses.replace(realisation, train=block)  # checks that its labels are of the kind
        sizes.append(block.inputs.shape[0])
    assert set(sizes[1:]) <= {blocks.size}, "every block but the last must be of the size"
    assert sum(sizes) == blocks.examples, "the blocks hold another number of examples"
    assert len(blocks) == 1 or not np.array_equal(
        blocks.draw(0).inputs[: sizes[0]], blocks.draw(len(blocks) - 1).inputs
    ), "two blocks are the same"


def _check_heads_do_not_depend_on_seed_in_number(task: Task) -> None:
    """Every seed gives the same network, test sets and sub-networks, so that they compare."""
    first, second = (_realise(task, seed) for seed in SEEDS)
    assert first.heads == second.heads, "the numbers of heads differ between seeds"
    assert first.readout == second.readout, "the readout differs between seeds"
    assert first.kind == second.kind, "the labels are of another kind with another seed"
    assert list(first.test_sets) == list(second.test_sets), "test sets differ between seeds"
    assert first.sub_networks == second.sub_networks, "sub-networks differ between seeds"
    assert (first.validation is None) == (second.validation is None), (
        "one seed has validation examples, another has none"
    )


def _check_theory_runs(task: Task) -> None:
    """Attention, kernels and the Gaussian process limit work on it."""
    realisation = _realise(task, SEEDS[0])
    network = Network(realisation.heads, max(task.widths), task.variances, realisation.outputs)
    for name, kept in realisation.sub_networks.items():
        assert network.paths_through(kept).size, f"sub-network {name} has no path"
    train = realisation.train
    layers = realisation.layers_of(train)
    xi = attentioned_inputs(train.inputs, layers, realisation.readout)
    labels = train.labels - train.labels.mean(axis=0) if realisation.centred else train.labels
    problem = PathKernels(xi, labels)
    solution = gp_limit(problem, network, task.temperatures[0])
    for name, examples in _examples(realisation)[1:]:
        layers = realisation.layers_of(examples)
        new = attentioned_inputs(examples.inputs, layers, realisation.readout)
        prediction = solution.predict(new)
        assert np.isfinite(prediction.mean).all(), f"{name}: the predictor is not finite"


def _realise(task: Task, seed: int) -> Realisation:
    realisation = task.realise(seed)
    assert isinstance(realisation, Realisation), "realise must return a Realisation"
    return realisation


CHECKS = (
    _check_describes_itself,
    _check_options_are_plain,
    _check_same_seed_same_data,
    _check_other_seed_other_data,
    _check_shapes_agree,
    _check_blocks_are_drawn_alike,
    _check_heads_do_not_depend_on_seed_in_number,
    _check_theory_runs,
)
"""All checks of a task, in the order of :func:`check_task`."""


def _global_state() -> list[Any]:
    state: Any = np.random.get_state()  # noqa: NPY002
    _, keys, *rest = state
    return [keys.tolist(), *rest]  # a few draws move only the position within the keys


def _arrays_of_layers(realisation: Realisation) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    given = [examples.layers or () for _, examples in _examples(realisation)]
    for layer in (*realisation.layers, *(layer for layers in given for layer in layers)):
        layer.convert(lambda array: arrays.append(np.array(array)) or array)
    return arrays


def _examples(realisation: Realisation) -> list[tuple[str, Examples]]:
    examples = [("train", realisation.train), *realisation.test_sets.items()]
    if realisation.validation is not None:
        examples.append(("validation", realisation.validation))
    return examples
