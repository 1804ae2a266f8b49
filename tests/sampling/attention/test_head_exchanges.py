"""Exchanges of heads and rows: the same density, the prior kept, one copy of each position."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")

import pathkernel_core as pk
from pathkernel_sampling.attention.attend import order_of_paths
from pathkernel_sampling.attention.exchanges import (
    DomainTarget,
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
    return generator, DomainTarget(model, find_directions(posterior, draws))


@pytest.mark.parametrize("seed", range(6))
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
    step = 1e-5
    columns = [
        (exchange_heads(model, x + shift, orders) - exchange_heads(model, x - shift, orders))
        for shift in step * np.eye(len(x))
    ]
    _, log_jacobian = np.linalg.slogdet(np.array(columns) / (2 * step))
    log_priors = [float(model.log_prior(position)) for position in (x, exchanged)]
    assert log_jacobian == pytest.approx(log_priors[0] - log_priors[1], abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_the_domain_fill_the_prior(seed):
    generator, target = target_of(seed)
    model = target.model
    beside, count = model.beside.dimension, 4000
    attention = generator.normal(size=(count, model.posterior.dimension))
    positions = np.concatenate([np.zeros((count, beside)), attention], axis=1)
    share = np.asarray(jax.vmap(target.contains)(positions)).mean()
    expected = np.exp(-target.log_copies)
    assert abs(share - expected) < 4 * np.sqrt(expected / count)
