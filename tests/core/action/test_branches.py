"""Independent branches: exact laws at small sizes, random networks, limits, and array libraries."""

import functools
import math
import tracemalloc

import formulas
import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.energy import branch_spaces

INF = math.inf
TEMPERATURE = 0.2


def examples(branches, number=30, width=4, seed=0):
    """Inputs, and labels that the first branch tells best."""
    rng = np.random.default_rng(seed)
    xi = rng.normal(size=(number, branches, width))
    return xi, 2 * np.sign(xi[:, 0, 0]) + 0.3 * rng.normal(size=number)


def independent(branches, widths, variances=1.0):
    return pk.Network((branches,), widths, variances, shared=False)


def kernel(xi, u, new=None):
    return formulas.kernel(xi if new is None else new, xi, np.diag(u))


def energy(xi, labels, u, temperature):
    noisy = kernel(xi, u) + temperature * np.eye(len(xi))
    return formulas.log_det(np, noisy) + labels @ np.linalg.solve(noisy, labels)


@pytest.mark.parametrize("form", ["examples", "kernels", "blocks", "features"])
def test_energy_and_gradient_agree_with_automatic_differentiation(form, monkeypatch):
    torch = pytest.importorskip("torch")
    xi, labels = examples(5)
    u = np.random.default_rng(1).uniform(0.1, 3.0, 5)
    problem = pk.Problem(xi, labels, "features" if form == "features" else "examples")
    space = problem.branch_form
    if form != "features":
        if form == "blocks":
            monkeypatch.setattr(branch_spaces, "WHITENED", 2 * 30 * 4)
        space = branch_spaces.BranchSpace(space.features, space.labels, form == "kernels")
    value, gradient = space.energy_and_gradient(np.sqrt(u), TEMPERATURE)
    assert value == pytest.approx(energy(xi, labels, u, TEMPERATURE).real, rel=1e-12)

    y = torch.as_tensor(labels)
    kernels = torch.as_tensor(np.einsum("mli,nli->lmn", xi, xi) / (5 * 4))

    def of_u(u):
        noisy = torch.einsum("l,lmn->mn", u, kernels) + TEMPERATURE * torch.eye(30).double()
        return torch.logdet(noisy) + y @ torch.linalg.solve(noisy, y)

    expected = torch.autograd.functional.jacobian(of_u, torch.as_tensor(u))
    np.testing.assert_allclose(gradient, expected, rtol=1e-9)
    if form != "features":
        at_root = torch.as_tensor(np.sqrt(u)).requires_grad_()
        of_torch = branch_spaces.BranchSpace(
            torch.as_tensor(np.asarray(space.features)), torch.as_tensor(np.asarray(space.labels))
        )
        of_torch.energy(at_root, torch.tensor(TEMPERATURE, dtype=torch.float64)).backward()
        np.testing.assert_allclose(at_root.grad, 2 * np.sqrt(u) * gradient, rtol=1e-9)


def mean_by_quadrature(xi, labels, width, variance):
    """Exact posterior mean of u and ln p(Y), of one or two branches, on a grid of ln u."""
    branches = xi.shape[1]
    logs = np.linspace(-9, 4, 1200 if branches == 1 else 160)
    grid = np.exp(np.stack(np.meshgrid(*[logs] * branches, indexing="ij"), axis=-1))
    u = grid.reshape(-1, branches)
    kernels = np.einsum("mli,nli->lmn", xi, xi) / (branches * xi.shape[2])
    noisy = np.einsum("gl,lmn->gmn", u, kernels) + TEMPERATURE * np.eye(len(xi))
    fitted = np.linalg.solve(noisy, np.tile(labels[:, None], (len(u), 1, 1)))[..., 0] @ labels
    # σ²χ²_N/N has the density u^{N/2} e^{-Nu/2σ²} in ln u; a normalised weight for the evidence
    log_prior = (width / 2 * (np.log(u) - u / variance)).sum(axis=1)
    normaliser = math.lgamma(width / 2) - width / 2 * math.log(width / (2 * variance))
    log_prior += branches * (math.log(logs[1] - logs[0]) - normaliser)
    log_weights = log_prior - (fitted + np.linalg.slogdet(noisy)[1]) / 2
    weights = np.exp(log_weights - log_weights.max())
    evidence = log_weights.max() + math.log(weights.sum()) - len(xi) / 2 * math.log(2 * math.pi)
    return weights @ u / weights.sum(), evidence


@pytest.mark.parametrize("branches", [1, 2])
def test_the_minimum_approaches_the_exact_law(branches):
    """At fixed P, ⟨u⟩ as 1/N², since the prior's mean is its minimum, and the evidence as 1/N."""
    xi, labels = examples(branches, 10, 3)
    problem, variances = pk.Problem(xi, labels), (2.0, 0.6)
    differences, of_evidence = [], []
    for width in (2, 20, 100, 200):
        solution = pk.minimise_action(problem, independent(branches, width, variances), TEMPERATURE)
        mean, evidence = mean_by_quadrature(xi, labels, width, 1.2)
        differences.append(mean - solution.order_parameter)
        of_evidence.append(evidence - solution.log_evidence)
        assert np.all(np.abs(differences[-1]) < 0.5 * np.abs(mean - 1.2))
    np.testing.assert_allclose(differences[2] / differences[3], 4, rtol=0.1)
    assert of_evidence[2] / of_evidence[3] == pytest.approx(2, rel=0.1)


def test_at_fixed_labels_per_width_the_minimum_approaches_the_exact_law_as_one_over_the_width():
    """Of one branch, whose kernel's eigenvalues give the law on a fine grid at any P."""
    rng, errors = np.random.default_rng(4), []
    for width in (5, 20, 80):
        number = 3 * width
        xi = rng.normal(size=(number, 1, number))
        values, vectors = np.linalg.eigh(xi[:, 0] @ xi[:, 0].T / number)
        # labels with equal power along all eigenvectors: the energy is then the same per width
        labels = vectors @ np.sqrt(4 * values + TEMPERATURE)
        logs = np.linspace(-6, 6, 40_001)
        noisy = np.exp(logs)[:, None] * values + TEMPERATURE
        log_weights = width / 2 * (logs - np.exp(logs))
        log_weights -= (np.log(noisy) + (4 * values + TEMPERATURE) / noisy).sum(axis=1) / 2
        weights = np.exp(log_weights - log_weights.max())
        mean = weights @ np.exp(logs) / weights.sum()
        solution = pk.minimise_action(pk.Problem(xi, labels), independent(1, width), TEMPERATURE)
        errors.append(mean - solution.order_parameter[0])
        assert mean > 2  # far from the prior's 1 at every width
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.35)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.35)


def test_random_networks_have_this_prior_and_posterior():
    """Weights V_l, a_l from the prior: covariance of outputs, law of u, importance weights."""
    rng = np.random.default_rng(5)
    draws, widths, (of_values, of_readout) = 60_000, (4, 12), (1.5, 0.8)
    xi, _ = examples(2, 3, 3)
    labels = np.array([1.5, -0.5, 1.0])
    outputs, u = np.zeros((draws, 3)), np.zeros((draws, 2))
    for branch, width in enumerate(widths):
        readout = math.sqrt(of_readout) * rng.normal(size=(draws, width))
        values = math.sqrt(of_values) * rng.normal(size=(draws, width, 3))
        product = np.einsum("dw,dwi->di", readout, values)
        outputs += product @ xi[:, branch].T / math.sqrt(width * 2 * 3)
        u[:, branch] = of_values * (readout**2).sum(axis=1) / width
    network = independent(2, widths, (of_values, of_readout))
    limit = network.limit_diagonal
    np.testing.assert_allclose(u.mean(axis=0), limit, rtol=0.02)
    np.testing.assert_allclose(u.var(axis=0), 2 * limit**2 / widths, rtol=0.03)
    prior = kernel(xi, limit)
    np.testing.assert_allclose(np.cov(outputs.T), prior, atol=0.03 * prior.max())
    # the posterior of the weights, by their own likelihood, against that of u alone
    misfit = ((outputs - labels) ** 2).sum(axis=1)
    weights = np.exp(-misfit / (2 * TEMPERATURE))
    by_weights = weights @ u / weights.sum()
    noisy = np.einsum("dl,lmn->dmn", u, np.einsum("mli,nli->lmn", xi, xi) / 6)
    noisy += TEMPERATURE * np.eye(3)
    fitted = np.linalg.solve(noisy, np.tile(labels[:, None], (draws, 1, 1)))[..., 0] @ labels
    weights = np.exp(-(fitted + np.linalg.slogdet(noisy)[1]) / 2)
    by_u = weights @ u / weights.sum()
    np.testing.assert_allclose(by_weights, by_u, rtol=0.03)
    # and the saddle point is off by 1/N
    solution = pk.minimise_action(pk.Problem(xi, labels), network, TEMPERATURE)
    np.testing.assert_allclose(by_u, solution.order_parameter, rtol=0.15)
    assert abs(by_u[1] - solution.order_parameter[1]) < abs(by_u[0] - solution.order_parameter[0])


def test_one_branch_is_one_head_above_which_nothing_adapts():
    """One path, U | u_a ~ χ²_N with u_a fixed, is the same law."""
    xi, labels = examples(1)
    problem = pk.Problem(xi, labels)
    branch = pk.minimise_action(problem, independent(1, 7, (0.5, 1.5)), TEMPERATURE)
    head = pk.minimise_action(problem, pk.Network((1,), (7, INF), (0.5, 1.5, 1.0)), TEMPERATURE)
    assert branch.order_parameter[0] == pytest.approx(0.5 * head.order_parameter[0, 0], rel=1e-7)
    assert branch.log_evidence == pytest.approx(head.log_evidence, rel=1e-9)
    np.testing.assert_allclose(branch.predict(xi).variance, head.predict(xi).variance, rtol=1e-6)


def test_predictions_are_those_of_the_kernel_at_the_minimum():
    xi, labels = examples(3)
    new, _ = examples(3, 6, seed=9)
    network = independent(3, (5, 8, INF), (2.0, 0.5))
    for space in ("examples", "features"):
        problem = pk.Problem(xi, labels, space)
        solution = pk.minimise_action(problem, network, TEMPERATURE)
        u = solution.order_parameter
        assert u.shape == (3,)
        assert u[2] == 1.0  # of infinite width
        mean, variance = formulas.gaussian_process(xi, labels, new, np.diag(u), TEMPERATURE)
        prediction = solution.predict(new)
        np.testing.assert_allclose(prediction.mean, mean[:, 0], rtol=1e-9)
        np.testing.assert_allclose(prediction.variance, variance[:, 0], rtol=1e-8)
        np.testing.assert_allclose(solution.predict_mean(new), mean[:, 0], rtol=1e-9)
        np.testing.assert_allclose(solution.training_kernel(xi), kernel(xi, u), atol=1e-12)
        np.testing.assert_allclose(pk.total_kernel(xi, u, new), kernel(xi, u, new).T, rtol=1e-9)
        np.testing.assert_allclose(solution.head_scores, u / u.max())
        sizes = u * (xi**2).sum(axis=(0, 2))
        np.testing.assert_allclose(solution.head_contributions, sizes / sizes.max())
        out = pk.leave_one_out(solution, xi, labels)
        rest = formulas.gaussian_process(xi[1:], labels[1:], xi[:1], np.diag(u), TEMPERATURE)
        assert out.mean[0] == pytest.approx(rest[0][0, 0], rel=1e-6)
        kept = problem.keep_paths([0, 2])
        smaller = pk.minimise_action(kept, network.keep_heads([(1, 3)]), TEMPERATURE)
        alone = pk.Problem(xi[:, [0, 2]], labels, space)
        expected = pk.minimise_action(alone, independent(2, (5, INF), (2.0, 0.5)), TEMPERATURE)
        np.testing.assert_allclose(smaller.order_parameter, expected.order_parameter, rtol=1e-6)


def test_the_minimum_is_stationary_and_its_action_is_that_of_the_formula():
    xi, labels = examples(3)
    widths, variance = np.array([4.0, 9.0, 6.0]), 1.5
    network = independent(3, widths, (3.0, 0.5))
    solution = pk.minimise_action(pk.Problem(xi, labels), network, TEMPERATURE)
    u = np.asarray(solution.order_parameter)

    def action(u):
        entropy = (widths * (u / variance - np.log(u))).sum()
        return (entropy + energy(xi, labels, u, TEMPERATURE).real) / 9.0

    assert solution.action == pytest.approx(action(u), rel=1e-12)
    assert solution.action == pytest.approx(solution.entropy + solution.energy, rel=1e-12)
    steps = 1e-4 * np.diag(u)
    slopes = [(action(u + step) - action(u - step)) / (2 * step.sum()) for step in steps]
    assert np.abs(slopes).max() < 1e-6
    # and the lowest of all points tried
    noise = np.exp(np.random.default_rng(0).normal(size=(200, 3)))
    assert min(map(action, u * noise)) > solution.action


def test_wide_branches_are_the_gaussian_process_limit():
    xi, labels = examples(4)
    problem = pk.Problem(xi, labels)
    limit = pk.gp_limit(problem, independent(4, 10, (2.0, 0.7)), TEMPERATURE)
    shared = pk.gp_limit(problem, pk.Network((4,), 10, (2.0, 0.7, 1.0)), TEMPERATURE)
    np.testing.assert_allclose(limit.order_parameter, 1.4)
    assert limit.log_evidence == pytest.approx(shared.log_evidence, rel=1e-12)
    np.testing.assert_allclose(limit.predict(xi).mean, shared.predict(xi).mean, rtol=1e-9)
    infinite = pk.minimise_action(problem, independent(4, INF, (2.0, 0.7)), TEMPERATURE)
    assert infinite.status is pk.Status.GP_LIMIT
    for width in (1e3, 1e5, 1e9):
        wide = pk.minimise_action(problem, independent(4, width, (2.0, 0.7)), TEMPERATURE)
        assert np.abs(wide.order_parameter - 1.4).max() < 100 / width + 1e-8
        assert abs(wide.log_evidence - limit.log_evidence) < 1e3 / width + 1e-7


def test_narrow_branches_learn_their_own_scale():
    """Equipartition as N → 0: u (M − R) = 0 for every branch, and no trace of the prior."""
    rng = np.random.default_rng(2)
    xi = rng.normal(size=(600, 3, 12))
    teacher = np.array([0.25, 1.0, 4.0])  # variance of what each branch of the teacher adds
    weights = rng.normal(size=(3, 12))
    weights *= np.sqrt(teacher / (weights**2).sum(axis=1))[:, None]
    labels = np.einsum("pli,li->p", xi, weights) + 0.1 * rng.normal(size=600)
    problem = pk.Problem(xi, labels)
    minima = []
    for variance in (0.3, 3.0):
        solution = pk.minimise_action(problem, independent(3, 1e-5, variance), 0.01)
        minima.append(np.asarray(solution.order_parameter))
        _, gradient = problem.branch_form.energy_and_gradient(np.sqrt(minima[-1]), 0.01)
        assert np.abs(minima[-1] * gradient).max() < 1e-2
        assert math.isnan(solution.log_evidence)
    np.testing.assert_allclose(*minima, rtol=1e-3)
    np.testing.assert_allclose(minima[0] / 3, teacher, rtol=0.1)  # K = Σ u_l C_ll / B
    # one branch alone has the same scale, the others' part being noise to it
    alone = pk.Problem(xi[:, :1], np.einsum("pi,i->p", xi[:, 0], weights[0]))
    single = pk.minimise_action(alone, independent(1, 1e-5), 0.01)
    assert single.order_parameter[0] == pytest.approx(minima[0][0] / 3, rel=0.1)


def test_relabelled_branches_have_relabelled_order_parameters():
    xi, labels = examples(6)
    order, widths = [3, 1, 5, 0, 2, 4], np.array([3, 5, INF, 4, 9, 1e6])
    one, other = (
        pk.minimise_action(pk.Problem(inputs, labels), independent(6, to), TEMPERATURE)
        for inputs, to in ((xi, widths), (xi[:, order], widths[order]))
    )
    np.testing.assert_allclose(one.order_parameter[order], other.order_parameter, rtol=1e-6)
    assert one.action == pytest.approx(other.action, rel=1e-12)
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-9)


def test_a_start_saves_evaluations():
    xi, labels = examples(6)
    problem = pk.Problem(xi, labels)
    first = pk.minimise_action(problem, independent(6, 5), TEMPERATURE)
    again = pk.minimise_action(problem, independent(6, 5), TEMPERATURE, start=first)
    assert again.evaluations <= 2 < first.evaluations
    near = pk.minimise_action(problem, independent(6, 5, 1.1), 0.9 * TEMPERATURE, start=first)
    direct = pk.minimise_action(problem, independent(6, 5, 1.1), 0.9 * TEMPERATURE)
    np.testing.assert_allclose(near.order_parameter, direct.order_parameter, rtol=1e-6)
    with pytest.raises(ValueError, match="both have independent branches"):
        pk.minimise_action(problem, pk.Network((6,), 5), TEMPERATURE, start=first)


def test_arrays_of_any_library(library):
    xi, labels = examples(5)
    network = independent(5, (4, 5, 6, INF, 8))
    expected = pk.minimise_action(pk.Problem(xi, labels), network, TEMPERATURE)
    for space in ("examples", "features"):
        problem = pk.Problem(library.array(xi), library.array(labels), space)
        solution = pk.minimise_action(problem, network, TEMPERATURE)
        prediction = solution.predict(library.array(xi[:4] + 0.1))
        assert library.owns(solution.order_parameter)
        assert library.owns(prediction.variance)
        u, variance = library.numpy(solution.order_parameter), library.numpy(prediction.variance)
        np.testing.assert_allclose(u, expected.order_parameter, rtol=1e-6)
        np.testing.assert_allclose(variance, expected.predict(xi[:4] + 0.1).variance, rtol=1e-5)
        assert solution.head_contributions.shape == (5,)


def test_kernels_in_place_of_inputs(library):
    xi, labels = examples(3)
    new, _ = examples(3, 6, seed=9)
    network = independent(3, (5, 8, INF))
    expected = pk.minimise_action(pk.Problem(xi, labels), network, TEMPERATURE)
    pairs = np.einsum("api,bqi->pqab", xi, xi) / 4
    kernels = np.einsum("llab->lab", pairs)
    cross, own = np.einsum("ali,bli->lab", new, xi) / 4, (new**2).sum(axis=2).T / 4
    y = library.array(labels)
    problems = [pk.Problem.from_kernels(library.array(kernels), y, branches=True)]
    if library.name == "numpy":  # the others compile for long
        problems.append(pk.Problem.from_kernels(pairs, labels))
    for problem in problems:
        solution = pk.minimise_action(problem, network, TEMPERATURE)
        u = library.numpy(solution.order_parameter)
        np.testing.assert_allclose(u, expected.order_parameter, rtol=1e-7)
        assert solution.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)
        prediction = solution.predict(library.array(cross), library.array(own))
        mean = library.numpy(solution.predict_mean(library.array(cross)))
        by_inputs = expected.predict(new)
        np.testing.assert_allclose(mean, by_inputs.mean, rtol=1e-6)
        np.testing.assert_allclose(library.numpy(prediction.mean), mean, rtol=1e-9)
        variance = library.numpy(prediction.variance)
        np.testing.assert_allclose(variance, by_inputs.variance, rtol=1e-6)
        np.testing.assert_allclose(solution.head_contributions, expected.head_contributions)
        left, by_inputs = pk.leave_one_out(solution), pk.leave_one_out(expected, xi, labels)
        np.testing.assert_allclose(left.mean, by_inputs.mean, rtol=1e-5)
        value, gradient = problem.keep_paths([2, 0]).energy_and_gradient(u[:2], 0.3, 2.0)
        expected_value, expected_gradient = pk.Problem(xi[:, [2, 0]], labels).energy_and_gradient(
            u[:2], 0.3, 2.0
        )
        assert value == pytest.approx(expected_value, rel=1e-10)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-8)


@pytest.mark.parametrize("exact", [1000, 1])
def test_kernels_of_branches_are_checked(exact, monkeypatch):
    monkeypatch.setattr("pathkernel_core.energy.kernel_packing.EXACT_ROWS", exact)
    xi, labels = examples(3)
    kernels = pk.same_path_kernels(xi)
    make = functools.partial(pk.Problem.from_kernels, branches=True)
    problem = make(kernels, labels)
    for wrong, message in (
        (kernels[0], r"shape \(n, P, P\)"),
        (kernels + np.triu(kernels), "must be symmetric"),
        (kernels + 1e-9 * np.triu(kernels) * [[[0]], [[0]], [[1]]], None),
        (kernels * [[[1]], [[1e-10]], [[1]]] + 1e-10 * np.tri(30) * [[[0]], [[1]], [[0]]], "symm"),
        (kernels - 2 * np.eye(30) * [[[0]], [[1]], [[0]]], "positive semidefinite"),
        (kernels[:, 1:, 1:], "one label per example"),
    ):
        if message is None:  # within rounding
            make(wrong, labels)
            continue
        with pytest.raises((ValueError, pk.NotPositiveDefiniteError), match=message):
            make(wrong, labels)
    with pytest.raises(ValueError, match="u_l would be a matrix"):
        make(kernels, np.stack([labels, labels], axis=1))
    with pytest.raises(ValueError, match="set shared=False"):
        pk.minimise_action(problem, pk.Network((3,), 5), TEMPERATURE)
    with pytest.raises(ValueError, match=r"must have shape \(3,\)"):
        problem.energy_and_gradient(np.eye(3), TEMPERATURE)
    with pytest.raises(pk.NotPositiveDefiniteError, match="is not positive"):
        problem.energy_and_gradient(np.array([1.0, 0.0, 1.0]), TEMPERATURE)
    solution = pk.minimise_action(problem, independent(3, 5), TEMPERATURE)
    with pytest.raises(ValueError, match=r"\(3, P_new, 30\)"):
        solution.predict(xi)
    assert "kernels of branches" in repr(problem)
    assert "single branches" in problem._repr_html_()
    monkeypatch.setattr("pathkernel_core.energy.kernel_packing.MOST_KERNELS", 100)
    with pytest.raises(ValueError, match="GiB"):
        make(kernels, labels)


def competing(dimensions=12, scale=1.0):
    """Two branches with the same signal, each with noise in dimensions of its own."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(60, 2 * dimensions + 1)))
    xi = np.zeros((60, 2, dimensions + 1))
    for branch in range(2):
        xi[:, branch, 0] = 6 * basis[:, 0]
        xi[:, branch, 1:] = 6 * basis[:, 1 + branch * dimensions :][:, :dimensions]
    return scale * xi, 10 * basis[:, 0]


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_no_saddle_between_equal_branches_is_returned():
    """ln det makes one of two branches enough, but the descent from the limit keeps them equal."""
    xi, labels = competing()
    problem = pk.Problem(xi, labels)
    solution = pk.minimise_action(problem, independent(2, 1), 0.01, starts=1)
    u = np.sort(solution.order_parameter)
    assert u[1] > 10 * u[0]

    def action(u):
        entropy = (u - np.log(u)).sum()
        return entropy + energy(xi, labels, np.asarray(u), 0.01).real

    equal = min(action(np.full(2, value)) for value in np.geomspace(1e-4, 1e3, 400))
    assert solution.action < equal - 0.5


def test_branches_as_wide_as_their_kernels_have_one_minimum():
    xi, labels = competing()
    problem = pk.Problem(xi, labels)
    wide = pk.minimise_action(problem, independent(2, 13), 0.01, starts=12)
    assert wide.other_minima == ()
    assert np.ptp(wide.order_parameter) < 1e-6


def test_a_search_on_request_finds_the_other_minimum():
    """The same branches, of which one is a little better: each may switch off the other."""
    xi, labels = competing()
    xi[:, 1, 1:] *= 1.02
    problem = pk.Problem(xi, labels)
    solution = pk.minimise_action(problem, independent(2, 1), 0.01, starts=6)
    assert len(solution.other_minima) == 1
    other = solution.other_minima[0]
    assert 0 < other.action - solution.action < 1
    assert np.argmax(other.order_parameter) != np.argmax(solution.order_parameter)
    assert solution.close_minima == (other,)


def test_thousands_of_branches_take_memory_in_their_number():
    branches = 10_000
    xi, labels = examples(branches, 20, 2)
    problem, network = pk.Problem(xi, labels, "examples"), independent(branches, 0.2)
    tracemalloc.start()
    solution = pk.minimise_action(problem, network, TEMPERATURE)
    solution.predict(xi[:5])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert solution.status is pk.Status.CONVERGED
    assert peak < branches**2  # bytes; a matrix of pairs would have eight times as many
    assert len(repr(solution)) < 1000
    assert len(solution._repr_html_()) < 3000
    assert len(solution.head_contributions) == branches


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": (2, 2)}, "one layer of independent branches"),
        ({"outputs": 2}, "matrix over outputs"),
        ({"skips": 0.5}, "a skip is a path of all branches"),
        ({"widths": (1, 2)}, r"widths must be one number or 3 numbers \(N_1 … N_B"),
        ({"variances": (1, 2, 3)}, r"variances must be one number or 2 numbers \(σ²_V, σ²_a\)"),
    ],
)
def test_networks_without_meaning_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pk.Network(**{"heads": (3,), "widths": 5, "shared": False} | arguments)
    with pytest.raises(TypeError, match="shared must be True or False"):
        pk.Network((3,), 5, shared="no")


@pytest.mark.parametrize("width", [0.1, 1e-3])
def test_a_narrow_silent_branch_converges(width):
    """A branch without signal, whose u falls to nothing."""
    generator = np.random.default_rng(3)
    xi = generator.standard_normal((200, 3, 6))
    labels = np.einsum("pbi,bi->p", xi[:, :2], generator.standard_normal((2, 6)))
    labels = labels + 0.3 * generator.standard_normal(200)
    solution = pk.minimise_action(pk.Problem(xi, labels), independent(3, width), 0.01)
    assert solution.status.ok
    assert solution.order_parameter[2] < 0.05 * solution.order_parameter[:2].min()


def test_what_needs_a_chain_of_order_parameters_says_so():
    xi, labels = examples(3)
    solution = pk.minimise_action(pk.Problem(xi, labels), independent(3, 5), TEMPERATURE)
    for ask in (solution.stability, solution.response):
        with pytest.raises(ValueError, match=r"independent branches \(shared=False\)"):
            ask()
    torch = pytest.importorskip("torch")
    arrays = torch.as_tensor(xi), torch.as_tensor(labels)
    with pytest.raises(ValueError, match=r"independent branches \(shared=False\)"):
        pk.differentiable_solution(*arrays, solution.network, TEMPERATURE)
    with pytest.raises(ValueError, match="order_parameter must have shape"):
        pk.head_scores(solution.network, np.eye(3))
    pytest.importorskip("blackjax")
    from pathkernel_sampling.corrections.next_order import next_order
    from pathkernel_sampling.models.models import build_model

    for name in ("order-parameter", "collapsed", "weights"):
        with pytest.raises(ValueError, match=r"independent branches \(shared=False\)"):
            build_model(name, xi, labels, solution.network, TEMPERATURE)
    with pytest.raises(ValueError, match=r"independent branches \(shared=False\)"):
        next_order(solution)
    assert eval(repr(solution.network), {"Network": pk.Network}) == solution.network
