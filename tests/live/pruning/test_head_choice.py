"""Gains of a live model's heads: derivatives, refits, choices, and gains folded into weights."""

import copy
import itertools
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_core.paths.heads import every_head
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live import gains as gains_module
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_pruning.live.gains import LiveNetwork
from pathkernel_pruning.live.head_choice import choose_heads, curvature_scores, refit_gains
from pathkernel_pruning.live.head_scores import gradient_scores
from pathkernel_pruning.live.removal import remove_heads

WIDTH, HEADS, LAYERS, CLASSES, EXAMPLES = 12, 3, 2, 4, 110


class LinearAttention(nn.Module):
    """One layer of attention and nothing else: its output is linear in the gains."""

    def __init__(self, heads=6, width=12):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)

    def forward(self, x):
        split = (part.unflatten(-1, (self.heads, -1)) for part in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (part.transpose(1, 2) for part in split)
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(heads.transpose(1, 2).flatten(2))

    def pathkernel_heads(self):
        return AttentionHeads(self.heads, output=self.proj, projections=[self.qkv])


def encoder(seed=0, **options):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 16, batch_first=options.pop("batch_first", True), **options
    )
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    model.readout = nn.Linear(WIDTH, CLASSES)
    return model.double()


def examples(count=EXAMPLES, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 5, WIDTH, generator=generator, dtype=torch.float64)
    classes = torch.arange(count) % CLASSES
    targets = torch.randn(count, CLASSES, generator=generator, dtype=torch.float64)
    return [
        {"inputs": inputs[part], "classes": classes[part], "targets": targets[part]}
        for part in torch.arange(count).split(60)
    ]


def outputs_of(model, loss="cross-entropy", columns=CLASSES, tokens=False):
    def outputs(batch):
        hidden = model(batch["inputs"])
        if tokens:
            return model.readout(hidden).flatten(0, 1), batch["classes"].repeat_interleave(5)
        z = model.readout(hidden.mean(dim=1))
        if loss == "squared":
            targets = batch["targets"]
            return (z[:, 0], targets[:, 0]) if columns == 1 else (z, targets)
        return z, batch["classes"]

    return outputs


def test_the_form_is_switching_off_for_every_set_of_heads_of_one_layer():
    torch.manual_seed(0)
    model = nn.Sequential(LinearAttention()).double()
    inputs = torch.randn(100, 5, 12, dtype=torch.float64)
    batches = [(inputs, torch.randn(100, dtype=torch.float64))]

    def outputs(batch):
        return model(batch[0]).mean(dim=(1, 2)), batch[1]

    form = LiveNetwork(model, batches, outputs, "squared").form(np.ones(6))
    for removed in itertools.product([False, True], repeat=6):
        off = [head for head, is_off in zip(every_head([6]), removed) if is_off]
        with torch.no_grad(), heads_off(model, off):
            z, y = outputs(batches[0])
        loss = float(((z - y) ** 2).mean())
        assert form.loss + form.rise(np.array(removed)) == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_derivatives_backward_and_forward_agree(loss, batch_first, monkeypatch):
    model = encoder(batch_first=batch_first)

    def outputs(batch):
        inputs = batch["inputs"] if batch_first else batch["inputs"].swapaxes(0, 1)
        hidden = model(inputs)
        z = model.readout(hidden.mean(dim=1 if batch_first else 0))
        return z, batch["targets" if loss == "squared" else "classes"]

    gains = np.array([1.0, 0.7, 0.0, 1.2, 1.0, 0.5])
    forms = []
    for method in ("outputs", "differences"):
        monkeypatch.setattr(gains_module, "_method", lambda *_, method=method: method)
        network = LiveNetwork(model, examples(), outputs, loss)
        forms.append(network.form(gains))
    backward, forward = forms
    assert backward.loss == pytest.approx(network.loss(gains))
    free = gains != 0
    largest = abs(backward.gradient).max()
    np.testing.assert_allclose(backward.gradient[free], forward.gradient[free], atol=0.01 * largest)
    scale = abs(backward.form).max()
    np.testing.assert_allclose(
        backward.form[np.ix_(free, free)], forward.form[np.ix_(free, free)], atol=3e-3 * scale
    )


def test_the_gradient_is_that_of_the_loss():
    model, step = encoder(), 1e-5
    network = LiveNetwork(model, examples(), outputs_of(model), "cross-entropy")
    form = network.form(np.ones(6))
    for head in range(6):
        losses = [network.loss(1 + sign * step * np.eye(6)[head]) for sign in (1, -1)]
        slope = (losses[0] - losses[1]) / (2 * step)
        assert form.gradient[head] == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_random_directions_have_the_form_as_their_mean(loss, monkeypatch):
    model = encoder()
    exact = LiveNetwork(model, examples(), outputs_of(model, loss), loss).form(np.ones(6))
    monkeypatch.setattr(gains_module, "_method", lambda *_: "directions")
    drawn = [
        LiveNetwork(model, examples(), outputs_of(model, loss), loss, seed).form(np.ones(6))
        for seed in range(12)
    ]
    np.testing.assert_allclose(drawn[0].gradient, exact.gradient, rtol=1e-8)
    mean = np.mean([form.form for form in drawn], axis=0)
    error = np.std([form.form for form in drawn], axis=0) / np.sqrt(len(drawn))
    assert (abs(mean - exact.form) < 4.5 * error).all()
    assert (error < 0.15 * abs(exact.form).max()).all()


def test_outputs_of_tokens_take_directions_or_differences(monkeypatch):
    model = encoder()
    network = LiveNetwork(model, examples(), outputs_of(model, tokens=True), "cross-entropy")
    differences = network.form(np.ones(6))  # 12 passes, fewer than directions take
    assert network.passes == 13
    monkeypatch.setattr(gains_module, "DIRECTIONS", 100)
    monkeypatch.setattr(gains_module, "_method", lambda *_: "directions")
    directions = network.form(np.ones(6))
    assert differences.examples == 5 * EXAMPLES
    np.testing.assert_allclose(directions.gradient, differences.gradient, rtol=0.02, atol=1e-5)
    scale = abs(differences.form).max()
    np.testing.assert_allclose(directions.form, differences.form, atol=0.2 * scale)


def test_a_choice_lowers_the_loss_and_leaves_the_model():
    model = encoder()
    model.train()
    before = copy.deepcopy(model.state_dict())
    outputs = outputs_of(model)
    choice = choose_heads(model, examples(), outputs, 3, loss="cross-entropy")
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    model.eval()
    assert choice.gains.sel(head=choice.table["head"].values).values.tolist() == [0, 0, 0]
    assert np.count_nonzero(choice.gains) == 3
    losses = []
    for gains in (None, choice.gains):
        with torch.no_grad(), heads_off(model, choice.heads, gains=gains):
            pairs = [outputs(batch) for batch in examples()]
        losses.append(
            sum(float(nn.functional.cross_entropy(*pair, reduction="sum")) for pair in pairs)
        )
    whole = LiveNetwork(model, examples(), outputs, "cross-entropy").loss(np.ones(6))
    assert losses[1] < losses[0]
    assert choice.rise.measured == pytest.approx(losses[1] / EXAMPLES - whole)
    assert choice.rise.expected == pytest.approx(choice.rise.measured, abs=0.1 * losses[1])
    refitted = refit_gains(model, examples(), outputs, choice.heads, loss="cross-entropy")
    np.testing.assert_allclose(refitted, choice.gains, atol=0.05)


def test_equal_heads_have_equal_scores_and_one_can_go():
    torch.manual_seed(3)
    model = nn.Sequential(LinearAttention()).double()
    attention = model[0]
    with torch.no_grad():  # head 2 is head 1 again
        attention.qkv.weight.unflatten(0, (3, 6, 2))[:, 1] = attention.qkv.weight.unflatten(
            0, (3, 6, 2)
        )[:, 0]
        attention.qkv.bias.zero_()
        attention.proj.weight[:, 2:4] = attention.proj.weight[:, :2]
    inputs = torch.randn(150, 5, 12, dtype=torch.float64)
    with torch.no_grad():
        targets = model(inputs)[:, 0, 0]

    def outputs(batch):
        return model(batch[0])[:, 0, 0], batch[1]

    choice = choose_heads(model, [(inputs, targets)], outputs, 1)
    assert choice.rise.measured < 0.05 * float(targets.var())
    scores = curvature_scores(model, [(inputs, targets)], outputs)
    assert scores.values[0] == pytest.approx(scores.values[1])


@pytest.mark.parametrize("count", [1, 2])  # of one layer, whose other has gains alone; of both
@pytest.mark.parametrize("smaller", [False, True])
def test_gains_are_folded_into_weights(smaller, count):
    model = encoder()
    inputs = examples()[0]["inputs"]
    choice = choose_heads(model, examples(), outputs_of(model), count, loss="cross-entropy")
    with torch.no_grad(), heads_off(model, choice.heads, gains=choice.gains):
        expected = model(inputs)
    before = copy.deepcopy(model.state_dict())
    wrong = choice.gains.copy(data=np.where(choice.gains == 0, 0, 0.0))
    with pytest.raises(ValueError, match="gains has 0 for head"):
        remove_heads(model, choice.heads, batch=inputs, gains=wrong)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    remove_heads(model, choice.heads, batch=inputs, gains=choice.gains, smaller=smaller)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), expected, rtol=1e-5, atol=1e-6)


def test_heads_off_at_their_mean():
    model = encoder()
    batches, heads = [batch["inputs"] for batch in examples()], [(1, 2), (2, 1)]
    with torch.no_grad(), heads_off(model, heads, replace="mean", batches=batches):
        changed = model(batches[0])
    with torch.no_grad(), heads_off(model, heads):
        off = model(batches[0])
    with torch.no_grad():
        whole = model(batches[0])
    assert (changed - whole).square().mean() < (off - whole).square().mean()
    # of a constant head nothing changes
    with torch.no_grad():
        attention = model.layers[0].self_attn
        attention.in_proj_weight[2 * WIDTH + 4 : 2 * WIDTH + 8] = 0  # values of head 2
        attention.in_proj_bias[2 * WIDTH + 4 : 2 * WIDTH + 8] = 1.5
        whole = model(batches[0])
        with heads_off(model, [(1, 2)], replace="mean", batches=batches):
            torch.testing.assert_close(model(batches[0]), whole, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="needs batches="), heads_off(model, heads, replace="mean"):
        pass
    with pytest.raises(ValueError, match="replace must be"), heads_off(model, heads, replace="x"):
        pass


def test_half_precision_gives_nearly_the_same():
    model = encoder().float()
    batches = [batch | {"inputs": batch["inputs"].float()} for batch in examples()]
    exact = curvature_scores(model, batches, outputs_of(model), loss="cross-entropy")
    gains = refit_gains(model, batches, outputs_of(model), [(1, 1)], loss="cross-entropy")
    half = copy.deepcopy(model).bfloat16()
    batches = [batch | {"inputs": batch["inputs"].bfloat16()} for batch in batches]
    scores = curvature_scores(half, batches, outputs_of(half), loss="cross-entropy")
    np.testing.assert_allclose(scores, exact, atol=0.05 * float(abs(exact).max()))
    refitted = refit_gains(half, batches, outputs_of(half), [(1, 1)], loss="cross-entropy")
    np.testing.assert_allclose(refitted, gains, atol=0.03)


def test_orders_are_measured_with_refitted_gains(tmp_path):
    model, sets = encoder(), {"validation": examples(), "test": examples(seed=5)}
    outputs = outputs_of(model)

    def measure(name):
        pairs = [outputs(batch) for batch in sets[name]]
        return torch.cat([nn.functional.cross_entropy(*pair, reduction="none") for pair in pairs])

    scores = {"curvature": curvature_scores(model, sets["validation"], outputs, loss=CROSS)}
    calls = []

    def refit(heads):
        calls.append(heads)
        return refit_gains(model, sets["validation"], outputs, heads, loss=CROSS)

    options = {"random": 3, "resamples": 5, "refit": refit, "kept": tmp_path / "off.npz"}
    result = compare_heads(model, measure, scores, removed=[3], **options)
    orders = ["curvature", "ablation", "curvature refitted", "ablation refitted", "random"]
    assert result["order"].values.tolist() == orders
    off = [
        (int(layer), int(number))
        for layer, number, is_off in zip(
            result["layer"].values,
            result["number"].values,
            result["is_removed"].sel(order="curvature refitted", removed=3).values[0],
        )
        if is_off
    ]
    gains = refit_gains(model, sets["validation"], outputs, off, loss=CROSS)
    with torch.no_grad(), heads_off(model, off, gains=gains):
        expected = float(measure("test").mean())
    measured = result["measured"].sel(order="curvature refitted", removed=3).squeeze()
    assert float(measured) == pytest.approx(expected)
    count = len(calls)
    again = compare_heads(model, measure, scores, removed=[3], **options)
    assert again.identical(result)
    assert len(calls) == count + 1  # one is measured again, to know the file


CROSS = "cross-entropy"


@pytest.mark.parametrize(
    ("given", "loss", "message"),
    [
        (lambda z, y: z, CROSS, "must give a pair"),
        (lambda z, y: (z[..., None], y), CROSS, "join tokens"),
        (lambda z, y: (z[:, 0], y), CROSS, "column for each class"),
        (lambda z, y: (z, y.double()), CROSS, "integers of shape"),
        (lambda z, y: (z, y + 1), CROSS, "classes from 1 to 4"),
        (lambda z, y: (z, z[:, 0]), "squared", "a target for every number"),
        (lambda z, y: (z * float("nan"), y), CROSS, "NaN or infinite"),
        (lambda z, y: (z.detach(), y), CROSS, "keep the gradients"),
        (lambda z, y: (0 * z.detach() + torch.ones(4, requires_grad=True), y), CROSS, "depend on"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(given, loss, message):
    model = encoder()
    outputs = outputs_of(model)
    with pytest.raises(ValueError, match=message):
        curvature_scores(model, examples(), lambda batch: given(*outputs(batch)), loss=loss)


def test_arguments_out_of_range_are_refused():
    model, batches = encoder(), examples()
    outputs = outputs_of(model)
    for count in (0, 7, 1.5):
        with pytest.raises(ValueError, match="count must be from 1 to 6"):
            choose_heads(model, batches, outputs, count, loss=CROSS)
    with pytest.raises(ValueError, match="proposals must"):
        choose_heads(model, batches, outputs, 1, loss=CROSS, proposals=-1)
    with pytest.raises(ValueError, match="prior_variance"):
        choose_heads(model, batches, outputs, 1, loss=CROSS, prior_variance=0)
    with pytest.raises(ValueError, match="at least one batch"):
        choose_heads(model, [], outputs, 1, loss=CROSS)
    with pytest.raises(ValueError, match="loss must be"):
        choose_heads(model, batches, outputs, 1, loss="mse")
    with pytest.raises(TypeError, match="list"):
        choose_heads(model, torch.zeros(3), outputs, 1, loss=CROSS)
    with pytest.raises(ValueError, match=r"names \(3, 1\)"):
        refit_gains(model, batches, outputs, [(3, 1)], loss=CROSS)


def test_few_or_unbalanced_examples_are_said():
    model = encoder()
    with pytest.warns(RuntimeWarning, match="30 examples are few to weigh 6 heads"):
        curvature_scores(model, examples(30), outputs_of(model), loss=CROSS)
    batches = examples(200)
    for batch in batches:
        batch["classes"][batch["classes"] == 2] = 1
        batch["classes"][:1] = 2
    with pytest.warns(RuntimeWarning, match="only 4 of 200 examples have the target 2"):
        curvature_scores(model, batches, outputs_of(model), loss=CROSS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curvature_scores(model, examples(200), outputs_of(model), loss=CROSS)


def test_gradient_scores_agree_with_the_form():
    model = encoder()
    outputs = outputs_of(model)
    network = LiveNetwork(model, examples(), outputs, CROSS)

    def loss(batch):
        return nn.functional.cross_entropy(*outputs(batch), reduction="none")

    raw = gradient_scores(model, examples(), loss, normalised=False)
    assert (raw.values >= abs(network.form(np.ones(6)).gradient) - 1e-12).all()


def test_layers_that_run_without_gradients_are_refused():
    model = encoder()
    first = model.layers[0].forward
    model.layers[0].forward = lambda x, *a, **k: torch.utils.checkpoint.checkpoint(
        first, x, use_reentrant=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CaptureError, match="runs without gradients"):
            curvature_scores(model, examples(), outputs_of(model), loss=CROSS)
