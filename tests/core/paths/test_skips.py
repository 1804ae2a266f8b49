"""Networks with skip connections: their law by drawing them, their action by its formula."""

import math

import formulas
import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.action.coordinates import ChainCoordinates

NETWORKS = {
    "both layers": pk.Network((2, 1), 12, (0.7, 1.3, 0.6, 1.9), skips=(0.8, 0.5)),
    "the first, two outputs": pk.Network((2, 2), (9, 9, 14), (1.1, 0.7, 1.2, 0.9), 2, (0.6, None)),
    "the second": pk.Network((2, 2), (15, 12, 12), 1.0, skips=(None, 1.4)),
}


@pytest.fixture(params=list(NETWORKS))
def network(request):
    return NETWORKS[request.param]


def blocks_above(network, u):
    """U_1 … U_L, u_a of a network in which every layer has a skip."""
    chain = [u]
    for shared in network.shared_sizes[:-1]:
        chain.append(chain[-1][:shared, :shared])
    return chain


def coefficients(network):
    """c_π √n of every path."""
    return [
        math.sqrt(network.n_paths)
        * math.prod(
            skip if head == 0 else heads**-0.5
            for head, heads, skip in zip(path, network.heads, network.skips)
        )
        for path in network.paths
    ]


def action(xp, network, chain, xi, labels, temperature):
    xi = xi * np.array(coefficients(network))[:, None]
    return formulas.entropy(xp, network, chain) + formulas.energy(
        xp, chain[0], xi, labels, temperature, network.variances[0]
    )


def random_chain(network, generator):
    chain = ChainCoordinates(network)
    x = 0.4 * generator.standard_normal(chain.size)
    return [b @ b.T for b in chain.factors(chain.relative_factors(x))]


def examples(network, generator, count=9, width=3):
    xi = generator.standard_normal((count, network.n_paths, width))
    labels = np.sign(generator.standard_normal((count, network.outputs)))
    return xi, labels[:, 0] if network.outputs == 1 else labels


def draw_weights(network, generator):
    """Value weights of each layer and readout, drawn from the prior."""
    widths = [int(width) for width in network.widths]
    values = [
        math.sqrt(variance) * generator.standard_normal((heads, above, below))
        for heads, variance, below, above in zip(
            network.heads, network.variances[1:], widths, widths[1:]
        )
    ]
    readout = generator.standard_normal((network.outputs, widths[-1]))
    return values, math.sqrt(network.variances[-1]) * readout


def test_paths_with_a_skip_are_told_from_heads():
    network = NETWORKS["both layers"]
    assert network.steps == (3, 2)
    assert network.path_labels == ("skip-skip", "skip-1", "1-skip", "1-1", "2-skip", "2-1")
    assert network.paths[:3] == ((0, 0), (0, 1), (1, 0))
    assert network.sizes == (6, 2, 1)
    np.testing.assert_allclose(network.path_scales, coefficients(network))
    assert network == pk.Network((2, 1), (12,) * 3, network.variances, 1, np.array([0.8, 0.5]))
    smaller = network.keep_heads(((2,), (1,)))
    assert smaller.skips == network.skips
    assert [network.paths[i] for i in network.paths_through(((2,), (1,)))] == [
        (0, 0), (0, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert pk.Network((2, 3), 10).skips == (None, None)
    assert "skip connections" in network._repr_html_()
    assert "skip connections" not in pk.Network((2, 3), 10)._repr_html_()


@pytest.mark.parametrize(
    ("skips", "error", "message"),
    [
        (-0.5, ValueError, "each of skips must be a finite number from 0, but is -0.5"),
        (math.nan, ValueError, "each of skips must be a finite number from 0, but is nan"),
        ((0.5,), ValueError, "skips must be one for all or one for each of 2 layers, but has 1"),
        (True, TypeError, "skips must be one number, or None for a layer without .*has True"),
        ("0.5", TypeError, "skips must be one number, or None for a layer without .*has '0.5'"),
        ((None, 1.0), ValueError, "widths N_2 and N_3 must be equal, but are 10 and 12"),
    ],
)
def test_bad_skips_are_named(skips, error, message):
    with pytest.raises(error, match=message):
        pk.Network((2, 2), (10, 10, 12), skips=skips)


def test_the_sum_over_paths_is_the_network(library, network, generator):
    """x^ℓ = s x^{ℓ-1} + what the heads add, token by token, against paths and their weights."""
    inputs = generator.standard_normal((2, 3, 4))
    layers = [pk.QueryKey(*generator.standard_normal((2, h, 2, 4)), 0.7) for h in network.heads]
    values, readout = draw_weights(network, generator)
    projection = generator.standard_normal((values[0].shape[2], 4))

    x = inputs @ projection.T / 2
    for layer, value, skip in zip(layers, values, network.skips):
        heads, _, width = value.shape
        added = np.einsum("hij,psj,phst->pti", value, x, layer.attention(inputs))
        x = (0 if skip is None else skip * x) + added / math.sqrt(heads * width)

    weights = pk.path_weights(values, readout, network.skips) @ projection / 2
    weights *= network.path_scales[:, None] / math.sqrt(network.n_paths * network.widths[0])
    weights = weights.reshape(-1, network.outputs, 4)
    arrays = [layer.convert(library.array) for layer in layers]
    for read, token in (("mean", slice(None)), (1, slice(1, 2))):
        state = x[:, token].mean(axis=1)
        expected = state @ readout.T / math.sqrt(network.widths[-1])
        xi = pk.attentioned_inputs(library.array(inputs), arrays, read, skips=network.skips)
        actual = np.einsum("pni,nci->pc", library.numpy(xi), weights)
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_coordinates_of_random_networks_are_independent():
    """Of weights drawn from the prior, X_b is normal and X_c Bartlett's with N - m freedoms."""
    network = NETWORKS["both layers"]
    chain, generator = ChainCoordinates(network), np.random.default_rng(5)
    result = []
    for _ in range(3000):
        u = pk.order_parameter_from_weights(*draw_weights(network, generator), network.skips)
        matrices = blocks_above(network, u)
        result.append(chain.from_factors([np.linalg.cholesky(matrix) for matrix in matrices]))
    result = np.array(result)
    on_diagonal = chain.curvature > chain.curvature.min()
    assert on_diagonal.sum() == 4 + 1 + 1
    assert chain.size == 4 * 2 + 10 + 1 + 1 + 1
    squares = np.exp(2 * result[:, on_diagonal])
    degrees = 12 - np.array([2, 3, 4, 5, 1, 0])
    np.testing.assert_allclose(12 * squares.mean(axis=0), degrees, rtol=0.04)
    np.testing.assert_allclose(144 * squares.var(axis=0), 2 * degrees, rtol=0.2)
    below = math.sqrt(12) * result[:, ~on_diagonal]
    np.testing.assert_allclose(below.mean(axis=0), 0.0, atol=0.08)
    np.testing.assert_allclose(below.var(axis=0), 1.0, rtol=0.12)
    together = np.corrcoef(np.hstack([below, squares]).T)
    np.testing.assert_allclose(together, np.eye(chain.size), atol=0.09)


def test_gradient_is_a_derivative(network, generator, derivative):
    xi, labels = examples(network, generator)
    chain, width = ChainCoordinates(network), network.width
    x = 0.4 * generator.standard_normal(chain.size)
    relative = chain.relative_factors(x)
    factors = chain.factors(relative)
    chain_at = [factor @ factor.T for factor in factors]
    for matrix, shared, above in zip(chain_at, network.shared_sizes, chain_at[1:]):
        if shared:
            np.testing.assert_allclose(matrix[:shared, :shared], above, rtol=1e-12)

    def of_own_matrices(xp, separate):
        """Action of those order parameters that are no blocks of others."""
        complete, separate = [], list(separate)
        for shared in (0, *network.shared_sizes[:-1]):
            complete.append(complete[-1][:shared, :shared] if shared else separate.pop(0))
        return action(xp, network, complete, xi, labels, 0.2)

    shared = (0, *network.shared_sizes[:-1])
    separate = [matrix for matrix, block in zip(chain_at, shared) if not block]
    slopes = derivative(of_own_matrices, separate)
    problem, scales = pk.Problem(xi, labels), network.path_scales[:, None]
    _, energy = problem.form.energy_and_gradient(
        math.sqrt(network.variances[0]) * factors[0], 0.2, scales
    )
    energy *= network.variances[0] / width
    largest = chain.largest_slope(x, relative, factors, energy)
    assert largest * width == pytest.approx(max(abs(s).max() for s in slopes), rel=1e-9)

    # along the coordinates: by differences of the same formula
    actual = width * chain.gradient(x, relative, factors, energy)
    for direction in np.linalg.qr(generator.standard_normal((chain.size, 3)))[0].T:
        values = []
        for step in (1e-4, -1e-4, 2e-4, -2e-4):
            shifted = chain.factors(chain.relative_factors(x + step * direction))
            shifted = [b @ b.T for b in shifted]
            values.append(action(np, network, shifted, xi, labels, 0.2).real)
        slope = (8 * (values[0] - values[1]) - (values[2] - values[3])) / 12e-4
        assert actual @ direction == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_entropy_is_the_formula(network, generator):
    matrices = random_chain(network, generator)
    chain, limit = ChainCoordinates(network), formulas.limit(network)
    np.testing.assert_allclose(np.diag(network.limit_diagonal), limit[0], rtol=1e-14)
    for actual, matrix in zip(chain.factors(chain.relative_factors(chain.gp_limit)), limit):
        np.testing.assert_allclose(actual @ actual.T, matrix, rtol=1e-14)
    vector = chain.from_factors([np.linalg.cholesky(matrix) for matrix in matrices])
    expected = formulas.entropy(np, network, matrices).real
    actual = network.width * chain.entropy(vector)
    assert actual == pytest.approx(expected, rel=1e-11)
    expected -= formulas.entropy(np, network, limit).real
    assert chain.excess_entropy(vector) == pytest.approx(expected, rel=1e-11)


def test_the_limit_is_the_kernel_of_an_infinite_network(network, generator):
    """Every path alone, with its coefficient and the variances of the heads that it takes."""
    xi, labels = examples(network, generator)
    expected = 0.0
    for index, path in enumerate(network.paths):
        strength = network.variances[0] * network.variances[-1]
        for head, heads, skip, variance in zip(
            path, network.heads, network.skips, network.variances[1:]
        ):
            strength *= skip**2 if head == 0 else variance / heads
        expected = expected + strength * xi[:, index] @ xi[:, index].T / xi.shape[2]
    limit = pk.gp_limit(pk.Problem(xi, labels), network, 0.3)
    targets = labels.reshape(len(xi), -1)
    want_mean = expected @ np.linalg.solve(expected + 0.3 * np.eye(len(expected)), targets)
    actual = limit.predict(xi).mean.reshape(targets.shape)
    np.testing.assert_allclose(actual, want_mean, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
def test_the_minimum_is_stationary_in_every_space(library, generator, space):
    network = NETWORKS["the first, two outputs"]
    xi, labels = examples(network, generator)
    problem = pk.Problem(library.array(xi), library.array(labels), space)
    solution = pk.minimise_action(problem, network, 0.1)
    chain = [library.numpy(matrix) for matrix in solution.order_parameters]
    expected = action(np, network, chain, xi, labels, 0.1).real
    assert solution.action * network.width == pytest.approx(expected, rel=1e-11)
    for _ in range(3):  # no other chain nearby is lower
        coordinates = ChainCoordinates(network)
        x = coordinates.from_factors(solution.factors)
        x += 1e-3 * generator.standard_normal(coordinates.size)
        close = [b @ b.T for b in coordinates.factors(coordinates.relative_factors(x))]
        assert action(np, network, close, xi, labels, 0.1).real > expected
    # the predictor of the Gaussian process with this kernel
    scaled = xi * np.array(coefficients(network))[:, None]
    mean, variance = formulas.gaussian_process(
        scaled, labels, scaled[:3], chain[0], 0.1, network.variances[0]
    )
    actual = solution.predict(library.array(xi[:3]))
    np.testing.assert_allclose(library.numpy(actual.mean), mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(library.numpy(actual.variance), variance, rtol=1e-7, atol=1e-9)


def test_scores_are_in_units_of_the_largest_head_not_of_a_skip():
    """A diagonal U gives a path c² U: 3² for the skip, half of U for each of two heads."""
    network, u = pk.Network((2,), 10, skips=3.0), np.diag([1.0, 1.0, 2.0])
    np.testing.assert_allclose(pk.head_scores(network, u), [0.5, 1.0], rtol=1e-14)
    np.testing.assert_allclose(pk.skip_scores(network, u), [9.0], rtol=1e-14)


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
def test_skips_of_strength_zero_change_nothing(generator, space):
    inputs = generator.standard_normal((14, 5, 3))
    labels = np.sign(generator.standard_normal(14))
    layers = [pk.QueryKey(*generator.standard_normal((2, 2, 2, 3)), 0.7) for _ in range(2)]
    solutions = []
    for skips in (None, 0.0):
        network = pk.Network((2, 2), 12, (0.7, 1.3, 0.6, 1.9), skips=skips)
        xi = pk.attentioned_inputs(inputs, layers, skips=skips)
        problem = pk.Problem(xi, labels, space)
        solutions.append(pk.minimise_action(problem, network, 0.1, tolerance=1e-10))
    plain, zero = solutions
    through = zero.network.paths_through(((1, 2), (1, 2)))
    through = [i for i in through if 0 not in zero.network.paths[i]]
    u = zero.order_parameter[np.ix_(through, through)]
    np.testing.assert_allclose(u, plain.order_parameter, rtol=0, atol=1e-7)
    assert zero.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)
    np.testing.assert_allclose(zero.head_scores, plain.head_scores, atol=1e-6)
    np.testing.assert_array_equal(pk.skip_scores(zero.network, zero.order_parameter), 0.0)
    assert np.isnan(pk.skip_scores(plain.network, plain.order_parameter)).all()
    new = generator.standard_normal((3, 5, 3))
    left, right = (
        s.predict(pk.attentioned_inputs(new, layers, skips=s.network.skips)) for s in solutions
    )
    np.testing.assert_allclose(right.mean, left.mean, atol=1e-8)
    np.testing.assert_allclose(right.variance, left.variance, atol=1e-8)


def test_scores_count_what_enters_the_kernel():
    network = pk.Network((2,), 10, skips=0.5)
    u = np.array([[4.0, 0.0, -0.6], [0.0, 3.0, 0.5], [-0.6, 0.5, 2.0]])
    heads = pk.head_scores(network, u)
    c = np.array([0.5, 0.5**0.5, 0.5**0.5])
    w = np.abs(c[:, None] * u * c)
    single = 2 * w.sum(axis=0) - w.diagonal()
    np.testing.assert_allclose(heads, single[1:] / single[1:].max())
    np.testing.assert_allclose(pk.skip_scores(network, u), single[:1] / single[1:].max())


def test_the_saddle_approaches_the_exact_mean():
    """Mean of U over the posterior, from networks drawn from the prior, weighted by the labels."""
    generator = np.random.default_rng(2)
    xi, labels = generator.standard_normal((3, 3, 2)), np.array([1.0, -1.0, 1.0])
    errors = []
    for width in (8, 32):
        network = pk.Network((2,), width, skips=0.7)
        solution = pk.minimise_action(pk.Problem(xi, labels), network, 0.5)
        rows = generator.standard_normal((60_000, 1, width)) / math.sqrt(width)  # W of the readout
        u_a = np.einsum("zij,zkj->zik", rows, rows)
        x = generator.standard_normal((60_000, 2, width)) * np.sqrt(u_a)  # a V^h / √N
        x = np.concatenate([rows * math.sqrt(width), x], axis=1)
        u = np.einsum("zij,zkj->zik", x, x) / width
        features = xi * network.path_scales[:, None] / math.sqrt(3 * 2)
        kernel = np.einsum("mpi,zpq,nqi->zmn", features, u, features, optimize=True)
        noisy = kernel + 0.5 * np.eye(3)
        fitted = np.einsum("m,zmn,n->z", labels, np.linalg.inv(noisy), labels)
        weights = np.exp(-0.5 * (fitted + np.linalg.slogdet(noisy)[1]))
        mean = np.einsum("z,zij->ij", weights, u) / weights.sum()
        errors.append(abs(mean - solution.order_parameter).max())
    assert errors[0] < 0.2
    assert errors[1] < 0.4 * errors[0]
