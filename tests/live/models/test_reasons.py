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
