"""What the package promises as a whole."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import pathkernel_core as pk

pytestmark = pytest.mark.version

WITH_TORCH = "pathkernel_core.prediction.differentiable"
MODULES = ["pathkernel_core"] + [
    module.name
    for module in pkgutil.walk_packages(pk.__path__, "pathkernel_core.")
    if module.name != WITH_TORCH
]


def test_the_core_imports_no_upper_floor_and_no_optional_library():
    program = f"""
import sys
for name in {MODULES!r}: __import__(name)
heavy = ["xarray", "zarr", "jax", "torch", "cupy", "altair", "click", "pooch", "PIL", "pytest",
         "pathkernel_datasets", "pathkernel_tasks", "pathkernel", "pathkernel_analyses"]
print(" ".join(name for name in heavy if name in sys.modules))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    assert completed.stdout.strip() == ""


def test_global_generators_are_left_alone(generator):
    import random

    before = repr(np.random.get_state()[2:]), random.getstate()  # noqa: NPY002
    xi = generator.standard_normal((5, 2, 3))
    solution = pk.minimise_action(pk.Problem(xi, np.ones(5)), pk.Network((2,), 10), 0.1)
    solution.predict(xi)
    after = repr(np.random.get_state()[2:]), random.getstate()  # noqa: NPY002
    assert before == after


def test_public_names():
    assert len(pk.__all__) == len(set(pk.__all__))
    for name in pk.__all__:
        assert inspect.getdoc(getattr(pk, name)), f"{name} needs a docstring"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0


def test_examples_with_pytorch_run():
    pytest.importorskip("torch")
    test_examples_in_docstrings_run(WITH_TORCH)


def test_a_start_to_finish_run_on_any_library(library, generator):
    """Tokens to predictions: what comes in is what comes out."""
    inputs, new = generator.standard_normal((2, 12, 4, 6))
    labels = np.sign(inputs[:, 0, 0])
    queries, keys = generator.standard_normal((2, 3, 5, 6))
    layers = [
        pk.QueryKey(library.array(queries), library.array(keys), scale=0.3),
        pk.AttentionProduct(library.array(generator.standard_normal((2, 6, 6)))),
    ]
    network = pk.Network(heads=(3, 2), widths=(20, 30, 10))
    xi = pk.attentioned_inputs(library.array(inputs), layers, readout="first")
    problem = pk.Problem(xi, library.array(labels))
    solution = pk.minimise_action(problem, network, temperature=0.05)
    prediction = solution.predict(pk.attentioned_inputs(library.array(new), layers, "first"))
    for array in (xi, solution.order_parameter, prediction.mean, prediction.variance):
        assert library.owns(array)
        assert str(array.dtype).endswith("float64")
    assert prediction.mean.shape == prediction.variance.shape == (12,)
    assert np.isfinite(solution.log_evidence)
    assert 0 <= pk.accuracy(prediction.mean, library.array(labels)) <= 1
    scores = pk.head_scores(network, solution.order_parameter)
    assert scores.shape == (5,)
    kernel = pk.total_kernel(xi, solution.order_parameter)
    alignment = pk.kernel_task_alignment(kernel, library.array(labels), components=5)
    assert alignment.overlaps.shape == (5,)
