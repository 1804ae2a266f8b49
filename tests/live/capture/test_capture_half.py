"""Captures of models in half precision, against those in single precision."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError

WIDTH, EXAMPLES, TOKENS = 32, 6, 9
SMALL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 40,
}
MODELS = {
    "Bert": SMALL,
    "Llama": SMALL | {"num_key_value_heads": 2},
    "ViT": SMALL | {"image_size": 12, "patch_size": 4},
}
ERRORS = {torch.bfloat16: 0.02, torch.float16: 0.003}
PICTURES = {
    "heads": {"readout": "mean"},
    "states": {"readout": "mean", "attend": "states"},
    "product": {"readout": "first", "picture": "product", "skips": True},
}


def made(name):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim == 2 else 1)
    if name == "ViT":
        return model, {"pixel_values": torch.randn(EXAMPLES, 3, 12, 12)}
    mask = torch.ones(EXAMPLES, TOKENS, dtype=torch.long)
    mask[1, 6:] = 0
    return model, {"input_ids": torch.randint(40, (EXAMPLES, TOKENS)), "attention_mask": mask}


def captures(model, batch):
    def outputs(batch):
        z = model(**batch).last_hidden_state[:, 0, :3]
        return z, torch.zeros_like(z)

    dtype = model.dtype
    batch = {name: v.to(dtype) if v.is_floating_point() else v for name, v in batch.items()}
    found = {name: capture(model, [batch], **options) for name, options in PICTURES.items()}
    found["tangent"] = capture(model, [batch], picture="tangent", outputs=outputs)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_agrees_with_single(name):
    model, batch = made(name)
    single = captures(model, batch)
    for dtype, largest in ERRORS.items():
        for picture, half in captures(copy.deepcopy(model).to(dtype), batch).items():
            exact = single[picture]
            for path in range(exact.xi.shape[1]):
                size = np.linalg.norm(exact.xi[:, path])
                error = np.linalg.norm(half.xi[:, path] - exact.xi[:, path]) / size
                assert error < largest, (picture, path)
            np.testing.assert_allclose(half.deviations, exact.deviations, rtol=0.01)


class Swapped(nn.Module):
    """Attention of two heads that pass on each other's values."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        split = (part.unflatten(-1, (2, -1)) for part in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (part.transpose(1, 2) for part in split)
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(heads.flip(1).transpose(1, 2).flatten(2))

    def pathkernel_heads(self):
        return AttentionHeads(2, self.proj, [self.qkv])


@pytest.mark.parametrize("dtype", ERRORS)
def test_heads_are_compared(dtype):
    model, inputs = nn.Sequential(Swapped()).to(dtype), torch.randn(4, 5, 8, dtype=dtype)
    with pytest.raises(CaptureError, match="passes on other than its attention times its values"):
        capture(model, [inputs])
