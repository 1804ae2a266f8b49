"""Kernels of pairs of paths from kernels of tokens, against their definitions."""

import math

import formulas
import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.energy import kernel_packing, path_kernels
from pathkernel_core.energy.token_kernels.erf import erf_kernel
from pathkernel_core.energy.token_kernels.relu import relu_kernel
from pathkernel_core.system import memory

WIDTH, TOKENS, EXAMPLES = 5, 4, 7


def quadrature(function, covariance):
    """⟨f(u_a) f(u_b)⟩ of two Gaussian numbers, by directions and radii."""
    angles = (np.arange(4000) + 0.5) * 2 * math.pi / 4000
    squares, weights = np.polynomial.laguerre.laggauss(40)  # of radii, r²/2 exponential
    directions = np.linalg.cholesky(covariance) @ np.stack([np.cos(angles), np.sin(angles)])
    values = function(np.sqrt(2 * squares)[:, None, None] * directions)
    return weights @ (values[:, 0] * values[:, 1]).mean(axis=1)


@pytest.mark.parametrize("covariance", [[[1.5, 0.6], [0.6, 0.7]], [[0.4, -0.3], [-0.3, 2.0]]])
def test_kernels_are_those_of_their_activation_functions(covariance):
    (k_aa, k_ab), (_, k_bb) = covariance
    expected = quadrature(lambda u: np.maximum(u, 0), np.array(covariance))
    assert relu_kernel(*map(np.array, (k_ab, k_aa, k_bb))) == pytest.approx(expected, rel=1e-5)
    erf = np.vectorize(math.erf)
    expected = quadrature(erf, np.array(covariance))
    actual = erf_kernel(*map(np.array, (k_ab, k_aa, k_bb)))
    assert actual == pytest.approx(expected, rel=1e-5)


def test_kernels_that_the_theory_would_refuse_are_not_computed(monkeypatch):
    """Of n paths and P examples n(n+1)/2 · P(P+1)/2; not those with new examples."""
    inputs, layers = np.ones((7, 4, 5)), [pk.AttentionProduct(np.zeros((6, 5, 5)))]
    monkeypatch.setattr(kernel_packing, "MOST_KERNELS", 21 * 28)
    assert pk.path_kernels(inputs, layers, "relu").shape == (6, 6, 7, 7)
    monkeypatch.setattr(kernel_packing, "MOST_KERNELS", 21 * 28 - 1)
    with pytest.raises(ValueError, match=r"of all pairs of 6 paths between 7 examples have"):
        pk.path_kernels(inputs, layers, "relu")
    monkeypatch.setattr(path_kernels, "_between_all", lambda *_: pytest.fail("computed"))
    with pytest.raises(ValueError, match="take fewer paths or examples"):
        pk.path_kernels(inputs, layers, "relu")
    cross, own = pk.path_kernels(inputs, layers, "relu", new=inputs)
    assert (cross.shape, own.shape) == ((6, 6, 7, 7), (6, 6, 7))


def test_relu_of_parallel_opposite_and_zero_tokens():
    k_ab, k_aa = np.array([2.0, -2.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0, 1.0])
    k_bb = np.array([4.0, 4.0, 3.0, 1.0 - 2e-16])
    actual = relu_kernel(k_ab, k_aa, k_bb)
    np.testing.assert_allclose(actual, [1.0, 0.0, 0.0, 0.5], rtol=1e-15)


def drawn(generator, examples=EXAMPLES):
    """Inputs, and attention matrices of two layers."""
    inputs = generator.standard_normal((examples, TOKENS, WIDTH))
    heads = (2, 3)
    omegas = [generator.dirichlet(np.ones(TOKENS), size=(examples, h, TOKENS)) for h in heads]
    return inputs, [omega.swapaxes(-1, -2) for omega in omegas]


def by_definition(inputs, omegas, kernel, variance=1.0):
    """Σ_ss' A^π_s(x) A^π'_s'(x') k(x_s, x'_s') as one sum, read out at the last token."""
    tokens = np.broadcast_to(np.eye(TOKENS), (len(inputs), TOKENS, TOKENS))
    weights = formulas.attentioned_inputs(tokens, omegas, np.eye(TOKENS)[-1])
    rows = inputs.reshape(-1, WIDTH)
    gram = variance * rows @ rows.T / WIDTH
    of_tokens = kernel(gram, np.diag(gram)[:, None], np.diag(gram)[None, :])
    of_tokens = of_tokens.reshape(len(inputs), TOKENS, len(inputs), TOKENS)
    return np.einsum("xps,xsyt,yqt->pqxy", weights, of_tokens, weights, optimize=True)


def polynomial(k_ab, k_aa, k_bb):
    return k_ab**3 + k_ab + 0.1 * k_aa * k_bb


KERNELS = {
    "linear": lambda k_ab, k_aa, k_bb: k_ab,
    "relu": relu_kernel,
    "erf": erf_kernel,
    polynomial: polynomial,
}


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, id=name, marks=[pytest.mark.slow] if name == "erf" else [])
        for kernel, name in zip(KERNELS, ["linear", "relu", "erf", "callable"])
    ],
)
def test_kernels_sum_over_pairs_of_tokens(library, generator, monkeypatch, kernel):
    inputs, omegas = drawn(generator)
    layers = [pk.Attention(library.array(omega)) for omega in omegas]
    new, of_new = drawn(generator, 3)
    new_layers = [pk.Attention(library.array(omega)) for omega in of_new]
    every = np.concatenate([inputs, new])
    joint = [np.concatenate(pair) for pair in zip(omegas, of_new)]
    expected = by_definition(every, joint, KERNELS[kernel], variance=0.7)
    for elements in (2**18, 4 * TOKENS * 6):  # of one block, and of batches of two examples
        monkeypatch.setattr(path_kernels, "_BLOCK_ELEMENTS", elements)
        actual = pk.path_kernels(library.array(inputs), layers, kernel, variance=0.7)
        actual = library.numpy(actual)
        np.testing.assert_allclose(actual, expected[:, :, :7, :7], atol=1e-13)
        np.testing.assert_array_equal(actual, actual.transpose(1, 0, 3, 2))
        cross, own = pk.path_kernels(
            library.array(inputs),
            layers,
            kernel,
            variance=0.7,
            new=library.array(new),
            new_layers=new_layers,
        )
        np.testing.assert_allclose(library.numpy(cross), expected[:, :, 7:, :7], atol=1e-13)
        diagonal = expected[:, :, 7:, 7:].diagonal(axis1=2, axis2=3)
        np.testing.assert_allclose(library.numpy(own), diagonal, atol=1e-13)


@pytest.mark.parametrize("readout", ["first", "last", "mean", -2])
@pytest.mark.parametrize("skips", [None, (0.5, None), 1.0], ids=str)
def test_linear_kernels_are_those_of_attentioned_inputs(generator, readout, skips):
    inputs = generator.standard_normal((EXAMPLES, TOKENS, WIDTH))
    new = generator.standard_normal((3, TOKENS, WIDTH))
    queries, keys = generator.standard_normal((2, 2, 3, WIDTH))
    products = pk.AttentionProduct(generator.standard_normal((2, WIDTH, WIDTH)))
    gated = pk.Gated(products, generator.standard_normal((2, WIDTH)))
    settings = {"readout": readout, "skips": skips}
    layers = [pk.QueryKey(queries, keys), gated]
    xi, xi_new = (pk.attentioned_inputs(tokens, layers, **settings) for tokens in (inputs, new))
    kernels = pk.path_kernels(inputs, layers, "linear", **settings)
    cross, own = pk.path_kernels(inputs, layers, "linear", new=new, **settings)
    for path in range(xi.shape[1]):
        for dual in range(xi.shape[1]):
            within = pk.path_kernel(xi, xi, path, dual)
            np.testing.assert_allclose(kernels[path, dual], within, atol=1e-13)
            across = pk.path_kernel(xi_new, xi, path, dual)
            np.testing.assert_allclose(cross[path, dual], across, atol=1e-13)
            across = pk.path_kernel(xi_new, xi_new, path, dual)
            np.testing.assert_allclose(own[path, dual], across.diagonal(), atol=1e-13)


def test_single_precision_stays(library, generator):
    inputs = generator.standard_normal((3, TOKENS, WIDTH))
    products = pk.AttentionProduct(generator.standard_normal((2, WIDTH, WIDTH)))
    exact = pk.path_kernels(inputs, [products])
    layers = [products.convert(lambda array: library.array(array, "float32"))]
    kernels = pk.path_kernels(library.array(inputs, "float32"), layers)
    assert kernels.dtype == library.xp.float32
    np.testing.assert_allclose(library.numpy(kernels), exact, atol=3e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["linear", "relu"])
def test_homogeneous_kernels_scale_until_they_underflow(library, generator, kernel, dtype):
    inputs, omegas = drawn(generator, examples=3)
    layers = [pk.Attention(library.array(omega, dtype)) for omega in omegas]

    def kernels(scale):
        return library.numpy(pk.path_kernels(library.array(scale * inputs, dtype), layers, kernel))

    expected, info = kernels(1.0), np.finfo(dtype)
    smallest = math.sqrt(info.smallest_normal / info.eps)
    rtol = 30 * info.eps * np.abs(expected).max()
    for scale in (10 * smallest, math.sqrt(smallest), 1e-4, 1e4, 1 / math.sqrt(smallest)):
        actual = kernels(scale) / scale**2
        np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol)
    for scale in (0.1 * smallest, 1e-3 * smallest):
        with pytest.raises(ValueError, match=f"the kernels of inputs underflow in .*{dtype}"):
            kernels(scale)
        tiny = library.array(scale * inputs, dtype)
        with pytest.raises(ValueError, match="rescale new"):
            pk.path_kernels(library.array(inputs, dtype), layers, kernel, new=tiny)
    assert not kernels(0.0).any()


ASYMMETRIC = {
    "one token": lambda k_ab, k_aa, k_bb: (1 + k_ab) ** 2 / (1 + k_aa),
    "powers": lambda k_ab, k_aa, k_bb: k_ab**2 + k_aa * k_bb**2,
    "slip": lambda k_ab, k_aa, k_bb: k_ab / (k_aa * k_aa) ** 0.5,
}


@pytest.mark.parametrize("function", ASYMMETRIC.values(), ids=ASYMMETRIC.keys())
def test_asymmetric_functions_are_refused(library, generator, function):
    inputs, new = generator.standard_normal((2, 30, TOKENS, WIDTH))
    layers = [pk.AttentionProduct(library.array(generator.standard_normal((2, WIDTH, WIDTH))))]
    alike = new / np.linalg.norm(new, axis=-1, keepdims=True)
    arrays = [library.array(array) for array in (inputs, new, alike)]
    with pytest.raises(ValueError, match="kernel <lambda> is not symmetric in its tokens"):
        pk.path_kernels(arrays[0], layers, function)
    # tokens of one length cannot tell, but new ones of other lengths can
    with pytest.raises(ValueError, match="is not symmetric"):
        pk.path_kernels(arrays[2], layers, function, new=arrays[1])


def test_functions_that_underflow_are_refused(generator):
    inputs = generator.standard_normal((4, TOKENS, WIDTH))
    layers = [pk.AttentionProduct(generator.standard_normal((2, WIDTH, WIDTH)))]
    for function in (lambda k, *_: np.exp(k - 1e4), lambda k, *_: 1e-300 * k):
        with pytest.raises(ValueError, match=r"<lambda> is too small for float64: its largest"):
            pk.path_kernels(inputs, layers, function)


@pytest.mark.parametrize("name", [pytest.param("jax", marks=pytest.mark.slow), "torch"])
@pytest.mark.parametrize("kernel", ["relu", "erf"])
def test_kernels_have_derivatives(name, kernel):
    """Where tokens are equal or zero, too."""
    xp = pytest.importorskip("jax.numpy" if name == "jax" else "torch")
    inputs = np.random.default_rng(1).standard_normal((3, 3, 2))
    inputs[0, 0], inputs[1, 1], inputs[2, 0] = 0.0, inputs[0, 1], 2 * inputs[0, 1]
    products = np.random.default_rng(2).standard_normal((2, 2, 2))

    def summed(array):
        layers = [pk.AttentionProduct(xp.asarray(products))]
        kernels = pk.path_kernels(array, layers, kernel)
        weights = np.cos(np.arange(36)).reshape(2, 2, 3, 3)
        return (kernels * xp.asarray(weights)).sum()

    if name == "jax":
        gradient = np.asarray(pytest.importorskip("jax").grad(summed)(xp.asarray(inputs)))
    else:
        array = xp.tensor(inputs, requires_grad=True)
        summed(array).backward()
        gradient = array.grad.numpy()
    assert np.isfinite(gradient).all()
    direction = np.random.default_rng(3).standard_normal(inputs.shape)
    direction[0, 0] = 0.0  # relu has a kink at zero
    above, below = (float(summed(xp.asarray(inputs + h * direction))) for h in (1e-5, -1e-5))
    assert (gradient * direction).sum() == pytest.approx((above - below) / 2e-5, rel=1e-5)


def test_arguments_that_do_not_fit_are_named(library, monkeypatch):
    ones = library.array(np.ones((2, 3, 4)))
    layers = [pk.AttentionProduct(library.array(np.ones((2, 4, 4))))]
    matrices = [pk.Attention(library.array(np.full((2, 1, 3, 3), 1 / 3)))]
    wider, one_more = library.array(np.ones((5, 3, 5))), library.array(np.ones((3, 3, 4)))
    for arguments, settings, message in [
        ((ones, layers, "tanh"), {}, r'kernel must be "linear", .* not \'tanh\''),
        ((ones, layers), {"variance": 0.0}, "variance must be positive"),
        ((ones, layers), {"readout": 3}, "readout names token 3"),
        ((ones, layers), {"new": wider}, r"new must have shape \(P\*, M, 4\), but has \(5, 3, 5\)"),
        ((ones, layers), {"new_layers": layers}, "new_layers are those of new examples"),
        ((ones, matrices), {"new": one_more}, r"layers\[0\].omega holds 2 examples, but new holds"),
        ((ones, matrices), {"new": ones, "new_layers": layers}, "new_layers have 2 paths, but"),
        ((ones, layers, lambda k, *_: k[:1, ...]), {}, "the result of kernel must have shape"),
        ((ones, layers, lambda k, *_: k * math.inf), {}, "the result of kernel .* NaN or infinity"),
        ((1e160 * ones, matrices), {}, "the kernels of shape .* overflows; rescale"),
    ]:
        with pytest.raises(ValueError, match=message):
            pk.path_kernels(*arguments, **settings)
    with pytest.raises(TypeError, match="layers must be a list of at least one"):
        pk.path_kernels(ones, [])
    monkeypatch.setattr(memory, "memory_bound", lambda: 200)
    with pytest.raises(
        memory.TooLargeError, match="of 2 paths, 2 × 2 examples each, would take 256 bytes"
    ):
        pk.path_kernels(ones, layers)


def outputs_of_networks(inputs, omegas, network, variance, hidden, draws, generator):
    """Outputs (draws, examples) of random networks with a token-wise ReLU layer at the bottom."""
    width, normal = int(network.widths[0]), generator.standard_normal
    projection, *values, readout = np.sqrt(network.variances)
    tokens = inputs.reshape(-1, WIDTH).T * math.sqrt(variance / WIDTH)
    x = np.maximum(normal((draws, hidden, WIDTH)) @ tokens, 0)
    x = projection / math.sqrt(hidden) * normal((draws, width, hidden)) @ x
    for omega, value in zip(omegas, values):
        heads, total = omega.shape[1], 0.0
        for head in range(heads):
            of_head = normal((draws, width, width)) @ x
            of_head = of_head.reshape(draws, width, len(inputs), TOKENS)
            total = total + np.einsum("dnxs,xst->dnxt", of_head, omega[:, head], optimize=True)
        x = value / math.sqrt(heads * width) * total.reshape(draws, width, -1)
    last = x.reshape(draws, width, len(inputs), TOKENS)[..., -1]
    return readout / math.sqrt(width) * np.einsum("dn,dnx->dx", normal((draws, width)), last)


def test_limit_is_that_of_networks_with_a_nonlinear_embedding(generator):
    """Posterior of the limit against that from the covariance of 10,000 random networks."""
    inputs, omegas = drawn(generator, 9)
    network = pk.Network((2, 3), 16, variances=(0.9, 1.3, 0.8, 1.5))
    drawing = inputs, omegas, network, 3.0, 60, 500, generator
    batches = [outputs_of_networks(*drawing) for _ in range(20)]
    labels, temperature = generator.standard_normal(6), 0.3

    def posterior(covariance):
        noisy = covariance[:6, :6] + temperature * np.eye(6)
        across = covariance[6:, :6]
        explained = (across * np.linalg.solve(noisy, across.T).T).sum(axis=1)
        mean = across @ np.linalg.solve(noisy, labels)
        return np.stack([mean, covariance.diagonal()[6:] - explained])

    covariances = np.array([batch.T @ batch / len(batch) for batch in batches])
    sampled = posterior(covariances.mean(axis=0))
    # of networks left out in turn
    left_out = (covariances.sum(axis=0) - covariances) / 19
    error = np.sqrt(19 * np.var([posterior(one) for one in left_out], axis=0))

    layers = [pk.Attention(omega[:6]) for omega in omegas]
    new = {"new": inputs[6:], "new_layers": [pk.Attention(omega[6:]) for omega in omegas]}
    for kernel in ("relu", "linear"):
        settings = {"kernel": kernel, "variance": 3.0}
        kernels = pk.path_kernels(inputs[:6], layers, **settings)
        problem = pk.Problem.from_kernels(kernels, labels)
        prediction = pk.gp_limit(problem, network, temperature).predict(
            *pk.path_kernels(inputs[:6], layers, **settings, **new)
        )
        off = np.stack([prediction.mean, prediction.variance]) - sampled
        assert (abs(off / error).max() < 4) == (kernel == "relu")
