import tracemalloc

import numpy as np
import pytest

from pathkernel_core import Network, Problem, minimise_action
from pathkernel_core.energy.costs import (
    Sizes,
    cheapest_form,
    evaluation_seconds,
    evaluations,
    minimisation_bytes,
    minimisation_seconds,
)


@pytest.mark.parametrize(
    ("heads", "examples", "inputs", "space"),
    [
        ((16, 16), 60, 16, "examples"),
        ((2, 2), 600, 10, "examples"),
        ((2, 4), 50, 40, "features"),
        ((2, 2), 200, 5, "kernels"),
    ],
)
def test_memory_and_evaluations_are_predicted(generator, heads, examples, inputs, space):
    network = Network(heads, 100)
    xi = generator.standard_normal((examples, network.n_paths, inputs))
    labels = np.sign(xi[:, 0, 0] + xi[:, 1, 1])
    sizes = Sizes(*xi.shape)
    tracemalloc.start()
    try:
        solution = minimise_action(Problem(xi, labels, space), network, 0.1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 < minimisation_bytes(sizes, 100, space) / peak < 2
    assert 0.5 < evaluations(sizes, 100) / solution.evaluations < 2


def test_costs_follow_the_sizes():
    """By the leading power of each, where it dominates."""
    larger = {"examples": Sizes(100, 4096, 64), "features": Sizes(10, 16, 512)}
    for form, power in {"examples": {"paths": 2, "inputs": 1}, "features": {"inputs": 3}}.items():
        sizes = larger[form]
        for name, exponent in power.items():
            twice = Sizes(**{**vars(sizes), name: 2 * getattr(sizes, name)})
            ratio = evaluation_seconds(form, twice) / evaluation_seconds(form, sizes)
            assert ratio == pytest.approx(2**exponent, rel=0.15)
    sizes = Sizes(100, 4, 231)
    assert cheapest_form(sizes) == "kernels"
    assert minimisation_seconds(sizes, 10) > minimisation_seconds(sizes, 1000)
    assert minimisation_seconds(sizes, 10, "examples") > minimisation_seconds(sizes, 10)


def test_kernels_that_do_not_fit_are_not_taken():
    assert cheapest_form(Sizes(600, 4, 1000)) == "kernels"
    larger = Sizes(6000, 8, 4000)
    assert larger.kernel_elements > 2**27
    assert evaluation_seconds("kernels", larger) < evaluation_seconds("examples", larger) / 5
    assert cheapest_form(larger) == "examples"
