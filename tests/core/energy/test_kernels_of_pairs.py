"""Kernels in place of attentioned inputs: the same theory to rounding."""

import dataclasses

import formulas
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import pathkernel_core as pk
from pathkernel_core import Network, Problem
from pathkernel_core.energy.kernel_packing import check_own_kernels
from pathkernel_core.system.errors import NotPositiveDefiniteError

NETWORKS = {
    "skip": Network((2, 1), 10, skips=(0.7, None)),
    "outputs": Network((3,), (8, 10), (1.0, 0.8, 1.2), outputs=2),
    "infinite": Network((2, 1), (np.inf, 10, 10)),
}


def kernels_of(xi, dual):
    """Kernels of all pairs of paths, (n, n, P, P')."""
    return np.einsum("api,bqi->pqab", xi, dual) / xi.shape[-1]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("skip", "infinite")]


@pytest.fixture(params=["outputs", *SLOW])
def pair(request, library, generator):
    """The same problem by inputs and by kernels, with new examples of both."""
    network = NETWORKS[request.param]
    xi = generator.standard_normal((20, network.n_paths, 5))
    labels = np.sign(xi[:, 0, : network.outputs])
    labels = labels[:, 0] if network.outputs == 1 else labels
    new = generator.standard_normal((7, network.n_paths, 5))
    problem = Problem(library.array(xi), library.array(labels), space="examples")
    given = Problem.from_kernels(library.array(kernels_of(xi, xi)), library.array(labels))
    own = np.einsum("pqaa->pqa", kernels_of(new, new))
    arrays = library.array(new), library.array(kernels_of(new, xi)), library.array(own)
    return network, problem, given, arrays


def close(library, actual, expected, rtol=1e-12):
    actual, expected = library.numpy(actual), library.numpy(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * abs(expected).max())


def test_all_of_the_theory_is_that_of_inputs(library, pair):
    network, problem, given, (new, cross, own) = pair
    expected, actual = (pk.minimise_action(p, network, 0.1) for p in (problem, given))
    assert actual.status.ok
    for name in ("action", "log_evidence", "evaluations"):
        assert getattr(actual, name) == pytest.approx(getattr(expected, name), rel=1e-12), name
    # both stop at the tolerance: the same points to rounding, since they take the same steps
    close(library, actual.order_parameter, expected.order_parameter, 1e-11)
    close(library, given.mean_kernels, problem.mean_kernels)
    np.testing.assert_allclose(actual.head_contributions, expected.head_contributions, rtol=1e-11)
    at_minimum = dataclasses.replace(actual, factors=expected.factors)
    moments, by_inputs = at_minimum.predict(cross, own), expected.predict(new)
    close(library, moments.mean, by_inputs.mean)
    close(library, moments.variance, by_inputs.variance)
    close(library, at_minimum.predict_mean(cross), by_inputs.mean)
    close(library, at_minimum.training_kernel(), expected.training_kernel())
    left, left_by_inputs = pk.leave_one_out(at_minimum), pk.leave_one_out(expected)
    np.testing.assert_allclose(left.mean, left_by_inputs.mean, rtol=1e-11, atol=1e-12)
    assert left.log_density == pytest.approx(left_by_inputs.log_density, rel=1e-12)
    limits = [pk.gp_limit(p, network, 0.1) for p in (given, problem)]
    assert limits[0].log_evidence == pytest.approx(limits[1].log_evidence, rel=1e-12)


def test_second_derivatives_are_those_of_inputs(pair):
    network, problem, given, _ = pair
    expected = pk.minimise_action(problem, network, 0.1)
    actual = dataclasses.replace(expected, problem=given)
    stable, by_inputs = actual.stability(2), expected.stability(2)
    np.testing.assert_allclose(stable.eigenvalues, by_inputs.eigenvalues, rtol=1e-11)
    response, response_by_inputs = actual.response(), expected.response()
    for name in ("temperature", "variances", "labels", "path_norms"):
        values = getattr(response, name), getattr(response_by_inputs, name)
        np.testing.assert_allclose(*values, rtol=0, atol=1e-11 * abs(values[1]).max())


@hypothesis.given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
def test_energy_of_any_kernels_is_the_formula(paths, examples, outputs, seed):
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((paths * examples, generator.integers(1, 30)))
    kernels = (rows @ rows.T).reshape(paths, examples, paths, examples).transpose(0, 2, 1, 3)
    labels = generator.standard_normal((examples, outputs))
    u = formulas.random_positive(paths * outputs, generator)
    problem = Problem.from_kernels(kernels, labels)
    energy, gradient = problem.energy_and_gradient(u, 0.3)

    blocks = u.reshape(paths, outputs, paths, outputs)
    noisy = np.einsum("pcqd,pqab->acbd", blocks, kernels).reshape((examples * outputs,) * 2) / paths
    inverse = np.linalg.inv(noisy + 0.3 * np.eye(len(noisy)))
    flat = labels.reshape(-1)
    expected = flat @ inverse @ flat - np.linalg.slogdet(inverse)[1]
    assert energy == pytest.approx(expected, rel=1e-9)
    weights = inverse - np.outer(inverse @ flat, inverse @ flat)
    weights = weights.reshape(examples, outputs, examples, outputs)
    slope = np.einsum("acbd,pqab->pcqd", weights, kernels).reshape(u.shape) / paths
    np.testing.assert_allclose(gradient, slope, rtol=0, atol=1e-9 * abs(slope).max())


def test_sub_networks_and_pairs(library, generator):
    network = Network((2, 2), 10)
    for outputs in (1, 2):
        many = dataclasses.replace(network, outputs=outputs)
        xi, labels = formulas.random_examples(many, 9, 5, generator)
        kernels = kernels_of(xi, xi)
        problem = Problem(library.array(xi), library.array(labels), space="examples")
        pairs = library.array(kernels[np.triu_indices(4)])  # π ≤ π' alone
        for given in (library.array(kernels), pairs):
            part = Problem.from_kernels(given, library.array(labels)).keep_paths([3, 0, 2])
            u = formulas.random_positive(3 * outputs, generator)
            energy, gradient = part.energy_and_gradient(u, 0.2)
            expected, by_inputs = problem.keep_paths([3, 0, 2]).energy_and_gradient(u, 0.2)
            assert energy == pytest.approx(expected, rel=1e-12)
            np.testing.assert_allclose(
                gradient, by_inputs, rtol=0, atol=1e-12 * abs(by_inputs).max()
            )


def test_predictions_of_many_examples_are_made_in_batches(generator, monkeypatch):
    xi, labels = formulas.random_examples(Network((2,), 10), 9, 5, generator)
    new = generator.standard_normal((50, 2, 5))
    given = Problem.from_kernels(kernels_of(xi, xi), labels)
    solution = pk.minimise_action(given, Network((2,), 10), 0.1)
    cross, own = kernels_of(new, xi), np.einsum("aqi,api->qpa", new, new) / 5
    complete = solution.predict(cross, own)
    monkeypatch.setattr("pathkernel_core.action.solution.PREDICTION_ELEMENTS", 300)
    batched = solution.predict(cross, own)
    np.testing.assert_allclose(batched.mean, complete.mean, rtol=1e-13)
    np.testing.assert_allclose(batched.variance, complete.variance, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: k[0], "must have shape"),
        (lambda k: k[:, :1], "must have shape"),
        (lambda k: k[:, :, :3], "must have shape"),
        (lambda k: k[:2, 0], r"\(n\(n \+ 1\)/2, P, P\)"),
        (lambda k: k * np.nan, "holds NaN"),
        (lambda k: np.tril(k), "must be symmetric"),
        (lambda k: -k, "positive semidefinite"),
        (lambda k: k - 0.5 * np.eye(9), "positive semidefinite"),
        (lambda k: k[:, :, :8, :8], "one label per example"),
    ],
)
def test_kernels_that_are_none_are_refused(change, message, generator):
    xi, labels = formulas.random_examples(Network((2,), 10), 9, 5, generator)
    with pytest.raises((ValueError, pk.NotPositiveDefiniteError), match=message):
        Problem.from_kernels(change(kernels_of(xi, xi)), labels)


def test_large_kernels_are_checked_by_mixtures(generator, monkeypatch):
    monkeypatch.setattr("pathkernel_core.energy.kernel_packing.EXACT_ROWS", 1)
    xi, labels = formulas.random_examples(Network((3,), 10), 9, 5, generator)
    kernels = kernels_of(xi, xi)
    Problem.from_kernels(kernels, labels)
    with pytest.raises(pk.NotPositiveDefiniteError, match="positive semidefinite"):
        Problem.from_kernels(kernels - 0.5 * np.eye(3)[..., None, None] * np.eye(9), labels)
    monkeypatch.setattr("pathkernel_core.energy.kernel_packing.MOST_KERNELS", 100)
    with pytest.raises(ValueError, match="GiB"):
        Problem.from_kernels(kernels, labels)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("form", ["full", "pairs"])
def test_exchanged_examples_of_two_paths_are_seen_at_every_size(form, exact, monkeypatch):
    """At random: all examples of a pair of paths are permuted, or two are exchanged."""
    if not exact:
        monkeypatch.setattr("pathkernel_core.energy.kernel_packing.EXACT_ROWS", 1)
    generator = np.random.default_rng(5)
    for number in range(12):
        paths, examples = generator.integers(2, 6), generator.integers(6, 20)
        xi = generator.standard_normal((examples, paths, 3))
        kernels, labels = kernels_of(xi, xi), np.sign(xi[:, 0, 0])
        given = kernels if form == "full" else kernels[np.triu_indices(paths)]
        Problem.from_kernels(given, labels)
        order = np.arange(examples)
        some = order if number % 2 else generator.choice(order, 2, replace=False)
        order[some] = np.roll(some, 1)
        one, other = generator.choice(paths, 2, replace=False)
        kernels[one, other] = kernels[one, other][:, order]
        kernels[other, one] = kernels[one, other].T
        given = kernels if form == "full" else kernels[np.triu_indices(paths)]
        with pytest.raises(pk.NotPositiveDefiniteError, match="have an eigenvalue of -"):
            Problem.from_kernels(given, labels)


@pytest.mark.parametrize("shared", [True, False])
def test_kernels_of_other_new_examples_are_refused(library, generator, shared, monkeypatch):
    network = Network((3,), 10, shared=shared)
    xi, labels = formulas.random_examples(network, 12, 5, generator)
    new = generator.standard_normal((6, 3, 5))
    cross, own = kernels_of(new, xi), np.einsum("aqi,api->qpa", new, new) / 5
    kernels = kernels_of(xi, xi)
    if not shared:
        kernels, cross, own = (np.einsum("pp...->p...", array) for array in (kernels, cross, own))
    problem = Problem.from_kernels(library.array(kernels), library.array(labels), not shared)
    solution = pk.minimise_action(problem, network, 0.01)

    def predict(cross, own):
        return solution.predict(library.array(cross), library.array(own))

    assert library.numpy(predict(cross, own).variance).min() > 0
    changes = [(-own, "negative" if not shared else "must be positive semidefinite")]
    changes += [(factor * own, "not kernels of the same new examples") for factor in (0.1, 0.0)]
    changes += [(own[..., ::-1], "the predictor's variance on new example")]
    if shared:
        changes += [(own + np.triu(np.ones((3, 3)), 1)[..., None], "own of .* must be symmetric")]
    for most in (1000, 1):
        monkeypatch.setattr("pathkernel_core.energy.kernel_packing.EXACT_ROWS", most)
        for change, message in changes:
            with pytest.raises((ValueError, pk.NotPositiveDefiniteError), match=message):
                predict(cross, change.copy())
    with pytest.raises(ValueError, match=r"own must have .* but has \(\)"):
        solution.predict(library.array(cross), own.tolist())


def test_variances_that_rounding_makes_negative_are_zero(generator):
    """New examples that are training examples, down to the lowest temperatures."""
    network = Network((3,), 10)
    xi, labels = formulas.random_examples(network, 30, 20, generator)
    kernels = kernels_of(xi, xi)
    problem, own = Problem.from_kernels(kernels, labels), np.einsum("pqaa->pqa", kernels)
    for temperature in 10.0 ** np.arange(-14, 0, 3):
        solution = pk.minimise_action(problem, network, temperature, throw=False)
        variance = solution.predict(kernels, own).variance
        assert variance.min() >= 0
        assert variance.max() < 10 * temperature + 1e-12


def test_inputs_and_kernels_are_not_mixed_up(generator):
    xi, labels = formulas.random_examples(Network((2,), 10), 9, 5, generator)
    kernels = kernels_of(xi, xi)
    given = pk.minimise_action(Problem.from_kernels(kernels, labels), Network((2,), 10), 0.1)
    solution = pk.minimise_action(Problem(xi, labels), Network((2,), 10), 0.1)
    with pytest.raises(ValueError, match=r"takes cross, .* \(2, 2, P_new, 9\)"):
        given.predict(xi)
    with pytest.raises(ValueError, match="own must have"):
        given.predict(kernels)
    with pytest.raises(ValueError, match="attentioned_inputs first"):
        solution.predict_mean(kernels)
    with pytest.raises(ValueError, match="own is for problems of given kernels"):
        solution.predict(xi, kernels)
    with pytest.raises(ValueError, match="leave it out"):
        pk.leave_one_out(given, xi, labels)
    with pytest.raises(ValueError, match="leave it out"):
        given.training_kernel(xi)
    with pytest.raises(ValueError, match="hence 4 paths, but the problem has 2"):
        pk.minimise_action(given.problem, Network((2, 2), 10), 0.1)
    assert "of given kernels" in repr(given.problem)
    assert "kernels of pairs of paths" in given.problem._repr_html_()


@pytest.mark.parametrize(("module", "outputs"), [("torch", 1), ("torch", 2), ("jax.numpy", 1)])
def test_derivatives_by_kernels_are_those_by_inputs(module, outputs, generator):
    xp, torch = pytest.importorskip(module), pytest.importorskip("torch")
    network = Network((2,), 9, outputs=outputs)
    xi, new = generator.standard_normal((12, 2, 4)), generator.standard_normal((3, 2, 4))
    labels = np.sign(generator.standard_normal((12, outputs)))
    theta = xi, labels, np.array(0.2), np.array([0.8, 1.0, 1.2])

    def by_inputs(xi, labels, temperature, variances):
        arguments = xi, labels, network, temperature
        solution = pk.differentiable_solution(*arguments, variances=variances, tolerance=1e-11)
        return summed(torch, solution, solution.predict(torch.asarray(new)))

    def by_kernels(xi, labels, temperature, variances):
        fresh = xp.asarray(new)
        kernels, cross = (xp.einsum("api,bqi->pqab", left, xi) / 4 for left in (xi, fresh))
        arguments = kernels, labels, network, temperature
        solution = pk.differentiable_solution(*arguments, variances=variances, tolerance=1e-11)
        own = xp.einsum("api,aqi->pqa", fresh, fresh) / 4
        return summed(xp, solution, solution.predict(cross, own))

    # compiling JAX's derivatives takes seconds: the expected ones are PyTorch's
    value, slopes = value_and_gradients(by_kernels, xp, theta)
    expected, expected_slopes = value_and_gradients(by_inputs, torch, theta)
    assert value == pytest.approx(expected, rel=1e-10)
    for slope, expected_slope in zip(slopes, expected_slopes):
        atol = 1e-8 * abs(expected_slope).max()
        np.testing.assert_allclose(slope, expected_slope, rtol=0, atol=atol)


def summed(xp, solution, prediction):
    """One number of all results."""
    moments = xp.sum(prediction.mean**2) + xp.sum(prediction.variance)
    return solution.log_evidence + moments + solution.order_parameter[0, -1]


def value_and_gradients(function, xp, theta):
    """Value, and gradients with respect to all arguments, by PyTorch or JAX."""
    if xp.__name__ == "torch":
        arrays = [xp.asarray(array).requires_grad_() for array in theta]
        value = function(*arrays)
        value.backward()
        return value.item(), [array.grad.numpy() for array in arrays]
    import jax

    numbers = tuple(range(len(theta)))
    value, slopes = jax.jit(jax.value_and_grad(function, numbers))(*map(xp.asarray, theta))
    return float(value), list(map(np.asarray, slopes))


def test_derivatives_refuse_what_belongs_to_the_other_problem(generator):
    torch = pytest.importorskip("torch")
    xi, labels = formulas.random_examples(Network((2,), 10), 9, 5, generator)
    xi, kernels, labels = map(torch.asarray, (xi, kernels_of(xi, xi), labels))
    arguments = labels, Network((2,), 10), 0.2
    with pytest.raises(ValueError, match='must be "auto" for kernels'):
        pk.differentiable_solution(kernels, *arguments, space="features")
    given, solution = (pk.differentiable_solution(array, *arguments) for array in (kernels, xi))
    with pytest.raises(ValueError, match=r"own must have .* \(2, 2, 9\)"):
        given.predict(kernels)
    with pytest.raises(ValueError, match="own is for given kernels"):
        solution.predict(xi, kernels)
    with pytest.raises(ValueError, match="cross must have shape"):
        given.predict(xi)
    own = torch.einsum("pqaa->pqa", kernels)
    assert given.predict(kernels, own).variance.min() > 0
    with pytest.raises(pk.NotPositiveDefiniteError, match="own of shape"):
        given.predict(kernels, -own)
    with pytest.raises(pk.NotPositiveDefiniteError, match="not kernels of the same new examples"):
        given.predict(kernels, own / 10)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_variances_of_branches_are_negative_by_their_own_rounding_alone(size):
    own = size * np.array([[1.0, 2.0, 1e-16], [3.0, 1.0, 2.0]])
    own[0, 2] *= -1
    check_own_kernels(own, shared=False)
    own[0, 2] = -1e-3 * size
    with pytest.raises(NotPositiveDefiniteError, match="cannot be negative, but has"):
        check_own_kernels(own, shared=False)
