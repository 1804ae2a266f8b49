"""Energy of examples that change: value and gradients against the forms of the core."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from pathkernel_core.prediction.differentiable import traceable_form
from pathkernel_sampling.models.input_gradients import energy_of_inputs
from pathkernel_sampling.models.likelihood import at_most_square


def draw_shape(seed):
    """Random numbers of examples, paths, outputs, columns of F and entries of tokens."""
    return np.random.default_rng(seed).integers(1, [12, 4, 3, 7, 4])


@pytest.mark.parametrize("seed", range(6))
def test_value_and_gradients_are_those_of_differentiation(seed):
    examples, paths, outputs, columns, width = draw_shape(seed)
    generator = np.random.default_rng(seed)
    factor = generator.standard_normal((paths * outputs, columns))
    xi = generator.standard_normal((examples, paths, width))
    labels = jax.numpy.asarray(generator.standard_normal((examples, outputs)))

    def by_hand(factor, xi):
        return energy_of_inputs(factor, xi / np.sqrt(paths * width), labels, 0.3)

    def differentiated(factor, xi):
        space = "features" if seed % 2 else "examples"
        return traceable_form(xi, labels, space).energy(at_most_square(factor)[0], 0.3)

    def both(factor, xi):
        return [jax.value_and_grad(function, (0, 1))(factor, xi) for function in functions]

    functions = by_hand, differentiated
    (value, gradients), (expected, slopes) = jax.jit(both)(factor, xi)
    assert float(value) == pytest.approx(float(expected), rel=1e-10)
    for gradient, slope in zip(gradients, slopes):
        np.testing.assert_allclose(gradient, slope, rtol=1e-8, atol=1e-8)


def test_a_batch_is_that_of_single_evaluations():
    generator = np.random.default_rng(0)
    factors, xi = generator.standard_normal((3, 2, 2)), generator.standard_normal((3, 5, 2, 3))
    labels = generator.standard_normal((5, 1))
    evaluate = jax.value_and_grad(lambda factor, xi: energy_of_inputs(factor, xi, labels, 0.2))
    values, gradients = jax.vmap(evaluate)(factors, xi)
    singles = [evaluate(*pair) for pair in zip(factors, xi)]
    np.testing.assert_allclose(values, [value for value, _ in singles], rtol=1e-12)
    np.testing.assert_allclose(gradients, [slope for _, slope in singles], rtol=1e-12)
