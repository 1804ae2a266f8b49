"""Times of single steps: an evaluation, a minimisation, a prediction, the construction."""

import dataclasses
import functools

import numpy as np
import pytest

import pathkernel_core as pk
from benchmarks.core import problems
from benchmarks.core.floor import ExampleSpaceFloor, FeatureSpaceFloor
from benchmarks.measuring import some_factor, to_library

PROBLEMS = {"markov": problems.markov, "images": problems.images}


@functools.cache
def drawn(name):
    return PROBLEMS[name]()


@functools.cache
def kernels(name, backend, device):
    if name == "statistics":
        return pk.Problem.from_statistics(problems.Stream(5000).statistics(backend, device))
    problem = drawn(name)
    xi, labels = (to_library(array, backend, device) for array in (problem.xi, problem.labels))
    return pk.Problem(xi, labels, space="examples")


@pytest.mark.parametrize("name", ["markov", "images", "statistics"])
def test_evaluation(benchmark, name, backend, array_device):
    benchmark.group = f"evaluation: {name}"
    problem = kernels(name, backend, array_device)
    form, factor = problem.form, some_factor(problem.n_paths)
    rounds = 200 if name == "markov" else 20
    energy, gradient = benchmark.pedantic(
        form.energy_and_gradient, args=(factor, 0.1), rounds=rounds, warmup_rounds=3
    )
    assert np.isfinite(energy)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("width", [10, 100, 1000])
@pytest.mark.parametrize("name", ["markov", "images"])
def test_minimisation(benchmark, name, width, backend, array_device):
    benchmark.group = f"minimisation: {name}, width {width}"
    problem, task = kernels(name, backend, array_device), drawn(name)
    solution = benchmark.pedantic(
        pk.minimise_action,
        args=(problem, pk.Network(task.heads, width), task.temperature),
        rounds=10 if name == "markov" else 3,
        warmup_rounds=1,
    )
    benchmark.extra_info["evaluations"] = solution.evaluations
    assert solution.status.ok


@pytest.mark.parametrize("name", ["markov", "images"])
def test_construction(benchmark, name, backend, array_device):
    benchmark.group = f"construction: {name}"
    arrays = [to_library(a, backend, array_device) for a in (drawn(name).xi, drawn(name).labels)]
    problem = benchmark.pedantic(pk.Problem, args=arrays, rounds=10, warmup_rounds=1)
    assert problem.n_examples == len(drawn(name).labels)


def test_attentioned_inputs(benchmark):
    benchmark.group = "attentioned inputs: markov"
    task = problems.HiddenMarkov().realise(0)
    xi = benchmark.pedantic(
        pk.attentioned_inputs,
        args=(task.train.inputs, task.layers, task.readout),
        rounds=10,
        warmup_rounds=1,
    )
    assert xi.shape == (100, 4, 231)


def test_prediction(benchmark, backend, array_device):
    benchmark.group = "prediction of 100 examples: markov"
    task, problem = drawn("markov"), kernels("markov", backend, array_device)
    solution = pk.minimise_action(problem, pk.Network(task.heads, 100), task.temperature)
    xi = to_library(task.xi, backend, array_device)
    solution.predict(xi)  # the posterior is factorised once and cached
    mean = benchmark.pedantic(solution.predict, args=(xi,), rounds=20, warmup_rounds=1).mean
    assert mean.shape == (100,)


@pytest.mark.parametrize("name", ["markov", "images", "statistics"])
def test_floor(benchmark, name):
    """The floor of an evaluation is timed only if it computes what the evaluation needs."""
    benchmark.group = f"evaluation: {name}"
    problem, temperature = kernels(name, "numpy", "cpu"), 0.1
    form, paths = problem.form, problem.n_paths
    factor = some_factor(paths)
    if name == "statistics":
        inputs = form.gram.shape[1]
        floor = FeatureSpaceFloor(form.gram, factor, temperature)
        silent = dataclasses.replace(form, projections=0 * form.projections, label_square=0.0)
    else:
        inputs = form.features.shape[2]
        floor = ExampleSpaceFloor(np.sqrt(paths * inputs) * form.features, factor, temperature)
        silent = dataclasses.replace(form, labels=0 * form.labels)
    benchmark.pedantic(floor, rounds=200 if name == "markov" else 20, warmup_rounds=3)
    _, m = silent.energy_and_gradient(factor, temperature)  # without labels R vanishes
    lower = np.tril(floor.blocks)
    blocks = lower + np.tril(lower, -1).T
    if name == "statistics":
        m = factor.T @ m @ factor
        blocks = inputs * np.eye(paths) - temperature * blocks
    np.testing.assert_allclose(blocks, m, rtol=1e-9, atol=1e-9 * np.abs(m).max())
