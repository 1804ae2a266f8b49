import formulas
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import pathkernel_core as pk


def predictions(library, network, xi, labels, new, temperature, space):
    problem = pk.Problem(library.array(xi), library.array(labels), space)
    solution = pk.minimise_action(problem, network, temperature)
    prediction = solution.predict(library.array(new))
    u = library.numpy(solution.order_parameter)
    return u, library.numpy(prediction.mean), library.numpy(prediction.variance)


@pytest.mark.slow_on_jax(examples=(4,))
@pytest.mark.parametrize("space", ["examples", "features"])
@pytest.mark.parametrize(("examples", "rank"), [(4, None), (25, None), (25, 2)])
def test_predictions_are_the_gaussian_process(library, network, generator, space, examples, rank):
    """Also for new inputs outside the span of the training inputs."""
    xi, labels = formulas.random_examples(network, examples, 4, generator, rank)
    new = generator.standard_normal((7, network.n_paths, 4))
    u, mean, variance = predictions(library, network, xi, labels, new, 0.3, space)
    want_mean, want_variance = formulas.gaussian_process(
        xi, labels, new, u, 0.3, network.variances[0]
    )
    shape = (7,) if network.outputs == 1 else (7, network.outputs)
    np.testing.assert_allclose(mean, want_mean.reshape(shape), rtol=0, atol=1e-11)
    np.testing.assert_allclose(variance, want_variance.reshape(shape), rtol=0, atol=1e-11)


@pytest.mark.parametrize("space", ["examples", "features"])
@pytest.mark.parametrize("rank", [None, 2])
def test_the_mean_alone_is_the_gaussian_process(library, network, generator, space, rank):
    """Also for new inputs outside the span of the training inputs."""
    xi, labels = formulas.random_examples(network, 25, 4, generator, rank)
    new = generator.standard_normal((7, network.n_paths, 4))
    solution = pk.gp_limit(
        pk.Problem(library.array(xi), library.array(labels), space), network, 0.3
    )
    u = library.numpy(solution.order_parameter)
    reference, _ = formulas.gaussian_process(xi, labels, new, u, 0.3, network.variances[0])
    mean = library.numpy(solution.predict_mean(library.array(new)))
    shape = (7,) if network.outputs == 1 else (7, network.outputs)
    np.testing.assert_allclose(mean, reference.reshape(shape), rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match=r"xi must have shape \(P_new, \d+, \d+\)"):
        solution.predict_mean(library.array(new[0]))


@pytest.mark.parametrize("space", ["examples", "features"])
def test_certain_where_the_labels_are_exact(library, generator, space):
    network = pk.Network((2,), 10)
    xi, labels = formulas.random_examples(network, 4, 6, generator)
    # colder, rounding may end the descent before its tolerance
    _, mean, variance = predictions(library, network, xi, labels, xi, 1e-4, space)
    np.testing.assert_allclose(mean, labels, atol=1e-3)
    assert (variance >= 0).all()
    assert variance.max() < 1e-3


def test_batches_change_no_prediction(library, generator, monkeypatch):
    network = pk.Network((2,), 10, outputs=2)
    xi, labels = formulas.random_examples(network, 8, 3, generator)
    problem = pk.Problem(library.array(xi), library.array(labels))
    solution = pk.minimise_action(problem, network, 0.1)
    complete = solution.predict(library.array(xi))
    monkeypatch.setattr("pathkernel_core.action.solution.PREDICTION_ELEMENTS", 18)
    parts = solution.predict(library.array(xi))
    for first, two in ((complete.mean, parts.mean), (complete.variance, parts.variance)):
        np.testing.assert_allclose(library.numpy(first), library.numpy(two), atol=1e-14)


def test_predicting_twice_and_from_a_sub_network(library, generator):
    network = pk.Network((2, 2), 20)
    xi, labels = formulas.random_examples(network, 12, 5, generator, rank=3)
    new = generator.standard_normal((3, 4, 5))
    subset = network.paths_through(((1,), (1, 2)))
    smaller = network.keep_heads(((1,), (1, 2)))
    problem = pk.Problem(library.array(xi), library.array(labels)).keep_paths(subset)
    solution = pk.minimise_action(problem, smaller, 0.1)
    actual = solution.predict(library.array(new[:, subset]))
    u = library.numpy(solution.order_parameter)
    mean, variance = formulas.gaussian_process(xi[:, subset], labels, new[:, subset], u, 0.1)
    np.testing.assert_allclose(library.numpy(actual.mean), mean[:, 0], atol=1e-11)
    np.testing.assert_allclose(library.numpy(actual.variance), variance[:, 0], atol=1e-11)
    repeated = solution.predict(library.array(new[:, subset]))
    np.testing.assert_array_equal(library.numpy(repeated.mean), library.numpy(actual.mean))


def test_bad_new_examples_are_named(library, generator):
    network = pk.Network((2,), 10)
    xi, labels = formulas.random_examples(network, 5, 3, generator)
    solution = pk.gp_limit(pk.Problem(library.array(xi), library.array(labels)), network, 1.0)
    for shape in ((4, 3), (4, 3, 3)):
        with pytest.raises(ValueError, match=r"xi must have shape \(P_new, \d+, \d+\), but has"):
            solution.predict(library.array(np.ones(shape)))
    for shape in ((4, 1, 3), (4, 2, 2)):
        for predict in (solution.predict, solution.predict_mean):
            message = r"xi must have shape \(P_new, 2, 3\), but has.*; pass tokens through att"
            with pytest.raises(ValueError, match=message):
                predict(library.array(np.ones(shape)))
    with pytest.raises(ValueError, match=r"xi .* holds NaN or infinity"):
        solution.predict(library.array(np.full((1, 2, 3), np.nan)))
    with pytest.raises(TypeError, match=r"xi must be an array .* not list"):
        solution.predict([[[1.0]]])
    if library.name != "numpy":
        with pytest.raises(TypeError, match=r"xi is an array of numpy but training is an array of"):
            solution.predict(np.ones((4, 2, 3)))


def test_accuracy_of_signs(library):
    mean = library.array([0.3, -2.0, 0.1, -0.1, 0.0])
    labels = library.array([1.0, -1.0, -1.0, -1.0, 1.0])
    assert pk.accuracy(mean, labels) == pytest.approx(3 / 5)  # a mean of zero decides nothing
    assert pk.accuracy(mean[:, None], labels[:, None]) == pytest.approx(3 / 5)


def test_accuracy_of_several_outputs(library):
    mean = library.array([[0.1, 0.3, 0.2], [0.9, 0.3, 0.2], [0.1, 0.2, 0.3]])
    labels = library.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert pk.accuracy(mean, labels) == pytest.approx(2 / 3)


def test_bad_accuracies_are_named(library):
    with pytest.raises(ValueError, match=r"labels must have the shape of mean, \(2,\), but has"):
        pk.accuracy(library.array([1.0, 1.0]), library.array([[1.0], [1.0]]))
    with pytest.raises(ValueError, match="mean has no examples"):
        pk.accuracy(library.array(np.ones(0)), library.array(np.ones(0)))
    with pytest.raises(TypeError, match=r"mean must be an array .* not list"):
        pk.accuracy([1.0], library.array([1.0]))


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_overlaps_are_the_labels_in_the_eigenbasis(examples, seed):
    generator = np.random.default_rng(seed)
    kernel = formulas.random_positive(examples, generator)
    labels = generator.standard_normal(examples)
    alignment = pk.kernel_task_alignment(kernel, labels)
    assert (alignment.overlaps**2).sum() == pytest.approx(1.0)
    assert (np.diff(alignment.eigenvalues) <= 0).all()
    # Yᵀ K Y in the eigenbasis
    quadratic = (alignment.eigenvalues * alignment.overlaps**2).sum() * (labels @ labels)
    assert quadratic == pytest.approx(labels @ kernel @ labels)


def test_alignment_with_an_eigenvector(library, generator):
    kernel = formulas.random_positive(6, generator)
    values, vectors = np.linalg.eigh(kernel)
    labels = library.array(-3 * vectors[:, 4])  # the second largest
    alignment = pk.kernel_task_alignment(library.array(kernel), labels, components=3)
    np.testing.assert_allclose(alignment.eigenvalues, values[:2:-1], rtol=1e-12)
    np.testing.assert_allclose(alignment.overlaps, [0, 1, 0], atol=1e-12)


def test_bad_alignments_are_named(library):
    with pytest.raises(ValueError, match=r"kernel must have shape \(P, P\) and labels \(P,\)"):
        pk.kernel_task_alignment(library.array(np.ones((2, 3))), library.array(np.ones(2)))
    with pytest.raises(ValueError, match=r"but have \(2, 2\) and \(2, 1\)"):
        pk.kernel_task_alignment(library.array(np.eye(2)), library.array(np.ones((2, 1))))


def test_labels_of_zero_are_refused(library):
    with pytest.raises(ValueError, match="such as ±1, but contain 0"):
        pk.accuracy(library.array(np.ones(3)), library.array(np.array([1.0, 0.0, 1.0])))


def test_an_empty_test_set_is_named(library, generator):
    network = pk.Network((2,), 10)
    xi, labels = formulas.random_examples(network, 5, 3, generator)
    kernels = np.einsum("api,bqi->pqab", xi, xi)
    of_inputs = pk.gp_limit(pk.Problem(library.array(xi), library.array(labels)), network, 1.0)
    given = pk.Problem.from_kernels(library.array(kernels), library.array(labels))
    of_kernels = pk.gp_limit(given, network, 1.0)
    none, cross, own = (library.array(np.empty(s)) for s in ((0, 2, 3), (2, 2, 0, 5), (2, 2, 0)))
    for call in (lambda: of_inputs.predict(none), lambda: of_inputs.predict_mean(none)):
        with pytest.raises(ValueError, match=r"xi of shape \(0, 2, 3\) has no examples; give at"):
            call()
    for call in (lambda: of_kernels.predict(cross, own), lambda: of_kernels.predict_mean(cross)):
        with pytest.raises(ValueError, match=r"cross of shape .* has no new examples; give at"):
            call()


def test_predictions_that_overflow_are_refused(library, generator):
    network = pk.Network((2,), 10)
    xi, labels = formulas.random_examples(network, 5, 3, generator)
    problem = pk.Problem(library.array(xi), library.array(1e9 * labels))
    solution = pk.gp_limit(problem, network, 1.0)
    with pytest.raises(ValueError, match=r"the predictor's variance of shape .* overflows"):
        solution.predict(library.array(1e200 * xi))
    with pytest.raises(ValueError, match=r"the predictor's mean of shape .* overflows"):
        solution.predict_mean(library.array(np.full_like(xi, 1.7e308)))


@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_is_what_others_compute(library, generator, outputs):
    metrics = pytest.importorskip("sklearn.metrics")
    shape = (9,) if outputs == 1 else (9, outputs)
    mean, labels = generator.standard_normal((2, *shape))
    labels[0] = 0.0
    variance = generator.uniform(0.1, 2.0, shape)
    result = pk.regression(library.array(mean), library.array(variance), library.array(labels), 0.3)
    assert result.mean_squared_error == pytest.approx(metrics.mean_squared_error(labels, mean))
    expected = metrics.r2_score(labels, mean, multioutput="variance_weighted")
    assert result.r_squared == pytest.approx(expected)
    density = scipy.stats.norm.logpdf(labels, mean, np.sqrt(variance + 0.3))
    assert result.log_predictive_density == pytest.approx(density.mean())


def test_regression_of_constant_or_mismatched_targets():
    first = np.ones(4)
    result = pk.regression(0 * first, first, first, 1.0)
    assert result.mean_squared_error == 1
    assert np.isnan(result.r_squared)
    tenths = np.full(7, 0.1)  # whose mean rounds
    assert np.isnan(pk.regression(tenths, tenths, tenths, 1.0).r_squared)
    assert np.isnan(pk.regression(first, -2 * first, first, 1.0).log_predictive_density)
    with pytest.raises(
        ValueError, match=r"must have one shape .* have \(4,\), \(4,\) and \(4, 1\)"
    ):
        pk.regression(first, first, first[:, None], 1.0)
