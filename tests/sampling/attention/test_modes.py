"""Modes of attention: clusters of draws whose heads may be exchanged, their masses and names."""

import numpy as np
import pytest

pytest.importorskip("arviz_stats")

from pathkernel_sampling.attention.modes import chosen_draws, find_modes, merge_components

TOKENS, EXAMPLES = 6, 7


def attention_to(places, strength, generator):
    """Attention (examples, M) to one token of each example, with noise."""
    scores = 0.3 * generator.normal(size=(EXAMPLES, TOKENS))
    scores[np.arange(EXAMPLES), places] += strength
    weights = np.exp(scores)
    return weights / weights.sum(1, keepdims=True)


@pytest.fixture
def draws():
    """Draws of three modes of two heads in random order: (position, content), …, (spread, …)."""
    generator = np.random.default_rng(0)
    content = generator.integers(1, TOKENS, size=EXAMPLES)
    first = np.zeros(EXAMPLES, dtype=int)
    kinds = [((first, 5.0), (content, 5.0)), ((content, 5.0), (first, 0.0)), ((first, 5.0),) * 2]
    modes = generator.choice(3, size=400, p=[0.5, 0.3, 0.2])
    heads = np.array(
        [
            generator.permutation([attention_to(*kind, generator) for kind in kinds[mode]])
            for mode in modes
        ]
    )
    return modes, heads, content


def test_masses_and_names(draws):
    kinds, heads, _ = draws
    modes = find_modes([heads], chains=2)
    assert len(modes.names) == 3
    expected = np.sort(np.bincount(kinds))[::-1] / 400
    np.testing.assert_allclose(modes.masses, expected, atol=0.01)
    names = [set(name.split(" + ")) for name in modes.names]
    assert names == [{"position 1", "content"}, {"content", "spread"}, {"position 1"}]
    np.testing.assert_allclose(modes.by_chain.mean(0), modes.masses, rtol=1e-12)
    binomial = np.sqrt(expected * (1 - expected) / 400)
    np.testing.assert_allclose(modes.errors, binomial, rtol=0.5)
    np.testing.assert_allclose(modes.attention.sum(3), 1, rtol=1e-12)
    # the same draws with all heads exchanged
    exchanged = find_modes([heads[:, ::-1]], chains=2)
    np.testing.assert_array_equal(exchanged.labels, modes.labels)


def test_what_no_draw_resembles_is_told(draws):
    _kinds, heads, content = draws
    modes = find_modes([heads], chains=1)
    generator = np.random.default_rng(1)
    other = (content + 1) % TOKENS
    pairs = [(content, np.zeros(EXAMPLES, dtype=int)), (other, other)]
    elsewhere = np.array(
        [[attention_to(places, 5.0, generator) for places in pair] for pair in pairs]
    )
    labels, is_seen = modes.space.classify([elsewhere])
    assert labels[0] == 0
    np.testing.assert_array_equal(is_seen, [True, False])


def test_draws_that_are_alike_are_one_mode():
    heads = np.full((30, 2, EXAMPLES, TOKENS), 1 / TOKENS)
    modes = find_modes([heads], chains=3)
    assert modes.names == ["spread + spread"]
    np.testing.assert_array_equal(modes.masses, 1)


def test_components_that_overlap_are_merged():
    shares = np.array([[0.6, 0.4, 0.0], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]] * 10)
    np.testing.assert_array_equal(merge_components(shares), [0, 0, 1])
    np.testing.assert_array_equal(merge_components(np.eye(3)), [0, 1, 2])


def test_at_most_so_many_draws_are_clustered():
    for draws, chains in ((10, 1), (1001, 2), (100_000, 4)):
        assert len(range(draws)[chosen_draws(draws, chains)]) * chains <= 2000 + chains
