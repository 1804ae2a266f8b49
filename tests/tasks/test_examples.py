"""The encoder of the example, and the sentences that it is tried on."""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import bert
import minilm
import reviews

WIDTH, WORDS = 24, 11


@pytest.fixture
def state(tmp_path):
    """Write random weights of a small encoder of one layer → its path and the weights."""
    generator = np.random.default_rng(0)
    stem = "encoder.layer.0"
    square, wide = (WIDTH, WIDTH), (4 * WIDTH, WIDTH)
    shapes = {f"{stem}.attention.self.{kind}": square for kind in ("query", "key", "value")}
    shapes |= {f"{stem}.attention.output.dense": square, f"{stem}.intermediate.dense": wide}
    shapes |= {f"{stem}.output.dense": wide[::-1]}
    weights = {}
    for name, shape in shapes.items():
        weights[f"{name}.weight"] = generator.normal(size=shape) / 5
        weights[f"{name}.bias"] = generator.normal(size=shape[0]) / 5
    for name in ("embeddings", f"{stem}.attention.output", f"{stem}.output"):
        weights[f"{name}.LayerNorm.weight"] = 1 + generator.normal(size=WIDTH) / 5
        weights[f"{name}.LayerNorm.bias"] = generator.normal(size=WIDTH) / 5
    for name, count in (("word", WORDS), ("position", 9), ("token_type", 2)):
        weights[f"embeddings.{name}_embeddings.weight"] = generator.normal(size=(count, WIDTH))
    path = tmp_path / "model.safetensors"
    save_file(weights, path)
    return path, weights


def normalised(token, scale, shift):
    """Layer normalisation of one token."""
    return (token - token.mean()) / math.sqrt(token.var() + 1e-12) * scale + shift


def test_encoder_token_by_token(state):
    """Attention and output of a post-normalised encoder layer, from its definition."""
    path, weights = state
    stem = "encoder.layer.0"
    ids = np.random.default_rng(1).integers(WORDS, size=(3, 7))
    embeddings, attention, pooled = bert.Encoder(path, 1).encode(ids)

    def affine(name, token):
        return weights[f"{name}.weight"] @ token + weights[f"{name}.bias"]

    def norm(name, token):
        parts = (weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return normalised(token, *parts)

    size = WIDTH // bert.HEADS
    for p, sentence in enumerate(ids):
        tokens = [
            norm(
                "embeddings",
                weights["embeddings.word_embeddings.weight"][word]
                + weights["embeddings.position_embeddings.weight"][place]
                + weights["embeddings.token_type_embeddings.weight"][0],
            )
            for place, word in enumerate(sentence)
        ]
        assert np.allclose(embeddings[p], tokens)
        outputs = []
        for t, token in enumerate(tokens):
            context = []
            for head in range(bert.HEADS):
                part = slice(head * size, (head + 1) * size)
                query = affine(f"{stem}.attention.self.query", token)[part]
                keys = [affine(f"{stem}.attention.self.key", x)[part] for x in tokens]
                values = [affine(f"{stem}.attention.self.value", x)[part] for x in tokens]
                paid = np.exp([key @ query / math.sqrt(size) for key in keys])
                paid /= paid.sum()
                assert np.allclose(attention[0][p, head, t], paid)
                context.append(sum(share * value for share, value in zip(paid, values)))
            seen = affine(f"{stem}.attention.output.dense", np.concatenate(context))
            hidden = norm(f"{stem}.attention.output", token + seen)
            inner = affine(f"{stem}.intermediate.dense", hidden)
            inner = np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in inner])
            outputs.append(norm(f"{stem}.output", hidden + affine(f"{stem}.output.dense", inner)))
        assert np.allclose(pooled[p], np.mean(outputs, axis=0))


def test_switched_off_heads(state):
    """A head switched off is a head whose part of the output map is zero."""
    path, weights = state
    ids = np.random.default_rng(1).integers(WORDS, size=(3, 7))
    kept = np.ones((1, bert.HEADS), bool)
    whole = bert.Encoder(path, 1).encode(ids)[2]
    assert np.array_equal(bert.Encoder(path, 1).encode(ids, kept)[2], whole)
    kept[0, 4] = False
    found = bert.Encoder(path, 1).encode(ids, kept)[2]
    assert not np.allclose(found, whole)
    size = WIDTH // bert.HEADS
    weights["encoder.layer.0.attention.output.dense.weight"][:, 4 * size : 5 * size] = 0
    save_file(weights, path)
    pruned = bert.Encoder(path, 1)
    assert np.allclose(pruned.encode(ids)[2], found)
    assert pruned.magnitudes(0)[4] == 0
    assert pruned.magnitudes(0)[3] > 0


def test_reviews():
    """Every sentence comes once, both classes as often, and the writer's word decides."""
    sentences, labels = reviews.reviews(600, np.random.default_rng(0))
    assert len(set(sentences)) == len(sentences) == len(labels)
    assert abs(labels.mean()) < 4 / math.sqrt(len(labels))
    again, _ = reviews.reviews(600, np.random.default_rng(0))
    assert again == sentences
    for sentence, label in zip(sentences, labels):
        words = sentence.split()
        good = [word for word in words if word in reviews.GOOD]
        bad = [word for word in words if word in reviews.BAD]
        assert 1 <= len(good) + len(bad) <= 2
        if not (good and bad):
            negated = any(word in words for word in ("not", "nobody", "less"))
            assert (label > 0) == (bool(good) != negated), sentence


def test_the_first_sentences_stay_when_more_are_drawn():
    """So that validation sentences come on top of the training and test sentences."""
    more, _ = reviews.reviews(60, np.random.default_rng(0))
    assert more[:40] == reviews.reviews(40, np.random.default_rng(0))[0]


def test_difference_of_two_orders_on_the_same_sentences():
    """The interval is that of paired sentences: its width is that of their differences."""
    generator = np.random.default_rng(0)
    first = generator.random((1, 1000)) < 0.6
    second = first ^ (generator.random((1, 1000)) < 0.05)
    gain = first.astype(float) - second
    mean, low, high = map(float, re.findall(r"[+-][\d.]+", minilm.difference(first, second)))
    assert mean == pytest.approx(gain.mean(), abs=1e-3)
    assert high - low == pytest.approx(2 * 1.96 * gain.std() / math.sqrt(1000), rel=0.15)
