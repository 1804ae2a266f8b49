import itertools
import math

import formulas
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathkernel_core as pk
from pathkernel_core import Network
from pathkernel_core.arrays.backend import to_host

UNEQUAL = Network((3, 2), (4, 3, 5), (1.4, 0.7, 1.6, 0.8), outputs=2)


def prior_weights(network, input_width, generator):
    """Weights drawn from the prior: projection, values of each layer, readout."""
    widths = [int(width) for width in network.widths]
    scales = [math.sqrt(variance) for variance in network.variances]
    projection = scales[0] * generator.standard_normal((widths[0], input_width))
    values = [
        scales[1 + layer] * generator.standard_normal((heads, widths[layer + 1], widths[layer]))
        for layer, heads in enumerate(network.heads)
    ]
    readout = scales[-1] * generator.standard_normal((network.outputs, widths[-1]))
    return projection, values, readout


def forward(inputs, omegas, projection, values, readout, token):
    """The network layer by layer, as it is defined (Eq. 1-4); outputs (P, C)."""
    hidden = inputs @ projection.T / math.sqrt(inputs.shape[2])
    for omega, value in zip(omegas, values):
        heads, width = value.shape[0], value.shape[2]
        after = 0.0
        for head in range(heads):
            attended = np.einsum("pst,psi->pti", omega[:, head], hidden)
            after = after + attended @ value[head].T
        hidden = after / math.sqrt(heads * width)
    return hidden[:, token] @ readout.T / math.sqrt(readout.shape[1])


def random_attention(network, examples, tokens, generator):
    omegas = []
    for heads in network.heads:
        scores = np.exp(generator.standard_normal((examples, heads, tokens, tokens)))
        omegas.append(scores / scores.sum(axis=2, keepdims=True))
    return omegas


def test_the_network_is_a_sum_over_paths(library, generator):
    """Eq. 5-6: the forward pass is linear in the attentioned inputs, with weights W^π V⁰."""
    inputs = generator.standard_normal((4, 3, 6))
    omegas = random_attention(UNEQUAL, 4, 3, generator)
    projection, values, readout = prior_weights(UNEQUAL, 6, generator)
    reference = forward(inputs, omegas, projection, values, readout, token=-1)

    xi = pk.attentioned_inputs(inputs, [pk.Attention(omega) for omega in omegas], "last")
    weights = library.numpy(
        pk.path_weights([library.array(value) for value in values], library.array(readout))
    )
    weights = weights.reshape(6, 2, -1)  # (path, output, N_0)
    projected = xi @ projection.T / math.sqrt(6)
    # path_weights divides by √N_ℓ for ℓ = 1 … L, which leaves √N_0 of the first layer's input
    actual = np.einsum("pni,nci->pc", projected, weights)
    actual = actual / math.sqrt(UNEQUAL.n_paths * UNEQUAL.widths[0])
    np.testing.assert_allclose(actual, reference, rtol=1e-12, atol=1e-13)


def test_path_weights_multiply_along_the_path(library, generator):
    _, values, readout = prior_weights(UNEQUAL, 6, generator)
    actual = library.numpy(
        pk.path_weights([library.array(value) for value in values], library.array(readout))
    )
    for index, (left, right) in enumerate(formulas.all_paths((3, 2))):
        product = readout @ values[1][right] @ values[0][left] / math.sqrt(5 * 3)
        np.testing.assert_allclose(actual[2 * index : 2 * index + 2], product, rtol=1e-12)


def test_order_parameter_of_weights(library, generator):
    _, values, readout = prior_weights(UNEQUAL, 6, generator)
    values = [library.array(value) for value in values]
    weights = library.numpy(pk.path_weights(values, library.array(readout)))
    actual = library.numpy(pk.order_parameter_from_weights(values, library.array(readout)))
    np.testing.assert_allclose(actual, weights @ weights.T / 4, rtol=1e-12)
    one_output = pk.order_parameter_from_weights(values, library.array(readout[0]))
    np.testing.assert_allclose(library.numpy(one_output), actual[::2, ::2], rtol=1e-12)


def z_scores(draws, expected):
    """Deviations of the mean over draws (first axis) in standard errors."""
    error = draws.std(axis=0) / math.sqrt(len(draws))
    return (draws.mean(axis=0) - expected) / np.maximum(error, 1e-12)


def test_prior_of_finite_networks_has_the_order_parameter_of_the_limit(generator):
    """At any width the prior mean of U is Π σ² times the identity, and f f' has its kernel."""
    inputs = generator.standard_normal((3, 4, 6))
    omegas = random_attention(UNEQUAL, 3, 4, generator)
    xi = pk.attentioned_inputs(inputs, [pk.Attention(omega) for omega in omegas], "last")
    limit = np.diag(UNEQUAL.limit_diagonal)
    np.testing.assert_allclose(limit, 0.7 * 1.6 * 0.8 * np.eye(12), rtol=1e-14)

    order_parameters, products = [], []
    for _ in range(6000):
        projection, values, readout = prior_weights(UNEQUAL, 6, generator)
        order_parameters.append(pk.order_parameter_from_weights(values, readout))
        outputs = forward(inputs, omegas, projection, values, readout, token=-1).reshape(-1)
        products.append(np.outer(outputs, outputs))
    scores = z_scores(np.array(order_parameters), limit)[np.triu_indices(12)]
    assert np.abs(scores).max() < 4.5
    assert 0.6 < scores.std() < 1.4

    kernel = formulas.kernel(xi, xi, limit, outputs=2, variance=1.4)
    assert np.abs(z_scores(np.array(products), kernel)).max() < 4.5
    for output in range(2):  # both outputs have the kernel that the package computes
        alone = pk.total_kernel(xi, limit[::2, ::2], variance=1.4)
        np.testing.assert_allclose(kernel[output::2, output::2], alone, rtol=1e-12)


def test_weights_follow_the_wishart_hierarchy(generator):
    """First two moments of U_1 from random weights, and from the hierarchy of Wishart draws."""
    draws = 20_000
    from_hierarchy = formulas.wishart_hierarchy(
        Network((2, 2), (6, 7, 5), (1, 0.7, 1.6, 0.8)), draws, generator
    )[0]
    network = Network((2, 2), (6, 7, 5), (1, 0.7, 1.6, 0.8))
    from_weights = np.array(
        [
            pk.order_parameter_from_weights(*prior_weights(network, 1, generator)[1:])
            for _ in range(draws // 2)
        ]
    )
    for power in (1, 2):
        left, right = from_hierarchy**power, from_weights**power
        error = np.sqrt(left.var(axis=0) / len(left) + right.var(axis=0) / len(right))
        assert np.abs((left.mean(axis=0) - right.mean(axis=0)) / error).max() < 4.5
    # correlations of entries that share a head of the second layer
    left = from_hierarchy[:, 0, 0] * from_hierarchy[:, 2, 2]
    right = from_weights[:, 0, 0] * from_weights[:, 2, 2]
    error = math.sqrt(left.var() / len(left) + right.var() / len(right))
    assert abs(left.mean() - right.mean()) / error < 4.5
    assert left.mean() > 1.05 * from_hierarchy[:, 0, 0].mean() ** 2


def head_scores_by_loops(network, u):
    paths, outputs = network.paths, network.outputs
    scores = dict.fromkeys(network.head_labels, 0.0)
    for (a, left), (b, right) in itertools.product(enumerate(paths), repeat=2):
        block = np.abs(u[a * outputs : (a + 1) * outputs, b * outputs : (b + 1) * outputs]).sum()
        for layer in range(network.n_layers):
            for head in {left[layer], right[layer]} - {0}:  # a skip is no head
                scores[f"{layer + 1}-{head}"] += block
    values = np.array([*scores.values()])
    return values / values.max()


def test_head_scores_count_each_pair_once(library, generator):
    u = formulas.random_positive(12, generator)
    actual = pk.head_scores(UNEQUAL, library.array(u))
    np.testing.assert_allclose(actual, head_scores_by_loops(UNEQUAL, u), rtol=1e-13)


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
def test_head_contributions_weigh_pairs_by_their_mean_kernels(library, generator, space):
    network, (examples, width) = UNEQUAL, (15, 3)
    paths = len(network.paths)
    sizes = np.linspace(0.2, 3, paths)[:, None]
    xi = sizes * generator.normal(size=(examples, paths, width))
    labels = generator.normal(size=(examples, network.outputs))
    problem = pk.Problem(library.array(xi), library.array(labels), space=space)
    mean = np.einsum("mpi,mqi->pq", xi, xi) / (examples * width)
    np.testing.assert_allclose(to_host(problem.mean_kernels), mean, rtol=1e-10, atol=1e-12)
    solution = pk.minimise_action(problem, network, 0.5)
    u = to_host(solution.order_parameter)
    weighted = u * np.kron(mean, np.ones((network.outputs,) * 2))
    expected = head_scores_by_loops(network, weighted)
    np.testing.assert_allclose(solution.head_contributions, expected, rtol=1e-10)
    # in the limit U is diagonal, and a head has the sizes of its paths
    limit = pk.gp_limit(problem, network, 0.5).head_contributions
    diagonal = np.kron(np.diag(np.diag(mean)), np.eye(network.outputs))
    np.testing.assert_allclose(limit, head_scores_by_loops(network, diagonal), rtol=1e-10)


@pytest.mark.parametrize("skips", [None, (0.6, 0.0), (None, 1.3)])
def test_head_contributions_are_those_of_relabelled_heads(generator, skips):
    network = Network((2, 3), 12, skips=skips)
    xi = np.linspace(0.3, 2, network.n_paths)[:, None] * generator.normal(
        size=(20, network.n_paths, 4)
    )
    labels = np.sign(xi[:, -1, 0])
    statistics = pk.SufficientStatistics.of(xi, labels)
    statistics = pk.Problem.from_statistics(statistics)
    problem = pk.Problem(xi, labels)
    np.testing.assert_allclose(statistics.mean_kernels, problem.mean_kernels, atol=1e-12)
    solution = pk.minimise_action(problem, network, 0.3)
    scales = network.path_scales
    weighted = solution.order_parameter * problem.mean_kernels * np.outer(scales, scales)
    expected = head_scores_by_loops(network, weighted)
    np.testing.assert_allclose(solution.head_contributions, expected, rtol=1e-12)
    # paths of heads in another order, and of the same skips
    orders = {0: {0: 0, 1: 2, 2: 1}, 1: {0: 0, 1: 3, 2: 1, 3: 2}}
    renamed = [
        network.paths.index(tuple(orders[layer][head] for layer, head in enumerate(path)))
        for path in network.paths
    ]
    swapped = np.empty_like(xi)
    swapped[:, renamed] = xi
    other = pk.minimise_action(pk.Problem(swapped, labels), network, 0.3)
    heads = [network.head_labels.index(label) for label in ("1-2", "1-1", "2-3", "2-1", "2-2")]
    np.testing.assert_allclose(other.head_contributions[heads], expected, rtol=1e-5)


def test_swapped_arguments_of_head_scores():
    with pytest.raises(TypeError, match=r"call head_scores\(network, order_parameter\)"):
        pk.head_scores(np.eye(4), Network((2, 2), 10))


def test_head_scores_of_a_known_order_parameter():
    """Paths 1-1, 1-2, 2-1, 2-2 with weights 4, 0, 1, 0 and nothing between them."""
    scores = pk.head_scores(Network((2, 2), 10), np.diag([4.0, 0.0, 1.0, 0.0]))
    np.testing.assert_allclose(scores, [0.8, 0.2, 1.0, 0.0])


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_relabelling_heads_relabels_their_scores(heads, seed):
    generator = np.random.default_rng(seed)
    network = Network(heads, 10)
    u = formulas.random_positive(network.n_paths, generator)
    orders = [generator.permutation(count) for count in heads]
    indices = np.arange(network.n_paths).reshape(heads)[np.ix_(*orders)].ravel()
    before = pk.head_scores(network, u)
    after = pk.head_scores(network, u[np.ix_(indices, indices)])
    starts = np.cumsum([0, *heads])
    positions = np.concatenate([start + order for start, order in zip(starts, orders)])
    np.testing.assert_allclose(after, before[positions], rtol=1e-12)
    assert ((before > 0) & (before <= 1)).all()


def test_bad_weights_are_named(library):
    array = library.array
    values = [array(np.ones((2, 3, 4))), array(np.ones((2, 5, 3)))]
    for function in (pk.path_weights, pk.order_parameter_from_weights):
        assert function(values, array(np.ones(5))).shape[0] == 4
        with pytest.raises(ValueError, match=r"values must hold .* at least one layer"):
            function([], array(np.ones(5)))
        with pytest.raises(ValueError, match=r"values\[1\] must have shape \(H, 4, N\), but"):
            function(values, array(np.ones(4)))
        with pytest.raises(ValueError, match=r"values\[0\] must have shape \(H, 4, N\), but"):
            function([values[1], array(np.ones((2, 5, 4)))], array(np.ones(5)))
        with pytest.raises(ValueError, match="readout must have shape"):
            function(values, array(np.ones((1, 1, 5))))
        with pytest.raises(ValueError, match=r"readout .* NaN or infinity"):
            function(values, array(np.full(5, np.nan)))
        with pytest.raises(TypeError, match=r"readout must be an array .* not list"):
            function(values, [1.0] * 5)


def test_bad_order_parameters_are_named():
    with pytest.raises(ValueError, match=r"order_parameter must have shape \(12, 12\), but has"):
        pk.head_scores(UNEQUAL, np.eye(6))
    with pytest.raises(ValueError, match=r"order_parameter must have shape .* \(12, 11\)"):
        pk.head_scores(UNEQUAL, np.ones((12, 11)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("entry", [np.nan, np.inf, 0.0])
def test_order_parameters_without_scores(entry):
    """One entry that is not finite leaves no sum to divide; so does a matrix of zeros."""
    u = np.zeros((12, 12))
    u[3, 3] = entry
    scores = pk.head_scores(UNEQUAL, u)
    assert scores.shape == (sum(UNEQUAL.heads),)
    assert np.isnan(scores).all()
