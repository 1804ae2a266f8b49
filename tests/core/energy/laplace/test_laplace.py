"""Energy of classes by Laplace's approximation: gradients, forms, symmetries and extremes."""

import formulas
import numpy as np
import pytest
import scipy

import pathkernel_core as pk
from pathkernel_core.system.errors import NotPositiveDefiniteError

TOKENS, WIDTH = 3, 4


def layers_of(kind, inputs, rng):
    """Two heads of a form of attention."""
    if kind == "products":
        return [pk.AttentionProduct(rng.normal(size=(2, WIDTH, WIDTH)))]
    if kind == "queries and keys":
        return [pk.QueryKey(*rng.normal(size=(2, 2, 2, WIDTH)))]
    if kind == "key vectors":
        return [pk.KeyVectors(rng.normal(size=(2, WIDTH)))]
    omega = rng.random(size=(len(inputs), 2, TOKENS, TOKENS))
    return [pk.Attention(omega / omega.sum(axis=2, keepdims=True))]


def data(classes, examples=7, kind="products", seed=0):
    """Attentioned inputs, labels, the name of the likelihood and targets as rows."""
    rng = np.random.default_rng(seed)
    inputs = 2 * rng.normal(size=(examples, TOKENS, WIDTH))
    xi = pk.attentioned_inputs(inputs, layers_of(kind, inputs, rng), readout="last")
    if classes == 1:
        labels = rng.choice([-1, 1], size=examples)
        return xi, labels, "logistic", labels[:, None].astype(float)
    labels = rng.integers(classes, size=examples)
    labels[0] = classes - 1
    return xi, labels, "softmax", np.eye(classes)[labels]


def order_parameter(size, seed=1):
    factor = np.random.default_rng(seed).normal(size=(size, 2 * size))
    return factor @ factor.T / (2 * size)


def naive_energy(xp, u, kernels, targets):
    """Energy with Newton's method written out, dense and undamped, to be differentiated through.

    Of kernels (n, n, P, P) over n, and of an order parameter that is symmetrised, so that its
    gradient is.
    """
    examples, outputs = targets.shape
    paths = kernels.shape[0]
    u = (u + u.T) / 2
    u = u.reshape(paths, outputs, paths, outputs)
    kernel = xp.einsum("pcqd,pqab->acbd", u, kernels).reshape((examples * outputs,) * 2)
    one = xp.asarray(np.eye(outputs))
    identity = xp.asarray(np.eye(examples * outputs))

    def pieces(coefficients):
        f = (kernel @ coefficients).reshape(examples, outputs)
        if outputs == 1:
            p = 1 / (1 + xp.exp(-targets * f))
            roots = xp.sqrt(p * (1 - p))[:, :, None]
            return xp.sum(xp.log(p)), targets * (1 - p), roots, f
        p = xp.exp(f) / xp.exp(f).sum(1)[:, None]
        roots = xp.sqrt(p)[:, None, :] * (one - p[:, :, None])
        return xp.sum(targets * xp.log(p)), targets - p, roots, f

    def expanded(roots):
        blocks = xp.einsum("acd,ab->acbd", roots, xp.asarray(np.eye(examples)))
        return blocks.reshape((examples * outputs,) * 2)

    coefficients = 0 * kernel[:, 0]
    for _ in range(9):
        _, gradient, roots, f = pieces(coefficients)
        curvature = expanded(roots) @ expanded(roots).T
        right = curvature @ f.reshape(-1) + gradient.reshape(-1)
        coefficients = xp.linalg.solve(identity + curvature @ kernel, right)
    log_density, _, roots, f = pieces(coefficients)
    root = expanded(roots)
    log_det = formulas.log_det(xp, identity + root.T @ kernel @ root)
    return -2 * log_density + coefficients @ f.reshape(-1) + log_det


@pytest.mark.parametrize(
    ("classes", "kind"),
    [(1, "products"), (2, "queries and keys"), (3, "key vectors"), (10, "given")],
)
def test_gradient_is_that_of_a_naive_energy_differentiated_through_newton(
    classes, kind, derivative
):
    examples = 4 if classes == 10 else 7
    xi, labels, likelihood, targets = data(classes, examples, kind)
    kernels = np.einsum("api,bqi->pqab", xi, xi) / (WIDTH * xi.shape[1])
    u = order_parameter(xi.shape[1] * classes)
    if classes == 10 and derivative.name == "numpy":  # an evaluation for each of 400 entries
        pytest.skip("JAX and PyTorch differentiate ten classes")
    targets = np.eye(10)[labels] if classes == 10 else targets

    def function(xp, arrays):
        return naive_energy(xp, arrays[0], xp.asarray(kernels), xp.asarray(targets))

    (expected,) = derivative(function, [u])
    expected_energy = function(np, [u])
    problems = {
        space: pk.Problem(xi, labels, space, likelihood=likelihood)
        for space in ("examples", "features")
    }
    problems["kernels"] = pk.Problem.from_kernels(
        kernels * xi.shape[1], labels, likelihood=likelihood
    )
    for problem in problems.values():
        energy, gradient = problem.energy_and_gradient(u)
        assert energy == pytest.approx(expected_energy, rel=1e-12)
        np.testing.assert_allclose(gradient, expected, atol=1e-9 * abs(expected).max())


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("classes", [1, 3])
def test_gradient_agrees_with_differences_at_every_scale(classes, scale):
    xi, labels, likelihood, _ = data(classes)
    u = order_parameter(xi.shape[1] * classes)
    direction = order_parameter(len(u), seed=2) - order_parameter(len(u), seed=3)
    for space in ("examples", "features"):
        problem = pk.Problem(xi, labels, space, likelihood=likelihood)
        _, gradient = problem.energy_and_gradient(u, variance=scale)
        step = 1e-3

        def energy(t, problem=problem):
            return problem.energy_and_gradient(u + t * direction, variance=scale)[0]

        near, far = energy(step) - energy(-step), energy(2 * step) - energy(-2 * step)
        numerical = (8 * near - far) / (12 * step)
        size = abs(gradient * direction).sum()
        assert np.sum(gradient * direction) == pytest.approx(numerical, abs=1e-8 * size + 1e-11)


def test_two_classes_by_softmax_are_the_logistic_with_twice_the_variance(library):
    xi, signs, _, _ = data(1, examples=15)
    classes = (signs > 0).astype(int)
    pairs = [(signs, "logistic", 2.0, 1), (classes, "softmax", 1.0, 2)]
    solutions = []
    for labels, likelihood, variance, outputs in pairs:
        problem = pk.Problem(
            library.array(xi), library.array(labels, "int64"), likelihood=likelihood
        )
        network = pk.Network((2,), np.inf, (variance, 1.0, 1.0), outputs=outputs)
        solutions.append(pk.minimise_action(problem, network))
    one, two = solutions
    assert one.log_evidence == pytest.approx(two.log_evidence, rel=1e-13)
    probabilities = [library.numpy(s.predict(library.array(xi)).probabilities) for s in solutions]
    np.testing.assert_allclose(*probabilities, rtol=1e-12)


def test_renumbering_the_classes_renumbers_everything():
    xi, labels, likelihood, _ = data(4, examples=16)
    new, order = np.array([2, 0, 3, 1]), np.argsort([2, 0, 3, 1])
    network = pk.Network((2,), 12, outputs=4)
    one, two = (
        pk.minimise_action(pk.Problem(xi, classes, likelihood=likelihood), network)
        for classes in (labels, new[labels])
    )
    assert one.log_evidence == pytest.approx(two.log_evidence, rel=1e-10)
    rows = (np.arange(2)[:, None] * 4 + order).reshape(-1)  # (path, class), class fastest
    np.testing.assert_allclose(
        one.order_parameter[np.ix_(range(8), range(8))],
        two.order_parameter[np.ix_(np.argsort(rows), np.argsort(rows))],
        atol=1e-7,
    )
    first, second = one.predict(xi), two.predict(xi)
    np.testing.assert_allclose(first.mean, second.mean[:, new], atol=1e-7)
    np.testing.assert_allclose(first.probabilities, second.probabilities[:, new], atol=1e-7)
    np.testing.assert_allclose(first.probabilities.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("space", ["examples", "features"])
def test_equal_inputs_with_different_classes(space):
    xi, _, _, _ = data(3, examples=6)
    xi[1] = xi[0]
    labels = np.array([0, 1, 0, 1, 2, 2])
    problem = pk.Problem(xi, labels, space, likelihood="softmax")
    solution = pk.minimise_action(problem, pk.Network((2,), 10, (100.0, 1, 1), outputs=3))
    assert solution.status.ok
    first, second, _ = solution.predict(xi[:1]).probabilities[0]
    assert first + second > 0.7
    assert first == pytest.approx(second, abs=0.1)


def test_absent_class_has_a_row_of_zeros_and_its_probability():
    xi, labels, _, _ = data(3)
    rows = np.eye(4)[labels]
    network = pk.Network((2,), 10, outputs=4)
    solution = pk.minimise_action(pk.Problem(xi, rows, likelihood="softmax"), network)
    assert solution.predict(xi).probabilities[:, 3].max() < 0.25
    with pytest.raises(ValueError, match=r"4 outputs, but labels have 3.*rows"):
        pk.minimise_action(pk.Problem(xi, labels, likelihood="softmax"), network)
    skipped = pk.Problem(xi, np.where(labels == 1, 2, labels), likelihood="softmax")
    assert skipped.outputs == 3  # of which class 1 has no example


@pytest.mark.parametrize("labels", [[-1], [0]], ids=["logistic", "softmax"])
def test_one_example(labels):
    xi = np.ones((1, 2, 3))
    if labels == [0]:
        with pytest.raises(ValueError, match="all of class 0"):
            pk.Problem(xi, np.array(labels), likelihood="softmax")
        problem = pk.Problem(xi, np.array([[1, 0]]), likelihood="softmax")
    else:
        problem = pk.Problem(xi, np.array(labels), likelihood="logistic")
    solution = pk.minimise_action(problem, pk.Network((2,), 10, outputs=problem.outputs))
    assert 0.5 < solution.predict(xi).probabilities[0, 0] < 1


def test_a_class_for_every_example():
    xi, _, _, _ = data(7)
    problem = pk.Problem(xi, np.arange(7), likelihood="softmax")
    solution = pk.minimise_action(problem, pk.Network((2,), 20, (4.0, 1, 1), outputs=7))
    assert solution.status.ok
    assert (solution.predict(xi).probabilities.argmax(axis=1) == np.arange(7)).all()


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.filterwarnings("ignore:the prior variance of the outputs")
def test_extreme_scales_give_the_same_in_both_forms(classes, scale):
    xi, labels, likelihood, _ = data(classes)
    network = pk.Network((2,), 10, (scale, 1, 1), outputs=classes)
    solutions = [
        pk.minimise_action(pk.Problem(xi, labels, space, likelihood=likelihood), network)
        for space in ("examples", "features")
    ]
    for solution in solutions:
        assert solution.status.ok
    actions = [solution.action for solution in solutions]
    assert actions[0] == pytest.approx(actions[1], rel=1e-9)
    one, two = (solution.predict(xi).probabilities for solution in solutions)
    np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_random_problems_have_one_energy_in_all_forms(seed):
    """At scales from 1e-8 to 1e8, with equal inputs, inputs of zero, and classes at random."""
    rng = np.random.default_rng(seed)
    classes, examples, paths, width = rng.choice([1, 2, 3, 5]), *rng.integers(2, (15, 5, 6))
    xi = rng.normal(size=(examples, paths, width))
    if rng.random() < 0.3:
        xi[examples // 2] = xi[0]
    if rng.random() < 0.2:
        xi[-1] = 0
    if rng.random() < 0.2:
        xi[:] = xi[:1]
    labels, likelihood = rng.choice([-1, 1], size=examples), "logistic"
    if classes > 1:
        labels, likelihood = np.eye(classes)[rng.integers(classes, size=examples)], "softmax"
    scale, u = 10 ** rng.uniform(-8, 8), order_parameter(paths * classes, seed)
    kernels = np.einsum("api,bqi->pqab", xi, xi) / width
    problems = [
        pk.Problem(xi, labels, "examples", likelihood=likelihood),
        pk.Problem(xi, labels, "features", likelihood=likelihood),
        pk.Problem.from_kernels(kernels, labels, likelihood=likelihood),
    ]
    first, *others = [problem.energy_and_gradient(u, variance=scale) for problem in problems]
    for energy, gradient in others:
        # K of size 10⁸ has an absolute rounding of 1e-8, and so has f
        assert energy == pytest.approx(first[0], rel=1e-10 * max(1.0, scale))
        along, expected = np.sum(u * gradient), np.sum(u * first[1])
        assert along == pytest.approx(expected, abs=1e-8 * max(1.0, scale / 1e4))


def test_logits_whose_exponentials_overflow_are_right_or_refused():
    likelihoods = {"logistic": np.array([1, -1]), "softmax": np.array([0, 1])}
    for name, labels in likelihoods.items():
        xi = np.array([[[1e5, 0.0]], [[0.0, 1e5]]])  # f is about 20 after a prior of 10⁵
        problem = pk.Problem(xi, labels, likelihood=name)
        new = np.array([[[1e9, -1e9]]])  # logits of 10⁵ and more
        network = pk.Network((1,), 50, outputs=problem.outputs)
        with pytest.warns(pk.ScaleWarning, match="large"):
            prediction = pk.minimise_action(problem, network).predict(new)
        assert abs(prediction.mean).max() > 1e4
        assert np.isfinite(prediction.probabilities).all()
        for space in ("examples", "features"):
            huge = pk.Problem(1e155 * xi, labels, space, likelihood=name)
            for solve in (pk.minimise_action, pk.gp_limit):
                with pytest.raises(NotPositiveDefiniteError, match="overflow"):
                    solve(huge, network)


def test_scikit_learn_has_the_same_probabilities_of_two_classes():
    gaussian_process = pytest.importorskip("sklearn.gaussian_process")
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    xi, signs, _, _ = data(1, examples=25)
    flat = xi.reshape(25, -1)
    # of the limit, K = σ² Φ Φᵀ: a DotProduct of features scaled by 1/√(n N_0)
    kernel = kernels.DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
    reference = gaussian_process.GaussianProcessClassifier(kernel, optimizer=None, warm_start=False)
    scaled = 2 * flat / np.sqrt(flat.shape[1])
    reference.fit(scaled[:20], signs[:20])
    problem = pk.Problem(xi[:20], signs[:20], likelihood="logistic")
    solution = pk.gp_limit(problem, pk.Network((2,), 10, (4.0, 1, 1)))
    evidence = reference.log_marginal_likelihood_value_
    assert solution.log_evidence == pytest.approx(evidence, abs=1e-6)
    prediction = solution.predict(xi[20:])
    # its average over f is a sum of five error functions, ours a quadrature: the former of our
    # moments has to be its result, the latter close to it
    expected = reference.predict_proba(scaled[20:])[:, 1]
    module = pytest.importorskip("sklearn.gaussian_process._gpc")
    rates, weights = module.LAMBDAS, module.COEFS
    mean, variance = prediction.mean, prediction.variance
    slopes = rates / np.sqrt(1 + 2 * rates**2 * variance)
    averages = 0.5 * (weights * scipy.special.erf(slopes * mean)).sum(axis=0) + 0.5 * weights.sum()
    np.testing.assert_allclose(averages, expected, atol=1e-6)
    np.testing.assert_allclose(prediction.probabilities[:, 1], expected, atol=2e-3)
