"""Contracts of tasks and of kernels of tokens, which their authors check in a test.

import pathkernel as pk

def test_parity():
    pk.plugins.check_task(Parity(examples=20))

def test_cosine():
    pk.plugins.check_kernel(cosine_kernel, np.cos)
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pathkernel_core.action.minimise import gp_limit
from pathkernel_core.contracts.options import NAME_PATTERN
from pathkernel_core.contracts.task import Realisation, Task
from pathkernel_core.energy.path_kernels import kernel_function
from pathkernel_core.energy.problem import Problem
from pathkernel_core.energy.token_kernels import TOKEN_KERNELS
from pathkernel_core.energy.token_kernels.token_kernel import KernelFunction
from pathkernel_core.paths.contraction import attentioned_inputs
from pathkernel_core.paths.network import Network

SEEDS = (0, 1)
"""Seeds with which tasks are checked."""

_UNITS, _BATCHES = 2**17, 8  # of the random layer with which a kernel is compared
_DEVIATIONS = 5.0  # standard errors of its mean within which a kernel must lie
_ROUNDING = 1e-10  # of the largest value


def check_task(task: Task) -> None:
    """Check that a task follows its contract: seeds, shapes, options, and that the theory runs.

    Small sizes make the checks fast.

    Raises
    ------
    AssertionError
        At the first check that fails, with the remedy. Errors of the task itself pass through.
    """
    for check in CHECKS:
        check(task)


def _check_describes_itself(task: Task) -> None:
    """Name, summary and default grid are well formed."""
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
    """Options survive JSON, have help texts and rebuild the task."""
    options = json.loads(json.dumps(task.options()))
    assert type(task)(**options) == task, "options() must rebuild the task"
    provenance = task.provenance()
    assert json.loads(json.dumps(provenance)) == provenance, (
        "provenance() must be a dictionary of plain values, such as text"
    )
    for entry in dataclasses.fields(task):
        assert entry.metadata.get("help"), f"option {entry.name} needs a help text"


def _check_same_seed_same_data(task: Task) -> None:
    """A seed fixes the data, without NumPy's global generator."""
    before = _global_state()
    first, second = _realise(task, 0), _realise(task, 0)
    assert _global_state() == before, (
        "realise must draw from its own generator, not from NumPy's global one"
    )
    repeated = second.example_sets()
    for name, examples in first.example_sets().items():
        for array in ("inputs", "labels"):
            pair = getattr(examples, array), getattr(repeated[name], array)
            assert np.array_equal(*pair, equal_nan=True), f"{name}: {array} differ"
    pairs = zip(_arrays_of_layers(first), _arrays_of_layers(second), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs), (
        "the layers differ: draw random heads from the seed too"
    )


def _check_draws_keep_their_arrays(task: Task) -> None:
    """A draw stays as it is when the task draws again, with another seed and with the same."""
    first = _realise(task, SEEDS[0])
    before = _copied_arrays(first)
    for seed in SEEDS:  # the other seed last, or the same numbers would stand there again
        _realise(task, seed)
    after = _copied_arrays(first)
    changed = [
        name for name in before if not np.array_equal(before[name], after[name], equal_nan=True)
    ]
    assert not changed, (
        f"a later draw changed {', '.join(changed)} of an earlier one; return new arrays each time"
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
    for name, examples in realisation.example_sets().items():
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
    """Blocks, if there are any, are complete, and the same in every draw."""
    seed = SEEDS[0]
    blocks = task.blocks(seed)
    if blocks is None:
        return
    realisation, repeated = _realise(task, seed), task.blocks(seed)
    sizes = []
    assert repeated is not None, "blocks are there once, and not a second time"
    # backwards, which fails if a block depends on the draws before it: workers draw in any order
    for number in reversed(range(len(blocks))):
        block, copy = blocks.draw(number), repeated.draw(number)
        assert np.array_equal(block.inputs, copy.inputs), f"block {number}: inputs differ"
        assert np.array_equal(block.labels, copy.labels), f"block {number}: labels differ"
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
    """Every seed gives the same network, test sets and sub-networks."""
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
    """Attention, kernels and the Gaussian process limit can be computed."""
    realisation = _realise(task, SEEDS[0])
    network = Network(realisation.heads, max(task.widths), task.variances, realisation.outputs)
    for name, heads in realisation.sub_networks.items():
        assert network.paths_through(heads).size, f"sub-network {name} has no path"
    train = realisation.train
    layers = realisation.layers_of(train)
    xi = attentioned_inputs(train.inputs, layers, realisation.readout)
    labels = train.labels - train.labels.mean(axis=0) if realisation.centred else train.labels
    problem = Problem(xi, labels)
    solution = gp_limit(problem, network, task.temperatures[0])
    for name, examples in realisation.example_sets().items():
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
    _check_draws_keep_their_arrays,
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
    return [state[1].tolist(), *state[2:]]  # a few draws move only the position within the keys


def _copied_arrays(realisation: Realisation) -> dict[str, np.ndarray]:
    """Copies of all arrays of a realisation, by what they are."""
    layers = enumerate(_arrays_of_layers(realisation), start=1)
    return {
        f"{name} {array}": np.array(getattr(examples, array))
        for name, examples in realisation.example_sets().items()
        for array in ("inputs", "labels")
    } | {f"array {number} of the layers": array for number, array in layers}


def _arrays_of_layers(realisation: Realisation) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    sets = [examples.layers or () for examples in realisation.example_sets().values()]
    for layer in itertools.chain(realisation.layers, *sets):
        layer.convert(lambda array: arrays.append(np.array(array)) or array)
    return arrays


def check_kernel(
    kernel: str | KernelFunction, activation: Callable[[np.ndarray], np.ndarray] | None = None
) -> None:
    """Check that a function is a kernel of tokens: finite, symmetric, positive and the right one.

    Parameters
    ----------
    kernel : str or callable
        As for :func:`path_kernels`: a name, or a function (k_ab, k_aa, k_bb) → k' of the linear
        kernel, element by element on arrays that broadcast.
    activation : callable, optional
        Function φ of NumPy arrays, of which the kernel is that of an infinitely wide layer,
        ⟨φ(u_a) φ(u_b)⟩: it is compared with a random layer of 2²⁰ units, to about 1 %. Named
        kernels have their own. Without one no values are compared.

    Raises
    ------
    AssertionError
        At the first check that fails, with the values and the remedy. Errors of the kernel itself
        pass through.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> pk.plugins.check_kernel("relu")
    >>> pk.plugins.check_kernel(
    ...     lambda k_ab, k_aa, k_bb: np.exp(-(k_aa + k_bb) / 2) * np.cosh(k_ab), np.cos
    ... )
    """
    function = _keeping_arguments(kernel_function(kernel))
    if activation is None and not callable(kernel):
        activation = TOKEN_KERNELS[kernel].activation
    tokens = _tokens()
    linear = tokens @ tokens.T / tokens.shape[1]
    squares = np.diagonal(linear)
    values = _kernel_values(function, linear, squares)
    largest = float(abs(values).max())
    deviation = abs(values - values.T)
    assert deviation.max() <= _ROUNDING * largest, (
        "kernel must be symmetric: k(a, b) and k(b, a) differ by up to "
        f"{deviation.max():.3g} beside values of {largest:.3g}; exchange of k_aa and k_bb must "
        "change nothing"
    )
    smallest = float(np.linalg.eigvalsh((values + values.T) / 2)[0])
    assert smallest >= -_ROUNDING * len(values) * largest, (
        f"kernel must be positive semidefinite, but between {len(values)} tokens it has the "
        f"eigenvalue {smallest:.3g} beside values of {largest:.3g}"
    )
    if activation is not None:
        _compare_with_layer(values, tokens, activation)


def _keeping_arguments(function: KernelFunction) -> KernelFunction:
    """Kernel that is compared with its arguments before and after."""

    def checked(*arguments: np.ndarray) -> Any:
        given = [argument.copy() for argument in arguments]
        values = function(*given)
        changed = [
            name
            for name, before, after in zip(("k_ab", "k_aa", "k_bb"), arguments, given, strict=True)
            if not np.array_equal(before, after, equal_nan=True)
        ]
        assert not changed, (
            f"kernel must not change its arguments, but changes {', '.join(changed)}; write "
            "k = k_ab * 2 in place of k_ab *= 2"
        )
        return values

    return checked


def _tokens() -> np.ndarray:
    """Tokens (12, 6) of several lengths, among them zero, parallel and opposite ones."""
    generator = np.random.default_rng(0)
    drawn = generator.standard_normal((8, 6)) * np.array([0.1, 0.3, 1, 1, 1, 1, 2, 3])[:, None]
    return np.concatenate([drawn, [2 * drawn[2], -drawn[3], drawn[4], np.zeros(6)]])


def _kernel_values(function: KernelFunction, linear: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Kernel between all tokens, with checks of shape, elements and finite values."""
    count = len(linear)
    with np.errstate(all="ignore"):
        values = np.asarray(function(linear, squares[:, None], squares[None, :]))
        assert values.shape == linear.shape, (
            f"kernel must give an array of the shape of k_ab, {linear.shape}, but gives "
            f"{values.shape}; let it work element by element on arrays that broadcast"
        )
        single = np.asarray(function(linear[:1, 1:2], squares[:1, None], squares[None, 1:2]))
    bad = np.argwhere(~np.isfinite(values))
    assert not len(bad), (
        f"kernel must be finite, but is {values[tuple(bad[0])]} at k_ab = "
        f"{linear[tuple(bad[0])]:.3g}, k_aa = {squares[bad[0][0]]:.3g}, k_bb = "
        f"{squares[bad[0][1]]:.3g}, in all at {len(bad)} of {count**2} pairs of tokens; zero and "
        "parallel tokens need values, too"
    )
    difference = abs(single.item() - values[0, 1])
    assert difference <= _ROUNDING * abs(values).max(), (
        "kernel must work element by element, but that of two tokens changes by "
        f"{difference:.3g} beside others"
    )
    return values


def _compare_with_layer(
    values: np.ndarray, tokens: np.ndarray, activation: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Compare a kernel with the products of a random layer's units, averaged over them."""
    generator, count = np.random.default_rng(1), len(tokens)
    sums, squares = np.zeros((2, count, count))
    for _ in range(_BATCHES):
        weights = generator.standard_normal((tokens.shape[1], _UNITS))
        units = activation(tokens @ weights / np.sqrt(tokens.shape[1]))
        sums += units @ units.T
        squares += units**2 @ (units**2).T
    number = _BATCHES * _UNITS
    mean = sums / number
    error = np.sqrt(np.maximum(squares / number - mean**2, 0) / number)
    excess = abs(values - mean) - _DEVIATIONS * error - _ROUNDING * abs(values).max()
    row, column = np.unravel_index(np.argmax(excess), excess.shape)
    linear = tokens @ tokens.T / tokens.shape[1]
    assert excess[row, column] <= 0, (
        f"kernel is {values[row, column]:.5g} at k_ab = {linear[row, column]:.3g}, k_aa = "
        f"{linear[row, row]:.3g}, k_bb = {linear[column, column]:.3g}, but a random layer of "
        f"{number} units has {mean[row, column]:.5g} ± {error[row, column]:.2g}; the kernel of an "
        "activation function is ⟨φ(u_a) φ(u_b)⟩ over Gaussian u with the covariances k"
    )
