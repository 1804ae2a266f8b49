"""Heads of a live model switched off, and back on."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn  # noqa: E402

from pathkernel_capture import CaptureError, heads_off, remove_heads  # noqa: E402

WIDTH, HEADS = 8, 4


@pytest.fixture
def model():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


INPUTS = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_definition(model, off):
    """Post-norm encoder layers in NumPy, the outputs of heads summed one by one."""
    x = INPUTS.numpy()
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}

    def normal(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    for layer in (1, 2):
        stem, size = f"layers.{layer - 1}", WIDTH // HEADS
        mixed = x @ state[f"{stem}.self_attn.in_proj_weight"].T
        q, k, v = np.split(mixed + state[f"{stem}.self_attn.in_proj_bias"], 3, axis=-1)
        out = state[f"{stem}.self_attn.out_proj.weight"]
        added = state[f"{stem}.self_attn.out_proj.bias"]
        for head in range(1, HEADS + 1):
            part = slice((head - 1) * size, head * size)
            paid = np.exp(q[..., part] @ k[..., part].swapaxes(1, 2) / np.sqrt(size))
            paid /= paid.sum(axis=-1, keepdims=True)
            if (layer, head) not in off:
                added = added + paid @ v[..., part] @ out[:, part].T
        x = normal(x + added, f"{stem}.norm1")
        inner = np.maximum(x @ state[f"{stem}.linear1.weight"].T + state[f"{stem}.linear1.bias"], 0)
        outer = inner @ state[f"{stem}.linear2.weight"].T + state[f"{stem}.linear2.bias"]
        x = normal(x + outer, f"{stem}.norm2")
    return x


@pytest.mark.parametrize("off", [[], [(1, 1)], [(1, 4), (2, 2), (2, 2)]])
@pytest.mark.parametrize("gradients", [False, True])  # without, torch takes its fused kernel
def test_the_sum_over_heads_lacks_them(model, off, gradients):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with heads_off(model, off), torch.set_grad_enabled(gradients):
        found = model(INPUTS).detach()
    np.testing.assert_allclose(found, by_definition(model, off), atol=1e-12)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    np.testing.assert_allclose(model(INPUTS).detach(), by_definition(model, []), atol=1e-12)


def test_put_back_from_within_and_after_errors(model):
    whole = model(INPUTS)
    with pytest.raises(KeyError), heads_off(model, [(1, 1)]), heads_off(model, [(1, 1), (2, 3)]):
        raise KeyError
    assert torch.equal(model(INPUTS), whole)


def test_gradients_of_the_rest(model):
    """Inside, a head that is off has no gradient through what it passes on."""
    with heads_off(model, [(1, 2)]):
        model(INPUTS).sum().backward()
    values = model.layers[0].self_attn.in_proj_weight.grad[2 * WIDTH :]
    assert not values[2:4].any()
    assert values[:2].any()


def test_removed_for_good(model):
    remove_heads(model, [(2, 1), (2, 4)])
    found = by_definition(model, [(2, 1), (2, 4)])
    np.testing.assert_allclose(model(INPUTS).detach(), found, atol=1e-12)


def test_refused(model):
    with pytest.raises(ValueError, match=r"heads names \(2, 5\), .* have 4, 4 heads"):
        remove_heads(model, [(2, 5)])
    with pytest.raises(ValueError, match=r"heads names \(0, 0\)"), heads_off(model, [(0, 0)]):
        pass
    with pytest.raises(CaptureError, match=r"layer 2 \(layers.1.self_attn\) keeps its shape"):
        remove_heads(model, [(2, 1)], smaller=True)
    model.layers[1].self_attn.out_proj.weight = model.layers[0].self_attn.out_proj.weight
    with pytest.raises(CaptureError, match="TransformerEncoder share their weights"):
        remove_heads(model, [(1, 1)])


def test_a_layer_that_runs_twice_is_refused():
    layer, other = (
        nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True, dtype=torch.float64)
        for _ in range(2)
    )
    model = nn.TransformerEncoder(other, 1, enable_nested_tensor=False)
    model.layers = nn.ModuleList([layer, layer, other])
    for switch in (lambda heads: heads_off(model, heads).__enter__(), partial(remove_heads, model)):
        with pytest.raises(CaptureError, match="share their weights"):
            switch([(2, 1)])
    model.layers = nn.ModuleList([layer, other])
    model.alias = model.layers  # another name for the same, which is no second run
    with heads_off(model, [(2, 1)]):
        assert not other.self_attn.out_proj.weight[:, : WIDTH // HEADS].any()


def test_heads_that_are_no_pairs(model):
    with pytest.raises(TypeError, match=r"must be pairs of layer and head, such as \[\(2, 3\)\]"):
        remove_heads(model, (1, 2))
