import math

import formulas
import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core import Network, Problem


@pytest.fixture
def examples(generator):
    return formulas.random_examples(Network((2, 2), 10), 9, 5, generator)


def test_total_kernel_is_the_sum_over_pairs_of_paths(library, generator, examples):
    xi, _ = examples
    second = generator.standard_normal((4, 4, 5))
    u = formulas.random_positive(4, generator)
    remote, u_there = library.array(xi), library.array(u)
    actual = library.numpy(pk.total_kernel(remote, u_there, library.array(second), variance=0.7))
    expected = formulas.kernel(xi, second, u, variance=0.7)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-13)
    actual = library.numpy(pk.total_kernel(remote, u_there))
    np.testing.assert_allclose(actual, formulas.kernel(xi, xi, u), rtol=0, atol=1e-13)


def test_path_kernels(library, generator, examples):
    xi, second = examples[0], generator.standard_normal((4, 4, 5))
    remote = library.array(xi)
    for path, path_dual in ((0, 0), (1, 3), (3, 1)):
        actual = library.numpy(pk.path_kernel(remote, library.array(second), path, path_dual))
        np.testing.assert_allclose(actual, xi[:, path] @ second[:, path_dual].T / 5, atol=1e-14)
    together = library.numpy(pk.same_path_kernels(remote))
    for path in range(4):
        np.testing.assert_allclose(together[path], xi[:, path] @ xi[:, path].T / 5, atol=1e-14)


def test_inputs_in_a_subspace_are_rotated_into_it(library, generator):
    network = Network((2,), 10)
    xi, labels = formulas.random_examples(network, 12, 20, generator, rank=3)
    problem = Problem(library.array(xi), library.array(labels))
    assert problem.n_features == 3
    assert problem.input_width == 20
    u = formulas.random_positive(2, generator)
    energy, _ = problem.energy_and_gradient(u, 0.1)
    assert energy == pytest.approx(formulas.energy(np, u, xi, labels, 0.1).real, rel=1e-12)


def test_zero_inputs_are_a_constant_kernel(library):
    """No information at all: the energy is P ln T + |Y|²/T and depends on no order parameter."""
    problem = Problem(library.array(np.zeros((4, 2, 3))), library.array(np.ones(4)))
    energy, gradient = problem.energy_and_gradient(np.eye(2), 0.5)
    assert energy == pytest.approx(4 * math.log(0.5) + 4 / 0.5)
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize(("examples", "space"), [(10, "examples"), (400, "features")])
def test_auto_takes_the_smaller_factorisation(examples, space, generator):
    xi, labels = formulas.random_examples(Network((2, 2), 10), examples, 4, generator)
    assert Problem(xi, labels).space == space


def test_the_caller_keeps_its_arrays(generator, examples):
    xi, labels = examples
    before = xi.copy(), labels.copy()
    for space in ("examples", "features", "kernels"):
        problem = Problem(xi, labels, space)
        pk.minimise_action(problem, Network((2, 2), 10), 0.1).predict(xi)
    np.testing.assert_array_equal(xi, before[0])
    np.testing.assert_array_equal(labels, before[1])


def test_integer_labels_are_numbers_like_any_other(library):
    xi = library.array(np.eye(3)[:, None, :])
    complete = library.array([1, -1, 1], "int64")
    actual = Problem(xi, complete).energy_and_gradient(np.eye(1), 1.0)
    expected = Problem(xi, library.array([1.0, -1.0, 1.0])).energy_and_gradient(np.eye(1), 1.0)
    assert actual[0] == expected[0]


def test_bad_examples_are_named(library):
    array = library.array
    xi, labels = array(np.ones((3, 2, 4))), array(np.ones(3))
    nan = np.ones((3, 2, 4))
    nan[0, 0, 0] = np.nan
    cases = [
        (
            (array(np.ones((3, 4))), labels),
            r"xi must have shape \(P, n, N_0\), but has \(3, 4\)",
        ),
        ((xi, array(np.ones((3, 1, 1)))), r"labels must have shape \(P,\) or \(P, C\), but has"),
        ((xi, array(np.ones(2))), r"labels holds 2 examples, but xi of shape \(3, 2, 4\) holds 3"),
        ((array(np.ones((0, 2, 4))), array(np.ones(0))), "is empty: P must not be 0"),
        (
            (array(nan), labels),
            r"xi of shape \(3, 2, 4\) holds NaN or infinity in .* first at index \(0, ",
        ),
        ((xi, array([1.0, np.inf, 1.0])), r"labels of shape \(3,\) holds NaN or infinity"),
        (
            (xi, labels, "fourier"),
            'space must be "auto", "examples", "features" or "kernels", not \'fourier\'',
        ),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            Problem(*arguments)
    for arguments, message in [
        (([[[1.0]]], labels), "xi must be an array .* not list"),
        ((xi, [1.0, 1.0, 1.0]), "labels must be an array .* not list"),
        (
            (array(np.ones((3, 2, 4)), "complex128"), labels),
            "xi must be float64 or float32.*complex128",
        ),
    ]:
        with pytest.raises(TypeError, match=message):
            Problem(*arguments)
    if library.name != "numpy":
        with pytest.raises(
            TypeError, match=r"xi is an array of .* but labels is an array of numpy"
        ):
            Problem(xi, np.ones(3))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "paths must be a non-empty list of path indices"),
        ([[0]], "paths must be a non-empty list of path indices"),
        ([0.5], "paths must be a non-empty list of path indices"),
        ([True, False], "paths must be a non-empty list of path indices"),
        ([0, 4], r"paths must lie between 0 and 3, but has \[0, 4\]"),
        ([-1], r"paths must lie between 0 and 3, but has \[-1\]"),
        ([1, 1], r"paths must name each path once, but has \[1, 1\]"),
    ],
)
def test_bad_paths_are_named(examples, paths, message):
    with pytest.raises(ValueError, match=message):
        Problem(*examples).keep_paths(paths)


def test_bad_points_are_named(examples):
    problem, u = Problem(*examples), np.eye(4)
    for temperature in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"temperature must be positive .* {temperature!r}"):
            problem.energy_and_gradient(u, temperature)
    with pytest.raises(TypeError, match="temperature must be one number, but is 'cold'"):
        problem.energy_and_gradient(u, "cold")
    with pytest.raises(ValueError, match="variance must be positive and finite, but is 0"):
        problem.energy_and_gradient(u, 1.0, 0)
    message = (
        r"order_parameter must have shape \(4, 4\) for 4 paths and 1 outputs, but has \(3, 3\)"
    )
    with pytest.raises(ValueError, match=message):
        problem.energy_and_gradient(np.eye(3), 1.0)
    message = "order_parameter is not positive definite: its smallest eigenvalue is -0.5"
    with pytest.raises(pk.NotPositiveDefiniteError, match=message):
        problem.energy_and_gradient(np.diag([1, 1, 1, -0.5]), 1.0)
    with pytest.raises(ValueError, match=r"order_parameter .* holds NaN or infinity"):
        problem.energy_and_gradient(np.full((4, 4), np.nan), 1.0)


@pytest.mark.parametrize(
    "function",
    [
        pk.same_path_kernels,
        lambda xi: pk.path_kernel(xi, xi, 0, 1),
        lambda xi: pk.total_kernel(xi, np.eye(2)),
    ],
)
def test_kernels_of_nan_are_refused(library, function):
    xi = np.ones((3, 2, 4))
    xi[1, 0, 2] = np.nan
    with pytest.raises(ValueError, match=r"xi of shape \(3, 2, 4\) holds NaN or infinity"):
        function(library.array(xi))


def test_masked_arrays_are_refused():
    """Their mask would be lost, and what it hides be taken for data."""
    xi, labels = np.ones((3, 2, 4)), np.ma.masked_equal([1.0, -1.0, 9.0], 9.0)
    with pytest.raises(TypeError, match=r"labels of shape \(3,\) is a masked array"):
        Problem(xi, labels)
    with pytest.raises(TypeError, match=r"xi of shape \(3, 2, 4\) is a masked array"):
        Problem(np.ma.masked_array(xi), np.ones(3))


def test_an_order_parameter_must_be_real_and_symmetric(generator):
    problem = Problem(generator.standard_normal((5, 2, 3)), np.ones(5))
    with pytest.raises(TypeError, match="order_parameter must be float64 or float32"):
        problem.energy_and_gradient(np.eye(2) * (1 + 1j), 0.1)
    with pytest.raises(ValueError, match=r"order_parameter must be symmetric.*up to 0\.3"):
        problem.energy_and_gradient(np.array([[1.0, 0.3], [0.0, 1.0]]), 0.1)
