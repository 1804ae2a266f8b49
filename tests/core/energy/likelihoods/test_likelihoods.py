"""Likelihoods: their derivatives, averages and checks of labels."""

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

import pathkernel_core as pk
from pathkernel_core.energy.likelihoods import LIKELIHOODS, LOGISTIC, SOFTMAX
from pathkernel_core.energy.likelihoods.averages import average_sigmoid, average_softmax

OF_CLASSES = [name for name, likelihood in LIKELIHOODS.items() if not likelihood.is_gaussian]


def outputs_and_targets(name, examples=5, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    if name == "logistic":
        return scale * rng.normal(size=(examples, 1)), rng.choice([-1.0, 1.0], size=(examples, 1))
    targets = np.eye(4)[rng.integers(4, size=examples)]
    return scale * rng.normal(size=(examples, 4)), targets


@pytest.mark.parametrize("name", OF_CLASSES)
def test_derivatives_agree_with_differences(name, library):
    likelihood = LIKELIHOODS[name]
    f, targets = outputs_and_targets(name)

    def numbers(function, *arrays):
        results = function(*map(library.array, arrays))
        results = results if isinstance(results, tuple) else (results,)
        return [library.numpy(result) for result in results]

    gradient, roots = numbers(likelihood.derivatives, f, targets)
    curvature = roots @ roots.transpose(0, 2, 1)
    covariances = np.random.default_rng(1).normal(size=(len(f), f.shape[1], f.shape[1]))
    covariances = covariances + covariances.transpose(0, 2, 1)
    (slope,) = numbers(likelihood.curvature_slope, f, targets, covariances)
    step = 1e-4
    for index in np.ndindex(f.shape):
        moved = [f.copy(), f.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        (up,), (down,) = (numbers(likelihood.log_density, m, targets) for m in moved)
        assert (up - down) / (2 * step) == pytest.approx(gradient[index], abs=1e-7)
        (up, up_root), (down, down_root) = (
            numbers(likelihood.derivatives, m, targets) for m in moved
        )
        example, output = index
        change = -(up - down)[example] / (2 * step)
        np.testing.assert_allclose(change, curvature[example, output], atol=1e-7)
        squares = [root[example] @ root[example].T for root in (up_root, down_root)]
        of_curvature = (squares[0] - squares[1]) / (2 * step)
        traced = np.sum(covariances[example] * of_curvature)
        assert traced == pytest.approx(slope[index], abs=1e-6)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_logits_of_a_thousand_keep_their_digits(name):
    likelihood = LIKELIHOODS[name]
    f, targets = outputs_and_targets(name, scale=1000.0)
    gradient, roots = likelihood.derivatives(f, targets)
    for array in (gradient, roots, likelihood.log_density(f, targets)):
        assert np.isfinite(array).all()
    sure = np.array([[40.0]]) if name == "logistic" else np.array([[40.0, 0.0]])
    row = np.array([[1.0]]) if name == "logistic" else np.array([[1.0, 0.0]])
    gradient, roots = likelihood.derivatives(sure, row)
    # 1 − p = e⁻⁴⁰, far below the rounding of p
    assert gradient[0, 0] == pytest.approx(np.exp(-40), rel=1e-12)
    assert (roots @ roots.transpose(0, 2, 1))[0, 0, 0] == pytest.approx(np.exp(-40), rel=1e-12)


@given(st.floats(-30, 30), st.floats(-4, 3.5))
def test_average_of_the_sigmoid_is_that_of_an_adaptive_quadrature(mean, log_deviation):
    deviation = 10.0**log_deviation

    def integrand(f):
        return scipy.special.expit(f) * scipy.stats.norm.pdf(f, mean, deviation)

    points = sorted({0.0, mean, mean - 3 * deviation, mean + 3 * deviation, -5.0, 5.0})
    ends = mean - 12 * deviation, mean + 12 * deviation
    points = [point for point in points if ends[0] < point < ends[1]]
    exact, _ = scipy.integrate.quad(integrand, *ends, points=points, limit=500, epsabs=1e-13)
    value, error = average_sigmoid(np.array([mean]), np.array([deviation**2]))
    assert abs(value[0] - exact) <= error[0] + 1e-9
    assert error[0] < 1e-9 or deviation > 300


def test_average_of_the_softmax_is_within_its_error(library):
    rng = np.random.default_rng(0)
    mean, factor = 2 * rng.normal(size=(6, 3)), rng.normal(size=(6, 3, 3))
    covariances = (
        factor @ factor.transpose(0, 2, 1) * np.array([0.1, 1, 1, 4, 10, 0])[:, None, None]
    )
    value, error = (
        library.numpy(a) for a in average_softmax(library.array(mean), library.array(covariances))
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    z = np.array(np.meshgrid(nodes, nodes, nodes)).reshape(3, -1)
    weights = np.prod(np.meshgrid(weights, weights, weights), axis=0).reshape(-1)
    weights = weights / weights.sum()
    for example in range(6):
        values, vectors = np.linalg.eigh(covariances[example])
        root = vectors * np.sqrt(np.maximum(values, 0))
        exact = scipy.special.softmax(mean[example][:, None] + root @ z, axis=0) @ weights
        allowed = 6 * error[example] + 1e-6  # of a grid and of eight sets' spread
        assert (abs(value[example] - exact) <= allowed).all()
    assert error.max() < 1e-3
    np.testing.assert_allclose(value.sum(axis=1), 1, rtol=1e-13)


def test_renumbered_classes_have_renumbered_averages():
    rng = np.random.default_rng(0)
    mean, factor = rng.normal(size=(4, 5)), rng.normal(size=(4, 5, 5))
    covariances = factor @ factor.transpose(0, 2, 1)
    order = rng.permutation(5)
    value, error = average_softmax(mean, covariances)
    other, other_error = average_softmax(mean[:, order], covariances[:, order][:, :, order])
    np.testing.assert_allclose(other, value[:, order], rtol=1e-12)
    np.testing.assert_allclose(other_error, error[:, order], rtol=1e-6)


XI = np.random.default_rng(0).normal(size=(4, 2, 3))
WRONG = {
    "floats": ("softmax", np.array([0.0, 1.0, 2.0, 1.0]), "as integers.*float64"),
    "truth values": ("softmax", np.array([True, False, True, True]), "as integers.*bool"),
    "from one": ("softmax", np.array([1, -1, 1, 1]), 'between -1 and 1.*likelihood="logistic"'),
    "years": ("softmax", np.array([2021, 2022, 20230, 2024]), "between 2021 and 20230"),
    "one class": ("softmax", np.zeros(4, dtype=int), "all of class 0"),
    "few": ("softmax", np.array([0, 1, 2]), r"shape \(4,\), a class for each example of xi"),
    "names": ("softmax", np.array(["a", "b", "c", "a"]), "number their names, numpy.unique"),
    "scores": ("softmax", np.full((4, 2), 0.5), "rows of 0 and a single 1"),
    "one column": ("softmax", np.ones((4, 1)), "at least two classes"),
    "zeros and ones": ("logistic", np.array([0, 1, 1, 0]), "−1 or 1.*2 \\* labels - 1"),
    "classes": ("logistic", np.array([1, 2, -1, 1]), "−1 or 1, but 1 of 4 are not, such as 2"),
    "columns": ("logistic", np.ones((4, 2)), 'several classes take likelihood="softmax"'),
    "name": ("probit", np.ones(4), 'one of "squared", "logistic", "softmax", not \'probit\''),
}


@pytest.mark.parametrize("case", WRONG)
def test_labels_of_another_kind_are_refused_with_the_remedy(case):
    name, labels, message = WRONG[case]
    kernels = np.einsum("api,bqi->pqab", XI, XI)
    with pytest.raises(ValueError, match=message):
        pk.Problem(XI, labels, likelihood=name)
    with pytest.raises(ValueError, match=message.replace("of xi", "of kernels")):
        pk.Problem.from_kernels(kernels, labels, likelihood=name)


def test_classes_have_no_temperature_and_the_squared_loss_has_one():
    classes = pk.Problem(XI, np.array([0, 1, 2, 1]), likelihood="softmax")
    squared = pk.Problem(XI, np.array([1.0, -1, 1, 1]))
    for solve in (pk.minimise_action, pk.gp_limit):
        with pytest.raises(ValueError, match=r"temperature must be left out.*softmax"):
            solve(classes, pk.Network((2,), 10, outputs=3), 0.1)
        with pytest.raises(ValueError, match="temperature is missing"):
            solve(squared, pk.Network((2,), 10))
    assert np.isnan(pk.gp_limit(classes, pk.Network((2,), 10, outputs=3)).temperature)
    assert LOGISTIC.is_gaussian is SOFTMAX.is_gaussian is False
