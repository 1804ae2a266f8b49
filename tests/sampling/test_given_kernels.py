"""Samplers and the next order in 1/N on kernels in place of inputs."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")

import pathkernel_core as pk
from pathkernel_sampling.corrections.next_order import next_order, predict_next_order
from pathkernel_sampling.models.models import build_model


def kernels_of(xi, dual):
    return np.einsum("api,bqi->pqab", xi, dual) / xi.shape[-1]


@pytest.fixture(params=[2, pytest.param(1, marks=pytest.mark.slow)])
def examples(request):
    """Network, inputs, labels, new inputs and their kernels, of one and two outputs."""
    outputs = request.param
    generator = np.random.default_rng(outputs)
    network = pk.Network((2,), 12, (0.8, 1.0, 1.3), outputs=outputs, skips=0.7)
    xi, new = generator.standard_normal((9, 3, 4)), generator.standard_normal((5, 3, 4))
    labels = np.sign(generator.standard_normal((9, outputs)))
    own = np.einsum("pqaa->pqa", kernels_of(new, new))
    return network, xi, labels, new, (kernels_of(new, xi), own)


def test_next_order_is_that_of_inputs(examples):
    network, xi, labels, new, (cross, own) = examples
    problems = pk.Problem(xi, labels), pk.Problem.from_kernels(kernels_of(xi, xi), labels)
    expected, actual = (
        pk.minimise_action(problem, network, 0.3, tolerance=1e-10) for problem in problems
    )
    corrections = [next_order(solution) for solution in (expected, actual)]
    sizes = [correction.order_parameter_correction for correction in corrections]
    np.testing.assert_allclose(*sizes, atol=1e-8 * abs(sizes[0]).max())
    by_inputs = predict_next_order(expected, new, correction=corrections[0])
    by_kernels = predict_next_order(actual, cross, own, correction=corrections[1])
    np.testing.assert_allclose(by_kernels.mean, by_inputs.mean, atol=1e-8)
    np.testing.assert_allclose(by_kernels.variance, by_inputs.variance, atol=1e-8)


@pytest.mark.parametrize(
    "name", [pytest.param("order-parameter", marks=pytest.mark.slow), "collapsed"]
)
def test_models_are_those_of_inputs(name, examples):
    network, xi, labels, new, pair = examples
    expected, actual = (
        build_model(name, given, labels, network, 0.3) for given in (xi, kernels_of(xi, xi))
    )
    x = expected.initial(jax.random.key(0))
    values = [
        jax.jit(jax.value_and_grad(lambda model, x: model.log_density(x), argnums=1))(model, x)
        for model in (expected, actual)
    ]
    assert float(values[1][0]) == pytest.approx(float(values[0][0]), rel=1e-12)
    np.testing.assert_allclose(values[1][1], values[0][1], rtol=1e-9, atol=1e-11)
    by_inputs, by_kernels = expected.predict(x, new), actual.predict(x, pair)
    for moment, moment_by_inputs in zip(by_kernels, by_inputs):
        np.testing.assert_allclose(moment, moment_by_inputs, rtol=1e-10, atol=1e-12)


def test_weights_need_inputs(examples):
    network, xi, labels, _, _ = examples
    with pytest.raises(ValueError, match="no weights of a projection"):
        build_model("weights", kernels_of(xi, xi), labels, network, 0.3)
