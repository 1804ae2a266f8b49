"""Maxima of the density of queries and keys: volumes against integrals, symmetries, warnings."""

import math
import warnings

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import pathkernel_core as pk
from pathkernel_core.learned.maximum import orbits


def peaked(layer, variances, copies=60, seed=2):
    """Many labels of one number: a head that attends to tokens of one sign."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((copies, 5, 1))
    target = pk.attentioned_inputs(inputs, [pk.AttentionProduct(np.full((1, 1, 1), 1.5))])
    labels = target[:, 0, 0] + 0.05 * generator.standard_normal(copies)
    network = pk.Network((1,), math.inf)
    return pk.AttentionPosterior(inputs, labels, [layer], network, 0.0025, variances)


def by_quadrature(posterior, prior):
    """Evidence ∫ p(w) p(Y | w) dw over the product w = KᵀQ of a single head on single numbers."""

    def log_evidence(w):
        layer = pk.AttentionProduct(np.full((1, 1, 1), w))
        xi = pk.attentioned_inputs(posterior.inputs, [layer])
        problem = pk.Problem(xi, posterior.labels)
        return pk.gp_limit(problem, posterior.network, posterior.temperature).log_evidence

    w = np.linspace(0.5, 3, 2001)
    logs = np.array([log_evidence(x) for x in w]) + np.log([prior(x) for x in w])
    assert w[10] < w[logs.argmax()] < w[-10]
    return logs.max() + np.log(scipy.integrate.trapezoid(np.exp(logs - logs.max()), w))


FEW_STARTS = pytest.mark.filterwarnings("ignore:one of . starts:UserWarning")


@FEW_STARTS
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_volume_is_that_of_an_integral(rank):
    """Of w = Σ_g k_g q_g, whose density is |w|^ν K_ν(|w|) / (√π 2^ν Γ(ν + ½)), ν = (G − 1)/2.

    Laplace's method gives Bessel's function K_ν(w) to leading order, (π/2w)^½ e^−w.
    """
    zeros = np.zeros((1, rank, 1))
    posterior = peaked(pk.QueryKey(zeros, zeros, scale=1.0), 1.0)
    nu = (rank - 1) / 2

    def prior(w):
        norm = math.sqrt(math.pi) * 2**nu * math.gamma(nu + 0.5)
        return w**nu * math.sqrt(math.pi / (2 * w)) * math.exp(-w) / norm

    best = pk.maximise_attention(posterior, starts=2)[0]
    assert best.converged
    # queries and keys are parallel at the maximum: one direction of G turns into the others
    assert best.symmetries == rank - 1
    assert best.log_evidence == pytest.approx(by_quadrature(posterior, prior), abs=0.01)


@FEW_STARTS
def test_a_product_has_no_symmetry():
    posterior = peaked(pk.AttentionProduct(np.zeros((1, 1, 1))), 2.0)
    best = pk.maximise_attention(posterior, starts=2)[0]
    expected = by_quadrature(posterior, scipy.stats.norm(0, math.sqrt(2)).pdf)
    assert best.symmetries == 0
    assert best.log_evidence == pytest.approx(expected, abs=0.02)
    assert best.determined_parameters == pytest.approx(1, abs=0.02)


def marked(examples, seed=0):
    """The label is in the token whose first entry is large."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((examples, 6, 3))
    place = generator.integers(6, size=examples)
    inputs[:, :, 0] *= 0.3
    inputs[np.arange(examples), place, 0] += 3.0
    return inputs, np.sign(inputs[np.arange(examples), place, 1])


@FEW_STARTS
def test_the_maximum_attends_to_the_marked_token():
    inputs, labels = marked(60)
    heads = pk.KeyVectors(np.zeros((2, 3)))
    posterior = pk.AttentionPosterior(inputs, labels, [heads], pk.Network((2,), 20), 0.1, 9.0)
    maxima = pk.maximise_attention(posterior, starts=3)
    best = maxima[0]
    assert all(maximum.converged for maximum in maxima)
    assert np.abs(best.density.gradient).max() <= 1e-4
    densities = [maximum.density.log_density for maximum in maxima]
    assert densities == sorted(densities, reverse=True)
    new_inputs, new_labels = marked(300, seed=1)
    xi = pk.attentioned_inputs(new_inputs, posterior.layers_at(best.position))
    assert np.mean(np.sign(best.density.solution.predict_mean(xi)) == new_labels) > 0.9
    assert best.density.log_density > posterior.evaluate(np.zeros(6)).log_density + 10


@FEW_STARTS
def test_exchanged_heads_are_as_many_maxima():
    """Two heads that differ count twice, two that are equal once."""
    inputs, labels = marked(60)
    heads = pk.KeyVectors(np.zeros((2, 3)))
    posterior = pk.AttentionPosterior(inputs, labels, [heads], pk.Network((2,), 20), 0.1, 9.0)
    best = pk.maximise_attention(posterior, starts=3)[0]
    gaussian = 0.5 * np.sum(np.log(2 * math.pi / best.curvatures))
    first, second = best.position.reshape(2, 3)
    copies = 1 if np.allclose(first, second, atol=1e-2) else 2
    assert best.log_volume == pytest.approx(gaussian + math.log(copies), rel=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_rotations_move_along_the_tangents(rank):
    """The density is constant along all of them; there are as many as rotations."""
    generator = np.random.default_rng(5)
    inputs, labels = generator.standard_normal((10, 4, 3)), generator.standard_normal(10)
    queries, keys = generator.standard_normal((2, 2, rank, 3))
    layer = pk.QueryKey(queries, keys, scale=0.5)
    posterior = pk.AttentionPosterior(
        inputs, labels, [layer], pk.Network((2,), 20), 0.3, [(1.5, 0.7)]
    )
    tangents, log_volume = orbits(posterior, posterior.start)
    assert tangents.shape[1] == 2 * rank * (rank - 1) // 2
    np.testing.assert_allclose(tangents.T @ tangents, np.eye(tangents.shape[1]), atol=1e-12)
    here = posterior.evaluate(posterior.start)
    np.testing.assert_allclose(tangents.T @ here.gradient, 0, atol=1e-9)
    step = 1e-3
    for tangent in tangents.T:
        ahead = posterior.evaluate(posterior.start + step * tangent)
        assert ahead.log_density - here.log_density == pytest.approx(0, abs=50 * step**2)
        curved = tangent @ (ahead.gradient - here.gradient) / step
        assert abs(curved) < 1e3
    if rank == 2:  # two circles of radius |(Q, K)| for each head
        radii = [np.linalg.norm(posterior.start.reshape(2, 2, 2, 3)[:, head]) for head in range(2)]
        expected = sum(math.log(2 * 2 * math.pi * radius) for radius in radii)
        assert log_volume == pytest.approx(expected, rel=1e-12)
    if rank == 1:  # two points: the signs
        assert log_volume == pytest.approx(2 * math.log(2))


@pytest.fixture
def one_head():
    inputs, labels = marked(30)
    heads = pk.KeyVectors(np.zeros((1, 3)))
    return pk.AttentionPosterior(inputs, labels, [heads], pk.Network((1,), 20), 0.1, 9.0)


def test_starts_at_each_maximum_are_counted(one_head):
    generator, ends = np.random.default_rng(3), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):  # a start of one's own is no search, and warns of nothing
            start = one_head.initial(generator)
            (end,) = pk.maximise_attention(one_head, starts=0, start=start)
            assert end.starts == 1
            ends.append(end.density.log_density)
        maxima = pk.maximise_attention(one_head, starts=5, seed=3)
    assert sum(maximum.starts for maximum in maxima) == 5
    for maximum in maxima:
        same = [abs(end - maximum.density.log_density) < 1e-3 for end in ends]
        assert maximum.starts == sum(same)
    assert maxima[0].starts > 1


def test_a_single_start_at_the_highest_maximum_is_warned_of(one_head):
    with pytest.warns(UserWarning, match="one of 3 starts ended at the highest maximum found, so"):
        pk.maximise_attention(one_head, starts=3, max_evaluations=2)
    start = one_head.initial(np.random.default_rng(0))
    with pytest.warns(UserWarning, match="one of 2 starts"):
        pk.maximise_attention(one_head, starts=1, start=3 * start, max_evaluations=2)


def test_more_parameters_than_labels_are_warned_of():
    inputs, labels = marked(8)
    zeros = np.zeros((1, 2, 3))
    network = pk.Network((1,), 20)

    def maximise(layer):
        posterior = pk.AttentionPosterior(inputs, labels, [layer], network, 0.1)
        start = posterior.initial(np.random.default_rng(0))
        return pk.maximise_attention(posterior, starts=0, start=start, max_evaluations=3)

    # 12 queries and keys, less one rotation
    with pytest.warns(pk.OverfittingWarning, match="11 parameters, symmetries not"):
        (maximum,) = maximise(pk.QueryKey(zeros, zeros))
    assert not maximum.converged
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maximise(pk.KeyVectors(np.zeros((1, 3))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": 0}, "starts must be a whole number from 1"),
        ({"tolerance": 0}, "tolerance must be positive"),
        ({"max_evaluations": 0}, "max_evaluations must be a whole number from 1"),
        ({"start": np.zeros(4)}, r"position must have shape \(3,\)"),
    ],
)
def test_arguments_are_checked(change, message):
    inputs, labels = marked(8)
    layers = [pk.KeyVectors(np.zeros((1, 3)))]
    posterior = pk.AttentionPosterior(inputs, labels, layers, pk.Network((1,), 20), 0.1)
    with pytest.raises(ValueError, match=message):
        pk.maximise_attention(posterior, **change)
