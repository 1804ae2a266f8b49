"""Capture of TransformerLens's hooked models, up to version 3, against their own caches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
lens = pytest.importorskip("transformer_lens", reason="TransformerLens is not installed")
try:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
except ImportError:
    pytest.skip("TransformerLens has no HookedTransformer", allow_module_level=True)

from pathkernel_capture.capture import capture
from pathkernel_models.heads_off import heads_off

LAYERS, HEADS = 2, 4
IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]])
OFF = [(1, 2), (2, 4)]


@pytest.fixture
def model():
    config = HookedTransformerConfig(
        **{"n_layers": LAYERS, "d_model": 16, "n_ctx": 8, "d_head": 4, "n_heads": HEADS},
        **{"d_mlp": 24, "d_vocab": 20, "act_fn": "gelu", "attention_dir": "causal", "seed": 0},
        **{"device": "cpu", "dtype": torch.float64},
    )
    return HookedTransformer(config)


def test_capture_is_the_cache(model, files_route):
    side_by_side, product = files_route
    _, cache = model.run_with_cache(IDS)
    cached = {name: cache[name].detach().numpy() for name in cache}
    tokens = cached["blocks.0.hook_resid_pre"]
    attention = [cached[f"blocks.{layer}.attn.hook_pattern"] for layer in range(LAYERS)]
    seen = [cached[f"blocks.{layer}.ln1.hook_normalized"] for layer in range(LAYERS)]
    weights = [model.blocks[layer].ln1 for layer in range(LAYERS)]
    seen = [x * ln.w.detach().numpy() + ln.b.detach().numpy() for x, ln in zip(seen, weights)]
    captured = capture(model, [IDS], readout="last", attend="states")
    for p in range(len(IDS)):
        paid = [layer[p] for layer in attention]
        ours = side_by_side(paid, [x[p] for x in seen], tokens[p], np.eye(5)[-1])
        np.testing.assert_allclose(captured.xi[p], ours, atol=1e-12)
    captured = capture(model, [IDS], readout="last", picture="product")
    np.testing.assert_allclose(captured.xi, product(attention, tokens, "last"), atol=1e-12)


def test_heads_off_is_zeroing_what_they_pass_on(model):
    def silence(z, hook):
        for layer, head in OFF:
            if layer == hook.layer() + 1:
                z[:, :, head - 1] = 0
        return z

    with torch.no_grad():
        whole = model(IDS)
        hooks = [(f"blocks.{layer}.attn.hook_z", silence) for layer in range(LAYERS)]
        expected = model.run_with_hooks(IDS, fwd_hooks=hooks)
        with heads_off(model, OFF):
            np.testing.assert_allclose(model(IDS), expected, atol=1e-12)
        assert torch.equal(model(IDS), whole)
        assert not torch.allclose(whole, expected)


def test_gradients_and_values(model, check_scores):
    check_scores(model, IDS, model)


def test_tangent_kernels_are_of_derivatives_by_weights(model, check_tangents):
    check_tangents(model.eval(), IDS, lambda ids: model(ids)[:, -1, :2])
