"""The encoder of the example, and the sentences that it is tried on."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import bert
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


def test_encoder_against_torch(state):
    """Attention and output are those of PyTorch's encoder layer with the same weights."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    path, weights = state
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    stem = "encoder.layer.0"
    layer = torch.nn.TransformerEncoderLayer(
        *(WIDTH, bert.HEADS, 4 * WIDTH, 0.0),
        activation="gelu",
        layer_norm_eps=1e-12,
        batch_first=True,
        dtype=torch.float64,
    )
    kinds = [f"{stem}.attention.self.{kind}" for kind in ("query", "key", "value")]
    names = {
        "self_attn.out_proj": f"{stem}.attention.output.dense",
        "linear1": f"{stem}.intermediate.dense",
        "linear2": f"{stem}.output.dense",
        "norm1": f"{stem}.attention.output.LayerNorm",
        "norm2": f"{stem}.output.LayerNorm",
    }
    own = {
        f"{ours}.{part}": tensors[f"{theirs}.{part}"]
        for ours, theirs in names.items()
        for part in ("weight", "bias")
    }
    for part in ("weight", "bias"):
        own[f"self_attn.in_proj_{part}"] = torch.cat([tensors[f"{kind}.{part}"] for kind in kinds])
    layer.load_state_dict(own)
    layer.eval()
    ids = np.random.default_rng(1).integers(WORDS, size=(3, 7))
    embeddings, attention, pooled = bert.Encoder(path, 1).encode(ids)
    tokens = torch.tensor(embeddings)
    with torch.no_grad():
        _, expected = layer.self_attn(tokens, tokens, tokens, average_attn_weights=False)
        assert np.allclose(attention[0], expected.numpy())
        assert np.allclose(pooled, layer(tokens).mean(dim=1).numpy())
    normalised = torch.nn.functional.layer_norm(
        tensors["embeddings.word_embeddings.weight"][torch.tensor(ids)]
        + tensors["embeddings.position_embeddings.weight"][:7]
        + tensors["embeddings.token_type_embeddings.weight"][0],
        (WIDTH,),
        *(tensors[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")),
        eps=1e-12,
    )
    assert np.allclose(embeddings, normalised.numpy())


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
