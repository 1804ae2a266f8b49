"""Heads of models as people run them: half precision, adapters, offloaded weights, windows."""

import copy
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.gains import LiveNetwork
from pathkernel_pruning.live.head_choice import choose_heads, curvature_scores, refit_gains
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores
from pathkernel_pruning.live.removal import remove_heads

pytestmark = pytest.mark.filterwarnings("ignore")  # few examples, and transformers' own
EXAMPLES, TOKENS, WIDTH, CLASSES = 20, 6, 32, 3
SMALL = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
}
HALF = {torch.bfloat16: 0.03, torch.float16: 0.004}  # relative error allowed
TARGETS = torch.arange(EXAMPLES) % CLASSES


def llama():
    transformers = pytest.importorskip("transformers", minversion="5")
    torch.manual_seed(0)
    model = transformers.LlamaModel(transformers.LlamaConfig(**SMALL)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim == 2 else 1)
    return model, torch.randint(40, (EXAMPLES, TOKENS))


def encoder():
    torch.manual_seed(0)
    # tokens first; derivatives of a ReLU would jump where rounding changes its sign
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, activation="gelu")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    return model, torch.randn(TOKENS, EXAMPLES, WIDTH)


def logits(model, batch):
    hidden = model(batch)
    if isinstance(hidden, torch.Tensor):
        return hidden[0, :, :CLASSES]
    return hidden.last_hidden_state[:, -1, :CLASSES]


def figures(model, batch):
    """Every score and every changed output of a model."""

    def outputs(batch):
        return logits(model, batch), TARGETS

    def loss(batch):
        return nn.functional.cross_entropy(logits(model, batch), TARGETS, reduction="none")

    entropy, off = {"loss": "cross-entropy"}, [(1, 2), (2, 1)]
    found = {
        "gradient": gradient_scores(model, [batch], loss),
        "curvature": curvature_scores(model, [batch], outputs, **entropy),
        "magnitude": magnitude_scores(model, batch),
        "choice": choose_heads(model, [batch], outputs, 2, **entropy, proposals=0).gains,
        "gains": (gains := refit_gains(model, [batch], outputs, off, **entropy)),
    }
    for replace in ("zero", "mean"):
        given = {"batches": [batch]} if replace == "mean" else {}
        with torch.no_grad(), heads_off(model, off, replace=replace, gains=gains, **given):
            found[replace] = logits(model, batch).double()
    return {name: np.asarray(values) for name, values in found.items()}


@pytest.mark.parametrize("made", [llama, encoder])
def test_half_precision_agrees_with_single(made):
    model, batch = made()
    single = figures(model, batch)
    for dtype, error in HALF.items():
        half = batch.to(dtype) if batch.is_floating_point() else batch
        for name, values in figures(copy.deepcopy(model).to(dtype), half).items():
            largest = abs(single[name]).max()
            np.testing.assert_allclose(values, single[name], atol=error * largest, err_msg=name)


@pytest.mark.parametrize("smaller", [False, True])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("made", [llama, encoder])
def test_heads_are_removed_in_half_precision(made, dtype, smaller):
    model, batch = made()
    model, batch = model.to(dtype), batch.to(dtype) if batch.is_floating_point() else batch
    heads = [(1, 1), (1, 2)]  # a whole group
    gains = refit_gains(model, [batch], lambda b: (logits(model, b)[:, 0], TARGETS * 1.0), heads)
    with torch.no_grad(), heads_off(model, heads, gains=gains):
        expected = logits(model, batch)
    with torch.no_grad():
        assert (logits(model, batch) - expected).abs().max() > 0.1 * expected.abs().max()
    remove_heads(model, heads, gains=gains, batch=batch, smaller=smaller)
    with torch.no_grad():
        error = (logits(model, batch) - expected).abs().max() / expected.abs().max()
    assert float(error) < HALF[dtype]
    assert list_heads(model)["heads"].tolist() == [2 if smaller else 4, 4]


def test_adapters_count_as_the_merged_weights_do():
    peft = pytest.importorskip("peft")
    model, batch = llama()
    options = {"r": 4, "target_modules": ["q_proj", "v_proj", "o_proj"]}
    torch.manual_seed(1)
    model = peft.get_peft_model(model, peft.LoraConfig(**options, init_lora_weights=False)).eval()
    adapted = figures(model, batch)
    merged = copy.deepcopy(model).merge_and_unload()
    for name, values in figures(merged, batch).items():
        np.testing.assert_allclose(adapted[name], values, rtol=2e-3, atol=2e-4, err_msg=name)
    with pytest.raises(CaptureError, match="merge the adapter"):
        remove_heads(model, [(1, 1)], batch=batch)


def test_offloaded_weights_are_scored_and_not_changed():
    accelerate = pytest.importorskip("accelerate")
    model, batch = llama()
    whole = figures(model, batch)
    dispatched = accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    np.testing.assert_allclose(figures(dispatched, batch)["gains"], whole["gains"], rtol=1e-5)
    model, _ = llama()
    offloaded = accelerate.cpu_offload(model, torch.device("cpu"))
    for name, values in figures(offloaded, batch).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-4, atol=1e-6, err_msg=name)
    with pytest.raises(CaptureError, match=r"offloaded weights \(device meta\)"):
        remove_heads(offloaded, [(1, 1)], batch=batch)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = 4
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def pathkernel_heads(self):
        return AttentionHeads(self.heads, self.proj)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 2)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(heads.transpose(1, 2).flatten(2))


class Windowed(nn.Module):
    """Attention within windows of two tokens, numbered by example first or by window first."""

    def __init__(self, examples_first):
        super().__init__()
        torch.manual_seed(0)
        self.examples_first, self.layer = examples_first, Attention()

    def forward(self, x):
        windows = x.unflatten(1, (-1, 2))  # (example, window, token, 8)
        if not self.examples_first:
            windows = windows.transpose(0, 1)
        passed = self.layer(windows.flatten(0, 1)).unflatten(0, windows.shape[:2])
        passed = passed if self.examples_first else passed.transpose(0, 1)
        return passed.flatten(1, 2).tanh().square().mean(dim=1)


def test_windows_of_an_image_count_as_one_example():
    inputs = torch.randn(EXAMPLES, 6, 8, generator=torch.Generator().manual_seed(1)).double()
    forms, targets = [], torch.zeros(EXAMPLES, 2)
    # outputs one by one; differences. Before them two passes tell the windows of an example
    for examples_first, passes in ((True, 5), (False, 11)):
        model = Windowed(examples_first).double()
        network = LiveNetwork(
            model, [inputs], lambda x, model=model: (model(x)[:, :2], targets), "squared"
        )
        forms.append(network.form(np.ones(4)))
        assert network.passes == passes
    np.testing.assert_allclose(forms[0].gradient, forms[1].gradient, rtol=1e-3)
    np.testing.assert_allclose(forms[0].form, forms[1].form, rtol=1e-2, atol=1e-6)
    half = model.bfloat16()
    with pytest.raises(CaptureError, match="too coarse in half precision"):
        curvature_scores(half, [inputs.bfloat16()], lambda x: (half(x)[:, :2], targets))


def test_cross_attention_that_describes_its_heads():
    transformers = pytest.importorskip("transformers", minversion="5")
    sizes = {f"{part}_{name}": count for part in ("encoder", "decoder") for name, count in
             (("layers", 1), ("attention_heads", 4), ("ffn_dim", 48))}  # fmt: skip
    config = transformers.BartConfig(vocab_size=40, d_model=WIDTH, **sizes)
    torch.manual_seed(0)
    model = transformers.BartModel(config).eval()
    assert len(list_heads(model)) == 2

    def described(module):
        projections = [module.q_proj, module.k_proj, module.v_proj]
        return AttentionHeads(module.num_heads, module.out_proj, projections)

    crossed = model.decoder.layers[0].encoder_attn
    crossed.pathkernel_heads = types.MethodType(described, crossed)
    assert list_heads(model)["module"].tolist()[2] == "decoder.layers.0.encoder_attn"
    batch = {
        "input_ids": torch.randint(3, 40, (EXAMPLES, TOKENS)),
        "decoder_input_ids": torch.randint(3, 40, (EXAMPLES, 4)),
    }

    def outputs(batch):
        return model(**batch).last_hidden_state[:, -1, :CLASSES], TARGETS

    with torch.no_grad(), heads_off(model, [(3, 2)]):
        off = outputs(batch)[0]
    by_hand = copy.deepcopy(model)
    by_hand.decoder.layers[0].encoder_attn.out_proj.weight.data[:, 8:16] = 0
    with torch.no_grad():
        expected = by_hand(**batch).last_hidden_state[:, -1, :CLASSES]
        assert not torch.allclose(outputs(batch)[0], expected)
    torch.testing.assert_close(off, expected)
    gains = refit_gains(model, [batch], outputs, [(3, 2)], loss="cross-entropy")
    with torch.no_grad(), heads_off(model, [(3, 2)], gains=gains):
        expected = outputs(batch)[0]
    remove_heads(model, [(3, 2)], gains=gains, batch=batch, smaller=True)
    with torch.no_grad():
        torch.testing.assert_close(outputs(batch)[0], expected)
    assert list_heads(model)["heads"].tolist() == [4, 4, 3]
