"""Capture of timm's vision transformers of small random weights."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
timm = pytest.importorskip("timm", reason="timm is not installed")

from pathkernel_capture.capture import capture
from pathkernel_models.cross_attention import include_cross_attention
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores
from pathkernel_pruning.live.removal import remove_heads

LAYERS, HEADS, WIDTH = 2, 3, 12


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        **{"img_size": 8, "patch_size": 4, "embed_dim": WIDTH, "depth": LAYERS},
        **{"num_heads": HEADS, "num_classes": 2, "qkv_bias": True},
    ).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert all(block.attn.fused_attn for block in model.blocks)
    return model


IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()


def by_definition(model, off=()):
    """Tokens, attention, states attended to, and the last tokens, from the weights in NumPy."""
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    with torch.no_grad():
        x = model._pos_embed(model.patch_embed(IMAGES)).numpy()
    tokens, attention, seen = x, [], []

    def affine(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def normal(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    for layer in range(LAYERS):
        stem, size = f"blocks.{layer}", WIDTH // HEADS
        seen.append(normal(x, f"{stem}.norm1"))
        mixed = affine(seen[-1], f"{stem}.attn.qkv").reshape(*x.shape[:2], 3, HEADS, size)
        q, k, v = np.moveaxis(mixed, 2, 0).swapaxes(2, 3)
        paid = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(size))
        attention.append(paid / paid.sum(axis=-1, keepdims=True))
        heads = attention[-1] @ v
        for number, head in off:
            if number == layer + 1:
                heads[:, head - 1] = 0
        x = x + affine(heads.swapaxes(1, 2).reshape(x.shape), f"{stem}.attn.proj")
        inner = affine(normal(x, f"{stem}.norm2"), f"{stem}.mlp.fc1")
        inner = torch.nn.functional.gelu(torch.tensor(inner)).numpy()
        x = x + affine(inner, f"{stem}.mlp.fc2")
    return tokens, attention, seen, normal(x, "norm")


@pytest.mark.parametrize("readout", ["first", slice(1, None)])  # class token; mean over patches
def test_capture_is_the_files_route(model, files_route, readout):
    side_by_side, product = files_route
    tokens, attention, seen, _ = by_definition(model)
    read = np.array([1, 0, 0, 0, 0]) if readout == "first" else np.array([0, 1, 1, 1, 1]) / 4
    states = capture(model, [IMAGES[:2], IMAGES[2:]], readout=readout, attend="states")
    on_tokens = capture(model, [IMAGES], readout=readout)
    for p in range(len(IMAGES)):
        paid = [layer[p] for layer in attention]
        ours = side_by_side(paid, [x[p] for x in seen], tokens[p], read)
        np.testing.assert_allclose(states.xi[p], ours, atol=1e-12)
        ours = side_by_side(paid, [tokens[p]] * LAYERS, tokens[p], read)
        np.testing.assert_allclose(on_tokens.xi[p], ours, atol=1e-12)
    paths = capture(model, [IMAGES], readout="first", picture="product", skips=True)
    expected = product(attention, tokens, "first", skips=True)
    np.testing.assert_allclose(paths.xi, expected, atol=1e-12)
    assert all(block.attn.fused_attn for block in model.blocks)


def test_heads_off(model):
    model.eval()
    off = [(1, 1), (2, 3)]
    *_, expected = by_definition(model, off)
    with torch.no_grad(), heads_off(model, off):
        features = model.forward_features(IMAGES).numpy()
    np.testing.assert_allclose(features, expected, atol=1e-12)
    with torch.no_grad():
        whole = model.forward_features(IMAGES).numpy()
    np.testing.assert_allclose(whole, by_definition(model)[-1], atol=1e-12)


def test_smaller(model):
    off = [(1, 1), (2, 3)]
    *_, expected = by_definition(model, off)
    remove_heads(model.eval(), off, smaller=True, batch=IMAGES)
    with torch.no_grad():
        np.testing.assert_allclose(model.forward_features(IMAGES), expected, atol=1e-12)
    assert capture(model, [IMAGES], readout="first").heads == (1 + 2 + 2,)


def test_gradients_and_values(model, check_scores):
    check_scores(model, IMAGES, model.forward_features)


def test_tangent_kernels_are_of_derivatives_by_weights(model, check_tangents):
    check_tangents(model.eval(), IMAGES, lambda images: model(images).sin())


def test_heads_that_pool_the_tokens_are_left_alone():
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS}
    model = timm.models.VisionTransformer(**sizes, num_classes=2, global_pool="map").double()
    scores = gradient_scores(model, [IMAGES], lambda batch: model(batch).square().sum(dim=1))
    assert scores.sizes["head"] == 2 * HEADS
    assert capture(model, [IMAGES], readout="mean").heads == (1 + 2 * HEADS,)
    assert include_cross_attention(model)["module"].tolist()[2] == "attn_pool"
    expected = without(model, model.attn_pool.proj, WIDTH // HEADS)
    with torch.no_grad(), heads_off(model.eval(), [(3, 1)]):
        torch.testing.assert_close(model(IMAGES), expected)
    with pytest.raises(CaptureError, match="with heads taken out does not compute"):
        remove_heads(model, [(3, 1)], smaller=True, batch=IMAGES)


def without(model, projection, size):
    """Outputs of a model whose first head has a size, and no part in a projection."""
    model = model.eval()
    weight = projection.weight.data.clone()
    projection.weight.data[:, :size] = 0
    with torch.no_grad():
        outputs = model(IMAGES)
    projection.weight.data = weight
    return outputs


def test_keys_and_values_of_fewer_tokens():
    """PVT v2 pools an image before one projection of keys and values."""
    sizes = {"depths": (1, 1), "embed_dims": (8, 12), "num_heads": (2, 3), "sr_ratios": (2, 1)}
    stages = sizes | {"mlp_ratios": (2, 2)}
    torch.manual_seed(0)
    model = timm.models.PyramidVisionTransformerV2(num_classes=2, **stages).double().eval()
    expected = without(model, model.stages[0].blocks[0].attn.proj, 4)
    with torch.no_grad():
        assert not torch.allclose(model(IMAGES), expected)
        with heads_off(model, [(1, 1)]):
            torch.testing.assert_close(model(IMAGES), expected)
    attention = model.stages[0].blocks[0].attn
    values, outputs = attention.kv.weight[8:12], attention.proj.weight[:, :4]
    size = float(torch.linalg.matrix_norm((outputs @ values).detach()))
    assert float(magnitude_scores(model, IMAGES).sel(head="1-1")) == pytest.approx(size)
    with pytest.raises(CaptureError, match="with heads taken out does not compute"):
        remove_heads(model, [(1, 1)], smaller=True, batch=IMAGES)


@pytest.mark.parametrize("kind", ["Eva", "Beit"])
def test_separate_biases_are_why_heads_stay_in_the_weights(kind):
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": WIDTH, "depth": 1, "num_heads": HEADS}
    model = getattr(timm.models, kind.lower()).__dict__[kind](**sizes, num_classes=2).double()
    with pytest.raises(CaptureError, match=r"not taken out: blocks.0.attn.q_bias, blocks.0.attn"):
        remove_heads(model, [(1, 1)], smaller=True, batch=IMAGES)
