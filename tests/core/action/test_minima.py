"""Several minima of the action: the lowest is returned, and depends on the point alone."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathkernel_core as pk
from pathkernel_core.action import descents, minima
from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.action.minima import concavity, may_have_several
from pathkernel_core.energy import label_spectrum
from pathkernel_core.paths.input_kernels import total_kernel
from pathkernel_core.paths.order_parameter import scaled_order_parameter

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")


@pytest.fixture(scope="module")
def silent():
    """Twenty examples of which one head out of two tells the label, and a small kernel."""
    rng = np.random.default_rng(3)
    xi = rng.normal(size=(20, 2, 4))
    labels = np.sign(xi[:, 0, 0])
    return 0.003 * xi, labels, pk.Network((2,), 20)


def markov_problem(markov, scale=1.0):
    xi, labels = markov
    return pk.Problem(scale * xi, labels)


def exact_quadrature(xi, labels, network):
    limit = scaled_order_parameter(network, np.diag(network.limit_diagonal))
    limit = limit[:: network.outputs, :: network.outputs]
    kernel = total_kernel(xi, limit, variance=network.variances[0])
    values, vectors = np.linalg.eigh(kernel)
    powers = (vectors.T @ labels.reshape(len(xi), -1)) ** 2
    return np.maximum(values, 0), powers.sum(axis=1)


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("skips", [None, 0.5])
@pytest.mark.parametrize("exact", [True, False])
def test_quadratures_are_sums_over_the_kernels_eigenvectors(
    library, space, outputs, skips, exact, monkeypatch
):
    monkeypatch.setattr(label_spectrum, "_EXACT", 256 if exact else 0)
    rng = np.random.default_rng(0)
    network = pk.Network((2,), 7, (1.5, 0.5, 2.0), outputs, skips)
    xi, labels = rng.normal(size=(9, network.n_paths, 3)), rng.normal(size=(9, outputs))
    problem = pk.Problem(library.array(xi), library.array(labels), space)
    spectrum = problem.label_spectrum(network)
    values, powers = exact_quadrature(xi, labels, network)
    for temperature in (1e-3, 0.1, 10.0):
        exact = (powers / (values + temperature)).sum()
        nodes, weights = spectrum.labels.nodes, spectrum.labels.weights
        assert (weights / (nodes + temperature)).sum() == pytest.approx(exact, rel=1e-8)
        spanned = powers[values > 1e-12 * values.max()].sum()
        share = (powers * values / (values + temperature)).sum() / spanned
        assert spectrum.explained_share(temperature) == pytest.approx(share, abs=1e-8)
    assert spectrum.mean_diagonal == pytest.approx(values.sum() / 9)
    assert spectrum.mean_label_square == pytest.approx((labels**2).mean())


def test_random_vectors_estimate_the_sum_over_all_modes(monkeypatch):
    monkeypatch.setattr(label_spectrum, "_EXACT", 0)
    rng = np.random.default_rng(1)
    xi, labels = rng.normal(size=(80, 4, 30)), rng.normal(size=80)
    network = pk.Network((2, 2), 10)
    spectrum = pk.Problem(xi, labels).label_spectrum(network)
    values, _ = exact_quadrature(xi, labels, network)
    estimate = (spectrum.modes.weights * np.log1p(spectrum.modes.nodes / 0.1)).sum()
    assert estimate == pytest.approx(np.log1p(values / 0.1).sum(), rel=0.1)


def test_concavity_is_that_of_the_action_along_the_scaled_limit():
    """With one path and one weight per layer, scaling is the only direction there is."""
    xi, labels = np.full((1, 1, 1), 0.05), np.ones(1)
    network, temperature = pk.Network((1,), 3), 0.01
    problem = pk.Problem(xi, labels)
    result = concavity(problem.label_spectrum(network), network, temperature)
    step = 1e-3

    def energy(scale):
        variance = np.exp(scale) * xi[0, 0, 0] ** 2 + temperature
        return np.log(variance) + 1 / variance

    curvatures = (
        np.array(
            [energy(t + step) - 2 * energy(t) + energy(t - step) for t in np.linspace(0, 6, 61)]
        )
        / step**2
    )
    force = 3 * np.expm1(np.linspace(0, 6, 61) / 2)  # two layers of the same width share t
    assert result.ratio == pytest.approx((-curvatures * 2 / (3 + force)).max(), rel=1e-2)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_a_bound_rules_several_minima_out(seed):
    """It is never below the ratio that it bounds, and often of its size."""
    generator = np.random.default_rng(seed)
    nodes = 10 ** generator.uniform(-4, 2, 12)
    labels = label_spectrum.Quadrature(nodes, generator.exponential(size=12))
    modes = label_spectrum.Quadrature(nodes, np.full(12, generator.choice([0.0, 1.0])))
    spectrum = label_spectrum.LabelSpectrum(labels, modes, nodes.mean(), 1.0)
    network = pk.Network((2, 2), generator.uniform(1, 50, 3).tolist())
    temperature = 10 ** generator.uniform(-3, 1)
    ratio = concavity(spectrum, network, temperature).ratio
    assert minima.largest_ratio(spectrum, network, temperature) >= ratio * (1 - 1e-12)


def test_a_search_ends_where_its_starts_agree(monkeypatch):
    """Eight heads, of which one tells the label: to switch on the others finds nothing new."""
    rng = np.random.default_rng(3)
    xi = rng.normal(size=(20, 8, 4))
    problem, network = pk.Problem(0.005 * xi, np.sign(xi[:, 0, 0])), pk.Network((8,), 20)
    solution = pk.minimise_action(problem, network, 0.01)
    monkeypatch.setattr(descents, "AGREEING", 100)
    thorough = pk.minimise_action(problem, network, 0.01)
    assert solution.evaluations < thorough.evaluations
    assert solution.action == pytest.approx(thorough.action, rel=1e-9)
    assert len(solution.other_minima) == len(thorough.other_minima) > 0


def test_the_lowest_minimum_is_returned_and_the_others_are_told(silent):
    xi, labels, network = silent
    problem = pk.Problem(xi, labels)
    limit = pk.minimise_action(problem, network, 0.01, starts=1)
    solution = pk.minimise_action(problem, network, 0.01)
    assert solution.action < limit.action - 1
    assert solution.evaluations > limit.evaluations
    assert not limit.other_minima
    assert any(second.action == pytest.approx(limit.action) for second in solution.other_minima)
    actions = [solution.action, *(second.action for second in solution.other_minima)]
    assert actions == sorted(actions)
    for second in solution.other_minima:
        assert second.status.ok
        assert second.order_parameter.shape == (2, 2)
        assert np.linalg.eigvalsh(second.order_parameter)[0] > 0


def test_a_given_start_is_the_only_one_and_says_so(silent):
    xi, labels, network = silent
    problem = pk.Problem(xi, labels)
    limit = pk.minimise_action(problem, network, 0.01, starts=1)
    repeated = pk.minimise_action(problem, network, 0.01, start=limit)
    assert repeated.action == pytest.approx(limit.action)
    assert "without a search for others" in repeated.note
    with pytest.raises(ValueError, match="start excludes starts"):
        pk.minimise_action(problem, network, 0.01, start=limit, starts=2)
    assert pk.minimise_action(problem, network, 0.01, starts=np.int64(1)).action == limit.action
    for starts in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="starts must be a whole number from 1"):
            pk.minimise_action(problem, network, 0.01, starts=starts)


def test_more_starts_never_give_a_higher_action(silent):
    xi, labels, network = silent
    problem = pk.Problem(xi, labels)
    actions = [
        pk.minimise_action(problem, network, 0.01, starts=starts).action for starts in (1, 2, 6, 12)
    ]
    assert all(additional <= fewer + 1e-9 for fewer, additional in itertools.pairwise(actions))


def test_relabelled_heads_have_the_same_minima(silent):
    xi, labels, network = silent
    first = pk.minimise_action(pk.Problem(xi, labels), network, 0.01)
    second = pk.minimise_action(pk.Problem(xi[:, ::-1], labels), network, 0.01)
    assert first.action == pytest.approx(second.action, rel=1e-8)
    np.testing.assert_allclose(
        first.order_parameter, second.order_parameter[::-1, ::-1], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("variance", "width", "action"),
    [
        (0.05, 20, 208.374701),
        (0.05, 70, 145.573387),
        (0.05, 100, 123.323358),
        (0.1, 250, 57.707407),
    ],
)
def test_markov_chains_of_small_variance_do_not_stay_silent(markov, variance, width, action):
    problem = markov_problem(markov)
    solution = pk.minimise_action(problem, pk.Network((2, 2), width, variance), 0.01)
    assert solution.action == pytest.approx(action, abs=1e-5)
    assert solution.other_minima


def test_markov_chains_of_small_inputs_use_their_paths(markov):
    solution = pk.minimise_action(markov_problem(markov, 0.03), pk.Network((2, 2), 10), 0.01)
    assert solution.action == pytest.approx(60.00, abs=0.01)


def test_the_papers_networks_are_not_searched(markov):
    problem = markov_problem(markov)
    for width in (10, 30, 50, 100, 300, 500, 1000):
        network = pk.Network((2, 2), width)
        assert not may_have_several(problem, network, 0.01)
        once = pk.minimise_action(problem, network, 0.01, starts=1)
        assert pk.minimise_action(problem, network, 0.01).evaluations == once.evaluations


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_no_random_start_ends_lower(seed):
    rng = np.random.default_rng(seed)
    network = pk.Network((2, 2), float(rng.uniform(4, 200)))
    xi = rng.normal(size=(15, 4, 3)) * np.exp(rng.uniform(-5, 1))
    labels, temperature = np.sign(xi[:, 0, 0]), float(10 ** rng.uniform(-3, -1))
    problem = pk.Problem(xi, labels)
    solution = pk.minimise_action(problem, network, temperature, throw=False)
    coordinates = ChainCoordinates(network)
    for _ in range(6):
        point = rng.normal(size=coordinates.size) + 2 * rng.normal()
        factors = coordinates.factors(coordinates.relative_factors(point))
        start = pk.Solution(**{**vars(solution), "factors": tuple(factors), "curvature": ()})
        try:
            second = pk.minimise_action(problem, network, temperature, start=start, throw=False)
        except pk.NotPositiveDefiniteError:  # the start is too large
            continue
        assert second.action > solution.action - 1e-6 * max(1.0, abs(solution.action))


def test_kernels_out_of_proportion_are_warned_of():
    rng = np.random.default_rng(0)
    xi, labels = rng.normal(size=(20, 2, 30)), np.sign(rng.normal(size=20))
    network = pk.Network((2,), 50)
    for scale, name in ((1e-3, "small against the temperature"), (1e3, "large against the labels")):
        with pytest.warns(pk.ScaleWarning, match=name):
            pk.minimise_action(pk.Problem(scale * xi, labels), network, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pk.minimise_action(pk.Problem(xi, labels), network, 0.1)
        pk.minimise_action(pk.Problem(xi, 0 * labels), network, 0.1)


def test_labels_that_no_feature_spans_are_no_reason_to_warn():
    rng = np.random.default_rng(0)
    xi, labels = rng.normal(size=(2000, 2, 2)), rng.choice([-1.0, 1.0], size=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pk.minimise_action(pk.Problem(xi, labels), pk.Network((2,), 50), 0.01)


@pytest.mark.parametrize("scale", [1e155, 1e200])
def test_an_overflow_is_no_small_kernel(scale):
    rng = np.random.default_rng(0)
    xi, labels = scale * rng.normal(size=(6, 2, 3)), rng.choice([-1.0, 1.0], size=6)
    with np.errstate(over="ignore"):
        problem = pk.Problem(xi, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pk.ScaleWarning)
        with pytest.raises(pk.NotPositiveDefiniteError, match="rescale"):
            pk.minimise_action(problem, pk.Network((2,), 50), 0.1)


@pytest.mark.parametrize("widths", [(3, 1e9, 5), 40.0])
def test_one_minimum_is_not_counted_twice(widths):
    """In single precision, or where a width hardly counts, a descent ends far from the minimum."""
    rng = np.random.default_rng(1)
    xi, labels = 0.05 * rng.normal(size=(20, 4, 3)), rng.choice([-1.0, 1.0], size=20)
    network = pk.Network((2, 2), widths)
    for dtype in (np.float64, np.float32):
        problem = pk.Problem(xi.astype(dtype), labels.astype(dtype))
        solution = pk.minimise_action(problem, network, 0.01, starts=10, throw=False)
        assert not solution.other_minima


def test_gradients_near_a_crossing_say_whose_they_are(markov):
    torch = pytest.importorskip("torch")
    xi, labels = map(torch.as_tensor, markov)
    problem = markov_problem(markov)
    networks = [pk.Network((2, 2), width, 0.05) for width in np.arange(90.0, 91.6, 0.25)]
    solutions = [pk.minimise_action(problem, network, 0.01) for network in networks]
    solution = min(
        (solution for solution in solutions if solution.other_minima),
        key=lambda solution: (
            solution.network.width * (solution.other_minima[0].action - solution.action)
        ),
    )
    assert solution.close_minima, "no width of these is near the crossing"
    assert "Close minima" in solution.note
    with pytest.warns(pk.CloseMinimaWarning, match="state of the lowest"):
        pk.differentiable_solution(xi, labels, solution.network, 0.01)
