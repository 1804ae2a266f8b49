import tracemalloc

import formulas
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_core import (
    Network,
    NotPositiveDefiniteError,
    Problem,
    minimise_action,
    same_path_kernels,
)
from pathkernel_core.arrays.backend import array_namespace, compile_function
from pathkernel_core.energy.kernel_space import KernelSpace

SPACES = ("examples", "features", "kernels")


def in_all(library, xi, labels):
    xi, labels = library.array(xi), library.array(labels)
    return [Problem(xi, labels, space) for space in SPACES]


# sizes are few, and those of the predictor's tests, as JAX compiles anew for each
@pytest.mark.slow_on_jax(examples=(1, 4))
@pytest.mark.parametrize("examples", [1, 4, 25])  # D = n·N_0 lies between 4 and 24
def test_energy_is_the_dense_formula(library, network, generator, examples):
    xi, labels = formulas.random_examples(network, examples, 4, generator)
    u = formulas.random_positive(network.sizes[0], generator)
    for temperature in (0.01, 1.0):
        reference = formulas.energy(np, u, xi, labels, temperature, network.variances[0]).real
        for problem in in_all(library, xi, labels):
            actual, gradient = problem.energy_and_gradient(u, temperature, network.variances[0])
            assert isinstance(actual, float)
            assert isinstance(gradient, np.ndarray)
            assert actual == pytest.approx(reference, rel=1e-11), problem.space


@pytest.mark.slow_on_jax(examples=(30,))
@pytest.mark.parametrize("examples", [3, 30])
def test_energy_gradient_is_a_derivative(network, generator, derivative, examples):
    xi, labels = formulas.random_examples(network, examples, 3, generator)
    u = formulas.random_positive(network.sizes[0], generator)
    temperature, variance = 0.2, network.variances[0]
    (reference,) = derivative(
        lambda xp, arrays: formulas.energy(xp, arrays[0], xi, labels, temperature, variance), [u]
    )
    for space in SPACES:
        problem = Problem(xi, labels, space)
        _, actual = problem.energy_and_gradient(u, temperature, variance)
        assert formulas.relative_error(actual, reference) < 1e-10


@pytest.mark.slow_on_jax(examples=(4,))
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("examples", [4, 25])
def test_spaces_agree(library, network, generator, examples, rank):
    xi, labels = formulas.random_examples(network, examples, 4, generator, rank)
    u = formulas.random_positive(network.sizes[0], generator)
    first, *remaining = (
        problem.energy_and_gradient(u, 0.1) for problem in in_all(library, xi, labels)
    )
    for two in remaining:
        assert first[0] == pytest.approx(two[0], rel=1e-12)
        assert formulas.relative_error(first[1], two[1]) < 1e-11


@pytest.mark.parametrize("outputs", [1, 2])
def test_many_paths_are_mixed_in_blocks(library, generator, monkeypatch, outputs):
    """The same numbers, whatever is held at once."""
    network = Network((5,), 10, outputs=outputs)
    xi, labels = formulas.random_examples(network, 4, 3, generator)
    u = formulas.random_positive(network.sizes[0], generator)
    if library.name == "jax":
        pytest.skip("compiled code remembers the sizes of blocks")
    form = Problem(library.array(xi), library.array(labels), "examples")
    reference, want_gradient = form.energy_and_gradient(u, 0.1)
    monkeypatch.setattr("pathkernel_core.energy.examples.BLOCK", 2)
    monkeypatch.setattr("pathkernel_core.energy.examples.WHITENED", 2 * 4 * 5 * outputs**2)
    actual, gradient = form.energy_and_gradient(u, 0.1)
    assert actual == pytest.approx(reference, rel=1e-12)
    assert formulas.relative_error(gradient, want_gradient) < 1e-12
    root = np.linalg.qr(generator.standard_normal(u.shape))[0]  # of the same U, not triangular
    factor = library.array(np.linalg.cholesky(u) @ root)
    assert float(form.form.evaluate(factor, 0.1)[0]) == pytest.approx(reference, rel=1e-12)


@pytest.mark.slow_on_jax(outputs=(1,))
@pytest.mark.parametrize("outputs", [1, 2])
def test_spaces_have_one_minimum(library, generator, outputs):
    network = Network((2, 2), (9, 14, 11), (0.7, 1.3, 0.6, 1.9), outputs)
    xi, labels = formulas.random_examples(network, 10, 5, generator)
    new = library.array(generator.standard_normal((4, *xi.shape[1:])))
    first, *remaining = (
        minimise_action(problem, network, 0.1) for problem in in_all(library, xi, labels)
    )
    reference = first.predict(new)
    for second in remaining:
        assert second.action == pytest.approx(first.action, rel=1e-12)
        actual = second.predict(new)
        for ours, theirs in ((actual.mean, reference.mean), (actual.variance, reference.variance)):
            np.testing.assert_allclose(
                library.numpy(ours), library.numpy(theirs), rtol=1e-6, atol=1e-7
            )


@pytest.mark.parametrize("space", ["examples", "kernels"])
@pytest.mark.parametrize("columns", [1, 8])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_factor_may_be_singular_or_wide(library, generator, space, columns, outputs):
    """What the samplers ask of a space: any factor of the order parameter, and arrays back."""
    network = Network((3,), 10, outputs=outputs)
    xi, labels = formulas.random_examples(network, 7, 3, generator)
    factor = generator.standard_normal((network.sizes[0], columns))
    form = Problem(library.array(xi), library.array(labels), space).form
    evaluate = compile_function(form.evaluate, array_namespace(xi=library.array(xi)))
    energy, gradient = evaluate(library.array(factor), library.array(0.2))
    reference = formulas.energy(np, factor @ factor.T, xi, labels, 0.2).real
    assert float(energy) == pytest.approx(reference, rel=1e-11)
    nearby = factor @ factor.T + 1e-9 * np.eye(len(factor))
    _, regular = Problem(xi, labels, "examples").energy_and_gradient(nearby, 0.2)
    assert formulas.relative_error(library.numpy(gradient), regular) < 1e-6


def test_kernels_that_would_fill_the_memory_are_refused(library, monkeypatch):
    xi, labels = library.array(np.ones((50, 8, 1))), library.array(np.ones(50))
    packed = 36 * 51 * 25
    monkeypatch.setattr("pathkernel_core.energy.kernel_packing.MOST_KERNELS", packed)
    assert Problem(xi, labels, "kernels").form.kernels.shape == (36, 51 * 25)
    two = library.array(np.ones((50, 2)))
    message = (
        r"kernels of all pairs of 8 paths between 50 examples have 1\.6e\+05 elements, 0\.0012 "
    )
    with pytest.raises(ValueError, match=message):
        Problem(xi, two, "kernels")


@pytest.mark.parametrize(
    ("examples", "paths", "width", "outputs", "space"),
    [
        (100, 4, 231, 1, "kernels"),  # the hidden Markov task
        (100, 4, 100, 2, "examples"),  # not measured
        (100, 16, 16, 1, "examples"),
        (300, 8, 2, 1, "features"),
        (300, 40, 12, 1, "examples"),  # so many kernels that reading them takes longer
    ],
)
def test_the_cheapest_space_is_taken(generator, examples, paths, width, outputs, space):
    xi = generator.standard_normal((examples, paths, width))
    assert Problem(xi, np.ones((examples, outputs))).space == space


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
    (first, one_gradient), *remaining = (
        Problem(xi, labels, space).energy_and_gradient(u, 0.3) for space in SPACES
    )
    for two, two_gradient in remaining:
        assert first == pytest.approx(two, rel=1e-11, abs=1e-11)
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
        energy, gradient = Problem(xi, labels, space).energy_and_gradient(u, 0.3)
        shifted = Problem(xi[:, order], labels, space)
        permuted, second = shifted.energy_and_gradient(u[np.ix_(rows, rows)], 0.3)
        assert permuted == pytest.approx(energy, rel=1e-11)
        np.testing.assert_allclose(second, gradient[np.ix_(rows, rows)], rtol=1e-8, atol=1e-9)


@pytest.mark.slow_on_jax(examples=(40,))  # those of few examples compile as much
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("examples", [4, 40])
def test_a_network_with_fewer_paths(library, generator, examples, rank):
    """Dropping paths from a problem is the same as never having had them."""
    network = Network((2, 3), 10, outputs=2)
    xi, labels = formulas.random_examples(network, examples, 5, generator, rank)
    subset = [0, 2, 5]
    u = formulas.random_positive(6, generator)
    reference, want_gradient = Problem(xi[:, subset], labels).energy_and_gradient(u, 0.1)
    for problem in in_all(library, xi, labels):
        smaller = problem.keep_paths(subset)
        assert (smaller.n_paths, smaller.space) == (3, problem.space)
        actual, gradient = smaller.energy_and_gradient(u, 0.1)
        assert actual == pytest.approx(reference, rel=1e-11)
        assert formulas.relative_error(gradient, want_gradient) < 1e-10
        assert problem.n_paths == 6


@pytest.mark.parametrize("space", SPACES)
def test_a_kernel_that_rounding_made_singular_is_reported(library, space):
    xi, labels = library.array(np.ones((3, 1, 1))), library.array(np.ones(3))
    problem = Problem(2.0**40 * xi if space == "features" else xi, labels, space)
    if space == "features":  # one feature: its 1 × 1 matrix is singular at no temperature
        assert np.isfinite(problem.energy_and_gradient(np.eye(1), 1e-300)[1]).all()
        return
    message = "temperature 1e-300 is not positive definite .* smallest eigenvalue is .* raise the"
    with pytest.raises(NotPositiveDefiniteError, match=message):
        problem.energy_and_gradient(np.eye(1), 1e-300)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.filterwarnings("error:overflow|invalid value:RuntimeWarning")
def test_a_kernel_that_overflows_is_reported(library, space):
    xi = library.array(np.full((3, 1, 2), 1e200) * np.array([[[1.0, -1.0]]]))
    expected = {
        "examples": (NotPositiveDefiniteError, r"kernel overflows .* rescale the inputs"),
        "features": (ValueError, "a sum over examples .* overflows; rescale"),
    }
    error, message = expected.get(space, expected["examples"])
    with pytest.raises(error, match=message):
        Problem(xi, library.array(np.ones(3)), space).energy_and_gradient(np.eye(1), 1.0)


def test_kernels_of_many_paths_are_in_memory_once(generator):
    xi, labels = generator.standard_normal((40, 100, 3)), np.ones((40, 1))
    form = KernelSpace(xi, labels)
    tracemalloc.start()
    try:
        size = form.kernels.nbytes
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * size


def test_a_form_says_what_it_cannot_do(generator):
    xi, labels = formulas.random_examples(Network((2,), 10), 9, 3, generator)
    in_features, in_examples = (Problem(xi, labels, space) for space in ("features", "examples"))
    branches = Problem.from_kernels(same_path_kernels(xi), labels, branches=True)
    with pytest.raises(ValueError, match=r'cannot be evaluated .* space="examples"'):
        in_features.form.evaluate(np.eye(2), 0.1)
    for form in (in_features.form, in_examples.form, branches.form):
        with pytest.raises(ValueError, match=r"all pairs of paths; .* by Problem\.from_kernels"):
            _ = form.full_kernels
    for form in (in_features.branch_form, in_examples.branch_form, branches.form):
        assert not form.has_pairs
        with pytest.raises(ValueError, match="shared=True"):
            form.curvature(np.ones(2), 0.1)


def test_evaluations_one_after_another_are_those_of_one(generator):
    xi, labels = formulas.random_examples(Network((2,), 10), 9, 3, generator)
    form = Problem(xi, labels, "features").form
    assert not form.pays_together(100)
    points = [np.eye(2), 2 * np.eye(2)], [0.1, 0.2], [None, np.ones((2, 1))]
    for (energy, gradient), point in zip(form.energies_and_gradients(*points), zip(*points)):
        expected = form.energy_and_gradient(*point)
        assert energy == expected[0]
        np.testing.assert_array_equal(gradient, expected[1])
