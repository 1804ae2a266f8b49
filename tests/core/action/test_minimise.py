import dataclasses
import math

import formulas
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import pathkernel_core as pk
from pathkernel_core import (
    Network,
    Problem,
    Status,
    gp_limit,
    minimise_action,
)
from pathkernel_core.action import quasi_newton
from pathkernel_core.action.evaluations import Evaluation, History
from pathkernel_tasks.hidden_markov import HiddenMarkov


def to_numpy(solution):
    return [np.asarray(matrix) for matrix in solution.order_parameters]


def problem_of(network, generator, examples=20, width=4, space="auto"):
    return Problem(*formulas.random_examples(network, examples, width, generator), space)


def solution_at(network, problem, temperature, order_parameters):
    """A start for the minimiser at given order parameters."""
    return pk.Solution(
        order_parameters=tuple(order_parameters),
        factors=tuple(np.linalg.cholesky(matrix) for matrix in order_parameters),
        action=0.0,
        entropy=0.0,
        energy=0.0,
        status=Status.STALLED,
        evaluations=0,
        iterations=0,
        gradient_norm=math.inf,
        action_history=np.zeros(1),
        gradient_history=np.zeros(1),
        network=network,
        problem=problem,
        temperature=temperature,
    )


def test_every_step_is_reported(generator):
    network, visited = Network((2, 2), 10), []
    solution = minimise_action(problem_of(network, generator), network, 0.1, report=visited.append)
    assert len(visited) == solution.iterations + 1 > 2
    assert visited[-1].done == solution.evaluations
    gradients = [progress.numbers["gradient"] for progress in visited]
    np.testing.assert_array_equal(gradients, solution.gradient_history)


@pytest.mark.parametrize("space", ["examples", "features"])
def test_the_minimum_is_stationary(library, network, generator, space):
    """Every gradient of the action vanishes, by formulas independent of the minimiser's."""
    xi, labels = formulas.random_examples(network, 15, 3, generator)
    problem = Problem(library.array(xi), library.array(labels), space)
    solution = minimise_action(problem, network, 0.1)
    assert solution.status is Status.CONVERGED
    assert solution.status.ok
    assert solution.gradient_norm <= 1e-8
    chain = [library.numpy(matrix) for matrix in solution.order_parameters]
    assert tuple(map(len, chain)) == network.sizes

    _, energy_gradient = Problem(xi, labels).energy_and_gradient(
        chain[0], 0.1, network.variances[0]
    )
    gradients = formulas.entropy_gradient(network, chain)
    gradients[0] = gradients[0] + energy_gradient
    assert max(np.abs(gradient).max() for gradient in gradients) / network.width < 2e-8

    width = network.width
    action = formulas.action(np, network, chain, xi, labels, 0.1).real
    assert solution.action * width == pytest.approx(action, rel=1e-11)
    entropy = formulas.entropy(np, network, chain).real
    assert solution.entropy * width == pytest.approx(entropy, rel=1e-11)
    assert solution.action == pytest.approx(solution.entropy + solution.energy)


@pytest.mark.parametrize("width", [10, 1000])
def test_hidden_markov_is_the_same_on_every_library(library, markov, width):
    network = Network((2, 2), width)
    xi, labels = markov
    reference = minimise_action(Problem(xi, labels), network, 0.01)
    solution = minimise_action(Problem(library.array(xi), library.array(labels)), network, 0.01)
    assert solution.gradient_norm <= 1e-8
    assert solution.action == pytest.approx(reference.action, rel=1e-10)
    for actual, expected in zip(solution.order_parameters, to_numpy(reference)):
        np.testing.assert_allclose(library.numpy(actual), expected, rtol=0, atol=1e-6)
    gp, reference_gp = (
        gp_limit(Problem(*pair), network, 0.01)
        for pair in ((library.array(xi), library.array(labels)), (xi, labels))
    )
    assert gp.action == pytest.approx(reference_gp.action, rel=1e-10)
    assert gp.action > solution.action


@pytest.mark.parametrize("examples", [3, 40])
def test_infinite_width_is_the_gaussian_process(network, generator, examples):
    xi, labels = formulas.random_examples(network, examples, 3, generator)
    problem = Problem(xi, labels)
    limit = gp_limit(problem, network, 0.1)
    assert limit.status is Status.GP_LIMIT
    assert limit.evaluations == 1
    for actual, expected in zip(limit.order_parameters, formulas.limit(network)):
        np.testing.assert_allclose(actual, expected, rtol=1e-15)
    distances = []
    for factor in (1e3, 1e4, 1e8):
        wide_network = Network(
            network.heads,
            [factor * n for n in network.widths],
            network.variances,
            network.outputs,
        )
        solution = minimise_action(problem, wide_network, 0.1, tolerance=1e-12)
        distances.append(np.abs(solution.order_parameter - limit.order_parameter).max())
    assert distances[1] == pytest.approx(distances[0] / 10, rel=0.2)  # as 1/N
    assert distances[2] < 1e-4
    new = generator.standard_normal((3, network.n_paths, 3))
    np.testing.assert_allclose(solution.predict(new).mean, limit.predict(new).mean, atol=1e-4)


@pytest.mark.parametrize("space", ["examples", "features"])
def test_one_path_is_the_theory_of_scalar_order_parameters(generator, space):
    """L = 1, H = 1: two numbers u_1 and u_a, found here by SciPy from the written-out action."""
    n0, n1, s0, s1, sa, temperature = 13.0, 9.0, 0.8, 1.3, 0.7, 0.2
    network = Network((1,), (n0, n1), (s0, s1, sa))
    xi, labels = formulas.random_examples(network, 12, 4, generator)
    solution = minimise_action(Problem(xi, labels, space), network, temperature)
    values, vectors = np.linalg.eigh(s0 * xi[:, 0] @ xi[:, 0].T / 4)
    overlaps = (vectors.T @ labels) ** 2

    def action(logs):
        u, top = np.exp(logs)
        noisy = u * values + temperature
        return (
            n1 * (top / sa - math.log(top))
            + n0 * (u / top / s1 - math.log(u) + math.log(top))
            + np.log(noisy).sum()
            + (overlaps / noisy).sum()
        )

    result = scipy.optimize.minimize(
        action,
        [0.0, 0.0],
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 2000},
    )
    u, top = np.exp(result.x)
    assert solution.action * n0 == pytest.approx(result.fun, rel=1e-12)
    assert solution.order_parameters[0].item() == pytest.approx(u, rel=1e-6)
    assert solution.order_parameters[1].item() == pytest.approx(top, rel=1e-6)
    # stationarity in u_a, by hand: N_1 (1/σ_a² - 1/u_a) = N_0 (u/(σ_1² u_a²) - 1/u_a)
    left, right = n1 * (1 / sa - 1 / top), n0 * (u / s1 / top**2 - 1 / top)
    assert left == pytest.approx(right, rel=1e-5)


def test_majorise_minimise_leaves_the_minimum_where_it_is(generator):
    """The fixed point of a map that needs neither steps nor the gradient's norm."""
    network = Network((2, 3), 25, 1.0)
    xi, labels = formulas.random_examples(network, 30, 4, generator)
    temperature = 0.1
    solution = minimise_action(Problem(xi, labels), network, temperature, tolerance=1e-11)
    u, above, _ = to_numpy(solution)
    noisy = np.linalg.inv(formulas.kernel(xi, xi, u) + temperature * np.eye(30))
    scaled = xi / math.sqrt(6 * 4)
    m = np.einsum("mpi,mn,nqi->pq", scaled, noisy, scaled)
    z = np.einsum("mpi,mn,n->pi", scaled, noisy, labels)
    r = z @ z.T
    a = np.kron(np.eye(2), np.linalg.inv(above)) + m / 25
    b = u @ r @ u / 25
    factor = np.linalg.cholesky(a)
    values, vectors = np.linalg.eigh(factor.T @ b @ factor)
    middle = (vectors * (1 + np.sqrt(1 + 4 * values)) / 2) @ vectors.T
    half = np.linalg.solve(factor.T, middle)
    following = np.linalg.solve(factor.T, half.T).T
    following = (following + following.T) / 2
    np.testing.assert_allclose(following @ a @ following - following, b, atol=1e-12)
    np.testing.assert_allclose(following, u, rtol=0, atol=1e-9)


@settings(max_examples=10)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=2), st.integers(0, 2**32 - 1))
def test_relabelling_heads_relabels_the_solution(heads, seed):
    generator = np.random.default_rng(seed)
    network = Network(heads, 15)
    xi, labels = formulas.random_examples(network, 10, 3, generator)
    orders = [generator.permutation(count) for count in heads]
    indices = np.arange(network.n_paths).reshape(heads)[np.ix_(*orders)].ravel()
    reference = minimise_action(Problem(xi, labels), network, 0.2)
    two = minimise_action(Problem(xi[:, indices], labels), network, 0.2)
    assert two.action == pytest.approx(reference.action, rel=1e-10)
    np.testing.assert_allclose(
        two.order_parameter, reference.order_parameter[np.ix_(indices, indices)], atol=1e-6
    )


@pytest.mark.parametrize("space", ["examples", "features"])
def test_random_starts_reach_the_same_minimum(network, generator, space):
    problem = problem_of(network, generator, space=space)
    first = minimise_action(problem, network, 0.1)
    for _ in range(4):
        start = solution_at(network, problem, 0.1, formulas.random_chain(network, generator))
        second = minimise_action(problem, network, 0.1, start=start)
        assert second.action == pytest.approx(first.action, rel=1e-10)
        for actual, expected in zip(to_numpy(second), to_numpy(first)):
            np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_a_warm_start_is_shorter_and_ends_at_the_same_minimum(library, markov):
    problem = Problem(library.array(markov[0]), library.array(markov[1]))
    network = Network((2, 2), 10)
    neighbour = minimise_action(problem, Network((2, 2), 11), 0.01)
    cold = minimise_action(problem, network, 0.01)
    warm = minimise_action(problem, network, 0.01, start=neighbour)
    assert warm.evaluations < cold.evaluations
    assert warm.action == pytest.approx(cold.action, rel=1e-11)
    repeated = minimise_action(problem, network, 0.01, start=cold)
    assert repeated.evaluations <= 3


def test_curvature_is_what_a_warm_start_saves_by(markov):
    problem, network = Problem(*markov), Network((2, 2), 10)
    neighbour = minimise_action(problem, network, 0.02)
    bare = dataclasses.replace(neighbour, curvature=())
    cold = minimise_action(problem, network, 0.01)
    close = minimise_action(problem, network, 0.01, start=bare)
    warm = minimise_action(problem, network, 0.01, start=neighbour)
    assert warm.evaluations < min(close.evaluations, cold.evaluations)
    for actual, expected in zip(to_numpy(warm), to_numpy(cold)):
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_a_gaussian_process_limit_is_a_start_like_any_other(generator):
    network = Network((2,), 10)
    problem = problem_of(network, generator)
    start = gp_limit(problem, network, 0.1)
    reference = minimise_action(problem, network, 0.1)
    two = minimise_action(problem, network, 0.1, start=start)
    assert two.evaluations == reference.evaluations
    np.testing.assert_allclose(two.order_parameter, reference.order_parameter, atol=1e-9)


def test_histories_fall(network, generator):
    solution = minimise_action(problem_of(network, generator), network, 0.05)
    actions, gradients = solution.action_history, solution.gradient_history
    assert len(actions) == len(gradients) == solution.iterations + 1
    assert solution.evaluations > solution.iterations
    assert (np.diff(actions) <= 1e-11 * np.abs(actions[:-1])).all()
    assert gradients[-1] == solution.gradient_norm == gradients.min()
    assert actions[-1] == pytest.approx(solution.action, rel=1e-14)  # a sum in another order
    limit = gp_limit(solution.problem, network, 0.05)
    assert actions[0] == pytest.approx(limit.action)


def test_too_few_evaluations(generator):
    network = Network((2, 2), 10)
    problem = problem_of(network, generator)
    message = r"limit on evaluations .* after 5 evaluations .*, the tolerance 1e-08. Raise max"
    with pytest.raises(pk.MinimisationError, match=message) as caught:
        minimise_action(problem, network, 0.1, max_evaluations=5)
    solution = caught.value.solution
    assert solution.status is Status.MAX_EVALUATIONS
    assert not solution.status.ok
    assert solution.evaluations == 5
    assert solution.action < gp_limit(problem, network, 0.1).action
    unfinished = minimise_action(problem, network, 0.1, max_evaluations=5, throw=False)
    assert unfinished.status is Status.MAX_EVALUATIONS
    assert unfinished.action == solution.action
    finished = minimise_action(problem, network, 0.1, start=unfinished)
    assert finished.status is Status.CONVERGED
    only = minimise_action(problem, network, 0.1, max_evaluations=1, throw=False)
    np.testing.assert_allclose(only.order_parameter, np.eye(4))


def test_a_tolerance_below_rounding(generator):
    network = Network((2, 2), 10)
    problem = problem_of(network, generator)
    with pytest.raises(pk.MinimisationError, match="rounding hides any further descent") as caught:
        minimise_action(problem, network, 0.1, tolerance=1e-30)
    stalled = caught.value.solution
    assert stalled.status is Status.STALLED
    assert stalled.gradient_norm < 1e-8
    assert np.isfinite(stalled.predict(np.ones((1, 4, 4))).mean).all()


def test_single_precision(library, generator):
    network = Network((2, 2), 20)
    xi, labels = formulas.random_examples(network, 30, 4, generator)
    single = Problem(library.array(xi, "float32"), library.array(labels, "float32"))
    solution = minimise_action(single, network, 0.1, tolerance=1e-2)
    assert solution.status is Status.CONVERGED
    assert str(solution.order_parameter.dtype).endswith("float32")
    double = minimise_action(Problem(xi, labels), network, 0.1)
    assert solution.action == pytest.approx(double.action, rel=1e-4)
    prediction = solution.predict(library.array(xi, "float32"))
    assert str(prediction.mean.dtype).endswith("float32")
    np.testing.assert_allclose(
        library.numpy(prediction.mean), double.predict(xi).mean, rtol=0, atol=5e-3
    )


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
@pytest.mark.parametrize("space", ["examples", "features"])
@pytest.mark.parametrize("width", [1, 2, 1e9])
@pytest.mark.parametrize("temperature", [1e-4, 1e4])
def test_extremes_converge(generator, space, width, temperature):
    """Widths below the number of paths, very large widths, tiny and huge temperatures."""
    network = Network((3, 2), width)
    problem = problem_of(network, generator, examples=40, space=space)
    solution = minimise_action(problem, network, temperature, throw=False)
    if not solution.status.ok:  # the action itself is of order 1e5, and so is what rounding hides
        assert (width, temperature) in ((1, 1e-4), (2, 1e-4))
        assert solution.gradient_norm < 2e-6 * abs(solution.action)
    for matrix in to_numpy(solution):
        assert np.linalg.eigvalsh(matrix)[0] > 0
    if temperature == 1e4:  # the examples say nothing
        np.testing.assert_allclose(solution.order_parameter, np.eye(6), atol=2e-2)


def test_a_tiny_temperature_with_more_features_than_examples(generator):
    network = Network((2, 2), 10)
    problem = problem_of(network, generator, examples=10, width=6, space="examples")
    for temperature in (1e-8, 1e-12):
        solution = minimise_action(problem, network, temperature)
        assert solution.status is Status.CONVERGED


def test_unusual_examples(library, generator):
    network = Network((2, 2), 10)
    xi, labels = formulas.random_examples(network, 6, 3, generator)
    cases = {
        "duplicated": (np.concatenate([xi, xi]), np.concatenate([labels, labels])),
        "contradictory": (np.concatenate([xi, xi]), np.concatenate([labels, -labels])),
        "constant labels": (xi, np.ones(6)),
        "zero labels": (xi, np.zeros(6)),
        "one": (xi[:1], labels[:1]),
        "all zero": (np.zeros_like(xi), labels),
        "equal paths": (np.repeat(xi[:, :1], 4, axis=1), labels),
    }
    for name, (inputs, targets) in cases.items():
        for space in ("examples", "features"):
            problem = Problem(library.array(inputs), library.array(targets), space)
            solution = minimise_action(problem, network, 0.01)
            assert solution.status is Status.CONVERGED, name
            chain = [library.numpy(matrix) for matrix in solution.order_parameters]
            assert np.isfinite(chain[0]).all(), name
            if name == "all zero":
                np.testing.assert_allclose(chain[0], np.eye(4), atol=1e-7)
            if name == "zero labels":  # only the determinant acts: the kernel shrinks
                assert np.linalg.eigvalsh(chain[0])[-1] <= 1 + 1e-7


def test_scaling_labels_temperature_and_readout_together(generator):
    """Labels times s and T times s² is the readout's variance times s²: one action, shifted."""
    base = Network((2,), (12, 9), (0.9, 1.2, 0.7))
    scaled = Network((2,), (12, 9), (0.9, 1.2, 0.7 * 9))
    xi, labels = formulas.random_examples(base, 10, 3, generator)
    reference = minimise_action(Problem(xi, labels), base, 0.1)
    two = minimise_action(Problem(xi, 3 * labels), scaled, 0.9)
    np.testing.assert_allclose(two.order_parameter, 9 * reference.order_parameter, atol=1e-6)
    np.testing.assert_allclose(two.predict(xi).mean, 3 * reference.predict(xi).mean, atol=1e-6)


def test_independent_outputs_of_one_task_share_its_order_parameter(generator):
    """Two outputs with orthogonal, equivalent labels: U is the same block for both outputs."""
    network = Network((2,), 14, outputs=2)
    xi, labels = formulas.random_examples(Network((2,), 14), 10, 3, generator)
    xi = np.concatenate([xi, xi])  # symmetric under exchange of the outputs
    pairs_ = np.concatenate([np.stack([labels, 0 * labels], 1), np.stack([0 * labels, labels], 1)])
    u = minimise_action(Problem(xi, pairs_), network, 0.1).order_parameter
    np.testing.assert_allclose(u[::2, ::2], u[1::2, 1::2], atol=1e-7)
    np.testing.assert_allclose(u[::2, 1::2], u[1::2, ::2], atol=1e-7)


def test_bad_arguments_are_named(generator):
    network = Network((2, 2), 10)
    problem = problem_of(network, generator)
    for solve in (minimise_action, gp_limit):
        for temperature in (0, -0.1, math.nan, math.inf):
            with pytest.raises(ValueError, match="temperature must be positive and finite"):
                solve(problem, network, temperature)
        with pytest.raises(ValueError, match="temperature is missing: the squared loss needs one"):
            solve(problem, network)
        for temperature in ("0.1", [0.1, 1]):
            with pytest.raises(TypeError, match="temperature must be one number, but is "):
                solve(problem, network, temperature)
        message = r"network has heads \(2,\), hence 2 paths, but the problem has 4 paths; build"
        with pytest.raises(ValueError, match=message):
            solve(problem, Network((2,), 10), 0.1)
        with pytest.raises(ValueError, match=r"network has 2 outputs, .* set outputs=1 in Network"):
            solve(problem, Network((2, 2), 10, outputs=2), 0.1)
    with pytest.raises(ValueError, match="tolerance must be positive and finite, but is 0"):
        minimise_action(problem, network, 0.1, tolerance=0)
    with pytest.raises(ValueError, match="max_evaluations must be a whole number from 1, not 0"):
        minimise_action(problem, network, 0.1, max_evaluations=0)
    second = Network((4,), 10)
    start = minimise_action(problem, second, 0.1)
    message = r"start has order parameters of sizes \(4, 1\), .* needs \(4, 2, 1\); start from"
    with pytest.raises(ValueError, match=message):
        minimise_action(problem, network, 0.1, start=start)


@pytest.mark.parametrize(
    ("heads", "skips", "sizes"),
    [
        ((2, 2), None, (4, 2, 1)),
        ((4, 1), None, (4, 1, 1)),  # of other sizes alone
        ((2, 1), (0.5, 1.0), (6, 2, 1)),  # as below, of other leading blocks
        ((3, 1), (None, 0.5), (6, 2, 1)),
    ],
)
def test_a_warm_start_has_the_sizes_of_the_network(heads, skips, sizes):
    """Of all order parameters, and of their blocks that a skip repeats from above."""
    generator = np.random.default_rng(0)
    network = Network(heads, 10, skips=skips)
    assert network.sizes == sizes
    others = [
        Network((2, 2), 10),
        Network((4, 1), 10),
        Network((1, 4), 10),
        Network((2, 1), 10, skips=(0.5, 1.0)),
        Network((3, 1), 10, skips=(None, 0.5)),
        Network((3, 2), 10),
    ]
    problems = {
        paths: Problem(generator.normal(size=(5, paths, 2)), np.ones(5)) for paths in (4, 6)
    }
    for other in others:
        start = gp_limit(problems[other.n_paths], other, 0.1)
        problem = problems[network.n_paths]
        same = other.heads == network.heads and other.skips == network.skips
        if same:
            assert minimise_action(problem, network, 0.1, start=start).status.ok
            continue
        with pytest.raises(ValueError, match="start has order parameters of sizes"):
            minimise_action(problem, network, 0.1, start=start)


def test_a_kernel_that_cannot_be_factorised_at_the_start_is_reported():
    problem = Problem(np.ones((3, 1, 1)), np.ones(3), "examples")
    with pytest.raises(pk.NotPositiveDefiniteError, match="temperature 1e-300"):
        minimise_action(problem, Network((1,), 10), 1e-300)


def test_arguments_of_the_wrong_kind_are_named():
    problem = Problem(np.ones((3, 1, 2)), np.ones(3))
    network = Network((1,), 10)
    with pytest.raises(TypeError, match="problem must be a Problem, not ndarray"):
        minimise_action(np.ones((3, 1, 2)), network, 0.1)
    with pytest.raises(TypeError, match="start must be a Solution, not tuple"):
        minimise_action(problem, network, 0.1, start=())


def markov():
    realisation = HiddenMarkov(test_examples=2).realise(0)
    train = realisation.train
    xi = pk.attentioned_inputs(train.inputs, realisation.layers, realisation.readout)
    return xi, train.labels


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_large_variances_do_not_hide_the_gradient():
    """The gradient in U has the units of 1/U, so it is small far from the minimum too."""
    problem = Problem(*markov())
    solution = minimise_action(problem, Network((2, 2), 10, variances=1000.0), 0.01)
    at_gp = pk.gp_limit(problem, solution.network, 0.01)
    assert at_gp.gradient_norm < 1e-7
    assert solution.action < at_gp.action - 100


def test_single_precision_keeps_weak_signals():
    """Directions far below the leading one carry labels; float32 must not round them away."""
    generator = np.random.default_rng(0)
    strong = generator.standard_normal((200, 1, 1)) * np.ones((200, 2, 20))
    weak = np.zeros((200, 2, 20))
    weak[:, :, :4] = 1e-3 * generator.standard_normal((200, 2, 4))
    labels = np.sign(weak[:, 0, :4].sum(axis=1))
    xi = strong + weak
    single = Problem(xi.astype("float32"), labels.astype("float32"))
    assert single.n_features == Problem(xi, labels).n_features == 5


def test_single_precision_agrees_with_double_on_the_markov_task():
    xi, labels = markov()
    single = Problem(xi.astype("float32"), labels.astype("float32"))
    for width in (10, 1000):
        network = Network((2, 2), width)
        reference = minimise_action(Problem(xi, labels), network, 0.01)
        solution = minimise_action(single, network, 0.01)
        assert solution.action == pytest.approx(reference.action, rel=1e-5)
        mean = solution.predict(xi[:20].astype("float32")).mean
        np.testing.assert_allclose(mean, reference.predict(xi[:20]).mean, atol=5e-3)


@pytest.mark.parametrize("scale", [1e4, 1e6, 1e8])
def test_a_gradient_of_rounding_is_no_failure_by_default(scale, generator):
    """Of large inputs U is tiny, and its gradient, of unit 1/U, all rounding."""
    network = Network((2, 2), 5)
    xi, labels = formulas.random_examples(network, 40, 30, generator)
    with pytest.warns(pk.ScaleWarning, match="kernel is large against the labels"):
        solution = minimise_action(Problem(scale * xi, labels), network, 0.01)
    assert solution.status is Status.CONVERGED
    assert solution.gradient_norm > 1e-8
    again = minimise_action(solution.problem, network, 0.01, start=solution, throw=False)
    assert again.action == pytest.approx(solution.action, rel=1e-12)
    np.testing.assert_allclose(again.order_parameter, solution.order_parameter, rtol=1e-5)


def test_a_stall_far_from_a_minimum_is_a_failure(generator, monkeypatch):
    problem = problem_of(Network((2, 2), 5), generator)
    monkeypatch.setattr(quasi_newton, "_IDLE", 0)  # no more than one step
    with pytest.raises(pk.MinimisationError, match=r"at width 5 and temperature .*: rounding"):
        minimise_action(problem, Network((2, 2), 5), 0.1)


def test_a_stalled_minimisation_gives_the_flattest_of_the_lowest_points():
    generator = np.random.default_rng(3)
    xi = generator.standard_normal((300, 2, 5))
    problem = Problem(xi, xi[:, 0, 0])
    solution = minimise_action(problem, Network((2,), 0.5), 1e-3, tolerance=1e-13, throw=False)
    assert solution.status is Status.STALLED
    lowest = solution.action_history.min()
    low = solution.action_history <= lowest + 1e-11 * max(1, abs(lowest))
    assert solution.gradient_norm == solution.gradient_history[low].min()
    assert len(solution.action_history) == solution.iterations + 1


def test_jax_compiles_few_programs_for_another_number_of_examples(generator):
    """Each takes tens of milliseconds, however small it is."""
    jax = pytest.importorskip("jax")
    network, programs = Network((2, 2), 10), []
    xi, labels = map(jax.numpy.asarray, formulas.random_examples(network, 13, 4, generator))

    def note(event, duration, **rows):
        if event.endswith("jaxpr_to_mlir_module_duration"):
            programs.append(rows)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        minimise_action(Problem(xi, labels), network, 0.1).predict(xi)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert 3 < len(programs) < 16


def test_the_flattest_of_the_lowest_steps_is_the_solution():
    """A step that lies higher is none, however flat; of those that rounding hides the flattest."""

    def flattest(*steps):
        history = History()
        for action, norm in steps:
            history.append(Evaluation(np.zeros(0), [], action, 0.0, norm))
        return history.flattest.gradient_norm

    assert flattest((5.0, 1e-9), (1.0, 1e-2)) == 1e-2
    assert flattest((5.0, 1e-9), (1.0, 1e-2), (1.0 + 1e-13, 1e-4)) == 1e-4
    assert flattest((1.0, 1e-4), (1.0 - 1e-13, 1e-2)) == 1e-4


def orthogonal_heads(seed):
    """Heads that see the same signal in orthogonal features: the limit and its slope agree."""
    generator = np.random.default_rng([seed, 7])
    heads, examples = int(generator.integers(2, 4)), int(generator.integers(10, 40))
    width, temperature = np.exp(generator.uniform(1, 4.6)), 10 ** generator.uniform(-3, -0.5)
    labels = np.sign(generator.normal(size=examples))
    xi = 10 ** generator.uniform(-2, 0.5) * labels[:, None, None] * np.eye(heads)
    return pk.Problem(xi, labels), pk.Network((1, heads), width), temperature


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_no_saddle_of_a_symmetric_problem_is_a_solution():
    kinds = set()
    for seed in range(12):
        problem, network, temperature = orthogonal_heads(seed)
        solution = pk.minimise_action(problem, network, temperature)
        warm = pk.minimise_action(problem, network, temperature / 2, start=solution)
        kinds |= {solution.stability().kind, warm.stability().kind}
    assert kinds == {"minimum", "marginal"}


@pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
def test_a_ring_of_minima_counts_once():
    labels = np.sign(np.random.default_rng(0).normal(size=24))
    problem = pk.Problem(0.05 * labels[:, None, None] * np.eye(2), labels)
    for starts in (None, 24):
        solution = pk.minimise_action(problem, pk.Network((1, 2), 6), 0.1, starts=starts)
        assert solution.stability().kind == "marginal"
        assert not solution.other_minima


def test_infinite_widths_are_the_gaussian_process_limit(generator):
    xi = generator.normal(size=(20, 4, 5))
    problem = pk.Problem(xi, np.sign(xi[:, 0, 0]))
    solution = pk.minimise_action(problem, pk.Network((2, 2), np.inf), 0.1)
    limit = pk.gp_limit(problem, pk.Network((2, 2), 10), 0.1)
    assert solution.status is pk.Status.GP_LIMIT
    np.testing.assert_array_equal(solution.order_parameter, limit.order_parameter)
    assert solution.log_evidence == pytest.approx(limit.log_evidence, rel=1e-12)
