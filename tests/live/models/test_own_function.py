"""Encoder layers of PyTorch, which compute otherwise when fused, are one function inside."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.comparison import compare_heads

WIDTH, HEADS, TOKENS = 16, 4, 6
RANDOM = np.random.default_rng(0)
INPUTS = torch.randn(5, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


class Adapted(nn.Module):
    """A linear map with an adapter that is not merged, whose weight is the map's."""

    def __init__(self, base):
        super().__init__()
        self.base, self.adapter = base, nn.Linear(base.in_features, base.out_features)

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, x):
        return self.base(x) + self.adapter(x)


class Halved(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) / 2


class GatedLayer(nn.TransformerEncoderLayer):
    """A layer with a forward pass of its own, and without all parts of PyTorch's."""

    def __init__(self):
        super().__init__(WIDTH, HEADS, 24, batch_first=True)
        del self.linear2

    def forward(self, src, src_mask=None, **_):
        attended, _ = self.self_attn(src, src, src, attn_mask=src_mask, need_weights=False)
        return src + attended * self.linear1(src)[..., :WIDTH].sigmoid()


def encoder(heads=HEADS):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, heads, 24, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    return model


def adapted(*parts):
    model = encoder()
    for part in parts:
        setattr(model.layers[1], part, Adapted(getattr(model.layers[1], part)))
    return model


def halved():
    model = encoder()
    model.layers[0].norm2 = Halved(WIDTH)
    return model


def drawn_bias(*shape):
    """A bias of the scores, of either sign, with hidden keys that are not the first."""
    bias = torch.from_numpy(RANDOM.normal(size=shape)).float()
    hidden = torch.from_numpy(RANDOM.random(shape) < 0.3)
    hidden[..., 0] = False
    return bias.masked_fill(hidden, -torch.inf)


# name: the model, the arguments beside its input, and what the warning names
OTHERWISE = {
    "alibi": (encoder, {"mask": -0.1 * torch.arange(6.0).sub(torch.arange(6.0)[:, None]).abs()}),
    "bias": (encoder, {"mask": drawn_bias(TOKENS, TOKENS)}),
    "bias by head": (encoder, {"mask": drawn_bias(5 * HEADS, TOKENS, TOKENS)}),
    "bias of keys": (encoder, {"src_key_padding_mask": drawn_bias(5, TOKENS)}),
    "adapter": (lambda: adapted(str(RANDOM.choice(["linear1", "linear2"]))), {}),
    "norm": (halved, {}),
}
NAMES = {"bias of keys": "src_key_padding_mask", "adapter": r"linear[12] \(.*Adapted\)"}
NAMES |= {"alibi": "src_mask", "bias": "src_mask", "norm": r"norm2 \(.*Halved\)"}


def some_heads():
    everything = [(layer, head) for layer in (1, 2) for head in range(1, HEADS + 1)]
    chosen = RANDOM.choice(len(everything), size=RANDOM.integers(1, 4), replace=False)
    return [everything[head] for head in chosen]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", OTHERWISE)
def test_heads_are_off_in_the_function_without_fusion(case):
    """That of gradients, in every layer, and in the whole model beside it."""
    build, arguments = OTHERWISE[case]
    model = build()
    whole = model(INPUTS, **arguments).detach()
    with torch.no_grad():
        fused = model(INPUTS, **arguments)
    assert not torch.allclose(fused, whole, atol=0.01)  # else PyTorch has mended it
    for heads in ([], some_heads()):
        with heads_off(model, heads):
            expected = model(INPUTS, **arguments).detach()
        with torch.no_grad(), heads_off(model, heads):
            torch.testing.assert_close(model(INPUTS, **arguments), expected)
        assert torch.allclose(expected, whole) == (heads == [])
    with torch.no_grad():  # and the model is as it was
        torch.testing.assert_close(model(INPUTS, **arguments), fused, equal_nan=True)


@pytest.mark.parametrize("case", OTHERWISE)
def test_a_plain_model_that_computes_otherwise_is_told(case):
    build, arguments = OTHERWISE[case]
    model, batch = build(), {"src": INPUTS} | arguments

    def losses(_=None):
        return model(INPUTS, **arguments).square().mean(dim=(1, 2))

    def off():
        with torch.no_grad(), heads_off(model, some_heads()):
            losses()

    scores = {"first": {(layer, head): head for layer in (1, 2) for head in range(1, HEADS + 1)}}
    functions = [off, lambda: capture(model, [batch], readout="mean")]
    functions.append(lambda: compare_heads(model, losses, scores, random=2, resamples=2))
    for function in functions:
        with pytest.warns(RuntimeWarning, match=NAMES.get(case, "additive src_mask")):
            function()


def test_other_models_are_not():
    """Masks of zeros and infinities, models that are not fused, and those with gradients."""
    causal = torch.ones(TOKENS, TOKENS).triu(1).bool()
    padding = torch.zeros(5, TOKENS, dtype=torch.bool)
    padding[1, 4:] = True
    added = torch.zeros(TOKENS, TOKENS).masked_fill(causal, -torch.inf)
    alibi = OTHERWISE["alibi"][1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad(), heads_off(model := encoder(), [(1, 1)]):
            model(INPUTS)
            model(INPUTS, mask=causal)
            model(INPUTS, mask=added, src_key_padding_mask=torch.zeros(5, TOKENS))
            model(INPUTS, mask=causal, src_key_padding_mask=padding)
        with heads_off(model, [(1, 1)]):
            model(INPUTS, **alibi)
        with torch.no_grad(), heads_off(model := encoder(1), [(1, 1)]):
            model(INPUTS, **alibi)
        model = nn.TransformerEncoder(GatedLayer(), 2, enable_nested_tensor=False).eval()
        with torch.no_grad(), heads_off(model, [(1, 1)]):
            model(INPUTS, **alibi)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad(), heads_off(model := encoder(), [(1, 1)]):
                model(INPUTS, **alibi)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
