"""The hidden Markov task: data and heads are what it says; the theory finds what is known."""

from dataclasses import replace

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.contracts import testing
from pathkernel_core.contracts.testing import check_task
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import Study
from pathkernel_tasks import hidden_markov
from pathkernel_tasks.hidden_markov import HiddenMarkov, chains

SEEDS = range(5)
POSITIVE, NEGATIVE = hidden_markov.state_features()


def hidden_states(tokens):
    """±1 for each token behind the first, read off the features."""
    features = tokens[:, 1:, : hidden_markov.WIDTH]
    return np.sign(features @ POSITIVE - features @ NEGATIVE)


def test_many_chains_come_in_blocks(monkeypatch):
    """Each half of either class, from a stream that no other block or set has."""
    assert HiddenMarkov(examples=10_000).blocks(0) is None
    monkeypatch.setattr(hidden_markov, "_HELD", 20)
    monkeypatch.setattr(hidden_markov, "_BLOCK", 8)
    task = HiddenMarkov(examples=22, test_examples=8, variant="strong-noise")
    check_task(task)
    blocks, realisation = task.blocks(3), task.realise(3)
    drawn = [blocks.draw(number) for number in range(len(blocks))]
    assert [block.labels.sum() for block in drawn] == [0, 0, 0]
    assert [len(block.labels) for block in drawn] == [8, 8, 6]
    np.testing.assert_array_equal(realisation.train.inputs, drawn[0].inputs)
    noise = [*(block.inputs[:4, 1] for block in drawn), realisation.test_sets["test"].inputs[:4, 1]]
    assert len(np.unique([part[:, :200].std() for part in noise])) == 4
    assert realisation.train.inputs[:, 1:, :200].std() == pytest.approx(5, rel=0.1)
    held = HiddenMarkov(examples=10, test_examples=8, variant="strong-noise").realise(3)
    one, other = (each.test_sets["test"].inputs for each in (held, realisation))
    np.testing.assert_array_equal(one, other)
    draw = HiddenMarkov.blocks
    with monkeypatch.context() as patch:
        patch.setattr(
            HiddenMarkov, "blocks", lambda task, seed: replace(draw(task, seed), examples=24)
        )
        with pytest.raises(AssertionError, match="another number of examples"):
            testing._check_blocks_are_drawn_alike(task)


@pytest.mark.parametrize("noise", [1.0, 5.0])
def test_token_statistics(noise):
    examples = chains(400, noise, np.random.default_rng(0))
    tokens, labels = examples.inputs, examples.labels
    assert tokens.shape == (400, 31, 231)
    assert labels.tolist() == [1.0] * 200 + [-1.0] * 200
    np.testing.assert_array_equal(tokens[:, :, 200:], np.broadcast_to(np.eye(31), (400, 31, 31)))
    np.testing.assert_array_equal(tokens[:, 0, :200], 0.0)

    assert POSITIVE @ NEGATIVE == 0
    assert pytest.approx(200) == POSITIVE @ POSITIVE
    assert pytest.approx(200) == NEGATIVE @ NEGATIVE
    signal = np.where(hidden_states(tokens)[..., None] > 0, POSITIVE, NEGATIVE)
    residual = tokens[:, 1:, :200] - signal
    count = residual[..., 0].size
    along = residual @ np.stack([POSITIVE, NEGATIVE], axis=1) / np.sqrt(200)
    np.testing.assert_allclose(along.std(axis=(0, 1)), 1.0, rtol=4 / np.sqrt(2 * count))
    np.testing.assert_allclose(along.mean(axis=(0, 1)), 0.0, atol=4 / np.sqrt(count))
    across = (residual**2).sum(axis=2) - (along**2).sum(axis=2)
    assert across.mean() == pytest.approx(198 * noise**2, rel=4 / np.sqrt(198 * count / 2))


def test_flip_probabilities():
    examples = chains(1000, 1.0, np.random.default_rng(1))
    states = hidden_states(examples.inputs)
    flips = states[:, 1:] != states[:, :-1]
    for label, probability in ((1.0, 0.3), (-1.0, 0.7)):
        seen = flips[examples.labels == label]
        error = np.sqrt(probability * (1 - probability) / seen.size)
        assert abs(seen.mean() - probability) < 4 * error
    assert abs(states[:, 0].mean()) < 4 / np.sqrt(1000)


def test_the_same_state_head_attends_to_an_equal_predecessor_or_the_first_token():
    realisation = HiddenMarkov(examples=20).realise(0)
    states = np.sign(np.random.default_rng(2).standard_normal((6, 30)))
    tokens = np.zeros((6, 31, 231))
    tokens[:, 1:, :200] = np.where(states[..., None] > 0, POSITIVE, NEGATIVE)
    tokens[:, :, 200:] = np.eye(31)
    omega = realisation.layers[0].attention(tokens)[:, 0]  # (example, key, query)
    np.testing.assert_allclose(omega[:, :, 0], 1 / 31, rtol=1e-12)  # the first token: no query
    for example in range(6):
        for query in range(1, 31):
            same = query > 1 and states[example, query - 1] == states[example, query - 2]
            assert omega[example, query - 1 if same else 0, query] > 0.8

    noisy = realisation.train
    omega = realisation.layers[0].attention(noisy.inputs)[:, 0]
    states = hidden_states(noisy.inputs)
    same = states[:, 1:] == states[:, :-1]
    target = np.where(same, np.arange(1, 30), 0)
    assert (omega[:, :, 2:].argmax(axis=1) == target).mean() > 0.98


@pytest.mark.parametrize(
    ("variant", "layer", "head"),
    [
        ("plain", 1, 0),
        ("strong-noise", 1, 0),
        ("strong-noise-uniform", 1, 0),
        ("strong-noise-uniform", 0, 1),
    ],
)
def test_uniform_heads_are_exactly_uniform(variant, layer, head):
    realisation = HiddenMarkov(variant=variant, examples=4).realise(0)
    omega = realisation.layers[layer].attention(realisation.train.inputs)[:, head]
    np.testing.assert_allclose(omega, 1 / 31, rtol=1e-12)


def test_strong_noise_keeps_the_good_and_the_random_denoising_path():
    """Of the plain network's heads, with the noise orthogonal to the features five times larger."""
    plain, strong, uniform = (
        HiddenMarkov(variant=variant, examples=4).realise(3)
        for variant in ("plain", "strong-noise", "strong-noise-uniform")
    )
    np.testing.assert_array_equal(strong.layers[0].products, plain.layers[0].products)
    np.testing.assert_array_equal(strong.layers[1].products, plain.layers[1].products[:1])
    np.testing.assert_array_equal(strong.train.inputs, uniform.train.inputs)
    v = np.array(hidden_markov.state_features())
    for realisation, deviation in ((plain, 1.0), (strong, 5.0)):
        features = realisation.train.inputs[:, 1:, :200]
        orthogonal = features - features @ v.T @ v / 200
        assert orthogonal.std() == pytest.approx(deviation * np.sqrt(0.99), rel=0.02)


def test_random_heads_have_four_blocks():
    product = hidden_markov.random_head(np.random.default_rng(3))
    features, positions = slice(200), slice(200, 231)
    for rows, columns, deviation in (
        (features, features, 1 / 200),
        (positions, positions, 1.0),
        (features, positions, 1 / np.sqrt(200)),
        (positions, features, 1 / np.sqrt(200)),
    ):
        values = product[rows, columns]
        assert values.std() == pytest.approx(deviation, rel=4 / np.sqrt(2 * values.size))


def test_data_and_heads_come_from_streams_of_their_own():
    one = HiddenMarkov(examples=10, test_examples=10).realise(7)
    two = HiddenMarkov(examples=20, test_examples=30).realise(7)
    np.testing.assert_array_equal(one.layers[0].products, two.layers[0].products)
    more = HiddenMarkov(examples=10, test_examples=30).realise(7)
    np.testing.assert_array_equal(one.train.inputs, more.train.inputs)
    assert not np.array_equal(one.train.inputs, one.test_sets["test"].inputs)


def test_defaults_are_the_papers():
    task = HiddenMarkov()
    assert (task.variant, task.examples, task.test_examples) == ("plain", 100, 1000)
    assert task.readout == "last"  # as in the published code; the text says the first
    assert task.widths == (10, 30, 50, 100, 300, 500, 1000)
    assert task.temperatures == (0.01,)
    assert task.variances == 1.0


@pytest.mark.parametrize("readout", ["first", "last", "mean"])
def test_the_readout_is_the_one_asked_for(readout):
    task = HiddenMarkov(examples=4, test_examples=4, readout=readout)
    data = prepare_data(Study(task), 0, array_library("numpy"))
    realisation = task.realise(0)
    token = {"first": 0, "last": 30}
    omegas = [layer.attention(realisation.train.inputs) for layer in realisation.layers]
    weights = np.full(31, 1 / 31) if readout == "mean" else np.eye(31)[token[readout]]
    along = np.einsum("pgst,phtu,u,psi->pghi", *omegas, weights, realisation.train.inputs)
    np.testing.assert_allclose(data.xi, along.reshape(4, 4, -1), atol=1e-10)


def test_every_draw_depends_on_the_seed_and_none_on_another():
    one, two = (HiddenMarkov(examples=6, test_examples=6).realise(seed) for seed in (0, 1))
    for layer in (0, 1):
        random, other = (r.layers[layer].products[1] for r in (one, two))
        assert not np.allclose(random, other)
        assert random.std() > 0.1 * 10 / 200, "sharp as the other heads are"
    first, second = (r.layers[layer].products[1] for r, layer in ((one, 0), (one, 1)))
    assert not np.allclose(first, second)
    assert not np.allclose(one.train.inputs, one.test_sets["test"].inputs)
    assert not np.allclose(one.train.inputs, two.train.inputs)
    assert not np.allclose(one.test_sets["test"].inputs, two.test_sets["test"].inputs)


def test_random_heads_are_as_sharp_as_the_others():
    """Everything is multiplied by ten; in the block of features entries have deviation 1/200."""
    products = HiddenMarkov(examples=4, test_examples=4).realise(5).layers[0].products
    assert products[1, :200, :200].std() == pytest.approx(10 / 200, rel=0.02)
    assert products[1, 200:, 200:].std() == pytest.approx(10, rel=0.1)
    difference = (POSITIVE - NEGATIVE) / 200
    np.testing.assert_allclose(products[0, :200, :200], 10 * np.outer(difference, difference))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "loud"}, "variant must be one of plain, strong-noise"),
        ({"readout": "middle"}, "readout must be one of first, last, mean"),
        ({"examples": 7}, "examples must be even and at least 2, but is 7"),
        ({"test_examples": 0}, "test_examples must be even and at least 2, but is 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        HiddenMarkov(**options)


@pytest.fixture(
    scope="module", params=["plain", pytest.param("strong-noise-uniform", marks=pytest.mark.slow)]
)
def results(request):
    """Accuracies and order parameter at N = 10 and T = 0.01, for each seed."""
    found = []
    for seed in SEEDS:
        realisation = HiddenMarkov(variant=request.param).realise(seed)
        train, test = realisation.train, realisation.test_sets["test"]
        xi, new = (
            pk.attentioned_inputs(part.inputs, realisation.layers, realisation.readout)
            for part in (train, test)
        )
        network = pk.Network(realisation.heads, 10)
        problem = pk.Problem(xi, train.labels)
        solution = pk.minimise_action(problem, network, 0.01)
        entry = {
            "accuracy": pk.accuracy(solution.predict_mean(new), test.labels),
            "order parameter": solution.order_parameter,
            "scores": pk.head_scores(network, solution.order_parameter),
        }
        whole = {"all paths": [range(1, count + 1) for count in network.heads]}
        for name, kept in {**whole, **realisation.sub_networks}.items():
            paths = network.paths_through(kept)
            limit = pk.gp_limit(problem.keep_paths(paths), network.keep_heads(kept), 0.01)
            entry[name] = pk.accuracy(limit.predict_mean(new[:, paths]), test.labels)
        found.append(entry)
    return request.param, found


def test_a_narrow_network_classifies_well(results):
    _, found = results
    assert np.median([entry["accuracy"] for entry in found]) >= 0.94
    for entry in found:
        assert entry["accuracy"] > entry["all paths"] + 0.05


def test_paths_are_combined_as_they_help(results):
    variant, found = results
    for entry in found:
        u = entry["order parameter"]
        good, denoising = (0, 2) if variant == "plain" else (0, 1)
        correlation = u[good, denoising] / np.sqrt(u[good, good] * u[denoising, denoising])
        assert correlation < -0.3  # noise common to both paths cancels
        assert u[good, good] > 2 * 1.0
        if variant == "plain":
            adversarial = u[[1, 3], [1, 3]]
            assert (adversarial < 1).all()  # below the Gaussian process limit
            assert adversarial.max() < 0.2 * min(u[0, 0], u[2, 2])
            second = entry["scores"][2:]  # of two layers of two heads
            assert second[0] == 1.0
            assert second[1] < 0.25


def test_sub_networks_in_the_gaussian_process_limit(results):
    variant, found = results
    accuracies = {
        name: np.median([entry[name] for entry in found]) for name in found[0] if "good" in name
    }
    if variant == "plain":
        whole = np.median([entry["all paths"] for entry in found])
        assert accuracies["good + denoising"] > accuracies["good"] > whole
    else:
        assert accuracies["good"] < 0.65  # nearly chance: the good path needs the denoising one
