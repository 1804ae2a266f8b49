import formulas
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_core import (
    Network,
    Problem,
)
from pathkernel_core.action.coordinates import ChainCoordinates


@st.composite
def networks(draw):
    heads = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    positive = st.floats(0.2, 5.0)
    return Network(
        heads,
        draw(st.lists(st.floats(1.0, 1e3), min_size=len(heads) + 1, max_size=len(heads) + 1)),
        draw(st.lists(positive, min_size=len(heads) + 2, max_size=len(heads) + 2)),
        draw(st.integers(1, 2)),
    )


def order_parameters(chain, coordinates):
    factors = chain.factors(chain.relative_factors(coordinates))
    return [factor @ factor.T for factor in factors]


@given(networks(), st.integers(0, 2**32 - 1))
def test_round_trip(network, seed):
    generator = np.random.default_rng(seed)
    chain = ChainCoordinates(network)
    coordinates = 0.3 * generator.standard_normal(chain.gp_limit.shape)
    back = chain.from_factors(chain.factors(chain.relative_factors(coordinates)))
    np.testing.assert_allclose(back, coordinates, rtol=1e-6, atol=1e-6)

    matrices = formulas.random_chain(network, generator)
    factors = [np.linalg.cholesky(matrix) for matrix in matrices]
    repeated = order_parameters(chain, chain.from_factors(factors))
    for actual, expected in zip(repeated, matrices):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def test_factors_are_triangular_with_a_positive_diagonal(network, generator):
    chain = ChainCoordinates(network)
    coordinates = 0.3 * generator.standard_normal(chain.gp_limit.shape)
    for factor, size in zip(chain.factors(chain.relative_factors(coordinates)), network.sizes):
        assert factor.shape == (size, size)
        np.testing.assert_array_equal(factor, np.tril(factor))
        assert (np.diagonal(factor) > 0).all()


def test_the_origin_is_the_gaussian_process_limit(network):
    chain = ChainCoordinates(network)
    for actual, expected in zip(order_parameters(chain, chain.gp_limit), formulas.limit(network)):
        np.testing.assert_allclose(actual, expected, rtol=1e-15)
    np.testing.assert_allclose(
        network.limit_diagonal, np.diag(formulas.limit(network)[0]), rtol=1e-15
    )


def test_entropy_is_that_of_the_order_parameters(network, generator):
    chain = ChainCoordinates(network)
    coordinates = 0.5 * generator.standard_normal(chain.gp_limit.shape)
    actual = chain.entropy(coordinates) * max(network.widths)
    expected = formulas.entropy(np, network, order_parameters(chain, coordinates)).real
    assert actual == pytest.approx(expected, rel=1e-12)
    expected -= formulas.entropy(np, network, formulas.limit(network)).real
    assert chain.excess_entropy(coordinates) == pytest.approx(expected, rel=1e-11)
    assert chain.excess_entropy(chain.gp_limit) == 0.0


def test_entropy_is_minus_twice_the_log_prior():
    """With respect to dU/|U|^((m+1)/2) the Wishart hierarchy has the density exp(-S/2)/Z."""
    network = Network((2, 2), (9, 11, 8), (1.0, 0.6, 1.7, 1.2), outputs=2)
    coordinates, generator = ChainCoordinates(network), np.random.default_rng(3)
    constants = []
    for _ in range(5):
        chain = formulas.random_chain(network, generator)
        log_prior = 0.0
        for level, matrix in enumerate(chain):
            if level < network.n_layers:
                scale = np.kron(np.eye(network.heads[level]), chain[level + 1])
            else:
                scale = np.eye(network.outputs)
            degrees = network.widths[level]
            scale = network.variances[1 + level] * scale / degrees
            log_prior += scipy.stats.wishart.logpdf(matrix, degrees, scale)
            log_prior += (len(matrix) + 1) / 2 * np.linalg.slogdet(matrix)[1]
        vector = coordinates.from_factors([np.linalg.cholesky(matrix) for matrix in chain])
        constants.append(log_prior + coordinates.excess_entropy(vector) / 2)
    np.testing.assert_allclose(constants, constants[0], rtol=1e-12)


def chain_from_vector(xp, network, vector):
    """U_1, …, u_a from the coordinates, as the module's description defines them."""
    sizes, start, relative = network.sizes, 0, []
    for size in sizes:
        rows, columns = np.tril_indices(size)
        indices = np.zeros((len(rows), size, size))
        indices[np.arange(len(rows)), rows, columns] = 1.0
        on_diagonal = xp.asarray((rows == columns).astype(float))
        part = vector[start : start + len(rows)]
        part = on_diagonal * xp.exp(part) + (1 - on_diagonal) * part
        indices = xp.asarray(indices)
        if xp is np:
            indices = indices.astype(complex)
        relative.append(xp.einsum("k,kij->ij", part, indices))
        start += len(rows)
    factor = network.variances[-1] ** 0.5 * relative[-1]
    factors = [factor]
    for layer in reversed(range(len(network.heads))):
        eye = xp.asarray(np.eye(network.heads[layer]))
        factor = network.variances[1 + layer] ** 0.5 * (xp.kron(eye, factor) @ relative[layer])
        factors.insert(0, factor)
    return [factor @ factor.T for factor in factors]


def test_action_gradient_is_a_derivative(network, generator, derivative):
    xi, labels = formulas.random_examples(network, 6, 3, generator)
    temperature, width = 0.2, max(network.widths)
    chain = ChainCoordinates(network)
    vector = 0.4 * generator.standard_normal(chain.gp_limit.shape)
    (expected,) = derivative(
        lambda xp, arrays: formulas.action(
            xp, network, chain_from_vector(xp, network, arrays[0]), xi, labels, temperature
        ),
        [vector],
    )
    relative = chain.relative_factors(vector)
    factors = chain.factors(relative)
    _, gradient = Problem(xi, labels).energy_and_gradient(
        factors[0] @ factors[0].T, temperature, network.variances[0]
    )
    actual = chain.gradient(vector, relative, factors, gradient / width)
    assert formulas.relative_error(actual * width, expected) < 1e-11


def test_largest_slope_is_that_of_the_order_parameters(network, generator):
    chain = ChainCoordinates(network)
    vector = 0.4 * generator.standard_normal(chain.gp_limit.shape)
    relative = chain.relative_factors(vector)
    factors = chain.factors(relative)
    energy = formulas.random_positive(network.sizes[0], generator)
    for scale in (0.0, 1.0):
        chain_at = [factor @ factor.T for factor in factors]
        first, *remaining = formulas.entropy_gradient(network, chain_at)
        slopes = [first / network.width + scale * energy, *(s / network.width for s in remaining)]
        actual = chain.largest_slope(vector, relative, factors, scale * energy)
        assert actual == pytest.approx(max(abs(slope).max() for slope in slopes), rel=1e-10)
    factors[0][-1, -1] = 0.0
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        chain.largest_slope(vector, relative, factors, energy)


def test_curvature_is_the_entropys_hessian_at_the_limit(network):
    chain = ChainCoordinates(network)
    nothing = np.zeros((network.sizes[0],) * 2)

    def gradient(coordinates):
        relative = chain.relative_factors(coordinates)
        return chain.gradient(coordinates, relative, chain.factors(relative), nothing)

    step = 1e-6
    for index, curvature in enumerate(chain.curvature):
        shifted = step * np.eye(len(chain.curvature))[index]
        slope = (gradient(shifted) - gradient(-shifted)) / (2 * step)
        np.testing.assert_allclose(slope[index], curvature, rtol=1e-6)
        np.testing.assert_allclose(np.delete(slope, index), 0.0, atol=1e-8)
