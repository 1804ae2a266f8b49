"""Heads at their means over real tokens, however torch's attention is told of padding."""

from inspect import Parameter, Signature

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.nn import functional as F

from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.inputs.masks import tells_mask

WIDTH, HEADS, TOKENS, SEQUENCES = 12, 3, 6, 4
SIZE = WIDTH // HEADS


def draw(seed):
    """Inputs (batch, M, N_0), and where they are padding: behind, before or among the tokens."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SEQUENCES, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, TOKENS, (SEQUENCES, 1), generator=generator)
    hidden = torch.arange(TOKENS) >= lengths
    if seed % 3 == 2:
        order = torch.rand(SEQUENCES, TOKENS, generator=generator).argsort(dim=1)
        hidden = hidden.gather(1, order)
    return inputs, hidden.flip(1) if seed % 3 == 1 else hidden


def added(hidden):
    return torch.zeros(hidden.shape).double().masked_fill(hidden, -1e9)


def square(hidden):
    """Of every query and head, (batch·H, M, M); no key of padding, nor one behind the query."""
    causal = torch.ones(TOKENS, TOKENS).triu(1).bool()
    return (hidden[:, None] | causal).repeat_interleave(HEADS, dim=0)


def heads_by_hand(attention, inputs, hidden):
    """Outputs of heads, (batch, M, H, G); ``hidden`` is (batch, M) or as of :func:`square`."""
    rows = F.linear(inputs, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in rows.chunk(3, dim=-1))
    shape = (len(inputs), HEADS, TOKENS, TOKENS)
    hidden = hidden[:, None, None].expand(shape) if hidden.ndim == 2 else hidden.reshape(shape)
    scores = (q @ k.mT / SIZE**0.5).masked_fill(hidden, -1e9)
    return (scores.softmax(dim=-1) @ v).transpose(1, 2)


def at_mean(heads, tokens, head):
    """The same with the mean of one head, from 1, over tokens (batch, M)."""
    heads = heads.clone()
    heads[:, :, head - 1] = heads[tokens][:, head - 1].mean(dim=0)
    return heads


class Attention(nn.Module):
    """Calls torch's attention with what it is given."""

    def __init__(self, batch_first=True):
        super().__init__()
        torch.manual_seed(0)
        options = {"batch_first": batch_first, "dtype": torch.float64}
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **options)

    def forward(self, x, padding=None, mask=None):
        return self.attention(x, x, x, key_padding_mask=padding, attn_mask=mask)[0]


WAYS = {
    "key padding mask": lambda x, hidden: {"x": x, "padding": hidden},
    "added key padding mask": lambda x, hidden: {"x": x, "padding": added(hidden)},
    "by position": lambda x, hidden: ((x, hidden), None),
    "mask of every head": lambda x, hidden: {"x": x, "mask": square(hidden)},
    "added mask of every head": lambda x, hidden: {"x": x, "mask": added(square(hidden))},
    "both": lambda x, hidden: {"x": x, "padding": hidden, "mask": square(hidden)},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", WAYS)
def test_padding_told_to_torch(way, seed):
    inputs, hidden = draw(seed)
    model, batch = Attention(), WAYS[way](inputs, hidden)
    attention = model.attention
    with torch.no_grad():
        heads = heads_by_hand(attention, inputs, square(hidden) if "head" in way else hidden)
        if way == "both":
            heads = heads_by_hand(attention, inputs, square(hidden))
        expected = attention.out_proj(at_mean(heads, ~hidden, head=2).flatten(2))
        with heads_off(model, [(1, 2)], replace="mean", batches=[batch]):
            changed = model(**batch) if isinstance(batch, dict) else model(*batch[0])
    torch.testing.assert_close(changed[~hidden], expected[~hidden], rtol=1e-12, atol=1e-12)


def test_tokens_on_the_first_axis():
    inputs, hidden = draw(0)
    model = Attention(batch_first=False)
    batch = {"x": inputs.transpose(0, 1), "padding": hidden}
    with torch.no_grad():
        heads = at_mean(heads_by_hand(model.attention, inputs, hidden), ~hidden, head=1)
        expected = model.attention.out_proj(heads.flatten(2))
        with heads_off(model, [(1, 1)], replace="mean", batches=[batch]):
            changed = model(**batch).transpose(0, 1)
    torch.testing.assert_close(changed[~hidden], expected[~hidden], rtol=1e-12, atol=1e-12)


def test_fused_encoder():
    """Fused layers run neither attention nor projection, which the means need."""
    inputs, hidden = draw(0)
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, **options)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    first = model.layers[0]
    batch = {"src": inputs, "src_key_padding_mask": hidden}
    with torch.no_grad():
        heads = at_mean(heads_by_hand(first.self_attn, inputs, hidden), ~hidden, head=3)
        rows = first.norm1(inputs + first.self_attn.out_proj(heads.flatten(2)))
        rows = first.norm2(rows + first.linear2(first.linear1(rows).relu()))
        expected = model.layers[1](rows, src_key_padding_mask=hidden)
        with heads_off(model, [(1, 3)], replace="mean", batches=[batch]):
            changed = model(**batch)
    torch.testing.assert_close(changed[~hidden], expected[~hidden], rtol=1e-9, atol=1e-9)


class ByHand(nn.Module):
    """Attention of a class of its own, whose keys ``more`` and ``every`` change."""

    def __init__(self, form="filled"):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64)
        self.out = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.form = form

    def pathkernel_heads(self):
        return AttentionHeads(HEADS, self.out)

    def forward(self, x, attention_mask=None, hidden=None):
        rows = self.qkv(x).unflatten(-1, (3 * HEADS, SIZE)).transpose(1, 2)
        q, k, v = rows.chunk(3, dim=1)
        if self.form == "pooled":
            k, v = k[:, :, ::2], v[:, :, ::2]
        if attention_mask is not None:
            hidden = attention_mask == 0
        keys = k.shape[2]
        hidden = torch.zeros(len(x), keys).bool() if hidden is None else hidden
        hidden = hidden[:, None, None].expand(-1, 1, x.shape[1], -1)
        scores = (q @ k.mT).masked_fill(hidden, -1e9)
        if self.form == "sink":
            sink = torch.ones(*scores.shape[:-1], 1).double()
            heads = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1] @ v
        elif self.form == "unseen":
            weights = scores.exp()
            heads = weights / weights.sum(dim=-1, keepdim=True) @ v
        elif self.form == "fused":
            heads = F.scaled_dot_product_attention(q, k, v, ~hidden)
        else:
            heads = scores.softmax(dim=-1) @ v
        return self.out(heads.transpose(1, 2).flatten(2))


def check(model, batch, tokens, projection=None, masks=None, layer=1):
    """Compare with a hook that puts the mean over tokens (batch, M) in."""
    projection, seen = projection or model.out, []

    def run():
        with torch.no_grad():
            return model(**batch)

    handle = projection.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    run()
    handle.remove()
    mean = seen[0][tokens.bool()][:, :SIZE].mean(dim=0)

    def replace(_, inputs):
        return torch.cat([mean.expand(*inputs[0].shape[:-1], -1), inputs[0][..., SIZE:]], dim=-1)

    handle = projection.register_forward_pre_hook(replace)
    expected = run()
    handle.remove()
    options = {"replace": "mean", "batches": [batch], "masks": masks}
    with heads_off(model, [(layer, 1)], **options):
        changed = run()
    torch.testing.assert_close(changed[tokens.bool()], expected[tokens.bool()])


@pytest.mark.parametrize("name", ["attention_mask", "hidden"])
@pytest.mark.parametrize("form", ["filled", "fused", "sink"])
def test_padding_told_to_a_class_of_its_own(form, name):
    inputs, hidden = draw(2)
    batch = {"x": inputs, name: hidden if name == "hidden" else ~hidden}
    model = ByHand(form)
    check(model, batch, ~hidden)
    check(model, batch, ~hidden, masks=[~hidden])


def test_sequences_of_nothing_but_padding():
    inputs, hidden = draw(0)
    hidden[1] = True
    for form in ("filled", "fused"):
        check(ByHand(form), {"x": inputs, "hidden": hidden}, ~hidden)
    batch = {"x": inputs, "hidden": hidden | True}
    with (
        pytest.raises(CaptureError, match=r"layer 1 sees nothing but padding"),
        heads_off(ByHand(), [(1, 1)], replace="mean", batches=[batch]),
    ):
        pass


def test_attention_that_does_not_tell():
    """Is refused where a batch may have padding, and takes masks."""
    inputs, hidden = draw(0)
    everything = torch.ones(SEQUENCES, TOKENS)
    check(ByHand("pooled"), {"x": inputs}, everything)
    pooled = ByHand("pooled")
    batch = {"x": inputs, "hidden": hidden[:, ::2]}
    for model, given, reason in (
        (pooled, batch, "it attends to 3 keys"),
        (ByHand("unseen"), {"x": inputs}, "its weights are not seen by head"),
    ):
        options = {"replace": "mean", "batches": [given]}
        refusal = rf"layer 1 does not tell .*: {reason}\. Give masks="
        with pytest.raises(CaptureError, match=refusal), heads_off(model, [(1, 1)], **options):
            pass
        check(model, given, ~hidden, masks=[(~hidden).long()])
    # also if a mask is named by position only, and the pooled keys hide nothing
    pooled.forward = lambda x, padding_mask=None: ByHand.forward(pooled, x)
    options = {"replace": "mean", "batches": [((inputs, hidden), None)]}
    with (
        pytest.raises(CaptureError, match="attends to 3 keys"),
        heads_off(pooled, [(1, 1)], **options),
    ):
        pass


def test_masks_that_attention_ignores():
    inputs, hidden = draw(0)
    model = ByHand()
    model.forward = lambda x, attention_mask: ByHand.forward(model, x)
    batch = {"x": inputs, "attention_mask": ~hidden}
    options = {"replace": "mean", "batches": [batch]}
    with (
        pytest.raises(CaptureError, match=r"attention_mask .* layer 1 attends to it.* masks="),
        heads_off(model, [(1, 1)], **options),
    ):
        pass
    check(model, batch, ~hidden, masks=[~hidden])
    check(model, batch, hidden | True, masks=[hidden | True])


def test_masks_that_do_not_fit():
    inputs, hidden = draw(0)
    options = {"replace": "mean", "batches": [{"x": inputs, "hidden": hidden}]}
    for masks, fault in (
        ([hidden | True], "counts .* tokens .* layer 1 hides"),
        ([hidden[:, 1:]], r"tokens are \(4, 6\)"),
    ):
        with (
            pytest.raises(CaptureError, match=fault),
            heads_off(ByHand(), [(1, 1)], masks=masks, **options),
        ):
            pass
    with (
        pytest.raises(ValueError, match="masks ends before"),
        heads_off(ByHand(), [(1, 1)], masks=[], **options),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r'give replace="mean"'),
        heads_off(ByHand(), [(1, 1)], masks=[hidden]),
    ):
        pass


def test_masks_in_place_of_labels():
    """A DataLoader pairs inputs with masks; a batch pairs them with labels."""
    inputs, hidden = draw(0)
    options = {"replace": "mean"}
    for marks in (hidden, ~hidden, (~hidden).long(), hidden.double(), (~hidden).numpy()):
        with (
            pytest.raises(ValueError, match=r"\(4, 6\), are a mask of its tokens"),
            heads_off(Attention(), [(1, 1)], batches=[[inputs, marks]], **options),
        ):
            pass
    classes, several = torch.eye(TOKENS)[[0, 0, 1, 5]], torch.tensor([[1, -100, 1, 0, 0, 1]] * 4)
    for labels in (classes, several, inputs[..., 0], torch.arange(4), [0, 1, 1, 0], None):
        with heads_off(Attention(), [(1, 1)], batches=[[inputs, labels]], **options):
            pass


def test_half_of_a_batch_without_padding():
    """Batches with and without a mask share one mean."""
    inputs, hidden = draw(0)
    model, tokens = ByHand(), torch.cat([~hidden, hidden | True])
    seen = []
    handle = model.out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    batches = [{"x": inputs, "hidden": hidden}, {"x": -inputs}]
    with torch.no_grad():
        for batch in batches:
            model(**batch)
    handle.remove()
    mean = torch.cat(seen)[tokens][:, :SIZE].mean(dim=0)
    handle = None
    with heads_off(model, [(1, 1)], replace="mean", batches=batches):
        handle = model.out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        model(inputs)
    handle.remove()
    torch.testing.assert_close(seen[-1][..., :SIZE], mean.expand(SEQUENCES, TOKENS, -1))


def naming(*names):
    """A module that takes arguments of these names."""
    module = nn.Module()
    module.forward = lambda *_: None
    kind = Parameter.POSITIONAL_OR_KEYWORD
    module.forward.__signature__ = Signature([Parameter(name, kind) for name in names])
    return module


NO_PADDING = "bool_masked_pos mask_time_indices masked_lm_ids patch_masked head_mask wavelengths"
PADDING = "attention_mask input_lengths padding_mask pixel_mask mask src_key_padding_mask lengths"


def test_names_that_may_tell_padding():
    inputs, hidden = draw(0)
    for is_mask, names in ((False, NO_PADDING), (True, PADDING)):
        for name in names.split():
            model = naming("x", name)
            assert tells_mask(model, (inputs, hidden)) is is_mask, name
            assert tells_mask(model, {"x": inputs, name: hidden}) is is_mask, name
            assert not tells_mask(model, (inputs, hidden | True))


def test_arguments_without_a_name():
    """A variable number of arguments has none: what is not the first may be a mask."""
    inputs, hidden = draw(0)
    for model in (nn.DataParallel(nn.Identity()), naming(), naming("x")):
        assert not tells_mask(model, inputs)
        assert tells_mask(model, (inputs, hidden))
        assert not tells_mask(model, (inputs, hidden | True))


def test_masks_of_patches_ask_for_nothing():
    """Attention that is not seen by head, and patches of which some are replaced."""
    inputs, hidden = draw(0)
    pooled = ByHand("pooled")
    pooled.forward = lambda x, bool_masked_pos=None: ByHand.forward(pooled, x)
    everything = torch.ones(SEQUENCES, TOKENS)
    check(pooled, {"x": inputs, "bool_masked_pos": hidden}, everything)
