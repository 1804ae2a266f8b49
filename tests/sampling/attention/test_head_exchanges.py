"""Exchanges of heads and rows: the same density, the prior kept, one copy of each position."""

import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")

import pathkernel_core as pk
from pathkernel_sampling.attention.attend import order_of_paths
from pathkernel_sampling.attention.exchanges import (
    MOST_COPIES,
    ExchangeTarget,
    exchange_heads,
    find_directions,
)
from pathkernel_sampling.attention.models import attention_model

FORMS = ("key-vectors", "queries-keys", "products")


def layer(form, heads, width, rank):
    if form == "key-vectors":
        return pk.KeyVectors(np.zeros((heads, width)))
    if form == "products":
        return pk.AttentionProduct(np.zeros((heads, width, width)), 0.5)
    return pk.QueryKey(np.zeros((heads, rank, width)), np.zeros((heads, rank, width)))


def target_of(seed):
    """Target of a network and forms drawn at random: one or two layers, skips, outputs, widths."""
    generator = np.random.default_rng(seed)
    layers = int(generator.integers(1, 3))
    heads = tuple(int(count) for count in generator.integers(1, 4, size=layers))
    skips = tuple(0.5 if skip else None for skip in generator.random(layers) < 0.4)
    outputs, rank = (int(number) for number in generator.integers(1, 3, size=2))
    width = int(generator.integers(2, 40))
    forms = [FORMS[number] for number in generator.integers(3, size=layers)]
    network = pk.Network(heads, width, outputs=outputs, skips=skips)
    learned = [layer(form, count, 3, rank) for form, count in zip(forms, heads)]
    inputs, labels = generator.normal(size=(4, 5, 3)), generator.normal(size=(4, outputs))
    smallest = max(network.sizes)
    if width < smallest:  # where the posterior at the saddle point is not defined
        network = pk.Network(heads, smallest, outputs=outputs, skips=skips)
    posterior = pk.AttentionPosterior(inputs, labels, learned, network, 0.3)
    model = attention_model("order-parameter", posterior)
    draws = generator.normal(size=(20, posterior.dimension))
    return generator, ExchangeTarget(model, find_directions(posterior, draws))


@pytest.mark.parametrize("seed", [0, 1, 4, 5, 12, 13])  # from 4 on with walls
def test_a_copy_in_the_domain_has_the_same_likelihood(seed):
    _generator, target = target_of(seed)
    model = target.model
    x = np.asarray(model.initial(jax.random.key(seed)))
    copy = target.reduce(x)
    assert bool(target.contains(copy))
    np.testing.assert_allclose(target.reduce(copy), copy, rtol=1e-8, atol=1e-8)
    evaluate = jax.jit(lambda x: model.log_density(x) - model.log_prior(x))
    assert float(evaluate(copy)) == pytest.approx(float(evaluate(x)), rel=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_an_exchange_orders_u_and_keeps_the_prior(seed):
    """The Jacobian determinant is the ratio of the prior densities."""
    generator, target = target_of(seed)
    model, posterior = target.model.beside, target.model.posterior
    x = np.asarray(model.initial(jax.random.key(seed)))
    orders = [generator.permutation(count) for count in posterior.network.heads]
    exchanged = exchange_heads(model, x, orders)
    factors = [np.asarray(model.factor(position)) for position in (x, exchanged)]
    before, after = (factor @ factor.T for factor in factors)
    paths = order_of_paths(posterior, orders)
    np.testing.assert_allclose(after, before[np.ix_(paths, paths)], rtol=1e-8, atol=1e-10)
    _, log_jacobian = np.linalg.slogdet(jax.jacobian(lambda y: exchange_heads(model, y, orders))(x))
    log_priors = [float(model.log_prior(position)) for position in (x, exchanged)]
    assert log_jacobian == pytest.approx(log_priors[0] - log_priors[1], abs=1e-8)


@pytest.mark.parametrize("seed", [0, 1, 5, 7, 8, 9])  # 8 exchanges rows
def test_copies_have_the_density_and_the_volume_of_an_exchange(seed):
    _generator, target = target_of(seed)
    model = target.model
    x = model.initial(jax.random.key(seed))
    copies, log_volumes = jax.jit(target.copies)(x)
    np.testing.assert_array_equal(copies[0], x)
    assert log_volumes[0] == 0
    likelihood = jax.jit(jax.vmap(lambda y: model.log_density(y) - model.log_prior(y)))(copies)
    np.testing.assert_allclose(likelihood, likelihood[0], rtol=1e-8)
    number = len(copies) - 1
    jacobian = jax.jacobian(lambda y: target.copies(y)[0][number])(x)
    _, log_volume = np.linalg.slogdet(jacobian)
    assert log_volume == pytest.approx(float(log_volumes[number]), abs=1e-8)
    # the copies of a copy are the same, in another order
    again, _ = jax.jit(target.copies)(copies[number])
    distances = np.abs(np.asarray(again)[:, None] - copies[None]).max(2)
    np.testing.assert_allclose(distances.min(0), 0, atol=1e-8)
    np.testing.assert_allclose(distances.min(1), 0, atol=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_copies_and_domains_are_all_exchanges(seed):
    _generator, target = target_of(seed)
    order = 1.0
    for layer in target.model.posterior.layers:
        order *= math.factorial(layer.n_heads)
        if isinstance(layer, pk.QueryKey):
            rank = layer.queries.shape[1]
            order *= (2**rank * math.factorial(rank)) ** layer.n_heads
    copies = len(target.exchanges.of_copy)
    assert copies <= MOST_COPIES
    assert copies * np.exp(target.log_copies) == pytest.approx(order)
    if order <= MOST_COPIES:
        assert copies == order


@pytest.mark.parametrize("seed", [4, 5, 12, 13])  # with walls
def test_copies_of_the_domain_fill_the_prior(seed):
    generator, target = target_of(seed)
    model = target.model
    beside, count = model.beside.dimension, 4000
    attention = generator.normal(size=(count, model.posterior.dimension))
    positions = np.concatenate([np.zeros((count, beside)), attention], axis=1)
    share = np.asarray(jax.vmap(target.contains)(positions)).mean()
    expected = np.exp(-target.log_copies)
    assert expected < 1
    assert abs(share - expected) < 4 * np.sqrt(expected / count)
