"""Classes with a kernel in common, factorised one by one: the same numbers as all rows together."""

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.energy import likelihoods
from pathkernel_core.energy.costs import Sizes, limit_form, minimisation_bytes, minimisation_seconds
from pathkernel_core.energy.likelihoods.softmax import Softmax
from pathkernel_core.system.errors import NotPositiveDefiniteError, TooLargeError


class PlainSoftmax(Softmax):
    """The softmax, whose curvature is taken for one of no known structure: all rows together."""

    name = "plain"
    is_multinomial = False


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    table = {**likelihoods.LIKELIHOODS, "plain": PlainSoftmax()}
    monkeypatch.setattr(likelihoods, "LIKELIHOODS", table)


def problems(xi, rows, source="inputs", convert=np.asarray):
    """Problem with factorisations class by class where they are exact, and one without any."""
    if source == "inputs":
        arrays = convert(xi), convert(rows)
        return [pk.Problem(*arrays, "examples", name) for name in ("softmax", "plain")]
    arrays = convert(kernels(xi, xi)), convert(rows)
    return [pk.Problem.from_kernels(*arrays, likelihood=name) for name in ("softmax", "plain")]


def kernels(xi, others):
    return np.einsum("api,bqi->pqab", xi, others) / xi.shape[2]


def random_case(seed):
    """Sizes, inputs and classes at random: equal inputs, inputs of 0, absent classes, P = 1."""
    rng = np.random.default_rng(seed)
    examples, classes = rng.choice([1, 2, 7, 20]), rng.choice([2, 3, 5, 12])
    paths, width = rng.choice([1, 3]), rng.choice([2, 9])
    xi = rng.normal(size=(examples, paths, width))
    if rng.random() < 0.3:
        xi[-1] = xi[0]
    if rng.random() < 0.2:
        xi[0] = 0
    present = rng.integers(1, classes + 1)
    rows = np.eye(classes)[rng.integers(present, size=examples)]
    return xi, rows, 10 ** rng.uniform(-6, 6), rng.normal(size=(4, paths, width))


@pytest.mark.parametrize("seed", range(40))
def test_limit_is_that_of_all_rows_together(seed):
    xi, rows, scale, new = random_case(seed)
    source = ("inputs", "kernels")[seed % 2]
    cross, own = kernels(new, xi), np.einsum("pqaa->pqa", kernels(new, new))
    arguments = (new,) if source == "inputs" else (cross, own)
    network = pk.Network((xi.shape[1],), 10, (scale, 1, 1), outputs=rows.shape[1])
    one, other = (pk.gp_limit(p, network) for p in problems(xi, rows, source))
    # K of size 10⁶ has an absolute rounding of 1e-10, and so have the moments
    rounding = 1e-10 * max(1.0, scale / 1e3)
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=rounding, abs=rounding)
    first, second = one.predict(*arguments), other.predict(*arguments)
    size = max(1.0, abs(second.mean).max(), second.variance.max())
    np.testing.assert_allclose(first.mean, second.mean, atol=rounding * size)
    np.testing.assert_allclose(first.variance, second.variance, atol=rounding * size)
    # equal means, as of absent classes, are put in an order by their rounding: other draws
    drawn = 8 * second.probability_error
    np.testing.assert_array_less(
        abs(first.probabilities - second.probabilities), 1e-7 + rounding + drawn
    )


@pytest.mark.parametrize("seed", range(40, 60))
def test_energy_and_gradient_are_those_of_all_rows_together(seed):
    xi, rows, scale, _ = random_case(seed)
    factor = np.random.default_rng(seed).normal(size=(xi.shape[1],) * 2)
    u = np.kron(factor @ factor.T, np.eye(rows.shape[1]))
    results = [
        problem.energy_and_gradient(u, variance=scale)
        for problem in problems(xi, rows, ("inputs", "kernels")[seed % 2])
    ]
    (energy, gradient), (expected, other) = results
    rounding = 1e-10 * max(1.0, scale / 1e3)
    assert energy == pytest.approx(expected, rel=rounding, abs=rounding)
    np.testing.assert_allclose(gradient, other, atol=10 * rounding * abs(other).max() + 1e-12)


@pytest.mark.parametrize("source", ["inputs", "kernels"])
def test_every_library_has_the_limit_of_all_rows_together(source, library):
    rng = np.random.default_rng(0)
    xi, new = rng.normal(size=(12, 2, 5)), rng.normal(size=(3, 2, 5))
    rows = np.eye(4)[rng.integers(3, size=12)]
    cross, own = kernels(new, xi), np.einsum("pqaa->pqa", kernels(new, new))
    arguments = (new,) if source == "inputs" else (cross, own)
    network = pk.Network((1,), 10, (5.0, 1, 1), outputs=4, skips=0.7)
    one, _ = problems(xi, rows, source, library.array)
    _, other = problems(xi, rows, source)
    solution, expected = pk.gp_limit(one, network), pk.gp_limit(other, network)
    assert solution.log_evidence == pytest.approx(expected.log_evidence, rel=1e-12)
    prediction = solution.predict(*map(library.array, arguments))
    wanted = expected.predict(*arguments)
    for name in ("mean", "variance", "probabilities"):
        actual = library.numpy(getattr(prediction, name))
        np.testing.assert_allclose(actual, getattr(wanted, name), atol=1e-12, err_msg=name)
    u = np.kron(np.array([[2.0, 0.3], [0.3, 1.0]]), np.eye(4))
    _, gradient = one.energy_and_gradient(u)
    np.testing.assert_allclose(gradient, other.energy_and_gradient(u)[1], atol=1e-12)
    mean = library.numpy(solution.predict_mean(library.array(arguments[0])))
    np.testing.assert_allclose(mean, wanted.mean, atol=1e-12)


def test_minimum_is_that_of_all_rows_together():
    rng = np.random.default_rng(1)
    xi = rng.normal(size=(15, 2, 4))
    rows = np.eye(3)[xi[:, 0, :3].argmax(axis=1)]
    network = pk.Network((2,), 15, (4.0, 1, 1), outputs=3)
    one, other = (pk.minimise_action(p, network) for p in problems(xi, rows))
    assert one.evaluations == other.evaluations
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-12)
    np.testing.assert_allclose(one.order_parameter, other.order_parameter, atol=1e-9)


def test_expectation_propagation_checks_the_limit_of_two_classes():
    xi = np.random.default_rng(5).normal(size=(12, 2, 4))
    rows = np.eye(2)[(xi[:, 0, 0] > 0).astype(int)]
    network = pk.Network((2,), np.inf, (4.0, 1, 1), outputs=2)
    one, other = (pk.minimise_action(p, network, check="ep") for p in problems(xi, rows))
    assert one.check.log_evidence == other.check.log_evidence
    assert one.check.log_evidence == pytest.approx(one.log_evidence, abs=0.5)
    probabilities = [s.check.predict(xi).probabilities for s in (one, other)]
    np.testing.assert_array_equal(*probabilities)
    for solutions, atol in (((one, other), 1e-12), ((one.check, other.check), 0)):
        trained = [
            solution.problem.form.training_probabilities(solution.posterior[1])
            for solution in solutions
        ]
        np.testing.assert_allclose(*trained, atol=atol)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_kernels_beyond_half_of_the_digits_take_all_rows_together(dtype):
    rng = np.random.default_rng(2)
    xi = rng.normal(size=(20, 2, 3)).astype(dtype)  # of few directions, so that K is singular
    rows = np.eye(4)[rng.integers(4, size=20)]
    scale = 1e9 if dtype == "float64" else 1e4
    network = pk.Network((2,), 10, (scale, 1, 1), outputs=4)
    one, other = (pk.gp_limit(p, network) for p in problems(xi, rows))
    assert one.log_evidence == other.log_evidence
    np.testing.assert_array_equal(one.predict(xi).mean, other.predict(xi).mean)


def test_limit_has_no_gradient_and_goes_beyond_the_rows_of_finite_widths():
    rng = np.random.default_rng(3)
    xi, classes = rng.normal(size=(90, 20, 5)), np.arange(90) % 70
    problem = pk.Problem(xi, classes, likelihood="softmax")
    network = pk.Network((20,), 10, outputs=70)
    limit = pk.gp_limit(problem, network)
    assert np.isnan(limit.gradient_norm)
    assert limit.predict(xi[:2]).probabilities.shape == (2, 70)
    infinite = pk.minimise_action(problem, pk.Network((20,), np.inf, outputs=70))
    assert infinite.log_evidence == limit.log_evidence
    with pytest.raises(TooLargeError, match=r"6300 rows.*85 examples, .*process limit"):
        pk.minimise_action(problem, network)
    with pytest.raises(TooLargeError, match="lower the prior variances"):
        pk.gp_limit(problem, pk.Network((20,), 10, (1e9, 1, 1), outputs=70))
    with pytest.raises(TooLargeError, match="P·C = 6300 rows"):
        problem.energy_and_gradient(np.eye(1400) + 1e-3)
    with pytest.raises(TooLargeError, match="P·C = 6300 rows"):
        problem.energy_and_gradient(np.eye(1400))  # of all pairs of rows, too
    with pytest.raises(TooLargeError, match="P·C = 6300 rows"):
        pk.choose_variance(problem, network)
    with pytest.raises(TooLargeError, match="P·C = 6300 rows"):
        limit.stability()
    with pytest.raises(NotPositiveDefiniteError, match="overflow"):
        pk.gp_limit(
            pk.Problem(1e200 * xi[:5], classes[:5], "examples", "softmax"),
            pk.Network((20,), 10, outputs=5),
        )
    with pytest.raises(TooLargeError, match="too many even for the Gaussian process limit"):
        pk.Problem(np.ones((4000, 1, 1)), np.arange(4000) % 10, "examples", "softmax")


def test_features_take_the_limit_class_by_class_where_that_is_cheaper():
    rng = np.random.default_rng(4)
    xi = rng.normal(size=(60, 4, 5))
    rows = np.eye(20)[rng.integers(20, size=60)]
    one, other = (pk.Problem(xi, rows, "features", name) for name in ("softmax", "plain"))
    assert limit_form(Sizes(60, 4, 5, 20, classes=True), "features") == "blocks"
    assert limit_form(Sizes(5000, 2, 5, 2, classes=True), "features") == "features"
    network = pk.Network((4,), 10, (3.0, 1, 1), outputs=20)
    one, other = (pk.gp_limit(problem, network) for problem in (one, other))
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-12)
    new = rng.normal(size=(3, 4, 5))
    np.testing.assert_allclose(one.predict(new).variance, other.predict(new).variance, atol=1e-12)


def test_cost_model_knows_the_limit():
    sizes = Sizes(500, 16, 49, 10, classes=True)
    limit, finite = (minimisation_seconds(sizes, width, "examples") for width in (np.inf, 200))
    assert limit < finite / 20
    limit, finite = (minimisation_bytes(sizes, width, "examples") for width in (np.inf, 200))
    assert limit < finite / 10
    logistic = Sizes(500, 16, 49, 1, classes=True)
    assert limit_form(logistic, "examples") == "examples"
    assert limit_form(Sizes(500, 16, 49, 10), "examples") == "examples"
