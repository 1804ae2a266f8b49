"""Cross-attention of PyTorch, and of one's own, against attention by the definition."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.nn import functional as F

from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.cross_attention import include_cross_attention
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.head_scores import gradient_scores
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore:.*nested")  # of torch's own
WIDTH, HEADS, SIZE = 16, 4, 4


class ByDefinition(nn.Module):
    """In place of ``nn.MultiheadAttention``: outputs of some heads are given, (number, SIZE)."""

    def __init__(self, original, given):
        super().__init__()
        self.original, self.given, self.seen = original, given, None
        self.batch_first = original.batch_first

    def forward(self, query, key, value, attn_mask=None, key_padding_mask=None, **_):
        states = (query, key, value)
        if not self.batch_first:
            states = [state.transpose(0, 1) for state in states]
        weights, biases = self.original.in_proj_weight.chunk(3), self.original.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(*parts).unflatten(-1, (HEADS, SIZE)) for parts in zip(states, weights, biases)
        )
        scores = torch.einsum("bqhg,bkhg->bhqk", q, k) / SIZE**0.5
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)
        heads = torch.einsum("bhqk,bkhg->bqhg", scores.softmax(-1), v)
        self.seen = heads
        heads = heads.clone()
        for head, outputs in self.given.items():
            heads[..., head - 1, :] = outputs
        out = self.original.out_proj(heads.flatten(2))
        return (out if self.batch_first else out.transpose(0, 1)), None


def transformer(batch_first=True):
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, HEADS, 1, 2, 24, batch_first=batch_first).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def batch_of(batch_first):
    generator = torch.Generator().manual_seed(1)
    source, target = (
        torch.randn(3, count, WIDTH, generator=generator, dtype=torch.float64) for count in (7, 5)
    )
    hidden, padding = torch.zeros(3, 7, dtype=bool), torch.zeros(3, 5, dtype=bool)
    hidden[2, 4:], padding[1, 3:] = True, True
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    masks = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
    return {"src": source, "tgt": target, "tgt_key_padding_mask": padding} | masks


def by_definition(model, batch, given):
    """Outputs with given outputs of heads in all layers, and the heads' own in each."""
    model = copy.deepcopy(model)
    for layer in model.decoder.layers:
        layer.multihead_attn = ByDefinition(layer.multihead_attn, given)
    with torch.no_grad():
        outputs = model(**batch)
    return outputs, [layer.multihead_attn.seen for layer in model.decoder.layers]


@pytest.mark.parametrize("batch_first", [True, False])
def test_decoder_of_pytorch(batch_first, tmp_path):
    model, batch = transformer(batch_first), batch_of(batch_first)
    plain, _ = by_definition(model, batch, {})
    with torch.no_grad():
        torch.testing.assert_close(model(**batch), plain)
    table = include_cross_attention(model)
    assert table["attention"].tolist() == ["self", "self", "cross", "self", "cross"]
    heads = [(3, 2), (5, 2)]
    off, _ = by_definition(model, batch, {2: 0.0})
    assert not torch.allclose(off, plain)
    with torch.no_grad(), heads_off(model, heads):
        torch.testing.assert_close(model(**batch), off)
    # of the second layer alone, since a mean in the first changes what the second sees
    shown = ~batch["tgt_key_padding_mask"]
    mean = by_definition(model, batch, {})[1][1][shown].mean(dim=0)[1]
    second = copy.deepcopy(model)
    second.decoder.layers[1].multihead_attn = ByDefinition(
        second.decoder.layers[1].multihead_attn, {2: mean}
    )
    with torch.no_grad(), heads_off(model, [(5, 2)], replace="mean", batches=[batch]):
        torch.testing.assert_close(model(**batch), second(**batch))
    with torch.no_grad():
        remove_heads(model, heads, batch=batch, smaller=True)
        torch.testing.assert_close(model(**batch), off)
        assert model.decoder.layers[0].multihead_attn.out_proj.in_features == WIDTH - SIZE
        assert include_cross_attention(model).equals(list_heads(model))
        with pytest.raises(CaptureError, match=r"layer 3 .* attends to another sequence, which"):
            capture(model, [batch])
        save_model(model, tmp_path)
        again = load_model(tmp_path, transformer(batch_first))
        assert torch.equal(again(**batch), model(**batch))
        assert list_heads(again).equals(list_heads(model))


class Pooling(nn.Module):
    """Learned queries read a sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.queries = nn.Parameter(torch.randn(2, WIDTH, dtype=torch.float64))
        self.attn_pool = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()

    def forward(self, x, padding):
        queries = self.queries.expand(len(x), -1, -1)
        return self.attn_pool(queries, x, x, key_padding_mask=padding, need_weights=False)[0]


def test_queries_that_no_self_attention_sees():
    """Which of them are padding cannot be told, where something is hidden; masks tell."""
    model, batch = Pooling().eval(), batch_of(batch_first=True)
    inputs = (batch["src"], batch["src_key_padding_mask"])
    include_cross_attention(model)
    with (
        pytest.raises(CaptureError, match=r"2 tokens are padding: .* no self-attention of its bl"),
        heads_off(model, [(1, 3)], replace="mean", batches=[(inputs, None)]),
    ):
        pass
    own = copy.deepcopy(model)
    own.attn_pool = ByDefinition(model.attn_pool, {})
    with torch.no_grad():
        own(*inputs)
        own.attn_pool.given = {3: own.attn_pool.seen.flatten(0, 1).mean(dim=0)[2]}
        expected, masks = own(*inputs), [torch.ones(3, 2)]
        with heads_off(model, [(1, 3)], replace="mean", batches=[(inputs, None)], masks=masks):
            torch.testing.assert_close(model(*inputs), expected)


class Joined(nn.Module):
    """One projection of queries, one of keys and values in two groups."""

    groups = 2

    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * self.groups * SIZE)

    def forward(self, x, y):
        q = self.q(x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
        keys_and_values = self.kv(y).unflatten(-1, (2, -1, SIZE)).movedim(2, 0).transpose(2, 3)
        each = q.shape[1] // keys_and_values.shape[2]
        k, v = keys_and_values.repeat_interleave(each, dim=2)
        heads = F.scaled_dot_product_attention(q, k, v)
        return self.out(heads.transpose(1, 2).flatten(2))

    def pathkernel_heads(self):
        return AttentionHeads(self.heads, self.out, [self.q, self.kv])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Joined() for _ in range(2)).double()

    def forward(self, x, y=None):
        for layer in self.layers:
            x = x + layer(x, x if y is None else y)
        return x


class Side(nn.Module):
    """Two projections side by side."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], dim=-1)


def test_keys_and_values_of_one_projection():
    model, batch = Reader(), batch_of(batch_first=True)
    inputs = (batch["tgt"], batch["src"])
    assert list_heads(model)["groups"].tolist() == [2, 2]
    without = copy.deepcopy(model)
    without.layers[1].out.weight.data[:, 2 * SIZE :] = 0
    with torch.no_grad():
        expected = without(*inputs)
        assert not torch.allclose(model(*inputs), expected)
        with heads_off(model, [(2, 3), (2, 4)]):
            torch.testing.assert_close(model(*inputs), expected)
    scores = gradient_scores(model, [inputs], lambda pair: model(*pair).square().sum(dim=(1, 2)))
    assert (scores > 0).all()
    remove_heads(model, [(2, 3), (2, 4)], batch=(inputs, None), smaller=True)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), expected)
    assert model.layers[1].kv.out_features == 2 * SIZE
    with pytest.raises(CaptureError, match="of 16, 12 rows are not those of queries, keys and val"):
        AttentionHeads(HEADS, model.layers[0].out, [model.layers[0].q, nn.Linear(WIDTH, 12)])


def test_keys_and_values_of_one_projection_are_captured():
    """As those of separate projections with the same rows."""

    class Separate(Joined):
        def pathkernel_heads(self):
            return AttentionHeads(HEADS, self.out, [self.q, self.k, self.v])

    model, tokens = Reader(), batch_of(batch_first=True)["src"]
    seen = capture(model, [tokens], readout="mean")
    other = Reader()
    for layer in other.layers:
        layer.__class__ = Separate
        layer.k, layer.v = (nn.Linear(WIDTH, 2 * SIZE).double() for _ in range(2))
        for part, weight, bias in zip(
            (layer.k, layer.v), layer.kv.weight.chunk(2), layer.kv.bias.chunk(2)
        ):
            part.weight.data, part.bias.data = weight.data, bias.data
        layer.kv = Side(layer.k, layer.v)
    torch.testing.assert_close(capture(other, [tokens], readout="mean").xi, seen.xi)
