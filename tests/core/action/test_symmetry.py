"""Exactly symmetric problems: saddles, and rings of minima."""

import dataclasses

import numpy as np
import pytest

import pathkernel_core as pk

pytestmark = pytest.mark.filterwarnings("ignore::pathkernel_core.ScaleWarning")
TEMPERATURE = 0.01


def redundant(case, scale=0.1):
    """Paths that tell the label equally well, in feature spaces that are orthogonal."""
    rng = np.random.default_rng(0)
    labels = np.sign(rng.normal(size=20))
    heads, skips, paths, used = {
        "two heads": ((1, 2), None, 2, [0, 1]),
        "three heads": ((1, 3), None, 3, [0, 1, 2]),
        "a swap in both layers": ((2, 2), None, 4, [0, 3]),
        "every path": ((2, 2), None, 4, [0, 1, 2, 3]),
        "a skip": ((1, 2), (None, 0.7), 3, [0, 1, 2]),
        "rotated heads": ((1, 2), None, 2, [0, 1]),
    }[case]
    xi = np.zeros((20, paths, len(used)))
    xi[:, used, range(len(used))] = scale * labels[:, None]
    if case == "rotated heads":
        turned = np.array([[0.8, 0.6], [-0.6, 0.8]])
        xi = np.einsum("hk,pki->phi", turned, xi)
    return xi, labels, pk.Network(heads, 5, skips=skips)


@pytest.mark.parametrize("space", ["examples", "features"])
@pytest.mark.parametrize(
    "case",
    [
        "two heads",
        "three heads",
        "a swap in both layers",
        "every path",
        "a skip",
        "rotated heads",
    ],
)
def test_no_saddle_is_returned(case, space):
    xi, labels, network = redundant(case)
    problem = pk.Problem(xi, labels, space)
    solution = pk.minimise_action(problem, network, TEMPERATURE, starts=1)
    assert solution.status is pk.Status.CONVERGED
    assert solution.stability().kind != "saddle"


def ring():
    rng = np.random.default_rng(0)
    labels = np.sign(rng.normal(size=24))
    xi = np.zeros((24, 2, 2))
    xi[:, 0, 0] = xi[:, 1, 1] = 0.05 * labels
    return pk.Problem(xi, labels), pk.Network((1, 2), 6)


def test_a_ring_of_minima_is_marginal_and_counted_once():
    problem, network = ring()
    solution = pk.minimise_action(problem, network, 0.1, starts=12)
    assert solution.status is pk.Status.CONVERGED
    stability = solution.stability(2)
    assert stability.kind == "marginal"
    assert abs(stability.softest) < stability.threshold < 0.1 < stability.eigenvalues[1]
    assert not solution.other_minima
    # a turned solution is another point of the ring
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    turned = turn @ solution.order_parameter @ turn.T
    assert abs(turned - solution.order_parameter).max() > 1
    factors = (np.linalg.cholesky(turned), *solution.factors[1:])
    turned_start = dataclasses.replace(solution, factors=factors, curvature=())
    second = pk.minimise_action(problem, network, 0.1, start=turned_start)
    assert second.action == pytest.approx(solution.action, abs=1e-9)
    spectra = map(np.linalg.eigvalsh, (second.order_parameter, turned))
    np.testing.assert_allclose(*spectra, rtol=1e-4)
    assert abs(second.order_parameter - solution.order_parameter).max() > 1


def test_the_response_is_refused_along_a_ring():
    problem, network = ring()
    solution = pk.minimise_action(problem, network, 0.1)
    with pytest.raises(np.linalg.LinAlgError, match="flat along a direction"):
        _ = solution.response().temperature


@pytest.mark.parametrize("case", ["two heads", "three heads", "every path", "rotated heads"])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_a_loose_tolerance_leaves_saddles_too(case, tolerance):
    xi, labels, network = redundant(case)
    problem = pk.Problem(xi, labels)
    solution = pk.minimise_action(problem, network, TEMPERATURE, tolerance=tolerance)
    assert solution.status is pk.Status.CONVERGED
    assert solution.stability().kind != "saddle"
