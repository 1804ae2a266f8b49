"""The kernel of the training examples at a solution."""

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.paths.input_kernels import total_kernel
from pathkernel_core.prediction.scores import kernel_task_alignment


def problem_of(outputs, space):
    generator = np.random.default_rng(7)
    xi, labels = generator.normal(size=(30, 2, 3)), generator.normal(size=(30, outputs))
    problem = pk.Problem(xi, labels[:, 0] if outputs == 1 else labels, space=space)
    network = pk.Network((2,), 20, variances=1.5, outputs=outputs)
    return xi, pk.minimise_action(problem, network, temperature=0.2)


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
def test_it_is_the_total_kernel_whatever_the_space(space):
    xi, solution = problem_of(1, space)
    expected = total_kernel(xi, solution.order_parameter, variance=1.5)
    np.testing.assert_allclose(solution.training_kernel(xi), expected, atol=1e-12)
    with pytest.raises(ValueError, match="xi must have shape"):
        solution.training_kernel(xi[:, :1])


def test_several_outputs_are_expanded():
    xi, solution = problem_of(2, "examples")
    kernel = solution.training_kernel(xi)
    blocks = solution.order_parameter.reshape(2, 2, 2, 2)  # path, output, path, output
    for first in range(2):
        for second in range(2):
            expected = np.einsum("pq,xpi,yqi->xy", blocks[:, first, :, second], xi, xi) * 1.5 / 6
            np.testing.assert_allclose(kernel[first::2, second::2], expected, atol=1e-12)
    xi, solution = problem_of(2, "features")
    with pytest.raises(ValueError, match="kernel of 2 outputs is not formed in feature space"):
        solution.training_kernel(xi)


@pytest.mark.parametrize("components", [0, -1])
def test_alignment_takes_at_least_one_component(components):
    with pytest.raises(ValueError, match="components must be at least 1"):
        kernel_task_alignment(np.eye(3), np.ones(3), components)


def test_the_leading_components_are_those_of_all():
    generator = np.random.default_rng(1)
    factor, labels = generator.normal(size=(12, 12)), generator.normal(size=12)
    part, every = (kernel_task_alignment(factor @ factor.T, labels, n) for n in (4, None))
    np.testing.assert_allclose(part.eigenvalues, every.eigenvalues[:4], rtol=1e-10)
    np.testing.assert_allclose(part.overlaps, every.overlaps[:4], atol=1e-10)
