"""Padding of the sequence that captured tokens are of, against single sequences without any."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.nn import functional as F

from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.masks import boolean_masks, check_boolean_masks

WIDTH, HEADS, TOKENS = 12, 3, 6


def tokens(number=TOKENS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, number, WIDTH, generator=generator, dtype=torch.float64)


def padding(number, length, left=False):
    """Padding of two sequences, the second of which has so many tokens."""
    marks = torch.zeros(2, number, dtype=torch.bool)
    marks[1, slice(number - length) if left else slice(length, None)] = True
    return marks


def check_alone(model, padded, alone, layers=None, tolerance=1e-12):
    """The second sequence of a batch, padded, gives what it gives alone."""
    for readout, attend in (("last", "states"), ("mean", "tokens")):
        options = {"readout": readout, "attend": attend, "layers": layers}
        captured, expected = (capture(model, [batch], **options) for batch in (padded, alone))
        largest = abs(expected.xi).max()
        np.testing.assert_allclose(captured.xi[1], expected.xi[0], atol=tolerance * largest)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("length", [TOKENS, 5])
def test_encoder_and_decoder_of_torch(length):
    """Each has the padding of its own sequence, also if both are of one length."""
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 16, batch_first=True, dtype=torch.float64)
    source, target = tokens(), tokens(length, seed=1)
    padded = {"src": source, "src_key_padding_mask": padding(TOKENS, 4), "tgt": target}
    padded |= {"memory_key_padding_mask": padding(TOKENS, 4)}
    alone = {"src": source[1:, :4], "tgt": target[1:]}
    for layers in ((1, 2), (3, 4)):
        check_alone(model, padded, alone, layers)
        shorter = {"tgt_key_padding_mask": padding(length, 3)}
        check_alone(model, padded | shorter, alone | {"tgt": target[1:, :3]}, layers)


def test_decoder_of_torch():
    """Padding of the other sequence, which cross-attention hides, is not its own."""
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, batch_first=True, dtype=torch.float64)
    model, target, memory = nn.TransformerDecoder(layer, 2), tokens(), tokens(seed=1)
    causal = torch.ones(TOKENS, TOKENS).triu(1).bool()
    for mask, hidden in (
        (causal, padding(TOKENS, 4)),
        (_added(causal), _added(padding(TOKENS, 4))),
    ):
        padded = {"tgt": target, "memory": memory, "tgt_mask": mask}
        padded |= {"memory_key_padding_mask": padding(TOKENS, 2)}
        alone = {"tgt": target[1:], "memory": memory[1:, :2], "tgt_mask": mask}
        check_alone(model, padded, alone)
        alone |= {"tgt": target[1:, :4], "tgt_mask": mask[:4, :4]}
        check_alone(model, padded | {"tgt_key_padding_mask": hidden}, alone)


def _added(hidden):
    return torch.zeros(hidden.shape).double().masked_fill(hidden, -torch.inf)


class ByHand(nn.Module):
    """Hides padding, of which it is told under a name of its own, by numbers of its own."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64)
        self.out = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.how = how

    def pathkernel_heads(self):
        return AttentionHeads(HEADS, self.out, [self.qkv])

    def forward(self, x, valid=None):
        split = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (part.transpose(1, 2) for part in split)
        shown = torch.ones(len(x), 1, 1, x.shape[1]).bool() if valid is None else valid
        shown = shown.reshape(len(x), 1, 1, -1).expand(-1, -1, x.shape[1], -1)
        if self.how == "boolean":
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        elif self.how == "added":
            heads = F.scaled_dot_product_attention(q, k, v, _added(~shown))
        else:
            heads = (q @ k.mT).masked_fill(~shown, self.how).softmax(dim=-1) @ v
        return self.out(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("how", ["boolean", "added", -1e3, -1e9, -float("inf")])
def test_masks_of_a_name_and_form_of_their_own(how, left):
    hidden, inputs = padding(TOKENS, 4, left), tokens()
    alone = {"x": inputs[1:, -4:] if left else inputs[1:, :4]}
    check_alone(ByHand(how), {"x": inputs, "valid": ~hidden}, alone)


class Masked(nn.Module):
    """Hands an attention_mask on as torch takes it, True for padding, or of every head."""

    def __init__(self, by_head=False):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
        self.by_head = by_head

    def forward(self, x, attention_mask):
        if self.by_head:
            mask = attention_mask[:, None].repeat_interleave(HEADS, 0).expand(-1, x.shape[1], -1)
            return self.attention(x, x, x, attn_mask=mask)[0]
        return self.attention(x, x, x, key_padding_mask=attention_mask)[0]


def test_masks_that_do_not_say_the_same():
    hidden, inputs = padding(TOKENS, 4), tokens()
    batch = {"x": inputs, "attention_mask": hidden}
    with pytest.raises(CaptureError, match=r"attention_mask .* layer 1 \(attention\) disagree"):
        capture(Masked(), [batch], readout="mean")
    for by_head in (False, True):
        given = (inputs, hidden), np.arange(2)  # in order, and labels
        xi = capture(Masked(by_head), [given], readout="mean").xi
        np.testing.assert_allclose(xi[1, 0], inputs[1, :4].mean(dim=0), atol=1e-12)
    batch["attention_mask"] = _added(hidden)
    np.testing.assert_allclose(capture(Masked(), [batch], readout="mean").xi, xi, atol=1e-12)


class Ignoring(ByHand):
    def forward(self, x, attention_mask=None):
        return super().forward(x)


@pytest.mark.parametrize("name", ["attention_mask", "src_key_padding_mask"])
@pytest.mark.parametrize("number", [TOKENS, 30])
def test_padding_that_a_model_attends_to(name, number):
    """Is refused, unless the user gives a mask; also a mask of other entries than tokens."""
    model, inputs, shown = Ignoring(-1e9), tokens(), ~padding(TOKENS, 3)
    model.forward = lambda x, **_: ByHand.forward(model, x)
    marks = padding(number, number // 2)
    batch = {"x": inputs, name: ~marks if name == "attention_mask" else marks}
    with pytest.raises(CaptureError, match=rf"{name} .* layer 1 attends to it.* masks=, a mask"):
        capture(model, [batch], readout="mean")
    captured = capture(model, [batch], readout="mean", masks=[shown.long()])
    np.testing.assert_allclose(captured.xi[1, 0], inputs[1, :3].mean(dim=0), atol=1e-12)
    np.testing.assert_allclose(captured.means, inputs[shown].mean(dim=0)[None], atol=1e-12)
    whole = capture(model, [{"x": inputs}], readout="last").xi  # which padding is part of
    np.testing.assert_allclose(capture(model, [batch], masks=[shown | True]).xi, whole, atol=1e-12)


@pytest.mark.parametrize("how", ["boolean", -1e9])
def test_sequence_of_nothing_but_padding(how):
    batch = {"x": tokens(), "valid": ~padding(TOKENS, 0)}
    with pytest.raises(ValueError, match="'last' names no token of sequence 1"):
        capture(ByHand(how), [batch])


def test_given_masks():
    hidden, inputs = padding(TOKENS, 4), tokens()
    batch, model = {"x": inputs, "valid": ~hidden}, ByHand(-1e9)
    shorter = capture(model, [batch], readout="last", masks=[~padding(TOKENS, 2)]).xi
    np.testing.assert_allclose(shorter[1, 0], inputs[1, 1], atol=1e-12)
    with pytest.raises(CaptureError, match=r"counts 1 tokens .* layer 1 hides as padding"):
        capture(model, [batch], masks=[~padding(TOKENS, 5)])
    for wrong in (torch.ones(2, 5), 2 * torch.ones(2, TOKENS)):
        with pytest.raises(CaptureError, match=r"for a batch whose tokens are \(2, 6\)"):
            capture(model, [batch], masks=[wrong])
    with pytest.raises(TypeError, match="one for each batch"):
        capture(model, [batch], masks=~hidden)
    for masks, fault in (([~hidden], "ends before"), ([~hidden] * 3, "goes on after")):
        with pytest.raises(ValueError, match=f"masks {fault} batches"):
            capture(model, [batch] * 2, masks=masks)


def test_layers_that_hide_other_tokens():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = ByHand(-1e9), ByHand(-1e9)

        def forward(self, x, valid):
            return self.second(self.first(x, valid))

    batch = {"x": tokens(), "valid": ~padding(TOKENS, 4)}
    with pytest.raises(CaptureError, match=r"layer 2 \(second\) hides 0 .* layer 1 \(first\) 2"):
        capture(Two(), [batch])


def test_attention_that_is_not_a_number():
    class Overflowing(ByHand):
        def forward(self, x):
            return super().forward(x * torch.tensor([1.0, torch.nan]).double()[:, None, None])

    with pytest.raises(CaptureError, match="layer 1 gives attention that is NaN"):
        capture(Overflowing(-1e9), [tokens()])


class Stacks(nn.Module):
    """Two stacks of layers: in a row, beside one another, or on two sequences."""

    def __init__(self, form):
        super().__init__()
        self.lower, self.upper = (nn.ModuleList([ByHand(-1e9)]) for _ in range(2))
        self.form = form

    def forward(self, x, y):
        lower = x + self.lower[0](x)
        return self.upper[0]({"row": lower, "beside": x, "apart": y}[self.form])


def test_stacks_that_see_several_sequences():
    """Are refused, also if both are of one length."""
    batch = {"x": tokens(), "y": tokens(seed=1)}
    for form in ("row", "beside"):
        assert capture(Stacks(form), [batch]).heads == (2 * HEADS + 1,)
    refusal = r"layer 2 \(upper.0\) sees another .* layer 1 \(lower.0\)"
    with pytest.raises(CaptureError, match=refusal + r".* choose the layers of one sequence"):
        capture(Stacks("apart"), [batch])
    assert capture(Stacks("apart"), [batch], layers=(2,)).heads == (HEADS + 1,)


def test_attention_to_keys_that_a_boolean_mask_hides_is_told():
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool).tril()
    mask[1, :, 2] = False  # a query without a key attends to all
    attention = mask.double().expand(2, 3, 4, 5).clone()
    attention[1, :, 2] = 0.2
    check_boolean_masks({"attention_mask": mask}, attention, "layer 1")
    attention[0, 1, 2, 4] = 0.01
    with pytest.raises(CaptureError, match=r"attention_mask of the batch is boolean and False at"):
        check_boolean_masks({"attention_mask": mask}, attention, "layer 1")
    check_boolean_masks({"attention_mask": mask[..., :3]}, attention, "layer 1")  # of other keys


def test_boolean_masks_are_those_of_four_axes():
    class Model(nn.Module):
        def set_attn_implementation(self, name):
            """Make a model of transformers of it."""

    four, two = torch.ones(2, 1, 4, 4, dtype=torch.bool), torch.ones(2, 4, dtype=torch.bool)
    for mask, masks in ((four, {"attention_mask": four}), (two, {}), (four.double(), {})):
        assert boolean_masks(Model(), {"attention_mask": mask}, crossed=False) == masks
    assert boolean_masks(nn.Linear(2, 2), {"attention_mask": four}, crossed=False) == {}
