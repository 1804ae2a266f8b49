"""True causes in refusals: random, checkpointed, quantised, offloaded and unloaded models."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.utils.checkpoint import checkpoint

from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores
from pathkernel_pruning.live.removal import remove_heads

INPUTS = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """In the manner of transformers."""

    def __init__(self):
        super().__init__()
        self.num_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        parts = (part(x) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        heads = (q @ k.mT).softmax(dim=-1) @ v
        return self.o_proj(heads.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Two layers, before which something happens to the states."""

    def __init__(self, change=lambda x: x, run=lambda layer, x: layer(x)):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.change, self.run = change, run

    def forward(self, x):
        x = self.change(x)
        for layer in self.layers:
            x = x + self.run(layer, x)
        return x


def losses(model):
    return lambda batch: model(batch).square().flatten(1).sum(dim=1)


def every_function(model):
    """All functions that touch heads, by their names."""
    scores = {"first": {(layer, head): head for layer in (1, 2) for head in (1, 2)}}

    def off():
        with heads_off(model, [(1, 1)]):
            model(INPUTS)

    return {
        "list": lambda: list_heads(model),
        "capture": lambda: capture(model, [INPUTS]),
        "off": off,
        "gradient": lambda: gradient_scores(model, [INPUTS], losses(model)),
        "magnitude": lambda: magnitude_scores(model, INPUTS),
        "remove": lambda: remove_heads(model, [(1, 1)], batch=INPUTS),
        "smaller": lambda: remove_heads(model, [(1, 1)], batch=INPUTS, smaller=True),
        "compare": lambda: compare_heads(model, lambda _: losses(model)(INPUTS).detach(), scores),
    }


def refusals(model):
    """Messages of those that refuse a model, by their names."""
    messages = {}
    for name, function in every_function(model).items():
        try:
            function()
        except CaptureError as error:
            messages[name] = str(error)
    assert not any("\n" in message for message in messages.values())
    return messages


@pytest.mark.parametrize("smaller", [False, True])
def test_models_that_draw_at_random(smaller):
    """The draws of PyTorch are made the same, and put back; others are the reason."""
    model = Model(lambda x: x + torch.randn_like(x))
    torch.manual_seed(3)
    following = torch.randn(2)
    torch.manual_seed(3)
    remove_heads(model, [(1, 1), (2, 2)], batch=INPUTS, smaller=smaller)
    assert torch.equal(torch.randn(2), following)
    generator = np.random.default_rng(0)
    model = Model(lambda x: x * generator.normal())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CaptureError, match=r"other outputs in a second pass .* draws at random"):
        remove_heads(model, [(1, 1)], batch=INPUTS, smaller=smaller)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_gradient_checkpointing():
    """Gradients are those without; a reentrant one lets none of the heads' through."""
    model = Model()
    expected = gradient_scores(model, [INPUTS], losses(model))
    model = Model(run=lambda layer, x: checkpoint(layer, x, use_reentrant=False))
    np.testing.assert_allclose(gradient_scores(model, [INPUTS], losses(model)), expected)

    def reentrant_second(layer, x):
        return layer(x) if layer is model.layers[0] else checkpoint(layer, x, use_reentrant=True)

    model = Model(run=reentrant_second)
    with pytest.raises(CaptureError, match=r"layer 2 \(layers.1\) .* use_reentrant=False"):
        gradient_scores(model, [INPUTS], losses(model))


def test_losses_that_gradients_do_not_reach():
    model = Model(run=lambda layer, x: layer(x).detach())
    inputs = INPUTS.clone().requires_grad_()
    with pytest.raises(ValueError, match="do not reach them, as through quantised"):
        gradient_scores(model, [inputs], losses(model))


@pytest.mark.filterwarnings("ignore")  # of torch.ao's own
@pytest.mark.parametrize("parts", [{nn.Linear}, {"layers.1.o_proj"}, {"layers.1.v_proj"}])
def test_weights_that_are_methods(parts):
    model = torch.ao.quantization.quantize_dynamic(Model().eval(), parts, dtype=torch.qint8)
    messages = refusals(model)
    assert messages.keys() == every_function(model).keys()
    layer = 0 if parts == {nn.Linear} else 1
    for message in messages.values():
        assert message.startswith(f"layers.{layer} has a quantised projection, torch.ao.nn.quan")
        assert message.endswith("take the model as it was before quantisation")


class Int8(torch.Tensor):
    """In the manner of torchao: only what multiplication needs."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            with torch._C.DisableTorchFunctionSubclass():  # its output is an ordinary tensor
                return function(*(part.as_subclass(torch.Tensor) for part in args))
        if function in (torch.Tensor.movedim, torch.Tensor.narrow, torch.Tensor.mT.__get__):
            raise NotImplementedError("Int8 dispatch")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_weights_of_a_quantised_class():
    model = Model()
    for part in model.layers[0].children():
        part.weight = nn.Parameter(part.weight.detach().as_subclass(Int8))
    messages = refusals(model)
    assert messages.keys() == {"remove", "smaller"}
    for message in messages.values():
        assert message.startswith("layer 1 (layers.0) has quantised weights (Int8)")


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_compiled_models():
    """Run uncompiled where they are observed, also if they have run compiled before."""
    expected = capture(Model(), [INPUTS]).xi
    model = Model()
    model.compile(backend="eager")
    model(INPUTS)
    np.testing.assert_allclose(capture(model, [INPUTS]).xi, expected)
    assert refusals(model) == {}


def test_weights_that_are_not_loaded():
    with pytest.raises(CaptureError, match=r"Model has weights that are not loaded .device meta"):
        capture(Model().to("meta"), [INPUTS])


def test_offloaded_weights():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    expected = capture(Model(), [INPUTS]).xi
    model = accelerate.cpu_offload(Model(), execution_device="cpu")
    np.testing.assert_allclose(capture(model, [INPUTS]).xi, expected)
    messages = refusals(model)
    assert messages.keys() == {"remove", "smaller"}
    for message in messages.values():
        assert message.startswith("layer 1 (layers.0) has offloaded weights (device meta)")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # said once in a process
def test_heads_of_a_class_of_ones_own_with_quantised_projections():
    """The description itself tells."""

    class Described(Attention):
        def pathkernel_heads(self):
            return AttentionHeads(2, self.o_proj, [self.q_proj, self.k_proj, self.v_proj])

    described = Described()
    described.o_proj = torch.ao.nn.quantized.dynamic.Linear(8, 8)
    with pytest.raises(
        CaptureError, match="output or projections hold a Linear whose weight is no tensor"
    ):
        list_heads(nn.Sequential(described))


class Biased(Attention):
    """In the manner of EVA and BEiT: biases apart from the projection, and tables by head."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24, bias=False), nn.Linear(8, 8)
        del self.q_proj, self.k_proj, self.v_proj, self.o_proj
        self.q_bias, self.v_bias = (nn.Parameter(torch.randn(8)) for _ in range(2))
        self.rel_pos_bias = nn.Parameter(torch.randn(36, 2))

    def project(self, heads):
        return self.proj(heads)

    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        x = nn.functional.linear(x, self.qkv.weight, bias)
        q, k, v = x.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        table = self.rel_pos_bias.T.unflatten(1, (6, 6))
        heads = (q @ k.mT + table).softmax(dim=-1) @ v
        return self.project(heads.transpose(1, 2).flatten(2))


class ReadingWeights(Biased):
    """In the manner of torchvision's Swin: no projection runs as a module."""

    def project(self, heads):
        return nn.functional.linear(heads, self.proj.weight, self.proj.bias)


class AttentionPoolLatent(nn.Module):
    """In the manner of timm: a learned query attends to all tokens."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.latent = 2, nn.Parameter(torch.randn(1, 1, 8))
        self.q, self.kv, self.proj = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x):
        q = self.q(self.latent.expand(len(x), -1, -1)).unflatten(-1, (2, 4)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(heads.transpose(1, 2).flatten(2))


class MultiheadAttentionPoolingHead(nn.Module):
    """In the manner of SigLIP: attention of PyTorch, whose query is learned."""

    def __init__(self):
        super().__init__()
        self.probe = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(self.probe.expand(len(x), -1, -1), x, x)[0]


class Shared(Attention):
    """Keys and values of one head."""

    def __init__(self):
        super().__init__()
        self.k_proj, self.v_proj = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (2, 4)).transpose(1, 2)
        k, v = self.k_proj(x)[:, None], self.v_proj(x)[:, None]
        heads = (q @ k.mT).softmax(dim=-1) @ v
        return self.o_proj(heads.transpose(1, 2).flatten(2))


class Weighted(Attention):
    """In the manner of Doge: each head of keys, of four queries in two groups, has a factor."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.num_key_value_heads = 4, 2
        self.k_proj, self.v_proj = nn.Linear(8, 4), nn.Linear(8, 4)
        self.factors = nn.Parameter(torch.randn(2))

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (-1, 2)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (
            part.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
            for part in (k * self.factors[:, None, None], v)
        )
        return self.o_proj(((q @ k.mT).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def test_parameters_of_groups_beside_the_projections():
    """Are why whole groups stay in the weights, and not that heads share keys."""
    model = Model()
    model.layers = nn.ModuleList(Weighted() for _ in range(2))
    with pytest.raises(CaptureError, match=r"which are not taken out: layers\.0\.factors\. Leave"):
        remove_heads(model, [(1, 1), (1, 2)], smaller=True, batch=INPUTS)


def test_parameters_beside_the_projections():
    """Are why heads stay in the weights, as shared keys and values are of others."""
    model = Model()
    model.layers = nn.ModuleList(Biased() for _ in range(2))
    messages = refusals(model)
    assert messages.keys() == {"smaller"}
    names = [f"layers.0.{name}" for name in ("q_bias", "v_bias", "rel_pos_bias")]
    assert "layer 1 (layers.0) have parameters beside their projections, which are not taken " in (
        message := messages["smaller"]
    )
    assert ": " + ", ".join(names) + ". Leave smaller out" in message
    assert "share keys" not in message
    model.layers = nn.ModuleList(Shared() for _ in range(2))
    messages = refusals(model)
    assert messages.keys() == {"smaller"}
    assert "beside their projections" not in messages["smaller"]
    assert "Heads 1 to 2 of layer 1 (layers.0) share keys and values, and" in messages["smaller"]


def test_projections_that_do_not_run():
    model = Model()
    model.layers = nn.ModuleList(ReadingWeights() for _ in range(2))
    messages = refusals(model)
    assert "or does not run its projections" in messages.pop("capture")
    assert messages.keys() == every_function(model).keys() - {"list", "capture"}
    for message in messages.values():
        assert message.startswith("layer 1 (layers.0) does not run its output projection proj")
        assert "layers=" not in message  # which none of these functions takes


def test_heads_that_pool_a_sequence():
    """Are left alone, as all attention from other tokens than its own."""
    for pooling in (AttentionPoolLatent, MultiheadAttentionPoolingHead):
        model = nn.Sequential(Model(), pooling())
        assert len(list_heads(model)) == 2
        assert refusals(model) == {}


def test_windows():
    """Are not captured, which no other choice of layers helps."""

    class Windows(Attention):
        def forward(self, x):
            return super().forward(x.reshape(-1, 3, 8)).reshape(x.shape)

    model = Model()
    model.layers = nn.ModuleList(nn.Sequential(Windows()) for _ in range(2))
    assert refusals(model)["capture"].startswith("layer 1 (layers.0.0) attends within windows, 6 ")


class Tabled(Attention):
    """In the manner of Swin: a table of relative positions with a column for each head."""

    def __init__(self):
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.randn(36, 2))

    def forward(self, x, alibi=None):
        q, k, v = (
            part(x).unflatten(-1, (-1, 4)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        table = self.relative_position_bias_table.T.unflatten(1, (6, 6))
        scores = q @ k.mT + (table if alibi is None else table + alibi)
        return self.o_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def test_tables_of_positions_lose_columns():
    model = Model()
    model.layers = nn.ModuleList(Tabled() for _ in range(2))
    with torch.no_grad(), heads_off(model, [(1, 1), (2, 2)]):
        expected = model(INPUTS)
    before = [layer.relative_position_bias_table.detach().clone() for layer in model.layers]
    remove_heads(model, [(1, 1), (2, 2)], smaller=True, batch=INPUTS)
    assert torch.equal(model.layers[0].relative_position_bias_table, before[0][:, 1:])
    assert torch.equal(model.layers[1].relative_position_bias_table, before[1][:, :1])
    with torch.no_grad():
        torch.testing.assert_close(model(INPUTS), expected)


def test_biases_from_outside_are_named():
    """In the manner of BLOOM: the model makes them for all its heads."""

    class Outside(Model):
        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x, alibi=torch.ones(2, 1, 6).cumsum(dim=-1))
            return x

    model = Outside()
    model.layers = nn.ModuleList(Tabled() for _ in range(2))
    with pytest.raises(CaptureError, match=r"layer 1 .layers.0., its argument alibi, comes from"):
        remove_heads(model, [(1, 1)], smaller=True, batch=INPUTS)
