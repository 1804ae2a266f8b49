"""Theories of other papers that share the action: their own numbers and equations."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

import pathkernel as pk

# of deepbays 0.1.11, CONV_1HL(Nc=4, T=0.2, mask=2, stride=2, l0=0.5, l1=2), on the images below:
# the upper triangle of its order parameter, then mean and variance of its predictor
DEEPBAYS = {
    "erf": (
        [
            *(0.979710796285, -0.171943574575, -0.075957033963, 0.133443061291, 2.123772423512),
            *(0.345501680083, 0.215430619176, 0.872157464537, 0.039661101907, 0.901906894938),
        ],
        [0.02709737818, 0.421246091756, -0.472636349696],
        [0.203247296017, 0.307788010916, 0.260478553676],
    ),
    "relu": (
        [
            *(1.0204860935, -0.217041492123, -0.083761922611, 0.11293713035, 2.097140303008),
            *(0.081189387773, 0.121362240888, 0.783852997048, 0.003348861667, 0.892567413451),
        ],
        [0.190328980756, 0.765101342395, -0.190994250276],
        [0.275490783964, 0.536418746738, 0.540906394847],
    ),
}


def patches(images):
    """Patches of 2 × 2 pixels as tokens (P, 4, 4), and a head for each."""
    blocks = images.reshape(len(images), 2, 2, 2, 2).swapaxes(2, 3)
    alone = np.eye(4)[:, :, None]  # head, key; every query
    layer = pk.Attention(np.broadcast_to(alone, (len(images), 4, 4, 4)))
    return blocks.reshape(len(images), 4, 4), [layer]


@pytest.mark.parametrize("activation", DEEPBAYS)
def test_a_convolution_has_the_numbers_of_its_authors_code(activation):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(12, 4, 4))
    labels = np.sign(images[:, :2, 2:].sum((1, 2)))
    tokens, layers = patches(images)
    # their precisions λ_0 = 1/2 and λ_1 = 2: σ² of the filters and σ²_0 of the kernel
    kernels = pk.path_kernels(tokens, layers, activation, variance=2.0)
    problem = pk.Problem.from_kernels(kernels, labels)
    network = pk.Network((4,), (4, math.inf), (0.5, 1.0, 1.0))
    solution = pk.minimise_action(problem, network, 0.2, tolerance=1e-9)
    upper, mean, variance = DEEPBAYS[activation]
    order_parameter = np.asarray(solution.order_parameter)
    np.testing.assert_allclose(order_parameter[np.triu_indices(4)], upper, atol=1e-7)
    new, new_layers = patches(rng.normal(size=(3, 4, 4)))
    arguments = {"variance": 2.0, "new": new, "new_layers": new_layers}
    predicted = solution.predict(*pk.path_kernels(tokens, layers, activation, **arguments))
    np.testing.assert_allclose(predicted.mean, mean, atol=1e-7)
    np.testing.assert_allclose(predicted.variance, variance, atol=1e-7)


def slopes(kernels, labels, u, temperature):
    """M − R, by an explicit inverse; the kernels are divided by the number of paths."""
    noisy = np.tensordot(u, kernels, u.ndim) + temperature * np.eye(len(labels))
    inverse = np.linalg.inv(noisy)
    dual = inverse @ labels
    return np.tensordot(kernels, inverse - np.outer(dual, dual), 2)


@pytest.mark.parametrize("width", [4, 40])
def test_gated_networks_satisfy_the_saddle_point_of_their_paper(width):
    rng = np.random.default_rng(1)
    inputs, hyperplanes = rng.normal(size=(40, 6)), rng.normal(size=(3, 6))
    labels = np.sign(inputs[:, 0] * inputs[:, 1])
    gates = (inputs @ hyperplanes.T > 0).astype(float)
    linear = inputs @ inputs.T / 6
    paths = np.einsum("pa,pb->pab", gates, gates).reshape(-1, 9)
    for layers, of_paths in ((1, gates), (2, paths)):
        xi = pk.attentioned_inputs(inputs[:, None, :], [pk.Gated(None, hyperplanes)] * layers)
        network = pk.Network((3,) * layers, (width,) * layers + (math.inf,))
        solution = pk.minimise_action(pk.Problem(xi, labels), network, 0.1, tolerance=1e-9)
        kernels = np.einsum("pa,qb,pq->abpq", of_paths, of_paths, linear) / 3**layers
        u, v = (np.asarray(each) for each in solution.order_parameters[:2])
        energy = slopes(kernels, labels, u, 0.1) / width
        prior = np.eye(3) if layers == 1 else np.kron(np.eye(3), np.linalg.inv(v))
        np.testing.assert_allclose(prior + energy, np.linalg.inv(u), atol=1e-7)
        assert abs(u - np.eye(len(u))).max() > 0.1
    traced = np.einsum("hahb->ab", u.reshape(3, 3, 3, 3))
    np.testing.assert_allclose(v, (1 - 3) * np.eye(3) + np.linalg.solve(v, traced), atol=1e-7)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("width", [5, 60])
def test_deep_linear_networks_have_the_scalar_of_the_closed_form(depth, width):
    rng = np.random.default_rng(2)
    inputs, labels = rng.normal(size=(15, 40)), 2 * rng.normal(size=15)
    kernel = inputs @ inputs.T / 40
    ratio, load = labels @ np.linalg.solve(kernel, labels) / 15, 15 / width
    scalar = brentq(lambda u: 1 - u - load * (1 - ratio / u**depth), 0.01, 100, xtol=1e-14)
    network = pk.Network((1,) * depth, (width,) * depth + (math.inf,))
    problem = pk.Problem(inputs[:, None, :], labels)
    solution = pk.minimise_action(problem, network, 1e-9, tolerance=1e-9)
    levels = [float(u[0, 0]) for u in solution.order_parameters]
    assert abs(scalar - 1) > 0.1
    np.testing.assert_allclose(levels, scalar ** np.arange(depth, -1, -1.0), rtol=1e-6)
    # at T = 0 the mean predictor does not depend on the width, and the variance is uᴸ times its own
    new = rng.normal(size=(3, 40))
    across, predicted = new @ inputs.T / 40, solution.predict(new[:, None, :])
    solved = np.linalg.solve(kernel, across.T)
    np.testing.assert_allclose(predicted.mean, labels @ solved, rtol=1e-5)
    variance = (new**2).sum(1) / 40 - np.sum(across.T * solved, axis=0)
    np.testing.assert_allclose(predicted.variance, scalar**depth * variance, rtol=1e-5)


def test_narrow_branches_learn_the_strengths_of_their_teacher():
    rng = np.random.default_rng(3)
    xi, strengths = rng.normal(size=(200, 3, 8)), np.array([0.3, 1.0, 3.0])
    rules = strengths[:, None] * rng.normal(size=(3, 8))
    labels = np.einsum("pbi,bi->p", xi, rules) / math.sqrt(24) + 0.03 * rng.normal(size=200)
    teacher, kernels = (rules**2).mean(1), np.einsum("pbi,qbi->bpq", xi, xi) / 24
    narrow = []
    for variance, width in ((0.2, 30), (0.2, 1e-4), (5.0, 30), (5.0, 1e-4)):
        network = pk.Network((3,), width, (variance, 1.0), shared=False)
        solution = pk.minimise_action(pk.Problem(xi, labels), network, 1e-3)
        u = np.asarray(solution.order_parameter)
        # equipartition: r_l − Tr_l = N(u_l/σ² − 1)
        excess = -u * slopes(kernels, labels, u, 1e-3)
        np.testing.assert_allclose(excess, width * (u / variance - 1), atol=1e-3)
        if width < 1:
            narrow.append(u)
        else:
            assert abs(u / teacher - 1).max() > 0.5
    np.testing.assert_allclose(narrow[0], narrow[1], rtol=2e-3)
    np.testing.assert_allclose(narrow[0], teacher, rtol=0.05)
