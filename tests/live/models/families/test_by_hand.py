"""Attention written by hand, in the manner of four models, told by where its heads are."""

import copy
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.nn import functional as F

from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores
from pathkernel_pruning.live.removal import remove_heads

WIDTH, HEADS, SIZE, TOKENS, EXAMPLES = 16, 4, 4, 6, 5
INPUTS = torch.randn(
    EXAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64
)


def by_head(rows):
    """(batch, token, H·G) as (batch, H, token, G)."""
    return rows.unflatten(-1, (-1, SIZE)).transpose(1, 2)


def together(heads):
    return heads.transpose(1, 2).flatten(2)


class Causal(nn.Module):
    """As nanoGPT's: one projection for all, PyTorch's fused kernel, causal."""

    def __init__(self):
        super().__init__()
        self.n_head = HEADS
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = map(by_head, self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(together(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def pathkernel_heads(self):
        return AttentionHeads(self.n_head, self.c_proj, [self.c_attn])

    def scores(self, x):
        weight, bias = (part.detach().numpy() for part in (self.c_attn.weight, self.c_attn.bias))
        q, k, _ = np.split(x @ weight.T + bias, 3, axis=-1)
        scores = head_products(q, k) / np.sqrt(SIZE)
        return np.where(np.tri(TOKENS, dtype=bool), scores, -np.inf)


class Biased(nn.Module):
    """As T5's: unscaled scores with a learned bias of relative positions."""

    def __init__(self):
        super().__init__()
        self.n_heads = HEADS
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.relative = nn.Embedding(2 * TOKENS, HEADS)

    def normalised(self, scores):
        return scores.softmax(dim=-1)

    def forward(self, x):
        q, k, v = (by_head(part(x)) for part in (self.q, self.k, self.v))
        positions = torch.arange(x.shape[1])
        bias = self.relative(positions - positions[:, None] + TOKENS).permute(2, 0, 1)
        weights = self.normalised(q @ k.mT + bias)
        joined = (weights @ v).transpose(1, 2).reshape(*x.shape[:2], self.n_heads * SIZE)
        return self.o(joined)

    def pathkernel_heads(self):
        projections = (self.q, self.k, self.v)
        return AttentionHeads(self.n_heads, self.o, projections, score_bias=self.relative)

    def scores(self, x):
        q, k = (x @ part.weight.detach().numpy().T for part in (self.q, self.k))
        bias = self.relative.weight.detach().numpy()
        scores = head_products(q, k)
        for t in range(TOKENS):
            for s in range(TOKENS):
                scores[..., t, s] += bias[s - t + TOKENS]
        return scores


class Disentangled(nn.Module):
    """As DeBERTa's: content to content, content to position, and position to content."""

    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.pos_key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.pos_query = nn.Linear(WIDTH, WIDTH)
        self.places = nn.Parameter(torch.empty(2 * TOKENS, WIDTH))

    def forward(self, x):
        q, k, v = (by_head(part(x)) for part in (self.query, self.key, self.value))
        index = torch.arange(TOKENS)
        relative = index[:, None] - index + TOKENS  # of a query or key to others
        pos_k, pos_q = by_head(self.pos_key(self.places[None])), self.pos_query(self.places[None])
        c2p = (q @ pos_k.mT).gather(-1, relative.expand(*q.shape[:2], -1, -1))
        p2c = (k @ by_head(pos_q).mT).gather(-1, relative.expand(*q.shape[:2], -1, -1)).mT
        scores = (q @ k.mT + c2p + p2c) / np.sqrt(3 * SIZE)
        return self.out(together(F.softmax(scores, dim=-1) @ v))

    def pathkernel_heads(self):
        projections = (self.query, self.key, self.value, self.pos_key, self.pos_query)
        return AttentionHeads(self.heads, self.out, projections)

    def scores(self, x):
        def of(part, rows):
            bias = 0.0 if part.bias is None else part.bias.detach().numpy()
            return np.split(rows @ part.weight.detach().numpy().T + bias, HEADS, axis=-1)

        places = self.places.detach().numpy()
        scores = np.zeros((len(x), HEADS, TOKENS, TOKENS))
        parts = (of(self.query, x), of(self.key, x), of(self.pos_key, places))
        for h, (q, k, pk, pq) in enumerate(zip(*parts, of(self.pos_query, places))):
            for t in range(TOKENS):
                for s in range(TOKENS):
                    by_place = q[:, t] @ pk[t - s + TOKENS] + k[:, s] @ pq[s - t + TOKENS]
                    scores[:, h, t, s] = (q[:, t] * k[:, s]).sum(axis=-1) + by_place
        return scores / np.sqrt(3 * SIZE)


class Local(nn.Module):
    """As ModernBERT's: rotary positions, windows, and rows that lie head by head."""

    window = 2

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.Wqkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.Wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.Wqkv(x).unflatten(-1, (self.num_heads, 3, SIZE)).permute(3, 0, 2, 1, 4)
        positions = torch.arange(TOKENS, dtype=x.dtype)
        angles = positions[:, None] / 10.0 ** torch.arange(SIZE // 2)

        def turned(z):
            first, second = z.chunk(2, dim=-1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

        far = (positions - positions[:, None]).abs() > self.window
        scores = turned(q) @ turned(k).mT / np.sqrt(SIZE)
        return self.Wo(together(scores.masked_fill(far, -torch.inf).softmax(dim=-1) @ v))

    def pathkernel_heads(self):
        return AttentionHeads(self.num_heads, self.Wo, [self.Wqkv], by_head=True)

    def scores(self, x):
        rows = x @ self.Wqkv.weight.detach().numpy().T
        rows = rows.reshape(*x.shape[:2], HEADS, 3, 2, SIZE // 2)
        turn = np.exp(1j * np.arange(TOKENS)[:, None, None] / 10.0 ** np.arange(SIZE // 2))
        q, k = ((rows[..., i, 0, :] + 1j * rows[..., i, 1, :]) * turn for i in (0, 1))
        scores = np.einsum("pthi,pshi->phts", q, k.conj()).real / np.sqrt(SIZE)
        far = abs(np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS))) > self.window
        return np.where(far, -np.inf, scores)


def head_products(q, k):
    q, k = (part.reshape(*part.shape[:2], HEADS, SIZE) for part in (q, k))
    return np.einsum("pthi,pshi->phts", q, k)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), attention
        self.inner = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.inner(x)


def network(kind):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(kind()) for _ in range(2))).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


KINDS = (Causal, Biased, Disentangled, Local)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def model(request):
    return network(request.param)


def walked(model):
    """Attention by its definition, and the states that it attends to, of every layer."""
    matrices, attended, hidden = [], [], INPUTS
    with torch.no_grad():
        for block in model:
            attended.append(block.norm(hidden).numpy())
            paid = np.exp(block.attention.scores(attended[-1]))
            matrices.append(paid / paid.sum(axis=-1, keepdims=True))
            hidden = block(hidden)
    return matrices, attended


@pytest.mark.parametrize("attend", ["tokens", "states"])
def test_captured(model, files_route, attend):
    side_by_side, product = files_route
    matrices, attended = walked(model)
    captured = capture(model, [INPUTS[:2], INPUTS[2:]], readout="mean", attend=attend)
    read = np.full(TOKENS, 1 / TOKENS)
    for p, tokens in enumerate(INPUTS.numpy()):
        seen = [tokens] * 2 if attend == "tokens" else [x[p] for x in attended]
        expected = side_by_side([omega[p] for omega in matrices], seen, tokens, read)
        np.testing.assert_allclose(captured.xi[p], expected, atol=1e-12)
    paths = capture(model, [INPUTS], readout="last", picture="product")
    np.testing.assert_allclose(paths.xi, product(matrices, INPUTS.numpy(), "last"), atol=1e-12)


def test_switched_off(model):
    """Against the sum over the other heads of attention times values, by the definition."""
    off, hidden = [(1, 1), (2, 3), (2, 4)], INPUTS
    with torch.no_grad(), heads_off(model, off):
        outputs = model(INPUTS)
    with torch.no_grad():
        for layer, block in enumerate(model, start=1):
            seen, heads = block.norm(hidden), block.attention.pathkernel_heads()
            paid = np.exp(block.attention.scores(seen.numpy()))
            paid = torch.tensor(paid / paid.sum(axis=-1, keepdims=True))
            given = heads.value_projection
            bias = torch.zeros(len(given.weight)) if given.bias is None else given.bias
            added = 0.0 if heads.output.bias is None else heads.output.bias
            for head in range(1, HEADS + 1):
                if (layer, head) not in off:
                    weight, part = (
                        heads.value_weights("layer")[head - 1],
                        slice((head - 1) * SIZE, None),
                    )
                    passed = seen @ weight.T + heads.values(bias)[head - 1]
                    out = heads.output.weight[:, part][:, :SIZE]
                    added = added + paid[:, head - 1] @ passed @ out.T
            hidden = hidden + added
            hidden = hidden + block.inner(hidden)
    np.testing.assert_allclose(outputs, hidden, atol=1e-12)


def test_scored(model, check_scores):
    check_scores(model, INPUTS, model)


def test_compared(model):
    def measure(examples):
        return model(INPUTS).square().mean(dim=(1, 2))

    result = compare_heads(model, measure, {"magnitude": magnitude_scores(model, INPUTS)}, random=2)
    assert result.sizes["within_layer"] == 2
    assert result.lost.notnull().all()


def test_smaller(model):
    off = [(1, 1), (1, 4), (2, 3)]
    with torch.no_grad(), heads_off(model, off):
        expected = model(INPUTS)
    smaller, parameters = copy.deepcopy(model), sum(p.numel() for p in model.parameters())
    remove_heads(smaller, off, smaller=True, batch=(INPUTS, None))
    with torch.no_grad():
        np.testing.assert_allclose(smaller(INPUTS), expected, atol=1e-12)
    assert sum(p.numel() for p in smaller.parameters()) <= parameters - 3 * 4 * SIZE * WIDTH
    captured = capture(smaller, [INPUTS], readout="mean")
    assert captured.members[0][1:] == ((1, 1), (1, 2), (2, 1), (2, 2), (2, 3))
    whole = capture(model, [INPUTS], readout="mean")
    xi = dict(zip(whole.members[0], whole.xi.swapaxes(0, 1)))
    np.testing.assert_allclose(captured.xi[:, 1], xi[1, 2], atol=1e-12)
    np.testing.assert_allclose(captured.xi[:, 2], xi[1, 3], atol=1e-12)


class Unnormalised(Biased):
    """A bug: scores are exponentiated, but not divided by their sum."""

    def normalised(self, scores):
        return scores.exp()


class Forgotten(Biased):
    """A bug: the normalised scores are not those that average the values."""

    def normalised(self, scores):
        scores.softmax(dim=-1)
        return scores.exp()


class OverQueries(Biased):
    """A bug: scores are normalised over queries instead of keys."""

    def normalised(self, scores):
        return scores.softmax(dim=-2)


class Misplaced(Local):
    """A wrong description: rows lie head by head."""

    def pathkernel_heads(self):
        return AttentionHeads(self.num_heads, self.Wo, [self.Wqkv])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Unnormalised, r"layer 1 \(0.attention\) gives no attention weights that can be seen"),
        (Forgotten, r"layer 1 \(0.attention\) passes on other than its attention times its values"),
        (OverQueries, r"layer 1 \(0.attention\) pays attention whose sum over tokens is off 1"),
        (Misplaced, r"layer 1 \(0.attention\) passes on other than its attention times its values"),
    ],
)
def test_bugs_are_caught(kind, words):
    model = network(kind)
    with pytest.raises(CaptureError, match=words):
        capture(model, [INPUTS], readout="mean")
    assert not any("forward" in vars(module) for module in model.modules())


class Scaled(nn.Module):
    """Attention with the names of transformers, of a class that no library has."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        for name in names:
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x):
        q, k, v = (by_head(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(self.factor * together(F.scaled_dot_product_attention(q, k, v)))


class Doubled(Scaled):
    """A step between attention and its output projection."""

    factor = 2.0


class Unlike(Scaled):
    """Values by a projection of another name."""

    def __init__(self):
        super().__init__()
        self.mixed = self.v_proj
        del self.v_proj

    def forward(self, x):
        q, k, v = (by_head(part(x)) for part in (self.q_proj, self.k_proj, self.mixed))
        return self.out_proj(together(F.scaled_dot_product_attention(q, k, v)))


def test_classes_that_no_library_has_are_compared_with_their_own_output():
    """Recognised by the names of their projections alone."""
    assert capture(network(Scaled), [INPUTS], readout="mean").heads == (2 * HEADS + 1,)
    for kind, words in (
        (Doubled, "passes on other than its attention times its values, by 0.5 "),
        (Unlike, "does not show the values that its attention averages"),
    ):
        with pytest.raises(CaptureError, match=rf"{words}.* a method pathkernel_heads"):
            capture(network(kind), [INPUTS], readout="mean")


class Interleaved(Scaled):
    """Heads joined number by number instead of one after the other, in values and outputs."""

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (SIZE, HEADS)).permute(0, 3, 1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        heads = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(heads.permute(0, 2, 3, 1).flatten(2))


class Talking(Scaled):
    """Weights of all heads are mixed after their softmax, as in talking heads."""

    def __init__(self):
        super().__init__()
        self.mixing = nn.Linear(HEADS, HEADS, bias=False)

    def forward(self, x):
        q, k, v = (by_head(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        weights = (q @ k.mT / np.sqrt(SIZE)).softmax(dim=-1)
        weights = self.mixing(weights.movedim(1, -1)).movedim(-1, 1)
        return self.out_proj(together(weights @ v))


@pytest.mark.parametrize("kind", [Interleaved, Talking, Doubled, Unlike, Misplaced, Forgotten])
def test_every_function_refuses_heads_that_do_not_agree(kind):
    """Whatever switches heads off, removes, measures or scores them; the model is as it was."""
    model = network(kind)
    before, whole = copy.deepcopy(model.state_dict()), model(INPUTS)
    words = r"layer 1 \(0.attention\) (passes on other than|does not show)"

    def loss(inputs):
        return model(inputs).square().mean(dim=(1, 2))

    with pytest.raises(CaptureError, match=words), heads_off(model, [(1, 2)]):
        model(INPUTS)
    for smaller in (False, True):
        with pytest.raises(CaptureError, match=rf"{words}|keeps its shape"):
            remove_heads(model, [(1, 2)], batch=INPUTS, smaller=smaller)
    with pytest.raises(CaptureError, match=words):
        magnitude_scores(model, INPUTS)
    with pytest.raises(CaptureError, match=words):
        gradient_scores(model, [INPUTS], loss)
    scores = {(layer, head): 1.0 for layer in (1, 2) for head in (1, 2, 3, 4)}
    with pytest.raises(CaptureError, match=words):
        compare_heads(model, lambda _: loss(INPUTS), {"equal": scores}, random=2)
    with pytest.raises(CaptureError, match=words):
        capture(model, [INPUTS], readout="mean")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model(INPUTS), whole)


def test_compared_while_it_trains():
    """Dropout of the weights is part of the attention that is compared."""

    class Dropping(Scaled):
        fused = False

        def forward(self, x):
            q, k, v = (by_head(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
            if self.fused:
                heads = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5 * self.training)
                return self.out_proj(together(heads))
            weights = (q @ k.mT / np.sqrt(SIZE)).softmax(dim=-1)
            return self.out_proj(together(F.dropout(weights, 0.5, self.training) @ v))

    model = network(Dropping).train()
    with heads_off(model, [(1, 2), (2, 1)]):
        model(INPUTS).sum().backward()
    values = model[0].attention.v_proj.weight.grad.unflatten(0, (HEADS, SIZE))
    assert not values[1].any()
    assert values[0].any()
    Dropping.fused = True
    with pytest.raises(CaptureError, match="a fused kernel drops"), heads_off(model, [(1, 2)]):
        model(INPUTS)
    with heads_off(model, [(1, 2)]):
        model.eval()(INPUTS)
        model.train()(INPUTS)


class Tempered(Biased):
    """Scores that depend on the number of heads."""

    def normalised(self, scores):
        return (scores / self.n_heads).softmax(dim=-1)


def test_a_smaller_model_that_would_differ_is_left_as_it_was():
    model = network(Tempered)
    before = copy.deepcopy(model.state_dict())
    parameters, numbers = dict(model.named_parameters()), vars(model[0].attention).copy()
    with pytest.raises(CaptureError, match=r"\(ValueError: outputs differ by .*as it was"):
        remove_heads(model, [(1, 2)], smaller=True, batch=INPUTS)
    assert all(parameters[name] is value for name, value in model.named_parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert vars(model[0].attention) == numbers
    assert model[0].attention.q.out_features == WIDTH


def test_a_batch_that_proves_nothing():
    """What a readout of zeros hides is seen in the blocks; one that does not run is refused."""
    model = nn.Sequential(network(Tempered), nn.Linear(WIDTH, 1).double())
    nn.init.zeros_(model[1].weight)
    with pytest.raises(CaptureError, match="outputs differ by"):
        remove_heads(model, [(1, 2)], smaller=True, batch=INPUTS)
    model = nn.ModuleList([network(Causal), network(Causal)])
    model.forward = model[0].forward
    with pytest.raises(CaptureError, match=r"1\.0 does not run on the batch"):
        remove_heads(model, [(3, 2)], smaller=True, batch=INPUTS)


def test_descriptions_that_do_not_fit():
    linear = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(CaptureError, match="3 heads do not share the 16 inputs of output evenly"):
        AttentionHeads(3, linear)
    for projections in ([linear], [linear, linear, nn.Linear(WIDTH, 12)]):
        with pytest.raises(CaptureError, match="are not those of queries, keys and values"):
            AttentionHeads(HEADS, linear, projections)
    model = nn.Linear(2, 2)
    model.pathkernel_heads = lambda: 4
    with pytest.raises(CaptureError, match=r"must return pathkernel.AttentionHeads"):
        capture(model, [INPUTS], readout="mean")


def test_attention_is_let_go_layer_by_layer():
    """Of heads side by side no attention outlives its layer, however many layers there are."""
    alive, counts = weakref.WeakSet(), []

    class Counting(Biased):
        def normalised(self, scores):
            counts.append(len(alive))
            weights = scores.softmax(dim=-1)
            alive.add(weights)
            return weights

    model = nn.Sequential(*(Block(Counting()) for _ in range(4))).double()
    capture(model, [INPUTS, INPUTS], readout="mean")
    assert len(counts) == 8
    assert max(counts) <= 1


def test_a_small_head_is_compared_beside_a_large_one():
    """Heads 2 and 3 pass on each other's outputs, beside one thousands of times larger."""

    class Exchanged(Scaled):
        def forward(self, x):
            q, k, v = (by_head(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
            heads = F.scaled_dot_product_attention(q, k, v)
            return self.out_proj(together(heads[:, [0, 2, 1, 3]]))

    model = network(Exchanged)
    for block in model:
        block.attention.v_proj.weight.data[:SIZE] *= 1e4
    with pytest.raises(CaptureError, match="passes on other than"), heads_off(model, [(1, 2)]):
        model(INPUTS)


def test_passes_that_cannot_be_compared():
    class Remembering(Scaled):
        """Attention to a key beside those of the tokens."""

        def forward(self, x):
            q, k, v = (by_head(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
            k, v = (F.pad(part, (0, 0, 1, 0)) for part in (k, v))
            return self.out_proj(together((q @ k.mT).softmax(dim=-1) @ v))

    model = network(Remembering)
    with (
        pytest.raises(CaptureError, match="was not compared: its keys"),
        heads_off(model, [(1, 2)]),
    ):
        model(INPUTS)
    model = network(Scaled)
    with pytest.raises(CaptureError, match="was not compared"), heads_off(model, [(1, 2)]):
        model(INPUTS * torch.nan)
    with pytest.raises(CaptureError, match="was not compared"):
        magnitude_scores(model, INPUTS * torch.nan)


def library_class(base, module):
    """A class of a library, as its name and its module tell."""
    library, _, name = module.rpartition(".")
    return type(name, (base,), {"__module__": library})


def test_exceptions_are_those_of_their_library():
    shifted = library_class(Doubled, "transformers.models.vits.modeling_vits.VitsAttention")
    mixed = library_class(Talking, "timm.models.cait.TalkingHeadAttn")
    for kind in (shifted, mixed):
        model = network(kind)
        whole = model(INPUTS)
        with torch.no_grad(), heads_off(model, [(1, 2)]):
            assert not torch.equal(model(INPUTS), whole)
    assert capture(network(shifted), [INPUTS], readout="mean").heads == (2 * HEADS + 1,)
    assert len(magnitude_scores(network(shifted), INPUTS)) == 2 * HEADS
    with pytest.raises(CaptureError, match="passes on other than its attention times its values"):
        capture(network(mixed), [INPUTS], readout="mean")
    with pytest.raises(CaptureError, match="keeps the weights of its values in a form"):
        magnitude_scores(network(mixed), INPUTS)
    stranger = library_class(Doubled, "my_models.modeling_vits.VitsAttention")
    with pytest.raises(CaptureError, match="passes on other than"), torch.no_grad():
        magnitude_scores(network(stranger), INPUTS)
