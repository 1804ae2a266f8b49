"""Output projections that compute their weights, or more than their weights say."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from pathkernel_datasets.variables.head_axis import scores_by_head
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores
from pathkernel_pruning.live.removal import remove_heads

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
WIDTH, HEADS, SIZE = 16, 4, 4
INPUTS = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
OFF = [(1, 2), (2, 3)]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.head_size = HEADS, SIZE
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()

    def forward(self, x):
        return x + self.attention(self.norm(x))


class LowRank(nn.Linear):
    """An adapter that is not merged, as LoRA's."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.down = nn.Parameter(torch.empty(2, WIDTH))
        self.up = nn.Parameter(torch.empty(WIDTH, 2))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


class Rounded(nn.Linear):
    """Weights rounded to three values by their mean size, as for 1.58 bits."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        scale = self.weight.abs().mean()
        return F.linear(x, (self.weight / scale).round().clamp(-1, 1) * scale, self.bias)


class Elsewhere(nn.Linear):
    """Weights on no device, as where they are offloaded; the module brings them."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        return F.linear(x, self.whole, self.bias)


class Wrapped(nn.Module):
    """A projection in a module that shows its weight, as adapters' libraries do."""

    def __init__(self):
        super().__init__()
        self.base, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.empty(WIDTH))

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.base(x * self.scale)


def _offload(projection):
    projection.register_buffer("whole", projection.weight.data)
    projection.weight = nn.Parameter(torch.empty_like(projection.weight, device="meta"))


def replaced(kind):
    def apply(attention):
        attention.o_proj = kind()

    return apply


PARAMETRISED = {
    "weight_norm": lambda attention: parametrizations.weight_norm(attention.o_proj),
    "spectral_norm": lambda attention: parametrizations.spectral_norm(attention.o_proj),
    "orthogonal": lambda attention: parametrizations.orthogonal(attention.o_proj),
    "pruned": lambda attention: prune.l1_unstructured(attention.o_proj, "weight", amount=0.2),
    "old weight_norm": lambda attention: nn.utils.weight_norm(attention.o_proj),
}
KINDS = PARAMETRISED | {kind.__name__: replaced(kind) for kind in (LowRank, Rounded, Wrapped)}
KINDS["Elsewhere"] = replaced(Elsewhere)


@pytest.fixture(params=KINDS)
def model(request):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).double()
    for block in model:
        if request.param not in PARAMETRISED:
            KINDS[request.param](block.attention)
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=0.4)
    for block in model:
        if request.param in PARAMETRISED:
            KINDS[request.param](block.attention)
        if request.param == "Elsewhere":
            _offload(block.attention.o_proj)
    return model.eval()


def without(model, off):
    """Outputs where the parts of the heads in the projections' inputs are zero."""
    handles = []
    for layer, head in off:

        def silence(_, given, head=head):
            passed = given[0].clone()
            passed[..., (head - 1) * SIZE : head * SIZE] = 0
            return (passed,)

        projection = model[layer - 1].attention.o_proj
        handles.append(projection.register_forward_pre_hook(silence))
    with torch.no_grad():
        outputs = model(INPUTS)
    for handle in handles:
        handle.remove()
    return outputs


def test_off_and_back_on(model):
    whole, expected = model(INPUTS).detach(), without(model, OFF)
    assert (whole - expected).abs().max() > 0.1
    with torch.no_grad(), heads_off(model, OFF), heads_off(model, OFF[:1]):
        np.testing.assert_allclose(model(INPUTS), expected, atol=1e-12)
    np.testing.assert_allclose(model(INPUTS).detach(), whole, atol=1e-12)


def test_measured(model):
    """No head counts as dispensable because it stays on."""

    def measure(_):
        return model(INPUTS).square().mean(dim=(1, 2))

    scores = {(layer, head): 1.0 for layer in (1, 2) for head in range(1, HEADS + 1)}
    result = compare_heads(model, measure, {"equal": scores}, random=2)
    with torch.no_grad():
        expected = (without(model, [(2, 3)]).square() - model(INPUTS).square()).mean()
    lost = result.lost.sel(test_set="test", head="2-3")
    assert float(lost.squeeze()) == pytest.approx(float(expected))


def test_magnitudes_are_those_of_the_matrix_that_multiplies(model):
    scores = magnitude_scores(model, INPUTS)
    for layer, block in enumerate(model, start=1):
        zero, unit = torch.zeros(1, WIDTH), torch.eye(WIDTH)
        with torch.no_grad():
            project = block.attention.o_proj
            matrix = (project(unit.double()) - project(zero.double())).T
        values = block.attention.v_proj.weight.detach()
        for head in range(1, HEADS + 1):
            part = slice((head - 1) * SIZE, head * SIZE)
            norm = float(torch.linalg.norm(matrix[:, part] @ values[part]))
            assert float(scores.sel(head=f"{layer}-{head}")) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("smaller", [False, True])
def test_removal_is_refused(model, smaller):
    """A merge, or the next forward pass, would bring the heads back."""
    before, whole = copy.deepcopy(model.state_dict()), model(INPUTS)
    words = "merge the adapter|remove the parametrisation|multiplies by other|offloaded"
    with pytest.raises(CaptureError, match=rf"layer 1 \(0.attention\) has .*({words})"):
        remove_heads(model, OFF, batch=INPUTS, smaller=smaller)
    assert model.state_dict().keys() == before.keys()
    assert torch.equal(model(INPUTS), whole)


def test_a_parametrised_projection_of_values_is_not_made_smaller():
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).double().eval()
    parametrizations.weight_norm(model[0].attention.v_proj)
    remove_heads(model, [(1, 1)], batch=INPUTS)
    with pytest.raises(CaptureError, match="computes its weights from parametrizations"):
        remove_heads(model, [(1, 2)], batch=INPUTS, smaller=True)
    parametrize.remove_parametrizations(model[0].attention.v_proj, "weight")
    remove_heads(model, [(1, 1), (1, 2)], batch=INPUTS, smaller=True)
    assert model[0].attention.v_proj.out_features == 2 * SIZE


@pytest.mark.parametrize("kind", [*PARAMETRISED, "interrupted"])
def test_multihead_attention(kind):
    """Its output weight is read, also by fused kernels; scores leave the model as it was."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for part in model.layers:
        if kind in PARAMETRISED:
            holder = nn.Module()
            holder.o_proj = part.self_attn.out_proj
            PARAMETRISED[kind](holder)
    before, whole = model.state_dict(), model(INPUTS).detach()

    def loss(batch):
        if kind == "interrupted":
            raise KeyError
        return model(batch).square().mean(dim=(1, 2))

    if kind == "interrupted":
        with pytest.raises(KeyError):
            gradient_scores(model, [INPUTS], loss)
    else:
        scores = gradient_scores(model, [INPUTS], loss, normalised=False)
        weight = model.layers[1].self_attn.out_proj.weight.detach()
        matrix = model.layers[1].self_attn.in_proj_weight.detach()[2 * WIDTH :][:SIZE]
        magnitude = float(torch.linalg.norm(weight[:, :SIZE] @ matrix))
        assert float(magnitude_scores(model, INPUTS).sel(head="2-1")) == pytest.approx(magnitude)
        assert np.isfinite(scores).all()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.layers)
    for gradients in (True, False):  # without, PyTorch runs its fused layers
        with torch.set_grad_enabled(gradients):
            np.testing.assert_allclose(model(INPUTS).detach(), whole, atol=1e-12)
            with heads_off(model, OFF):
                outputs = model(INPUTS).detach()
        plain = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        for part, other in zip(plain.layers, model.layers):
            weight = other.self_attn.out_proj.weight.detach().clone()
            for number, head in OFF:
                if other is model.layers[number - 1]:
                    weight[:, (head - 1) * SIZE : head * SIZE] = 0
            entries = {
                name: value for name, value in other.state_dict().items() if "out_" not in name
            }
            entries["self_attn.out_proj.weight"] = weight
            entries["self_attn.out_proj.bias"] = other.self_attn.out_proj.bias
            part.load_state_dict(entries)
        np.testing.assert_allclose(outputs, plain(INPUTS).detach(), atol=1e-12)


ALL = [(1, head) for head in range(1, HEADS + 1)]
IDLE = {  # heads, and options by which they, or the others, pass on something else
    "off": ([(1, 1)], {}),
    "gains": ([], {"gains": scores_by_head(ALL, [2.0, 1.0, 0.5, 1.0])}),
    "both": (ALL[:1], {"gains": scores_by_head(ALL, [0.0, 1.0, 0.5, 1.0])}),
}


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("case", IDLE)
def test_a_projection_that_does_not_run_is_refused(case, described):
    """The heads of a module that multiplies by a copy of its weight would stay on."""
    heads, options = IDLE[case]

    class Copying(Attention):
        def forward(self, x):
            q, k, v = (
                part(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
                for part in (self.q_proj, self.k_proj, self.v_proj)
            )
            heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return F.linear(heads, self._modules["o_proj"].weight)

    model = nn.Sequential(Block()).eval()
    model[0].attention = attention = Copying()
    if described:  # without projections nothing is compared
        attention.pathkernel_heads = lambda: AttentionHeads(HEADS, attention.o_proj)
    with (
        pytest.raises(
            CaptureError, match=r"layer 1 \(0.attention\) (does not run its output|ran, but)"
        ),
        torch.no_grad(),
        heads_off(model, heads, **options),
    ):
        model(INPUTS.float())


def test_an_adapter_whose_weight_is_read_is_refused():
    """As LoRA's for ``nn.MultiheadAttention``: it writes back the weight that it reads."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    model.layers[0].self_attn.out_proj = Wrapped().double()
    words = r"layer 1 \(layers.0.self_attn\) has an adapter \(Wrapped\).* merge the adapter"
    with pytest.raises(CaptureError, match=words), heads_off(model, [(1, 1)]):
        pass
    with pytest.raises(CaptureError, match=words):
        gradient_scores(model, [INPUTS], lambda batch: model(batch).square().mean(dim=(1, 2)))


@pytest.mark.parametrize("whole_model", [True, False])
def test_compiled_models_run_without_their_heads(whole_model):
    """Compiled code does not look for hooks that are added later."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).double().eval()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        whole = compiled(INPUTS)
        with heads_off(compiled if whole_model else model, OFF):
            np.testing.assert_allclose(compiled(INPUTS), without(model, OFF), atol=1e-12)
        np.testing.assert_allclose(compiled(INPUTS), whole, atol=1e-12)


@pytest.mark.parametrize("off_outside", [True, False])
def test_scores_of_the_rest_while_heads_are_off(off_outside):
    """Factors of heads and heads that are off, in either order of the contexts."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()

    def loss(batch):
        if off_outside:
            return model(batch).square().mean(dim=(1, 2))
        with heads_off(model, [(1, 1)]):
            return model(batch).square().mean(dim=(1, 2))

    with heads_off(model, [(1, 1)] if off_outside else []):
        scores = gradient_scores(model, [INPUTS], loss, normalised=False)
    changed = copy.deepcopy(model)
    changed.layers[0].self_attn.out_proj.weight.data[:, :SIZE] = 0
    expected = gradient_scores(
        changed, [INPUTS], lambda x: changed(x).square().mean(dim=(1, 2)), normalised=False
    )
    assert float(scores.sel(head="1-1")) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(scores, expected, atol=1e-9)


def test_a_subclass_of_multihead_attention_with_its_own_forward_is_refused():
    class Calling(nn.MultiheadAttention):
        def forward(self, query, key, value, **kwargs):
            parts = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
            heads = ((q @ k.mT).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
            return self.out_proj(heads), None

    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True)
    layer.self_attn = Calling(WIDTH, HEADS, batch_first=True)
    model, inputs = layer.train(), INPUTS.float()  # else PyTorch's fused layer runs instead
    with pytest.raises(CaptureError, match="does not show the values"), heads_off(model, [(1, 1)]):
        model(inputs)


def test_a_copy_made_inside_keeps_the_heads_off():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    with torch.no_grad(), heads_off(model, [(1, 1)]):
        inside, copied = model(INPUTS), copy.deepcopy(model)(INPUTS)
    np.testing.assert_allclose(copied, inside, atol=1e-12)


def test_a_projection_that_takes_its_input_by_name():
    class Named(Attention):
        def forward(self, x):
            q, k, v = (
                part(input=x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
                for part in (self.q_proj, self.k_proj, self.v_proj)
            )
            heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return self.o_proj(input=heads)

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).double().eval()
    named = nn.Sequential(Block(), Block()).double().eval()
    for block in named:
        block.attention = Named().double()
    named.load_state_dict(model.state_dict())
    with torch.no_grad(), heads_off(model, OFF), heads_off(named, OFF):
        np.testing.assert_allclose(named(INPUTS), model(INPUTS), atol=1e-12)
