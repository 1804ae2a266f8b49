import formulas
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_core import Network, NotPositiveDefiniteError, PathKernels

SPACES = ("examples", "features")


def both(library, xi, labels):
    xi, labels = library.array(xi), library.array(labels)
    return [PathKernels(xi, labels, space) for space in SPACES]


@pytest.mark.parametrize("examples", [1, 4, 40])  # D = n·N_0 lies between 3 and 18
def test_energy_is_the_dense_formula(library, network, generator, examples):
    xi, labels = formulas.random_examples(network, examples, 3, generator)
    u = formulas.random_positive(network.sizes[0], generator)
    for temperature in (0.01, 1.0):
        want = formulas.energy(np, u, xi, labels, temperature, network.variances[0]).real
        for problem in both(library, xi, labels):
            got, gradient = problem.energy_and_gradient(u, temperature, network.variances[0])
            assert isinstance(got, float)
            assert isinstance(gradient, np.ndarray)
            assert got == pytest.approx(want, rel=1e-11), problem.space


@pytest.mark.parametrize("examples", [3, 30])
def test_energy_gradient_is_a_derivative(network, generator, derivative, examples):
    xi, labels = formulas.random_examples(network, examples, 3, generator)
    u = formulas.random_positive(network.sizes[0], generator)
    temperature, variance = 0.2, network.variances[0]
    (want,) = derivative(
        lambda xp, arrays: formulas.energy(xp, arrays[0], xi, labels, temperature, variance), [u]
    )
    for space in SPACES:
        problem = PathKernels(xi, labels, space)
        _, got = problem.energy_and_gradient(u, temperature, variance)
        assert formulas.relative_error(got, want) < 1e-10


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("examples", [4, 40])
def test_spaces_agree(library, network, generator, examples, rank):
    xi, labels = formulas.random_examples(network, examples, 5, generator, rank)
    u = formulas.random_positive(network.sizes[0], generator)
    one, two = (problem.energy_and_gradient(u, 0.1) for problem in both(library, xi, labels))
    assert one[0] == pytest.approx(two[0], rel=1e-12)
    assert formulas.relative_error(one[1], two[1]) < 1e-11


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 15),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
def test_spaces_agree_on_any_shape(heads, outputs, examples, width, seed):
    network, generator = Network(heads, 10, outputs=outputs), np.random.default_rng(seed)
    xi, labels = formulas.random_examples(network, examples, width, generator)
    u = formulas.random_positive(network.sizes[0], generator)
    (one, one_gradient), (two, two_gradient) = (
        PathKernels(xi, labels, space).energy_and_gradient(u, 0.3) for space in SPACES
    )
    assert one == pytest.approx(two, rel=1e-11, abs=1e-11)
    np.testing.assert_allclose(one_gradient, two_gradient, rtol=1e-8, atol=1e-9)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_relabelling_paths_changes_nothing(count, outputs, seed):
    generator = np.random.default_rng(seed)
    network = Network((count, 2), 10, outputs=outputs)
    xi, labels = formulas.random_examples(network, 8, 3, generator)
    u = formulas.random_positive(network.sizes[0], generator)
    order = generator.permutation(network.n_paths)
    rows = (order[:, None] * outputs + np.arange(outputs)).ravel()
    for space in SPACES:
        energy, gradient = PathKernels(xi, labels, space).energy_and_gradient(u, 0.3)
        moved = PathKernels(xi[:, order], labels, space)
        permuted, other = moved.energy_and_gradient(u[np.ix_(rows, rows)], 0.3)
        assert permuted == pytest.approx(energy, rel=1e-11)
        np.testing.assert_allclose(other, gradient[np.ix_(rows, rows)], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("examples", [4, 40])
def test_a_network_with_fewer_paths(library, generator, examples, rank):
    """Dropping paths from a problem is the same as never having had them."""
    network = Network((2, 3), 10, outputs=2)
    xi, labels = formulas.random_examples(network, examples, 5, generator, rank)
    kept = [0, 2, 5]
    u = formulas.random_positive(6, generator)
    want, want_gradient = PathKernels(xi[:, kept], labels).energy_and_gradient(u, 0.1)
    for problem in both(library, xi, labels):
        smaller = problem.keep_paths(kept)
        assert (smaller.n_paths, smaller.space) == (3, problem.space)
        got, gradient = smaller.energy_and_gradient(u, 0.1)
        assert got == pytest.approx(want, rel=1e-11)
        assert formulas.relative_error(gradient, want_gradient) < 1e-10
        assert problem.n_paths == 6


@pytest.mark.parametrize("space", SPACES)
def test_a_kernel_that_rounding_made_singular_is_reported(library, space):
    xi, labels = library.array(np.ones((3, 1, 1))), library.array(np.ones(3))
    problem = PathKernels(2.0**40 * xi if space == "features" else xi, labels, space)
    if space == "features":  # one feature: its 1 × 1 matrix is singular at no temperature
        assert np.isfinite(problem.energy_and_gradient(np.eye(1), 1e-300)[1]).all()
        return
    message = "temperature 1e-300 is not positive definite .* smallest eigenvalue is .* raise the"
    with pytest.raises(NotPositiveDefiniteError, match=message):
        problem.energy_and_gradient(np.eye(1), 1e-300)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
def test_a_kernel_that_overflows_is_reported(library, space):
    xi = library.array(np.full((3, 1, 2), 1e200) * np.array([[[1.0, -1.0]]]))
    expected = {
        "examples": (NotPositiveDefiniteError, r"kernel overflows .* rescale the inputs"),
        "features": (ValueError, "gram .* holds NaN or infinity"),
    }
    error, message = expected[space]
    with pytest.raises(error, match=message):
        PathKernels(xi, library.array(np.ones(3)), space).energy_and_gradient(np.eye(1), 1.0)
