"""Tempered chains of attention against importance sampling, and their states as stored."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")

import pathkernel_core as pk
from pathkernel_sampling.attention.exchanges import ExchangeTarget
from pathkernel_sampling.attention.models import attention_model
from pathkernel_sampling.attention.tempered import (
    arrays_of_start,
    start_chains,
    start_of_arrays,
)
from pathkernel_sampling.tempering.replicas import sweep
from pathkernel_sampling.tempering.stages import stage_evidence

DRAWS = 40_000


FORMS = {
    "key-vectors": pk.KeyVectors(np.zeros((2, 1))),
    "rank-1": pk.QueryKey(*np.zeros((2, 2, 1, 1))),  # eight exchanges, averaged over
    "rank-2": pk.QueryKey(*np.zeros((2, 2, 2, 1))),  # 128, of which walls keep rows in order
}


@pytest.fixture(scope="module", params=FORMS)
def case(request):
    """Two heads of one number each, or a few: labels by the largest number of an example."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((8, 5, 1))
    largest = np.take_along_axis(inputs, np.abs(inputs).argmax(1)[:, None], 1)[:, 0, 0]
    layers = [FORMS[request.param]]
    network = pk.Network((2,), 4)
    posterior = pk.AttentionPosterior(inputs, np.sign(largest), layers, network, 0.3, 4.0)
    model = attention_model("order-parameter", posterior)
    keys = [jax.random.key(chain) for chain in range(2)]
    return model, start_chains(model, keys, 200)[0]


def quantities(model, positions):
    """Trace of U, the larger and smaller score of a head, and whether both have one sign."""
    attention = np.asarray(positions)[:, model.beside.dimension :]
    if model.posterior.dimension > 2:
        queries, keys = np.split(attention, 2, axis=1)
        attention = (queries * keys).reshape(len(queries), 2, -1).sum(2)
    scores = np.sort(attention, axis=1)
    traces = jax.jit(lambda x: jax.lax.map(lambda y: model.order_parameter(y).trace(), x))(
        positions
    )
    return np.stack([np.asarray(traces), *scores.T, (scores > 0).all(1)], axis=1)


def test_means_masses_and_evidence_are_those_of_importance_sampling(case):
    model, start = case
    stage, target = start.stage, ExchangeTarget(model, start.directions)
    key, generator = jax.random.key(5), np.random.default_rng(5)
    _, rows = sweep(target, stage.ladder, stage.replicas, key, generator, 3000)
    values = quantities(model, rows["position"])
    blocks = values.reshape(15, -1, 4).mean(1)
    errors = blocks.std(0, ddof=1) / np.sqrt(len(blocks))

    prior = np.random.default_rng(1).standard_normal((DRAWS, model.dimension))
    # Bartlett's diagonal entries are no normal numbers: their density corrects for it
    proposal = -0.5 * (prior**2).sum(1) - 0.5 * model.dimension * np.log(2 * np.pi)
    logs = np.asarray(jax.jit(lambda x: jax.lax.map(model.log_density, x))(prior)) - proposal
    weights = np.exp(logs - logs.max())
    evidence = np.log(weights.mean()) + logs.max()
    shares = weights / weights.sum()
    of_prior = quantities(model, prior)
    exact = shares @ of_prior
    exact_errors = np.sqrt(shares**2 @ (of_prior - exact) ** 2)
    np.testing.assert_array_less(np.abs(values.mean(0) - exact), 4 * np.hypot(errors, exact_errors))
    value, error = stage_evidence(stage.ladder, float(stage.share), rows["log_ratio"])
    spread = weights.std() / weights.mean() / np.sqrt(DRAWS)
    assert abs(value + target.log_copies - evidence) < 4 * np.hypot(error, spread)


def test_a_state_is_stored_and_read(case):
    _, start = case
    arrays = arrays_of_start(start)
    again = arrays_of_start(start_of_arrays(arrays))
    assert arrays.keys() == again.keys()
    for name, array in arrays.items():
        assert array.dtype != object
        np.testing.assert_array_equal(array, again[name])
