"""Tempering: mixtures, levels, evidence, and modes of known mass."""

import dataclasses

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")

import jax.numpy as jnp
from scipy.special import logsumexp

from pathkernel_sampling.models.likelihood import pytree
from pathkernel_sampling.tempering.levels import (
    choose_levels,
    log_ratio_of_evidence,
    swap_rates,
)
from pathkernel_sampling.tempering.mixture import fit_mixture
from pathkernel_sampling.tempering.replicas import (
    MOST_LEVELS,
    _choose_copy,
    _terms,
    draw_inside,
    place_replicas,
    sweep,
)
from pathkernel_sampling.tempering.stages import (
    Estimates,
    agree,
    component_masses,
    stage_evidence,
    temper_chains,
)

NARROW, DISTANCE, LOG_EVIDENCE = 0.2, 2.0, 3.0


@pytree(("share",), ("dimension", "walls"))
@dataclasses.dataclass(eq=False)
class TwoModes:
    """A standard normal density, and a narrow one of a known share, times e³.

    The first two coordinates may be exchanged: a mixture is averaged over both orders, or a wall
    keeps replicas in one half of space.
    """

    dimension: int
    share: float
    walls: bool = False

    def log_density(self, x):
        wide = -0.5 * x @ x
        other = (x - DISTANCE) / NARROW
        narrow = -0.5 * other @ other - self.dimension * jnp.log(NARROW)
        density = jnp.logaddexp(jnp.log1p(-self.share) + wide, jnp.log(self.share) + narrow)
        return density - 0.5 * self.dimension * jnp.log(2 * jnp.pi) + LOG_EVIDENCE

    def copies(self, x):
        order = np.r_[1, 0, 2 : self.dimension]
        copies = x[None] if self.walls else jnp.stack([x, x[order]])
        return copies, jnp.zeros(len(copies))

    def contains(self, x):
        return (not self.walls) | (x[0] - x[1] >= 0)


def pilot(generator, dimension=6):
    """Draws of both modes alike, in the half that is behind the wall."""
    wide = generator.normal(size=(150, dimension))
    narrow = DISTANCE + NARROW * generator.normal(size=(150, dimension))
    draws = np.concatenate([wide, narrow])
    draws[:, :2] = -np.sort(-draws[:, :2], axis=1)
    return draws


@pytest.fixture(scope="module", params=[False, True], ids=["average", "walls"])
def tempered(request):
    target = TwoModes(6, 0.05, request.param)
    keys = [jax.random.key(0)]
    return target, temper_chains(target, pilot(np.random.default_rng(0)), keys, 300)[0]


def test_a_narrow_mode_has_its_mass(tempered):
    """5 % of the mass in a volume of 6e-5, seen by the pilot at 50 %."""
    target, result = tempered
    key, generator = jax.random.key(1), np.random.default_rng(1)
    _, rows = sweep(target, result.ladder, result.replicas, key, generator, 3000)
    is_narrow = rows["position"].mean(1) > DISTANCE / 2
    blocks = is_narrow.reshape(10, -1).mean(1)
    error = blocks.std(ddof=1) / np.sqrt(10)
    assert error < 0.02
    assert abs(is_narrow.mean() - 0.05) < 4 * error
    value, error = stage_evidence(result.ladder, float(result.share), rows["log_ratio"])
    half = np.log(0.5) if target.walls else 0.0
    assert error < 0.05
    assert abs(value - half - LOG_EVIDENCE) < 4 * error + 0.01
    inside = jax.vmap(target.contains)(rows["position"])
    assert np.asarray(inside).all()


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_mode_that_the_pilot_saw_is_not_lost(seed):
    """Although a stage has hardly a draw in it: the mixture keeps it."""
    target, key = TwoModes(6, 0.01), jax.random.key(seed)
    generator = np.random.default_rng(seed)
    (result,) = temper_chains(target, pilot(generator), [key], 100)
    _, rows = sweep(target, result.ladder, result.replicas, key, generator, 2000)
    is_narrow = rows["position"].mean(1) > DISTANCE / 2
    assert 0.002 < is_narrow.mean() < 0.04


def test_stages_say_whether_they_agree(tempered):
    _, result = tempered
    assert result.agrees
    assert 2 <= result.number <= 6
    levels = np.asarray(result.ladder.levels)[: int(result.ladder.count)]
    assert levels[0] == 0
    assert levels[-1] == 1
    assert (np.diff(levels) > 0).all()
    thirds = np.full(3, 1 / 3)
    before = Estimates(0.0, 0.01, thirds, np.full(3, 0.005))
    assert agree(before, before._replace(log_evidence=0.05))
    assert not agree(before, before._replace(log_evidence=0.2))
    assert agree(before, before._replace(log_evidence=0.2, error=0.1))
    other = thirds + np.array([0.2, -0.2, 0.0])
    assert not agree(before, before._replace(masses=other))
    assert not agree(before._replace(log_evidence=np.nan), before)


def test_a_mode_that_one_chain_loses_is_told():
    """Chains agree with all chains of the stage before, and not each with itself."""
    target, generator = TwoModes(6, 0.3), np.random.default_rng(0)
    (chain,) = temper_chains(target, pilot(generator), [jax.random.key(0)], 200)
    mixture = chain.ladder.mixture
    wide, narrow = np.split(pilot(generator), 2)
    both = generator.permutation(np.concatenate([wide, narrow[: len(wide) * 3 // 7]]))
    all_chains = Estimates(chain.after[0], 0.01, *component_masses(target, mixture, both))
    without = Estimates(chain.after[0], 0.01, *component_masses(target, mixture, wide))
    assert agree(all_chains, all_chains)
    assert not agree(all_chains, without)


def test_a_mode_that_one_pilot_saw_is_open_to_all_chains():
    """Chains share the mixture of a stage, and so the modes of all pilots."""
    target, generator = TwoModes(6, 0.3), np.random.default_rng(1)
    wide, narrow = np.split(pilot(generator), 2)
    keys = [jax.random.key(chain) for chain in range(2)]
    stages = temper_chains(target, np.concatenate([wide, wide, narrow[:30]]), keys, 200)
    for stage, key in zip(stages, keys):
        _, rows = sweep(target, stage.ladder, stage.replicas, key, generator, 600)
        assert 0.15 < (rows["position"].mean(1) > DISTANCE / 2).mean() < 0.45
    first, second = (stage.ladder.mixture for stage in stages)
    np.testing.assert_array_equal(first.means, second.means)


def test_one_program_serves_all_levels_and_sweeps(tempered):
    """And all numbers of the target."""
    from pathkernel_sampling.tempering.replicas import _advance

    target, result = tempered
    before = _advance._cache_size()
    other = dataclasses.replace(target, share=0.3)
    replicas = place_replicas(other, result.ladder.mixture, np.asarray(result.replicas.positions))
    levels = np.linspace(0, 1, 10)
    padded = np.pad(levels, (0, MOST_LEVELS - 10), constant_values=1.0)
    ladder = result.ladder._replace(levels=padded, count=np.array(10))
    generator = np.random.default_rng(0)
    _, rows = sweep(other, ladder, replicas, jax.random.key(0), generator, 7)
    assert _advance._cache_size() == before
    assert rows["position"].shape == (7, 6)
    assert np.isnan(rows["log_ratio"][:, 10:]).all()
    assert np.isfinite(rows["log_ratio"][:, :10]).all()


def test_a_mixture_outside_the_domain_is_refused(tempered):
    _, result = tempered
    far = result.ladder.mixture._replace(means=np.tile([0.0, 99.0, 0, 0, 0, 0], (8, 1)))
    with pytest.raises(ValueError, match="only 0 of 10048 draws"):
        draw_inside(TwoModes(6, 0.05, walls=True), far, np.random.default_rng(0), 1)


def test_sweeps_are_the_same_in_parts(tempered):
    target, result = tempered
    state, parts = result.replicas, []
    for number in (0, 1):
        generator = np.random.default_rng(number)
        state, rows = sweep(target, result.ladder, state, jax.random.key(number), generator, 5)
        parts.append(rows["position"])
        state = type(state)(*map(np.asarray, state))  # as it is stored
    again, state = [], result.replicas
    for number in (0, 1):
        generator = np.random.default_rng(number)
        state, rows = sweep(target, result.ladder, state, jax.random.key(number), generator, 5)
        again.append(rows["position"])
    np.testing.assert_array_equal(parts, again)


@pytest.mark.parametrize("seed", range(3))
def test_the_density_of_a_mixture(seed):
    """Against a sum of Gaussians; its gradient against differentiation; draws against its mean."""
    generator = np.random.default_rng(seed)
    dimension = int(generator.integers(1, 5))
    centres = 5 * generator.normal(size=(3, dimension))
    draws = np.concatenate([centre + generator.normal(size=(40, dimension)) for centre in centres])
    mixture, within = fit_mixture(draws, 3, seed)
    assert np.linalg.eigvalsh(within).min() > 0
    x = generator.normal(size=dimension)
    logs = []
    for log_weight, mean, factor in zip(*mixture[:3]):
        whitened = np.linalg.solve(factor, x - mean)
        scale = np.log(np.diagonal(factor)).sum() + 0.5 * dimension * np.log(2 * np.pi)
        logs.append(log_weight - 0.5 * whitened @ whitened - scale)
    value, gradient = jax.jit(lambda x: mixture.log_density(x))(x)
    assert float(value) == pytest.approx(logsumexp(logs), rel=1e-12)
    expected = jax.grad(lambda x: mixture.log_density(x)[0])(x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-9)
    drawn = mixture.draw(np.random.default_rng(0), 4000)
    mean = np.exp(mixture.log_weights) @ mixture.means
    assert np.abs(drawn.mean(0) - mean).max() < 5 * draws.std() / np.sqrt(4000) + 0.2


@pytree(())
class Volumes:
    """A density that an exchange of both coordinates with a change of volume leaves as it is."""

    def log_density(self, x):
        copies, log_volumes = self.copies(x)
        return jax.scipy.special.logsumexp(-0.5 * jnp.sum((copies - 1.0) ** 2, 1) + log_volumes)

    def copies(self, x):
        image = jnp.stack([jnp.sinh(x[1]), jnp.arcsinh(x[0])])
        log_volume = jnp.log(jnp.cosh(x[1])) - 0.5 * jnp.log1p(x[0] ** 2)
        return jnp.stack([x, image]), jnp.stack([0.0, log_volume])


@pytest.fixture(scope="module")
def mixture_of_two():
    draws = np.random.default_rng(0).normal(size=(200, 2)) * [0.5, 1.0] + [1.0, 0.5]
    return fit_mixture(draws, 2, 0)[0]


def test_the_draw_of_a_copy_leaves_the_mixture_as_it_is(mixture_of_two):
    """One step from draws of it: without the volumes their means move by many errors."""
    before = mixture_of_two.draw(np.random.default_rng(1), 20_000)
    keys = jax.random.split(jax.random.key(0), len(before))
    choose = jax.vmap(lambda key, x: _choose_copy(Volumes(), mixture_of_two, key, x))
    after, is_other = map(np.asarray, jax.jit(choose)(keys, before))
    assert 0.05 < is_other.mean() < 0.95
    for quantity in (np.copy, np.square, np.sin):
        change = quantity(after) - quantity(before)
        error = change.std(0) / np.sqrt(len(change))
        assert (np.abs(change.mean(0)) < 4 * error).all()


def test_values_and_gradients_of_averages(mixture_of_two):
    """Gradients against differentiation; p/q and responsibilities are equal at all copies."""
    target, x = Volumes(), jnp.array([0.7, -0.4])
    *values, of_mixture, of_ratio = _terms(target, mixture_of_two, x)
    gradients = [jax.grad(lambda y, i=i: _terms(target, mixture_of_two, y)[i])(x) for i in (0, 1)]
    np.testing.assert_allclose(of_mixture, gradients[0], rtol=1e-9)
    np.testing.assert_allclose(of_ratio, gradients[1], rtol=1e-9)
    assert float(values[2]) == pytest.approx(float(target.log_density(x)))
    copy = target.copies(x)[0][1]
    log_ratio, again = (_terms(target, mixture_of_two, y)[1] for y in (x, copy))
    assert float(log_ratio) == pytest.approx(float(again), rel=1e-9)
    shares = [mixture_of_two.responsibilities(*target.copies(y)) for y in (x, copy)]
    np.testing.assert_allclose(*shares, rtol=1e-9)


def test_evidence_and_levels_of_gaussians():
    """Between two normal densities of known integrals everything is known."""
    generator = np.random.default_rng(0)
    levels, scale = np.linspace(0, 1, 6), 4.0
    # precision of a level between N(0, 1), and e² times N(0, 1/16), not normalised
    precisions = 1 + levels * (scale**2 - 1)
    x = generator.normal(size=(4000, 6)) / np.sqrt(precisions)
    log_ratio = 2 - 0.5 * (scale**2 - 1) * x**2
    value, error = log_ratio_of_evidence(log_ratio, levels)
    assert abs(value - (2 - np.log(scale))) < 4 * error
    assert error < 0.05
    chosen = choose_levels(log_ratio, levels, 24)
    drawn = generator.normal(size=(4000, len(chosen)))
    at_chosen = 2 - 0.5 * (scale**2 - 1) * (drawn / np.sqrt(1 + chosen * (scale**2 - 1))) ** 2
    rates = swap_rates(at_chosen, chosen)
    assert rates.min() > 0.5
    assert rates.max() - rates.min() < 0.2
