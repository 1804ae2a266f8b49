"""Capture of models made of torch.nn, against attention from their weights by its definition."""

import dataclasses

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

import pathkernel_core as pk
from pathkernel_capture.capture import capture
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_models.errors import CaptureError
from pathkernel_tasks.custom import Custom

WIDTH, HEADS, EXAMPLES, TOKENS = 12, 3, 5, 6


def encoder(norm_first=False, batch_first=True, layers=2):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 16, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    )
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    for parameter in model.parameters():  # else all layers are the same, and biases zero
        nn.init.normal_(parameter, std=0.5)
    return model


def sequences(examples=EXAMPLES, tokens=TOKENS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, tokens, WIDTH, generator=generator, dtype=torch.float64)


def attention_of(attention, states):
    """softmax over keys of q·k/√G, query first, in NumPy from weights as they are kept."""
    weight, bias = (getattr(attention, f"in_proj_{k}").detach().numpy() for k in ("weight", "bias"))
    queries, keys, _ = np.split(states @ weight.T + bias, 3, axis=-1)
    size = WIDTH // HEADS
    parts = [slice(h * size, (h + 1) * size) for h in range(HEADS)]
    scores = np.stack([queries[..., p] @ keys[..., p].swapaxes(-1, -2) for p in parts], axis=1)
    paid = np.exp(scores / np.sqrt(size))
    return paid / paid.sum(axis=-1, keepdims=True)


def walked(model, inputs):
    """Attention of every layer and the states that it attends to, layer by layer."""
    matrices, attended, hidden = [], [], inputs
    with torch.no_grad():
        for layer in model.eval().layers:
            seen = (layer.norm1(hidden) if layer.norm_first else hidden).numpy()
            attended.append(seen)
            matrices.append(attention_of(layer.self_attn, seen))
            swapped = not layer.self_attn.batch_first
            hidden = layer(hidden.swapaxes(0, 1)).swapaxes(0, 1) if swapped else layer(hidden)
    return matrices, attended


@pytest.mark.parametrize("attend", ["tokens", "states"])
@pytest.mark.parametrize(("norm_first", "batch_first"), [(False, True), (True, False)])
def test_heads_side_by_side(files_route, norm_first, batch_first, attend):
    side_by_side, _ = files_route
    model, inputs = encoder(norm_first, batch_first), sequences()
    matrices, attended = walked(model, inputs)
    batches = [inputs[:2], inputs[2:]]
    if not batch_first:
        batches = [batch.swapaxes(0, 1) for batch in batches]
    captured = capture(model, batches, readout="mean", attend=attend)
    assert captured.members == (((0, 0), *((n, h) for n in (1, 2) for h in (1, 2, 3))),)
    assert captured.heads == (7,)
    read = np.full(TOKENS, 1 / TOKENS)
    for p, tokens in enumerate(inputs.numpy()):
        seen = [tokens] * 2 if attend == "tokens" else [x[p] for x in attended]
        expected = side_by_side([omega[p] for omega in matrices], seen, tokens, read)
        np.testing.assert_allclose(captured.xi[p], expected, atol=1e-12)


@pytest.mark.parametrize("readout", ["first", "last", "mean", 2, -2])
@pytest.mark.parametrize("skips", [False, True])
def test_product_of_paths(files_route, readout, skips):
    _, product = files_route
    model, inputs = encoder(), sequences()
    matrices, _ = walked(model, inputs)
    captured = capture(model, [inputs], readout=readout, picture="product", skips=skips)
    expected = product(matrices, inputs.numpy(), readout, skips=skips)
    np.testing.assert_allclose(captured.xi, expected, atol=1e-12)
    assert (captured.heads, captured.skips) == ((3, 3), skips)
    assert captured.members[1] == ((2, 1), (2, 2), (2, 3))


def test_paths_past_heads_are_those_of_a_network_with_skip_connections():
    model, inputs = encoder(), sequences()
    captured = capture(model, [inputs], readout="mean", picture="product", skips=True)
    layers = [pk.Attention(omega.swapaxes(-1, -2)) for omega in walked(model, inputs)[0]]
    expected = pk.attentioned_inputs(inputs.numpy(), layers, "mean", skips=0.7)
    np.testing.assert_allclose(captured.xi, expected, atol=1e-12)
    network, labels = pk.Network(captured.heads, 10, skips=0.7), np.arange(float(len(inputs)))
    solution = pk.minimise_action(pk.Problem(captured.xi, labels), network, 0.1)
    head_labels = {f"{n}-{h}" for n in (1, 2) for h in (1, 2, 3)}
    assert {*captured.by_head(solution.head_scores)["head"].values} == head_labels
    with pytest.raises(ValueError, match="captured with skips; capture without, or minimise"):
        dataclasses.replace(captured, labels=labels).task()
    with pytest.raises(ValueError, match="and skips, but these"):
        capture(model, [inputs], readout="mean", picture="product").scale_tokens(1.0, like=captured)


def test_product_on_the_states_of_its_first_layer(files_route):
    _, product = files_route
    model, inputs = encoder(layers=3), sequences()
    matrices, attended = walked(model, inputs)
    given = {"readout": "mean", "picture": "product", "attend": "states", "layers": (2, 3)}
    captured = capture(model, [inputs], **given)
    assert captured.members[0] == ((2, 1), (2, 2), (2, 3))
    np.testing.assert_allclose(captured.xi, product(matrices[1:], attended[1], "mean"), atol=1e-12)


@pytest.mark.parametrize("picture", ["heads", "product"])
@pytest.mark.parametrize("readout", ["first", "last", "mean", slice(1, None)])
@pytest.mark.parametrize("left", [False, True])
def test_padding_changes_nothing(picture, readout, left):
    """Short sequences padded to one length give what they give alone."""
    model, lengths = encoder(), (3, 6, 4)
    alone = [sequences(1, length, seed) for seed, length in enumerate(lengths)]
    padded = torch.full((3, 6, WIDTH), 7.0, dtype=torch.float64)
    padding = torch.ones(3, 6, dtype=torch.bool)
    for row, own in enumerate(alone):
        part = slice(6 - own.shape[1], None) if left else slice(own.shape[1])
        padded[row, part], padding[row, part] = own[0], False
    batch = {"src": padded, "src_key_padding_mask": padding}
    captured = capture(model, [batch], readout=readout, picture=picture)
    expected = capture(model, alone, readout=readout, picture=picture)
    np.testing.assert_allclose(captured.xi, expected.xi, atol=1e-12)
    np.testing.assert_allclose(captured.means, expected.means, atol=1e-12)
    np.testing.assert_allclose(captured.deviations, expected.deviations, atol=1e-12)


def test_models_that_change_the_shape_of_their_states():
    """A step between blocks makes states narrower, or the first block takes images."""

    class Narrowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.MultiheadAttention(width, HEADS, batch_first=True).double()
                for width in (WIDTH, WIDTH // 2)
            )
            self.narrower = nn.Linear(WIDTH, WIDTH // 2).double()

        def forward(self, x):
            x = self.narrower(self.blocks[0](x, x, x)[0])
            return self.blocks[1](x, x, x)[0]

    model = Narrowing()
    assert capture(model, [sequences()], readout="mean").heads == (2 * HEADS + 1,)
    with pytest.raises(CaptureError, match=r'states of 6, 12 numbers.* attend="tokens"'):
        capture(model, [sequences()], readout="mean", attend="states")
    embedded = nn.Sequential(nn.Linear(5, WIDTH).double(), encoder(layers=1))
    with pytest.raises(CaptureError, match="Sequential does not run on the batch"):
        capture(embedded, [sequences()], readout="mean")

    class Flattening(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = encoder(layers=1).layers[0]

        def forward(self, images):
            return self.attention(images.flatten(1, 2))

    with pytest.raises(CaptureError, match=r"0 takes inputs of shape \(5, 2, 3, 12\), not"):
        capture(nn.Sequential(Flattening()), [sequences().unflatten(1, (2, 3))], readout="mean")


def test_self_attention_may_have_the_name_of_cross_attention():
    """``multihead_attn`` is cross-attention beside ``self_attn`` only, as in PyTorch's decoder."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.multihead_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()

        def forward(self, x):
            return x + self.multihead_attn(x, x, x)[0]

    assert capture(nn.Sequential(Block(), Block()), [sequences()]).heads == (2 * HEADS + 1,)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, batch_first=True, dtype=torch.float64)
    batch = ((sequences(), sequences(seed=2)), None)
    assert capture(nn.TransformerDecoder(layer, 2), [batch]).heads == (2 * HEADS + 1,)


class Classifier(nn.Module):
    """Pads and masks by itself, as many models do; causal; its attention has no number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, WIDTH, dtype=torch.float64)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)

    def forward(self, ids):
        x, mask = self.embedding(ids), torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        z, weights = self.attention(x, x, x, key_padding_mask=ids == 0, attn_mask=mask)
        assert weights.shape == (*ids.shape, ids.shape[1])  # the mean over heads, as asked for
        return z[:, -1]


def test_a_mask_that_the_model_makes_and_causal_attention():
    model = Classifier()
    ids = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 0, 0]])
    captured = capture(model, [(ids, torch.tensor([1, -1]))], readout="last")
    np.testing.assert_array_equal(captured.labels, [1, -1])
    for row, length in enumerate((5, 3)):
        tokens = model.embedding(ids[row, :length]).detach().numpy()
        (paid,) = attention_of(model.attention, tokens[None])
        # with a causal mask the last token attends to all, as it does without
        expected = np.concatenate([tokens[-1:], paid[:, -1] @ tokens])
        np.testing.assert_allclose(captured.xi[row], expected, atol=1e-12)


def test_decoder_of_another_sequence(files_route):
    """Its own attention is captured; that to the other sequence is left out."""
    side_by_side, _ = files_route
    torch.manual_seed(0)
    model = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, batch_first=True, dtype=torch.float64)
    inputs, other = sequences(), sequences(tokens=4, seed=2)
    captured = capture(model, [((inputs, other), None)], readout="first")
    paid = attention_of(model.self_attn, inputs.numpy())
    for p, tokens in enumerate(inputs.numpy()):
        expected = side_by_side([paid[p]], [tokens], tokens, np.eye(TOKENS)[0])
        np.testing.assert_allclose(captured.xi[p], expected, atol=1e-12)


def test_scaled_tokens():
    """Scaling what was captured is capturing scaled tokens, of a test set by the training's."""
    model, inputs = encoder(norm_first=True), sequences()
    train, test = inputs[:3], inputs[3:]
    mean, deviation = train.mean(dim=(0, 1)), train.std(correction=0)
    captured = [capture(model, [part], readout="mean", picture="product") for part in (train, test)]
    with torch.no_grad():
        matrices, _ = walked(model, test)
    layers = [pk.Attention(omega.swapaxes(-1, -2)) for omega in matrices]
    tokens = (30 * (test - mean) / deviation).numpy()
    expected = pk.attentioned_inputs(tokens, layers, "mean")
    np.testing.assert_allclose(
        captured[1].scale_tokens(30, like=captured[0]).xi, expected, atol=1e-11
    )
    once = captured[0].scale_tokens(30)
    np.testing.assert_allclose(once.means, 0, atol=1e-12)
    np.testing.assert_allclose(once.scale_tokens(2).xi, captured[0].scale_tokens(2).xi, atol=1e-12)
    for like in (once, once.scale_tokens(2)):  # whether it was scaled before makes no difference
        for test in (captured[1], captured[1].scale_tokens(7)):
            np.testing.assert_allclose(test.scale_tokens(30, like=like).xi, expected, atol=1e-11)
    once.check_scaled_alike(captured[1].scale_tokens(30, like=once), "test")
    for test in (captured[1], captured[1].scale_tokens(30), captured[1].scale_tokens(3, like=once)):
        with pytest.raises(ValueError, match=r"test is scaled differently from .* like=train"):
            once.check_scaled_alike(test, "test")


def test_single_precision_comes_as_double():
    """Which minimisation needs; the contraction itself is the model's."""
    single = capture(encoder().float(), [sequences().float()], readout="mean", attend="states")
    double = capture(encoder(), [sequences()], readout="mean", attend="states")
    assert single.xi.dtype == np.float64
    np.testing.assert_allclose(single.xi, double.xi, atol=1e-5)
    np.testing.assert_allclose(single.deviations, double.deviations, rtol=1e-5)


def test_scores_by_head():
    captured = capture(encoder(), [sequences()], readout="mean")
    labels = np.array([1.0, -1, 1, -1, 1])
    solution = pk.minimise_action(pk.Problem(captured.xi, labels), pk.Network((7,), 10), 0.1)
    scores = captured.by_head(solution.head_scores)
    assert list(zip(scores["layer"].values, scores["number"].values)) == list(captured.members[0])
    assert list(scores.values) == list(solution.head_scores)
    with pytest.raises(ValueError, match=r"of \(7,\) heads"):
        captured.by_head(np.ones(6))


def test_a_study_of_what_was_captured(tmp_path):
    """Is what the core computes of it, and says what was left out of the model."""
    labels = torch.tensor([1, 0, 1, 0, 1])
    given = {"readout": "mean", "picture": "product"}
    train = capture(encoder(), [(sequences(), labels)], **given)
    test = capture(encoder(), [(sequences(seed=2), labels)], **given)
    task = train.task(test, folder=tmp_path)
    run_study(Study(task, widths=(10,), temperatures=(0.1,)), tmp_path / "study.zarr")
    study = open_study(tmp_path / "study.zarr").isel(seed=0, temperature=0, width=0)
    problem = pk.Problem(train.xi, 2.0 * labels.numpy() - 1)
    solution = pk.minimise_action(problem, pk.Network(train.heads, 10), 0.1)
    scores = train.by_head(study.head_score.values)
    np.testing.assert_allclose(scores, train.by_head(solution.head_scores), rtol=1e-6)
    np.testing.assert_allclose(
        study.predictor_mean.sel(test_set="test"), solution.predict(test.xi).mean, atol=1e-6
    )
    assert task.approximation.startswith("attention of TransformerEncoder to its embedded tokens")
    train.save(tmp_path / "captured.npz", test)
    saved, given_by_task = Custom(inputs=tmp_path / "captured.npz").realise(0), task.realise(0)
    for one, two in (
        (saved.train, given_by_task.train),
        (saved.test_sets["test"], given_by_task.test_sets["test"]),
    ):
        assert np.array_equal(one.inputs, two.inputs)
        assert np.array_equal(one.labels, two.labels)
    assert saved.layers == given_by_task.layers
    with pytest.raises(ValueError, match=r"path must end in \.npz, but is 'captured\.pt'"):
        train.save("captured.pt")
    other = capture(encoder(), [(sequences(), labels)], readout="mean")
    with pytest.raises(ValueError, match="test holds heads"):
        train.task(other)
    with pytest.raises(ValueError, match="test holds heads"):
        train.save(tmp_path / "other.npz", other)
    assert not (tmp_path / "other.npz").exists()
    with pytest.raises(ValueError, match="a task needs labels"):
        capture(encoder(), [sequences()], **given).task()


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_it_was(fails):
    """Modes, hooks, gradients, weights and the fast path, also when the forward pass fails."""
    model, inputs = encoder(), sequences()
    model.train()
    model.layers[1].eval()
    before = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    if fails:
        with pytest.raises(CaptureError, match="AssertionError: was expecting embedding"):
            capture(model, [inputs, inputs[..., :5]], readout="mean")
    else:
        capture(model, [inputs], readout="mean")
    assert [module.training for module in model.modules()] == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)


class Unseen(nn.Module):
    """Attention in the manner of transformers whose weights no function of PyTorch gives."""

    head_dim = 4

    def __init__(self):
        super().__init__()
        self.q_proj = self.o_proj = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x):
        weights = (x @ x.mT).exp()
        return weights / weights.sum(dim=-1, keepdim=True) @ x, None


class Crossed(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)

    def forward(self, x):
        return self.attention(x[:, :2], x, x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)

    def forward(self, x):
        for _ in range(2):
            x = self.attention(x, x, x)[0]
        return x


class Sink(nn.Module):
    """Attention in the manner of transformers, some of which goes to no token."""

    head_dim = WIDTH

    def __init__(self):
        super().__init__()
        self.q_proj = self.o_proj = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x):
        weights = nn.functional.pad(x @ x.mT, (0, 1)).softmax(dim=-1)[..., :-1]
        return weights @ x, weights[:, None]


REFUSED = {
    "sink": (Sink(), {}, "layer 1 does not show the values that its attention averages"),
    "no attention": (
        nn.Linear(WIDTH, 2),
        {},
        "Linear has no attention of a known .* pathkernel_heads",
    ),
    "unseen": (Unseen(), {}, r"layer 1 gives no attention weights that can be seen"),
    "crossed": (Crossed(), {}, r"layer 1 \(attention\) attends to another sequence"),
    "twice": (Twice(), {}, "runs more than once"),
    "layers": (encoder(), {"layers": (0, 1)}, "layers must name some of the model's layers 1 to 2"),
    "readout": (encoder(), {"readout": 6}, "readout 6 names no token of sequence 0 .* has 6"),
    "readout name": (encoder(), {"readout": "lats"}, "readout must be .* not 'lats'"),
    "picture": (encoder(), {"picture": "paths"}, 'picture must be "heads", "product" or'),
    "attend": (encoder(), {"attend": "hidden"}, 'attend must be "tokens" or "states"'),
    "skips": (encoder(), {"skips": True}, "skips are of"),
    "paths": (encoder(layers=9), {"picture": "product"}, "9 layers of 3 heads have 2e.04 paths"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    model, given, words = REFUSED[name]
    inputs = sequences().to(next(model.parameters()).dtype)
    with pytest.raises(ValueError, match=words) as refusal:
        capture(model, [inputs], **{"readout": "mean"} | given)
    assert "\n" not in str(refusal.value)


def test_refused_batches():
    model, inputs = encoder(), sequences()
    with pytest.raises(CaptureError, match=r"lies on meta, but the model on cpu; move .*to\(\"cpu"):
        capture(model, [inputs.to("meta")], readout="mean")
    with pytest.raises(TypeError, match=r"put a single one into a list"):
        capture(model, inputs, readout="mean")
    for alone in ((inputs, np.ones(5)), inputs.numpy()):
        with pytest.raises(TypeError, match=r"put a single one into a list"):
            capture(model, alone, readout="mean")
    with pytest.raises(TypeError, match=r"take torch.as_tensor\(batch\)"):
        capture(model, [inputs.numpy()], readout="mean")
    with pytest.raises(TypeError, match=r"layers must be a list of whole numbers, such as \[1\]"):
        capture(model, [inputs], readout="mean", layers=1)
    with pytest.raises(ValueError, match="at least one batch"):
        capture(model, [], readout="mean")
    with pytest.raises(ValueError, match="a pair of inputs and labels, but has 3 parts"):
        capture(model, [(inputs, inputs, inputs)], readout="mean")
    with pytest.raises(ValueError, match="1 labels for 10 examples"):
        capture(model, [inputs, (inputs, [1])], readout="mean")
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, but is 'bert'"):
        capture("bert", [inputs], readout="mean")


def test_a_spread_far_smaller_than_the_mean():
    model, tokens = encoder().float(), sequences().float() * 0.01 + 300
    captured = capture(model, [tokens], readout="mean")
    assert captured.deviations == pytest.approx(
        [float(tokens.double().std(correction=0))], rel=1e-3
    )


def test_labels_of_a_stores_scores_decide_not_their_order():
    captured = capture(encoder(), [sequences()], readout="mean")
    labels = [f"1-{number}" for number in range(1, 8)]
    scores = xr.DataArray(np.arange(7.0), {"head": labels}, dims="head")
    expected = captured.by_head(np.arange(7.0))
    for order in (scores, scores[::-1], scores.sortby(-scores)):
        xr.testing.assert_identical(captured.by_head(order), expected)
    with pytest.raises(ValueError, match="those of the theory are 1-1, 1-2"):
        captured.by_head(scores.assign_coords(head=[f"2-{number}" for number in range(1, 8)]))
