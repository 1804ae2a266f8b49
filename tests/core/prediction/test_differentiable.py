"""Derivatives through the minimum of the action, against differences of minimisations in NumPy."""

import dataclasses
import functools
import math

import numpy as np
import pytest

import pathkernel_core as pk

NAMES = ("inputs", "labels", "new inputs", "queries", "keys", "temperature", "variances")


@pytest.fixture(params=["jax", "torch"])
def xp(request):
    """Namespace of a library that differentiates."""
    return pytest.importorskip("jax.numpy" if request.param == "jax" else "torch")


def problem(outputs):
    """A network, and inputs, labels, new inputs, queries, keys, temperature and variances.

    With two outputs, it has a skip connection.
    """
    generator = np.random.default_rng(outputs)
    variances, skips = (0.7, 1.3, 0.6, 1.9), None if outputs == 1 else (None, 0.6)
    widths = (9, 14, 11) if skips is None else (15, 14, 14)
    network = pk.Network((2, 2), widths, variances, outputs, skips)
    inputs, new = generator.standard_normal((16, 6, 4)), generator.standard_normal((3, 6, 4))
    labels = np.sign(generator.standard_normal((16, outputs)))
    queries, keys = generator.standard_normal((2, 2, 2, 3, 4))
    variances = np.array(network.variances)
    return network, [inputs, labels, new, queries, keys, np.array(0.3), variances]


def attended(inputs, new, queries, keys, network):
    layers = [pk.QueryKey(queries[layer], keys[layer]) for layer in range(2)]
    skips = network.skips
    return [pk.attentioned_inputs(tokens, layers, skips=skips) for tokens in (inputs, new)]


def summed(xp, solution, new):
    """Action, log evidence, mean, variance and order parameter, each weighted and summed."""
    prediction = solution.predict(new)
    numbers = [solution.action, solution.log_evidence]
    for array in (prediction.mean, prediction.variance, solution.order_parameter):
        count = np.prod(array.shape)
        weights = xp.asarray(np.cos(np.arange(count)).reshape(array.shape))
        numbers.append(xp.sum(weights * array))
    return numbers


@functools.cache
def by_differences(outputs, space, index):
    """Values, and their derivatives along a direction of one of the arguments."""
    network, theta = problem(outputs)
    direction = np.random.default_rng(index).standard_normal(theta[index].shape)

    def offset(step):
        shifted = list(theta)
        shifted[index] = shifted[index] + step * direction
        inputs, labels, new, queries, keys, temperature, variances = shifted
        xi, new = attended(inputs, new, queries, keys, network)
        local = dataclasses.replace(network, variances=variances.tolist())
        problem = pk.Problem(xi, labels, space)
        solution = pk.minimise_action(
            problem, local, float(temperature), tolerance=1e-11, throw=False
        )
        assert solution.gradient_norm < 1e-9
        return np.array(summed(np, solution, new))

    step = 2e-4
    slope = 8 * (offset(step) - offset(-step)) - (offset(2 * step) - offset(-2 * step))
    return offset(0), slope / (12 * step), direction


@pytest.mark.slow_on_jax(space=("features",))
@pytest.mark.parametrize(
    ("space", "outputs"),
    [
        ("examples", 1),
        ("features", 2),
        pytest.param("examples", 2, marks=pytest.mark.slow),
        pytest.param("features", 1, marks=pytest.mark.slow),
    ],
)
def test_derivatives_are_those_of_minimisations(xp, space, outputs):
    network, theta = problem(outputs)

    def function(theta):
        inputs, labels, new, queries, keys, temperature, variances = theta
        xi, new = attended(inputs, new, queries, keys, network)
        solution = pk.differentiable_solution(
            xi, labels, network, temperature, variances=variances, space=space
        )
        return xp.stack(summed(xp, solution, new))

    if xp.__name__ == "torch":
        arrays = [xp.tensor(array, requires_grad=True) for array in theta]
        values = function(arrays)
        gradients = [
            xp.autograd.grad(value, arrays, retain_graph=True, materialize_grads=True)
            for value in values
        ]
        values, gradients = values.detach().numpy(), list(zip(*gradients))
    else:
        import jax

        @jax.jit
        def of_all(theta):
            values, pull_back = jax.vjp(function, theta)
            return values, jax.vmap(pull_back)(xp.eye(len(values)))[0]

        values, gradients = of_all(list(map(xp.asarray, theta)))
    for index, name in enumerate(NAMES):
        expected, slopes, direction = by_differences(outputs, space, index)
        np.testing.assert_allclose(values, expected, rtol=1e-9, err_msg=name)
        actual = [np.sum(np.asarray(gradient) * direction) for gradient in gradients[index]]
        scale = np.maximum(np.abs(slopes), 1e-3)
        np.testing.assert_array_less(np.abs(actual - slopes), 1e-6 * scale, err_msg=name)


def test_the_evidence_is_defined_where_that_of_a_minimisation_is():
    """Down to a width of the size of U, and no further."""
    torch = pytest.importorskip("torch")
    _, (inputs, labels, *_) = problem(1)
    xi = inputs[:, :4]
    for width in (4, math.nextafter(4, 0)):
        network = pk.Network((2, 2), width)
        expected = pk.minimise_action(pk.Problem(xi, labels), network, 0.3).log_evidence
        arrays = torch.asarray(xi), torch.asarray(labels)
        actual = pk.differentiable_solution(*arrays, network, 0.3).log_evidence
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_jax_differentiates_without_compiling():
    jax = pytest.importorskip("jax")
    network, theta = problem(1)
    xi, _ = attended(theta[0], theta[2], theta[3], theta[4], network)
    xi, labels = jax.numpy.asarray(xi), jax.numpy.asarray(theta[1])

    def log_evidence(temperature):
        return pk.differentiable_solution(xi, labels, network, temperature).log_evidence

    value, slope = jax.value_and_grad(log_evidence)(0.3)
    step = 1e-4
    above, below = (
        pk.minimise_action(pk.Problem(xi, labels), network, 0.3 + s).log_evidence
        for s in (step, -step)
    )
    assert slope == pytest.approx((above - below) / (2 * step), rel=1e-6)
    assert above < value < below or below < value < above


def test_a_gradient_through_a_plain_solution_is_refused():
    """It would ignore how the order parameter moves."""
    torch = pytest.importorskip("torch")
    network, (inputs, labels, *_) = problem(1)
    xi = torch.tensor(inputs[:, :4], requires_grad=True)
    labels = torch.tensor(labels)
    with pytest.raises(TypeError, match=r"xi of shape \(16, 4, 4\) .*differentiable_solution"):
        pk.Problem(xi, labels)
    with pytest.raises(TypeError, match=r"labels .*differentiable_solution"):
        pk.Problem(xi.detach(), labels.requires_grad_())
    with torch.no_grad():
        result = pk.minimise_action(pk.Problem(xi, labels), network, 0.3)
    with pytest.raises(TypeError, match=r"temperature must be a number.*differentiable_solution"):
        pk.minimise_action(result.problem, network, torch.tensor(0.3, requires_grad=True))
    # with respect to new examples alone the plain solution is right
    new = torch.tensor(inputs[:2, :4], requires_grad=True)
    result.predict(new).mean.sum().backward()
    shifted = inputs[:2, :4] + 1e-6
    difference = (result.predict(torch.tensor(shifted)).mean - result.predict(new).mean).sum()
    assert float(new.grad.sum()) == pytest.approx(float(difference.detach()) / 1e-6, rel=1e-6)


def test_jax_cannot_trace_a_minimisation():
    jax = pytest.importorskip("jax")
    network, (inputs, labels, *_) = problem(1)
    xi, labels = jax.numpy.asarray(inputs[:, :4]), jax.numpy.asarray(labels)

    def action(xi, temperature):
        return pk.minimise_action(pk.Problem(xi, labels), network, temperature).action

    with pytest.raises(TypeError, match=r"xi .*differentiable_solution"):
        jax.grad(action)(xi, 0.3)
    with pytest.raises(TypeError, match=r"temperature must be a number.*differentiable_solution"):
        jax.grad(action, argnums=1)(xi, 0.3)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"temperature": -1.0}, ValueError, "temperature must be positive"),
        ({"variances": [1.0, 1.0]}, ValueError, r"variances must have shape \(4,\)"),
        ({"variances": [1.0, -1.0, 1.0, 1.0]}, ValueError, "variances must be positive"),
        ({"space": "kernels"}, ValueError, '"auto", "examples" or "features", not \'kernels\''),
    ],
)
def test_mistakes_are_named(xp, change, error, message):
    network, (inputs, labels, *_) = problem(1)
    arguments = {"temperature": 0.3, **change}
    with pytest.raises(error, match=message):
        pk.differentiable_solution(
            xp.asarray(inputs[:, :4]), xp.asarray(labels), network, **arguments
        )


def test_numpy_does_not_differentiate():
    network, (inputs, labels, *_) = problem(1)
    with pytest.raises(TypeError, match="arrays of numpy cannot be differentiated"):
        pk.differentiable_solution(inputs[:, :4], labels, network, 0.3)


@functools.cache
def along_a_direction(outputs, skips):
    """Problem whose inputs, labels, temperature and variances all move along one direction."""
    generator = np.random.default_rng(3)
    network = pk.Network((2,), 7, (0.7, 1.3, 1.9), outputs, skips)
    xi = generator.standard_normal((8, network.n_paths, 2))
    labels = np.sign(generator.standard_normal((8, outputs)))
    theta = [xi, labels, np.array(0.3), np.array(network.variances)]
    directions = [0.2 * generator.standard_normal(array.shape) for array in theta]
    return network, theta, directions, xi[:3] + 0.3


def sum_along(form, step):
    """Sum of functions of the results at a step along the direction, with PyTorch."""
    xp = pytest.importorskip("torch")
    settings = (2, 0.6) if form == "features" else (1, None)
    network, theta, directions, new = along_a_direction(*settings)
    xi, labels, temperature, variances = (
        xp.asarray(array) + step * xp.asarray(direction)
        for array, direction in zip(theta, directions)
    )
    arguments, space = (xp.asarray(new),), form
    if form == "kernels":
        cross = xp.einsum("api,bqi->pqab", arguments[0], xi) / 2
        own = xp.einsum("api,aqi->pqa", arguments[0], arguments[0]) / 2
        arguments, space = (cross, own), "auto"
        xi = xp.einsum("api,bqi->pqab", xi, xi) / 2
    solution = pk.differentiable_solution(
        xi, labels, network, temperature, variances=variances, space=space, tolerance=1e-10
    )
    prediction = solution.predict(*arguments)
    results = (prediction.mean, prediction.variance, solution.order_parameter, solution.action)
    return sum(xp.sum(xp.cos(result)) for result in results) + solution.log_evidence


def slopes_of_torch(form, step, order):
    """Value, and derivatives up to an order, at a step along the direction."""
    torch = pytest.importorskip("torch")
    step = torch.tensor(step, dtype=torch.float64, requires_grad=True)
    values = [sum_along(form, step)]
    for _ in range(order):
        values += torch.autograd.grad(values[-1], step, create_graph=True)
    return np.array([float(value.detach()) for value in values])


@pytest.mark.torch
@pytest.mark.parametrize("form", ["examples", "features", "kernels"])
def test_derivatives_of_every_order_are_those_of_the_order_below(form):
    size = 1e-3
    above, below = (slopes_of_torch(form, step, 2)[:3] for step in (size, -size))
    differences = (above - below) / (2 * size)
    derivatives = slopes_of_torch(form, 0.0, 3)
    np.testing.assert_allclose(derivatives[1:], differences, rtol=2e-4)


@pytest.mark.parametrize("way", ["hessian", pytest.param("grad of grad", marks=pytest.mark.slow)])
def test_second_derivatives_of_jax_are_those_of_torch(way):
    """Forward over reverse, and reverse over reverse within jit."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    network, theta, _, _ = along_a_direction(1, None)

    def function(xp, temperature):
        xi, labels = map(xp.asarray, theta[:2])
        solution = pk.differentiable_solution(xi, labels, network, temperature, tolerance=1e-10)
        return solution.log_evidence + xp.sum(xp.cos(solution.order_parameter))

    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(function(torch, temperature), temperature, create_graph=True)
    (expected,) = torch.autograd.grad(first, temperature)
    of_jax = functools.partial(function, jax.numpy)
    second = jax.hessian(of_jax) if way == "hessian" else jax.jit(jax.grad(jax.grad(of_jax)))
    assert second(0.3) == pytest.approx(float(expected), rel=1e-7)
