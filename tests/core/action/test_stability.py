"""Stability of solutions and linear response, against automatic differentiation and reruns."""

import dataclasses
import math

import numpy as np
import pytest
import scipy

import pathkernel_core as pk
from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.action.stability import DENSE, Stability
from pathkernel_core.prediction.differentiable import _action

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")

CASES = {  # heads, outputs, skips, examples
    "4 paths": ((2, 2), 1, None, 15),
    "16 paths": ((4, 4), 1, None, 30),
    "two outputs": ((2, 2), 2, None, 15),
    "skips": ((2, 2), 1, 0.7, 25),
}
TEMPERATURE, WIDTH = 0.05, 20


def random_problem(heads, outputs, skips, examples, library=None, space="examples"):
    rng = np.random.default_rng(0)
    variances = rng.uniform(0.5, 2, len(heads) + 2)
    network = pk.Network(heads, WIDTH, tuple(variances), outputs, skips)
    xi = rng.normal(size=(examples, network.n_paths, 4))
    labels = rng.normal(size=(examples, outputs)) if outputs > 1 else np.sign(xi[:, 0, 0])
    array = library.array if library else np.asarray
    return pk.Problem(array(xi), array(labels), space), network, xi, labels


def minimum(problem, network, temperature=TEMPERATURE, **options):
    tolerance = options.pop("tolerance", 1e-12)
    return pk.minimise_action(
        problem, network, temperature, tolerance=tolerance, throw=False, **options
    )


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
@pytest.mark.parametrize("case", CASES)
def test_the_hessian_is_that_of_automatic_differentiation(case, space):
    torch = pytest.importorskip("torch")
    problem, network, xi, labels = random_problem(*CASES[case], space=space)
    solution = minimum(problem, network)

    def action(coordinates):
        arrays = (
            torch.tensor(np.asarray(a)) for a in (xi, labels.reshape(len(xi), -1), TEMPERATURE)
        )
        variances = torch.tensor(np.array(network.variances))
        return _action(coordinates, *arrays, variances, network=network, space="examples")

    point = torch.tensor(ChainCoordinates(network).from_factors(solution.factors))
    full = torch.autograd.functional.hessian(action, point).numpy() / network.width
    np.testing.assert_allclose(solution.hessian.matrix, full, atol=1e-11 * abs(full).max())
    stability = solution.stability(3)
    np.testing.assert_allclose(stability.eigenvalues, np.linalg.eigvalsh(full)[:3], atol=1e-9)
    assert stability.kind == "minimum"


def test_lanczos_finds_the_eigenvalues_of_the_whole_matrix(monkeypatch):
    problem, network, *_ = random_problem(*CASES["16 paths"])
    solution = minimum(problem, network)
    whole = solution.stability(2)
    response = solution.response().temperature
    monkeypatch.setattr("pathkernel_core.action.stability.DENSE", 0)
    lanczos = solution.stability(2)
    np.testing.assert_allclose(lanczos.eigenvalues, whole.eigenvalues, rtol=1e-6)
    np.testing.assert_allclose(abs(lanczos.modes), abs(whole.modes), atol=1e-2 * whole.modes.max())
    np.testing.assert_allclose(
        solution.response().temperature, response, atol=1e-6 * abs(response).max()
    )


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
@pytest.mark.parametrize("case", CASES)
def test_the_response_is_the_difference_between_neighbouring_minima(case, space):
    problem, network, xi, labels = random_problem(*CASES[case], space=space)
    solution = minimum(problem, network)
    step = 1e-5

    def order_parameter(xi=xi, labels=labels, temperature=TEMPERATURE, network=network):
        neighbour = pk.Problem(xi, labels, space)
        return minimum(neighbour, network, temperature, start=solution).order_parameter

    def compare(response, **sides):
        """Central difference of the two values of a parameter, whose difference is 2 steps."""
        ((name, (above, below)),) = sides.items()
        difference = (order_parameter(**{name: above}) - order_parameter(**{name: below})) / 2
        assert abs(response - difference / step).max() < 1e-5 * abs(response).max()

    response = solution.response()
    compare(response.temperature, temperature=(TEMPERATURE + step, TEMPERATURE - step))
    for number, derivative in enumerate(response.variances):
        unit = step * np.eye(len(network.variances))[number]
        sides = [
            dataclasses.replace(network, variances=tuple(network.variances + sign * unit))
            for sign in (1, -1)
        ]
        compare(derivative, network=sides)
    for path in range(0, network.n_paths, 3):
        scale = np.exp(step * np.eye(network.n_paths)[path])[:, None]
        compare(response.path_norms[path], xi=(xi * scale, xi / scale))
    change = np.random.default_rng(1).normal(size=labels.shape)
    if space == "features":
        with pytest.raises(ValueError, match='space="examples"'):
            response.along_labels(change)
    else:
        compare(
            response.along_labels(change), labels=(labels + step * change, labels - step * change)
        )
        every = np.tensordot(change.reshape(len(xi), -1), response.labels, 2)
        np.testing.assert_allclose(every, response.along_labels(change), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("space", ["examples", "features"])
def test_every_array_library_gives_the_same(library, space):
    problem, network, *_ = random_problem(*CASES["4 paths"], library, space)
    expected, *_ = random_problem(*CASES["4 paths"], None, space)
    solution, reference = minimum(problem, network), minimum(expected, network)
    np.testing.assert_allclose(
        solution.stability().eigenvalues, reference.stability().eigenvalues, rtol=1e-8
    )
    for name in ("temperature", "variances", "path_norms"):
        ours, theirs = (getattr(s.response(), name) for s in (solution, reference))
        np.testing.assert_allclose(ours, theirs, atol=1e-7 * abs(theirs).max())


def symmetric_problem(paths=2, scale=0.1, width=5):
    """Paths that tell the label equally well, in feature spaces that are orthogonal."""
    labels = np.sign(np.random.default_rng(0).normal(size=20))
    xi = scale * labels[:, None, None] * np.eye(paths)
    return pk.Problem(xi, labels), pk.Network((1, paths), width), 0.01


def symmetric_saddle(problem, network, temperature):
    """Solution of lowest action among U_1, U_2 and u_a that are multiples of 1."""
    coordinates, form = ChainCoordinates(network), problem.form

    def solution_at(logs):
        x = coordinates.scale_limit(logs)
        factors = coordinates.factors(coordinates.relative_factors(x))
        energy, _ = form.energy_and_gradient(factors[0], temperature, None)
        return factors, energy + coordinates.excess_entropy(x)

    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000}
    best = scipy.optimize.minimize(
        lambda logs: solution_at(logs)[1], np.zeros(3), method="Nelder-Mead", options=options
    )
    limit = pk.gp_limit(problem, network, temperature)
    return dataclasses.replace(limit, factors=tuple(solution_at(best.x)[0]))


def test_a_symmetric_stationary_point_between_minima_is_a_saddle():
    problem, network, temperature = symmetric_problem()
    symmetric = symmetric_saddle(problem, network, temperature)
    stability = symmetric.stability(3)
    assert stability.kind == "saddle"
    assert stability.n_unstable >= 1
    assert stability.softest < -0.1
    # a descent from there breaks the symmetry
    lower = minimum(problem, network, temperature, start=symmetric, tolerance=1e-9)
    assert lower.status.name == "CONVERGED"
    assert lower.action < symmetric.action - 1e-3
    assert lower.stability().kind != "saddle"


def test_lanczos_finds_a_saddle_of_many_coordinates():
    """Two heads of the symmetric problem among 34 that see nothing."""
    problem, network, temperature = symmetric_problem()
    few = symmetric_saddle(problem, network, temperature)
    labels = np.sign(np.random.default_rng(0).normal(size=20))
    xi = np.zeros((20, 36, 2))
    xi[:, :2] = math.sqrt(18) * 0.1 * labels[:, None, None] * np.eye(2)
    many = pk.Network((1, 36), 5)
    factors = [np.eye(36), np.eye(36), few.factors[2]]
    for wide, narrow in zip(factors, few.factors[:2]):
        wide *= few.factors[2]
        wide[:2, :2] = narrow
    limit = pk.gp_limit(pk.Problem(xi, labels), many, temperature)
    stability = dataclasses.replace(limit, factors=tuple(factors)).stability(1)
    assert limit.hessian.size > DENSE
    assert stability.kind == "saddle"
    assert stability.n_unstable == 1
    assert stability.softest < -0.1


def test_kind_and_n_unstable_count_from_the_threshold():
    def stability(*eigenvalues):
        return Stability(np.array(eigenvalues), np.zeros((len(eigenvalues), 1, 1)), 4e-6)

    assert [stability(value).kind for value in (-5e-6, -3e-6, 3e-6, 5e-6)] == [
        "saddle",
        "marginal",
        "marginal",
        "minimum",
    ]
    assert stability(-1.0, -5e-6, -3e-6, 1.0).n_unstable == 2
    problem, network, *_ = random_problem(*CASES["4 paths"])
    assert minimum(problem, network).stability().threshold == pytest.approx(4e-6)
    widths = dataclasses.replace(network, widths=(WIDTH, 1000 * WIDTH, math.inf))
    assert minimum(problem, widths).stability().threshold == pytest.approx(4e-9)


def test_there_is_no_response_on_a_ring_of_minima():
    problem, network, temperature = symmetric_problem()
    ring = pk.minimise_action(problem, network, temperature)
    assert ring.stability().kind == "marginal"
    assert abs(ring.stability().softest) < 0.1 * ring.stability().threshold
    with pytest.raises(np.linalg.LinAlgError, match="flat along a direction"):
        _ = ring.response().temperature


def test_without_finite_widths_nothing_moves():
    problem, network, *_ = random_problem(*CASES["4 paths"])
    limit = minimum(problem, dataclasses.replace(network, widths=math.inf))
    with pytest.raises(ValueError, match="all widths are infinite"):
        limit.stability()
    assert not limit.response().temperature.any()


def test_the_response_grows_towards_a_spinodal_and_stays_exact():
    """The silent branch of a network with a small kernel ends as the scale of its inputs grows."""
    rng = np.random.default_rng(3)
    xi, network, temperature = rng.normal(size=(20, 2, 4)), pk.Network((2,), 20), 0.01
    labels = np.sign(xi[:, 0, 0])

    def silent(scale, start=None, temperature=temperature):
        problem = pk.Problem(scale * xi, labels)
        options = {"starts": 1} if start is None else {"start": start}
        return minimum(problem, network, temperature, tolerance=1e-13, **options)

    scale = 0.003
    solution = silent(scale)
    first = solution.stability().softest
    growth = 1.1
    while growth > 1.0005:  # to the end of the branch, where U would jump
        neighbour = silent(scale * growth, solution)
        jumped = np.trace(neighbour.order_parameter) > 2 * np.trace(solution.order_parameter)
        if jumped or neighbour.stability().softest <= 0:
            growth = np.sqrt(growth)
        else:
            scale, solution = scale * growth, neighbour
    softest = solution.stability().softest
    assert 0 < softest < 0.2 * first
    step = 1e-6 * temperature
    above, below = (silent(scale, solution, temperature + sign * step) for sign in (1, -1))
    difference = (above.order_parameter - below.order_parameter) / (2 * step)
    response = solution.response().temperature
    assert abs(response - difference).max() < 1e-5 * abs(response).max()
