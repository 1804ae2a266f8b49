"""Heads of a live model switched off, and back on."""

import copy
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.removal import remove_heads

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
        outputs = model(INPUTS).detach()
    np.testing.assert_allclose(outputs, by_definition(model, off), atol=1e-12)
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
    remove_heads(model, [(2, 1), (2, 4)], batch=INPUTS)
    outputs = by_definition(model, [(2, 1), (2, 4)])
    np.testing.assert_allclose(model(INPUTS).detach(), outputs, atol=1e-12)


def test_refused(model):
    with pytest.raises(ValueError, match=r"heads names \(2, 5\), .* have 4, 4 heads"):
        remove_heads(model, [(2, 5)], batch=INPUTS)
    with pytest.raises(ValueError, match=r"heads names \(0, 0\)"), heads_off(model, [(0, 0)]):
        pass
    with pytest.raises(ValueError, match="remove_heads needs a batch of the model"):
        remove_heads(model, [(2, 1)])
    attention = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64)
    with pytest.raises(CaptureError, match="layer 1 keeps its shape"):
        remove_heads(attention, [(1, 1)], smaller=True, batch=((INPUTS,) * 3, None))
    model.layers[1].self_attn.out_proj.weight = model.layers[0].self_attn.out_proj.weight
    with pytest.raises(CaptureError, match="TransformerEncoder share their weights"):
        remove_heads(model, [(1, 1)], batch=INPUTS)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:PyTorch fuses this model's encoder layers")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_smaller_encoder(batch_first, bias):
    """With and without masks, gradients and PyTorch's fused layers, whichever layer is smaller."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        *(WIDTH, HEADS, 16), batch_first=batch_first, bias=bias, dtype=torch.float64
    )
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=batch_first and bias).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    inputs = INPUTS if batch_first else INPUTS.transpose(0, 1)
    padding = torch.arange(5) >= torch.tensor([5, 3, 4])[:, None]
    mask = torch.randn(5, 5, dtype=torch.float64)
    every = [(1, head) for head in (1, 2, 3, 4)]
    for off in ([(1, 2)], [(3, 1), (3, 4)], every, [(2, 1), (2, 2), (2, 3)]):
        smaller = copy.deepcopy(model)
        given = {"src": inputs, "src_key_padding_mask": padding}
        remove_heads(smaller, off, smaller=True, batch=given)
        assert smaller.layers[off[0][0] - 1].self_attn.num_heads == max(4 - len(off), 1)
        by_head = mask.expand(3 * HEADS, -1, -1)
        for given in ((inputs,), (inputs, mask), (inputs, None, padding), (inputs, by_head)):
            for gradients in (False, True):
                with torch.set_grad_enabled(gradients):
                    # additive masks are of another function in PyTorch's fused layers
                    is_added = len(given) == 2 and not gradients
                    with heads_off(smaller, []) if is_added else nullcontext():
                        found = smaller(*given)
                    with heads_off(model, off):
                        expected = model(*given)
                if len(given) == 3:  # PyTorch's fused layers give zeros for padding
                    own = ~padding if batch_first else ~padding.T
                    found, expected = found[own], expected[own]
                np.testing.assert_allclose(found.detach(), expected.detach(), atol=1e-12)
    whole = capture(model, [inputs], readout="mean")
    left = [place for place, head in enumerate(whole.members[0]) if head not in off[:1]]
    remove_heads(smaller := copy.deepcopy(model), off[:1], smaller=True, batch=inputs)
    found = capture(smaller, [inputs], readout="mean")
    np.testing.assert_allclose(found.xi[:, :8], whole.xi[:, left][:, :8], atol=1e-12)
    remove_heads(smaller, [(2, 1)], smaller=True, batch=inputs)  # a second time
    assert capture(smaller, [inputs], readout="mean").heads == (1 + 4 + 2 + 4,)


def test_smaller_attention_gives_weights_as_the_whole():
    """The mean over heads that are left, or all of them, as asked for."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)})
    model.forward = lambda x: model["attention"](x, x, x, need_weights=False)[0]
    model, inputs = model.double(), INPUTS
    _, weights = model["attention"](inputs, inputs, inputs, average_attn_weights=False)
    remove_heads(model, [(1, 2)], smaller=True, batch=inputs)
    smaller = model["attention"]
    _, found = smaller(inputs, inputs, inputs, average_attn_weights=False)
    np.testing.assert_allclose(found.detach(), weights[:, [0, 2, 3]].detach(), atol=1e-12)
    _, found = smaller(inputs, inputs, inputs)
    np.testing.assert_allclose(found.detach(), weights[:, [0, 2, 3]].mean(1).detach(), atol=1e-12)
    with pytest.raises(ValueError, match="query must be of sequences in a batch"):
        smaller(*[inputs[0]] * 3)


def test_smaller_decoder():
    """Its own attention, causal; that to the other sequence is no layer."""
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, batch_first=True, dtype=torch.float64)
    model = nn.TransformerDecoder(layer, 2).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    batch = {"tgt": INPUTS, "memory": INPUTS[:, :2] + 1, "tgt_mask": mask}
    whole, off = capture(model, [batch], readout="last"), [(1, 1), (2, 4)]
    with heads_off(model, off):
        expected = model(**batch)
    remove_heads(model, off, smaller=True, batch=batch)
    np.testing.assert_allclose(model(**batch).detach(), expected.detach(), atol=1e-12)
    assert (whole.heads, capture(model, [batch], readout="last").heads) == ((9,), (7,))


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


def test_heads_are_listed(model):
    remove_heads(model, [(1, 2)], batch=INPUTS, smaller=True)
    table = list_heads(model)
    assert table.index.tolist() == [1, 2]
    assert table["module"].tolist() == ["layers.0.self_attn", "layers.1.self_attn"]
    assert table["heads"].tolist() == table["groups"].tolist() == [3, 4]
    assert table["head_size"].tolist() == [2, 2]
    assert table["width"].tolist() == [WIDTH, WIDTH]
    with pytest.raises(CaptureError, match="no attention of a known form"):
        list_heads(nn.Linear(2, 2))
